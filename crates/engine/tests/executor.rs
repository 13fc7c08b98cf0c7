//! Whole steps: predicted peaks are measured, results do not depend on threads or schedule.

use rekindle_engine::{Engine, Layout, StepContext, lower};
use rekindle_graph::{NodeId, Schedule, Step, StorageId};
use rekindle_models::{Model, ModelOptions, Values, build, data};
use rekindle_program::Optimizer;

/// One model of each kind that is quick at a small size.
const SMALL: &[&str] = &["mlp", "resnet18", "bert-tiny"];

/// Full sizes of every model.
const FULL: &[&str] = &[
    "mlp",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "transformer",
    "bert-base",
    "bert-large",
    "gpt2",
];

fn small(name: &str) -> Model {
    let optimizer = Some(Optimizer::sgd(0.01));
    let options = ModelOptions {
        batch: 2,
        image_size: 32,
        sequence: 16,
        optimizer,
        ..Default::default()
    };
    build(name, &options).expect("the model builds")
}

/// A step's context: seed 7, the given step.
fn context(step: u64) -> StepContext {
    StepContext { seed: 7, step }
}

/// The synthetic batch of step 1.
fn write_inputs(engine: &mut Engine, model: &Model) {
    for (tensor, values) in data::batch(model, 1, 1) {
        match values {
            Values::F32(values) => engine.write_f32(tensor, &values),
            Values::I64(values) => engine.write_i64(tensor, &values),
        }
        .unwrap();
    }
}

/// Every persistent tensor and output after `steps` steps, as bits.
fn train(model: &Model, schedule: Option<&[Step]>, threads: usize, steps: u64) -> Vec<u64> {
    let mut engine = match schedule {
        None => Engine::new(&model.program, threads),
        Some(schedule) => {
            Engine::with_schedule(&model.program, schedule, threads, 0, &mut |_, _| {})
        }
    }
    .expect("the step can be set up");
    write_inputs(&mut engine, model);
    for step in 1..=steps {
        let measured = engine.run(context(step)).expect("the data is good");
        assert_eq!(
            measured,
            engine.predicted(),
            "{}: measured is predicted",
            model.program.name
        );
    }
    let mut bits = Vec::new();
    for index in 0..model.program.tensors.len() {
        let id = StorageId::new(index);
        if let Ok(values) = engine.read_f32(id) {
            bits.extend(values.iter().map(|v| u64::from(v.to_bits())));
        } else if let Ok(values) = engine.read_i64(id) {
            bits.extend(values.iter().map(|&v| v as u64));
        }
    }
    bits
}

#[test]
fn results_are_the_same_bits_at_any_thread_count_and_in_every_run() {
    for name in SMALL {
        let model = small(name);
        let one = train(&model, None, 1, 2);
        assert!(one == train(&model, None, 1, 2), "{name}: a second run");
        assert!(one == train(&model, None, 2, 2), "{name}: two threads");
        assert!(one == train(&model, None, 3, 2), "{name}: three threads");
    }
}

#[test]
fn no_threads_are_one_thread() {
    for name in SMALL {
        let model = small(name);
        assert_eq!(lower(&model.program, 0), lower(&model.program, 1));
        let engine = Engine::new(&model.program, 0).expect("the step can be set up");
        assert_eq!(engine.threads(), 1);
        assert!(train(&model, None, 0, 1) == train(&model, None, 1, 1));
    }
}

/// Runs some nodes again, wherever their operands are still what they were.
fn with_reruns(model: &Model, seed: u64) -> Vec<Step> {
    let graph = lower(&model.program, 2);
    let mut order = graph.natural_order();
    let mut state = seed;
    let mut random = |below: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for _ in 0..40 {
        let node = NodeId::new(random(graph.nodes().len()));
        let Some(first) = order.iter().position(|&n| n == node) else {
            continue;
        };
        if graph.node(node).effect == rekindle_graph::Effect::Once {
            continue;
        }
        let updaters = graph
            .node(node)
            .reads
            .iter()
            .filter_map(|&r| graph.updater(r));
        let ends = updaters.filter_map(|u| order.iter().position(|&n| n == u));
        let end = ends.min().unwrap_or(order.len());
        order.insert(first + 1 + random(end - first), node);
    }
    Schedule::of_order(&graph, &order).steps
}

#[test]
fn any_valid_schedule_gives_the_same_bits() {
    for name in SMALL {
        let model = small(name);
        let plain = train(&model, None, 2, 2);
        for seed in 0..3 {
            let schedule = with_reruns(&model, seed);
            assert!(
                plain == train(&model, Some(&schedule), 2, 2),
                "{name}, seed {seed}"
            );
        }
    }
}

#[test]
fn placement_is_within_one_percent_of_the_bound_at_full_size() {
    for name in FULL {
        for batch in [4, 32] {
            let optimizer = Some(Optimizer::sgd(0.01));
            let options = ModelOptions {
                batch,
                optimizer,
                ..Default::default()
            };
            let model = build(name, &options).expect("the model builds");
            let graph = lower(&model.program, 2);
            let steps = Schedule::plain(&graph).steps;
            let peak = Layout::new(&model.program, &steps, 2)
                .expect("a valid schedule")
                .predicted();
            println!("{name} b{batch}: live {} arena {}", peak.live, peak.arena);
            let limit = peak.live.get() + peak.live.get() / 100;
            assert!(
                peak.arena.get() <= limit,
                "{name}: {} over {}",
                peak.arena,
                peak.live
            );
        }
    }
}
