//! What a tensor holds before the first step, as a pure function of the seed.
//!
//! Element `i` of tensor `t` depends on (seed, t, i) alone: the same values come out on any number
//! of threads, and one tensor's values do not depend on which others are filled.

use std::sync::Arc;

use crate::random::Stream;

/// What a source holds before the first step.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// All zero. Data and labels start like this, until somebody writes them.
    Zeros,
    /// All one.
    Ones,
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// The bound.
        bound: f32,
    },
    /// Normal with mean zero.
    Normal {
        /// The standard deviation.
        std: f32,
    },
    /// These integers, again and again.
    Ids(Vec<i64>),
    /// 0, 1, 2 and so on up to this many, again and again.
    Count(usize),
    /// These numbers.
    Table(Arc<[f32]>),
}

impl Init {
    /// Fills a part of tensor number `tensor` of a program, from element `first` on, with what it
    /// holds at the start. `first` is even: numbers are drawn in pairs.
    pub fn fill_f32(&self, seed: u64, tensor: usize, first: usize, out: &mut [f32]) {
        assert!(first.is_multiple_of(2), "a part begins at an even element, not at {first}");
        let from = first as u64;
        let stream = Stream::new(seed).branch(tensor as u64);
        match self {
            Init::Zeros => out.fill(0.0),
            Init::Ones => out.fill(1.0),
            Init::Uniform { bound } => {
                for (i, value) in (from..).zip(out) {
                    *value = ((2.0 * stream.unit(i) - 1.0) * f64::from(*bound)) as f32;
                }
            }
            Init::Normal { std } => {
                for (even, values) in (from..).step_by(2).zip(out.chunks_mut(2)) {
                    for (value, normal) in values.iter_mut().zip(stream.normal_pair(even)) {
                        *value = (normal * f64::from(*std)) as f32;
                    }
                }
            }
            Init::Ids(ids) => {
                for (index, value) in (first..).zip(out) {
                    *value = ids[index % ids.len()] as f32;
                }
            }
            Init::Count(count) => {
                for (index, value) in (first..).zip(out) {
                    *value = (index % count) as f32;
                }
            }
            Init::Table(table) => out.copy_from_slice(&table[first..first + out.len()]),
        }
    }

    /// Fills a part of an integer tensor, from element `first` on; what is random has no integer
    /// values, and gives zeros.
    pub fn fill_i64(&self, first: usize, out: &mut [i64]) {
        match self {
            Init::Ids(ids) => {
                for (index, value) in (first..).zip(out) {
                    *value = ids[index % ids.len()];
                }
            }
            Init::Count(count) => {
                for (index, value) in (first..).zip(out) {
                    *value = (index % count) as i64;
                }
            }
            Init::Ones => out.fill(1),
            Init::Table(table) => {
                for (value, &number) in out.iter_mut().zip(&table[first..]) {
                    *value = number as i64;
                }
            }
            Init::Zeros | Init::Uniform { .. } | Init::Normal { .. } => out.fill(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(init: &Init, seed: u64, tensor: usize) -> Vec<f32> {
        let mut out = vec![0.0; 100_000];
        init.fill_f32(seed, tensor, 0, &mut out);
        out
    }

    fn mean_and_deviation(values: &[f32]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let square = |v: &f32| (f64::from(*v) - mean).powi(2);
        (mean, (values.iter().map(square).sum::<f64>() / n).sqrt())
    }

    #[test]
    fn normal_has_its_moments() {
        let (mean, deviation) = mean_and_deviation(&sample(&Init::Normal { std: 0.02 }, 1, 2));
        // Four standard errors of 100,000 draws.
        assert!(mean.abs() < 0.02 * 4.0 / 316.0, "{mean}");
        assert!((deviation / 0.02 - 1.0).abs() < 4.0 / 447.0, "{deviation}");
    }

    #[test]
    fn uniform_stays_in_its_bounds_and_fills_them() {
        let values = sample(&Init::Uniform { bound: 0.5 }, 7, 0);
        assert!(values.iter().all(|v| (-0.5..=0.5).contains(v)));
        let (mean, deviation) = mean_and_deviation(&values);
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((deviation - 1.0 / 12f64.sqrt()).abs() < 0.005, "{deviation}");
    }

    #[test]
    fn values_depend_on_seed_and_tensor_and_on_nothing_else() {
        let init = Init::Normal { std: 1.0 };
        let values = sample(&init, 3, 4);
        assert_eq!(values, sample(&init, 3, 4));
        assert_ne!(values, sample(&init, 3, 5));
        assert_ne!(values, sample(&init, 4, 4));
        for init in [Init::Uniform { bound: 2.0 }, init, Init::Count(7), Init::Ids(vec![1, 2, 3])] {
            let mut part = vec![0.0; 11];
            init.fill_f32(3, 4, 6, &mut part);
            assert_eq!(sample(&init, 3, 4)[6..17], part[..], "a part is a part of the whole");
        }
    }

    #[test]
    fn ids_are_taken_as_they_are_again_and_again() {
        let mut out = [0; 6];
        Init::Ids(vec![5, -100, 7]).fill_i64(0, &mut out);
        assert_eq!(out, [5, -100, 7, 5, -100, 7]);
        Init::Count(4).fill_i64(0, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 0, 1]);
        assert_eq!(sample(&Init::Count(3), 0, 0)[..4], [0.0, 1.0, 2.0, 0.0]);
    }
}
