//! What recomputation costs: planned steps of several strategies against the plain step, taking
//! turns.
//!
//! `overhead MODEL BATCH OPTIMIZER ROUNDS BUDGETS STRATEGIES`, lists with commas. A budget is `50%`
//! of the plain step's arena, or `b32`: all of the plain step's arena at that batch size. The plain
//! step is profiled once; every plan is made from that profile. In each round the plain step and
//! the planned ones run once each, side by side in short turns; a first round is not counted.
//! Prints CSV, a line for each budget and strategy. Fails if a peak is not the predicted one or a
//! loss differs in a bit.
//!
//! `cargo xtask bench compare` runs it for the reference models.

use std::error::Error as StdError;
use std::time::Instant;

use rekindle::{
    Error, FitOptions, Fitted, Trainer, fit_profiled, plain, profile_layout, set_up, side_by_side,
};
use rekindle_engine::{Engine, Layout};
use rekindle_graph::{Bytes, Graph};
use rekindle_models::{Model, ModelOptions, build};
use rekindle_plan::{NoWatch, Options, Planned, Strategy};
use rekindle_profile::MeasureOptions;
use rekindle_program::Optimizer;

const HEADER: &str = "model,batch_size,share,budget_bytes,plain_peak_bytes,strategy,\
                      predicted_peak_bytes,measured_peak_bytes,predicted_overhead_percent,\
                      bound_percent,plan_seconds,recomputed,plain_seconds,planned_seconds";

/// The seed of weights, data and dropout.
const SEED: u64 = 0;

/// A plan that is predicted to be slower than the first strategy's by more than this share of the
/// step is not run: the prediction would have to be wrong by as much.
const DOUBT: f64 = 0.1;

/// Profiled steps, at least. The predictions are compared to the percent, and the median of three
/// steps is further off than that on a machine whose speed drifts.
const FEWEST_PROFILED: usize = 7;

type Outcome<T> = Result<T, Box<dyn StdError>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, batch, optimizer, rounds, budgets, strategies] = &words[..] else {
        return Err("say MODEL BATCH OPTIMIZER ROUNDS BUDGETS STRATEGIES".into());
    };
    let bench = Bench::new(name, batch.parse()?, optimizer, rounds.parse()?)?;
    let strategies: Option<Vec<_>> = strategies.split(',').map(Strategy::from_name).collect();
    let strategies =
        strategies.ok_or_else(|| format!("a strategy is one of {}", Strategy::names()))?;
    println!("{HEADER}");
    let mut known = Vec::new();
    for budget in budgets.split(',') {
        bench.budget(budget, &strategies, &mut known)?;
    }
    Ok(())
}

/// The model with its profile.
struct Bench {
    name: String,
    model: Model,
    model_options: ModelOptions,
    options: FitOptions,
    rounds: usize,
    graph: Graph,
    /// The plain step.
    plain: Layout,
}

/// A strategy's answer to a budget: a step, or the smallest arena that it knows.
struct Answer {
    strategy: Strategy,
    fitted: Result<Fitted, Bytes>,
    plan_seconds: f64,
}

/// A step on its way.
struct Run<'m> {
    trainer: Trainer<'m>,
    seconds: Vec<f64>,
    peak: Bytes,
}

impl Bench {
    fn new(name: &str, batch: usize, optimizer: &str, rounds: usize) -> Outcome<Bench> {
        let optimizer = match optimizer {
            "sgd" => Optimizer::sgd(1e-3),
            "adam" => Optimizer::adam(1e-4),
            _ => return Err("the optimizer is sgd or adam".into()),
        };
        let model_options =
            ModelOptions { batch, optimizer: Some(optimizer), ..ModelOptions::default() };
        let model = build(name, &model_options)?;
        let options = FitOptions {
            seed: SEED,
            measure: MeasureOptions {
                measured: rounds.max(FEWEST_PROFILED),
                ..MeasureOptions::default()
            },
            ..FitOptions::default()
        };
        let plain = plain(&model, options.threads);
        Ok(Bench {
            name: name.into(),
            graph: profile_layout(&model, &plain, &options, &mut |_| {})?,
            plain,
            model,
            model_options,
            options,
            rounds,
        })
    }

    /// The arena of the plain step.
    fn peak(&self) -> Bytes {
        self.plain.predicted().arena
    }

    /// The bytes that a word stands for.
    fn resolve(&self, word: &str) -> Outcome<Bytes> {
        if let Some(percent) = word.strip_suffix('%') {
            let share = percent.parse::<f64>()? / 100.0;
            return Ok(Bytes((self.peak().get() as f64 * share) as u64));
        }
        let batch = word.strip_prefix('b').ok_or("a budget is 50% or b32")?.parse()?;
        let options = ModelOptions { batch, ..self.model_options.clone() };
        let other = build(&self.name, &options)?;
        Ok(plain(&other, self.options.threads).predicted().arena)
    }

    fn plan(&self, strategy: Strategy, budget: Bytes) -> Outcome<Answer> {
        let options =
            FitOptions { plan: Options { strategy, ..self.options.plan }, ..self.options.clone() };
        let started = Instant::now();
        let fitted = fit_profiled(&self.model.program, &self.graph, budget, &options, &mut NoWatch);
        let plan_seconds = started.elapsed().as_secs_f64();
        let fitted = match fitted {
            Ok(fitted) => Ok(fitted),
            Err(Error::DoesNotFit { smallest, .. }) => Err(smallest),
            Err(error) => return Err(error.into()),
        };
        Ok(Answer { strategy, fitted, plan_seconds })
    }

    /// Measures all strategies at one budget. Where the first has no plan, all get the smallest
    /// that it knows; what was measured at that budget before is in `known`, and measured once.
    fn budget(
        &self,
        word: &str,
        strategies: &[Strategy],
        known: &mut Vec<(Bytes, Vec<String>)>,
    ) -> Outcome<()> {
        let mut budget = self.resolve(word)?;
        let mut first = self.plan(strategies[0], budget)?;
        if let Err(smallest) = first.fitted {
            budget = smallest;
            if let Some((_, lines)) = known.iter().find(|(known, _)| *known == budget) {
                for line in lines {
                    println!("{}", self.line(word, budget, line));
                }
                return Ok(());
            }
            first = self.plan(strategies[0], budget)?;
        }
        let mut answers = vec![first];
        for &strategy in &strategies[1..] {
            answers.push(self.plan(strategy, budget)?);
        }
        let mut plain = self.run(set_up(&self.plain, SEED, None, &mut |_| {})?)?;
        let mut runs = Vec::new();
        let predicted = |answer: &Answer| Some(answer.fitted.as_ref().ok()?.overhead());
        let most = predicted(&answers[0]).unwrap_or(f64::INFINITY) + DOUBT;
        for answer in &answers {
            let near = predicted(answer).is_some_and(|overhead| overhead <= most);
            let fitted = answer.fitted.as_ref().ok().filter(|_| near);
            let run = fitted.map(Fitted::engine);
            runs.push(run.transpose()?.map(|engine| self.run(engine)).transpose()?);
        }
        for _ in 0..=self.rounds {
            round(std::iter::once(&mut plain).chain(runs.iter_mut().flatten()))?;
        }
        let mut lines = Vec::new();
        for (answer, run) in answers.iter().zip(&runs) {
            let line = self.results(answer, &plain, run.as_ref());
            println!("{}", self.line(word, budget, &line));
            lines.push(line);
        }
        known.push((budget, lines));
        Ok(())
    }

    fn run(&self, engine: Engine) -> Result<Run<'_>, rekindle::Error> {
        Ok(Run {
            peak: engine.predicted().arena,
            trainer: Trainer::new(&self.model, engine, SEED)?,
            seconds: Vec::new(),
        })
    }

    /// A line of CSV.
    fn line(&self, share: &str, budget: Bytes, results: &str) -> String {
        let batch = self.model_options.batch;
        let (budget, peak) = (budget.get(), self.peak().get());
        format!("{},{batch},{share},{budget},{peak},{results}", self.name)
    }

    /// The part of a line that belongs to a strategy; of one without a plan the smallest arena
    /// stands under the predicted peak.
    fn results(&self, answer: &Answer, plain: &Run<'_>, run: Option<&Run<'_>>) -> String {
        let fitted = answer.fitted.as_ref();
        let cell = |value: Option<String>| value.unwrap_or_default();
        let bound = |p: &Planned| {
            let plain = p.stats.plain_time.get();
            format!("{:.3}", 100.0 * (p.lower_bound.get() / plain - 1.0))
        };
        let planned = fitted.ok().map(|f| &f.planned);
        let cells = [
            answer.strategy.name.into(),
            fitted.map_or_else(|s| s.get(), |f| f.predicted().arena.get()).to_string(),
            cell(run.map(|run| run.peak.get().to_string())),
            cell(planned.map(|p| format!("{:.3}", 100.0 * p.overhead()))),
            cell(planned.map(bound)),
            format!("{:.2}", answer.plan_seconds),
            cell(planned.map(|p| p.stats.recomputed.to_string())),
            times(plain),
            cell(run.map(times)),
        ];
        cells.join(",")
    }
}

/// Runs a step of each, the first of which is the plain one.
fn round<'r, 'm: 'r>(runs: impl Iterator<Item = &'r mut Run<'m>>) -> Outcome<()> {
    let mut runs: Vec<_> = runs.collect();
    for run in &mut runs {
        run.trainer.feed()?;
    }
    let mut trainers: Vec<_> = runs.iter_mut().map(|run| &mut run.trainer).collect();
    let steps = side_by_side(&mut trainers)?;
    let loss = steps[0].0.loss.to_bits();
    for (run, (report, time)) in runs.into_iter().zip(steps) {
        if report.loss.to_bits() != loss {
            return Err("a loss differs from the plain step's".into());
        }
        run.seconds.push(time.as_secs_f64());
        run.peak = report.measured.arena;
    }
    Ok(())
}

/// The times that count, with blanks between them.
fn times(run: &Run<'_>) -> String {
    let counted = run.seconds[1..].iter().map(|s| format!("{s:.4}"));
    counted.collect::<Vec<_>>().join(" ")
}
