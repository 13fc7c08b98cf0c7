//! Real steps under the clock. Times are never compared; bytes and values always are.

use rekindle_analysis::{Analysis, breakdowns, node_peaks, read_profile, write_profile};
use rekindle_engine::{Engine, Iteration, Spill, SpillError, lower};
use rekindle_graph::{Bytes, Phase, Timeline};
use rekindle_models::data::batch;
use rekindle_models::{BertConfig, Model, ModelOptions, Values, build, build_bert};
use rekindle_profile::{
    FileSpill, HostSpill, Limited, MeasureOptions, ProfileError, SwapNode, measure, swap,
};
use rekindle_program::Optimizer;

const THREADS: usize = 2;

fn small(name: &str) -> Model {
    let options = ModelOptions {
        batch: 4,
        image_size: 32,
        sequence: 64,
        optimizer: Some(Optimizer::sgd(0.01)),
        ..Default::default()
    };
    let model = match name {
        // The real vocabulary would take all of the memory and the time.
        "bert" => build_bert(name, BertConfig { vocab: 200, ..BertConfig::TINY }, &options),
        _ => build(name, &options),
    };
    model.expect("the model builds")
}

fn write_batch(engine: &mut Engine, model: &Model) {
    for (tensor, values) in batch(model, 0, 1) {
        let written = match values {
            Values::F32(values) => engine.write_f32(tensor, &values),
            Values::I64(values) => engine.write_i64(tensor, &values),
        };
        written.expect("the batch fits the model");
    }
}

fn once() -> MeasureOptions {
    MeasureOptions { warmup: 0, measured: 1, seed: 7 }
}

#[test]
fn measured_node_peaks_are_those_of_the_byte_timeline() {
    for name in ["mlp", "resnet18", "bert"] {
        let model = small(name);
        let mut engine = Engine::new(&model.program, THREADS).expect("it fits");
        write_batch(&mut engine, &model);
        let measured = measure(&mut engine, &once(), &mut HostSpill::new(), &mut |_| {});
        let measured = measured.expect("the batch is good");
        assert_eq!(measured.peak_mem, node_peaks(engine.graph()), "{name}");
        let highest = measured.peak_mem.iter().copied().max();
        assert_eq!(highest, Some(Timeline::natural(engine.graph()).peak), "{name}");
        assert!(measured.swap_times.iter().all(Option::is_some), "{name}");
        let analysis = Analysis::new(&measured.graph);
        let totals = breakdowns(&measured.graph, &analysis);
        let totals: Vec<Bytes> = totals.iter().map(|b| b.total()).collect();
        assert_eq!(totals, measured.peak_mem, "{name}");
    }
}

#[test]
fn progress_counts_every_run_of_a_node() {
    let model = small("mlp");
    let mut engine = Engine::new(&model.program, THREADS).expect("it fits");
    write_batch(&mut engine, &model);
    let mut seen = Vec::new();
    let options = MeasureOptions { warmup: 2, measured: 3, seed: 0 };
    measure(&mut engine, &options, &mut HostSpill::new(), &mut |p| seen.push(p)).expect("it runs");
    let total = 5 * engine.graph().natural_order().len();
    assert!(seen.iter().all(|p| p.total == total));
    assert!(seen.iter().map(|p| p.done).eq(1..=total));
}

/// A tier that has no memory.
struct Full;

impl Spill for Full {
    fn store(&mut self, _: usize, bytes: &[u8]) -> Result<(), SpillError> {
        Err(SpillError::Memory(Bytes(bytes.len() as u64)))
    }

    fn load(&mut self, _: usize, _: &mut [u8]) -> Result<(), SpillError> {
        unreachable!("nothing was stored")
    }
}

#[test]
fn a_copy_that_there_is_no_memory_for_is_an_error() {
    let model = small("mlp");
    let mut engine = Engine::new(&model.program, THREADS).expect("it fits");
    write_batch(&mut engine, &model);
    let result = measure(&mut engine, &once(), &mut Full, &mut |_| {});
    let Err(ProfileError::Spill(SpillError::Memory(bytes))) = result else {
        panic!("there is no memory for the first copy");
    };
    assert_eq!(bytes, Bytes(4 * 1024 * 4));
}

#[test]
fn measuring_nothing_is_refused() {
    let model = small("mlp");
    let mut engine = Engine::new(&model.program, THREADS).expect("it fits");
    let options = MeasureOptions { measured: 0, ..once() };
    let result = measure(&mut engine, &options, &mut HostSpill::new(), &mut |_| {});
    assert!(matches!(result, Err(ProfileError::NothingMeasured)));
}

#[test]
fn on_the_perceptron_memory_rises_then_falls() {
    let model = small("mlp");
    let graph = lower(&model.program, THREADS);
    let scratch = |n: usize| graph.nodes()[n].workspace;
    let live: Vec<Bytes> =
        node_peaks(&graph).iter().enumerate().map(|(n, &p)| p - scratch(n)).collect();
    let of = |phase| -> Vec<Bytes> {
        let ranks = graph.node_ids().filter(|&n| graph.node(n).phase == phase);
        ranks.map(|n| live[n.index()]).collect()
    };
    let (forward, backward) = (of(Phase::Forward), of(Phase::Backward));
    assert!(forward.first() < forward.last(), "{forward:?}");
    assert!(backward.last() < backward.first(), "{backward:?}");
}

#[test]
fn the_files_of_a_real_step_read_back_equal_and_name_its_nodes() {
    let model = small("mlp");
    let mut engine = Engine::new(&model.program, THREADS).expect("it fits");
    write_batch(&mut engine, &model);
    let measured = measure(&mut engine, &once(), &mut HostSpill::new(), &mut |_| {});
    let measured = measured.expect("the batch is good");
    let profile = measured.profile("mlp", 4, "cpu");
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-step");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    write_profile(&folder, &profile, &measured.graph).expect("the folder is there");
    let (read, graph) = read_profile(&folder, "mlp", 4).expect("just written");
    assert_eq!(read, profile);
    assert_eq!(graph, measured.graph);
    let names = model.program.nodes.iter().map(|n| &n.name);
    assert!(read.nodes.iter().map(|n| &n.name).eq(names));
}

fn limited(model: &Model, limit: Bytes) -> Result<Limited, ProfileError> {
    Limited::new(&model.program, THREADS, limit, &mut |_, _| {})
}

/// What the heaviest node of a model needs, by the error of a limit that is certainly too small.
fn heaviest_node(model: &Model) -> (String, Bytes) {
    match limited(model, Bytes(1)) {
        Err(ProfileError::NodeDoesNotFit { node, needed, .. }) => (node, needed),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a step in one byte"),
    }
}

/// Runs one step plainly and one in hardly more than its heaviest node needs, and compares what
/// they compute.
#[track_caller]
fn check_limited(name: &str, spill: Box<dyn Spill + Send>) {
    let model = small(name);
    let plain_peak = Timeline::natural(&lower(&model.program, THREADS)).peak;
    // A hundredth more than the heaviest node, for fragmentation.
    let (_, heaviest) = heaviest_node(&model);
    let limit = Bytes(heaviest.get() / 100 * 101);
    assert!(limit < plain_peak, "{name}: {limit} is no limit, {plain_peak} is all it needs");
    let context = Iteration { seed: 7, number: 1 };

    let mut plain = Engine::new(&model.program, THREADS).expect("it fits");
    write_batch(&mut plain, &model);
    plain.run(context).expect("the batch is good");

    let mut limited = limited(&model, limit).expect("it fits with swaps");
    write_batch(&mut limited.engine, &model);
    limited.engine.set_spill(spill);
    let peak = limited.engine.run(context).expect("the batch is good");
    assert!(peak.arena <= limit, "{name}: {} > {limit}", peak.arena);
    assert_eq!(peak, limited.engine.predicted(), "{name}");

    let loss = plain.read_f32(model.loss).expect("an output");
    let swapped_loss = limited.swapped.program.outputs[0];
    let swapped_loss = limited.engine.read_f32(swapped_loss).expect("an output");
    assert_eq!(loss[0].to_bits(), swapped_loss[0].to_bits(), "{name}");
    for &(parameter, _) in &model.gradients {
        let bits = |engine: &Engine| -> Vec<u32> {
            let values = engine.read_f32(parameter).expect("a parameter");
            values.iter().map(|v| v.to_bits()).collect()
        };
        assert_eq!(bits(&plain), bits(&limited.engine), "{name}");
    }
    let measured = limited.measure(&once(), &mut |_| {}).expect("it has run before");
    assert_eq!(measured.peak_mem, node_peaks(plain.graph()), "{name}: bytes are the plain step's");
    assert!(measured.swap_times.iter().all(Option::is_some), "{name}");
}

#[test]
fn a_step_that_does_not_fit_runs_with_swaps_and_computes_the_same() {
    check_limited("resnet18", Box::new(HostSpill::new()));
    check_limited("bert", Box::new(HostSpill::new()));
}

#[test]
fn a_step_swaps_to_a_file_too() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let spill = FileSpill::new(folder).expect("the folder is there");
    check_limited("mlp", Box::new(spill));
}

#[test]
fn every_activation_leaves_after_its_last_forward_use_and_returns_for_its_first_backward_use() {
    let model = small("mlp");
    let graph = lower(&model.program, THREADS);
    let peak = Timeline::natural(&graph).peak;
    let origins = swap(&model.program, &graph, peak).expect("it fits").origins;
    for a in Analysis::new(&graph).activations {
        let at = |origin| origins.iter().position(|&o| o == origin).expect("it is there");
        let out = at(SwapNode::Offload(a.storage));
        let back = at(SwapNode::Fetch(a.storage));
        assert!(at(SwapNode::Node(a.idle_after())) < out);
        assert!(out < back && back < at(SwapNode::Node(a.first_backward)));
        let between = &origins[at(SwapNode::Node(a.idle_after())) + 1..out];
        assert!(between.iter().all(|o| matches!(o, SwapNode::Offload(_))));
    }
}

#[test]
fn a_node_that_alone_does_not_fit_is_named() {
    let model = small("resnet18");
    let graph = lower(&model.program, THREADS);
    let (name, needed) = heaviest_node(&model);
    let persistent = graph.storages().iter().filter(|s| s.role.is_persistent());
    let persistent: Bytes = persistent.map(|s| s.bytes).sum();
    let node = graph.nodes().iter().find(|n| n.name == name).expect("a node of the step");
    let operands = node.reads.iter().chain(&node.writes).map(|&s| graph.storage(s));
    let passing = operands.filter(|s| !s.role.is_persistent()).map(|s| s.bytes);
    assert_eq!(needed, persistent + passing.sum() + node.workspace);
    let error = limited(&model, Bytes(needed.get() - 1)).err();
    let message = error.expect("one byte too little").to_string();
    assert!(message.contains(&name), "{message}");
}
