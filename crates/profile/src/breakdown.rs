//! What the live bytes of a step are made of, at every node.
//!
//! In: a graph and its analysis. Out: one [`Breakdown`] for each rank, whose total is that node's
//! peak.

use rekindle_graph::{Bytes, Graph, Phase, Step, StorageId, with_frees};

use crate::analysis::Analysis;
use crate::kind::Kind;

/// Live bytes by kind at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    by_kind: [Bytes; Kind::ALL.len()],
    /// Scratch of the node that runs.
    pub scratch: Bytes,
}

impl Breakdown {
    /// The bytes of one kind.
    pub fn of(&self, kind: Kind) -> Bytes {
        self.by_kind[kind as usize]
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
    for node in graph.nodes().iter().filter(|n| n.phase == Phase::Input) {
        for &w in &node.writes {
            now.by_kind[kind(w)] += graph.storage(w).bytes;
        }
    }
    let mut breakdowns = vec![now; graph.nodes().len()];
    for step in with_frees(graph, &graph.natural_order()) {
        match step {
            Step::Run(id) => {
                for &w in &graph.node(id).writes {
                    now.by_kind[kind(w)] += graph.storage(w).bytes;
                }
                let scratch = graph.node(id).workspace;
                breakdowns[id.index()] = Breakdown { scratch, ..now };
            }
            Step::Free(s) => now.by_kind[kind(s)] -= graph.storage(s).bytes,
        }
    }
    breakdowns
}
