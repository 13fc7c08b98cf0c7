//! Whole steps: predicted peaks are measured, results do not depend on threads or schedule.

use rekindle_engine::{Engine, EngineError, Iteration, Layout, lower};
use rekindle_graph::{NodeId, Plan, Schedule, StorageId, Timeline};
use rekindle_models::{Model, ModelOptions, Values, build, data};
use rekindle_program::Optimizer;
use rekindle_program::random::Stream;
use rekindle_rewrite::{Rewritten, rewrite};

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
    let options =
        ModelOptions { batch: 2, image_size: 32, sequence: 16, optimizer, ..Default::default() };
    build(name, &options).expect("the model builds")
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
fn train(model: &Model, layout: Layout, steps: u64) -> Vec<u64> {
    let engine = Engine::with_layout(layout, 0, &mut |_, _| {});
    let mut engine = engine.expect("the step can be set up");
    write_inputs(&mut engine, model);
    for number in 1..=steps {
        let iteration = Iteration { seed: 7, number };
        let measured = engine.run(iteration).expect("the data is good");
        assert_eq!(measured, engine.predicted(), "{}: measured is predicted", model.program.name);
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
        let plain = |threads| train(&model, Layout::plain(&model.program, threads), 2);
        let one = plain(1);
        assert!(one == plain(1), "{name}: a second run");
        assert!(one == plain(2), "{name}: two threads");
        assert!(one == plain(3), "{name}: three threads");
    }
}

#[test]
fn no_threads_are_one_thread() {
    for name in SMALL {
        let model = small(name);
        assert_eq!(lower(&model.program, 0), lower(&model.program, 1));
        let engine = Engine::new(&model.program, 0).expect("the step can be set up");
        assert_eq!(engine.threads(), 1);
        let plain = |threads| train(&model, Layout::plain(&model.program, threads), 1);
        assert!(plain(0) == plain(1));
    }
}

/// Runs some nodes again, wherever their operands are still what they were.
fn with_reruns(model: &Model, seed: u64) -> Rewritten {
    let graph = lower(&model.program, 2);
    let mut order = graph.natural_order();
    let mut drawn = 0..;
    let mut random = |below: usize| {
        let unit = Stream::new(seed).unit(drawn.next().expect("endless"));
        (unit * below as f64) as usize
    };
    for _ in 0..40 {
        let node = NodeId::new(random(graph.nodes().len()));
        let Some(first) = order.iter().position(|&n| n == node) else {
            continue;
        };
        if graph.node(node).effect == rekindle_graph::Effect::Once {
            continue;
        }
        let updaters = graph.node(node).reads.iter().filter_map(|&r| graph.updater(r));
        let ends = updaters.filter_map(|u| order.iter().position(|&n| n == u));
        let end = ends.min().unwrap_or(order.len());
        order.insert(first + 1 + random(end - first), node);
    }
    let schedule = Schedule::of_order(&graph, &order);
    let timeline = Timeline::new(&graph, &schedule).expect("a valid order");
    let plan = Plan {
        graph: graph.name().into(),
        digest: None,
        strategy: None,
        budget: timeline.peak,
        peak: timeline.peak,
        time: timeline.time,
        schedule,
    };
    rewrite(&graph, &plan).expect("a valid plan")
}

#[test]
fn any_rewritten_graph_gives_the_same_bits() {
    for name in SMALL {
        let model = small(name);
        let plain = train(&model, Layout::plain(&model.program, 2), 2);
        for seed in 0..3 {
            let rewritten = with_reruns(&model, seed);
            let (graph, origins) = (rewritten.graph.clone(), rewritten.origins());
            let layout = Layout::new(&model.program, graph, origins, 2);
            let layout = layout.expect("it was made from the program");
            assert!(plain == train(&model, layout, 2), "{name}, seed {seed}");
        }
    }
}

/// The engine trusts nobody: a graph that does other work, on other bytes, or with the scratch of
/// other threads, is refused by the name of its first node that does.
#[test]
fn a_graph_of_another_program_is_refused() {
    let model = small("resnet18");
    let rewritten = with_reruns(&model, 0);
    let refused = |model: &Model, graph: &Rewritten, threads| {
        let layout = Layout::new(&model.program, graph.graph.clone(), graph.origins(), threads);
        matches!(layout, Err(EngineError::OtherProgram { .. }))
    };
    assert!(!refused(&model, &rewritten, 2));
    assert!(refused(&model, &rewritten, 3), "the scratch of three threads");
    assert!(refused(&small("mlp"), &rewritten, 2), "another model");
    let mut swapped = rewritten.clone();
    let last = swapped.node_origin.len() - 1;
    swapped.node_origin.swap(last, last - 1);
    assert!(refused(&model, &swapped, 2), "other operands");
    let mut short = rewritten;
    short.storage_origin.pop();
    assert!(refused(&model, &short, 2), "a storage without an origin");
}

#[test]
fn placement_is_within_one_percent_of_the_bound_at_full_size() {
    for name in FULL {
        for batch in [4, 32] {
            let optimizer = Some(Optimizer::sgd(0.01));
            let options = ModelOptions { batch, optimizer, ..Default::default() };
            let model = build(name, &options).expect("the model builds");
            let peak = Layout::plain(&model.program, 2).predicted();
            println!("{name} b{batch}: live {} arena {}", peak.live, peak.arena);
            let limit = peak.live.get() + peak.live.get() / 100;
            assert!(peak.arena.get() <= limit, "{name}: {} over {}", peak.arena, peak.live);
        }
    }
}
