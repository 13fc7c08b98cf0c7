//! Addition and scaling, element by element.

use super::lanes::vectorised;
use super::tasks::TASK_ELEMENTS;
use crate::Threads;

/// `y = a + b`.
pub fn add(a: &[f32], b: &[f32], y: &mut [f32], threads: &Threads) {
    assert_eq!((a.len(), b.len()), (y.len(), y.len()), "operand lengths");
    threads.chunks_mut(y, TASK_ELEMENTS, &|task, y| {
        let range = task * TASK_ELEMENTS..task * TASK_ELEMENTS + y.len();
        add_chunk(&a[range.clone()], &b[range], y);
    });
}

/// `y = factor · x`.
pub fn scale(factor: f32, x: &[f32], y: &mut [f32], threads: &Threads) {
    assert_eq!(x.len(), y.len(), "operand lengths");
    threads.chunks_mut(y, TASK_ELEMENTS, &|task, y| {
        let start = task * TASK_ELEMENTS;
        scale_chunk(factor, &x[start..start + y.len()], y);
    });
}

vectorised! {
    fn add_chunk<A>(a: &[f32], b: &[f32], y: &mut [f32]) {
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            *y = a + b;
        }
    }
}

vectorised! {
    fn scale_chunk<A>(factor: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = factor * x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::test_data::{AWKWARD_LENGTHS, random};

    #[test]
    fn add_and_scale_are_exact() {
        for len in AWKWARD_LENGTHS {
            let (a, b) = (random(len, 1), random(len, 2));
            let want_sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            let want_scaled: Vec<f32> = a.iter().map(|a| -0.3 * a).collect();
            for count in [1, 2, 3] {
                let threads = Threads::new(count);
                let mut y = vec![f32::NAN; len];
                add(&a, &b, &mut y, &threads);
                assert_eq!(y, want_sum);
                scale(-0.3, &a, &mut y, &threads);
                assert_eq!(y, want_scaled);
            }
        }
    }
}
