//! Random layered graphs, after the construction that the MOCCASIN benchmark uses: no training
//! step, no phases, and every order of a layer is as good as another.
//!
//! Nodes lie in layers of random width. Each reads some of the layer before it, each of its nodes
//! with the same chance and one at least; some reads go back further instead. A first node feeds
//! the first layer, a last one reads the last. Times are even, sizes a mixture of four normal
//! distributions, as in the published graphs. Everything follows from the number of nodes and a
//! seed.

/// About this many layers per square root of the nodes.
const LAYERS: f64 = 1.6;
/// The chance that a node reads a given one of the layer before it.
const DENSITY: f64 = 0.25;
/// The chance that one more read goes back further, for each of those.
const SKIPS: f64 = 0.16;
/// Weights (in tenths), means and deviations of the sizes, in kilobytes.
const SIZES: [(usize, f64, f64); 4] = [(3, 0.5, 0.5), (3, 1.0, 1.0), (3, 3.0, 1.0), (1, 5.0, 1.0)];

struct Dice(u64);

impl Dice {
    /// Evenly from `0..n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    fn chance(&mut self, p: f64) -> bool {
        (self.below(1 << 20) as f64) < p * f64::from(1 << 20)
    }

    /// About normal: the sum of twelve even numbers.
    fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let sum: usize = (0..12).map(|_| self.below(1 << 16)).sum();
        mean + deviation * (sum as f64 / f64::from(1 << 16) - 6.0)
    }

    fn bytes(&mut self) -> usize {
        let mut tenth = self.below(10);
        let mut part = SIZES[0];
        for size in SIZES {
            part = size;
            if tenth < size.0 {
                break;
            }
            tenth -= size.0;
        }
        10 * ((100.0 * self.normal(part.1, part.2)).abs().round() as usize).max(1)
    }
}

/// `remat.graph/1` text of `nodes` nodes.
pub(crate) fn layered(nodes: usize, seed: u64) -> String {
    let mut dice = Dice(seed ^ nodes as u64);
    let width = (nodes as f64).sqrt() / LAYERS;
    let (mut reads, mut layer): (Vec<Vec<usize>>, Vec<usize>) = (vec![vec![]], vec![0]);
    let mut bytes = vec![dice.bytes()];
    while reads.len() + 1 < nodes {
        let wide = (width * (0.25 + 1.5 * dice.below(1000) as f64 / 1000.0)).round() as usize;
        let wide = wide.clamp(1, nodes - 1 - reads.len());
        let (begin, last) = (reads.len(), layer.clone());
        for _ in 0..wide {
            let mut from: Vec<usize> =
                last.iter().copied().filter(|_| dice.chance(DENSITY)).collect();
            if from.is_empty() {
                from.push(last[dice.below(last.len())]);
            }
            for _ in 0..from.len() {
                if dice.chance(SKIPS) {
                    from.push(dice.below(begin));
                }
            }
            from.sort_unstable();
            from.dedup();
            reads.push(from);
            bytes.push(dice.bytes());
        }
        layer = (begin..reads.len()).collect();
    }
    // The last node reads all that nobody else does.
    let mut is_read = vec![false; reads.len()];
    reads.iter().flatten().for_each(|&r| is_read[r] = true);
    reads.push((0..is_read.len()).filter(|&i| !is_read[i]).collect());
    bytes.push(dice.bytes());
    let storages: Vec<String> =
        bytes.iter().map(|b| format!(r#"{{"bytes":{b},"role":"activation"}}"#)).collect();
    let node = |(i, reads): (usize, &Vec<usize>)| {
        let time = dice.below(1000);
        let edges = format!(r#""reads":{reads:?},"writes":[{i}]"#);
        format!(r#"{{"name":"n{i}","op":"n","phase":"forward","time_us":{time},{edges}}}"#)
    };
    let written: Vec<String> = reads.iter().enumerate().map(node).collect();
    let head = format!(r#""format":"remat.graph/1","name":"layered-{nodes}-{seed}""#);
    let (storages, last) = (storages.join(","), nodes - 1);
    let written = written.join(",");
    format!(
        r#"{{{head},"storages":[{storages}],"nodes":[{written}],"outputs":[],"targets":[{last}]}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_graph_of_the_size_asked_for() {
        let text = layered(100, 1);
        assert_eq!(text, layered(100, 1));
        assert_ne!(text, layered(100, 2));
        let graph: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let nodes = graph["nodes"].as_array().expect("nodes");
        assert_eq!(nodes.len(), 100);
        // Every node reads what was written before it, and is needed.
        let mut is_read = [false; 100];
        for (i, node) in nodes.iter().enumerate() {
            for read in node["reads"].as_array().expect("reads") {
                let read = read.as_u64().expect("a number") as usize;
                assert!(read < i);
                is_read[read] = true;
            }
        }
        assert!(is_read[..99].iter().all(|&r| r));
    }
}
