//! Training whose parameters and state live in a store between steps: the same files as without.

use std::ops::ControlFlow;
use std::path::PathBuf;

use rekindle::{
    BatchWatch, FitOptions, MaxBatchOptions, Offload, Preparing, Trainer, check_numbers, fit,
    max_batch, plain, set_up, side_by_side,
};
use rekindle_engine::Layout;
use rekindle_graph::{Bytes, Micros, Rate, Store};
use rekindle_models::{Model, ModelOptions, build};
use rekindle_plan::{Effort, Options, Progress, Watch};
use rekindle_profile::MeasureOptions;
use rekindle_program::Optimizer;
use rekindle_rewrite::rewrite;
use rekindle_soak::moves_within;

const THREADS: usize = 2;
const SEED: u64 = 3;

fn model(name: &str) -> Model {
    // State as large as the convolutions would be slow to write, and shows nothing more.
    let optimizer = match name {
        "resnet18" => Optimizer::sgd(0.01),
        _ => Optimizer::adam(0.01),
    };
    let optimizer = Some(optimizer);
    let options =
        ModelOptions { batch: 2, image_size: 32, sequence: 16, optimizer, ..Default::default() };
    build(name, &options).expect("the model builds")
}

/// A step that moves what it must to stay within a part of the plain one's peak.
fn moving(model: &Model, plain: &Layout, percent: u64) -> Layout {
    let rate = Rate(1000.0);
    let store = Store {
        out_rate: rate,
        in_rate: rate,
        latency: Micros(1.0),
        duplex: true,
        limit: None,
        activations_only: false,
    };
    let budget = Bytes(plain.predicted().live.get() / 100 * percent);
    let plan = moves_within(plain.graph(), budget, store).expect("every node fits");
    let rewritten = rewrite(plain.graph(), &plan).expect("a valid plan");
    let origins = rewritten.origins();
    Layout::new(&model.program, rewritten.graph.clone(), origins, THREADS).expect("it is the same")
}

fn trainer<'m>(model: &'m Model, layout: &Layout) -> Trainer<'m> {
    let folder = std::env::temp_dir();
    let engine = set_up(layout, SEED, Some(&folder), &mut |_| {}).expect("it can be set up");
    Trainer::new(model, engine, SEED).expect("the store is there")
}

/// A folder of one test alone.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("rekindle-{name}-{}", std::process::id()));
    std::fs::create_dir(&path).expect("a fresh folder");
    path
}

#[test]
fn weights_and_checkpoints_are_the_same_files_wherever_the_tensors_live() {
    for (name, percent) in [("gpt2-tiny", 60), ("resnet18", 60)] {
        let model = model(name);
        let plain = plain(&model, THREADS);
        let moving = moving(&model, &plain, percent);
        assert!(moving.store_bytes() > Bytes::ZERO);
        let folder = folder(name);
        let file = |name: &str| folder.join(name);
        let read = |name: &str| std::fs::read(file(name)).expect("it was written");
        let run = |layout: &Layout, word: &str| {
            let mut trainer = trainer(&model, layout);
            let losses = [(); 2].map(|()| trainer.step().expect("it runs").loss.to_bits());
            trainer.save_weights(&file(&format!("{word}.weights"))).expect("room");
            trainer.save_checkpoint(&file(&format!("{word}.checkpoint"))).expect("room");
            losses
        };
        assert_eq!(run(&plain, "plain"), run(&moving, "moving"), "{name}");
        assert!(read("plain.weights") == read("moving.weights"), "{name}");
        assert!(read("plain.checkpoint") == read("moving.checkpoint"), "{name}");
        // And what was written by one goes on in the other.
        let go_on = |layout: &Layout, word: &str| {
            let mut trainer = trainer(&model, layout);
            trainer.load_weights(&file("plain.weights")).expect("its own weights");
            trainer.save_weights(&file("again")).expect("room");
            assert!(read("again") == read("plain.weights"), "{name}, {word}");
            trainer.resume(&file("plain.checkpoint")).expect("its own checkpoint");
            trainer.step().expect("it runs").loss.to_bits()
        };
        assert_eq!(go_on(&plain, "plain"), go_on(&moving, "moving"), "{name}");
        std::fs::remove_dir_all(&folder).expect("it can go");
    }
}

#[test]
fn steps_that_move_take_turns_with_others() {
    let model = model("gpt2-tiny");
    let plain = plain(&model, THREADS);
    let moving = moving(&model, &plain, 60);
    let mut alone = trainer(&model, &plain);
    let (mut one, mut two) = (trainer(&model, &plain), trainer(&model, &moving));
    for _ in 0..2 {
        let expected = alone.step().expect("it runs").loss.to_bits();
        one.feed().expect("its own data");
        two.feed().expect("its own data");
        let steps = side_by_side(&mut [&mut one, &mut two]).expect("they run");
        let losses: Vec<u32> = steps.iter().map(|(report, _)| report.loss.to_bits()).collect();
        assert_eq!(losses, [expected; 2]);
    }
}

/// With a folder to move storages to, the whole way from a model to its numbers.
#[test]
fn a_step_is_fitted_with_a_store_and_gives_the_plain_steps_numbers() {
    let model = model("gpt2-tiny");
    let plain = plain(&model, THREADS);
    let limit = Some(Bytes(64 << 20));
    let offload = Some(Offload { folder: std::env::temp_dir(), limit });
    let measure = MeasureOptions { measured: 1, ..MeasureOptions::default() };
    let options = FitOptions { threads: THREADS, offload, measure, ..FitOptions::default() };
    let budget = Bytes(plain.predicted().arena.get() / 2);
    let floor = rekindle_plan::floor(plain.graph()).bytes;
    assert!(floor > budget, "recomputation alone reaches {floor} at the lowest");
    let fitted = fit(&model, &plain, budget, &options).expect("it fits");
    assert!(fitted.predicted().arena <= budget);
    let store = fitted.layout.store_bytes();
    assert!(store > Bytes::ZERO && store <= Bytes(64 << 20), "{store}");
    let checked = check_numbers(&model, &plain, &fitted, 2, SEED).expect("both steps run");
    assert_eq!(checked.differences, []);
    let nowhere = Some(Offload { folder: "/there/is/no/such/folder".into(), limit });
    let options = FitOptions { offload: nowhere, ..options };
    let error = fit(&model, &plain, budget, &options).expect_err("there is no folder");
    assert!(error.to_string().contains("/there/is/no/such/folder"), "{error}");
}

struct Quiet;

impl Watch for Quiet {
    fn progress(&mut self, _: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl BatchWatch for Quiet {
    fn preparing(&mut self, _: usize, _: Preparing) {}
    fn trying(&mut self, _: usize) {}
}

/// In a budget in which not even the parameters and their state have room.
#[test]
fn a_batch_is_found_for_a_model_that_is_larger_than_the_budget() {
    let build = |batch| {
        let optimizer = Some(Optimizer::adam(0.01));
        let options = ModelOptions { batch, sequence: 16, optimizer, ..ModelOptions::default() };
        build("gpt2-tiny", &options)
    };
    let one = plain(&build(1).expect("the model builds"), THREADS);
    let measure = MeasureOptions { measured: 1, ..MeasureOptions::default() };
    let plan = Options { effort: Effort::FIRST, ..Options::default() };
    let offload = Some(Offload { folder: std::env::temp_dir(), limit: None });
    let options = MaxBatchOptions {
        budget: Bytes(one.predicted().arena.get() * 2 / 3),
        max_overhead: None,
        fit: FitOptions { threads: THREADS, measure, plan, offload, ..FitOptions::default() },
    };
    let found = max_batch(&build, &options, &mut Quiet).expect("one sample fits");
    assert!(found.plain.is_none() && found.batch > 1, "{}", found.batch);
    let model = build(found.batch).expect("the model builds");
    let engine = found.fitted.engine().expect("it can be set up");
    let mut trainer = Trainer::new(&model, engine, SEED).expect("the store works");
    assert!(trainer.step().expect("it runs").measured.arena <= options.budget);
}
