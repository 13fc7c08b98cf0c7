//! Units as types: bytes are whole, times are microseconds, rates are bytes per microsecond.
//!
//! `+`, `-` and sums of [`Bytes`] are those of `u64`: a debug build checks them, a release build
//! does not. For sizes of a graph there is no need, since [`Graph::new`](crate::Graph::new) bounds
//! them all together, so that no sum of them overflows. Sizes from elsewhere are added with
//! [`Bytes::checked_add`], or bounded where they are read.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A number of bytes. Prints as a person would write it (`1.50 GiB`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// The plain count.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The sum, or `None` where it does not fit in 64 bits.
    pub fn checked_add(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_add(other.0).map(Bytes)
    }

    /// The difference, or zero where `other` is larger.
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// Rounded up to a multiple of `align`.
    pub fn round_up(self, align: u64) -> Bytes {
        Bytes(self.0.div_ceil(align) * align)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        self.0 -= other.0;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // 1023.995 would print as "1024.00", so it moves to the next unit.
        while value >= 1023.995 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.2} {}", UNITS[unit])
    }
}

/// A duration in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Micros(pub f64);

impl Micros {
    /// No time.
    pub const ZERO: Micros = Micros(0.0);

    /// The plain number of microseconds.
    pub fn get(self) -> f64 {
        self.0
    }

    /// In seconds.
    pub fn seconds(self) -> f64 {
        self.0 / 1e6
    }
}

impl Add for Micros {
    type Output = Micros;
    fn add(self, other: Micros) -> Micros {
        Micros(self.0 + other.0)
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, other: Micros) {
        self.0 += other.0;
    }
}

impl Sub for Micros {
    type Output = Micros;
    fn sub(self, other: Micros) -> Micros {
        Micros(self.0 - other.0)
    }
}

impl Sum for Micros {
    fn sum<I: Iterator<Item = Micros>>(iter: I) -> Micros {
        iter.fold(Micros::ZERO, Add::add)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us < 1e3 => write!(f, "{us:.1} µs"),
            us if us < 1e6 => write!(f, "{:.2} ms", us / 1e3),
            us => write!(f, "{:.3} s", us / 1e6),
        }
    }
}

/// How fast bytes are moved, in bytes per microsecond. Prints as a data sheet does (`25.0 GB/s`).
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

impl Rate {
    /// The plain number of bytes per microsecond.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rate if rate < 1e3 => write!(f, "{rate:.1} MB/s"),
            rate => write!(f, "{:.1} GB/s", rate / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: u64, expected: &str) {
        assert_eq!(Bytes(bytes).to_string(), expected);
    }

    #[test]
    fn bytes_print_as_a_person_writes_them() {
        check(0, "0 B");
        check(1023, "1023 B");
        check(1024, "1.00 KiB");
        check(1024 * 1024 - 1, "1.00 MiB");
        check(3 << 29, "1.50 GiB");
        check(u64::MAX, "16777216.00 TiB");
    }

    #[test]
    fn rates_print_as_a_data_sheet_does() {
        assert_eq!(Rate(25_000.0).to_string(), "25.0 GB/s");
        assert_eq!(Rate(87.5).to_string(), "87.5 MB/s");
    }

    #[test]
    fn rounding_goes_up() {
        assert_eq!(Bytes(0).round_up(64), Bytes(0));
        assert_eq!(Bytes(1).round_up(64), Bytes(64));
        assert_eq!(Bytes(64).round_up(64), Bytes(64));
    }
}
