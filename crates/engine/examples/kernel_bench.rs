//! Times every kernel at the shapes of a model.
//!
//! `cargo run --release --example kernel_bench -- [model] [batch] [threads] [op]`, in this crate.
//!
//! Trains for a few steps. Nodes with the same op and the same dimensions are one row: the op, its
//! dimensions, how often a step runs it, milliseconds (the least of all its runs), GFLOP/s, and the
//! GB/s of its operands. At the end stands each op's time in a step. With an op's name, only its
//! rows are printed.

use std::collections::BTreeMap;
use std::time::Instant;

use rekindle_engine::{Engine, Iteration, Observer};
use rekindle_graph::{Bytes, NodeId};
use rekindle_models::data::batch;
use rekindle_models::{ModelOptions, Values, build};
use rekindle_program::{Optimizer, Program};

/// Steps after the first, which warms up.
const STEPS: u64 = 5;

/// The least time of each node.
struct Stopwatch {
    start: Instant,
    least: Vec<f64>,
}

impl Observer for Stopwatch {
    fn before(&mut self, _: NodeId) {
        self.start = Instant::now();
    }

    fn after(&mut self, node: NodeId, _: Bytes) {
        let least = &mut self.least[node.index()];
        *least = least.min(self.start.elapsed().as_secs_f64());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or("resnet152".into());
    let samples = arguments.next().map_or(Ok(4), |batch| batch.parse())?;
    let threads = arguments.next().map_or(Ok(1), |threads| threads.parse())?;
    let op = arguments.next();
    let options = ModelOptions {
        batch: samples,
        optimizer: Some(Optimizer::adam(1e-3)),
        ..ModelOptions::default()
    };
    let model = build(&name, &options)?;
    let mut engine = Engine::new(&model.program, threads)?;
    for (tensor, values) in batch(&model, 0, 1) {
        match values {
            Values::F32(values) => engine.write_f32(tensor, &values)?,
            Values::I64(values) => engine.write_i64(tensor, &values)?,
        }
    }
    let mut stopwatch =
        Stopwatch { start: Instant::now(), least: vec![f64::INFINITY; model.program.nodes.len()] };
    engine.run(Iteration { seed: 0, number: 1 })?;
    for number in 2..2 + STEPS {
        engine.run_observed(Iteration { seed: 0, number }, &mut stopwatch)?;
    }
    print_rows(&model.program, &stopwatch.least, op.as_deref());
    Ok(())
}

/// One row for each op with its dimensions, then each op's sum.
fn print_rows(program: &Program, least: &[f64], only: Option<&str>) {
    let mut rows: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let runs = |node: &usize| least[*node].is_finite();
    for node in (0..program.nodes.len()).filter(runs) {
        let op = &program.nodes[node].op;
        if only.is_none_or(|only| only == op.name()) {
            rows.entry(format!("{op:?}")).or_default().push(node);
            *sums.entry(op.name()).or_default() += least[node] * 1e3;
        }
    }
    println!("op\tdimensions\tcount\tms\tGFLOP/s\tGB/s");
    for (dimensions, nodes) in rows {
        let node = &program.nodes[nodes[0]];
        let seconds = nodes.iter().map(|&n| least[n]).fold(f64::MAX, f64::min);
        let operands = node.reads.iter().chain(&node.writes);
        let bytes: u64 = operands.map(|&t| program.tensor(t).bytes().get()).sum();
        println!(
            "{}\t{dimensions}\t{}\t{:.4}\t{:.1}\t{:.1}",
            node.op.name(),
            nodes.len(),
            seconds * 1e3,
            node.op.flops() as f64 / seconds / 1e9,
            bytes as f64 / seconds / 1e9,
        );
    }
    for (op, milliseconds) in sums {
        println!("sum of {op}\t\t\t{milliseconds:.1}");
    }
}
