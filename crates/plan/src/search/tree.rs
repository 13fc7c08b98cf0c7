//! The highest of many byte counts, of which whole ranges rise and fall together.
//!
//! A segment tree over `len` slots, kept bottom-up: `top[i]` is the highest value below node `i`,
//! of which `add[i]` applies to the whole node and is not pushed down. Adding to a range and asking
//! for the highest value cost O(log len) and O(1).

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct MaxTree {
    /// Number of leaves, a power of two.
    size: usize,
    top: Vec<i64>,
    add: Vec<i64>,
}

impl MaxTree {
    /// A tree over `values`.
    pub(crate) fn new(values: &[i64]) -> MaxTree {
        let size = values.len().next_power_of_two().max(2);
        let mut top = vec![i64::MIN / 4; 2 * size];
        top[size..size + values.len()].copy_from_slice(values);
        for i in (1..size).rev() {
            top[i] = top[2 * i].max(top[2 * i + 1]);
        }
        MaxTree { size, top, add: vec![0; size] }
    }

    /// The highest value.
    #[inline]
    pub(crate) fn highest(&self) -> i64 {
        self.top[1]
    }

    /// The slots in `2^level` blocks (fewer if there are fewer slots): the sum over the blocks of
    /// how far the highest value of a block is above `limit`.
    pub(crate) fn above(&self, limit: i64, level: u32) -> i64 {
        self.above_under(1, limit, level)
    }

    fn above_under(&self, i: usize, limit: i64, level: u32) -> i64 {
        let over = self.top[i] - limit;
        if over <= 0 || level == 0 || i >= self.size {
            return over.max(0);
        }
        let limit = limit - self.add[i];
        self.above_under(2 * i, limit, level - 1) + self.above_under(2 * i + 1, limit, level - 1)
    }

    /// The value of one slot.
    pub(crate) fn get(&self, slot: usize) -> i64 {
        let mut i = slot + self.size;
        let mut value = self.top[i];
        while i > 1 {
            i /= 2;
            value += self.add[i];
        }
        value
    }

    /// The highest value of the slots `first..=last`.
    pub(crate) fn highest_of(&self, first: usize, last: usize) -> i64 {
        self.highest_under(1, (0, self.size - 1), (first, last))
    }

    fn highest_under(&self, i: usize, (low, high): (usize, usize), asked: (usize, usize)) -> i64 {
        if asked.0 > high || asked.1 < low {
            return i64::MIN / 4;
        }
        if asked.0 <= low && high <= asked.1 {
            return self.top[i];
        }
        let middle = (low + high) / 2;
        let left = self.highest_under(2 * i, (low, middle), asked);
        let right = self.highest_under(2 * i + 1, (middle + 1, high), asked);
        left.max(right) + self.add[i]
    }

    /// The first slot from `from` on whose value is above `limit`.
    pub(crate) fn first_above(&self, from: usize, limit: i64) -> Option<usize> {
        self.first_under(1, (0, self.size - 1), from, limit)
    }

    fn first_under(
        &self,
        i: usize,
        (low, high): (usize, usize),
        from: usize,
        limit: i64,
    ) -> Option<usize> {
        if high < from || self.top[i] <= limit {
            return None;
        }
        if i >= self.size {
            return Some(low);
        }
        let (middle, limit) = ((low + high) / 2, limit - self.add[i]);
        let left = self.first_under(2 * i, (low, middle), from, limit);
        left.or_else(|| self.first_under(2 * i + 1, (middle + 1, high), from, limit))
    }

    /// Sets the value of one slot.
    pub(crate) fn set(&mut self, slot: usize, value: i64) {
        let by = value - self.get(slot);
        self.add(slot, slot, by);
    }

    /// Adds `by` to the slots `first..=last`; nothing if `first > last`.
    pub(crate) fn add(&mut self, first: usize, last: usize, by: i64) {
        if first > last || by == 0 {
            return;
        }
        let (mut l, mut r) = (first + self.size, last + self.size + 1);
        let (l0, r0) = (l, r - 1);
        while l < r {
            if l & 1 == 1 {
                self.apply(l, by);
                l += 1;
            }
            if r & 1 == 1 {
                r -= 1;
                self.apply(r, by);
            }
            l /= 2;
            r /= 2;
        }
        self.pull(l0, r0);
    }

    #[inline]
    fn apply(&mut self, i: usize, by: i64) {
        self.top[i] += by;
        if i < self.size {
            self.add[i] += by;
        }
    }

    /// Recomputes the ancestors of two leaves, up to the root.
    #[inline]
    fn pull(&mut self, l: usize, r: usize) {
        let (mut l, mut r) = (l / 2, r / 2);
        while l != r {
            self.top[l] = self.top[2 * l].max(self.top[2 * l + 1]) + self.add[l];
            self.top[r] = self.top[2 * r].max(self.top[2 * r + 1]) + self.add[r];
            l /= 2;
            r /= 2;
        }
        while l >= 1 {
            self.top[l] = self.top[2 * l].max(self.top[2 * l + 1]) + self.add[l];
            l /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::random::Random;

    #[test]
    fn ranges_that_rise_and_fall_give_what_a_plain_array_gives() {
        let random = &mut Random::new(3);
        for len in [1, 2, 5, 16, 37] {
            let mut plain = vec![0i64; len];
            let mut tree = MaxTree::new(&plain);
            for _ in 0..200 {
                let (a, b) = (random.below(len), random.below(len));
                let by = random.below(21) as i64 - 10;
                tree.add(a.min(b), a.max(b), by);
                plain[a.min(b)..=a.max(b)].iter_mut().for_each(|v| *v += by);
                let highest = plain.iter().copied().max().unwrap_or(0);
                assert_eq!(tree.highest(), highest);
                assert_eq!(tree.get(a), plain[a]);
                let some = &plain[a.min(b)..=a.max(b)];
                assert_eq!(Some(&tree.highest_of(a.min(b), a.max(b))), some.iter().max());
                let above = (a..len).find(|&i| plain[i] > 4);
                assert_eq!(tree.first_above(a, 4), above);
                // With as many blocks as slots, every slot counts alone.
                let above: i64 = plain.iter().map(|v| (v - 3).max(0)).sum();
                assert_eq!(tree.above(3, 6), above);
            }
        }
    }
}
