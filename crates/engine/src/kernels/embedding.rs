//! Embedding: rows of a table by id, and the table's gradient.
//!
//! Ids are checked before anything is written. The gradient is shared out by rows of the table:
//! each task looks through all ids and adds those rows that it owns, so every row of the table
//! gets its summands in the order of the ids, at any thread count.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::rows_per_task;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Embedding, EmbeddingDw};

/// Most tasks of the gradient: each looks through all ids.
const TASKS: usize = 64;

/// Nothing is written if an id is not a row of the table.
impl Kernel for Embedding {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (ids, table): (&[i64], &[f32]) = (call.read(0), call.read(1));
        check_ids(self, ids)?;
        let (rows, cols) = (rows_per_task(self.cols), self.cols);
        call.threads.chunks_mut(call.write(0), rows * cols, &|task, y| {
            for (y, &id) in y.chunks_exact_mut(cols).zip(&ids[task * rows..]) {
                y.copy_from_slice(&table[id as usize * cols..][..cols]);
            }
        });
        Ok(())
    }
}

impl Kernel for EmbeddingDw {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (ids, dy): (&[i64], &[f32]) = (call.read(0), call.read(1));
        let base: Option<&[f32]> = call.read_if(self.base, 2);
        check_ids(&self.of, ids)?;
        let (rows, cols) = (self.of.vocab.div_ceil(TASKS).max(1), self.of.cols);
        call.threads.chunks_mut(call.write(0), rows * cols, &|task, dtable| {
            match base {
                Some(base) => dtable.copy_from_slice(&base[task * rows * cols..][..dtable.len()]),
                None => dtable.fill(0.0),
            }
            for (dy, &id) in dy.chunks_exact(cols).zip(ids) {
                let owned = (id as usize).wrapping_sub(task * rows);
                if owned < dtable.len() / cols {
                    add_row(dy, &mut dtable[owned * cols..][..cols]);
                }
            }
        });
        Ok(())
    }
}

fn check_ids(dims: &Embedding, ids: &[i64]) -> Result<(), KernelError> {
    let outside = |&id: &i64| !usize::try_from(id).is_ok_and(|id| id < dims.vocab);
    match ids.iter().position(outside) {
        Some(position) => {
            Err(KernelError::IdOutOfRange { position, id: ids[position], vocab: dims.vocab })
        }
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
    use crate::Threads;
    use crate::kernels::test_data::{assert_same_bits, compute, random};

    const CASES: [(usize, usize, usize); 4] =
        [(1, 1, 1), (7, 5, 3), (1000, 100, 33), (64, 999, 96)];

    fn ids(rows: usize, vocab: usize) -> Vec<f32> {
        (0..rows).map(|r| (r * r * 31 % vocab) as f32).collect()
    }

    #[test]
    fn looks_up_and_adds_in_order() {
        for (rows, vocab, cols) in CASES {
            let ids = ids(rows, vocab);
            let (table, dy) = (random(vocab * cols, 1), random(rows * cols, 2));
            let gathered: Vec<f32> =
                ids.iter().flat_map(|&id| table[id as usize * cols..][..cols].to_vec()).collect();
            for base in [false, true] {
                let of = Embedding { rows, vocab, cols };
                let mut want = if base { table.clone() } else { vec![0.0; vocab * cols] };
                for (row, &id) in ids.iter().enumerate() {
                    for c in 0..cols {
                        want[id as usize * cols + c] += dy[row * cols + c];
                    }
                }
                let mut reads: Vec<&[f32]> = vec![&ids, &dy];
                reads.extend(base.then_some(&table[..]));
                assert_same_bits(|threads| {
                    let y = compute(of, &[&ids, &table], threads).unwrap();
                    assert_eq!(y[0], gathered);
                    let dtable = compute(EmbeddingDw { of, base }, &reads, threads).unwrap();
                    assert_eq!(dtable[0], want, "the same order of additions");
                    dtable
                });
            }
        }
    }

    #[test]
    fn an_id_outside_the_table_is_named() {
        let of = Embedding { rows: 2, vocab: 3, cols: 1 };
        let threads = Threads::new(1);
        for id in [3, -1, i64::MIN, i64::MAX] {
            let want = Err(KernelError::IdOutOfRange { position: 1, id, vocab: 3 });
            let ids = [2.0, id as f32];
            assert_eq!(compute(of, &[&ids, &[0.0; 3]], &threads), want);
            let dw = EmbeddingDw { of, base: false };
            assert_eq!(compute(dw, &[&ids, &[0.0; 2]], &threads), want);
        }
    }
}
