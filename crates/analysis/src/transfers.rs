//! What the transfers of a schedule are: how many bytes go each way, how much of their time is
//! hidden behind computation, and how long computation waits for them.
//!
//! In: a graph and a schedule. Out: [`Transfers`], with every copy and every wait by itself, or
//! nothing where the schedule moves nothing. All of it is read off the one replay.
//!
//! Computation waits only while something is copied, so the time in which something is copied is
//! what is hidden and what is waited for, and no more.

use rekindle_graph::{
    Bytes, Graph, Micros, Moment, NodeId, Schedule, ScheduleError, Span, Step, StorageId, replay,
};

/// One copy to the store or back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedTransfer {
    /// What is copied.
    pub storage: StorageId,
    /// Which way.
    pub direction: Direction,
    /// When, on its channel.
    pub span: Span,
}

/// Which way a storage is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the store.
    Out,
    /// Back to memory.
    In,
}

/// A time in which computation stands still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    /// When.
    pub span: Span,
    /// What comes after it.
    pub before: Awaiting,
}

/// What computation stands still for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaiting {
    /// A node, whose inputs have not arrived or whose update would spoil a copy.
    Run(NodeId),
    /// The bytes of a storage that is still being copied.
    Free(StorageId),
    /// The end of the step: everything has run, and something is still being copied.
    End,
}

/// The transfers of a schedule; by default none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transfers {
    /// In the order of the schedule.
    pub copies: Vec<TimedTransfer>,
    /// In the order of time; they do not overlap.
    pub waits: Vec<Wait>,
    /// Bytes moved to the store.
    pub moved_out: Bytes,
    /// Bytes moved back.
    pub moved_in: Bytes,
    /// The most that the store holds.
    pub store_peak: Bytes,
    /// What lives in the store between training steps.
    pub stored_at_start: Bytes,
    /// The time in which something is copied while nodes run.
    pub hidden: Micros,
    /// The time in which something is copied and nothing runs.
    pub waited: Micros,
}

/// The transfers of `schedule`; `None` if it moves nothing.
///
/// # Errors
/// If the schedule is not one of this graph.
pub fn transfers(graph: &Graph, schedule: &Schedule) -> Result<Option<Transfers>, ScheduleError> {
    let (mut copies, mut waits) = (Vec::new(), Vec::new());
    // When all runs have ended.
    let mut computed = Micros::ZERO;
    let timeline = replay(graph, schedule, |moment| {
        copies.extend(copy_of(moment));
        if let Some(wait) = wait_of(moment) {
            waits.push(wait);
            computed = wait.span.ended;
        }
        if let Step::Run(_) = moment.step {
            computed = moment.span.ended;
        }
    })?;
    if !schedule.has_transfers() {
        return Ok(None);
    }
    if timeline.time > computed {
        let span = Span { began: computed, ended: timeline.time };
        waits.push(Wait { span, before: Awaiting::End });
    }
    let stored = schedule.stored_at_start.iter().map(|&s| graph.storage(s).bytes);
    Ok(Some(Transfers {
        moved_out: timeline.moved_out,
        moved_in: timeline.moved_in,
        store_peak: timeline.store_peak,
        stored_at_start: stored.sum(),
        hidden: Micros((covered(&copies) - timeline.waited.get()).max(0.0)),
        waited: timeline.waited,
        copies,
        waits,
    }))
}

fn copy_of(moment: &Moment<'_>) -> Option<TimedTransfer> {
    let (storage, direction) = match moment.step {
        Step::Offload(storage) => (storage, Direction::Out),
        Step::Fetch(storage) => (storage, Direction::In),
        Step::Run(_) | Step::Free(_) => return None,
    };
    Some(TimedTransfer { storage, direction, span: moment.span })
}

fn wait_of(moment: &Moment<'_>) -> Option<Wait> {
    let before = match moment.step {
        Step::Run(node) => Awaiting::Run(node),
        Step::Free(storage) => Awaiting::Free(storage),
        Step::Offload(_) | Step::Fetch(_) => return None,
    };
    let ended = moment.span.began;
    let span = Span { began: ended - moment.waited, ended };
    (moment.waited > Micros::ZERO).then_some(Wait { span, before })
}

/// The time that is covered by at least one of the copies, in microseconds.
fn covered(copies: &[TimedTransfer]) -> f64 {
    let mut spans: Vec<(f64, f64)> =
        copies.iter().map(|c| (c.span.began.get(), c.span.ended.get())).collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, 0.0_f64);
    for (began, ended) in spans {
        sum += (ended - began.max(until)).max(0.0);
        until = until.max(ended);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_graph::{Rate, Store};

    /// `f` makes s1 (30 bytes) from the parameter s0, `g` makes s2 without it, `b` reads s1 and s2.
    const GRAPH: &str = r#"{"format": "remat.graph/1",
        "storages": [{"bytes": 10, "role": "parameter"}, {"bytes": 30, "role": "activation"},
                     {"bytes": 5, "role": "activation"}, {"bytes": 1, "role": "gradient"}],
        "nodes": [
        {"name": "w", "phase": "input", "time_us": 0, "reads": [], "writes": [0]},
        {"name": "f", "phase": "forward", "time_us": 10, "reads": [0], "writes": [1]},
        {"name": "g", "phase": "forward", "time_us": 100, "reads": [], "writes": [2]},
        {"name": "b", "phase": "backward", "time_us": 10, "reads": [1, 2], "writes": [3]}],
        "outputs": [3]}"#;

    fn schedule(steps: Vec<Step>) -> Schedule {
        let store = Store {
            out_rate: Rate(1.0),
            in_rate: Rate(1.0),
            latency: Micros::ZERO,
            duplex: true,
            limit: None,
            activations_only: false,
        };
        Schedule { steps, store: Some(store), stored_at_start: Vec::new() }
    }

    #[test]
    fn what_is_hidden_and_what_is_waited_for_is_all_that_is_copied() {
        let graph = Graph::from_json(GRAPH).expect("a graph");
        let [f, g, b] = [1, 2, 3].map(|n| Step::Run(NodeId(n)));
        let s1 = StorageId(1);
        // Out while nothing else is to do: from 10 to 40. Back from 140 to 170, after g.
        let steps = vec![f, Step::Offload(s1), Step::Free(s1), g, Step::Fetch(s1), b];
        let found = transfers(&graph, &schedule(steps)).expect("valid").expect("it moves");
        let span = |began, ended| Span { began: Micros(began), ended: Micros(ended) };
        let copies: Vec<_> = found.copies.iter().map(|c| (c.direction, c.span)).collect();
        let expected = [(Direction::Out, span(10.0, 40.0)), (Direction::In, span(140.0, 170.0))];
        assert_eq!(copies, expected);
        let waits = [
            Wait { span: span(10.0, 40.0), before: Awaiting::Free(s1) },
            Wait { span: span(140.0, 170.0), before: Awaiting::Run(NodeId(3)) },
        ];
        assert_eq!(found.waits, waits);
        assert_eq!((found.hidden, found.waited), (Micros(0.0), Micros(60.0)));
        assert_eq!((found.moved_out, found.moved_in), (Bytes(30), Bytes(30)));

        // Out behind g, back after it; the parameter's copy ends after everything.
        let s0 = StorageId(0);
        let steps =
            vec![f, Step::Offload(s1), g, Step::Free(s1), Step::Fetch(s1), b, Step::Offload(s0)];
        let found = transfers(&graph, &schedule(steps)).expect("valid").expect("it moves");
        assert_eq!((found.hidden, found.waited), (Micros(30.0), Micros(40.0)));
        let last = found.waits.last().expect("two waits");
        assert_eq!(*last, Wait { span: span(150.0, 160.0), before: Awaiting::End });
    }

    #[test]
    fn a_schedule_that_moves_nothing_has_none() {
        let graph = Graph::from_json(GRAPH).expect("a graph");
        assert_eq!(transfers(&graph, &Schedule::plain(&graph)), Ok(None));
    }
}
