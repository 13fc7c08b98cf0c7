//! Maximum flow, and with it the minimum cut, in a network with whole capacities.
//!
//! Method: Dinic's: a breadth-first search from the sink labels distances, depth-first searches fill all shortest
//! paths, until no path is left. The nodes that the source still reaches are the source side of a minimum cut.

/// A capacity that no cut pays.
pub(crate) const UNCUT: i64 = i64::MAX / 4;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// Head of each arc; arc `a ^ 1` is its reverse.
    head: Vec<u32>,
    left: Vec<i64>,
    /// Capacities as given, to start again.
    capacity: Vec<i64>,
    /// Arcs that leave each node.
    arcs: Vec<Vec<u32>>,
    level: Vec<u32>,
    next: Vec<u32>,
    whole: bool,
    work: u64,
}

impl Network {
    pub(crate) fn new(nodes: usize) -> Network {
        Network {
            head: Vec::new(),
            left: Vec::new(),
            capacity: Vec::new(),
            arcs: vec![Vec::new(); nodes],
            level: vec![0; nodes],
            next: vec![0; nodes],
            whole: false,
            work: 0,
        }
    }

    /// Adds an arc and returns its number.
    pub(crate) fn arc(&mut self, from: usize, to: usize, capacity: i64) -> usize {
        let a = self.head.len();
        self.head.extend([to as u32, from as u32]);
        self.capacity.extend([capacity, 0]);
        self.arcs[from].push(a as u32);
        self.arcs[to].push(a as u32 + 1);
        a
    }

    /// Changes the capacity of an arc; takes effect with the next [`cut`](Network::cut).
    pub(crate) fn set(&mut self, arc: usize, capacity: i64) {
        self.capacity[arc] = capacity;
    }

    /// Tail and head of an arc.
    pub(crate) fn ends(&self, arc: usize) -> (usize, usize) {
        (self.head[arc ^ 1] as usize, self.head[arc] as usize)
    }

    /// The value of a minimum cut between two nodes. After `most` searches the flow so far is returned, which is
    /// less; whether it is the whole says [`is_whole`](Network::is_whole).
    pub(crate) fn cut(&mut self, source: usize, sink: usize, most: u32) -> i64 {
        self.left.clone_from(&self.capacity);
        let mut flow = 0i64;
        self.whole = false;
        for _ in 0..most {
            self.work += self.head.len() as u64;
            if !self.label(source, sink) {
                self.whole = true;
                break;
            }
            self.next.fill(0);
            flow = flow.saturating_add(self.fill(source, sink));
        }
        flow
    }

    /// Whether the last cut was found, and not given up.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Arcs looked at by all searches so far.
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    /// Whether `node` is on the source side of the last cut.
    pub(crate) fn on_source_side(&self, source: usize) -> Vec<bool> {
        let mut reached = vec![false; self.arcs.len()];
        reached[source] = true;
        let mut queue = vec![source as u32];
        while let Some(u) = queue.pop() {
            for &a in &self.arcs[u as usize] {
                let v = self.head[a as usize];
                if self.left[a as usize] > 0 && !std::mem::replace(&mut reached[v as usize], true) {
                    queue.push(v);
                }
            }
        }
        reached
    }

    /// Distances to the sink; whether the source reaches it.
    fn label(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(u32::MAX);
        self.level[sink] = 0;
        let mut queue = std::collections::VecDeque::from([sink as u32]);
        while let Some(v) = queue.pop_front() {
            for &a in &self.arcs[v as usize] {
                let u = self.head[a as usize] as usize;
                if self.left[a as usize ^ 1] > 0 && self.level[u] == u32::MAX {
                    self.level[u] = self.level[v as usize] + 1;
                    queue.push_back(u as u32);
                }
            }
        }
        self.level[source] != u32::MAX
    }

    /// Fills all shortest paths.
    fn fill(&mut self, source: usize, sink: usize) -> i64 {
        let mut total = 0i64;
        let mut path: Vec<u32> = Vec::new();
        let mut u = source;
        loop {
            if u == sink {
                let by = path.iter().map(|&a| self.left[a as usize]).min();
                let by = by.unwrap_or(0);
                for &a in &path {
                    self.left[a as usize] -= by;
                    self.left[a as usize ^ 1] += by;
                }
                total = total.saturating_add(by);
                // Back to the tail of the first arc that is full.
                let full = path.iter().position(|&a| self.left[a as usize] == 0);
                let full = full.unwrap_or(0);
                u = self.head[path[full] as usize ^ 1] as usize;
                path.truncate(full);
                continue;
            }
            let open = self.arcs[u][self.next[u] as usize..].iter().position(|&a| {
                let v = self.head[a as usize] as usize;
                self.left[a as usize] > 0
                    && self.level[v] != u32::MAX
                    && self.level[v] + 1 == self.level[u]
            });
            match open {
                Some(k) => {
                    self.next[u] += k as u32;
                    let a = self.arcs[u][self.next[u] as usize];
                    path.push(a);
                    u = self.head[a as usize] as usize;
                }
                None => {
                    self.next[u] = self.arcs[u].len() as u32;
                    let Some(a) = path.pop() else {
                        return total;
                    };
                    u = self.head[a as usize ^ 1] as usize;
                    self.next[u] += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two paths of 3 and 2 that share a bridge of 4: the bridge is the cut.
    #[test]
    fn the_cut_is_where_the_flow_is_full() {
        let mut network = Network::new(5);
        network.arc(0, 1, 3);
        network.arc(0, 2, 2);
        network.arc(1, 3, UNCUT);
        network.arc(2, 3, UNCUT);
        let bridge = network.arc(3, 4, 4);
        assert_eq!(network.cut(0, 4, 10), 4);
        assert!(network.is_whole());
        let side = network.on_source_side(0);
        assert!(side[3] && !side[4]);
        network.set(bridge, 9);
        assert_eq!(network.cut(0, 4, 10), 5);
        assert!(!network.on_source_side(0)[3]);
    }
}
