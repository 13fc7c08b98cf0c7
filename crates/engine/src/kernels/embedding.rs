//! Embedding: rows of a table by id, and the table's gradient.
//!
//! Ids are checked before anything is written. The gradient is shared out by rows of the table:
//! each task looks through all ids and adds those rows that it owns, so every row of the table
//! gets its summands in the order of the ids, at any thread count.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::rows_per_task;
use crate::Threads;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Embedding, EmbeddingDw};

/// Most tasks of the gradient: each looks through all ids.
const TASKS: usize = 64;

impl Kernel for Embedding {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        embedding(
            self,
            call.read(0),
            call.read(1),
            call.write(0),
            call.threads,
        )
    }
}

impl Kernel for EmbeddingDw {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let base = call.read_if(self.base, 2);
        embedding_dw(
            &self.of,
            call.read(0),
            call.read(1),
            base,
            call.write(0),
            call.threads,
        )
    }
}

/// `embedding`: `ids, table → y`.
///
/// # Errors
/// If an id is not a row of the table; nothing is written then.
fn embedding(
    dims: &Embedding,
    ids: &[i64],
    table: &[f32],
    y: &mut [f32],
    threads: &Threads,
) -> Result<(), KernelError> {
    let (len, table_len) = (dims.rows * dims.cols, dims.vocab * dims.cols);
    assert_eq!((y.len(), table.len()), (len, table_len), "operand lengths");
    check_ids(dims, ids)?;
    let rows = rows_per_task(dims.cols);
    threads.chunks_mut(y, rows * dims.cols, &|task, y| {
        for (y, &id) in y.chunks_exact_mut(dims.cols).zip(&ids[task * rows..]) {
            y.copy_from_slice(&table[id as usize * dims.cols..][..dims.cols]);
        }
    });
    Ok(())
}

/// `embedding_dw`: `ids, dy [, base] → dtable`.
///
/// # Errors
/// As [`embedding`].
fn embedding_dw(
    dims: &Embedding,
    ids: &[i64],
    dy: &[f32],
    base: Option<&[f32]>,
    dtable: &mut [f32],
    threads: &Threads,
) -> Result<(), KernelError> {
    let (len, table_len) = (dims.rows * dims.cols, dims.vocab * dims.cols);
    assert_eq!(
        (dy.len(), dtable.len()),
        (len, table_len),
        "operand lengths"
    );
    check_ids(dims, ids)?;
    let rows = dims.vocab.div_ceil(TASKS).max(1);
    threads.chunks_mut(dtable, rows * dims.cols, &|task, dtable| {
        match base {
            Some(base) => {
                dtable.copy_from_slice(&base[task * rows * dims.cols..][..dtable.len()]);
            }
            None => dtable.fill(0.0),
        }
        for (dy, &id) in dy.chunks_exact(dims.cols).zip(ids) {
            let owned = (id as usize).wrapping_sub(task * rows);
            if owned < dtable.len() / dims.cols {
                add_row(dy, &mut dtable[owned * dims.cols..][..dims.cols]);
            }
        }
    });
    Ok(())
}

fn check_ids(dims: &Embedding, ids: &[i64]) -> Result<(), KernelError> {
    assert_eq!(ids.len(), dims.rows, "operand lengths");
    let outside = |&id: &i64| !usize::try_from(id).is_ok_and(|id| id < dims.vocab);
    match ids.iter().position(outside) {
        Some(position) => Err(KernelError::IdOutOfRange {
            position,
            id: ids[position],
            vocab: dims.vocab,
        }),
        None => Ok(()),
    }
}

vectorised! {
    fn add_row<A>(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::test_data::{assert_same_bits, random};

    const CASES: [(usize, usize, usize); 4] =
        [(1, 1, 1), (7, 5, 3), (1000, 100, 33), (64, 999, 96)];

    fn ids(rows: usize, vocab: usize) -> Vec<i64> {
        (0..rows).map(|r| (r * r * 31 % vocab) as i64).collect()
    }

    #[test]
    fn looks_up_and_adds_in_order() {
        for (rows, vocab, cols) in CASES {
            let ids = ids(rows, vocab);
            let (table, dy) = (random(vocab * cols, 1), random(rows * cols, 2));
            let gathered: Vec<f32> = ids
                .iter()
                .flat_map(|&id| table[id as usize * cols..][..cols].to_vec())
                .collect();
            for base in [false, true] {
                let dims = Embedding { rows, vocab, cols };
                let mut want = if base {
                    table.clone()
                } else {
                    vec![0.0; vocab * cols]
                };
                for (row, &id) in ids.iter().enumerate() {
                    for c in 0..cols {
                        want[id as usize * cols + c] += dy[row * cols + c];
                    }
                }
                assert_same_bits(|threads| {
                    let (mut y, mut dtable) = (vec![9.0; rows * cols], vec![9.0; vocab * cols]);
                    embedding(&dims, &ids, &table, &mut y, threads).unwrap();
                    let base = base.then_some(&table[..]);
                    embedding_dw(&dims, &ids, &dy, base, &mut dtable, threads).unwrap();
                    assert_eq!(y, gathered);
                    assert_eq!(dtable, want, "the same order of additions");
                    vec![dtable]
                });
            }
        }
    }

    #[test]
    fn an_id_outside_the_table_is_named() {
        let dims = Embedding {
            rows: 2,
            vocab: 3,
            cols: 1,
        };
        let threads = Threads::new(1);
        for id in [3, -1, i64::MIN, i64::MAX] {
            let want = Err(KernelError::IdOutOfRange {
                position: 1,
                id,
                vocab: 3,
            });
            let (mut y, mut dtable) = ([9.0; 2], [9.0; 3]);
            assert_eq!(
                embedding(&dims, &[2, id], &[0.0; 3], &mut y, &threads),
                want
            );
            let result = embedding_dw(&dims, &[2, id], &[0.0; 2], None, &mut dtable, &threads);
            assert_eq!(result, want);
            assert_eq!((y, dtable), ([9.0; 2], [9.0; 3]), "nothing is written");
        }
    }
}
