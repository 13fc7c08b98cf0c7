//! Times the kernels that memory bounds, at the shapes of ResNet-152 (batch 4, 224²) and BERT-base
//! (8 × 128 tokens).
//!
//! `cargo run --release -p rekindle-engine --example memory_bound_bench [threads] [name part]`
//! prints the smallest time of each case in microseconds, tab-separated.

use rekindle_engine::Threads;
use rekindle_engine::kernels::*;
use rekindle_program::op::*;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// Runs of each case after the first, whose smallest time counts.
const RUNS: usize = 15;

struct Bench {
    threads: Threads,
    filter: String,
}

impl Bench {
    fn case(&self, name: &str, mut run: impl FnMut(&Threads)) {
        if !name.contains(&self.filter) {
            return;
        }
        run(&self.threads);
        let time = |_| {
            let start = Instant::now();
            run(&self.threads);
            start.elapsed().as_secs_f64() * 1e6
        };
        let best = (0..RUNS).map(time).fold(f64::INFINITY, f64::min);
        println!("{name}\t{}\t{best:.1}", self.threads.count());
    }
}

/// Memory that starts at a cache line, as the engine's arena gives it.
struct Aligned {
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

impl Deref for Aligned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// `len` numbers between -1 and 1.
fn data(len: usize) -> Aligned {
    let value = |i: usize| (i.wrapping_mul(2_654_435_761) >> 8 & 0xFFFF) as f32 / 32768.0 - 1.0;
    let memory: Vec<f32> = (0..len + 16).map(value).collect();
    let start = memory.as_ptr().align_offset(64);
    Aligned { memory, start, len }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map_or(1, |count| {
        count.parse().expect("the number of threads is a number")
    });
    let bench = Bench {
        threads: Threads::new(threads),
        filter: arguments.next().unwrap_or_default(),
    };
    for (rows, channels) in [
        (50176, 64),
        (12544, 256),
        (12544, 64),
        (3136, 512),
        (784, 1024),
        (196, 2048),
    ] {
        batch_norms(&bench, rows, channels);
    }
    pools(&bench);
    elementwise(&bench);
    rows(&bench);
    vocabulary(&bench);
    optimizers(&bench);
}

fn batch_norms(bench: &Bench, rows: usize, channels: usize) {
    let len = rows * channels;
    let (x, dy, residual) = (data(len), data(len), data(len));
    let (gamma, beta) = (data(channels), data(channels));
    let (mut stats, mut y) = (data(2 * channels), data(len));
    let (mut dx, mut dresidual) = (data(len), data(len));
    let (mut dgamma, mut dbeta) = (data(channels), data(channels));
    for tail in [Tail::Linear, Tail::Relu, Tail::AddRelu] {
        let dims = BatchNorm {
            rows,
            channels,
            eps: 1e-5,
            tail,
        };
        let add = tail == Tail::AddRelu;
        let size = batch_norm_stats_scratch(&dims).max(batch_norm_scratch(&dims));
        let mut scratch = data(size.max(batch_norm_dx_scratch(&dims)));
        if tail == Tail::Linear {
            bench.case(&format!("bn stats {rows}x{channels}"), |threads| {
                batch_norm_stats(&dims, &x, &mut stats, &mut scratch, threads);
            });
        }
        bench.case(
            &format!("bn {tail:?} forward {rows}x{channels}"),
            |threads| {
                batch_norm_stats(&dims, &x, &mut stats, &mut scratch, threads);
                let residual = add.then_some(&residual[..]);
                batch_norm(
                    &dims,
                    &x,
                    &stats,
                    &gamma,
                    &beta,
                    residual,
                    &mut y,
                    &mut scratch,
                    threads,
                );
            },
        );
        bench.case(
            &format!("bn {tail:?} backward {rows}x{channels}"),
            |threads| {
                let reads = BatchNormDxReads {
                    x: &x,
                    stats: &stats,
                    gamma: &gamma,
                    beta: (tail == Tail::Relu).then_some(&beta),
                    y: add.then_some(&y),
                    dy: &dy,
                    dy2: None,
                };
                let writes = BatchNormDxWrites {
                    dx: &mut dx,
                    dgamma: &mut dgamma,
                    dbeta: &mut dbeta,
                    dresidual: add.then_some(&mut dresidual),
                };
                batch_norm_dx(&dims, &reads, writes, &mut scratch, threads);
            },
        );
    }
}

fn pools(bench: &Bench) {
    let pooling = |size: usize, kernel: usize, stride, padding: usize, channels| Pooling {
        window: Window {
            batch: 4,
            height: size,
            width: size,
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [padding; 2],
        },
        channels,
    };
    let dims = pooling(112, 3, 2, 1, 64);
    let (inputs, outputs) = (dims.window.in_pixels() * 64, dims.window.out_pixels() * 64);
    let (x, dy, mut y) = (data(inputs), data(outputs), data(outputs));
    let (mut index, mut dx) = (vec![0; outputs], data(inputs));
    bench.case("max pool forward", |threads| {
        max_pool(&dims, &x, &mut y, &mut index, threads)
    });
    bench.case("max pool backward", |threads| {
        max_pool_dx(&dims, &dy, &index, &mut dx, threads)
    });
    let dims = pooling(7, 7, 1, 0, 2048);
    let (inputs, outputs) = (4 * 49 * 2048, 4 * 2048);
    bench.case("avg pool forward", |threads| {
        avg_pool(&dims, &x[..inputs], &mut y[..outputs], threads)
    });
    bench.case("avg pool backward", |threads| {
        avg_pool_dx(&dims, &dy[..outputs], &mut dx[..inputs], threads)
    });
}

fn elementwise(bench: &Bench) {
    let len = 1024 * 3072;
    let (x, dy, mut y) = (data(len), data(len), data(len));
    bench.case("relu forward", |threads| relu(&x, &mut y, threads));
    bench.case("relu backward", |threads| relu_dx(&x, &dy, &mut y, threads));
    bench.case("add", |threads| add(&x, &dy, &mut y, threads));
    bench.case("scale", |threads| scale(0.5, &x, &mut y, threads));
    for kind in [Gelu::Erf, Gelu::Tanh] {
        bench.case(&format!("gelu {kind:?} forward"), |threads| {
            gelu(kind, &x, &mut y, threads)
        });
        bench.case(&format!("gelu {kind:?} backward"), |threads| {
            gelu_dx(kind, &x, &dy, &mut y, threads)
        });
    }
    let dims = Dropout {
        len,
        p: 0.1,
        site: 3,
    };
    bench.case("dropout", |threads| {
        dropout(&dims, 1, 2, &x, &mut y, threads)
    });
    let image = Permute {
        shape: [4, 3, 224, 224],
        order: [0, 2, 3, 1],
    };
    let pixels = 4 * 3 * 224 * 224;
    bench.case("permute nchw to nhwc", |threads| {
        permute(&image, &x[..pixels], &mut y[..pixels], threads)
    });
    let square = Permute {
        shape: [1, 1, 1024, 3072],
        order: [0, 1, 3, 2],
    };
    bench.case("transpose 1024x3072", |threads| {
        permute(&square, &x, &mut y, threads)
    });
}

fn rows(bench: &Bench) {
    let dims = Softmax {
        rows: 8 * 12 * 128,
        cols: 128,
        mask: Mask::Full,
    };
    let len = dims.rows * dims.cols;
    let (x, dy, mut y, mut dx) = (data(len), data(len), data(len), data(len));
    bench.case("softmax forward", |threads| {
        softmax(&dims, &x, &mut y, threads)
    });
    bench.case("softmax backward", |threads| {
        softmax_dx(&dims, &y, &dy, &mut dx, threads)
    });
    let (rows, cols) = (1024, 768);
    let dims = LayerNorm {
        rows,
        cols,
        eps: 1e-5,
    };
    let (gamma, beta, mut stats) = (data(cols), data(cols), data(2 * rows));
    let (mut dgamma, mut dbeta) = (data(cols), data(cols));
    let mut scratch = data(layer_norm_dx_scratch(&dims));
    let len = rows * cols;
    let (x, dy, y, dx) = (&x[..len], &dy[..len], &mut y[..len], &mut dx[..len]);
    bench.case("layer norm forward", |threads| {
        layer_norm(&dims, x, &gamma, &beta, y, &mut stats, threads)
    });
    bench.case("layer norm backward", |threads| {
        layer_norm_dx(
            &dims,
            x,
            &stats,
            &gamma,
            dy,
            dx,
            &mut dgamma,
            &mut dbeta,
            &mut scratch,
            threads,
        )
    });
    for cols in [768, 3072] {
        let (x, mut sums) = (data(1024 * cols), data(cols));
        let mut scratch = data(sum_rows_scratch(1024, cols));
        bench.case(&format!("sum rows 1024x{cols}"), |threads| {
            sum_rows(1024, cols, &x, &mut sums, &mut scratch, threads)
        });
    }
}

fn vocabulary(bench: &Bench) {
    let (rows, vocab, cols) = (1024, 30522, 768);
    let ids: Vec<i64> = (0..rows).map(|i| (i * 7919 % vocab) as i64).collect();
    {
        let dims = Embedding {
            rows,
            vocab,
            cols,
            base: false,
        };
        let (table, dy) = (data(vocab * cols), data(rows * cols));
        let (mut y, mut dtable) = (data(rows * cols), data(vocab * cols));
        bench.case("embedding forward", |threads| {
            embedding(&dims, &ids, &table, &mut y, threads).expect("ids in the table")
        });
        bench.case("embedding backward", |threads| {
            embedding_dw(&dims, &ids, &dy, None, &mut dtable, threads).expect("ids in the table")
        });
    }
    let dims = CrossEntropy {
        rows,
        classes: vocab,
    };
    let (logits, mut dlogits) = (data(rows * vocab), data(rows * vocab));
    let (mut loss, mut lse) = ([0.0], data(rows));
    bench.case("cross entropy forward", |threads| {
        cross_entropy(&dims, &logits, &ids, &mut loss, &mut lse, threads).expect("labels")
    });
    bench.case("cross entropy backward", |threads| {
        cross_entropy_dx(&dims, &logits, &ids, &lse, &[1.0], &mut dlogits, threads).expect("labels")
    });
}

fn optimizers(bench: &Bench) {
    let len = 20_000_000;
    let (mut param, grad) = (data(len), data(len));
    let (mut first, mut second) = (data(len), data(len));
    let dims = Sgd {
        len,
        learning_rate: 1e-3,
        momentum: 0.9,
        weight_decay: 1e-4,
    };
    bench.case("sgd 20M", |threads| {
        sgd(&dims, &mut param, &grad, Some(&mut first), threads)
    });
    let dims = Adam {
        len,
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.0,
        decoupled: false,
    };
    bench.case("adam 20M", |threads| {
        adam(
            &dims,
            3,
            &mut param,
            &grad,
            &mut first,
            &mut second,
            threads,
        )
    });
}
