//! A plan: a schedule with the promise that it makes.

use crate::{Bytes, Digest, Graph, Micros, Schedule, ScheduleError, Timeline, one_line};

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
    /// The same steps as a plan for another graph of the same nodes, whose sizes and times may
    /// differ, with the peak and the time that they have there.
    ///
    /// # Errors
    /// The first step that cannot be done on that graph.
    pub fn carried_over(&self, graph: &Graph, budget: Bytes) -> Result<Plan, ScheduleError> {
        let Timeline { peak, time, .. } = Timeline::new(graph, &self.schedule)?;
        let (name, digest) = (graph.name().into(), Some(graph.digest()));
        Ok(Plan { graph: name, digest, budget, peak, time, ..self.clone() })
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, Step};

    #[test]
    fn steps_are_carried_over_with_the_bytes_and_times_of_the_other_graph() {
        let graph = |bytes: u64, time: f64| {
            let text = format!(
                r#"{{"format": "remat.graph/1", "name": "g{bytes}",
                "storages": [{{"bytes": 1, "role": "input"}}, {{"bytes": {bytes}, "role": "other"}}],
                "nodes": [
                {{"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [0]}},
                {{"name": "y", "phase": "forward", "time_us": {time}, "reads": [0], "writes": [1]}}],
                "outputs": [1]}}"#
            );
            Graph::from_json(&text).expect("a graph")
        };
        let (one, other) = (graph(4, 2.0), graph(16, 5.0));
        let plan = Plan {
            graph: one.name().into(),
            digest: Some(one.digest()),
            strategy: None,
            budget: Bytes(5),
            peak: Bytes(5),
            time: Micros(2.0),
            schedule: Schedule::plain(&one),
        };
        let carried = plan.carried_over(&other, Bytes(17)).expect("the same nodes");
        assert_eq!((carried.peak, carried.time), (Bytes(17), Micros(5.0)));
        assert_eq!((carried.check_graph(&other), carried.budget), (Ok(()), Bytes(17)));
        let unknown = Plan { schedule: vec![Step::Run(NodeId(7))].into(), ..plan };
        assert!(unknown.carried_over(&other, Bytes(17)).is_err());
    }
}
