//! Maximum flow, and with it the minimum cut, in a network with whole capacities.
//!
//! Method: Dinic's: a breadth-first search from the sink labels distances, depth-first searches
//! fill all shortest paths, until no path is left. The nodes that the source still reaches are the
//! source side of a minimum cut, the smallest one, whatever the flow. So a flow that is there
//! already serves as a start where no capacity has become smaller ([`keep`](Network::keep)), and
//! changes nothing but the work.

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
    /// Arcs by the node that they leave, each node's in a row, ascending; made when they are first
    /// needed.
    arcs: Vec<u32>,
    /// Where the arcs of each node start, and the end of all.
    start: Vec<u32>,
    /// Distance to the sink, for the nodes that are closer to it than the source.
    level: Vec<u32>,
    /// Where the next arc to be tried stands, for each node.
    next: Vec<u32>,
    /// Nodes whose arcs wait to be looked at.
    queue: Vec<u32>,
    whole: bool,
    flow: i64,
    kept: Option<Kept>,
    work: u64,
    /// Arcs looked at by the depth-first searches, which `work` leaves out.
    filled: u64,
    /// Arcs that all searches together may look at.
    most_arcs: u64,
}

/// A flow to start from.
#[derive(Clone, Debug, Default)]
struct Kept {
    left: Vec<i64>,
    capacity: Vec<i64>,
    flow: i64,
}

impl Network {
    /// A network of some nodes, with room for some arcs. All searches in it together look at
    /// `most_arcs`, and then give up.
    pub(crate) fn new(nodes: usize, arcs: usize, most_arcs: u64) -> Network {
        Network {
            head: Vec::with_capacity(2 * arcs),
            left: Vec::new(),
            capacity: Vec::with_capacity(2 * arcs),
            arcs: Vec::new(),
            start: vec![0; nodes + 1],
            level: vec![0; nodes],
            next: vec![0; nodes],
            queue: Vec::new(),
            whole: false,
            flow: 0,
            kept: None,
            work: 0,
            filled: 0,
            most_arcs,
        }
    }

    /// Adds an arc and returns its number.
    pub(crate) fn arc(&mut self, from: usize, to: usize, capacity: i64) -> usize {
        let a = self.head.len();
        self.head.extend([to as u32, from as u32]);
        self.capacity.extend([capacity, 0]);
        a
    }

    /// Sorts the arcs by the node that they leave.
    fn sort_arcs(&mut self) {
        if self.arcs.len() == self.head.len() {
            return;
        }
        self.start.fill(0);
        for &v in &self.head {
            self.start[v as usize + 1] += 1;
        }
        for v in 1..self.start.len() {
            self.start[v] += self.start[v - 1];
        }
        let mut place = self.start.clone();
        self.arcs = vec![0; self.head.len()];
        for a in 0..self.head.len() {
            let place = &mut place[self.head[a ^ 1] as usize];
            self.arcs[*place as usize] = a as u32;
            *place += 1;
        }
    }

    fn arcs_of(&self, node: usize) -> &[u32] {
        &self.arcs[self.start[node] as usize..self.start[node + 1] as usize]
    }

    /// Changes the capacity of an arc; takes effect with the next [`cut`](Network::cut).
    pub(crate) fn set(&mut self, arc: usize, capacity: i64) {
        self.capacity[arc] = capacity;
    }

    /// Tail and head of an arc.
    pub(crate) fn ends(&self, arc: usize) -> (usize, usize) {
        (self.head[arc ^ 1] as usize, self.head[arc] as usize)
    }

    /// The value of a minimum cut between two nodes. After `most` searches or arcs, or when `stop`
    /// says so of the arcs looked at since it was asked, the flow so far is returned, which is
    /// less; whether it is the whole says [`is_whole`](Network::is_whole).
    pub(crate) fn cut(
        &mut self,
        source: usize,
        sink: usize,
        most: u32,
        stop: &dyn Fn(u64) -> bool,
    ) -> i64 {
        self.sort_arcs();
        self.start_from_kept();
        self.whole = false;
        for _ in 0..most {
            self.work += self.head.len() as u64;
            if !self.label(source, sink) {
                self.whole = true;
                break;
            }
            self.next.copy_from_slice(&self.start[..self.level.len()]);
            let before = self.filled;
            self.flow = self.flow.saturating_add(self.fill(source, sink));
            let looked = self.head.len() as u64 + self.filled - before;
            if self.is_exhausted() || stop(looked) {
                break;
            }
        }
        self.flow
    }

    /// Keeps the flow of the last cut, for later ones to start from if no capacity is smaller then.
    pub(crate) fn keep(&mut self) {
        let kept = self.kept.get_or_insert_default();
        kept.left.clone_from(&self.left);
        kept.capacity.clone_from(&self.capacity);
        kept.flow = self.flow;
    }

    fn start_from_kept(&mut self) {
        self.left.clone_from(&self.capacity);
        self.flow = 0;
        let Some(kept) = &self.kept else {
            return;
        };
        let mut capacities = kept.capacity.iter().zip(&self.capacity);
        if kept.capacity.len() == self.capacity.len() && capacities.all(|(kept, now)| kept <= now) {
            for (a, left) in self.left.iter_mut().enumerate() {
                *left -= kept.capacity[a] - kept.left[a];
            }
            self.flow = kept.flow;
        }
    }

    /// Whether no more arcs may be looked at.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.work + self.filled > self.most_arcs
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
        let mut reached = vec![false; self.level.len()];
        reached[source] = true;
        let mut queue = vec![source as u32];
        while let Some(u) = queue.pop() {
            for &a in self.arcs_of(u as usize) {
                let v = self.head[a as usize];
                if self.left[a as usize] > 0 && !std::mem::replace(&mut reached[v as usize], true) {
                    queue.push(v);
                }
            }
        }
        reached
    }

    /// Distances to the sink, up to that of the source; whether the source reaches it.
    fn label(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(u32::MAX);
        self.level[sink] = 0;
        self.queue.clear();
        self.queue.push(sink as u32);
        let mut done = 0;
        while let Some(&v) = self.queue.get(done) {
            done += 1;
            let v = v as usize;
            for i in self.start[v]..self.start[v + 1] {
                let a = self.arcs[i as usize] as usize;
                let u = self.head[a] as usize;
                if self.left[a ^ 1] > 0 && self.level[u] == u32::MAX {
                    self.level[u] = self.level[v] + 1;
                    if u == source {
                        return true;
                    }
                    self.queue.push(u as u32);
                }
            }
        }
        false
    }

    /// Fills all shortest paths.
    fn fill(&mut self, source: usize, sink: usize) -> i64 {
        let mut total = 0i64;
        let mut path: Vec<u32> = Vec::new();
        let mut u = source;
        loop {
            self.filled += 1;
            if u == sink {
                self.filled += path.len() as u64;
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
            if self.is_exhausted() {
                return total;
            }
            let end = self.start[u + 1] as usize;
            let open = self.arcs[self.next[u] as usize..end].iter().position(|&a| {
                let v = self.head[a as usize] as usize;
                // Of the nodes with a level only the sink has 0, and it is not `u`.
                self.left[a as usize] > 0 && self.level[v] == self.level[u] - 1
            });
            match open {
                Some(k) => {
                    self.filled += k as u64;
                    self.next[u] += k as u32;
                    let a = self.arcs[self.next[u] as usize];
                    path.push(a);
                    u = self.head[a as usize] as usize;
                }
                None => {
                    self.filled += (end - self.next[u] as usize) as u64;
                    self.next[u] = end as u32;
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
        let mut network = Network::new(5, 5, 1_000);
        network.arc(0, 1, 3);
        network.arc(0, 2, 2);
        network.arc(1, 3, UNCUT);
        network.arc(2, 3, UNCUT);
        let bridge = network.arc(3, 4, 4);
        assert_eq!(network.cut(0, 4, 10, &|_| false), 4);
        assert!(network.is_whole());
        let side = network.on_source_side(0);
        assert!(side[3] && !side[4]);
        // With a wider bridge the flow can be kept, with a narrower one it cannot.
        network.keep();
        for (width, flow) in [(9, 5), (4, 4), (3, 3)] {
            network.set(bridge, width);
            assert_eq!(network.cut(0, 4, 10, &|_| false), flow);
            assert_eq!(network.on_source_side(0)[3], width <= 4);
        }
    }
    /// However large the network, a search ends soon after the arcs that it may look at.
    #[test]
    fn a_cut_is_given_up_after_the_arcs_that_it_may_look_at() {
        // Every node leads to every later one, so that there are paths of every length.
        let (nodes, most) = (60, 20_000);
        let mut network = Network::new(nodes, nodes * nodes / 2, most);
        for from in 0..nodes {
            for to in from + 1..nodes {
                network.arc(from, to, 1 + (from * 7 + to * 3) as i64 % 11);
            }
        }
        let arcs = network.head.len() as u64;
        for _ in 0..50 {
            network.cut(0, nodes - 1, 1000, &|_| false);
        }
        assert!(network.is_exhausted());
        // One search more for each call, and what the last one had begun.
        assert!(network.work() + network.filled <= most + 51 * arcs);
        // Whoever says stop is heard after the first search.
        let before = network.work();
        network.cut(0, nodes - 1, 1000, &|_| true);
        assert!(network.work() <= before + arcs);
    }
}
