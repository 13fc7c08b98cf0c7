//! What the live bytes of a step are made of, at every node.
//!
//! In: a graph and its analysis. Out: one [`Breakdown`] for each rank, whose total is that node's
//! peak.

use rekindle_graph::{Bytes, Graph, Schedule, Step, StorageId, replay};

use crate::analysis::Analysis;
use crate::kind::Kind;

/// The layers that bytes are shown in, from the bottom of a stack to its top. Scratch belongs to
/// the last.
pub const LAYERS: [(&str, &[Kind]); 5] = [
    ("weights", &[Kind::Parameter]),
    ("optimizer states", &[Kind::OptimizerState]),
    ("gradients", &[Kind::Gradient]),
    ("feature maps", &[Kind::Activation]),
    ("other", &[Kind::Input, Kind::Other]),
];

/// Live bytes by kind at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    by_kind: [Bytes; Kind::ALL.len()],
    /// The scratch of the node that runs.
    pub scratch: Bytes,
}

impl Breakdown {
    /// The bytes of one kind.
    pub fn of(&self, kind: Kind) -> Bytes {
        self.by_kind[kind as usize]
    }

    /// The bytes of each of [`LAYERS`].
    pub fn layers(&self) -> [Bytes; LAYERS.len()] {
        let mut layers = LAYERS.map(|(_, kinds)| kinds.iter().map(|&kind| self.of(kind)).sum());
        layers[LAYERS.len() - 1] += self.scratch;
        layers
    }

    /// All bytes.
    pub fn total(&self) -> Bytes {
        self.by_kind.iter().copied().sum::<Bytes>() + self.scratch
    }
}

/// The bytes while each node of the plain step runs; indexed by node. An input never runs: what it
/// has are the bytes at the start.
pub fn breakdowns(graph: &Graph, analysis: &Analysis) -> Vec<Breakdown> {
    let kind = |s: StorageId| analysis.storage_kinds[s.index()] as usize;
    let mut now = Breakdown::default();
    for s in graph.sources() {
        now.by_kind[kind(s)] += graph.storage(s).bytes;
    }
    let mut breakdowns = vec![now; graph.nodes().len()];
    replay(graph, &Schedule::plain(graph), |moment| {
        for &s in moment.claimed {
            now.by_kind[kind(s)] += graph.storage(s).bytes;
        }
        match moment.step {
            Step::Run(id) => {
                let scratch = moment.scratch;
                breakdowns[id.index()] = Breakdown { scratch, ..now };
            }
            Step::Free(s) => now.by_kind[kind(s)] -= graph.storage(s).bytes,
            Step::Offload(_) | Step::Fetch(_) => {}
        }
    })
    .expect("a checked graph's own order can be replayed");
    breakdowns
}
