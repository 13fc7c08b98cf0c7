//! What became of each activation, and why.
//!
//! In: a graph and a checked schedule of any strategy. Out: one [`Decision`] for each activation.
//! The reasons are read off the schedule itself, so they say what is true of the plan and not what
//! a strategy meant.

use rekindle_analysis::{ActivationUses, Tracer, activations};
use rekindle_graph::{
    Bytes, Effect, Graph, Micros, NodeId, Phase, Plan, Schedule, ScheduleError, Step, StorageId,
    Timeline, replay,
};

/// What became of an activation.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Which storage.
    pub storage: StorageId,
    /// Its size.
    pub bytes: Bytes,
    /// Kept, made again, or moved.
    pub choice: Choice,
    /// Why.
    pub reason: Reason,
    /// Time of the sub-graph that rebuilds it when every other activation is kept.
    pub recompute_time: Micros,
    /// Time that the plan spends on running its writer again.
    pub spent: Micros,
    /// The node that makes it; its number is the profiler's `creation_rank`.
    pub created: NodeId,
    /// The first backward node that reads it; its number is the profiler's `first_bw_use_rank`.
    pub first_backward: NodeId,
}

/// Kept, recomputed or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// Made once and kept until its last use.
    Keep,
    /// Dropped and made again this many times.
    Recompute {
        /// How often it is made again: at least once.
        times: u32,
    },
    /// Copied to the store, dropped, and fetched back this many times. It may be made again
    /// besides.
    Move {
        /// How often it is fetched: at least once.
        times: u32,
    },
}

/// Why an activation was kept, dropped or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Kept: the plain step fits, nothing has to be dropped.
    PlainStepFits,
    /// Kept: the node that makes it may run only once.
    RunsOnce,
    /// Kept: recomputations read it.
    FeedsRecomputation,
    /// Kept: memory is below the peak all the while between its last forward and its first backward
    /// use, so dropping it would not lower the peak.
    OffPeak,
    /// Kept: a byte of it costs more to make again than one of any activation that was dropped.
    CostlyPerByte,
    /// Kept: the budget is met without dropping it.
    Fits,
    /// Dropped or moved: its bytes were needed between its uses.
    MakesRoom,
    /// Dropped, and made again only for another recomputation: no backward node reads the copy.
    RebuildsAnother,
    /// Moved: its bytes were needed between its uses, and nothing waits for its transfers.
    HiddenByCompute,
    /// Moved: its bytes were needed between its uses, and what waits for its transfers waits for
    /// less time than making it again takes.
    CheaperThanRecompute,
    /// Moved: its bytes were needed between its uses, and what made it may not run again.
    NoOtherWay,
}

impl Reason {
    /// In a few words.
    pub fn text(self) -> &'static str {
        match self {
            Reason::PlainStepFits => "the plain step fits",
            Reason::RunsOnce => "its node may run only once",
            Reason::FeedsRecomputation => "recomputations read it",
            Reason::OffPeak => "memory is below the peak between its uses",
            Reason::CostlyPerByte => "costlier per byte than all that was dropped",
            Reason::Fits => "the budget is met without dropping it",
            Reason::MakesRoom => "its bytes are needed between its uses",
            Reason::RebuildsAnother => "rebuilds another activation",
            Reason::HiddenByCompute => "its transfers hide behind computation",
            Reason::CheaperThanRecompute => "waiting for it is shorter than making it again",
            Reason::NoOtherWay => "its bytes are needed and it cannot be made again",
        }
    }
}

/// What `plan` does with each activation of its graph, ascending by storage.
///
/// # Errors
/// If the plan is not a schedule of this graph.
pub fn decisions(graph: &Graph, plan: &Plan) -> Result<Vec<Decision>, ScheduleError> {
    let timeline = Timeline::new(graph, &plan.schedule)?;
    Ok(of_schedule(graph, &plan.schedule, &timeline))
}

/// An activation, the time of what rebuilds it, and whether that may run again.
type Timed<'a> = (&'a ActivationUses, Micros, bool);

/// The decision for each activation, ascending by storage.
pub(crate) fn of_schedule(
    graph: &Graph,
    schedule: &Schedule,
    timeline: &Timeline,
) -> Vec<Decision> {
    let activations = activations(graph);
    // Which nodes rebuild each does not matter here, and would take most of the room.
    let mut tracer = Tracer::new(graph, &activations);
    let timed = |a| {
        let recomputation = tracer.recomputation(a);
        (a, recomputation.time, recomputation.possible)
    };
    let activations: Vec<Timed> = activations.iter().map(timed).collect();
    let lives = lives(graph, schedule);
    let peaks = Peaks::new(timeline);
    let is_plain = timeline.recomputed() == 0 && !schedule.has_transfers();
    let price = |&(a, time, _): &Timed| time.get() / a.bytes.get().max(1) as f64;
    let dropped = activations.iter().filter(|(a, ..)| lives[a.storage.index()].made > 1);
    let dearest_dropped = dropped.map(price).fold(0.0, f64::max);

    let reason = |timed: &Timed, life: &Life| match life {
        life if life.fetched > 0 && life.waited == 0.0 => Reason::HiddenByCompute,
        life if life.fetched > 0 && !timed.2 => Reason::NoOtherWay,
        life if life.fetched > 0 && life.waited <= timed.1.get() => Reason::CheaperThanRecompute,
        life if life.fetched > 0 => Reason::MakesRoom,
        life if life.made > 1 && life.copy_read_backward => Reason::MakesRoom,
        life if life.made > 1 => Reason::RebuildsAnother,
        _ if is_plain => Reason::PlainStepFits,
        _ if graph.node(timed.0.made).effect == Effect::Once => Reason::RunsOnce,
        life if life.read_again => Reason::FeedsRecomputation,
        life if peaks.between(life.idle_from, life.idle_to) == 0 => Reason::OffPeak,
        _ if price(timed) > dearest_dropped => Reason::CostlyPerByte,
        _ => Reason::Fits,
    };
    let decide = |timed: &Timed| {
        let (a, recompute_time, _) = *timed;
        let life = &lives[a.storage.index()];
        let reruns = timeline.runs[a.made.index()].saturating_sub(1);
        Decision {
            storage: a.storage,
            bytes: a.bytes,
            choice: match (life.fetched, life.made) {
                (0, 0 | 1) => Choice::Keep,
                (0, made) => Choice::Recompute { times: made - 1 },
                (times, _) => Choice::Move { times },
            },
            reason: reason(timed, life),
            recompute_time,
            spent: Micros(graph.node(a.made).time.get() * f64::from(reruns)),
            created: a.made,
            first_backward: a.first_backward,
        }
    };
    activations.iter().map(decide).collect()
}

/// What happens to one storage in a schedule.
#[derive(Clone, Default)]
struct Life {
    /// How often it is made (not counting copies that are dropped at once).
    made: u32,
    /// Whether a backward node reads it after it was made again.
    copy_read_backward: bool,
    /// Whether a node that runs again reads it.
    read_again: bool,
    /// The last use before the first backward use, as a step.
    idle_from: usize,
    /// The first backward use, as a step.
    idle_to: usize,
    /// How often it comes back from the store.
    fetched: u32,
    /// When its last fetch ends.
    arrives: f64,
    /// How long compute stands still for its transfers.
    waited: f64,
}

fn lives(graph: &Graph, schedule: &Schedule) -> Vec<Life> {
    let mut lives = vec![Life::default(); graph.storages().len()];
    let mut ran = vec![false; graph.nodes().len()];
    replay(graph, schedule, |moment| {
        let id = match moment.step {
            Step::Run(id) => id,
            Step::Free(s) => return lives[s.index()].waited += moment.waited.get(),
            Step::Offload(_) => return,
            Step::Fetch(s) => {
                let life = &mut lives[s.index()];
                (life.fetched, life.arrives) = (life.fetched + 1, moment.span.ended.get());
                return;
            }
        };
        let at = moment.id.index();
        let node = graph.node(id);
        // Compute waits for the last to arrive.
        let last = node.reads.iter().max_by(|a, b| {
            let arrives = |s: &StorageId| lives[s.index()].arrives;
            arrives(a).total_cmp(&arrives(b))
        });
        if let Some(last) = last.filter(|_| moment.waited > Micros::ZERO) {
            lives[last.index()].waited += moment.waited.get();
        }
        let again = std::mem::replace(&mut ran[id.index()], true);
        for r in &node.reads {
            let life = &mut lives[r.index()];
            life.read_again |= again;
            if life.idle_to == 0 && node.phase == Phase::Backward {
                life.idle_to = at;
            } else if life.idle_to == 0 {
                life.idle_from = at;
            }
            life.copy_read_backward |= life.made > 1 && node.phase == Phase::Backward;
        }
        for w in moment.claimed {
            lives[w.index()].made += 1;
            if lives[w.index()].idle_to == 0 {
                lives[w.index()].idle_from = at;
            }
        }
    })
    .expect("the schedule has been replayed");
    lives
}

/// How many steps reach the peak, in any range.
struct Peaks {
    /// Those before each step, and all of them.
    before: Vec<u32>,
}

impl Peaks {
    fn new(timeline: &Timeline) -> Self {
        let mut before = vec![0];
        for (step, &bytes) in timeline.during.iter().enumerate() {
            before.push(before[step] + u32::from(bytes == timeline.peak));
        }
        Peaks { before }
    }

    /// Strictly between two steps.
    fn between(&self, from: usize, to: usize) -> u32 {
        let from = (from + 1).min(to);
        self.before[to] - self.before[from]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chain;

    fn reasons(graph: &Graph, order: &[u32]) -> Vec<Reason> {
        let order: Vec<NodeId> = order.iter().copied().map(NodeId).collect();
        let schedule = Schedule::of_order(graph, &order);
        let timeline = Timeline::new(graph, &schedule).expect("valid");
        let decisions = of_schedule(graph, &schedule, &timeline);
        decisions.iter().map(|d| d.reason).collect()
    }

    #[test]
    fn each_activation_has_the_reason_that_is_true_of_the_plan() {
        // f0 f1 f2 f3 b3 b2 f1 b1 b0: f1 is dropped and made again from f0. The peak of 41 is at
        // b3, which lies between f2's uses and not between f3's.
        let mut graph = chain(4);
        let order = [1, 2, 3, 4, 5, 6, 2, 7, 8];
        let kept = Reason::FeedsRecomputation;
        let expected = [kept, Reason::MakesRoom, Reason::Fits, Reason::OffPeak];
        assert_eq!(reasons(&graph, &order), expected);

        // The same with an f2 that may run only once.
        let mut parts = graph.into_parts();
        parts.nodes[3].effect = Effect::Once;
        graph = Graph::new(parts).expect("still a graph");
        assert_eq!(reasons(&graph, &order)[2], Reason::RunsOnce);

        // An f2 that takes 5 µs costs more per byte than f1, which was dropped.
        let mut times = vec![Micros(1.0); 9];
        times[3] = Micros(5.0);
        let graph = chain(4).with_times(&times).expect("nine nodes");
        assert_eq!(reasons(&graph, &order)[2], Reason::CostlyPerByte);

        // f1 and f2 are dropped; f1 is made for f2 and again for itself.
        let order = [1, 2, 3, 4, 5, 2, 3, 6, 2, 7, 8];
        assert_eq!(reasons(&chain(4), &order)[1], Reason::MakesRoom);
        let plain = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(reasons(&chain(4), &plain), [Reason::PlainStepFits; 4]);
    }
}
