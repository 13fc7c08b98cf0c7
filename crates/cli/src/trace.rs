//! A trace of one step in the format that Chrome and Perfetto open.
//!
//! In: the engine's calls before and after each node. Out: JSON trace events: the step, in it one
//! slice for each run of a node, in the category of its phase, `recompute` or `swap`, and a counter
//! of the bytes in use. Times are microseconds since the step began.

use std::time::Instant;

use rekindle_engine::{Layout, Observer};
use rekindle_graph::{Bytes, Node, NodeId, Phase};
use serde_json::{Value, json};

/// One run of a node.
struct Slice {
    node: NodeId,
    /// Microseconds since the step began.
    start: f64,
    duration: f64,
    in_use: Bytes,
}

/// Watches a step.
pub(crate) struct Trace {
    began: Instant,
    slices: Vec<Slice>,
    /// When the node that runs now began.
    started: f64,
}

impl Trace {
    /// Begins now.
    pub(crate) fn new() -> Trace {
        Trace { began: Instant::now(), slices: Vec::new(), started: 0.0 }
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64() * 1e6
    }

    /// The events of a step of `layout` that is over.
    pub(crate) fn to_json(&self, layout: &Layout, step: u64) -> String {
        let graph = layout.graph();
        let name = |what: &str, name: &str| {
            let args = json!({"name": name});
            json!({"ph": "M", "name": what, "pid": 1, "tid": 1, "args": args})
        };
        let end = self.slices.last().map_or(0.0, |s| s.start + s.duration);
        let mut events = vec![
            name("process_name", graph.name()),
            name("thread_name", "nodes"),
            json!({
                "ph": "X", "name": format!("step {step}"), "cat": "step",
                "ts": 0.0, "dur": end, "pid": 1, "tid": 1,
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
        json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
    }
}

impl Observer for Trace {
    fn before(&mut self, _: NodeId) {
        self.started = self.now();
    }

    fn after(&mut self, node: NodeId, in_use: Bytes) {
        self.slices.push(Slice {
            node,
            start: self.started,
            duration: self.now() - self.started,
            in_use,
        });
    }
}

/// The colours are names that Chrome's viewer knows; others choose by name.
fn event(node: &Node, slice: &Slice, again: bool) -> Value {
    let swap = ["swap_out", "swap_in"].contains(&node.op.as_str());
    let (category, colour) = match (again, node.phase) {
        _ if swap => ("swap", "yellow"),
        (true, _) => ("recompute", "terrible"),
        (false, Phase::Input) => ("input", "grey"),
        (false, Phase::Forward) => ("forward", "good"),
        (false, Phase::Backward) => ("backward", "bad"),
        (false, Phase::Optimizer) => ("optimizer", "thread_state_iowait"),
    };
    json!({
        "ph": "X", "name": node.name, "cat": category, "cname": colour,
        "ts": slice.start, "dur": slice.duration, "pid": 1, "tid": 1,
        "args": {"op": node.op, "bytes_in_use": slice.in_use.get()},
    })
}
