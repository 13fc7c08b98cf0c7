//! Times the matrix products and convolutions of ResNet-152 (224 × 224) and BERT-base (128 tokens).
//!
//! `cargo run --release -p rekindle-engine --example kernel_bench -- [threads] [batch] [filter]`
//!
//! One line per shape and kernel whose name contains the filter: the name, how often a training
//! step runs it, milliseconds (the least of several runs) and GFLOP/s; at the end the weighted
//! sums.

use std::time::Instant;

use rekindle_engine::{Threads, kernels};
use rekindle_program::op::{Conv, HeadMatmul, Heads, Matmul, Op, Window};

/// Size of the image, window, stride, channels in and out, how many there are.
const RESNET_152: &[[usize; 6]] = &[
    [224, 7, 2, 3, 64, 1],
    [56, 1, 1, 64, 64, 1],
    [56, 3, 1, 64, 64, 3],
    [56, 1, 1, 64, 256, 4],
    [56, 1, 1, 256, 64, 2],
    [56, 1, 1, 256, 128, 1],
    [56, 3, 2, 128, 128, 1],
    [56, 1, 2, 256, 512, 1],
    [28, 1, 1, 128, 512, 8],
    [28, 1, 1, 512, 128, 7],
    [28, 3, 1, 128, 128, 7],
    [28, 1, 1, 512, 256, 1],
    [28, 3, 2, 256, 256, 1],
    [28, 1, 2, 512, 1024, 1],
    [14, 1, 1, 256, 1024, 36],
    [14, 1, 1, 1024, 256, 35],
    [14, 3, 1, 256, 256, 35],
    [14, 1, 1, 1024, 512, 1],
    [14, 3, 2, 512, 512, 1],
    [14, 1, 2, 1024, 2048, 1],
    [7, 1, 1, 512, 2048, 3],
    [7, 1, 1, 2048, 512, 2],
    [7, 3, 1, 512, 512, 2],
];

/// Inputs and outputs of a linear layer, how many there are.
const BERT_BASE: &[[usize; 3]] = &[
    [768, 768, 48],
    [768, 3072, 12],
    [3072, 768, 12],
    [768, 30522, 1],
];

const TOKENS: usize = 128;
const HEADS: usize = 12;
const LAYERS: usize = 12;

/// Seconds spent on one kernel, at least, and runs of it, at least.
const PATIENCE: f64 = 0.15;
const RUNS: usize = 3;

struct Bench {
    threads: Threads,
    filter: String,
    /// Name of the sum, its milliseconds.
    sums: Vec<(String, f64)>,
}

impl Bench {
    fn time(
        &mut self,
        group: &str,
        name: &str,
        count: usize,
        op: Op,
        mut run: impl FnMut(&Threads),
    ) {
        if !name.contains(&self.filter) {
            return;
        }
        let begin = Instant::now();
        let mut least = f64::INFINITY;
        for runs in 0.. {
            let start = Instant::now();
            run(&self.threads);
            least = least.min(start.elapsed().as_secs_f64());
            if runs > RUNS && begin.elapsed().as_secs_f64() > PATIENCE {
                break;
            }
        }
        let gflops = op.flops() as f64 / least / 1e9;
        println!("{name},{count},{:.4},{gflops:.1}", least * 1e3);
        match self.sums.iter_mut().find(|(sum, _)| sum == group) {
            Some((_, sum)) => *sum += least * 1e3 * count as f64,
            None => self.sums.push((group.into(), least * 1e3 * count as f64)),
        }
    }

    fn conv(&mut self, batch: usize, &[size, window, stride, ci, co, count]: &[usize; 6]) {
        let dims = Conv {
            window: Window {
                batch,
                height: size,
                width: size,
                kernel: [window; 2],
                stride: [stride; 2],
                padding: [window / 2; 2],
            },
            in_channels: ci,
            out_channels: co,
            groups: 1,
            bias: false,
        };
        let name = |kind: &str| format!("{kind} {window}x{window}/{stride} {ci}->{co} @{size}");
        let count_of = self.threads.count();
        let mut x = data(dims.window.in_pixels() * ci);
        let mut w = data(window * window * ci * co);
        let mut y = data(dims.window.out_pixels() * co);
        let mut scratch = data(kernels::conv_scratch(&dims, count_of));
        self.time("conv", &name("conv"), count, Op::Conv(dims), |threads| {
            kernels::conv(&dims, &x, &w, None, &mut y, &mut scratch, threads);
        });
        let mut scratch = data(kernels::conv_dx_scratch(&dims, count_of));
        if ci > 3 {
            self.time("conv_dx", &name("dx"), count, Op::ConvDx(dims), |threads| {
                kernels::conv_dx(&dims, &y, &w, &mut x, &mut scratch, threads);
            });
        }
        let mut scratch = data(kernels::conv_dw_scratch(&dims, count_of));
        self.time("conv_dw", &name("dw"), count, Op::ConvDw(dims), |threads| {
            kernels::conv_dw(&dims, &x, &y, &mut w, &mut scratch, threads);
        });
    }

    fn linear(&mut self, tokens: usize, &[inputs, outputs, count]: &[usize; 3]) {
        let products = [
            ("linear", tokens, outputs, inputs, false, true),
            ("linear_dx", tokens, inputs, outputs, false, false),
            ("linear_dw", outputs, inputs, tokens, true, false),
        ];
        for (kind, m, n, k, transpose_a, transpose_b) in products {
            let dims = Matmul {
                m,
                n,
                k,
                transpose_a,
                transpose_b,
                bias: false,
            };
            let (a, b, mut c) = (data(m * k), data(k * n), data(m * n));
            let mut scratch = data(kernels::matmul_scratch(&dims, self.threads.count()));
            let name = format!("{kind} {inputs}->{outputs}");
            self.time(kind, &name, count, Op::Matmul(dims), |threads| {
                kernels::matmul(&dims, &a, &b, None, &mut c, &mut scratch, threads);
            });
        }
    }

    fn attention(&mut self, batch: usize) {
        use Heads::{Interleaved, Outer};
        let (t, d) = (TOKENS, 64);
        let products = [
            (
                "scores",
                t,
                t,
                d,
                Interleaved,
                Interleaved,
                Outer,
                false,
                true,
            ),
            (
                "values",
                t,
                d,
                t,
                Outer,
                Interleaved,
                Interleaved,
                false,
                false,
            ),
            (
                "values_dx",
                t,
                t,
                d,
                Interleaved,
                Interleaved,
                Outer,
                false,
                true,
            ),
            (
                "values_dw",
                t,
                d,
                t,
                Outer,
                Interleaved,
                Interleaved,
                true,
                false,
            ),
            (
                "scores_dq",
                t,
                d,
                t,
                Outer,
                Interleaved,
                Interleaved,
                false,
                false,
            ),
            (
                "scores_dk",
                t,
                d,
                t,
                Outer,
                Interleaved,
                Interleaved,
                true,
                false,
            ),
        ];
        for (kind, m, n, k, a, b, c, transpose_a, transpose_b) in products {
            let (heads, alpha) = (HEADS, 0.125);
            let dims = HeadMatmul {
                batch,
                heads,
                m,
                n,
                k,
                a,
                b,
                c,
                transpose_a,
                transpose_b,
                alpha,
            };
            let all = batch * heads;
            let (a, b, mut c) = (data(all * m * k), data(all * k * n), data(all * m * n));
            let mut scratch = data(kernels::head_matmul_scratch(&dims, self.threads.count()));
            let name = format!("attention {kind}");
            self.time(
                "attention",
                &name,
                LAYERS,
                Op::HeadMatmul(dims),
                |threads| {
                    kernels::head_matmul(&dims, &a, &b, &mut c, &mut scratch, threads);
                },
            );
        }
    }
}

fn data(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5)
        .collect()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or| args.get(i).and_then(|arg| arg.parse().ok()).unwrap_or(or);
    let (threads, batch) = (number(0, 1), number(1, 4));
    let mut bench = Bench {
        threads: Threads::new(threads),
        filter: args.get(2).cloned().unwrap_or_default(),
        sums: Vec::new(),
    };
    println!("name,count,ms,gflops");
    for shape in RESNET_152 {
        bench.conv(batch, shape);
    }
    for shape in BERT_BASE {
        bench.linear(2 * batch * TOKENS, shape);
    }
    bench.attention(2 * batch);
    for (name, sum) in &bench.sums {
        println!("sum {name},1,{sum:.1},");
    }
}
