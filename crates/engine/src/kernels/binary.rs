//! Functions of two numbers, with operands that are repeated along axes.
//!
//! The last axis is the inner loop, of one of three kinds: both operands go along, or one of them
//! stays. Rows of it are shared out; where each row begins in an operand follows from its number.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::rows_per_task;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Binary, Pair};

const AXES: usize = Binary::AXES;

impl Kernel for Binary {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (a, b): (&[f32], &[f32]) = (call.read(0), call.read(1));
        let cols = self.shape[AXES - 1];
        let steps = [self.repeats_a, self.repeats_b].map(|repeats| steps(&self.shape, &repeats));
        // A last axis that is short is left to a single row of pairs; one that is long is cut.
        let piece = cols.min(super::tasks::TASK_ELEMENTS);
        if self.shape[..AXES - 1].iter().all(|&extent| extent == 1) {
            call.threads.chunks_mut(call.write(0), piece.max(1), &|task, y| {
                let [a, b] = [(a, steps[0]), (b, steps[1])]
                    .map(|(x, steps)| &x[task * piece * steps[AXES - 1]..]);
                pair_rows(self, [a, b], &steps, 0, y);
            });
            return Ok(());
        }
        let rows = rows_per_task(cols);
        call.threads.chunks_mut(call.write(0), rows * cols.max(1), &|task, y| {
            pair_rows(self, [a, b], &steps, task * rows, y);
        });
        Ok(())
    }
}

/// How far an operand moves along each axis: not at all where it is repeated.
fn steps(shape: &[usize; AXES], repeats: &[bool; AXES]) -> [usize; AXES] {
    let mut steps = [0; AXES];
    let mut step = 1;
    for axis in (0..AXES).rev() {
        if !repeats[axis] {
            steps[axis] = step;
            step *= shape[axis];
        }
    }
    steps
}

/// Where row `row` begins.
#[inline(always)]
fn start(shape: &[usize; AXES], steps: &[usize; AXES], row: usize) -> usize {
    let (mut rest, mut start) = (row, 0);
    for axis in (0..AXES - 1).rev() {
        start += rest % shape[axis] * steps[axis];
        rest /= shape[axis];
    }
    start
}

vectorised! {
    /// Rows of `y` from number `first` on; the last may be a part.
    fn pair_rows<A>(
        op: &Binary, operands: [&[f32]; 2], steps: &[[usize; AXES]; 2], first: usize, y: &mut [f32],
    ) {
        match op.pair {
            Pair::Add => rows(op, operands, steps, first, y, |a, b| a + b),
            Pair::Sub => rows(op, operands, steps, first, y, |a, b| a - b),
            Pair::Mul => rows(op, operands, steps, first, y, |a, b| a * b),
            Pair::Div => rows(op, operands, steps, first, y, |a, b| a / b),
            Pair::Keep => {
                rows(op, operands, steps, first, y, |a, b| if b != 0.0 { a } else { 0.0 });
            }
            Pair::Equal => {
                rows(op, operands, steps, first, y, |a, b| if a == b { 1.0 } else { 0.0 });
            }
            Pair::Less => rows(op, operands, steps, first, y, |a, b| if a < b { 1.0 } else { 0.0 }),
        }
    }
}

#[inline(always)]
fn rows(
    op: &Binary,
    [a, b]: [&[f32]; 2],
    steps: &[[usize; AXES]; 2],
    first: usize,
    y: &mut [f32],
    f: impl Fn(f32, f32) -> f32,
) {
    let along = [steps[0][AXES - 1], steps[1][AXES - 1]];
    for (row, y) in y.chunks_mut(op.shape[AXES - 1].max(1)).enumerate() {
        let a = &a[start(&op.shape, &steps[0], first + row)..];
        let b = &b[start(&op.shape, &steps[1], first + row)..];
        match along {
            [1, 1] => {
                for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                    *y = f(a, b);
                }
            }
            [1, _] => {
                let b = b[0];
                for (y, &a) in y.iter_mut().zip(a) {
                    *y = f(a, b);
                }
            }
            [_, 1] => {
                let a = a[0];
                for (y, &b) in y.iter_mut().zip(b) {
                    *y = f(a, b);
                }
            }
            _ => y.fill(f(a[0], b[0])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::test_data::{assert_same_bits, compute, random};

    const PAIRS: [Pair; 7] =
        [Pair::Add, Pair::Sub, Pair::Mul, Pair::Div, Pair::Keep, Pair::Equal, Pair::Less];

    fn case(shape: [usize; AXES], a: usize, b: usize, pair: Pair) -> Binary {
        let repeats = |bits: usize| std::array::from_fn(|axis| bits >> (AXES - 1 - axis) & 1 == 1);
        Binary { shape, repeats_a: repeats(a), repeats_b: repeats(b), pair }
    }

    fn operands(op: &Binary) -> [Vec<f32>; 2] {
        let len = |repeats: [bool; AXES]| -> usize {
            op.shape
                .iter()
                .zip(repeats)
                .map(|(&n, repeated)| if repeated { 1 } else { n })
                .product()
        };
        // Few different numbers, so that some are equal and some zero.
        let coarse = |x: Vec<f32>| x.into_iter().map(|x| (2.0 * x).round() / 2.0).collect();
        [coarse(random(len(op.repeats_a), 1)), coarse(random(len(op.repeats_b), 2))]
    }

    /// Element by element, from the index along each axis.
    fn plain(op: &Binary, a: &[f32], b: &[f32]) -> Vec<f32> {
        let mut y = vec![];
        for flat in 0..op.shape.iter().product() {
            let mut index = [0; AXES];
            let mut rest: usize = flat;
            for axis in (0..AXES).rev() {
                index[axis] = rest % op.shape[axis];
                rest /= op.shape[axis];
            }
            let of = |repeats: [bool; AXES], x: &[f32]| {
                let mut at = 0;
                for axis in 0..AXES {
                    if !repeats[axis] {
                        at = at * op.shape[axis] + index[axis];
                    }
                }
                x[at]
            };
            let (a, b) = (of(op.repeats_a, a), of(op.repeats_b, b));
            y.push(match op.pair {
                Pair::Add => a + b,
                Pair::Sub => a - b,
                Pair::Mul => a * b,
                Pair::Div => a / b,
                Pair::Keep => {
                    if b == 0.0 {
                        0.0
                    } else {
                        a
                    }
                }
                Pair::Equal => f32::from(a == b),
                Pair::Less => f32::from(a < b),
            });
        }
        y
    }

    #[test]
    fn every_way_of_repeating_matches_plain_loops() {
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for a in 0..16 {
            for b in 0..16 {
                for pair in PAIRS {
                    let op = case([1, 1, 3, 2, 5, 19], a, b, pair);
                    let [x, z] = operands(&op);
                    let y = compute(op, &[&x, &z], &Threads::new(2)).unwrap().remove(0);
                    assert_eq!(bits(&y), bits(&plain(&op, &x, &z)), "{op:?}");
                }
            }
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for (shape, a, b) in [
            ([1, 1, 1, 1, 1, 50_001], 0, 0),
            ([1, 1, 1, 1, 1, 50_001], 0, 1),
            ([1, 1, 1, 4, 77, 130], 0, 2),
            ([1, 1, 2, 3, 400, 33], 4, 1),
            ([1, 1, 1, 1, 3, 40_000], 0, 2),
        ] {
            let op = case(shape, a, b, Pair::Mul);
            let [x, z] = operands(&op);
            assert_same_bits(|threads| compute(op, &[&x, &z], threads).unwrap());
        }
    }
}
