//! A profile: the numbers of one training step, node by node and activation by activation.
//!
//! Plain data, as it stands in the two CSV files. [`Profile::new`] puts it together from a graph
//! with measured times; `files` writes and reads it.

use rekindle_graph::{Bytes, Graph, Micros, NodeId, Phase, Schedule, Step, replay};

use crate::analysis::{Analysis, activations};
use crate::kind::Kind;
use crate::recompute::{Tracer, inactive_times};

/// A duration in seconds, as the CSV files have it: not negative, and infinite at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

impl Seconds {
    /// The plain number of seconds.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl From<Micros> for Seconds {
    fn from(time: Micros) -> Seconds {
        Seconds(time.seconds())
    }
}

impl From<Seconds> for Micros {
    fn from(time: Seconds) -> Micros {
        Micros(time.0 * 1e6)
    }
}

/// The row of one node in the node table.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStats {
    /// Its position in the step's own order.
    pub rank: u32,
    /// Its name in the graph.
    pub name: String,
    /// What it makes.
    pub kind: Kind,
    /// The part of the step that it belongs to (`gtype`). `None` where a file of another program
    /// does not say.
    pub phase: Option<Phase>,
    /// The median time of one run.
    pub run_time: Seconds,
    /// The highest sum of live bytes while it runs, its scratch included.
    pub peak_mem: Bytes,
    /// The sum of live bytes just after it has run: what it made is there, its scratch is gone, and
    /// what it was the last to use is not yet freed. So μ-TWO's own profiler reads it.
    pub active_mem: Bytes,
    /// The device that it ran on.
    pub device: String,
}

/// The row of one activation in the activation table. What a file does not have is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivationStats {
    /// Its maker's name; `maker:k` for the output `k` of a node with several.
    pub name: String,
    /// What it is: an activation.
    pub kind: Kind,
    /// The rank of its maker.
    pub creation: u32,
    /// The rank of its last forward use. `None`: no forward node reads it.
    pub last_forward: Option<u32>,
    /// The rank of its first backward use.
    pub first_backward: Option<u32>,
    /// The rank of its last backward use.
    pub last_backward: Option<u32>,
    /// Its size.
    pub memory_size: Bytes,
    /// The time from the end of its last forward use (or its making) to the start of its first
    /// backward use.
    pub inactive_time: Option<Seconds>,
    /// The time that it takes to copy it out of the way and back.
    pub swap_time: Option<Seconds>,
    /// The time that it takes to make it again from what is kept. `None` too where it cannot be
    /// made again.
    pub recomp_time: Option<Seconds>,
    /// The bytes that making it again adds at most.
    pub recomp_memory: Option<Bytes>,
    /// The bytes won per second of recomputation; infinite if making it again costs no time.
    pub recompute_ratio: Option<f64>,
}

/// The numbers of one training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The model's name.
    pub model: String,
    /// The number of samples in a batch.
    pub batch_size: usize,
    /// The node table, ascending by rank.
    pub nodes: Vec<NodeStats>,
    /// The activation table, ascending by creation.
    pub activations: Vec<ActivationStats>,
}

/// What a run of the step adds to what its graph already says.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements<'a> {
    /// The device that the nodes ran on.
    pub device: &'a str,
    /// The highest bytes in use while each node ran; indexed by node, the start's for inputs.
    pub peak_mem: &'a [Bytes],
    /// The time to copy each activation out and back, in the order of [`Analysis::activations`].
    pub swap_times: &'a [Option<Seconds>],
}

impl Profile {
    /// The profile of `graph`, whose nodes have their measured times.
    pub fn new(model: &str, batch_size: usize, graph: &Graph, measured: &Measurements) -> Profile {
        let analysis = Analysis::new(graph);
        Profile {
            model: model.into(),
            batch_size,
            nodes: node_stats(graph, &analysis, measured),
            activations: activation_stats(graph, &analysis, measured),
        }
    }

    /// The profile of a `graph` whose times come from elsewhere: the bytes are those of its plain
    /// step, and swap times are not known.
    pub fn of_graph(model: &str, batch_size: usize, graph: &Graph, device: &str) -> Profile {
        let measured = Measurements {
            device,
            peak_mem: &node_peaks(graph),
            swap_times: &vec![None; activations(graph).len()],
        };
        Profile::new(model, batch_size, graph, &measured)
    }

    /// The sum of the nodes' times.
    pub fn step_time(&self) -> Seconds {
        Seconds(self.nodes.iter().map(|n| n.run_time.get()).sum())
    }

    /// The node at which the step needs most bytes: the first of those that do.
    pub fn peak(&self) -> Option<&NodeStats> {
        let mut nodes = self.nodes.iter();
        let first = nodes.next()?;
        Some(nodes.fold(first, |best, n| if n.peak_mem > best.peak_mem { n } else { best }))
    }
}

/// The highest bytes while each node runs in the plain step, by the byte timeline; for an input,
/// which never runs, the bytes at the start.
pub fn node_peaks(graph: &Graph) -> Vec<Bytes> {
    let start = graph.sources().map(|s| graph.storage(s).bytes).sum();
    let mut peaks = vec![start; graph.nodes().len()];
    replay(graph, &Schedule::plain(graph), |moment| {
        if let Step::Run(node) = moment.step {
            peaks[node.index()] = moment.during;
        }
    })
    .expect("a checked graph's own order can be replayed");
    peaks
}

fn node_stats(graph: &Graph, analysis: &Analysis, measured: &Measurements) -> Vec<NodeStats> {
    let stats = |id: NodeId| {
        let node = graph.node(id);
        let runs = node.phase != Phase::Input;
        NodeStats {
            rank: id.0,
            name: node.name.clone(),
            kind: analysis.node_kinds[id.index()],
            phase: Some(node.phase),
            run_time: if runs { node.time } else { Micros::ZERO }.into(),
            peak_mem: measured.peak_mem[id.index()],
            active_mem: measured.peak_mem[id.index()] - node.workspace,
            device: measured.device.into(),
        }
    };
    graph.node_ids().map(stats).collect()
}

fn activation_stats(
    graph: &Graph,
    analysis: &Analysis,
    measured: &Measurements,
) -> Vec<ActivationStats> {
    let mut tracer = Tracer::new(graph, &analysis.activations);
    let inactive_times = inactive_times(graph, &analysis.activations);
    let times = inactive_times.iter().zip(measured.swap_times);
    let each = analysis.activations.iter().zip(times);
    each.map(|(a, (&inactive_time, &swap_time))| {
        let recomputation = Some(tracer.recomputation(a)).filter(|r| r.possible);
        let recomputation = recomputation.as_ref();
        ActivationStats {
            name: graph.storage_name(a.storage),
            kind: Kind::Activation,
            creation: a.made.0,
            last_forward: a.last_forward.map(|n| n.0),
            first_backward: Some(a.first_backward.0),
            last_backward: Some(a.last_backward.0),
            memory_size: a.bytes,
            inactive_time: Some(inactive_time.into()),
            swap_time,
            recomp_time: recomputation.map(|r| r.time.into()),
            recomp_memory: recomputation.map(|r| r.memory(graph, a.storage)),
            recompute_ratio: recomputation.map(|r| r.ratio(a.bytes)),
        }
    })
    .collect()
}
