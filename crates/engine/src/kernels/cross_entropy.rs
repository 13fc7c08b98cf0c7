//! Softmax cross-entropy with class labels, averaged over the rows that count.
//!
//! Nothing of the size of the logits is kept: a row's exponentials go through a buffer on the
//! stack, and the backward recomputes them from the saved logarithm of their sum. When no row
//! counts, the loss is NaN and the gradient zero, as in PyTorch.

use super::KernelError;
use super::lanes::{maximum, sum, vectorised};
use super::math::exp;
use super::tasks::rows_per_task;
use crate::Threads;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{CrossEntropy, CrossEntropyDx};

/// Exponentials taken at a time: a few vectors, and 2 KiB of stack.
const BUFFER: usize = 512;

impl Kernel for CrossEntropy {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (logits, labels) = (call.read(0), call.read(1));
        cross_entropy(
            self,
            logits,
            labels,
            call.write(0),
            call.write(1),
            call.threads,
        )
    }
}

impl Kernel for CrossEntropyDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let [logits, lse, dloss] = [0, 2, 3].map(|k| call.read(k));
        cross_entropy_dx(
            &self.0,
            logits,
            call.read(1),
            lse,
            dloss,
            call.write(0),
            call.threads,
        )
    }
}

/// `cross_entropy`: `logits, labels → loss, lse`.
///
/// # Errors
/// If a label is no class and not [`CrossEntropy::IGNORE`]; nothing is written then.
fn cross_entropy(
    dims: &CrossEntropy,
    logits: &[f32],
    labels: &[i64],
    loss: &mut [f32],
    lse: &mut [f32],
    threads: &Threads,
) -> Result<(), KernelError> {
    assert_eq!((loss.len(), lse.len()), (1, dims.rows), "operand lengths");
    let counted = check_operands(dims, logits, labels)?;
    let rows = rows_per_task(dims.classes);
    threads.chunks_mut(lse, rows, &|task, lse| {
        let start = task * rows * dims.classes;
        lse_rows(&logits[start..start + lse.len() * dims.classes], lse);
    });
    let row_loss = |(row, &label): (usize, &i64)| {
        let class = usize::try_from(label).ok()?; // None for the ignored label.
        Some(f64::from(lse[row]) - f64::from(logits[row * dims.classes + class]))
    };
    let total: f64 = labels.iter().enumerate().filter_map(row_loss).sum();
    loss[0] = (total / counted as f64) as f32;
    Ok(())
}

/// `cross_entropy_dx`: `logits, labels, lse, dloss → dlogits`.
///
/// # Errors
/// As [`cross_entropy`].
fn cross_entropy_dx(
    dims: &CrossEntropy,
    logits: &[f32],
    labels: &[i64],
    lse: &[f32],
    dloss: &[f32],
    dlogits: &mut [f32],
    threads: &Threads,
) -> Result<(), KernelError> {
    assert_eq!((dloss.len(), lse.len()), (1, dims.rows), "operand lengths");
    assert_eq!(logits.len(), dlogits.len(), "operand lengths");
    let counted = check_operands(dims, logits, labels)?;
    let factor = dloss[0] / counted as f32;
    let rows = rows_per_task(dims.classes);
    threads.chunks_mut(dlogits, rows * dims.classes, &|task, dlogits| {
        let chunks = dlogits.chunks_exact_mut(dims.classes).enumerate();
        for (row, dlogits) in chunks.map(|(i, chunk)| (task * rows + i, chunk)) {
            let Ok(class) = usize::try_from(labels[row]) else {
                dlogits.fill(0.0);
                continue;
            };
            let start = row * dims.classes;
            scaled_softmax(
                &logits[start..start + dims.classes],
                lse[row],
                factor,
                dlogits,
            );
            dlogits[class] -= factor;
        }
    });
    Ok(())
}

/// Checks lengths and labels; returns how many rows count.
fn check_operands(
    dims: &CrossEntropy,
    logits: &[f32],
    labels: &[i64],
) -> Result<usize, KernelError> {
    let want = (dims.rows * dims.classes, dims.rows);
    assert_eq!((logits.len(), labels.len()), want, "operand lengths");
    let mut counted = 0;
    for (row, &label) in labels.iter().enumerate() {
        if label == CrossEntropy::IGNORE {
            continue;
        }
        if !usize::try_from(label).is_ok_and(|class| class < dims.classes) {
            let classes = dims.classes;
            return Err(KernelError::LabelOutOfRange {
                row,
                label,
                classes,
            });
        }
        counted += 1;
    }
    Ok(counted)
}

vectorised! {
    fn lse_rows<A>(logits: &[f32], lse: &mut [f32]) {
        let classes = logits.len() / lse.len();
        for (x, lse) in logits.chunks_exact(classes).zip(lse) {
            let shift = maximum(x);
            let mut total = 0.0;
            let mut buffer = [0.0; BUFFER];
            for x in x.chunks(BUFFER) {
                let exponentials = &mut buffer[..x.len()];
                for (e, &x) in exponentials.iter_mut().zip(x) {
                    *e = exp::<A>(x - shift);
                }
                total += f64::from(sum(exponentials));
            }
            *lse = (f64::from(shift) + total.ln()) as f32;
        }
    }
}

vectorised! {
    fn scaled_softmax<A>(x: &[f32], lse: f32, factor: f32, y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = factor * exp::<A>(x - lse);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{assert_close, assert_same_bits, random};

    const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 5), (40, 33), (17, 1000), (5, 30522)];

    fn labels(dims: &CrossEntropy) -> Vec<i64> {
        let label = |row| match row % 4 {
            2 => CrossEntropy::IGNORE,
            _ => (row * 7919 % dims.classes) as i64,
        };
        (0..dims.rows).map(label).collect()
    }

    /// Loss and gradient (for `dloss = 3`) in `f64`.
    fn reference(dims: &CrossEntropy, x: &[f32], labels: &[i64]) -> (f64, Vec<f64>) {
        let counted = labels
            .iter()
            .filter(|&&l| l != CrossEntropy::IGNORE)
            .count() as f64;
        let mut loss = 0.0;
        let mut gradient = vec![0.0; x.len()];
        for (row, &label) in labels.iter().enumerate() {
            if label == CrossEntropy::IGNORE {
                continue;
            }
            let range = row * dims.classes..(row + 1) * dims.classes;
            let x: Vec<f64> = x[range.clone()].iter().map(|&x| f64::from(x)).collect();
            let lse = x.iter().map(|x| x.exp()).sum::<f64>().ln();
            loss += (lse - x[label as usize]) / counted;
            for (i, (g, x)) in gradient[range].iter_mut().zip(x).enumerate() {
                let target = f64::from(u8::from(i as i64 == label));
                *g = 3.0 / counted * ((x - lse).exp() - target);
            }
        }
        (loss, gradient)
    }

    #[test]
    fn loss_and_gradient_match_the_definition() {
        let threads = Threads::new(1);
        for (rows, classes) in SHAPES {
            let dims = CrossEntropy { rows, classes };
            let (x, labels) = (random(rows * classes, 1), labels(&dims));
            let (want_loss, want) = reference(&dims, &x, &labels);
            let check = || {
                let (mut loss, mut lse) = ([9.0], vec![9.0; rows]);
                let mut dx = vec![9.0; rows * classes];
                cross_entropy(&dims, &x, &labels, &mut loss, &mut lse, &threads).unwrap();
                cross_entropy_dx(&dims, &x, &labels, &lse, &[3.0], &mut dx, &threads).unwrap();
                // The stored lse (about 10) is good to half a unit, 5e-7.
                assert_close(&loss, &[want_loss], 1e-6, 1e-6);
                // The exponential inherits that, and the target's subtraction is rounded once.
                assert_close(&dx, &want, 3e-6, 1e-6);
            };
            check();
            portable(check);
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for (rows, classes) in SHAPES {
            let dims = CrossEntropy { rows, classes };
            let (x, labels) = (random(rows * classes, 2), labels(&dims));
            assert_same_bits(|threads| {
                let (mut loss, mut lse) = (vec![9.0], vec![9.0; rows]);
                let mut dx = vec![9.0; rows * classes];
                cross_entropy(&dims, &x, &labels, &mut loss, &mut lse, threads).unwrap();
                cross_entropy_dx(&dims, &x, &labels, &lse, &[1.0], &mut dx, threads).unwrap();
                vec![loss, lse, dx]
            });
        }
    }

    #[test]
    fn no_row_counts() {
        let dims = CrossEntropy {
            rows: 2,
            classes: 3,
        };
        let (x, labels, threads) = ([0.5; 6], [CrossEntropy::IGNORE; 2], Threads::new(1));
        let (mut loss, mut lse, mut dx) = ([9.0], [9.0; 2], [9.0; 6]);
        cross_entropy(&dims, &x, &labels, &mut loss, &mut lse, &threads).unwrap();
        assert!(loss[0].is_nan());
        cross_entropy_dx(&dims, &x, &labels, &lse, &[1.0], &mut dx, &threads).unwrap();
        assert_eq!(dx, [0.0; 6]);
    }

    #[test]
    fn a_label_that_is_no_class_is_named() {
        let dims = CrossEntropy {
            rows: 2,
            classes: 3,
        };
        let (mut loss, mut lse) = ([9.0], [9.0; 2]);
        for label in [3, -1, i64::MAX, i64::MIN] {
            let result = cross_entropy(
                &dims,
                &[0.5; 6],
                &[0, label],
                &mut loss,
                &mut lse,
                &Threads::new(1),
            );
            let want = KernelError::LabelOutOfRange {
                row: 1,
                label,
                classes: 3,
            };
            assert_eq!(result, Err(want));
        }
    }
}
