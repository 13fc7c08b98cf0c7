//! What each storage and node of a step is for, told by the structure of the step.
//!
//! In: a graph. Out: a [`Kind`] for every storage and every node.
//!
//! An activation is made in the forward pass, read in the backward pass, and not persistent. Of
//! the rest, the optimizer's nodes tell the most: what they overwrite is a parameter if the model
//! reads it too and a state of the optimizer if nobody else does, and what they read from the
//! backward pass is a gradient. Where a step has no optimizer, an output of the backward pass is a
//! gradient. Where nothing tells, the declared role decides; a gradient that only passes through is
//! `other`.

use rekindle_graph::{Graph, Node, Phase, Role, StorageId};

/// What a storage is for, or what a node makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A weight, bias or buffer of the model.
    Parameter,
    /// The gradient of a parameter.
    Gradient,
    /// Made in the forward pass and read in the backward pass: a feature map.
    Activation,
    /// What the optimizer remembers between steps.
    OptimizerState,
    /// The batch: data or labels.
    Input,
    /// Anything else.
    Other,
}

impl Kind {
    /// All kinds with their names in the CSV files, in the order of the variants.
    pub const ALL: [(Kind, &str); 6] = [
        (Kind::Parameter, "parameter"),
        (Kind::Gradient, "gradient"),
        (Kind::Activation, "activation"),
        (Kind::OptimizerState, "optimizer_state"),
        (Kind::Input, "input"),
        (Kind::Other, "other"),
    ];

    /// Its name in the CSV files.
    pub fn name(self) -> &'static str {
        Kind::ALL[self as usize].1
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        let found = Kind::ALL.iter().find(|(_, text)| *text == name);
        found.map(|&(kind, _)| kind)
    }
}

/// The words for phases in the CSV files; files of other programs have nodes of no known phase.
const GTYPES: [(Option<Phase>, &str); 5] = [
    (Some(Phase::Input), "input"),
    (Some(Phase::Forward), "forward"),
    (Some(Phase::Backward), "backward"),
    (Some(Phase::Optimizer), "optimizer"),
    (None, "intermediate/other"),
];

/// μ-TWO's word for a phase (`gtype`); `None` is a phase that is not known.
pub fn gtype(phase: Option<Phase>) -> &'static str {
    let found = GTYPES.iter().find(|(of, _)| *of == phase);
    found.expect("every phase has its word").1
}

/// The phase that a `gtype` names.
pub(crate) fn phase_of(gtype: &str) -> Option<Option<Phase>> {
    let found = GTYPES.iter().find(|(_, text)| *text == gtype);
    found.map(|&(phase, _)| phase)
}

/// The kind of every storage; indexed by storage.
pub(crate) fn storage_kinds(graph: &Graph) -> Vec<Kind> {
    let mut is_output = vec![false; graph.storages().len()];
    for s in graph.outputs() {
        is_output[s.index()] = true;
    }
    let has_optimizer = graph.nodes().iter().any(|n| n.phase == Phase::Optimizer);
    graph
        .storage_ids()
        .map(|s| {
            let result_of_step = !has_optimizer && is_output[s.index()];
            match is_activation(graph, s) {
                true => Kind::Activation,
                false => by_optimizer(graph, s)
                    .or_else(|| by_role(graph.storage(s).role))
                    .unwrap_or_else(|| by_passes(graph, s, result_of_step)),
            }
        })
        .collect()
}

/// Whether a storage is made in the forward pass, read in the backward pass, and not persistent.
pub(crate) fn is_activation(graph: &Graph, storage: StorageId) -> bool {
    graph.node(graph.writer(storage)).phase == Phase::Forward
        && !graph.storage(storage).role.is_persistent()
        && reads_in(graph, storage, Phase::Backward)
}

/// What an optimizer node's use of a storage tells.
fn by_optimizer(graph: &Graph, storage: StorageId) -> Option<Kind> {
    let phase_of_updater = graph.updater(storage).map(|n| graph.node(n).phase);
    let read_in = |phase| reads_in(graph, storage, phase);
    if phase_of_updater == Some(Phase::Optimizer) {
        let declared = graph.storage(storage).role == Role::Parameter;
        let of_model = declared || read_in(Phase::Forward) || read_in(Phase::Backward);
        return Some(if of_model { Kind::Parameter } else { Kind::OptimizerState });
    }
    let made_backward = graph.node(graph.writer(storage)).phase == Phase::Backward;
    (made_backward && read_in(Phase::Optimizer)).then_some(Kind::Gradient)
}

/// What a persistent role tells.
fn by_role(role: Role) -> Option<Kind> {
    match role {
        Role::Parameter => Some(Kind::Parameter),
        Role::Input => Some(Kind::Input),
        Role::OptimizerState => Some(Kind::OptimizerState),
        Role::Tangent => Some(Kind::Gradient),
        Role::Constant => Some(Kind::Other),
        Role::Activation | Role::Gradient | Role::Other => None,
    }
}

/// What the passes that make and read a storage tell.
fn by_passes(graph: &Graph, storage: StorageId, result_of_step: bool) -> Kind {
    match graph.node(graph.writer(storage)).phase {
        Phase::Backward if result_of_step => Kind::Gradient,
        _ => Kind::Other,
    }
}

fn reads_in(graph: &Graph, storage: StorageId, phase: Phase) -> bool {
    let mut readers = graph.readers(storage).iter();
    readers.any(|&n| graph.node(n).phase == phase)
}

/// The kind of what a node makes or, where it makes nothing, overwrites. Of several the one that
/// says most about the step counts.
pub(crate) fn node_kind(node: &Node, storage_kinds: &[Kind]) -> Kind {
    const TELLING: [Kind; 5] =
        [Kind::Activation, Kind::Gradient, Kind::Parameter, Kind::OptimizerState, Kind::Input];
    let made = if node.writes.is_empty() { &node.updates } else { &node.writes };
    let makes = |kind: &Kind| made.iter().any(|s| storage_kinds[s.index()] == *kind);
    TELLING.into_iter().find(makes).unwrap_or(Kind::Other)
}
