//! Dispatch: an op and its operands → the kernel that computes it.
//!
//! The only place that knows both ops and kernels. Operands come in the order that the op
//! documents.

use std::cell::Cell;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use rekindle_graph::Bytes;
use rekindle_program::ALIGN;
use rekindle_program::op::{BatchNorm, Op, Split, Tail};

use crate::arena::Span;
use crate::kernels::{self, KernelError};
use crate::kernels::{BatchNormDxReads, BatchNormDxWrites};
use crate::{Spill, StepContext, Threads};

/// The operands of one run. Each mutable one is handed out once.
pub(crate) struct Operands<'a> {
    base: *mut u8,
    reads: &'a [Span],
    writes: &'a [Span],
    scratch: Span,
    /// One bit for each write, then one for each read, that was handed out as mutable.
    taken: Cell<u64>,
}

/// Where the bits of the reads begin in [`Operands::taken`]; no op writes that many tensors.
const READ_BITS: usize = 32;

impl<'a> Operands<'a> {
    /// # Safety
    /// All spans lie in the memory at `base`, which is aligned for every element type and which
    /// nobody else uses while the operands live; no write or scratch overlaps another span.
    pub(crate) unsafe fn new(
        base: *mut u8,
        reads: &'a [Span],
        writes: &'a [Span],
        scratch: Span,
    ) -> Operands<'a> {
        Operands {
            base,
            reads,
            writes,
            scratch,
            taken: Cell::new(0),
        }
    }

    /// How many operands are read.
    fn count(&self) -> usize {
        self.reads.len()
    }

    /// Read number `index`, of `len` elements.
    fn read<T: Element>(&self, index: usize, len: usize) -> &'a [T] {
        let span = self.reads[index];
        assert!(
            len * size_of::<T>() <= span.bytes,
            "operand {index} is too small"
        );
        assert_eq!(
            self.taken.get() >> (READ_BITS + index) & 1,
            0,
            "operand {index} is taken"
        );
        // SAFETY: in bounds by the assertion; aligned and not written elsewhere by the promise of
        // `new`; every bit pattern is an `Element`.
        unsafe { from_raw_parts(self.base.add(span.offset).cast(), len) }
    }

    /// Write number `index`, of `len` elements.
    pub(crate) fn write<T: Element>(&self, index: usize, len: usize) -> &'a mut [T] {
        self.take(index);
        self.slice_mut(self.writes[index], len)
    }

    /// Read number `index`, of `len` elements, to be overwritten in place.
    fn update<T: Element>(&self, index: usize, len: usize) -> &'a mut [T] {
        self.take(READ_BITS + index);
        self.slice_mut(self.reads[index], len)
    }

    /// All the scratch that the kernel asked for.
    fn scratch(&self) -> &'a mut [f32] {
        self.take(READ_BITS - 1);
        self.slice_mut(self.scratch, self.scratch.bytes / size_of::<f32>())
    }

    fn take(&self, bit: usize) {
        let taken = self.taken.get();
        assert_eq!(taken >> bit & 1, 0, "operand is handed out twice");
        self.taken.set(taken | 1 << bit);
    }

    fn slice_mut<T: Element>(&self, span: Span, len: usize) -> &'a mut [T] {
        assert!(len * size_of::<T>() <= span.bytes, "operand is too small");
        // SAFETY: in bounds by the assertion; exclusive because `take` was passed and the spans do
        // not overlap by the promise of `new`; every bit pattern is an `Element`.
        unsafe { from_raw_parts_mut(self.base.add(span.offset).cast(), len) }
    }
}

/// A type whose every bit pattern is valid.
pub(crate) trait Element: Copy {}
impl Element for f32 {}
impl Element for i64 {}
impl Element for u8 {}

/// The scratch that an op's kernel needs with `threads` threads.
pub(crate) fn workspace(op: &Op, threads: usize) -> Bytes {
    let floats = match op {
        Op::Conv(d) => kernels::conv_scratch(d, threads),
        Op::ConvDx(d) => kernels::conv_dx_scratch(d, threads),
        Op::ConvDw(d) => kernels::conv_dw_scratch(d, threads),
        Op::Matmul(d) => kernels::matmul_scratch(d, threads),
        Op::HeadMatmul(d) => kernels::head_matmul_scratch(d, threads),
        Op::SumRows { rows, cols } => kernels::sum_rows_scratch(*rows, *cols),
        Op::BatchNormStats(d) => kernels::batch_norm_stats_scratch(d),
        Op::BatchNorm(d) => kernels::batch_norm_scratch(d),
        Op::BatchNormDx(d) => kernels::batch_norm_dx_scratch(d),
        Op::LayerNormDx(d) => kernels::layer_norm_dx_scratch(d),
        _ => 0,
    };
    Bytes((floats * size_of::<f32>()) as u64).round_up(ALIGN)
}

/// Computes one op.
pub(crate) fn run_kernel(
    op: &Op,
    on: &Operands<'_>,
    context: StepContext,
    threads: &Threads,
    spill: &mut dyn Spill,
) -> Result<(), KernelError> {
    match op {
        Op::Source => unreachable!("sources never run"),
        Op::Offload(to) => spill.store(to.slot, on.read(0, to.bytes))?,
        Op::Fetch(from) => spill.load(from.slot, on.write(0, from.bytes))?,
        Op::Conv(_) | Op::ConvDx(_) | Op::ConvDw(_) => run_conv(op, on, threads),
        Op::Matmul(_) | Op::HeadMatmul(_) | Op::SumRows { .. } => run_matmul(op, on, threads),
        Op::MaxPool(_) | Op::MaxPoolDx(_) | Op::AvgPool(_) | Op::AvgPoolDx(_) => {
            run_pooling(op, on, threads);
        }
        Op::BatchNormStats(_) | Op::BatchNorm(_) | Op::BatchNormUpdate { .. } => {
            run_batch_norm(op, on, threads);
        }
        Op::BatchNormDx(d) => run_batch_norm_dx(d, on, threads),
        Op::LayerNorm(_) | Op::LayerNormDx(_) | Op::Softmax(_) | Op::SoftmaxDx(_) => {
            run_rows(op, on, threads);
        }
        Op::Embedding(_) | Op::EmbeddingDw(_) | Op::CrossEntropy(_) | Op::CrossEntropyDx(_) => {
            run_indexed(op, on, threads)?;
        }
        Op::Permute(_) | Op::Split(_) | Op::Concat(_) => run_layout(op, on, threads),
        Op::Sgd(_) | Op::Adam(_) => run_optimizer(op, on, context, threads),
        _ => run_elementwise(op, on, context, threads),
    }
    Ok(())
}

fn run_conv(op: &Op, on: &Operands<'_>, threads: &Threads) {
    let (Op::Conv(d) | Op::ConvDx(d) | Op::ConvDw(d)) = op else {
        unreachable!()
    };
    let x = d.window.in_pixels() * d.in_channels;
    let y = d.window.out_pixels() * d.out_channels;
    let w = d.window.kernel[0] * d.window.kernel[1] * (d.in_channels / d.groups) * d.out_channels;
    match op {
        Op::Conv(_) => {
            let bias = d.bias.then(|| on.read(2, d.out_channels));
            kernels::conv(
                d,
                on.read(0, x),
                on.read(1, w),
                bias,
                on.write(0, y),
                on.scratch(),
                threads,
            );
        }
        Op::ConvDx(_) => {
            kernels::conv_dx(
                d,
                on.read(0, y),
                on.read(1, w),
                on.write(0, x),
                on.scratch(),
                threads,
            );
        }
        _ => {
            kernels::conv_dw(
                d,
                on.read(0, x),
                on.read(1, y),
                on.write(0, w),
                on.scratch(),
                threads,
            );
        }
    }
}

fn run_matmul(op: &Op, on: &Operands<'_>, threads: &Threads) {
    match op {
        Op::Matmul(d) => {
            let (a, b) = (on.read(0, d.m * d.k), on.read(1, d.k * d.n));
            let bias = d.bias.then(|| on.read(2, d.n));
            kernels::matmul(d, a, b, bias, on.write(0, d.m * d.n), on.scratch(), threads);
        }
        Op::HeadMatmul(d) => {
            let all = d.batch * d.heads;
            let (a, b) = (on.read(0, all * d.m * d.k), on.read(1, all * d.k * d.n));
            kernels::head_matmul(d, a, b, on.write(0, all * d.m * d.n), on.scratch(), threads);
        }
        Op::SumRows { rows, cols } => kernels::sum_rows(
            *rows,
            *cols,
            on.read(0, rows * cols),
            on.write(0, *cols),
            on.scratch(),
            threads,
        ),
        _ => unreachable!(),
    }
}

fn run_pooling(op: &Op, on: &Operands<'_>, threads: &Threads) {
    use kernels::{avg_pool, avg_pool_dx, max_pool, max_pool_dx};
    let (Op::MaxPool(d) | Op::MaxPoolDx(d) | Op::AvgPool(d) | Op::AvgPoolDx(d)) = op else {
        unreachable!()
    };
    let x = d.window.in_pixels() * d.channels;
    let y = d.window.out_pixels() * d.channels;
    match op {
        Op::MaxPool(_) => max_pool(d, on.read(0, x), on.write(0, y), on.write(1, y), threads),
        Op::MaxPoolDx(_) => max_pool_dx(d, on.read(0, y), on.read(1, y), on.write(0, x), threads),
        Op::AvgPool(_) => avg_pool(d, on.read(0, x), on.write(0, y), threads),
        _ => avg_pool_dx(d, on.read(0, y), on.write(0, x), threads),
    }
}

fn run_batch_norm(op: &Op, on: &Operands<'_>, threads: &Threads) {
    use kernels::{batch_norm, batch_norm_stats, batch_norm_update};
    match op {
        Op::BatchNormStats(d) => {
            let x = on.read(0, d.rows * d.channels);
            batch_norm_stats(d, x, on.write(0, 2 * d.channels), on.scratch(), threads);
        }
        Op::BatchNorm(d) => {
            let (c, len) = (d.channels, d.rows * d.channels);
            let residual = (d.tail == Tail::AddRelu).then(|| on.read(4, len));
            let (x, stats) = (on.read(0, len), on.read(1, 2 * c));
            batch_norm(
                d,
                x,
                stats,
                on.read(2, c),
                on.read(3, c),
                residual,
                on.write(0, len),
                on.scratch(),
                threads,
            );
        }
        Op::BatchNormUpdate { norm: d, momentum } => {
            let c = d.channels;
            let (mean, var) = (on.update(1, c), on.update(2, c));
            batch_norm_update(d, *momentum, on.read(0, 2 * c), mean, var, on.update(3, 1));
        }
        _ => unreachable!(),
    }
}

/// Optional reads come in this order: beta (ReLU), y (add and ReLU), dy, second dy.
fn run_batch_norm_dx(d: &BatchNorm, on: &Operands<'_>, threads: &Threads) {
    let (c, len) = (d.channels, d.rows * d.channels);
    let beta = (d.tail == Tail::Relu).then(|| on.read(3, c));
    let y = (d.tail == Tail::AddRelu).then(|| on.read(3, len));
    let dy = if d.tail == Tail::Linear { 3 } else { 4 };
    let dy2 = (on.count() > dy + 1).then(|| on.read(dy + 1, len));
    let dresidual = (d.tail == Tail::AddRelu).then(|| on.write(3, len));
    kernels::batch_norm_dx(
        d,
        &BatchNormDxReads {
            x: on.read(0, len),
            stats: on.read(1, 2 * c),
            gamma: on.read(2, c),
            beta,
            y,
            dy: on.read(dy, len),
            dy2,
        },
        BatchNormDxWrites {
            dx: on.write(0, len),
            dgamma: on.write(1, c),
            dbeta: on.write(2, c),
            dresidual,
        },
        on.scratch(),
        threads,
    );
}

fn run_rows(op: &Op, on: &Operands<'_>, threads: &Threads) {
    match op {
        Op::LayerNorm(d) => {
            let (c, len) = (d.cols, d.rows * d.cols);
            kernels::layer_norm(
                d,
                on.read(0, len),
                on.read(1, c),
                on.read(2, c),
                on.write(0, len),
                on.write(1, 2 * d.rows),
                threads,
            );
        }
        Op::LayerNormDx(d) => {
            let (c, len) = (d.cols, d.rows * d.cols);
            kernels::layer_norm_dx(
                d,
                on.read(0, len),
                on.read(1, 2 * d.rows),
                on.read(2, c),
                on.read(3, len),
                on.write(0, len),
                on.write(1, c),
                on.write(2, c),
                on.scratch(),
                threads,
            );
        }
        Op::Softmax(d) => {
            let len = d.rows * d.cols;
            kernels::softmax(d, on.read(0, len), on.write(0, len), threads);
        }
        Op::SoftmaxDx(d) => {
            let len = d.rows * d.cols;
            kernels::softmax_dx(
                d,
                on.read(0, len),
                on.read(1, len),
                on.write(0, len),
                threads,
            );
        }
        _ => unreachable!(),
    }
}

/// Ops that follow ids or labels, which are data and may be out of range.
fn run_indexed(op: &Op, on: &Operands<'_>, threads: &Threads) -> Result<(), KernelError> {
    match op {
        Op::Embedding(d) => {
            let (ids, table) = (on.read(0, d.rows), on.read(1, d.vocab * d.cols));
            kernels::embedding(d, ids, table, on.write(0, d.rows * d.cols), threads)
        }
        Op::EmbeddingDw(d) => {
            let base = d.base.then(|| on.read(2, d.vocab * d.cols));
            let (ids, dy) = (on.read(0, d.rows), on.read(1, d.rows * d.cols));
            kernels::embedding_dw(d, ids, dy, base, on.write(0, d.vocab * d.cols), threads)
        }
        Op::CrossEntropy(d) => {
            let (logits, labels) = (on.read(0, d.rows * d.classes), on.read(1, d.rows));
            let (loss, lse) = (on.write(0, 1), on.write(1, d.rows));
            kernels::cross_entropy(d, logits, labels, loss, lse, threads)
        }
        Op::CrossEntropyDx(d) => {
            let len = d.rows * d.classes;
            kernels::cross_entropy_dx(
                d,
                on.read(0, len),
                on.read(1, d.rows),
                on.read(2, d.rows),
                on.read(3, 1),
                on.write(0, len),
                threads,
            )
        }
        _ => unreachable!(),
    }
}

fn run_layout(op: &Op, on: &Operands<'_>, threads: &Threads) {
    match op {
        Op::Permute(d) => {
            let len = d.shape.iter().product();
            kernels::permute(d, on.read(0, len), on.write(0, len), threads);
        }
        Op::Split(d) => {
            let x = on.read(0, d.rows * d.parts * d.cols);
            let mut parts: [&mut [f32]; Split::MAX_PARTS] = std::array::from_fn(|part| {
                if part < d.parts {
                    on.write(part, d.rows * d.cols)
                } else {
                    Default::default()
                }
            });
            kernels::split(d, x, &mut parts[..d.parts], threads);
        }
        Op::Concat(d) => {
            let parts: [&[f32]; Split::MAX_PARTS] = std::array::from_fn(|part| {
                if part < d.parts {
                    on.read(part, d.rows * d.cols)
                } else {
                    Default::default()
                }
            });
            let y = on.write(0, d.rows * d.parts * d.cols);
            kernels::concat(d, &parts[..d.parts], y, threads);
        }
        _ => unreachable!(),
    }
}

fn run_optimizer(op: &Op, on: &Operands<'_>, context: StepContext, threads: &Threads) {
    match op {
        Op::Sgd(d) => {
            let momentum = (d.momentum != 0.0).then(|| on.update(2, d.len));
            let param = on.update(0, d.len);
            kernels::sgd(d, param, on.read(1, d.len), momentum, threads);
        }
        Op::Adam(d) => {
            let (first, second) = (on.update(2, d.len), on.update(3, d.len));
            let (param, grad) = (on.update(0, d.len), on.read(1, d.len));
            kernels::adam(d, context.step, param, grad, first, second, threads);
        }
        _ => unreachable!(),
    }
}

fn run_elementwise(op: &Op, on: &Operands<'_>, context: StepContext, threads: &Threads) {
    use kernels::{add, scale};
    use kernels::{gelu, gelu_dx, relu, relu_dx};
    match *op {
        Op::Relu { len } => relu(on.read(0, len), on.write(0, len), threads),
        Op::ReluDx { len } => relu_dx(on.read(0, len), on.read(1, len), on.write(0, len), threads),
        Op::Gelu { len, kind } => gelu(kind, on.read(0, len), on.write(0, len), threads),
        Op::GeluDx { len, kind } => {
            gelu_dx(
                kind,
                on.read(0, len),
                on.read(1, len),
                on.write(0, len),
                threads,
            );
        }
        Op::Add { len } => add(on.read(0, len), on.read(1, len), on.write(0, len), threads),
        Op::Scale { len, factor } => scale(factor, on.read(0, len), on.write(0, len), threads),
        Op::Dropout(ref d) => kernels::dropout(
            d,
            context.seed,
            context.step,
            on.read(0, d.len),
            on.write(0, d.len),
            threads,
        ),
        _ => unreachable!("every other op has been dispatched"),
    }
}
