//! Addition and scaling, element by element.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::map_elements;
use crate::Threads;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Add, Scale};

impl Kernel for Add {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        add(call.read(0), call.read(1), call.write(0), call.threads);
        Ok(())
    }
}

impl Kernel for Scale {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        scale(self.factor, call.read(0), call.write(0), call.threads);
        Ok(())
    }
}

/// `y = a + b`.
fn add(a: &[f32], b: &[f32], y: &mut [f32], threads: &Threads) {
    map_elements(threads, [a, b], y, |[a, b], y| add_chunk(a, b, y));
}

/// `y = factor · x`.
fn scale(factor: f32, x: &[f32], y: &mut [f32], threads: &Threads) {
    map_elements(threads, [x], y, |[x], y| scale_chunk(factor, x, y));
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
