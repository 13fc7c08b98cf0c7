//! Every op's gradient once more, in the smallest memory that a plan reaches for it.

#[path = "../../engine/tests/gradients/cases.rs"]
mod cases;

use rekindle::estimate;
use rekindle_engine::{Engine, Iteration, Layout, lower};
use rekindle_plan::{NoWatch, Options, Planned, smallest};
use rekindle_program::op::GeluKind;
use rekindle_program::{Builder, Init, Program};
use rekindle_rewrite::rewrite;

/// The plan of the lowest peak.
fn tightest(program: &Program) -> Planned {
    let graph = estimate(&lower(program, 1));
    smallest(&graph, &Options::default(), &mut NoWatch).unwrap()
}

fn set_up(program: &Program) -> Engine {
    let planned = tightest(program);
    let rewritten = rewrite(&lower(program, 1), &planned.plan).unwrap();
    let layout = Layout::new(program, rewritten.graph.clone(), rewritten.origins(), 1).unwrap();
    let engine = Engine::with_layout(layout, 0, &mut |_, _| {}).unwrap();
    assert_eq!(engine.predicted().live, planned.plan.peak);
    engine
}

/// A chain has more to drop than one op: here the tightest plan must run nodes again, and give the
/// plain step's bits.
#[test]
fn a_chain_is_recomputed_and_gives_the_same_bits() {
    let mut b = Builder::new("chain");
    let start = b.parameter("start", &[64, 8], Init::Normal { std: 1.0 });
    let mut x = start.unwrap();
    for i in 0..6 {
        x = b.gelu(&format!("gelu{i}"), &x, GeluKind::Erf).unwrap();
    }
    let seed = b.tangent("seed", x.shape(), Init::Normal { std: 1.0 });
    let gradients = b.vjp(&[(&x, &seed.unwrap())]).unwrap();
    let gradient = gradients.pairs()[0].1;
    let mut program = b.finish(&[&x]).unwrap();
    program.outputs.push(gradient);

    assert!(tightest(&program).stats.recomputed > 0);
    let bits = |mut engine: Engine| {
        engine.run(Iteration { seed: 1, number: 1 }).unwrap();
        let values = engine.read_f32(gradient).unwrap();
        values.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(bits(set_up(&program)), bits(Engine::new(&program, 1).unwrap()));
}
