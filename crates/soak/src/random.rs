//! Where a random graph's choices come from: a seed, or a list that a property test has made and
//! can shrink.

pub(crate) enum Random {
    Seed(fastrand::Rng),
    /// Where the list has ended, every choice is the first.
    Choices(std::vec::IntoIter<u16>),
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random::Seed(fastrand::Rng::with_seed(seed))
    }

    /// From 0 to before `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        match self {
            Random::Seed(rng) => rng.usize(..limit),
            Random::Choices(list) => usize::from(list.next().unwrap_or(0)) % limit,
        }
    }

    /// True in `percent` of all cases, and not for the first choice.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) >= 100 - percent
    }

    /// One of the list, which is not empty.
    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
