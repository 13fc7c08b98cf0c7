//! A plan: a schedule with the promise that it makes.

use crate::{Bytes, Digest, Graph, Micros, Schedule, one_line};

/// A schedule on one graph, and what it promises.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The name of the graph it is for.
    pub graph: String,
    /// The digest of that graph; `None` where another program wrote the plan and gave none.
    pub digest: Option<Digest>,
    /// The strategy that made it, where known.
    pub strategy: Option<String>,
    /// What the whole step may use at its peak.
    pub budget: Bytes,
    /// The highest sum of live bytes at any step, scratch and persistent storages included.
    pub peak: Bytes,
    /// When everything is done, by the clock of the replay.
    pub time: Micros,
    /// What to do.
    pub schedule: Schedule,
}

/// A plan that was made for another graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", match plan == graph {
    true => format!(
        "the plan is for another graph of the name \"{graph}\", whose digest is not that of this \
         one; make a plan for this one"
    ),
    false => format!("the plan is for the graph \"{plan}\", this is \"{graph}\""),
})]
pub struct WrongGraph {
    /// The name of the plan's graph.
    pub plan: String,
    /// The name of the graph that it was used with.
    pub graph: String,
}

impl Plan {
    /// Whether it is for `graph`: by the digest that it carries, or by name where it has none.
    ///
    /// # Errors
    /// Names both graphs.
    pub fn check_graph(&self, graph: &Graph) -> Result<(), WrongGraph> {
        let is_same = match self.digest {
            Some(digest) => digest == graph.digest(),
            None => self.graph.is_empty() || self.graph == graph.name(),
        };
        match is_same {
            true => Ok(()),
            false => Err(WrongGraph { plan: one_line(&self.graph), graph: one_line(graph.name()) }),
        }
    }
}
