//! Everything that must hold for plans of one random graph.

use anyhow::{Context as _, Result, bail, ensure};
use rekindle_graph::{Bytes, Graph, Micros, Rate, Store, Timeline};
use rekindle_plan::{
    Effort, NoWatch, Options, PlanError, Planned, Strategy, floor, floor_with_store, frontier, plan,
};
use rekindle_rewrite::rewrite;
use rekindle_verify::{verify, verify_rewritten};

use crate::random::Random;
use crate::{random_graph, random_moves};

/// Budgets for each strategy on each graph, without a store and with one. More would spend the time
/// on few graphs.
const BUDGETS: usize = 1;
/// In this percentage of cases the strategy works on after its first plan. More would spend the
/// time on few graphs.
const LONGER: usize = 5;
/// In this percentage of cases the same question is asked twice.
const TWICE: usize = 25;
/// In this percentage of cases a whole frontier is planned.
const FRONTIERS: usize = 5;
/// Plans of no use that recompute and move, on each graph.
const MOVES: u64 = 3;
/// Sums of times in different orders differ by less than this share.
const SUMMATION_ERROR: f64 = 1e-9;

/// Plans the graph of `seed` with every strategy at several budgets. Returns how many plans there
/// were.
///
/// # Errors
/// The first promise that is broken.
pub fn check(seed: u64, size: usize) -> Result<usize> {
    let graph = random_graph(seed, size);
    let text = graph.to_json();
    ensure!(Graph::from_json(&text)? == graph, "the graph does not survive its format");
    let mut random = Random::new(!seed);
    let (low, high) = (floor(&graph).bytes, Timeline::natural(&graph).peak);
    ensure!(low <= high, "the floor {low} is above the plain peak {high}");
    let mut plans = Vec::new();
    for strategy in Strategy::without_store() {
        let effort = match random.below(100) < LONGER {
            true => Effort::new(1).expect("a level"),
            false => Effort::FIRST,
        };
        let options = Options { strategy, effort, store: None };
        for _ in 0..BUDGETS {
            let span = (high - low).get() as usize + 2;
            let budget = Bytes((low.get() + random.below(span) as u64).saturating_sub(1));
            let twice = random.below(100) < TWICE;
            let planned = check_budget(&graph, budget, &options, twice)
                .with_context(|| format!("{} at {} bytes", strategy.name, budget.get()))?;
            plans.extend(planned);
        }
        if random.chance(FRONTIERS) {
            check_frontier(&graph, &options).with_context(|| strategy.name)?;
        }
    }
    check_bounds(&plans)?;
    let moved = check_stores(&graph, &mut random).context("with a store")?;
    for k in 0..MOVES {
        check_moves(&graph, seed.wrapping_mul(31).wrapping_add(k))
            .with_context(|| format!("random moves, number {k}"))?;
    }
    Ok(plans.len() + moved + MOVES as usize)
}

/// Whatever a valid plan moves, what it is rewritten to is the same work in no more bytes.
fn check_moves(graph: &Graph, seed: u64) -> Result<()> {
    let plan = random_moves(graph, seed);
    let audit = verify(graph, &plan)?;
    let timeline = Timeline::new(graph, &plan.schedule)?;
    ensure!(audit.store_peak == timeline.store_peak, "two replays differ in the store");
    let rewritten = rewrite(graph, &plan)?;
    let origins = rewritten.origins();
    verify_rewritten(graph, &plan, &rewritten.graph, origins).context("rewritten")?;
    let peak = Timeline::natural(&rewritten.graph).peak;
    ensure!(peak <= plan.peak, "rewritten peak {} is over {}", peak.get(), plan.peak.get());
    let options = Options { effort: Effort::FIRST, ..Options::default() };
    let again = rekindle_plan::plan(&rewritten.graph, peak, &options, &mut NoWatch);
    let refused = matches!(again, Err(PlanError::AlreadyMoves { .. }));
    // What lives in the store and is never needed leaves no trace.
    let moves = rewritten.graph.nodes().iter().any(|node| node.transfer().is_some());
    ensure!(refused == moves, "what moves already is planned again");
    Ok(())
}

/// Plans with a random store, with every strategy: the same promises, and the search is never
/// slower than without it. Returns how many plans there were.
fn check_stores(graph: &Graph, random: &mut Random) -> Result<usize> {
    let store = random_store(graph, random);
    let (low, high) = (floor_with_store(graph).bytes, Timeline::natural(graph).peak);
    ensure!(low <= floor(graph).bytes, "the floor {low} is above the one without a store");
    let mut plans: Vec<Planned> = Vec::new();
    for &strategy in Strategy::ALL {
        let options = Options { strategy, effort: Effort::FIRST, store: Some(store) };
        for _ in 0..BUDGETS {
            let budget = Bytes(low.get() + random.below((high - low).get() as usize + 1) as u64);
            let twice = random.below(100) < TWICE;
            let planned = check_budget(graph, budget, &options, twice).with_context(|| {
                format!("{} at {} bytes and {store}", strategy.name, budget.get())
            })?;
            if strategy == Strategy::SEARCH {
                check_not_slower(graph, budget, &options, planned.as_ref())?;
            }
            plans.extend(planned);
        }
        if random.chance(FRONTIERS) {
            check_frontier(graph, &options).with_context(|| strategy.name)?;
        }
    }
    check_bounds(&plans)?;
    Ok(plans.len())
}

fn check_not_slower(
    graph: &Graph,
    budget: Bytes,
    options: &Options,
    moving: Option<&Planned>,
) -> Result<()> {
    let without = Options { store: None, ..options.clone() };
    if let Ok(alone) = plan(graph, budget, &without, &mut NoWatch) {
        let time = moving.map(|planned| planned.plan.time);
        ensure!(
            time.is_some_and(|time| is_above(alone.plan.time, time)),
            "{time:?} at {} bytes, {} without the store",
            budget.get(),
            alone.plan.time
        );
    }
    Ok(())
}

/// From far too slow to faster than compute, now and then with one way only, a limit, or for
/// activations alone.
fn random_store(graph: &Graph, random: &mut Random) -> Store {
    let natural = Timeline::natural(graph);
    // What moves all bytes of the peak once in the time of the plain step.
    let usual = natural.peak.get() as f64 / natural.time.get().max(1.0);
    let mut rate = || match random.chance(5) {
        true => Rate(0.0),
        false => Rate(usual * (1 + random.below(100)) as f64 / 20.0),
    };
    let (out_rate, in_rate) = (rate(), rate());
    Store {
        out_rate,
        in_rate,
        latency: Micros(random.below(3) as f64),
        duplex: random.chance(50),
        limit: random
            .chance(20)
            .then(|| Bytes(random.below(natural.peak.get() as usize + 1) as u64)),
        activations_only: random.chance(20),
    }
}

/// A bound holds for the plans of every strategy, under its budget and smaller ones.
fn check_bounds(plans: &[Planned]) -> Result<()> {
    for bound in plans {
        let budget = bound.plan.budget;
        for plan in plans.iter().map(|planned| &planned.plan) {
            ensure!(
                plan.peak > budget || is_above(plan.time, bound.lower_bound),
                "at {} bytes no plan is said to be faster than {}, but {:?} has one that takes {}",
                budget.get(),
                bound.lower_bound,
                plan.strategy,
                plan.time
            );
        }
    }
    Ok(())
}

fn is_above(time: Micros, bound: Micros) -> bool {
    bound.get() <= time.get() * (1.0 + SUMMATION_ERROR)
}

/// The plan, if there is one; whatever there is must be right.
fn check_budget(
    graph: &Graph,
    budget: Bytes,
    options: &Options,
    twice: bool,
) -> Result<Option<Planned>> {
    let answer = plan(graph, budget, options, &mut NoWatch);
    if twice {
        let again = plan(graph, budget, options, &mut NoWatch);
        ensure!(answer == again, "the same input gave two answers");
    }
    match answer {
        Ok(planned) => {
            check_plan(graph, budget, &planned)?;
            Ok(Some(planned))
        }
        Err(PlanError::Infeasible(why)) => {
            ensure!(why.smallest_known > budget, "refused a budget that is known to work");
            ensure!(why.lower_bound <= why.smallest_known, "a plan below the bound is known");
            let known = plan(graph, why.smallest_known, options, &mut NoWatch)
                .context("the smallest budget that is said to work")?;
            check_plan(graph, why.smallest_known, &known)?;
            Ok(None)
        }
        Err(other) => bail!(other),
    }
}

fn check_plan(graph: &Graph, budget: Bytes, planned: &Planned) -> Result<()> {
    let plan = &planned.plan;
    let audit = verify(graph, plan)?;
    ensure!(plan.budget == budget, "the plan is for another budget");
    ensure!(audit.peak <= budget, "over the budget by {}", audit.peak - budget);
    ensure!(
        is_above(plan.time, planned.lower_bound),
        "faster ({}) than its bound ({})",
        plan.time,
        planned.lower_bound
    );
    let rewritten = rewrite(graph, plan)?;
    let origins = rewritten.origins();
    verify_rewritten(graph, plan, &rewritten.graph, origins).context("rewritten")?;
    let peak = Timeline::natural(&rewritten.graph).peak;
    // A plan that moves may hold more than the rewritten graph does, never less.
    let is_promised = match plan.schedule.has_transfers() {
        true => peak <= plan.peak,
        false => peak == plan.peak,
    };
    ensure!(is_promised, "rewritten peak {} is not {}", peak.get(), plan.peak.get());
    Ok(())
}

fn check_frontier(graph: &Graph, options: &Options) -> Result<()> {
    let points = frontier(graph, 4, options, &mut NoWatch)?.points;
    for point in &points {
        check_plan(graph, point.plan.budget, point)?;
    }
    for pair in points.windows(2) {
        let (larger, smaller) = (&pair[0].plan, &pair[1].plan);
        ensure!(smaller.budget < larger.budget, "budgets do not descend");
        ensure!(smaller.peak <= larger.peak, "a smaller budget gave a larger peak");
        ensure!(smaller.time >= larger.time, "a larger budget gave more time");
    }
    Ok(())
}
