//! Draws a step that was run: `step_run TRACE OUT TITLE BUDGET_BYTES LABEL` reads a trace that
//! `rekindle run --trace` wrote and writes the picture of its memory and its lanes to OUT, an SVG
//! that follows the reader's choice of light or dark.
//!
//! `cargo xtask bench xl` runs it for the picture of the README.

use std::error::Error;

use rekindle_report::{Piece, StepRun};
use serde_json::Value;

/// What a node does, as a trace says it and as a person reads it; then the two ways of transfers.
const KINDS: [(&str, &str); 6] = [
    ("forward", "forward"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("recompute", "recomputed"),
    ("out", "to the disk"),
    ("in", "from the disk"),
];
/// Which kinds each lane has.
const LANES: [(&str, &[&str]); 3] = [
    ("compute", &["forward", "backward", "optimizer", "recompute"]),
    ("out", &["out"]),
    ("in", &["in"]),
];

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [trace, out, title, budget, label] = &words[..] else {
        return Err("say TRACE OUT TITLE BUDGET_BYTES LABEL".into());
    };
    let trace: Value = serde_json::from_slice(&std::fs::read(trace)?)?;
    let events = trace["traceEvents"].as_array().ok_or("a trace has events")?;
    let seconds = |event: &Value, name: &str| event[name].as_f64().unwrap_or(0.0) / 1e6;
    let of = |category: &'static str| events.iter().filter(move |event| event["cat"] == category);
    let counters = events.iter().filter(|event| event["ph"] == "C");
    let lanes = LANES.map(|(name, kinds)| {
        let kind = |name: &&str| KINDS.iter().position(|kind| kind.0 == *name);
        let mut pieces: Vec<Piece> = Vec::new();
        for (name, kind) in kinds.iter().filter_map(|name| Some((*name, kind(name)?))) {
            pieces.extend(of(name).map(|event| {
                let from = seconds(event, "ts");
                Piece { from, to: from + seconds(event, "dur"), kind }
            }));
        }
        pieces.sort_by(|a, b| a.from.total_cmp(&b.from));
        (name.to_owned(), pieces)
    });
    let run = StepRun {
        title: title.clone(),
        memory: counters
            .map(|event| (seconds(event, "ts"), event["args"]["bytes"].as_f64().unwrap_or(0.0)))
            .collect(),
        budget: (budget.parse()?, label.clone()),
        seconds: of("step").map(|event| seconds(event, "dur")).fold(0.0, f64::max),
        lanes: lanes.into(),
        kinds: KINDS.map(|kind| kind.1.to_owned()).into(),
    };
    std::fs::write(out, run.to_svg())?;
    println!("{out}");
    Ok(())
}
