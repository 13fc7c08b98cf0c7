//! The optimizers' updates, in PyTorch's formulas and order.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::{TASK_ELEMENTS, chunks_mut2, chunks_mut3};
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Adam, AdamOptions, Sgd, SgdOptions};

impl Kernel for Sgd {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        if !call.update_of_step.ends {
            return Ok(());
        }
        let has_momentum = self.options.momentum != 0.0;
        let scale = clip_scale(self.clip, call, 2 + usize::from(has_momentum));
        let rate = call.update_of_step.learning_rate;
        let learning_rate = rate.map_or(self.options.learning_rate, |rate| rate as f32);
        let options = SgdOptions { learning_rate, ..self.options };
        let (param, grad): (&mut [f32], &[f32]) = (call.update(0), call.read(1));
        let range = |task: usize, len: usize| task * TASK_ELEMENTS..task * TASK_ELEMENTS + len;
        if !has_momentum {
            call.threads.chunks_mut(param, TASK_ELEMENTS, &|task, param| {
                sgd_chunk(&options, scale, param, &grad[range(task, param.len())]);
            });
            return Ok(());
        }
        let (param, momentum) = ((param, TASK_ELEMENTS), (call.update(2), TASK_ELEMENTS));
        chunks_mut2(call.threads, param, momentum, |task, param, momentum| {
            let grad = &grad[range(task, param.len())];
            sgd_momentum_chunk(&options, scale, param, grad, momentum);
        });
        Ok(())
    }
}

/// Panics in update zero: the correction of the bias counts them from 1.
impl Kernel for Adam {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let told = call.update_of_step;
        if !told.ends {
            return Ok(());
        }
        let number = told.number.unwrap_or(call.iteration.number);
        assert!(number > 0, "Adam counts updates from 1");
        let scale = clip_scale(self.clip, call, 4);
        let grad: &[f32] = call.read(1);
        let rate = told.learning_rate.unwrap_or(f64::from(self.options.learning_rate));
        let rates = AdamRates::new(&self.options, rate, number);
        let [param, first, second] = [0, 2, 3].map(|k| (call.update(k), TASK_ELEMENTS));
        chunks_mut3(call.threads, param, first, second, |task, param, first, second| {
            let start = task * TASK_ELEMENTS;
            let grad = &grad[start..start + param.len()];
            adam_chunk(&rates, scale, param, grad, first, second);
        });
        Ok(())
    }
}

/// What gradients are multiplied with, so that the norm of all is at most `clip`: as PyTorch's
/// `clip_grad_norm_` has it. The sum of their squares is read number `total`.
fn clip_scale(clip: Option<f32>, call: &Call<'_>, total: usize) -> f32 {
    let Some(most) = clip else {
        return 1.0;
    };
    let total: &[f32] = call.read(total);
    (most / (total[0].sqrt() + 1e-6)).min(1.0)
}

vectorised! {
    fn sgd_chunk<A>(options: &SgdOptions, scale: f32, param: &mut [f32], grad: &[f32]) {
        for (p, &g) in param.iter_mut().zip(grad) {
            let g = scale * g;
            let g = A::mul_add(options.weight_decay, *p, g);
            *p = A::mul_add(-options.learning_rate, g, *p);
        }
    }
}

vectorised! {
    fn sgd_momentum_chunk<A>(
        options: &SgdOptions, scale: f32, param: &mut [f32], grad: &[f32], momentum: &mut [f32],
    ) {
        for ((p, &g), m) in param.iter_mut().zip(grad).zip(momentum) {
            let g = scale * g;
            let g = A::mul_add(options.weight_decay, *p, g);
            *m = A::mul_add(options.momentum, *m, g);
            *p = A::mul_add(-options.learning_rate, *m, *p);
        }
    }
}

/// The factors of one step, computed in `f64` as PyTorch does.
struct AdamRates {
    /// `1 - beta1` and `1 - beta2`.
    first: f32,
    second: f32,
    /// `beta2`.
    second_decay: f32,
    /// `1 / √(1 - beta2^number)`.
    root_scale: f32,
    eps: f32,
    /// `learning_rate / (1 - beta1^number)`.
    step_size: f32,
    /// Added to the gradient, in parts of the parameter.
    penalty: f32,
    /// What the parameter is multiplied with first.
    shrink: f32,
}

impl AdamRates {
    fn new(options: &AdamOptions, rate: f64, number: u64) -> AdamRates {
        let power = |beta: f64| beta.powf(number as f64);
        let decay = f64::from(options.weight_decay);
        AdamRates {
            first: (1.0 - options.beta1) as f32,
            second: (1.0 - options.beta2) as f32,
            second_decay: options.beta2 as f32,
            root_scale: (1.0 / (1.0 - power(options.beta2)).sqrt()) as f32,
            eps: options.eps,
            step_size: (rate / (1.0 - power(options.beta1))) as f32,
            penalty: if options.decoupled { 0.0 } else { options.weight_decay },
            shrink: if options.decoupled { (1.0 - rate * decay) as f32 } else { 1.0 },
        }
    }
}

vectorised! {
    fn adam_chunk<A>(
        rates: &AdamRates, scale: f32, param: &mut [f32], grad: &[f32], first: &mut [f32],
        second: &mut [f32],
    ) {
        let moments = first.iter_mut().zip(second);
        for ((p, &g), (m, v)) in param.iter_mut().zip(grad).zip(moments) {
            let g = scale * g;
            let start = *p * rates.shrink;
            let g = A::mul_add(rates.penalty, *p, g);
            *m = A::mul_add(rates.first, g - *m, *m);
            *v = A::mul_add(rates.second * g, g, rates.second_decay * *v);
            let root = A::mul_add(v.sqrt(), rates.root_scale, rates.eps);
            *p = A::mul_add(-rates.step_size, *m / root, start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{
        AWKWARD_LENGTHS, assert_close, assert_same_bits, compute_in, random,
    };
    use crate::{Iteration, Threads};
    use rekindle_program::op::Op;

    const STEPS: u64 = 5;

    fn sgd_cases(len: usize) -> [Sgd; 3] {
        let case = |momentum, weight_decay| {
            let options = SgdOptions { learning_rate: 0.1, momentum, weight_decay };
            Sgd { len, options, clip: None }
        };
        [case(0.0, 0.0), case(0.0, 0.01), case(0.9, 0.01)]
    }

    fn adam_cases(len: usize) -> [Adam; 3] {
        let case = |weight_decay, decoupled| {
            let options = AdamOptions {
                learning_rate: 0.01,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay,
                decoupled,
            };
            Adam { len, options, clip: None }
        };
        [case(0.0, false), case(0.1, false), case(0.1, true)]
    }

    /// Five steps with changing gradients: what is updated.
    fn run(op: Op, len: usize, state: usize, threads: &Threads) -> Vec<Vec<f32>> {
        let mut updated = vec![vec![0.0; len]; 1 + state];
        updated[0] = random(len, 1);
        for step in 1..=STEPS {
            let grad = random(len, 10 + step);
            let mut reads: Vec<&[f32]> = updated.iter().map(|values| &values[..]).collect();
            reads.insert(1, &grad);
            updated = compute_in(Iteration { seed: 0, number: step }, op, &reads, threads).unwrap();
        }
        updated
    }

    fn run_sgd(dims: &Sgd, threads: &Threads) -> Vec<Vec<f32>> {
        let state = usize::from(dims.options.momentum != 0.0);
        run((*dims).into(), dims.len, state, threads)
    }

    fn run_adam(dims: &Adam, threads: &Threads) -> Vec<Vec<f32>> {
        run((*dims).into(), dims.len, 2, threads)
    }

    fn reference_sgd(dims: &Sgd) -> Vec<f64> {
        let element = |i: usize| {
            let (mut p, mut m) = (f64::from(random(dims.len, 1)[i]), 0.0);
            for step in 1..=STEPS {
                let g = f64::from(random(dims.len, 10 + step)[i])
                    + f64::from(dims.options.weight_decay) * p;
                m = f64::from(dims.options.momentum) * m + g;
                p -= f64::from(dims.options.learning_rate) * m;
            }
            p
        };
        (0..dims.len).map(element).collect()
    }

    fn reference_adam(dims: &Adam) -> Vec<f64> {
        let (beta1, beta2) = (dims.options.beta1, dims.options.beta2);
        let (rate, decay) =
            (f64::from(dims.options.learning_rate), f64::from(dims.options.weight_decay));
        let element = |i: usize| {
            let (mut p, mut m, mut v) = (f64::from(random(dims.len, 1)[i]), 0.0, 0.0);
            for step in 1..=STEPS {
                let mut g = f64::from(random(dims.len, 10 + step)[i]);
                if dims.options.decoupled {
                    p *= 1.0 - rate * decay;
                } else {
                    g += decay * p;
                }
                m = beta1 * m + (1.0 - beta1) * g;
                v = beta2 * v + (1.0 - beta2) * g * g;
                let (m_hat, v_hat) =
                    (m / (1.0 - beta1.powi(step as i32)), v / (1.0 - beta2.powi(step as i32)));
                p -= rate * m_hat / (v_hat.sqrt() + f64::from(dims.options.eps));
            }
            p
        };
        (0..dims.len).map(element).collect()
    }

    #[test]
    fn five_steps_match_the_definition() {
        let threads = Threads::new(1);
        // Each step moves a parameter of size up to 3 by one rounded addition: 5 · 2^-23 · 3.
        for dims in sgd_cases(100) {
            let want = reference_sgd(&dims);
            assert_close(&run_sgd(&dims, &threads)[0], &want, 0.0, 2e-6);
            assert_close(&portable(|| run_sgd(&dims, &threads))[0].clone(), &want, 0.0, 2e-6);
        }
        for dims in adam_cases(100) {
            let want = reference_adam(&dims);
            assert_close(&run_adam(&dims, &threads)[0], &want, 0.0, 2e-6);
            assert_close(&portable(|| run_adam(&dims, &threads))[0].clone(), &want, 0.0, 2e-6);
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for len in AWKWARD_LENGTHS {
            assert_same_bits(|threads| run_sgd(&sgd_cases(len)[2], threads));
            assert_same_bits(|threads| run_adam(&adam_cases(len)[1], threads));
        }
    }
}
