//! A trace of one step in the format that Chrome and Perfetto open.
//!
//! In: the engine's calls before and after each node, each wait and each transfer. Out: JSON trace
//! events: the step, in it one slice for each run of a node, in the category of its phase or
//! `recompute`, and for each time in which compute waits; where something is moved a track for each
//! channel, with a slice for each transfer; and a counter of the bytes in use. Times are
//! microseconds since the step began.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rekindle_engine::{Direction, Layout, Observer, TransferWatch};
use rekindle_graph::{Bytes, Graph, Node, NodeId, Phase};
use serde_json::{Value, json};

/// One run of a node.
struct Slice {
    node: NodeId,
    /// Microseconds since the step began.
    start: f64,
    duration: f64,
    in_use: Bytes,
}

/// A time in which something took place.
struct Interval {
    /// What is moved, or what waits.
    node: NodeId,
    start: f64,
    /// `None` while it goes on.
    end: Option<f64>,
}

/// Watches a step.
pub(crate) struct Trace {
    began: Instant,
    slices: Vec<Slice>,
    waits: Vec<Interval>,
    /// When the node that runs now began.
    started: f64,
    moves: Arc<Moves>,
}

/// The transfers, which other threads tell of: out and in, each in the order in which they began.
struct Moves {
    began: Instant,
    channels: Mutex<[Vec<Interval>; 2]>,
}

fn since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}

impl Trace {
    /// Begins now.
    pub(crate) fn new() -> Trace {
        let began = Instant::now();
        let moves = Arc::new(Moves { began, channels: Mutex::default() });
        Trace { began, slices: Vec::new(), waits: Vec::new(), started: 0.0, moves }
    }

    /// The events of a step of `layout` that is over.
    pub(crate) fn to_json(&self, layout: &Layout, step: u64) -> String {
        let graph = layout.graph();
        let mut events = vec![
            named("process_name", graph.name(), COMPUTE),
            named("thread_name", "nodes", COMPUTE),
            json!({
                "ph": "X", "name": format!("step {step}"), "cat": "step",
                "ts": 0.0, "dur": self.end(), "pid": 1, "tid": COMPUTE,
            }),
        ];
        let mut ran = vec![false; layout.program().nodes.len()];
        for slice in &self.slices {
            let ran = layout.run_of(slice.node).map(|origin| &mut ran[origin.index()]);
            let again = ran.is_some_and(|ran| std::mem::replace(ran, true));
            events.push(event(graph.node(slice.node), slice, again));
            events.push(json!({
                "ph": "C", "name": "bytes in use", "ts": slice.start, "pid": 1,
                "args": {"bytes": slice.in_use.get()},
            }));
        }
        for wait in &self.waits {
            let name = format!("wait for {}", graph.node(wait.node).name);
            events.push(interval(&name, "wait", "terrible", wait, COMPUTE, &json!({})));
        }
        let channels = self.moves.channels.lock().unwrap_or_else(PoisonError::into_inner);
        for (channel, moves) in channels.iter().enumerate() {
            events.extend(channel_events(graph, channel, moves));
        }
        json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
    }

    /// When the last run, wait or transfer was over.
    fn end(&self) -> f64 {
        let channels = self.moves.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = self.slices.last().map_or(0.0, |s| s.start + s.duration);
        let others = channels.iter().flatten().chain(&self.waits).filter_map(|one| one.end);
        others.fold(runs, f64::max)
    }
}

/// The track of the nodes.
const COMPUTE: usize = 1;
/// The first track of each channel; there are more where a channel has several transfers under way.
const CHANNELS: [(usize, &str); 2] = [(100, "out"), (200, "in")];

/// A track for each transfer that a channel has under way at a time, with their names.
fn channel_events(graph: &Graph, channel: usize, moves: &[Interval]) -> Vec<Value> {
    let (first, name) = CHANNELS[channel];
    // When each track is free.
    let mut free: Vec<f64> = Vec::new();
    let mut events = Vec::new();
    for one in moves {
        let track = free.iter().position(|&until| until <= one.start).unwrap_or(free.len());
        if track == free.len() {
            let number = if track == 0 { String::new() } else { format!(" {}", track + 1) };
            events.push(named("thread_name", &format!("{name}{number}"), first + track));
            free.push(0.0);
        }
        free[track] = one.end.unwrap_or(f64::INFINITY);
        let node = graph.node(one.node);
        let storage = node.reads.iter().chain(&node.writes).map(|&s| graph.storage(s).bytes).max();
        let args = json!({"op": node.op, "bytes": storage.unwrap_or(Bytes::ZERO).get()});
        events.push(interval(&node.name, name, "yellow", one, first + track, &args));
    }
    events
}

fn named(what: &str, name: &str, track: usize) -> Value {
    json!({"ph": "M", "name": what, "pid": 1, "tid": track, "args": {"name": name}})
}

fn interval(
    name: &str,
    category: &str,
    colour: &str,
    one: &Interval,
    track: usize,
    args: &Value,
) -> Value {
    let duration = one.end.map_or(0.0, |end| end - one.start);
    json!({
        "ph": "X", "name": name, "cat": category, "cname": colour,
        "ts": one.start, "dur": duration, "pid": 1, "tid": track, "args": args,
    })
}

impl Observer for Trace {
    fn before(&mut self, _: NodeId) {
        self.started = since(self.began);
    }

    fn after(&mut self, node: NodeId, in_use: Bytes) {
        let duration = since(self.began) - self.started;
        self.slices.push(Slice { node, start: self.started, duration, in_use });
    }

    fn waits(&mut self, node: NodeId) {
        self.waits.push(Interval { node, start: since(self.began), end: None });
    }

    fn goes_on(&mut self, _: NodeId) {
        if let Some(wait) = self.waits.last_mut() {
            wait.end = Some(since(self.began));
        }
    }

    fn transfers(&self) -> Option<Arc<dyn TransferWatch>> {
        Some(self.moves.clone())
    }
}

impl Moves {
    fn change(&self, direction: Direction, change: impl FnOnce(&mut Vec<Interval>)) {
        let channel = match direction {
            Direction::Out => 0,
            Direction::In => 1,
        };
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut channels[channel]);
    }
}

impl TransferWatch for Moves {
    fn began(&self, node: NodeId, direction: Direction) {
        let start = since(self.began);
        self.change(direction, |moves| moves.push(Interval { node, start, end: None }));
    }

    fn ended(&self, node: NodeId, direction: Direction, _: Bytes) {
        let end = since(self.began);
        self.change(direction, |moves| {
            let it = moves.iter_mut().rev().find(|one| one.node == node);
            it.into_iter().for_each(|one| one.end = Some(end));
        });
    }
}

/// The colours are names that Chrome's viewer knows; others choose by name.
fn event(node: &Node, slice: &Slice, again: bool) -> Value {
    let (category, colour) = match (again, node.phase) {
        (true, _) => ("recompute", "terrible"),
        (false, Phase::Input) => ("input", "grey"),
        (false, Phase::Forward) => ("forward", "good"),
        (false, Phase::Backward) => ("backward", "bad"),
        (false, Phase::Optimizer) => ("optimizer", "thread_state_iowait"),
    };
    json!({
        "ph": "X", "name": node.name, "cat": category, "cname": colour,
        "ts": slice.start, "dur": slice.duration, "pid": 1, "tid": COMPUTE,
        "args": {"op": node.op, "bytes_in_use": slice.in_use.get()},
    })
}
