//! Random training steps of real ops, random budgets: the same bits, the predicted peak, no
//! violation.

#[path = "../../engine/tests/shaken/mod.rs"]
mod shaken;

use rekindle::{Error, FitOptions, Trainer, check_numbers, estimate, fit_profiled, plain};
use rekindle_engine::{Engine, Layout, Store};
use rekindle_graph::{Bytes, StorageId};
use rekindle_models::{Input, InputKind, Model};
use rekindle_plan::{Effort, NoWatch, Options, Strategy};
use rekindle_program::op::{BatchNormState, ConvOptions, GeluKind, Mask, Then};
use rekindle_program::random::Stream;
use rekindle_program::{Builder, DType, Init, Optimizer, ProgramError, Var};
use rekindle_rewrite::rewrite;
use rekindle_soak::random_moves;
use rekindle_verify::verify_rewritten;
use shaken::Shaken;

const SEEDS: u64 = 12;
/// Programs that move at random.
const MOVING: u64 = 25;
const CLASSES: usize = 5;
const SIDE: usize = 6;

/// Draws one number after the other.
struct Draw {
    stream: Stream,
    drawn: u64,
}

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw { stream: Stream::new(seed), drawn: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.drawn += 1;
        (self.stream.unit(self.drawn) * bound as f64) as usize
    }

    /// One of the list, later ones more often, as in networks with few long connections.
    fn pick<'a>(&mut self, list: &'a [Var]) -> &'a Var {
        let (a, b) = (self.below(list.len()), self.below(list.len()));
        &list[a.max(b)]
    }
}

/// Images through a random graph of convolutions, norms and maps with connections across, then
/// rows through one of linear maps and attention-like ops.
fn random_model(seed: u64) -> Result<Model, ProgramError> {
    let mut draw = Draw::new(seed);
    let mut b = Builder::new(format!("random-{seed}"));
    let batch = 2 + draw.below(6);
    let channels = 4 + 4 * draw.below(3);
    let data = b.input("x", &[batch, SIDE, SIDE, channels], DType::F32)?;
    let labels = b.input("labels", &[batch], DType::I64)?;
    let mut images = vec![data.clone()];
    for i in 0..4 + draw.below(6) {
        let x = draw.pick(&images).clone();
        let name = format!("image{i}");
        let y = match draw.below(5) {
            0 | 1 => conv(&mut b, &name, &x, channels)?,
            2 => norm(&mut b, &name, &x, channels)?,
            3 => b.dropout(&name, &x, 0.25)?,
            _ => {
                let other = draw.pick(&images).clone();
                b.add(&name, &x, &other)?
            }
        };
        images.push(y);
    }
    let last = images.last().expect("at least the data").clone();
    let flat = b.reshape(&last, &[batch, SIDE * SIDE * channels])?;
    let width = 16 + 16 * draw.below(3);
    let mut rows = vec![linear(&mut b, "enter", &flat, width)?];
    for i in 0..4 + draw.below(6) {
        let x = draw.pick(&rows).clone();
        let name = format!("row{i}");
        let y = match draw.below(7) {
            0 | 1 => linear(&mut b, &name, &x, width)?,
            2 => b.gelu(&name, &x, GeluKind::Erf)?,
            3 => b.relu(&name, &x)?,
            4 => b.softmax(&name, &x, Mask::Full)?,
            5 => b.dropout(&name, &x, 0.5)?,
            _ => {
                let other = draw.pick(&rows).clone();
                b.add(&name, &x, &other)?
            }
        };
        rows.push(y);
    }
    let last = rows.last().expect("at least the first").clone();
    let logits = linear(&mut b, "head", &last, CLASSES)?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
    let gradients = b.backward(&loss)?;
    let optimizer = match draw.below(2) {
        0 => Optimizer::sgd(0.05),
        _ => Optimizer::adam(0.01),
    };
    b.optimize(&gradients, optimizer)?;
    let (data, labels) = (data.tensor(), labels.tensor());
    let classes = CLASSES;
    Ok(Model {
        loss: loss.tensor(),
        logits: Some(logits.tensor()),
        gradients: gradients.pairs().to_vec(),
        program: b.finish(&[&loss])?,
        inputs: vec![
            Input { tensor: data, kind: InputKind::Features { classes } },
            Input { tensor: labels, kind: InputKind::Classes { classes } },
        ],
        tied: vec![],
    })
}

fn linear(b: &mut Builder, name: &str, x: &Var, out: usize) -> Result<Var, ProgramError> {
    let columns = *x.shape().last().expect("rows");
    let bound = 1.0 / (columns as f32).sqrt();
    let init = Init::Uniform { bound };
    let weight = b.parameter(&format!("{name}.weight"), &[out, columns], init)?;
    let bias = b.parameter(&format!("{name}.bias"), &[out], Init::Zeros)?;
    b.linear(name, x, &weight, Some(&bias))
}

fn conv(b: &mut Builder, name: &str, x: &Var, channels: usize) -> Result<Var, ProgramError> {
    let shape = [3, 3, channels, channels];
    let weight = b.parameter(&format!("{name}.weight"), &shape, Init::Normal { std: 0.1 })?;
    let options = ConvOptions { padding: [1; 2], ..ConvOptions::default() };
    b.conv(name, x, &weight, None, options)
}

fn norm(b: &mut Builder, name: &str, x: &Var, channels: usize) -> Result<Var, ProgramError> {
    let part = |part: &str| format!("{name}.{part}");
    let state = BatchNormState {
        gamma: b.parameter(&part("weight"), &[channels], Init::Ones)?,
        beta: b.parameter(&part("bias"), &[channels], Init::Zeros)?,
        running_mean: b.buffer(&part("mean"), &[channels], DType::F32, Init::Zeros)?,
        running_var: b.buffer(&part("var"), &[channels], DType::F32, Init::Ones)?,
        batches: b.buffer(&part("batches"), &[], DType::I64, Init::Zeros)?,
        eps: 1e-5,
        momentum: 0.1,
    };
    b.batch_norm(name, x, &state, Then::Relu)
}

#[test]
fn random_steps_in_random_budgets_give_the_plain_steps_numbers() {
    let (mut fitted_steps, mut recomputed) = (0, 0);
    for seed in 0..SEEDS {
        let model = random_model(seed).expect("shapes agree by construction");
        let mut draw = Draw::new(seed.wrapping_mul(977));
        for strategy in Strategy::without_store() {
            let options = FitOptions {
                threads: 1 + draw.below(2),
                plan: Options { strategy, effort: Effort::FIRST, store: None },
                ..FitOptions::default()
            };
            let plain = plain(&model, options.threads);
            let graph = estimate(plain.graph());
            let arena = plain.predicted().arena.get();
            let budget = Bytes(arena * (40 + draw.below(60) as u64) / 100);
            let fit =
                |budget| fit_profiled(plain.program(), &graph, budget, &options, &mut NoWatch);
            let fitted = match fit(budget) {
                Err(Error::DoesNotFit { smallest, .. }) => {
                    assert!(smallest > budget, "seed {seed}: refused although it fits");
                    fit(smallest)
                }
                fitted => fitted,
            };
            let fitted = fitted.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(fitted.predicted().arena <= fitted.budget, "seed {seed}");
            let checked = check_numbers(&model, &plain, &fitted, 2, seed).expect("both steps run");
            assert_eq!(checked.differences, [], "seed {seed}, {strategy:?}");
            fitted_steps += 1;
            recomputed += fitted.audit.recomputed;
        }
    }
    assert_eq!(fitted_steps, Strategy::without_store().count() as u64 * SEEDS);
    assert!(
        recomputed > 50,
        "only {recomputed} recomputations: budgets are too wide to show anything"
    );
}

/// Everything that two training steps leave, and their losses, as bits.
fn train(model: &Model, engine: Engine, seed: u64) -> Vec<u64> {
    let mut trainer = Trainer::new(model, engine, seed).expect("the store works");
    let mut bits = Vec::new();
    for _ in 0..2 {
        // An error if the measured peak is not the predicted one.
        bits.push(u64::from(trainer.step().expect("it runs").loss.to_bits()));
    }
    for id in (0..model.program.tensors.len()).map(StorageId::new) {
        if let Ok(values) = trainer.engine().read_f32(id) {
            bits.extend(values.iter().map(|v| u64::from(v.to_bits())));
        }
    }
    bits
}

/// By plans of no use that recompute and move at random, with a store that delays at random.
#[test]
fn random_steps_that_move_at_random_give_the_plain_steps_numbers() {
    let mut moved = 0;
    for seed in 0..MOVING {
        let model = random_model(seed).expect("shapes agree by construction");
        let threads = 1 + (seed % 2) as usize;
        let plain = plain(&model, threads);
        let plan = random_moves(plain.graph(), seed);
        let rewritten = rewrite(plain.graph(), &plan).expect("a valid plan");
        let origins = rewritten.origins();
        let audit = verify_rewritten(plain.graph(), &plan, &rewritten.graph, origins);
        audit.unwrap_or_else(|violations| panic!("seed {seed}: {violations}"));
        let layout = Layout::new(&model.program, rewritten.graph.clone(), origins, threads);
        let layout = layout.expect("it is the same");
        let store = Store {
            backing: Box::new(Shaken::new(layout.store_bytes(), seed, u64::MAX)),
            duplex: seed % 3 != 0,
            depth: 1 + (seed % 4) as usize,
        };
        let engine = Engine::with_store(layout, seed, Some(store), &mut |_, _| {});
        let engine = engine.expect("it can be set up");
        moved += engine.graph().nodes().iter().filter(|n| n.transfer().is_some()).count();
        let expected = Engine::new(&model.program, threads).expect("it can be set up");
        let expected = train(&model, expected, seed);
        assert!(expected == train(&model, engine, seed), "seed {seed}");
    }
    assert!(moved > 100 * MOVING as usize, "only {moved} transfers");
}
