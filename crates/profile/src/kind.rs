//! What each storage and node of a step is for, told by the structure of the step.
//!
//! In: a graph. Out: a [`Kind`] for every storage and every node.
//!
//! The optimizer's nodes tell the most: what they overwrite is a parameter if the model reads it
//! too and a state of the optimizer if nobody else does, and what they read from the backward pass
//! is a gradient. Where a step has no optimizer, an output of the backward pass is a gradient. An
//! activation is made in the forward pass, read in the backward pass, and not persistent. For the
//! rest the declared role decides; a gradient that only passes through is `other`.

use rekindle_graph::{Graph, Node, Phase, Role, StorageId};

/// Declares an enum whose variants have a name in the CSV files.
macro_rules! named {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$each:meta])* $variant:ident = $text:literal),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$each])* $variant),* }

        impl $name {
            /// All of them, in order.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// Its name in the CSV files.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }

            /// The one of this name.
            pub fn from_name(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|it| it.name() == name)
            }
        }
    };
}

named!(
    /// What a storage is for, or what a node makes.
    Kind {
        /// A weight, bias or buffer of the model.
        Parameter = "parameter",
        /// The gradient of a parameter.
        Gradient = "gradient",
        /// Made in the forward pass and read in the backward pass: a feature map.
        Activation = "activation",
        /// What the optimizer remembers between steps.
        OptimizerState = "optimizer_state",
        /// The batch: data or labels.
        Input = "input",
        /// Anything else.
        Other = "other",
    }
);

named!(
    /// The part of the step that a node belongs to.
    Gtype {
        /// There from the start; never runs.
        Input = "input",
        /// Computes the loss.
        Forward = "forward",
        /// Computes gradients.
        Backward = "backward",
        /// Updates parameters and optimizer state.
        Optimizer = "optimizer",
        /// Not known: from files of other programs.
        Other = "intermediate/other",
    }
);

impl From<Phase> for Gtype {
    fn from(phase: Phase) -> Gtype {
        match phase {
            Phase::Input => Gtype::Input,
            Phase::Forward => Gtype::Forward,
            Phase::Backward => Gtype::Backward,
            Phase::Optimizer => Gtype::Optimizer,
        }
    }
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
            by_optimizer(graph, s)
                .or_else(|| by_role(graph.storage(s).role))
                .unwrap_or_else(|| by_passes(graph, s, !has_optimizer && is_output[s.index()]))
        })
        .collect()
}

/// What an optimizer node's use of a storage tells.
fn by_optimizer(graph: &Graph, storage: StorageId) -> Option<Kind> {
    let phase_of_updater = graph.updater(storage).map(|n| graph.node(n).phase);
    let read_in = |phase| reads_in(graph, storage, phase);
    if phase_of_updater == Some(Phase::Optimizer) {
        let declared = graph.storage(storage).role == Role::Parameter;
        let of_model = declared || read_in(Phase::Forward) || read_in(Phase::Backward);
        return Some(if of_model {
            Kind::Parameter
        } else {
            Kind::OptimizerState
        });
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
        Phase::Forward if reads_in(graph, storage, Phase::Backward) => Kind::Activation,
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
    const TELLING: [Kind; 5] = [
        Kind::Activation,
        Kind::Gradient,
        Kind::Parameter,
        Kind::OptimizerState,
        Kind::Input,
    ];
    let made = if node.writes.is_empty() {
        &node.updates
    } else {
        &node.writes
    };
    let makes = |kind: &Kind| made.iter().any(|s| storage_kinds[s.index()] == *kind);
    TELLING.into_iter().find(makes).unwrap_or(Kind::Other)
}
