//! The planned step gives the plain step's numbers, bit by bit, in the peak that was predicted.
//!
//! Times are estimates, so that the plans do not depend on the machine.

use rekindle::{
    Error, FitOptions, Fitted, Trainer, check_numbers, check_numbers_from, estimate, fit_profiled,
    plain, smallest,
};
use rekindle_engine::Layout;
use rekindle_graph::Bytes;
use rekindle_models::{BertConfig, Model, ModelOptions, build, build_bert};
use rekindle_plan::{Effort, NoWatch, Options, Strategy};
use rekindle_program::Optimizer;
use rekindle_program::op::SgdOptions;

/// Without momentum: the less is persistent, the more a plan has to do.
const PLAIN_SGD: Optimizer =
    Optimizer::Sgd(SgdOptions { learning_rate: 0.01, momentum: 0.0, weight_decay: 0.0 });

fn sizes(batch: usize, optimizer: Optimizer) -> ModelOptions {
    ModelOptions {
        batch,
        image_size: 32,
        sequence: 16,
        optimizer: Some(optimizer),
        ..ModelOptions::default()
    }
}

fn model(name: &str, batch: usize, optimizer: Optimizer) -> Model {
    build(name, &sizes(batch, optimizer)).expect("the model builds")
}

fn options(strategy: Strategy, threads: usize) -> FitOptions {
    FitOptions {
        threads,
        plan: Options { strategy, effort: Effort::FIRST, store: None },
        ..FitOptions::default()
    }
}

/// What share of the plain arena a step gets.
#[derive(Clone, Copy)]
enum Room {
    Percent(u64),
    Smallest,
}

/// Fits the step; where the strategy does not come down to the share, into the budget that its
/// refusal names.
#[track_caller]
fn fitted(plain: &Layout, room: Room, options: &FitOptions) -> Fitted {
    let (program, graph) = (plain.program(), estimate(plain.graph()));
    let fit = |budget| fit_profiled(program, &graph, budget, options, &mut NoWatch);
    let arena = plain.predicted().arena.get();
    let fitted = match room {
        Room::Smallest => smallest(program, &graph, options, &mut NoWatch),
        Room::Percent(percent) => match fit(Bytes(arena * percent / 100)) {
            Err(Error::DoesNotFit { smallest, .. }) => fit(smallest),
            fitted => fitted,
        },
    };
    let fitted = fitted.expect("there is a plan");
    assert!(fitted.predicted().arena <= fitted.budget);
    assert!(fitted.predicted().live <= fitted.predicted().arena);
    assert_eq!(fitted.predicted().live, fitted.audit.peak, "the checker and the engine agree");
    assert_eq!(fitted.layout.graph(), &fitted.rewritten.graph, "what was verified is what runs");
    fitted
}

/// Every room, by both strategies, with one thread and with two.
const CASES: [(Room, Strategy, usize); 6] = [
    (Room::Percent(90), Strategy::SEARCH, 2),
    (Room::Percent(60), Strategy::MUTWO, 1),
    (Room::Smallest, Strategy::SEARCH, 1),
    (Room::Smallest, Strategy::MUTWO, 2),
    (Room::Percent(60), Strategy::SEARCH, 2),
    (Room::Percent(90), Strategy::MUTWO, 1),
];

/// The first of them, for models whose parameters take long to draw.
const FEWER: usize = 4;

#[track_caller]
fn check(model: &Model, cases: usize) {
    let name = &model.program.name;
    let mut recomputed = 0;
    for &(room, strategy, threads) in &CASES[..cases] {
        let plain = plain(model, threads);
        let fitted = fitted(&plain, room, &options(strategy, threads));
        let checked = check_numbers(model, &plain, &fitted, 2, 7).expect("both steps run");
        assert_eq!(checked.differences, [], "{name}, {strategy:?}, {threads} threads");
        // The losses twice, and each parameter with its gradient.
        assert!(checked.tensors >= 2 + 2 * model.gradients.len());
        recomputed += fitted.audit.recomputed;
    }
    assert!(recomputed > 0, "{name}: no plan recomputes anything, so nothing was shown");
}

#[test]
fn mlp() {
    check(&model("mlp", 256, PLAIN_SGD), FEWER);
}

#[test]
fn resnet18() {
    check(&model("resnet18", 16, PLAIN_SGD), FEWER);
}

#[test]
fn resnet50() {
    check(&model("resnet50", 8, PLAIN_SGD), FEWER);
}

#[test]
fn the_seed_transformer() {
    let model = model("transformer-tiny", 8, Optimizer::adamw(1e-3));
    check(&model, CASES.len());
}

#[test]
fn bert() {
    let config = BertConfig { vocab: 500, ..BertConfig::new(64, 3, 2) };
    let model = build_bert("bert", config, &sizes(8, Optimizer::adam(1e-3)));
    check(&model.expect("the model builds"), CASES.len());
}

#[test]
fn gpt2() {
    let model = model("gpt2-tiny", 8, Optimizer::adamw(1e-3));
    check(&model, CASES.len());
}

#[test]
fn a_budget_below_the_smallest_is_refused_and_the_named_one_works() {
    let sizes = ModelOptions { sequence: 128, ..sizes(8, PLAIN_SGD) };
    let model = build("transformer-tiny", &sizes).expect("the model builds");
    let options = options(Strategy::SEARCH, 1);
    let plain = plain(&model, 1);
    let graph = estimate(plain.graph());
    let fit = |budget| fit_profiled(&model.program, &graph, budget, &options, &mut NoWatch);
    let Err(Error::DoesNotFit { budget, smallest, .. }) = fit(Bytes(1 << 16)) else {
        panic!("64 KiB do not hold the parameters");
    };
    assert_eq!(budget, Bytes(1 << 16));
    assert!(smallest < plain.predicted().arena);
    assert!(fit(smallest).expect("the named budget").predicted().arena <= smallest);
}

/// Each of the four runs begins as asked; one that begins elsewhere gives other numbers, which are
/// found.
#[test]
fn a_comparison_begins_where_it_is_told() {
    let model = model("transformer-tiny", 4, PLAIN_SGD);
    let plain = plain(&model, 1);
    let fitted = fitted(&plain, Room::Percent(80), &options(Strategy::SEARCH, 1));
    let begun = std::cell::Cell::new(0);
    let mut seen = Vec::new();
    let mut watch = |done, total| seen.push((done, total));
    let begin = |trainer: &mut Trainer<'_>| {
        begun.set(begun.get() + 1);
        trainer.step().map(|_| ())
    };
    let same = check_numbers_from(&model, &plain, &fitted, 1, 0, &begin, &mut watch);
    assert!(same.expect("it runs").is_equal());
    assert_eq!(begun.take(), 4);
    assert_eq!(seen, [(0, 4), (1, 4), (2, 4), (3, 4)]);
    let begin = |trainer: &mut Trainer<'_>| {
        begun.set(begun.get() + 1);
        match begun.get() {
            2 => trainer.step().map(|_| ()),
            _ => Ok(()),
        }
    };
    let other = check_numbers_from(&model, &plain, &fitted, 1, 0, &begin, &mut |_, _| {});
    assert!(!other.expect("it runs").is_equal());
}
