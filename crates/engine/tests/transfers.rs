//! Steps that move tensors to a store and back, by random plans: the bits of the plain step and the
//! predicted peak, whatever the store does; and what happens when it fails.

mod shaken;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rekindle_engine::{
    Backing, Caching, Direction, Engine, EngineError, FileStore, Iteration, Layout, Observer,
    Store, TransferWatch, lower,
};
use rekindle_graph::{Bytes, Graph, NodeId, Plan, Step, StorageId, Transfer};
use rekindle_models::{Model, ModelOptions, Values, build, data};
use rekindle_program::Optimizer;
use rekindle_rewrite::rewrite;
use rekindle_soak::random_moves;
use rekindle_verify::verify_rewritten;
use shaken::Shaken;

/// One model of each family.
const SMALL: &[&str] = &["mlp", "resnet18", "transformer-tiny", "bert-tiny", "gpt2-tiny"];
const THREADS: usize = 2;
const STEPS: u64 = 2;

fn small(name: &str) -> Model {
    // Adam's state would make the larger ones slow, and the small ones have it.
    let optimizer = match name {
        "mlp" | "resnet18" => Optimizer::sgd(0.01),
        _ => Optimizer::adam(0.01),
    };
    let optimizer = Some(optimizer);
    let options =
        ModelOptions { batch: 2, image_size: 32, sequence: 16, optimizer, ..Default::default() };
    build(name, &options).expect("the model builds")
}

fn write_inputs(engine: &mut Engine, model: &Model) {
    for (tensor, values) in data::batch(model, 1, 1) {
        match values {
            Values::F32(values) => engine.write_f32(tensor, &values),
            Values::I64(values) => engine.write_i64(tensor, &values),
        }
        .expect("an input");
    }
}

/// Every persistent tensor and output after some steps, as bits.
fn train(model: &Model, engine: Result<Engine, EngineError>) -> Vec<u64> {
    let mut engine = engine.expect("the step can be set up");
    write_inputs(&mut engine, model);
    for number in 1..=STEPS {
        let measured = engine.run(Iteration { seed: 7, number }).expect("the data is good");
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

fn layout(model: &Model, graph: &Graph, plan: &Plan) -> Layout {
    let rewritten = rewrite(graph, plan).expect("a valid plan");
    let origins = rewritten.origins();
    verify_rewritten(graph, plan, &rewritten.graph, origins).expect("the same work");
    Layout::new(&model.program, rewritten.graph.clone(), origins, THREADS).expect("it is the same")
}

fn store(backing: impl Backing + 'static, duplex: bool, depth: usize) -> Option<Store> {
    Some(Store { backing: Box::new(backing), duplex, depth })
}

#[test]
fn any_plan_gives_the_bits_of_the_plain_step_whatever_the_store_does() {
    let mut moves = 0;
    for name in SMALL {
        let model = small(name);
        let plain = train(&model, Engine::new(&model.program, THREADS));
        let graph = lower(&model.program, THREADS);
        for seed in 0..2 {
            let layout = layout(&model, &graph, &random_moves(&graph, seed));
            let is_move = |node: &&rekindle_graph::Node| node.transfer().is_some();
            moves += layout.graph().nodes().iter().filter(is_move).count();
            let shaken = Shaken::new(layout.store_bytes(), seed, u64::MAX);
            // Several at a time, so that they end in another order than they began.
            let store = store(shaken, seed == 0, 1 + 2 * seed as usize);
            let engine = Engine::with_store(layout, 0, store, &mut |_, _| {});
            assert!(plain == train(&model, engine), "{name}, seed {seed}");
        }
    }
    assert!(moves > 1000, "{moves} transfers are too few to show anything");
}

#[test]
fn a_file_with_and_without_the_systems_cache_gives_the_same_bits() {
    let model = small("gpt2-tiny");
    let plain = train(&model, Engine::new(&model.program, THREADS));
    let graph = lower(&model.program, THREADS);
    let plan = random_moves(&graph, 5);
    for caching in [Caching::Direct, Caching::Dropped] {
        let layout = layout(&model, &graph, &plan);
        let folder = std::env::temp_dir();
        let file = FileStore::with_caching(&folder, layout.store_bytes(), caching);
        let store = store(file.expect("room"), true, 1);
        let engine = Engine::with_store(layout, 0, store, &mut |_, _| {});
        assert!(plain == train(&model, engine), "{caching:?}");
    }
}

#[test]
fn a_store_that_fails_ends_the_step_with_its_name_and_what_to_do() {
    let model = small("bert-tiny");
    let graph = lower(&model.program, THREADS);
    let plan = random_moves(&graph, 1);
    let needs_a_store = Engine::with_layout(layout(&model, &graph, &plan), 0, &mut |_, _| {});
    assert!(matches!(needs_a_store.err(), Some(EngineError::NoStore { .. })));
    let (mut at_set_up, mut in_the_step) = (0, 0);
    for fails_after in [0, 1, 17, 60, 100, 150, 200, 400] {
        let layout = layout(&model, &graph, &plan);
        let shaken = Shaken::new(layout.store_bytes(), 1, fails_after);
        let engine = Engine::with_store(layout, 0, store(shaken, true, 2), &mut |_, _| {});
        let mut engine = match engine {
            Ok(engine) => engine,
            Err(error) => {
                at_set_up += 1;
                assert!(error.to_string().contains("the shaken store"), "{error}");
                continue;
            }
        };
        write_inputs(&mut engine, &model);
        let Err(error) = engine.run(Iteration { seed: 7, number: 1 }) else {
            continue;
        };
        in_the_step += 1;
        let text = error.to_string();
        assert!(text.contains("the shaken store") && text.contains("make room"), "{text}");
        // What is in the store is of no step: there is no going on.
        let again = engine.run(Iteration { seed: 7, number: 2 });
        assert_eq!(again.expect_err("it is not whole"), error);
    }
    assert!(at_set_up > 1 && in_the_step > 1, "{at_set_up} and {in_the_step}");
}

/// A store whose code has a mistake: after so many calls it panics.
struct Broken(Shaken, AtomicU64);

impl Broken {
    fn count(&self) {
        let left = self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        assert!(left.is_ok(), "a mistake in the store");
    }
}

impl Backing for Broken {
    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.count();
        self.0.write(offset, bytes)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.count();
        self.0.read(offset, bytes)
    }

    fn name(&self) -> String {
        "the broken store".into()
    }
}

#[test]
fn a_thread_that_panics_ends_the_step_with_an_error_that_names_it() {
    let model = small("bert-tiny");
    let graph = lower(&model.program, THREADS);
    let plan = random_moves(&graph, 1);
    let layout = layout(&model, &graph, &plan);
    let shaken = Shaken::new(layout.store_bytes(), 1, u64::MAX);
    // Parameters that live in the store are written there first, by the caller's own thread.
    let moves = layout.graph().nodes().iter().filter(|n| n.transfer().is_some()).count() as u64;
    let at_start = layout.graph().sources().count() as u64;
    let broken = Broken(shaken, AtomicU64::new(at_start + moves / 4));
    let engine = Engine::with_store(layout, 0, store(broken, true, 2), &mut |_, _| {});
    let mut engine = engine.expect("it is set up");
    write_inputs(&mut engine, &model);
    let error = engine.run(Iteration { seed: 7, number: 1 }).expect_err("it panics");
    assert!(matches!(error, EngineError::TransferPanicked { .. }), "{error}");
    let text = error.to_string();
    for part in ["rekindle-move-", "the broken store", "a mistake in the store", "checkpoint"] {
        assert!(text.contains(part), "{text}");
    }
    let again = engine.run(Iteration { seed: 7, number: 2 });
    assert_eq!(again.expect_err("it is not whole"), error);
}

/// What the channels tell: each transfer's node, whether it begins, and its bytes.
#[derive(Default)]
struct Told(Mutex<Vec<(NodeId, Direction, Option<Bytes>)>>);

impl TransferWatch for Told {
    fn began(&self, node: NodeId, direction: Direction) {
        self.0.lock().expect("nobody panics").push((node, direction, None));
    }

    fn ended(&self, node: NodeId, direction: Direction, bytes: Bytes) {
        self.0.lock().expect("nobody panics").push((node, direction, Some(bytes)));
    }
}

/// Counts runs and waits, and lets the channels tell.
#[derive(Default)]
struct Watcher {
    runs: usize,
    waits: u64,
    went_on: u64,
    told: Arc<Told>,
}

impl Observer for Watcher {
    fn before(&mut self, _: NodeId) {}

    fn after(&mut self, _: NodeId, _: Bytes) {
        self.runs += 1;
    }

    fn waits(&mut self, _: NodeId) {
        self.waits += 1;
    }

    fn goes_on(&mut self, _: NodeId) {
        self.went_on += 1;
    }

    fn transfers(&self) -> Option<Arc<dyn TransferWatch>> {
        Some(Arc::clone(&self.told) as Arc<dyn TransferWatch>)
    }
}

#[test]
fn an_observer_is_told_of_every_transfer_and_every_wait() {
    let model = small("gpt2-tiny");
    let graph = lower(&model.program, THREADS);
    let layout = layout(&model, &graph, &random_moves(&graph, 3));
    let store = store(Shaken::new(layout.store_bytes(), 3, u64::MAX), true, 1);
    let engine = Engine::with_store(layout, 0, store, &mut |_, _| {});
    let mut engine = engine.expect("it can be set up");
    write_inputs(&mut engine, &model);
    let mut watcher = Watcher::default();
    engine.run_observed(Iteration { seed: 7, number: 1 }, &mut watcher).expect("it runs");
    let nodes = engine.graph().nodes().iter();
    let transfers = nodes.filter(|node| node.transfer().is_some());
    let waits = transfers.clone().filter(|node| node.transfer() == Some(Transfer::Wait)).count();
    let moves = transfers.count() - waits;
    assert_eq!(watcher.runs, engine.graph().natural_order().len() - moves - waits);
    let moved = engine.moved();
    assert_eq!((watcher.waits, watcher.went_on), (moved.waits, moved.waits));
    assert!(moved.waits > 0, "a store that takes its time is waited for");
    let told = watcher.told.0.lock().expect("nobody panics");
    assert_eq!(told.len(), 2 * moves, "each begins and ends");
    let sum = |way: Direction| -> Bytes {
        told.iter().filter(|(_, direction, _)| *direction == way).filter_map(|told| told.2).sum()
    };
    assert_eq!((sum(Direction::Out), sum(Direction::In)), (moved.out, moved.back));
}

/// The engine trusts nobody: a transfer that is wired otherwise is refused.
#[test]
fn a_transfer_of_something_else_is_refused() {
    let model = small("mlp");
    let graph = lower(&model.program, THREADS);
    let rewritten = rewrite(&graph, &random_moves(&graph, 2)).expect("a valid plan");
    let is_fetch = |step: &Step| matches!(step, Step::Fetch(_));
    let fetch = rewritten.node_origin.iter().position(is_fetch).expect("it fetches");
    let mut damaged = rewritten.clone();
    damaged.node_origin[fetch] = Step::Fetch(StorageId(0));
    let refused = |rewritten: &rekindle_rewrite::Rewritten| {
        let (graph, origins) = (rewritten.graph.clone(), rewritten.origins());
        let placed = Layout::new(&model.program, graph, origins, THREADS);
        matches!(placed, Err(EngineError::OtherProgram { .. }))
    };
    assert!(!refused(&rewritten));
    assert!(refused(&damaged));
    damaged.node_origin[fetch] = Step::Run(NodeId(0));
    assert!(refused(&damaged));
}
