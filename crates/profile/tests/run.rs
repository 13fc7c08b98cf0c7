//! Real steps under the clock. Times are never compared; bytes and values always are.

use rekindle_analysis::{Analysis, breakdowns, node_peaks, read_profile, write_profile};
use rekindle_engine::{Engine, lower};
use rekindle_graph::{Bytes, Phase, Timeline};
use rekindle_models::data::batch;
use rekindle_models::{BertConfig, Model, ModelOptions, Values, build, build_bert};
use rekindle_profile::{MeasureOptions, ProfileError, Swaps, measure};
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
        let measured = measure(&mut engine, &once(), Swaps::Memory, &mut |_| {});
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
    measure(&mut engine, &options, Swaps::Memory, &mut |p| seen.push(p)).expect("it runs");
    let total = 5 * engine.graph().natural_order().len();
    assert!(seen.iter().all(|p| p.total == total));
    assert!(seen.iter().map(|p| p.done).eq(1..=total));
}

#[test]
fn measuring_nothing_is_refused() {
    let model = small("mlp");
    let mut engine = Engine::new(&model.program, THREADS).expect("it fits");
    let options = MeasureOptions { measured: 0, ..once() };
    let result = measure(&mut engine, &options, Swaps::Memory, &mut |_| {});
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
    let measured = measure(&mut engine, &once(), Swaps::Memory, &mut |_| {});
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
