//! Dispatch: an op and its operands → the kernel that computes it.
//!
//! What the engine needs to know of an op is its [`Kernel`], which stands in the file of its family
//! under `kernels/`; [`kernel_of`] finds it. Nothing has a default: an op without a kernel or
//! without a word on scratch does not compile. Operands come in the order that the op documents.

use std::cell::Cell;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use rekindle_graph::Bytes;
use rekindle_program::op::Op;
use rekindle_program::{ALIGN, DType, Node, Program};

use crate::arena::Span;
use crate::kernels::KernelError;
use crate::{Iteration, Spill, Threads};

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
        Operands { base, reads, writes, scratch, taken: Cell::new(0) }
    }

    /// Read number `index`, of `len` elements.
    fn read<T: Element>(&self, index: usize, len: usize) -> &'a [T] {
        let span = self.reads[index];
        assert!(len * size_of::<T>() <= span.bytes, "operand {index} is too small");
        assert_eq!(self.taken.get() >> (READ_BITS + index) & 1, 0, "operand {index} is taken");
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
pub(crate) trait Element: Copy {
    /// What a tensor of such elements holds.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for i64 {
    const DTYPE: DType = DType::I64;
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}

/// How the engine computes an op.
pub(crate) trait Kernel {
    /// How many floats of scratch it needs with `threads` threads.
    fn scratch(&self, threads: usize) -> usize;

    /// Computes the op.
    ///
    /// # Errors
    /// If the data is bad, such as an id out of range, or cannot be moved.
    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError>;
}

/// One run of a kernel: its operands, and what else it works with.
pub(crate) struct Call<'a> {
    operands: Operands<'a>,
    program: &'a Program,
    node: &'a Node,
    pub(crate) iteration: Iteration,
    pub(crate) threads: &'a Threads,
    pub(crate) spill: &'a mut dyn Spill,
}

impl<'a> Call<'a> {
    /// Read number `index`.
    pub(crate) fn read<T: Element>(&self, index: usize) -> &'a [T] {
        let tensor = self.program.tensor(self.node.reads[index]);
        assert_eq!(tensor.dtype, T::DTYPE, "what operand {index} holds");
        self.operands.read(index, tensor.len())
    }

    /// Read number `index`, if it is there.
    pub(crate) fn read_if<T: Element>(&self, is_read: bool, index: usize) -> Option<&'a [T]> {
        is_read.then(|| self.read(index))
    }

    /// Read number `index`, to be overwritten in place.
    pub(crate) fn update<T: Element>(&self, index: usize) -> &'a mut [T] {
        let declared = self.node.op.updates().contains(&index);
        assert!(declared, "operand {index} is not among the op's updates");
        let tensor = self.program.tensor(self.node.reads[index]);
        assert_eq!(tensor.dtype, T::DTYPE, "what operand {index} holds");
        self.operands.update(index, tensor.len())
    }

    /// Write number `index`.
    pub(crate) fn write<T: Element>(&self, index: usize) -> &'a mut [T] {
        let tensor = self.program.tensor(self.node.writes[index]);
        assert_eq!(tensor.dtype, T::DTYPE, "what result {index} holds");
        self.operands.write(index, tensor.len())
    }

    /// The first `len` bytes of read number `index`, whatever it holds.
    pub(crate) fn read_bytes(&self, index: usize, len: usize) -> &'a [u8] {
        self.operands.read(index, len)
    }

    /// The first `len` bytes of write number `index`, whatever it holds.
    pub(crate) fn write_bytes(&self, index: usize, len: usize) -> &'a mut [u8] {
        self.operands.write(index, len)
    }

    /// All the scratch that the kernel asked for.
    pub(crate) fn scratch(&self) -> &'a mut [f32] {
        self.operands.scratch()
    }
}

/// The scratch that an op's kernel needs with `threads` threads.
pub(crate) fn workspace(op: &Op, threads: usize) -> Bytes {
    let floats = kernel_of(op).scratch(threads);
    Bytes((floats * size_of::<f32>()) as u64).round_up(ALIGN)
}

/// Computes one node of a program.
pub(crate) fn run_kernel(
    program: &Program,
    node: &Node,
    operands: Operands<'_>,
    iteration: Iteration,
    threads: &Threads,
    spill: &mut dyn Spill,
) -> Result<(), KernelError> {
    kernel_of(&node.op).run(&mut Call { operands, program, node, iteration, threads, spill })
}

/// The kernel of an op.
fn kernel_of(op: &Op) -> &dyn Kernel {
    match op {
        Op::Source(op) => op,
        Op::Conv(op) => op,
        Op::ConvDx(op) => op,
        Op::ConvDw(op) => op,
        Op::MaxPool(op) => op,
        Op::MaxPoolDx(op) => op,
        Op::AvgPool(op) => op,
        Op::AvgPoolDx(op) => op,
        Op::Matmul(op) => op,
        Op::HeadMatmul(op) => op,
        Op::SumRows(op) => op,
        Op::BatchNormStats(op) => op,
        Op::BatchNorm(op) => op,
        Op::BatchNormUpdate(op) => op,
        Op::BatchNormDx(op) => op,
        Op::LayerNorm(op) => op,
        Op::LayerNormDx(op) => op,
        Op::Relu(op) => op,
        Op::ReluDx(op) => op,
        Op::Gelu(op) => op,
        Op::GeluDx(op) => op,
        Op::Softmax(op) => op,
        Op::SoftmaxDx(op) => op,
        Op::Embedding(op) => op,
        Op::EmbeddingDw(op) => op,
        Op::Dropout(op) => op,
        Op::CrossEntropy(op) => op,
        Op::CrossEntropyDx(op) => op,
        Op::Add(op) => op,
        Op::Scale(op) => op,
        Op::Permute(op) => op,
        Op::Split(op) => op,
        Op::Concat(op) => op,
        Op::RmsNorm(op) => op,
        Op::RmsNormDx(op) => op,
        Op::GroupNorm(op) => op,
        Op::GroupNormDx(op) => op,
        Op::Unary(op) => op,
        Op::UnaryDx(op) => op,
        Op::Binary(op) => op,
        Op::Reduce(op) => op,
        Op::Cast(op) => op,
        Op::View(op) => op,
        Op::Resize(op) => op,
        Op::ResizeDx(op) => op,
        Op::Sgd(op) => op,
        Op::Adam(op) => op,
        Op::Offload(op) => op,
        Op::Fetch(op) => op,
    }
}
