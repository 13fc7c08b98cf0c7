//! What the rows show, claim by claim.

use super::cases::Table;
use super::row::{Outcome, Row};
use crate::archive::Claim;

/// Seconds that one corpus graph may take.
const MOST_SECONDS: f64 = 3.0;
/// Seconds within which the first plan is there.
const FIRST_SECONDS: f64 = 0.1;
/// Seconds and bytes of the largest synthetic graph.
const LARGE: (f64, u64) = (60.0, 2 << 30);
/// Seconds that μ-TWO may take.
const MUTWO_SECONDS: f64 = 1.0;
/// How much lower than the reference the overhead is to be on average.
const LOWER: f64 = 0.10;
/// The largest gap at half of the peak, in percent of the step's time.
const MOST_GAP: f64 = 5.0;

/// The largest gap at small multiples of the smallest budget, from 1.05 on.
const MOST_TIGHT_GAP: f64 = 5.0;

/// Each claim about `rows`, and whether it holds. A claim about a table that has no rows is left
/// out.
pub(crate) fn claims(rows: &[Row]) -> Vec<Claim> {
    let of =
        |table: Table| -> Vec<&Row> { rows.iter().filter(|r| r.case.table == table).collect() };
    let mut claims = Vec::new();
    for table in [Table::Torch, Table::Reference, Table::Published] {
        let rows = of(table);
        if !rows.is_empty() {
            claims.push(against_peer(table, &rows));
        }
    }
    claims.extend(lower_on_average(&of(Table::Reference)));
    let corpus: Vec<&Row> = rows.iter().filter(|r| r.case.table.is_corpus()).collect();
    if !corpus.is_empty() {
        let slowest = corpus.iter().map(|r| r.seconds).fold(0.0, f64::max);
        let text = format!(
            "speed: the slowest answer for a corpus graph took {slowest:.2} s, of at most \
             {MOST_SECONDS} s"
        );
        claims.push((slowest <= MOST_SECONDS, text));
        claims.push(first_plans(&corpus));
    }
    claims.extend(tight_gaps(&of(Table::Tight)));
    claims.extend(refusals(&of(Table::Refused)));
    claims.extend(growth(&of(Table::Synthetic)));
    for row in of(Table::Mutwo) {
        let text = format!(
            "speed: mutwo on {} in {:.2} s, of at most {MUTWO_SECONDS} s",
            row.case.graph, row.seconds
        );
        claims.push((row.seconds <= MUTWO_SECONDS, text));
    }
    let half = rows.iter().filter(|r| r.case.budget == "50%" && r.case.table.is_corpus());
    if let Some(gap) = half.map(Row::gap).reduce(f64::max) {
        let text = format!(
            "bound: the largest gap at 50 % is {gap:.2} % of the step's time, of at most \
             {MOST_GAP} %"
        );
        claims.push((gap <= MOST_GAP, text));
    }
    claims
}

fn against_peer(table: Table, rows: &[&Row]) -> Claim {
    let held = rows.iter().filter(|r| r.holds()).count();
    let mut text = format!("{}: {held} of {} cells at or below the peer", table.name(), rows.len());
    let rounded: Vec<&&Row> = rows.iter().filter(|r| r.is_rounded()).collect();
    if !rounded.is_empty() {
        let name = |row: &&&Row| {
            let why = match row.peer_is_out_of_reach() {
                true => "the bound is above the peer's figure, which was rounded down",
                false => "the peer's next digit decides",
            };
            format!("{} {}: {why}", row.case.graph, row.case.budget)
        };
        let names: Vec<String> = rounded.iter().map(name).collect();
        text += &format!(
            "; {} of them equal in the peer's digits and above in the next ({})",
            rounded.len(),
            names.join("; ")
        );
    }
    (held == rows.len(), text)
}

fn lower_on_average(rows: &[&Row]) -> Option<Claim> {
    let ratio = |row: &&Row| Some(row.overhead? / row.case.peer?);
    let ratios: Vec<f64> = rows.iter().filter_map(ratio).collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let text = format!(
        "reference: overhead {:.1} % lower on average of {} cells, of at least {:.0} %",
        100.0 * (1.0 - mean),
        ratios.len(),
        100.0 * LOWER
    );
    (!ratios.is_empty()).then_some((mean <= 1.0 - LOWER, text))
}

/// Holds if plan and bound are near each other wherever the budget is not the smallest itself.
fn tight_gaps(rows: &[&Row]) -> Option<Claim> {
    let multiples: Vec<&&Row> = rows.iter().filter(|r| r.case.budget != "1x").collect();
    let wide: Vec<String> = multiples
        .iter()
        .filter(|r| r.gap() > MOST_TIGHT_GAP)
        .map(|r| format!("{} {}: {:.2}", r.case.graph, r.case.budget, r.gap()))
        .collect();
    let mut text = format!(
        "tight: a gap of at most {MOST_TIGHT_GAP} % of the step's time at {} of {} budgets from \
         1.05 times the smallest",
        multiples.len() - wide.len(),
        multiples.len()
    );
    if !wide.is_empty() {
        text += &format!(" (wider: {})", wide.join(", "));
    }
    (!multiples.is_empty()).then_some((wide.is_empty(), text))
}

/// Holds if the first plan is in time wherever there is a plan; budgets at which it takes longer
/// are named.
fn first_plans(rows: &[&Row]) -> Claim {
    let planned: Vec<&&Row> = rows.iter().filter(|r| r.outcome == Outcome::Plan).collect();
    let in_time = |row: &Row| row.first.is_some_and(|s| s <= FIRST_SECONDS);
    let late: Vec<String> = planned
        .iter()
        .filter(|r| !in_time(r))
        .map(|r| format!("{} {}", r.case.graph, r.case.budget))
        .collect();
    let slowest = planned.iter().filter_map(|r| r.first).fold(0.0, f64::max);
    let mut text = format!(
        "speed: a first plan within {FIRST_SECONDS} s at {} of {} budgets, the slowest in \
         {slowest:.3} s",
        planned.len() - late.len(),
        planned.len()
    );
    if !late.is_empty() {
        text += &format!(" (later: {})", late.join(", "));
    }
    (late.is_empty(), text)
}

/// Holds if every budget that is too small is answered with one that has a plan.
fn refusals(rows: &[&Row]) -> Option<Claim> {
    let answered = rows.iter().filter(|r| r.outcome == Outcome::Larger);
    let name = |row: &&Row| format!("{} {}: {}", row.case.graph, row.case.budget, row.peak);
    let names: Vec<String> = answered.map(name).collect();
    let text = format!(
        "refused: {} of {} budgets that are too small are answered with one that has a plan, in \
         bytes ({})",
        names.len(),
        rows.len(),
        names.join(", ")
    );
    (!rows.is_empty()).then_some((names.len() == rows.len(), text))
}

/// The largest synthetic graph, and how the first plan grows from the smallest one on.
fn growth(rows: &[&Row]) -> Vec<Claim> {
    let (Some(small), Some(large)) =
        (rows.iter().min_by_key(|r| r.nodes), rows.iter().max_by_key(|r| r.nodes))
    else {
        return Vec::new();
    };
    let whole = (
        large.seconds <= LARGE.0 && large.highest <= LARGE.1,
        format!(
            "speed: {} nodes in {:.1} s and {} MiB, of at most {} s and {} MiB",
            large.nodes,
            large.seconds,
            large.highest >> 20,
            LARGE.0,
            LARGE.1 >> 20
        ),
    );
    let (Some(first), Some(last)) = (small.first, large.first) else {
        return vec![whole, (false, "speed: a synthetic graph has no first plan".into())];
    };
    let cost = |nodes: u64| nodes as f64 * (nodes as f64).ln();
    let allowed = cost(large.nodes) / cost(small.nodes);
    let text = format!(
        "speed: the first plan takes {first:.3} s for {} nodes and {last:.3} s for {}: {:.1} times \
         as long, of at most {allowed:.1} (n·log n)",
        small.nodes,
        large.nodes,
        last / first
    );
    vec![whole, (last / first <= allowed, text)]
}
