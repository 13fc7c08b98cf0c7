//! How the kernels cut their work into tasks: by shape alone, and with outputs kept apart.
//!
//! [`Threads::chunks_mut`] serves a kernel with one output; [`chunks_mut2`] and [`chunks_mut3`]
//! cut several outputs in step, so that no kernel needs `unsafe` for it.

use crate::dispatch::Call;
use crate::{SharedMut, Threads};

/// Elements of one task of an elementwise kernel: 64 KiB, long enough to hide the cost of taking a
/// task (under a microsecond), short enough that threads finish close together.
pub(crate) const TASK_ELEMENTS: usize = 16 * 1024;

/// Rows of one task of a kernel that treats each row of `cols` elements by itself.
pub(crate) fn rows_per_task(cols: usize) -> usize {
    (TASK_ELEMENTS / cols.max(1)).max(1)
}

/// Calls `work(chunks of the reads, chunk of the result)` for all tasks of an op that maps each
/// element of `N` operands by itself.
pub(crate) fn map_elements<const N: usize>(
    call: &Call<'_>,
    work: impl Fn([&[f32]; N], &mut [f32]) + Sync,
) {
    let xs: [&[f32]; N] = std::array::from_fn(|k| call.read(k));
    call.threads.chunks_mut(call.write(0), TASK_ELEMENTS, &|task, y| {
        let start = task * TASK_ELEMENTS;
        work(xs.map(|x| &x[start..start + y.len()]), y);
    });
}

/// Calls `work(task, chunk of a, chunk of b)` for chunks of the given lengths, cut in step.
///
/// # Panics
/// If the outputs do not make the same number of chunks.
pub(crate) fn chunks_mut2<A: Send, B: Send>(
    threads: &Threads,
    (a, a_chunk): (&mut [A], usize),
    (b, b_chunk): (&mut [B], usize),
    work: impl Fn(usize, &mut [A], &mut [B]) + Sync,
) {
    let mut none: [(); 0] = [];
    let tasks = a.len().div_ceil(a_chunk.max(1));
    assert_eq!(tasks, b.len().div_ceil(b_chunk.max(1)), "outputs in step");
    run_cut(
        threads,
        tasks,
        (a, a_chunk),
        (b, b_chunk),
        (&mut none, 0),
        |task, a, b, _: &mut [()]| work(task, a, b),
    );
}

/// Calls `work(task, chunk of a, chunk of b, chunk of c)`; see [`chunks_mut2`].
pub(crate) fn chunks_mut3<A: Send, B: Send, C: Send>(
    threads: &Threads,
    (a, a_chunk): (&mut [A], usize),
    (b, b_chunk): (&mut [B], usize),
    (c, c_chunk): (&mut [C], usize),
    work: impl Fn(usize, &mut [A], &mut [B], &mut [C]) + Sync,
) {
    let tasks = a.len().div_ceil(a_chunk.max(1));
    assert_eq!(tasks, b.len().div_ceil(b_chunk.max(1)), "outputs in step");
    assert_eq!(tasks, c.len().div_ceil(c_chunk.max(1)), "outputs in step");
    run_cut(threads, tasks, (a, a_chunk), (b, b_chunk), (c, c_chunk), work);
}

/// Hands chunk `task` of each output to `work`, for every task.
fn run_cut<A: Send, B: Send, C: Send>(
    threads: &Threads,
    tasks: usize,
    (a, a_chunk): (&mut [A], usize),
    (b, b_chunk): (&mut [B], usize),
    (c, c_chunk): (&mut [C], usize),
    work: impl Fn(usize, &mut [A], &mut [B], &mut [C]) + Sync,
) {
    let range = |len: usize, chunk: usize, task: usize| {
        (task * chunk).min(len)..((task + 1) * chunk).min(len)
    };
    let (a_len, b_len, c_len) = (a.len(), b.len(), c.len());
    let (a, b, c) = (SharedMut::new(a), SharedMut::new(b), SharedMut::new(c));
    threads.run(tasks, &|_, task| {
        // SAFETY: each task runs once, and the chunks of different tasks do not overlap.
        let (a, b, c) = unsafe {
            (
                a.slice(range(a_len, a_chunk, task)),
                b.slice(range(b_len, b_chunk, task)),
                c.slice(range(c_len, c_chunk, task)),
            )
        };
        work(task, a, b, c);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_cut_in_step() {
        let threads = Threads::new(2);
        let (mut a, mut b, mut c) = (vec![0; 10], vec![0; 5], vec![0; 30]);
        chunks_mut3(&threads, (&mut a, 4), (&mut b, 2), (&mut c, 12), |task, a, b, c| {
            a.fill(task + 1);
            b.fill(task + 1);
            c.fill(task + 1);
        });
        assert_eq!(a, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
        assert_eq!(b, [1, 1, 2, 2, 3]);
        assert_eq!(c[..12], [1; 12]);
        assert_eq!(c[24..], [3; 6]);
    }

    #[test]
    fn empty_outputs_make_no_task() {
        let threads = Threads::new(1);
        chunks_mut2::<f32, u8>(&threads, (&mut [], 4), (&mut [], 4), |_, _, _| {
            unreachable!("there is nothing to do")
        });
    }
}
