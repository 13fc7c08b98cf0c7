//! Random numbers as a pure function of their place.
//!
//! Number `i` of a [`Stream`] depends on the stream's key and on `i` alone: the same values come
//! out in any order, and on any number of threads.

/// An endless list of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(u64);

impl Stream {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Stream {
        Stream(mix(seed))
    }

    /// An independent stream, one for each `number`.
    #[must_use]
    pub fn branch(self, number: u64) -> Stream {
        Stream(mix(self.0 ^ mix(number)))
    }

    /// Uniform in `[0, 1)`, from 53 bits.
    pub fn unit(self, index: u64) -> f64 {
        (mix(self.0 ^ mix(index)) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Standard normal.
    pub fn normal(self, index: u64) -> f64 {
        self.normal_pair(index & !1)[(index & 1) as usize]
    }

    /// The two standard normals from `even` on, by Box and Muller: they share two uniform draws.
    pub fn normal_pair(self, even: u64) -> [f64; 2] {
        let radius = (-2.0 * (1.0 - self.unit(even)).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.unit(even + 1);
        [radius * angle.cos(), radius * angle.sin()]
    }
}

/// The output function of SplitMix64: a bijection whose results look random.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
