//! The cases of the planner's benchmark, and what each is compared with.

use std::path::Path;

use anyhow::{Context, Result};

use crate::archive::lines;

/// Which comparison a case belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// PyTorch's partitioner, at the peak that it reached.
    Torch,
    /// The reference annealing of eight seconds over the kept set.
    Reference,
    /// The best published figure for the graph and budget.
    Published,
    /// No peer: the smallest budget that has a plan, and small multiples of it.
    Tight,
    /// No peer: random layered graphs.
    Layered,
    /// No peer: budgets that are too small, without a proof of it.
    Refused,
    /// No peer: how planning grows with the graph.
    Synthetic,
    /// No peer: how long μ-TWO takes.
    Mutwo,
}

impl Table {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Table::Torch => "torch",
            Table::Reference => "reference",
            Table::Published => "published",
            Table::Tight => "tight",
            Table::Layered => "layered",
            Table::Refused => "refused",
            Table::Synthetic => "synthetic",
            Table::Mutwo => "mutwo",
        }
    }

    /// Whether it is about graphs of the corpus, planned as a user would.
    pub(crate) fn is_corpus(self) -> bool {
        !matches!(self, Table::Layered | Table::Synthetic | Table::Mutwo)
    }
}

/// A graph, a budget, and the overhead to be compared with.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) table: Table,
    pub(crate) graph: String,
    /// As the command takes it: bytes, or a share with `%`; or a multiple of the smallest budget
    /// that a refusal names, with `x`.
    pub(crate) budget: String,
    /// In percent of the plain step's time; `None` where the peer found nothing.
    pub(crate) peer: Option<f64>,
    /// Half of the last digit that the peer is given with.
    pub(crate) rounding: f64,
}

impl Case {
    /// Whether `word` is its graph or its table.
    pub(crate) fn is_named(&self, word: &str) -> bool {
        word == self.graph || word == self.table.name()
    }

    fn new(table: Table, graph: &str, budget: String, peer: Option<f64>, rounding: f64) -> Case {
        Case { table, graph: graph.into(), budget, peer, rounding }
    }
}

/// Multiples of the smallest budget that has a plan.
const TIGHT: [&str; 4] = ["1x", "1.05x", "1.1x", "1.25x"];

/// Nodes of the random layered graphs, and seeds of each size.
const LAYERED: [usize; 4] = [100, 250, 500, 1000];
const LAYERED_SEEDS: std::ops::RangeInclusive<u64> = 1..=2;
/// Begins the name of such a graph; the number of nodes and the seed follow.
pub(crate) const LAYERED_NAME: &str = "layered-";

/// About how many nodes the graphs have at which growth is measured.
const SYNTHETIC: [usize; 3] = [10_000, 30_000, 100_000];
/// Begins the name of such a graph; the number of nodes follows.
pub(crate) const SYNTHETIC_NAME: &str = "synthetic-";

const REFERENCE_BUDGETS: [u32; 8] = [80, 70, 60, 50, 40, 30, 25, 20];
/// Overheads in percent; a missing one means that the reference found no plan.
const REFERENCE: [(&str, &[f64]); 8] = [
    ("bert-base-b16-s128", &[0.9, 2.1, 8.3, 15.4]),
    ("densenet121-b32", &[3.6, 5.1, 7.0, 9.4, 11.2, 13.9, 15.5, 17.1]),
    ("gpt2-b8-s512", &[1.2, 1.8, 3.6, 6.6, 13.1]),
    ("resnet152-b32", &[2.1, 4.0, 5.8, 7.9, 10.1, 12.7, 15.5]),
    ("resnet50-b32", &[1.9, 3.5, 5.3, 7.3, 10.3]),
    ("seed-transformer-b64-s128", &[1.4, 5.3, 13.2]),
    ("unet-b8", &[0.9, 1.6, 2.2, 3.7, 12.9]),
    ("vgg16-b32", &[0.8, 3.1]),
];

const PUBLISHED_BUDGETS: [u32; 3] = [90, 80, 70];
/// The lowest of Checkmate, MOCCASIN and FastSA, in percent.
const PUBLISHED: [(&str, [f64; 3]); 5] = [
    ("rl1-n100", [0.0, 0.3, 2.2]),
    ("rl2-n250", [0.0, 0.0, 2.6]),
    ("rl4-n1000", [0.4, 2.5, 7.4]),
    ("cm1-fcn8", [0.0, 0.1, 3.0]),
    ("cm2-resnet50", [0.1, 0.3, 0.8]),
];

/// Budgets below what any planner is known to reach, and above the floor.
const REFUSED: [(&str, u32); 4] =
    [("densenet121-b32", 10), ("resnet152-b32", 12), ("resnet50-b32", 16), ("rl4-n1000", 40)];

/// All cases; `graphs` is the folder of the corpus.
pub(crate) fn cases(graphs: &Path) -> Result<Vec<Case>> {
    let mut cases = torch(graphs)?;
    for (graph, peers) in REFERENCE {
        for (i, share) in REFERENCE_BUDGETS.into_iter().enumerate() {
            let (budget, peer) = (format!("{share}%"), peers.get(i).copied());
            cases.push(Case::new(Table::Reference, graph, budget, peer, 0.05));
        }
    }
    for (graph, peers) in PUBLISHED {
        for (share, peer) in PUBLISHED_BUDGETS.into_iter().zip(peers) {
            let budget = format!("{share}%");
            cases.push(Case::new(Table::Published, graph, budget, Some(peer), 0.05));
        }
    }
    for (graph, _) in REFERENCE {
        for budget in TIGHT {
            cases.push(Case::new(Table::Tight, graph, budget.into(), None, 0.0));
        }
    }
    for nodes in LAYERED {
        for seed in LAYERED_SEEDS {
            for share in PUBLISHED_BUDGETS {
                let (graph, budget) =
                    (format!("{LAYERED_NAME}{nodes}-{seed}"), format!("{share}%"));
                cases.push(Case::new(Table::Layered, &graph, budget, None, 0.0));
            }
        }
    }
    for (graph, share) in REFUSED {
        let budget = format!("{share}%");
        cases.push(Case::new(Table::Refused, graph, budget, None, 0.0));
    }
    for nodes in SYNTHETIC {
        let graph = format!("{SYNTHETIC_NAME}{nodes}");
        cases.push(Case::new(Table::Synthetic, &graph, "50%".into(), None, 0.0));
    }
    cases.push(Case::new(Table::Mutwo, "resnet152-b32", "60%".into(), None, 0.0));
    Ok(cases)
}

/// Every row of the partitioner's results, except the plain step.
fn torch(graphs: &Path) -> Result<Vec<Case>> {
    let path = graphs.join("torch_partitioner.csv");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let mut cases = Vec::new();
    for line in lines(&text)? {
        if line.text("planner")? != "none" {
            let (graph, peak) = (line.text("graph")?, line.get("peak_bytes")?);
            let peer = 100.0 * line.get::<f64>("overhead")?;
            cases.push(Case::new(Table::Torch, graph, peak, Some(peer), 0.005));
        }
    }
    Ok(cases)
}
