//! Dropout with a counter-based generator.
//!
//! The mask is a pure function of (seed, step, site, element): it costs no memory, and it is the
//! same in the backward and in a recomputation. It has two levels. Philox 4×32-10 (Salmon et al.,
//! "Parallel random numbers: as easy as 1, 2, 3", 2011), keyed by the seed and counting (block,
//! site, step), gives each block of [`BLOCK`] elements keys of its own: no two blocks of a run
//! share a counter. Within a block, an element's number goes through two rounds of multiply and
//! xor-shift with those keys in between, which is a handful of vector instructions.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::TASK_ELEMENTS;
use crate::Iteration;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::Dropout;

/// Elements that share the keys of one call of Philox; one task.
const BLOCK: usize = TASK_ELEMENTS;
/// Philox's rounds, multipliers and key increments, as published.
const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// Odd multipliers of the hash within a block: the golden ratio spreads consecutive numbers, the
/// others are the finaliser's of MurmurHash3.
const SPREAD: u32 = 0x9E37_79B9;
const MIX: [u32; 2] = [0x85EB_CA6B, 0xC2B2_AE35];
/// Bits of a word that decide: as many as `f32` can tell probabilities near one apart.
const BITS: u32 = 24;

/// As in PyTorch, an infinity or NaN that is dropped gives NaN, and `p = 1` drops everything.
impl Kernel for Dropout {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let site = Site::new(self, call.iteration);
        let x = call.read(0);
        call.threads.chunks_mut(call.write(0), BLOCK, &|block, y| {
            let start = block * BLOCK;
            let keys = site.keys(block as u32);
            drop_block(&site, keys, &x[start..start + y.len()], y);
        });
        Ok(())
    }
}

/// One dropout of one step.
struct Site {
    /// Philox's key.
    seed: [u32; 2],
    /// The words of its counter after the block: site and step.
    counter: [u32; 3],
    /// A word whose upper [`BITS`] bits are below this drops its element.
    threshold: i32,
    /// What a kept element is multiplied with.
    scale: f32,
}

impl Site {
    fn new(dims: &Dropout, Iteration { seed, number }: Iteration) -> Site {
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let kept = 1.0 - f64::from(dims.p);
        Site {
            seed: halves(seed),
            counter: [dims.site, halves(number)[0], halves(number)[1]],
            threshold: (f64::from(dims.p) * f64::from(1 << BITS)).round() as i32,
            scale: if kept > 0.0 { (1.0 / kept) as f32 } else { 0.0 },
        }
    }

    /// The keys of a block: Philox of (block, site, step).
    fn keys(&self, block: u32) -> [u32; 4] {
        let [site, low, high] = self.counter;
        let mut c = [block, site, low, high];
        let mut key = self.seed;
        for _ in 0..ROUNDS {
            let p0 = u64::from(c[0]) * u64::from(MULTIPLIERS[0]);
            let p1 = u64::from(c[2]) * u64::from(MULTIPLIERS[1]);
            c = [
                (p1 >> 32) as u32 ^ c[1] ^ key[0],
                p1 as u32,
                (p0 >> 32) as u32 ^ c[3] ^ key[1],
                p0 as u32,
            ];
            key[0] = key[0].wrapping_add(INCREMENTS[0]);
            key[1] = key[1].wrapping_add(INCREMENTS[1]);
        }
        c
    }
}

/// The random word of element `i` of a block.
#[inline(always)]
fn word(keys: [u32; 4], i: u32) -> u32 {
    let h = i.wrapping_mul(SPREAD) ^ keys[0];
    let h = (h ^ (h >> 16)).wrapping_mul(MIX[0]) ^ keys[1];
    let h = (h ^ (h >> 13)).wrapping_mul(MIX[1]) ^ keys[2];
    h ^ (h >> 16) ^ keys[3]
}

vectorised! {
    /// The elements of one block.
    fn drop_block<A>(site: &Site, keys: [u32; 4], x: &[f32], y: &mut [f32]) {
        let (threshold, scale) = (site.threshold, site.scale);
        for (i, (x, y)) in x.iter().zip(y).enumerate() {
            let dropped = ((word(keys, i as u32) >> (32 - BITS)) as i32) < threshold;
            *y = x * if dropped { 0.0 } else { scale };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{AWKWARD_LENGTHS, assert_same_bits, compute_in, random};

    const LEN: usize = 1 << 18;

    /// The mask of `len` elements: true where kept.
    fn mask(p: f32, seed: u64, number: u64, site: u32, len: usize) -> Vec<bool> {
        let (iteration, op) = (Iteration { seed, number }, Dropout { len, p, site });
        let y = compute_in(iteration, op, &[&vec![1.0; len]], &Threads::new(1));
        let y = y.unwrap().remove(0);
        let scale = 1.0 / (1.0 - p);
        let near = |&y: &f32| y == 0.0 || (y / scale - 1.0).abs() < 1e-6;
        assert!(y.iter().all(near), "either dropped or scaled");
        y.iter().map(|&y| y != 0.0).collect()
    }

    /// How far `hits` in `tries` is from probability `p`, in standard deviations.
    fn deviations(hits: usize, tries: usize, p: f64) -> f64 {
        let n = tries as f64;
        (hits as f64 - n * p).abs() / (n * p * (1.0 - p)).sqrt()
    }

    #[test]
    fn the_generator_gives_the_published_words() {
        // Known answers of Philox 4×32-10 for counters and keys of all zeros and all ones.
        let keys = |word: u32| {
            let site = Site { seed: [word; 2], counter: [word; 3], threshold: 0, scale: 1.0 };
            site.keys(word)
        };
        assert_eq!(keys(0), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        assert_eq!(keys(u32::MAX), [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]);
    }

    #[test]
    fn keeps_the_stated_share() {
        for p in [0.1, 0.5, 0.9, 0.001] {
            let kept = mask(p, 1, 2, 3, LEN).iter().filter(|&&kept| kept).count();
            // A sound generator is outside 5 deviations once in two million; the seed is fixed.
            let far = deviations(kept, LEN, 1.0 - f64::from(p));
            assert!(far < 5.0, "p = {p}: {far} deviations");
        }
    }

    #[test]
    fn sites_steps_seeds_and_neighbours_are_independent() {
        let base = mask(0.5, 7, 8, 9, LEN);
        let shifted = |by: usize| {
            let mut shifted = base.clone();
            shifted.rotate_left(by);
            shifted
        };
        let others = [
            mask(0.5, 8, 8, 9, LEN),
            mask(0.5, 7 | 1 << 32, 8, 9, LEN),
            mask(0.5, 7, 9, 9, LEN),
            mask(0.5, 7, 8 | 1 << 32, 9, LEN),
            mask(0.5, 7, 8, 10, LEN),
            mask(0.5, 8, 7, 9, LEN),
            mask(0.5, 7, 9, 8, LEN),
            shifted(1),
            shifted(8),
            shifted(32),
            shifted(4096),
            shifted(BLOCK),
        ];
        for (i, other) in others.iter().enumerate() {
            let equal = base.iter().zip(other).filter(|(a, b)| a == b).count();
            let far = deviations(equal, LEN, 0.5);
            assert!(far < 5.0, "case {i}: {far} deviations");
        }
    }

    #[test]
    fn runs_of_elements_are_evenly_spread() {
        // The 4096 patterns of 12 elements in a row (and 3, 64, 1000 apart) are equally likely: the
        // sum of squared deviations over expectation has mean 4095 and deviation 90.
        for apart in [1, 3, 64, 1000] {
            for seed in 0..4 {
                let mask = mask(0.5, seed, 1, 1, 12 * LEN);
                let mut counts = vec![0u32; 4096];
                for group in mask.chunks_exact(12 * apart) {
                    for first in 0..apart {
                        let bit = |i: usize| usize::from(group[first + i * apart]) << i;
                        counts[(0..12).map(bit).sum::<usize>()] += 1;
                    }
                }
                let expected = counts.iter().sum::<u32>() as f64 / 4096.0;
                let square = |&count: &u32| (f64::from(count) - expected).powi(2) / expected;
                let total: f64 = counts.iter().map(square).sum();
                let far = (total - 4095.0).abs() / 90.5;
                assert!(far < 5.0, "{apart} apart, seed {seed}: {far} deviations");
            }
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        let x = random(1000, 1);
        let run = |p: f32| {
            let (len, site) = (x.len(), 0);
            let iteration = Iteration { seed: 3, number: 4 };
            let y = compute_in(iteration, Dropout { len, p, site }, &[&x], &Threads::new(1));
            y.unwrap().remove(0)
        };
        assert_eq!(run(0.0), x);
        assert!(run(1.0).iter().all(|&y| y == 0.0));
        let almost = 1.0 - f32::EPSILON / 2.0; // The largest below one: keeps one in 2^24.
        assert!(run(almost).iter().filter(|&&y| y == 0.0).count() >= 999);
        assert!(run(almost).iter().all(|y| y.is_finite()));
    }

    #[test]
    fn threads_and_instruction_sets_give_one_mask() {
        for len in AWKWARD_LENGTHS {
            let dims = Dropout { len, p: 0.3, site: 5 };
            let x = random(len, 2);
            let iteration = Iteration { seed: 3, number: 4 };
            let run = |threads: &Threads| compute_in(iteration, dims, &[&x], threads).unwrap();
            assert_same_bits(run);
            let one = Threads::new(1);
            assert_eq!(run(&one), portable(|| run(&one)));
        }
    }
}
