//! Dropout with a counter-based generator.
//!
//! The mask is Philox 4×32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011):
//! the seed is its key; element group, site and step are its counter. So a mask costs no memory,
//! is the same in the backward and in a recomputation, and no two (step, site, element) share a
//! counter. A group of [`GROUP`] elements takes [`LANES`] counters; word `w` of counter `l` serves element
//! `LANES · w + l`, which keeps the words in vector order.

use super::lanes::vectorised;
use super::tasks::TASK_ELEMENTS;
use crate::Threads;
use remat_program::op::Dropout;

/// Counters of a group: enough for a loop that the compiler vectorises over counters, with the
/// rounds unrolled and the words in registers.
const LANES: usize = 64;
/// Elements that they serve, at four words each.
const GROUP: usize = 4 * LANES;
/// The generator's rounds, multipliers and key increments, as published.
const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// Bits of a word that decide: as many as `f32` can tell probabilities near one apart.
const BITS: u32 = 24;

/// `dropout`: `x → y`. `seed` and `step` are the run's.
///
/// As in PyTorch, an infinity or NaN that is dropped gives NaN, and `p = 1` drops everything.
///
/// # Panics
/// If there are more than 2^34 elements (64 GiB), where the counters of a site would repeat.
pub fn dropout(dims: &Dropout, seed: u64, step: u64, x: &[f32], y: &mut [f32], threads: &Threads) {
    assert_eq!((x.len(), y.len()), (dims.len, dims.len), "operand lengths");
    assert!(
        dims.len as u64 <= 1 << 34,
        "one dropout of over 2^34 elements"
    );
    let stream = Stream::new(dims, seed, step);
    threads.chunks_mut(y, TASK_ELEMENTS, &|task, y| {
        let start = task * TASK_ELEMENTS;
        drop_chunk(&stream, (start / 4) as u32, &x[start..start + y.len()], y);
    });
}

/// The key and the fixed words of the counter, with the decision.
struct Stream {
    key: [u32; 2],
    site: u32,
    step: [u32; 2],
    /// A word whose upper [`BITS`] bits are below this drops its element.
    threshold: i32,
    /// What a kept element is multiplied with.
    scale: f32,
}

impl Stream {
    fn new(dims: &Dropout, seed: u64, step: u64) -> Stream {
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let kept = 1.0 - f64::from(dims.p);
        Stream {
            key: halves(seed),
            site: dims.site,
            step: halves(step),
            threshold: (f64::from(dims.p) * f64::from(1 << BITS)).round() as i32,
            scale: if kept > 0.0 { (1.0 / kept) as f32 } else { 0.0 },
        }
    }

    /// The random words of the group whose first counter is `counter`.
    #[inline(always)]
    fn words(&self, counter: u32) -> [[u32; LANES]; 4] {
        let mut words = [[0; LANES]; 4];
        let [w0, w1, w2, w3] = &mut words;
        for lane in 0..LANES {
            let mut c = [
                counter.wrapping_add(lane as u32),
                self.site,
                self.step[0],
                self.step[1],
            ];
            let mut key = self.key;
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
            [w0[lane], w1[lane], w2[lane], w3[lane]] = c;
        }
        words
    }
}

vectorised! {
    /// The elements of a task; `counter` is that of the first.
    fn drop_chunk<A>(stream: &Stream, counter: u32, x: &[f32], y: &mut [f32]) {
        let counters = (counter..=u32::MAX).step_by(LANES);
        for ((x, y), counter) in x.chunks(GROUP).zip(y.chunks_mut(GROUP)).zip(counters) {
            let words = stream.words(counter);
            for ((x, y), &word) in x.iter().zip(y).zip(words.as_flattened()) {
                let dropped = ((word >> (32 - BITS)) as i32) < stream.threshold;
                *y = x * if dropped { 0.0 } else { stream.scale };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{AWKWARD_LENGTHS, assert_same_bits, random};

    const LEN: usize = 1 << 18;

    /// The mask of `len` elements: true where kept.
    fn mask(p: f32, seed: u64, step: u64, site: u32, len: usize) -> Vec<bool> {
        let mut y = vec![f32::NAN; len];
        let dims = Dropout { len, p, site };
        dropout(&dims, seed, step, &vec![1.0; len], &mut y, &Threads::new(1));
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
        let stream = |key, site, step| Stream {
            key,
            site,
            step,
            threshold: 0,
            scale: 1.0,
        };
        let first = |words: [[u32; LANES]; 4]| words.map(|word| word[0]);
        assert_eq!(
            first(stream([0; 2], 0, [0; 2]).words(0)),
            [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]
        );
        let ones = u32::MAX;
        assert_eq!(
            first(stream([ones; 2], ones, [ones; 2]).words(ones)),
            [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]
        );
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
        ];
        for (i, other) in others.iter().enumerate() {
            let equal = base.iter().zip(other).filter(|(a, b)| a == b).count();
            let far = deviations(equal, LEN, 0.5);
            assert!(far < 5.0, "case {i}: {far} deviations");
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        let x = random(1000, 1);
        let run = |p: f32| {
            let mut y = vec![f32::NAN; x.len()];
            let dims = Dropout {
                len: x.len(),
                p,
                site: 0,
            };
            dropout(&dims, 3, 4, &x, &mut y, &Threads::new(1));
            y
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
            let dims = Dropout {
                len,
                p: 0.3,
                site: 5,
            };
            let x = random(len, 2);
            let run = |threads: &Threads| {
                let mut y = vec![f32::NAN; len];
                dropout(&dims, 3, 4, &x, &mut y, threads);
                y
            };
            assert_same_bits(|threads| vec![run(threads)]);
            let one = Threads::new(1);
            assert_eq!(run(&one), portable(|| run(&one)));
        }
    }
}
