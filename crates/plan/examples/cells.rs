//! What the search finds, cell by cell, as CSV: a graph, a budget and an effort give a row.
//!
//! `cells [--budgets LIST] [--efforts LIST] [--store STORE]… GRAPH.json…`. A budget is a share of
//! the plain peak (`50%`) or a multiple of the smallest peak that the search reaches at the default
//! effort (`1.05x`), or bytes. Each cell is planned without a store, and with each that is given.
//! Times are in percent of the plain step's, counted from it; work is counted, so the table is the
//! same on every machine.

use std::process::ExitCode;

use rekindle_graph::{Bytes, Graph, Store, Timeline, parse_store, read_graph};
use rekindle_plan::{Effort, NoWatch, Options, PlanError, Strategy, floor, plan, smallest};

const HEAD: &str = "graph,nodes,budget,budget_bytes,floor_bytes,effort,peak_bytes,\
                    overhead_percent,bound_percent,recomputed_percent,moved_out_bytes,store";

fn main() -> ExitCode {
    let mut budgets: Vec<String> = ["1x", "1.05x", "1.1x", "1.25x"].map(String::from).into();
    let mut efforts = vec![Effort::DEFAULT];
    let mut stores: Vec<Option<Store>> = vec![None];
    let mut paths = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let list = |text: Option<String>| -> Vec<String> {
            text.unwrap_or_default().split(',').map(String::from).collect()
        };
        match word.as_str() {
            "--budgets" => budgets = list(words.next()),
            "--efforts" => {
                let levels = list(words.next());
                let levels = levels.iter().filter_map(|l| l.parse().ok());
                efforts = levels.filter_map(Effort::new).collect();
            }
            "--store" => match parse_store(&words.next().unwrap_or_default()) {
                Ok(store) => stores.push(Some(store)),
                Err(error) => {
                    eprintln!("--store {error}");
                    return ExitCode::FAILURE;
                }
            },
            _ => paths.push(word),
        }
    }
    println!("{HEAD}");
    for path in &paths {
        match read_graph(path.as_ref()) {
            Ok(graph) => rows(&graph, &budgets, &efforts, &stores),
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn rows(graph: &Graph, budgets: &[String], efforts: &[Effort], stores: &[Option<Store>]) {
    let natural = Timeline::natural(graph);
    let default = Options::default();
    let is_multiple = budgets.iter().any(|b| b.ends_with('x'));
    let lowest = is_multiple.then(|| match smallest(graph, &default, &mut NoWatch) {
        Ok(planned) => planned.plan.peak,
        Err(_) => natural.peak,
    });
    for budget in budgets {
        let Some(bytes) = bytes(budget, natural.peak, lowest) else {
            eprintln!("{budget}: neither a share, a multiple nor bytes");
            continue;
        };
        for (&effort, &store) in efforts.iter().flat_map(|e| stores.iter().map(move |s| (e, s))) {
            let options = Options { strategy: Strategy::SEARCH, effort, store };
            let found = match plan(graph, bytes, &options, &mut NoWatch) {
                Ok(planned) => {
                    let percent = |time: f64| 100.0 * (time / natural.time.get() - 1.0);
                    let replayed = Timeline::new(graph, &planned.plan.schedule);
                    let (compute, moved_out) =
                        replayed.map_or((f64::NAN, 0), |t| (t.compute.get(), t.moved_out.get()));
                    format!(
                        "{},{:.3},{:.3},{:.3},{moved_out}",
                        planned.plan.peak.get(),
                        percent(planned.plan.time.get()),
                        percent(planned.lower_bound.get()),
                        percent(compute),
                    )
                }
                Err(PlanError::Infeasible(refusal)) => {
                    format!("{},,,,", refusal.smallest_known.get())
                }
                Err(error) => format!(",,{error},,"),
            };
            println!(
                "{},{},{budget},{},{},{},{found},\"{}\"",
                graph.name(),
                graph.nodes().len(),
                bytes.get(),
                floor(graph).bytes.get(),
                effort.level(),
                store.map_or(String::new(), |store| store.to_string())
            );
        }
    }
}

/// What a budget means.
fn bytes(budget: &str, plain: Bytes, lowest: Option<Bytes>) -> Option<Bytes> {
    if let Some(share) = budget.strip_suffix('%') {
        return Some(Bytes(plain.get() / 100 * share.parse::<u64>().ok()?));
    }
    if let Ok(bytes) = budget.parse() {
        return Some(Bytes(bytes));
    }
    let times: f64 = budget.strip_suffix('x')?.parse().ok()?;
    Some(Bytes((lowest?.get() as f64 * times).ceil() as u64))
}
