//! The rules of a schedule, in the most direct way: sets of storages, and sums. Rule by rule as the
//! formats' document states them; nothing is shared with the replay that it judges.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_graph::{Effect, Graph, Phase, Role, Schedule, Step};

/// What came of a schedule that can be done.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) peak: u64,
    pub(crate) store_peak: u64,
    /// Bytes out, and back.
    pub(crate) moved: [u64; 2],
    pub(crate) runs: Vec<u32>,
    pub(crate) time: f64,
    pub(crate) compute: f64,
    pub(crate) waited: f64,
    /// Whether every update has happened, and every output and every copy that is fetched holds
    /// what the plain step leaves there.
    pub(crate) values_hold: bool,
}

const OUT: usize = 0;
const BACK: usize = 1;

#[derive(Default)]
struct State {
    live: BTreeSet<usize>,
    in_store: BTreeSet<usize>,
    /// When each copy that is not stale is complete.
    copied: BTreeMap<usize, f64>,
    /// When what is in memory is complete, and when its offload ends.
    arrives: BTreeMap<usize, f64>,
    leaves: BTreeMap<usize, f64>,
    compute: f64,
    waited: f64,
    busy: f64,
    free_at: [f64; 2],
    moved: [u64; 2],
}

impl State {
    fn wait(&mut self, until: Option<&f64>) {
        let until = until.copied().unwrap_or(0.0);
        if until > self.compute {
            self.waited += until - self.compute;
            self.compute = until;
        }
    }
}

pub(crate) fn judge(graph: &Graph, schedule: &Schedule) -> Result<Figures, String> {
    let size = |s: usize| graph.storages()[s].bytes.get();
    let role = |s: usize| graph.storages()[s].role;
    let at_start: BTreeSet<usize> = schedule.stored_at_start.iter().map(|s| s.index()).collect();
    let may_be_stored = [Role::Parameter, Role::Constant, Role::OptimizerState];
    let is_for_activations = schedule.store.is_some_and(|store| store.activations_only);
    let mut state = State::default();
    for &s in &at_start {
        if is_for_activations || !may_be_stored.contains(&role(s)) {
            return Err(format!("{s} cannot be stored"));
        }
        state.copied.insert(s, 0.0);
        state.in_store.insert(s);
    }
    let inputs = graph.nodes().iter().filter(|n| n.phase == Phase::Input);
    let started: BTreeSet<usize> = inputs.flat_map(|n| &n.writes).map(|s| s.index()).collect();
    state.live = started.difference(&at_start).copied().collect();
    let sum = |set: &BTreeSet<usize>| set.iter().map(|&s| size(s)).sum::<u64>();
    let mut runs = vec![0; graph.nodes().len()];
    // Storages that hold what their updater left, in memory and in the store.
    let (mut updated, mut updated_copy) = (BTreeSet::new(), BTreeSet::new());
    let (mut peak, mut store_peak) = (sum(&state.live), sum(&state.in_store));
    for (i, step) in schedule.steps.iter().enumerate() {
        let mut scratch = 0;
        match *step {
            Step::Run(id) => {
                let node = graph.node(id);
                if node.phase == Phase::Input {
                    return Err(format!("step {i} runs an input"));
                }
                if node.effect == Effect::Once && runs[id.index()] > 0 {
                    return Err(format!("step {i} runs a node again that may not"));
                }
                for &r in &node.reads {
                    let is_over = graph.updater(r).is_some_and(|u| runs[u.index()] > 0);
                    if !state.live.contains(&r.index()) || is_over {
                        return Err(format!("step {i} reads {r}"));
                    }
                    let until = state.arrives.get(&r.index()).copied();
                    state.wait(until.as_ref());
                }
                for u in node.updates.iter().map(|u| u.index()) {
                    let until = state.leaves.get(&u).copied();
                    state.wait(until.as_ref());
                    state.copied.remove(&u);
                    if !at_start.contains(&u) {
                        state.in_store.remove(&u);
                    }
                    updated.insert(u);
                }
                scratch = node.workspace.get();
                for w in node.writes.iter().map(|w| w.index()) {
                    if !state.live.insert(w) {
                        scratch += size(w);
                        continue;
                    }
                    state.arrives.remove(&w);
                    state.leaves.remove(&w);
                    updated.remove(&w);
                }
                runs[id.index()] += 1;
                state.compute += node.time.get();
                state.busy += node.time.get();
            }
            Step::Free(s) => {
                let s = s.index();
                let is_kept = role(s).is_persistent() && !state.copied.contains_key(&s);
                if !state.live.remove(&s) || is_kept {
                    return Err(format!("step {i} frees {s}"));
                }
                for until in [state.leaves.get(&s).copied(), state.arrives.get(&s).copied()] {
                    state.wait(until.as_ref());
                }
                let later = &schedule.steps[i..];
                let is_fetched =
                    later.iter().any(|l| matches!(l, Step::Fetch(f) if f.index() == s));
                if !is_fetched && !at_start.contains(&s) {
                    state.in_store.remove(&s);
                }
            }
            Step::Offload(s) => {
                let s = s.index();
                let stays = is_for_activations && role(s).is_persistent();
                if !state.live.contains(&s) || stays {
                    return Err(format!("step {i} offloads {s}"));
                }
                let from = state.arrives.get(&s).copied().unwrap_or(0.0);
                let end = transfer(&mut state, schedule, OUT, size(s), from)?;
                state.leaves.insert(s, end);
                state.copied.insert(s, end);
                state.in_store.insert(s);
                match updated.contains(&s) {
                    true => updated_copy.insert(s),
                    false => updated_copy.remove(&s),
                };
            }
            Step::Fetch(s) => {
                let s = s.index();
                let copied = state.copied.get(&s).copied();
                let (false, Some(copied)) = (state.live.contains(&s), copied) else {
                    return Err(format!("step {i} fetches {s}"));
                };
                let end = transfer(&mut state, schedule, BACK, size(s), copied)?;
                state.arrives.insert(s, end);
                state.leaves.remove(&s);
                state.live.insert(s);
                match updated_copy.contains(&s) {
                    true => updated.insert(s),
                    false => updated.remove(&s),
                };
            }
        }
        peak = peak.max(sum(&state.live) + scratch);
        store_peak = store_peak.max(sum(&state.in_store));
    }
    for s in &at_start {
        if state.live.contains(s) || !state.copied.contains_key(s) {
            return Err(format!("{s} is not in the store at the end"));
        }
    }
    let is_gone = |s: &usize| !state.live.contains(s) && !at_start.contains(s);
    if started.iter().any(|s| role(*s).is_persistent() && is_gone(s)) {
        return Err("something persistent is gone".into());
    }
    if graph.outputs().iter().any(|s| is_gone(&s.index())) {
        return Err("an output is gone".into());
    }
    if graph.targets().iter().any(|t| runs[t.index()] == 0) {
        return Err("a target never ran".into());
    }
    let limit = schedule.store.and_then(|store| store.limit);
    if limit.is_some_and(|limit| store_peak > limit.get()) {
        return Err("the store holds too much".into());
    }
    let updates_ran =
        graph.node_ids().all(|n| graph.node(n).updates.is_empty() || runs[n.index()] > 0);
    let is_right = |s: usize| {
        let id = rekindle_graph::StorageId::new(s);
        at_start.contains(&s) || graph.updater(id).is_none() || updated.contains(&s)
    };
    let time = state.free_at.iter().copied().fold(state.compute, f64::max);
    Ok(Figures {
        peak,
        store_peak,
        moved: state.moved,
        values_hold: updates_ran && graph.outputs().iter().all(|s| is_right(s.index())),
        runs,
        time,
        compute: state.busy,
        waited: state.waited + time - state.compute,
    })
}

/// Puts a transfer on its channel; when it ends.
fn transfer(
    state: &mut State,
    schedule: &Schedule,
    channel: usize,
    bytes: u64,
    not_before: f64,
) -> Result<f64, String> {
    let rates = schedule.store.map(|store| [store.out_rate.get(), store.in_rate.get()]);
    let (Some(store), Some(rate)) = (schedule.store, rates.map(|r| r[channel])) else {
        return Err("there is no store".into());
    };
    if rate == 0.0 {
        return Err("there is no such channel".into());
    }
    let begin = state.compute.max(state.free_at[channel]).max(not_before);
    let end = begin + store.latency.get() + bytes as f64 / rate;
    match store.duplex {
        true => state.free_at[channel] = end,
        false => state.free_at = [end; 2],
    }
    state.moved[channel] += bytes;
    Ok(end)
}
