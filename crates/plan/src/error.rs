//! Why there is no plan, with numbers and what to do.

use rekindle_graph::{Bytes, Graph, NodeId, StorageId};

use crate::Options;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No plan that fits was found.
    #[error(transparent)]
    Infeasible(Box<Infeasible>),
    /// The watch said stop before there was a plan under the budget.
    #[error(
        "stopped before a plan under {budget} was found (lowest peak so far: {lowest}); allow \
         more time"
    )]
    Stopped {
        /// What the step may use.
        budget: Bytes,
        /// The lowest peak reached.
        lowest: Bytes,
    },
    /// The strategy moves storages, and there is nowhere to move them to.
    #[error(
        "{strategy} moves storages to a store and back; give it a store, or take another strategy"
    )]
    NeedsStore {
        /// The strategy's name.
        strategy: &'static str,
    },
    /// The checker rejected the strategy's schedule: a fault of this crate, never of its input.
    #[error("the checker rejected the plan of {strategy}, please report this:\n{why}")]
    Rejected {
        /// The strategy's name.
        strategy: &'static str,
        /// Every violation.
        why: String,
    },
}

/// A budget for which a strategy has no plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Infeasible {
    /// The strategy's name.
    pub strategy: &'static str,
    /// What the step may use.
    pub budget: Bytes,
    /// The smallest budget for which a plan is known.
    pub smallest_known: Bytes,
    /// The smallest budget with a store, where none was given and one would help.
    pub smallest_with_store: Option<Bytes>,
    /// The same with a store for activations alone.
    pub smallest_moving_activations: Option<Bytes>,
    /// The smallest budget for which a plan without transfers is known, where a store was given.
    pub smallest_without_store: Option<Bytes>,
    /// No schedule at all has a lower peak.
    pub lower_bound: Bytes,
    /// The node that gives the lower bound; `None` if the start or the end of the step does.
    pub at: Option<NodeId>,
    /// Its name, or which moment it is.
    pub at_name: String,
    /// The storages that must be live there, largest first, with their sizes and names.
    pub coexisting: Vec<(StorageId, Bytes, String)>,
    /// The scratch of that node.
    pub workspace: Bytes,
}

/// How many of the coexisting storages the message lists.
const LISTED: usize = 5;

impl Infeasible {
    pub(crate) fn new(
        graph: &Graph,
        options: &Options,
        budget: Bytes,
        smallest_known: Bytes,
    ) -> Infeasible {
        let floor = crate::floor_of(graph, options);
        let if_it_helps = |lowest: fn(&Graph) -> Bytes| {
            let lowest = options.store.is_none().then(|| lowest(graph));
            lowest.filter(|&lowest| lowest < smallest_known)
        };
        let named = |&s: &StorageId| (s, graph.storage(s).bytes, graph.shown_storage_name(s));
        let at_name = match floor.at {
            Some(node) => graph.node(node).shown_name(),
            None => floor.moment.to_string(),
        };
        Infeasible {
            strategy: options.strategy.name,
            budget,
            smallest_known,
            smallest_with_store: if_it_helps(|graph| crate::floor_with_store(graph).bytes),
            smallest_moving_activations: if_it_helps(crate::transfer::lowest_of_activations),
            smallest_without_store: None,
            lower_bound: floor.bytes,
            at: floor.at,
            at_name,
            coexisting: floor.coexisting.iter().map(named).collect(),
            workspace: floor.workspace,
        }
    }

    /// Whether no plan exists at all, as opposed to none being known.
    pub fn is_proven(&self) -> bool {
        self.budget < self.lower_bound
    }
}

impl std::fmt::Display for Infeasible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Infeasible { strategy, budget, smallest_known: smallest, lower_bound: bound, .. } =
            self;
        match self.is_proven() {
            true => writeln!(f, "no plan fits in {budget} ({} bytes)", budget.get())?,
            false => writeln!(f, "{strategy} finds no plan for {budget} ({} bytes)", budget.get())?,
        }
        writeln!(f, "  smallest budget with a known plan: {smallest} ({} bytes)", smallest.get())?;
        if let Some(bytes) = self.smallest_with_store {
            writeln!(f, "  with a store to move storages to: {bytes} ({} bytes)", bytes.get())?;
        }
        if let Some(bytes) = self.smallest_moving_activations {
            writeln!(f, "  with a store for activations alone: {bytes} ({} bytes)", bytes.get())?;
        }
        if let Some(bytes) = self.smallest_without_store {
            writeln!(f, "  without the store: {bytes} ({} bytes)", bytes.get())?;
        }
        writeln!(f, "  proven lower bound: {bound} ({} bytes)", bound.get())?;
        write!(f, "  at {} these must coexist:", self.at_name)?;
        for (id, bytes, name) in self.coexisting.iter().take(LISTED) {
            write!(f, "\n    {bytes:>12}  {name} ({id})", bytes = bytes.to_string())?;
        }
        if let Some(rest) = self.coexisting.get(LISTED..).filter(|rest| !rest.is_empty()) {
            let bytes: Bytes = rest.iter().map(|&(_, bytes, _)| bytes).sum();
            let bytes = bytes.to_string();
            write!(f, "\n    {bytes:>12}  {} more storages", rest.len())?;
        }
        if self.workspace > Bytes::ZERO {
            let bytes = self.workspace.to_string();
            write!(f, "\n    {bytes:>12}  scratch")?;
        }
        Ok(())
    }
}

impl std::error::Error for Infeasible {}
