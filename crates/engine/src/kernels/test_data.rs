//! Inputs and comparisons that the kernels' tests share.

use rekindle_graph::{Bytes, Phase, Role, StorageId};
use rekindle_program::op::{Op, Operand};
use rekindle_program::random::Stream;
use rekindle_program::{DType, Node, Program, Tensor};

use crate::arena::{Arena, Span};
use crate::dispatch::{Operands, run_kernel, workspace};
use crate::kernels::KernelError;
use crate::{Iteration, Threads, Update};

/// Lengths around the widths of vectors and tasks.
pub(crate) const AWKWARD_LENGTHS: [usize; 7] = [0, 1, 7, 33, 1000, 16 * 1024, 3 * 16 * 1024 + 5];

/// `len` numbers spread like a normal distribution's middle, within ±3; the same for a seed.
pub(crate) fn random(len: usize, seed: u64) -> Vec<f32> {
    let stream = Stream::new(seed);
    let number = |i| (0..6).map(|k| stream.unit(6 * i + k) as f32 - 0.5).sum();
    (0..len as u64).map(number).collect()
}

/// Asserts `|got - want| ≤ relative · |want| + absolute` for every element.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f64], relative: f64, absolute: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(
            error <= relative * want.abs() + absolute,
            "element {i}: {got}, expected {want}, error {error:e}"
        );
    }
}

/// Asserts that `run` gives the same bits with 1, 2 and 3 threads.
#[track_caller]
pub(crate) fn assert_same_bits(run: impl Fn(&Threads) -> Vec<Vec<f32>>) {
    let bits = |outputs: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
        let bits = |output: Vec<f32>| output.into_iter().map(f32::to_bits).collect();
        outputs.into_iter().map(bits).collect()
    };
    let one = bits(run(&Threads::new(1)));
    for count in [2, 3] {
        assert!(one == bits(run(&Threads::new(count))), "{count} threads");
    }
}

/// `x` as `f64`.
pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// What an op alone makes of these operands: its results, then what it updated. Whatever its
/// elements are, they come and go as `f32`; results and scratch are poisoned before.
pub(crate) fn compute(
    op: impl Into<Op>,
    reads: &[&[f32]],
    threads: &Threads,
) -> Result<Vec<Vec<f32>>, KernelError> {
    compute_in(Iteration { seed: 0, number: 1 }, op, reads, threads)
}

/// [`compute`] in some iteration of some run.
pub(crate) fn compute_in(
    iteration: Iteration,
    op: impl Into<Op>,
    reads: &[&[f32]],
    threads: &Threads,
) -> Result<Vec<Vec<f32>>, KernelError> {
    compute_as(iteration, Update::default(), op, reads, threads)
}

/// [`compute_in`] with other words for the optimizer.
pub(crate) fn compute_as(
    iteration: Iteration,
    update: Update,
    op: impl Into<Op>,
    reads: &[&[f32]],
    threads: &Threads,
) -> Result<Vec<Vec<f32>>, KernelError> {
    let op = op.into();
    let shapes = op.shapes();
    let tensors = shapes.reads.iter().chain(&shapes.writes).map(|operand| {
        let (dtype, len) = match *operand {
            Operand::F32(len) => (DType::F32, len),
            Operand::I64(len) => (DType::I64, len),
            Operand::U8(len) => (DType::U8, len),
        };
        Tensor { name: String::new(), shape: vec![len], dtype, role: Role::Other }
    });
    let program = Program {
        name: String::new(),
        tensors: tensors.collect(),
        nodes: vec![],
        outputs: vec![],
        init: vec![],
    };
    let ids: Vec<_> = (0..program.tensors.len()).map(StorageId::new).collect();
    let node = Node {
        name: String::new(),
        op,
        phase: Phase::Forward,
        reads: ids[..reads.len()].to_vec(),
        writes: ids[reads.len()..].to_vec(),
    };
    let mut end = 0;
    let mut place = |bytes: Bytes| {
        let (offset, bytes) = (end, bytes.get() as usize);
        end += bytes;
        Span { offset, bytes }
    };
    let spans: Vec<Span> = program.tensors.iter().map(|t| place(t.bytes())).collect();
    let scratch = place(workspace(&op, threads.count()));
    let mut arena = Arena::new(Bytes(end as u64), &mut |_| {}).expect("a test fits in memory");
    arena.bytes_mut(Span { offset: 0, bytes: end }).fill(0xFF);
    for ((tensor, span), values) in program.tensors.iter().zip(&spans).zip(reads) {
        assert_eq!(values.len(), tensor.len(), "{op:?}");
        let bytes = arena.bytes_mut(*span).chunks_exact_mut(tensor.dtype.size());
        for (bytes, &value) in bytes.zip(*values) {
            match tensor.dtype {
                DType::F32 => bytes.copy_from_slice(&value.to_ne_bytes()),
                DType::I64 => bytes.copy_from_slice(&(value as i64).to_ne_bytes()),
                DType::U8 => bytes[0] = value as u8,
            }
        }
    }
    let (of_reads, of_writes) = spans.split_at(reads.len());
    // SAFETY: the spans lie in the arena, which nobody else uses, one after the other.
    let operands = unsafe { Operands::new(arena.as_mut_ptr(), of_reads, of_writes, scratch) };
    let ran = run_kernel(&program, &node, operands, (iteration, update), threads);
    if let Err(error) = ran {
        let untouched = |span: &Span| arena.bytes(*span).iter().all(|&byte| byte == 0xFF);
        assert!(of_writes.iter().all(untouched), "nothing is written");
        return Err(error);
    }
    let updated = op.updates().iter().map(|&read| node.reads[read]);
    let results = node.writes.iter().copied().chain(updated).map(|id| {
        let tensor = program.tensor(id);
        let bytes = arena.bytes(spans[id.index()]).chunks_exact(tensor.dtype.size());
        let value = |bytes: &[u8]| match tensor.dtype {
            DType::F32 => f32::from_ne_bytes(bytes.try_into().expect("four bytes")),
            DType::I64 => i64::from_ne_bytes(bytes.try_into().expect("eight bytes")) as f32,
            DType::U8 => f32::from(bytes[0]),
        };
        bytes.take(tensor.len()).map(value).collect()
    });
    Ok(results.collect())
}
