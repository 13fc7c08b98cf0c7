//! Every op's gradient, as autodiff and the kernels compute it, against central differences.
//!
//! Whoever includes this module says how a program runs, by `crate::set_up`.
//!
//! A case builds `y` from parameters. With a random `s`, `L = ⟨s, y⟩` is summed in `f64`; each
//! element of each parameter is moved by `±STEP`, and `(L₊ - L₋) / 2 STEP` must be the gradient
//! that the program computes for it.
//!
//! The tolerance: `y` is rounded to 24 bits, so `L` of a few hundred terms of size one is off by
//! about `10 · 2⁻²⁴`, and the quotient by `10 · 2⁻²⁴ / 2 STEP ≈ 4e-5`; the difference itself is off
//! by `STEP² / 6 · L‴ ≈ 1e-5 · L‴`. A wrong factor, index or sign is off by the size of the
//! gradient. Where a function has kinks, the values are chosen so that no step crosses one.

use rekindle_engine::Iteration;
use rekindle_program::op::{
    Axis, BatchNormState, Between, ConvOptions, CrossEntropy, GeluKind, HeadOperand, Heads, Map,
    Mask, Pair, PoolOptions, Position, Then, Transpose,
};
use rekindle_program::random::Stream;
use rekindle_program::{Builder, DType, Init, ProgramError, Var};

const STEP: f32 = 1.0 / 128.0;

/// Of the largest element of the gradient, or of one if that is larger.
const TOLERANCE: f64 = 1e-3;

/// Distance between any two values of [`Case::spaced`]: more than two steps.
const SPACING: f32 = 4.0 * STEP;

const CONTEXT: Iteration = Iteration { seed: 1, number: 1 };

/// A program under construction, and the values of its parameters.
struct Case {
    b: Builder,
    parameters: Vec<(Var, Vec<f32>)>,
}

impl Case {
    fn parameter(&mut self, shape: &[usize], value: impl Fn(Stream, u64) -> f64) -> Var {
        let number = self.parameters.len();
        let var = self.b.parameter(&format!("p{number}"), shape, Init::Zeros);
        let var = var.unwrap();
        let stream = Stream::new(number as u64);
        let values = (0..var.len() as u64).map(|i| value(stream, i) as f32);
        self.parameters.push((var.clone(), values.collect()));
        var
    }

    /// Smooth functions take any values.
    fn normal(&mut self, shape: &[usize]) -> Var {
        self.parameter(shape, |stream, i| stream.normal(i))
    }

    /// In random order, no two closer than [`SPACING`], none closer than half of it to zero.
    fn spaced(&mut self, shape: &[usize]) -> Var {
        let len: usize = shape.iter().product();
        let stream = Stream::new(99);
        let mut order: Vec<u64> = (0..len as u64).collect();
        order.sort_by(|&i, &j| stream.unit(i).total_cmp(&stream.unit(j)));
        self.parameter(shape, |_, i| {
            let place = order[i as usize] as f64 - (len / 2) as f64;
            f64::from(SPACING) * (place + 0.5)
        })
    }

    /// Around `±center`, so that a ReLU behind it is far from its kink. The period of the signs, 3,
    /// is no number of channels, so that every channel has both.
    fn away_from_zero(&mut self, shape: &[usize], center: f64) -> Var {
        self.parameter(shape, |stream, i| {
            let sign = if i % 3 == 0 { -1.0 } else { 1.0 };
            sign * center + 0.2 * stream.normal(i)
        })
    }

    fn ids(&mut self, name: &str, ids: &[i64]) -> Var {
        self.b.constant_ids(name, &[ids.len()], ids.to_vec()).unwrap()
    }
}

/// Builds a case and compares every gradient.
#[track_caller]
fn check(name: &str, build: impl FnOnce(&mut Case) -> Result<Var, ProgramError>) {
    let mut case = Case { b: Builder::new(name), parameters: vec![] };
    let y = build(&mut case).unwrap();
    let Case { mut b, parameters } = case;
    let init = Init::Normal { std: 1.0 };
    let seed = b.tangent("seed", y.shape(), init).unwrap();
    let gradients = b.vjp(&[(&y, &seed)]).unwrap();
    let mut program = b.finish(&[&y]).unwrap();
    program.outputs.extend(gradients.pairs().iter().map(|&(_, g)| g));

    let mut engine = crate::set_up(&program);
    for (var, values) in &parameters {
        engine.write_f32(var.tensor(), values).unwrap();
    }
    engine.run(CONTEXT).unwrap();
    let computed: Vec<Vec<f32>> = parameters
        .iter()
        .map(|(var, _)| {
            let gradient = gradients.of(var).expect("every parameter has influence");
            engine.read_f32(gradient).unwrap().to_vec()
        })
        .collect();
    for ((var, values), computed) in parameters.iter().zip(computed) {
        let largest = computed.iter().fold(1.0, |max: f64, &g| max.max(f64::from(g.abs())));
        for (i, &gradient) in computed.iter().enumerate() {
            let mut moved = |by: f32| {
                let mut values = values.clone();
                values[i] += by;
                engine.write_f32(var.tensor(), &values).unwrap();
                engine.run(CONTEXT).unwrap();
                let y = engine.read_f32(y.tensor()).unwrap();
                let seed = engine.read_f32(seed.tensor()).unwrap();
                let terms = y.iter().zip(seed.iter()).map(|(&y, &s)| f64::from(y) * f64::from(s));
                terms.sum::<f64>()
            };
            let difference = (moved(STEP) - moved(-STEP)) / (2.0 * f64::from(STEP));
            let off = (difference - f64::from(gradient)).abs();
            assert!(
                off <= TOLERANCE * largest,
                "{name}: parameter {} at {i}: {gradient}, but the difference is {difference}",
                program.tensor(var.tensor()).name,
            );
        }
        engine.write_f32(var.tensor(), values).unwrap();
    }
}

#[test]
fn convolution() {
    let options =
        [([1, 1], [1, 1], 1), ([2, 2], [1, 1], 1), ([2, 1], [0, 2], 2), ([3, 2], [2, 1], 4)];
    for (stride, padding, groups) in options {
        check(&format!("conv {stride:?} {padding:?} {groups}"), |case| {
            let x = case.normal(&[2, 6, 5, 4]);
            let w = case.normal(&[3, 2, 4 / groups, 8]);
            let bias = case.normal(&[8]);
            let options = ConvOptions { stride, padding, groups, ..ConvOptions::default() };
            case.b.conv("y", &x, &w, Some(&bias), options)
        });
    }
}

#[test]
fn convolution_with_taps_apart_and_a_channel_to_a_group() {
    for (groups, dilation, stride, extra) in
        [(1, [2, 1], [1, 1], [0, 1]), (2, [1, 2], [2, 1], [1, 0]), (6, [2, 2], [1, 2], [0, 0])]
    {
        check(&format!("conv {groups} {dilation:?}"), |case| {
            let x = case.normal(&[2, 6, 5, 6]);
            let w = case.normal(&[2, 2, 6 / groups, 6]);
            let padding = [1, 1];
            let options = ConvOptions { stride, padding, extra, dilation, groups };
            case.b.conv("y", &x, &w, None, options)
        });
    }
}

#[test]
fn transposed_convolution() {
    for (groups, size, padding) in [(1, [5, 7], [1, 0]), (2, [6, 6], [1, 1])] {
        check(&format!("transposed {groups}"), |case| {
            let x = case.normal(&[2, 3, 3, 4]);
            let w = case.normal(&[3, 3, 6 / groups, 4]);
            let options = ConvOptions { stride: [2, 2], padding, groups, ..Default::default() };
            case.b.conv_transposed("y", &x, &w, size, options)
        });
    }
}

#[test]
fn point_convolution_with_stride() {
    check("1×1", |case| {
        let x = case.normal(&[2, 5, 4, 3]);
        let w = case.normal(&[1, 1, 3, 5]);
        let options = ConvOptions { stride: [2, 2], ..ConvOptions::default() };
        case.b.conv("y", &x, &w, None, options)
    });
}

#[test]
fn pooling() {
    let options = PoolOptions { kernel: [3, 2], stride: [2, 1], padding: [1, 1], extra: [0; 2] };
    check("max", |case| {
        let x = case.spaced(&[2, 5, 4, 3]);
        case.b.max_pool("y", &x, options)
    });
    check("average", |case| {
        let x = case.normal(&[2, 5, 4, 3]);
        case.b.avg_pool("y", &x, options)
    });
}

#[test]
fn products() {
    check("linear", |case| {
        let x = case.normal(&[2, 3, 4]);
        let w = case.normal(&[5, 4]);
        let bias = case.normal(&[5]);
        case.b.linear("y", &x, &w, Some(&bias))
    });
    for a in [false, true] {
        for b in [false, true] {
            check(&format!("matmul {a} {b}"), |case| {
                let stored = |p, q, transposed: bool| if transposed { [q, p] } else { [p, q] };
                let left = case.normal(&stored(4, 3, a));
                let right = case.normal(&stored(3, 5, b));
                let bias = case.normal(&[5]);
                let transpose = Transpose { a, b };
                case.b.matmul("y", &left, &right, Some(&bias), transpose)
            });
        }
    }
}

#[test]
fn products_of_heads() {
    let layouts = [Heads::Outer, Heads::Interleaved];
    let stored = |heads, rows, cols, transposed| {
        let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
        match heads {
            Heads::Outer => [2, 3, rows, cols],
            Heads::Interleaved => [2, rows, 3, cols],
        }
    };
    for choice in 0..32 {
        let bit = |k: usize| choice >> k & 1 == 1;
        let layout = |k: usize| layouts[choice >> k & 1];
        check(&format!("heads {choice:05b}"), |case| {
            let a = case.normal(&stored(layout(0), 4, 2, bit(3)));
            let b = case.normal(&stored(layout(1), 2, 5, bit(4)));
            let operand =
                |var, k: usize| HeadOperand { var, heads: layout(k), transposed: bit(k + 3) };
            let (a, b) = (operand(&a, 0), operand(&b, 1));
            case.b.head_matmul("y", a, b, layout(2), 0.7)
        });
    }
}

fn batch_norm_state(case: &mut Case, channels: usize) -> BatchNormState {
    let gamma = case.parameter(&[channels], |stream, i| 1.0 + 0.3 * stream.unit(i));
    let beta = case.parameter(&[channels], |stream, i| 0.2 * stream.unit(i));
    let b = &mut case.b;
    let mut buffer = |name, init| b.buffer(name, &[channels], DType::F32, init).unwrap();
    let (running_mean, running_var) = (buffer("mean", Init::Zeros), buffer("var", Init::Ones));
    BatchNormState {
        gamma,
        beta,
        running_mean,
        running_var,
        batches: b.buffer("batches", &[], DType::I64, Init::Zeros).unwrap(),
        eps: 1e-5,
        momentum: 0.1,
    }
}

#[test]
fn batch_norm() {
    check("plain", |case| {
        let x = case.normal(&[2, 3, 2, 5]);
        let state = batch_norm_state(case, 5);
        case.b.batch_norm("y", &x, &state, Then::Nothing)
    });
    check("with ReLU", |case| {
        let x = case.away_from_zero(&[2, 3, 2, 5], 1.0);
        let state = batch_norm_state(case, 5);
        case.b.batch_norm("y", &x, &state, Then::Relu)
    });
    check("with addition and ReLU", |case| {
        let x = case.normal(&[2, 3, 2, 5]);
        let residual = case.away_from_zero(&[2, 3, 2, 5], 6.0);
        let state = batch_norm_state(case, 5);
        case.b.batch_norm("y", &x, &state, Then::AddRelu(&residual))
    });
}

/// Two readers of a batch-norm's result: its backward kernel adds their gradients itself.
#[test]
fn batch_norm_with_two_gradients() {
    for relu in [false, true] {
        check(&format!("two gradients {relu}"), |case| {
            let x = case.away_from_zero(&[8, 4], 1.0);
            let state = batch_norm_state(case, 4);
            let then = if relu { Then::Relu } else { Then::Nothing };
            let y = case.b.batch_norm("bn", &x, &state, then)?;
            let (p, q) = (case.b.scale("p", &y, 2.0)?, case.b.gelu("q", &y, GeluKind::Erf)?);
            case.b.add("y", &p, &q)
        });
    }
}

#[test]
fn layer_norm() {
    check("layer-norm", |case| {
        let x = case.normal(&[4, 7]);
        let gamma = case.normal(&[7]);
        let beta = case.normal(&[7]);
        case.b.layer_norm("y", &x, &gamma, &beta, 1e-5)
    });
}

#[test]
fn norms_of_groups_and_by_mean_squares() {
    for groups in [1, 2, 6] {
        check(&format!("group-norm {groups}"), |case| {
            let x = case.normal(&[2, 3, 2, 6]);
            let (gamma, beta) = (case.normal(&[6]), case.normal(&[6]));
            case.b.group_norm("y", &x, [&gamma, &beta], groups, 1e-5)
        });
    }
    check("RMS norm", |case| {
        let x = case.normal(&[4, 7]);
        let gamma = case.normal(&[7]);
        case.b.rms_norm("y", &x, &gamma, 1e-5)
    });
}

#[test]
fn functions_of_one_number() {
    let smooth = [
        Map::Sigmoid,
        Map::Tanh,
        Map::Silu,
        Map::Softplus,
        Map::Exp,
        Map::Erf,
        Map::Sin,
        Map::Cos,
        Map::Power { exponent: 3.0 },
        Map::Shift { by: 0.5 },
    ];
    for map in smooth {
        check(&format!("{map:?}"), |case| {
            let x = case.parameter(&[23], |stream, i| 0.7 * stream.normal(i));
            case.b.unary("y", &x, map)
        });
    }
    let kinked = [
        Map::HardSigmoid { slope: 0.5, shift: 0.5 },
        Map::HardSwish,
        Map::LeakyRelu { slope: 0.1 },
        Map::Elu { alpha: 1.3 },
        Map::Clip { low: 0.0, high: 0.5 },
        Map::Abs,
    ];
    for map in kinked {
        check(&format!("{map:?}"), |case| {
            let x = case.spaced(&[36]);
            case.b.unary("y", &x, map)
        });
    }
    let positive = [Map::Log, Map::Sqrt, Map::Reciprocal, Map::Power { exponent: -0.5 }];
    for map in positive {
        check(&format!("{map:?}"), |case| {
            let x = case.parameter(&[23], |stream, i| 1.0 + stream.unit(i));
            case.b.unary("y", &x, map)
        });
    }
}

#[test]
fn functions_of_two_numbers() {
    for (a, b) in [
        (&[2, 3, 4][..], &[2, 3, 4][..]),
        (&[2, 3, 4], &[4]),
        (&[2, 1, 4], &[3, 1]),
        (&[1], &[2, 3]),
        (&[2, 3, 2, 3], &[2, 1, 2, 1]),
    ] {
        for pair in [Pair::Add, Pair::Sub, Pair::Mul, Pair::Div] {
            check(&format!("{pair:?} {a:?} {b:?}"), |case| {
                let a = case.normal(a);
                let b = case.parameter(b, |stream, i| 1.0 + stream.unit(i));
                case.b.binary("y", pair, &a, &b)
            });
        }
        check(&format!("kept {a:?} {b:?}"), |case| {
            let a = case.normal(a);
            let len = b.iter().product();
            let mask = (0..len).map(|i| f32::from(i % 2 == 0)).collect();
            let mask = case.b.constant("mask", b, mask)?;
            case.b.binary("y", Pair::Keep, &a, &mask)
        });
    }
}

#[test]
fn reductions() {
    for axes in [&[0][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
        check(&format!("mean {axes:?}"), |case| {
            let x = case.normal(&[3, 4, 5]);
            case.b.mean("y", &x, axes)
        });
        check(&format!("max {axes:?}"), |case| {
            let x = case.spaced(&[3, 4, 5]);
            case.b.max("y", &x, axes)
        });
    }
}

#[test]
fn windows() {
    let (whole, repeated, window) = (Axis::whole, Axis::repeated, Axis::window);
    for axes in [
        [window(3, 1, 2), whole(4), whole(1)],
        [whole(3), window(4, -2, 7), repeated(3)],
        [Axis { step: 2, ..window(3, 0, 2) }, Axis { step: -1, ..window(4, 3, 4) }, whole(1)],
        [whole(3), whole(4), repeated(5)],
    ] {
        check(&format!("{axes:?}"), |case| {
            let x = case.normal(&[3, 4, 1]);
            case.b.view("y", &x, &axes, 0.5)
        });
    }
}

#[test]
fn resizing() {
    for between in [Between::Nearest, Between::Linear] {
        for position in [Position::HalfPixel, Position::Asymmetric, Position::AlignCorners] {
            check(&format!("{between:?} {position:?}"), |case| {
                let x = case.normal(&[2, 3, 4, 2]);
                case.b.resize("y", &x, [5, 7], between, position)
            });
        }
    }
}

#[test]
fn joins_and_general_orders() {
    check("join and split", |case| {
        let (x, z) = (case.normal(&[2, 3, 2]), case.normal(&[2, 1, 2]));
        let joined = case.b.join("joined", &[&x, &z, &x], 1)?;
        let parts = case.b.split_at("parts", &joined, 1, &[2, 4, 1])?;
        case.b.join("y", &[&parts[1], &parts[0]], 1)
    });
    for order in [[0, 1, 4, 2, 3], [4, 2, 0, 3, 1], [2, 3, 4, 0, 1]] {
        check(&format!("transpose {order:?}"), |case| {
            let x = case.normal(&[2, 3, 2, 1, 3]);
            case.b.transpose("y", &x, &order)
        });
    }
}

#[test]
fn maps() {
    check("relu", |case| {
        let x = case.spaced(&[37]);
        case.b.relu("y", &x)
    });
    for kind in [GeluKind::Erf, GeluKind::Tanh] {
        check(&format!("{kind:?}"), |case| {
            let x = case.normal(&[37]);
            case.b.gelu("y", &x, kind)
        });
    }
    check("scale", |case| {
        let x = case.normal(&[37]);
        case.b.scale("y", &x, -1.5)
    });
    check("dropout", |case| {
        let x = case.normal(&[67]);
        case.b.dropout("y", &x, 0.4)
    });
    check("x + x", |case| {
        let x = case.normal(&[37]);
        case.b.add("y", &x, &x)
    });
}

#[test]
fn softmax() {
    for mask in [Mask::Full, Mask::Causal] {
        check(&format!("{mask:?}"), |case| {
            let x = case.normal(&[2, 2, 5, 5]);
            case.b.softmax("y", &x, mask)
        });
    }
}

#[test]
fn cross_entropy() {
    check("cross-entropy", |case| {
        let logits = case.normal(&[5, 7]);
        let labels = case.ids("labels", &[3, 0, CrossEntropy::IGNORE, 6, 3]);
        case.b.cross_entropy("y", &logits, &labels)
    });
}

#[test]
fn embedding() {
    check("embedding", |case| {
        let table = case.normal(&[6, 3]);
        let ids = case.ids("ids", &[5, 0, 2, 5, 5]);
        case.b.embedding("y", &ids, &table)
    });
    check("tied", |case| {
        let table = case.normal(&[6, 3]);
        let ids = case.ids("ids", &[5, 0, 2, 5]);
        let x = case.b.embedding("x", &ids, &table)?;
        case.b.linear("y", &x, &table, None)
    });
}

#[test]
fn moves() {
    for order in [[0, 2, 1, 3], [3, 1, 0, 2], [1, 2, 3, 0]] {
        check(&format!("permute {order:?}"), |case| {
            let x = case.normal(&[2, 3, 4, 5]);
            case.b.permute("y", &x, order)
        });
    }
    check("split and concat", |case| {
        let x = case.normal(&[4, 6]);
        let parts = case.b.split("parts", &x, 3)?;
        let mapped = case.b.gelu("mapped", &parts[2], GeluKind::Erf)?;
        case.b.concat("y", &[&mapped, &parts[0], &mapped])
    });
}

/// Attention as the models write it, with every op between two linear maps.
#[test]
fn attention() {
    check("attention", |case| {
        let x = case.normal(&[2, 4, 6]);
        let w = case.parameter(&[18, 6], |stream, i| 0.4 * stream.normal(i));
        let projected = case.b.linear("projected", &x, &w, None)?;
        let parts = case.b.split("parts", &projected, 3)?;
        let by_head = |b: &Builder, x: &Var| b.reshape(x, &[2, 4, 2, 3]);
        let [q, k, v] = [0, 1, 2].map(|i| by_head(&case.b, &parts[i]).unwrap());
        let operand = |var, transposed| HeadOperand { var, heads: Heads::Interleaved, transposed };
        let (q, k) = (operand(&q, false), operand(&k, true));
        let scores = case.b.head_matmul("scores", q, k, Heads::Outer, 0.6)?;
        let weights = case.b.softmax("weights", &scores, Mask::Causal)?;
        let dropped = case.b.dropout("dropped", &weights, 0.2)?;
        let weights = HeadOperand { var: &dropped, heads: Heads::Outer, transposed: false };
        let v = operand(&v, false);
        case.b.head_matmul("context", weights, v, Heads::Interleaved, 1.0)
    });
}
