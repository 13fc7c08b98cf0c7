//! Addition and scaling, element by element.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::map_elements;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Add, Scale};

impl Kernel for Add {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        map_elements(call, |[a, b], y| add_chunk(a, b, y));
        Ok(())
    }
}

impl Kernel for Scale {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        map_elements(call, |[x], y| scale_chunk(self.factor, x, y));
        Ok(())
    }
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
    use crate::Threads;
    use crate::kernels::test_data::{AWKWARD_LENGTHS, compute, random};

    #[test]
    fn add_and_scale_are_exact() {
        for len in AWKWARD_LENGTHS {
            let (a, b) = (random(len, 1), random(len, 2));
            let want_sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            let want_scaled: Vec<f32> = a.iter().map(|a| -0.3 * a).collect();
            for count in [1, 2, 3] {
                let threads = Threads::new(count);
                let sum = compute(Add { len }, &[&a, &b], &threads).unwrap();
                assert_eq!(sum[0], want_sum);
                let factor = -0.3;
                let scaled = compute(Scale { len, factor }, &[&a], &threads).unwrap();
                assert_eq!(scaled[0], want_scaled);
            }
        }
    }
}
