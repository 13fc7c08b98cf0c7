//! Softmax cross-entropy with class labels, averaged over the rows that count.
//!
//! Nothing of the size of the logits is kept: a row's exponentials go through a buffer on the
//! stack, and the backward recomputes them from the saved logarithm of their sum. When no row
//! counts, the loss is NaN and the gradient zero, as in PyTorch. Labels are smoothed as PyTorch
//! does: a share of each is spread over all classes.

use super::KernelError;
use super::lanes::{maximum, sum, vectorised};
use super::math::exp;
use super::tasks::rows_per_task;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{CrossEntropy, CrossEntropyDx};

/// Exponentials taken at a time: a few vectors, and 2 KiB of stack.
const BUFFER: usize = 512;

/// Nothing is written if a label is no class and not [`CrossEntropy::IGNORE`]. The scratch is for
/// the mean of each row's logits, where labels are smoothed.
impl Kernel for CrossEntropy {
    fn scratch(&self, _: usize) -> usize {
        if self.smoothing > 0.0 { self.rows } else { 0 }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (logits, labels): (&[f32], &[i64]) = (call.read(0), call.read(1));
        let (loss, lse): (&mut [f32], &mut [f32]) = (call.write(0), call.write(1));
        let counted = check_labels(self, labels)?;
        let rows = rows_per_task(self.classes);
        call.threads.chunks_mut(lse, rows, &|task, lse| {
            let start = task * rows * self.classes;
            lse_rows(&logits[start..start + lse.len() * self.classes], lse);
        });
        let means = &mut call.scratch()[..Kernel::scratch(self, 1)];
        call.threads.chunks_mut(means, rows, &|task, means| {
            let start = task * rows * self.classes;
            let rows = logits[start..].chunks_exact(self.classes);
            for (mean, row) in means.iter_mut().zip(rows) {
                *mean = (row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64) as f32;
            }
        });
        let spread = f64::from(self.smoothing);
        let row_loss = |(row, &label): (usize, &i64)| {
            let class = usize::try_from(label).ok()?; // None for the ignored label.
            let logit = f64::from(logits[row * self.classes + class]);
            let lse = f64::from(lse[row]);
            Some(match means.get(row) {
                Some(&mean) => lse - ((1.0 - spread) * logit + spread * f64::from(mean)),
                None => lse - logit,
            })
        };
        let total: f64 = labels.iter().enumerate().filter_map(row_loss).sum();
        loss[0] = (total / counted as f64) as f32;
        Ok(())
    }
}

impl Kernel for CrossEntropyDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let classes = self.0.classes;
        let [logits, lse, dloss]: [&[f32]; 3] = [0, 2, 3].map(|k| call.read(k));
        let labels: &[i64] = call.read(1);
        let counted = check_labels(&self.0, labels)?;
        let factor = dloss[0] / counted as f32;
        let smoothing = self.0.smoothing;
        let everywhere = factor * smoothing / classes as f32;
        let at_label = factor * (1.0 - smoothing);
        let rows = rows_per_task(classes);
        call.threads.chunks_mut(call.write(0), rows * classes, &|task, dlogits| {
            let chunks = dlogits.chunks_exact_mut(classes).enumerate();
            for (row, dlogits) in chunks.map(|(i, chunk)| (task * rows + i, chunk)) {
                let Ok(class) = usize::try_from(labels[row]) else {
                    dlogits.fill(0.0);
                    continue;
                };
                let logits = &logits[row * classes..(row + 1) * classes];
                scaled_softmax(logits, lse[row], factor, dlogits);
                if smoothing > 0.0 {
                    dlogits.iter_mut().for_each(|d| *d -= everywhere);
                }
                dlogits[class] -= at_label;
            }
        });
        Ok(())
    }
}

/// Checks the labels; returns how many rows count.
fn check_labels(dims: &CrossEntropy, labels: &[i64]) -> Result<usize, KernelError> {
    let mut counted = 0;
    for (row, &label) in labels.iter().enumerate() {
        if label == CrossEntropy::IGNORE {
            continue;
        }
        if !usize::try_from(label).is_ok_and(|class| class < dims.classes) {
            let classes = dims.classes;
            return Err(KernelError::LabelOutOfRange { row, label, classes });
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
    use crate::Threads;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{assert_close, assert_same_bits, compute, random};

    const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 5), (40, 33), (17, 1000), (5, 30522)];

    const IGNORE: f32 = CrossEntropy::IGNORE as f32;

    fn labels(dims: &CrossEntropy) -> Vec<f32> {
        let label = |row| match row % 4 {
            2 => IGNORE,
            _ => (row * 7919 % dims.classes) as f32,
        };
        (0..dims.rows).map(label).collect()
    }

    /// Loss and gradient (for `dloss = 3`) in `f64`.
    fn reference(dims: &CrossEntropy, x: &[f32], labels: &[f32]) -> (f64, Vec<f64>) {
        let counted = labels.iter().filter(|&&l| l != IGNORE).count() as f64;
        let mut loss = 0.0;
        let mut gradient = vec![0.0; x.len()];
        for (row, &label) in labels.iter().enumerate() {
            if label == IGNORE {
                continue;
            }
            let range = row * dims.classes..(row + 1) * dims.classes;
            let x: Vec<f64> = x[range.clone()].iter().map(|&x| f64::from(x)).collect();
            let lse = x.iter().map(|x| x.exp()).sum::<f64>().ln();
            let s = f64::from(dims.smoothing);
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            loss += (lse - (1.0 - s) * x[label as usize] - s * mean) / counted;
            for (i, (g, x)) in gradient[range].iter_mut().zip(x).enumerate() {
                let own = f64::from(u8::from(i == label as usize));
                let target = (1.0 - s) * own + s / dims.classes as f64;
                *g = 3.0 / counted * ((x - lse).exp() - target);
            }
        }
        (loss, gradient)
    }

    /// `[loss, lse, dlogits]`.
    fn run(
        dims: CrossEntropy,
        x: &[f32],
        labels: &[f32],
        dloss: f32,
        threads: &Threads,
    ) -> Vec<Vec<f32>> {
        let mut outputs = compute(dims, &[x, labels], threads).unwrap();
        let reads = [x, labels, &outputs[1], &[dloss]];
        let gradient = compute(CrossEntropyDx(dims), &reads, threads).unwrap();
        outputs.extend(gradient);
        outputs
    }

    #[test]
    fn loss_and_gradient_match_the_definition() {
        let threads = Threads::new(1);
        for ((rows, classes), smoothing) in SHAPES.into_iter().flat_map(|s| [(s, 0.0), (s, 0.1)]) {
            let dims = CrossEntropy { rows, classes, smoothing };
            let (x, labels) = (random(rows * classes, 1), labels(&dims));
            let (want_loss, want) = reference(&dims, &x, &labels);
            let check = || {
                let outputs = run(dims, &x, &labels, 3.0, &threads);
                // The stored lse (about 10) is good to half a unit, 5e-7.
                assert_close(&outputs[0], &[want_loss], 1e-6, 1e-6);
                // The exponential inherits that, and the target's subtraction is rounded once.
                assert_close(&outputs[2], &want, 3e-6, 1e-6);
            };
            check();
            portable(check);
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for ((rows, classes), smoothing) in SHAPES.into_iter().flat_map(|s| [(s, 0.0), (s, 0.1)]) {
            let dims = CrossEntropy { rows, classes, smoothing };
            let (x, labels) = (random(rows * classes, 2), labels(&dims));
            assert_same_bits(|threads| run(dims, &x, &labels, 1.0, threads));
        }
    }

    #[test]
    fn no_row_counts() {
        let dims = CrossEntropy { rows: 2, classes: 3, smoothing: 0.0 };
        let outputs = run(dims, &[0.5; 6], &[IGNORE; 2], 1.0, &Threads::new(1));
        assert!(outputs[0][0].is_nan());
        assert_eq!(outputs[2], [0.0; 6]);
    }

    #[test]
    fn a_label_that_is_no_class_is_named() {
        let dims = CrossEntropy { rows: 2, classes: 3, smoothing: 0.0 };
        for label in [3, -1, i64::MAX, i64::MIN] {
            let reads: [&[f32]; 2] = [&[0.5; 6], &[0.0, label as f32]];
            let result = compute(dims, &reads, &Threads::new(1));
            let want = KernelError::LabelOutOfRange { row: 1, label, classes: 3 };
            assert_eq!(result, Err(want));
        }
    }
}
