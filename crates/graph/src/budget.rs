//! Budgets as a person writes them: `3GiB`, `800MiB`, plain bytes, or `60%` of the plain step's
//! peak.
//!
//! In: text. Out: a [`Budget`], or one sentence that says what is wrong with the text. Numbers are
//! decimal fractions and are kept exactly; what is not a whole number of bytes rounds down, so that
//! a budget is never larger than was asked for.

use crate::Bytes;

/// What the step may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// A number of bytes.
    Bytes(Bytes),
    /// A share of the plain step's peak, in units of 10⁻⁹ percent.
    Share(u128),
}

/// Shares are kept in units of this fraction of one percent, so nine places after the point.
const PARTS_PER_PERCENT: u128 = 1_000_000_000;

const UNITS: [(&str, u64); 10] = [
    ("B", 1),
    ("", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl Budget {
    /// The bytes, given the plain step's peak.
    pub fn resolve(self, plain_peak: Bytes) -> Bytes {
        match self {
            Budget::Bytes(bytes) => bytes,
            Budget::Share(parts) => {
                let bytes = u128::from(plain_peak.get()) * parts / (100 * PARTS_PER_PERCENT);
                Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
        }
    }
}

/// Reads a budget.
///
/// # Errors
/// What is wrong with the text, as the end of a sentence that begins with it: "is empty; …".
pub fn parse_budget(text: &str) -> Result<Budget, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("is empty; write for example 3GiB or 60%".into());
    }
    if text.starts_with('-') {
        return Err("is negative; a budget is a number of bytes above zero".into());
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let unit = unit.trim();
    if unit == "%" {
        let parts = scaled(number, PARTS_PER_PERCENT)?;
        return match parts {
            0 => Err("is zero; not even the parameters fit in nothing".into()),
            _ if parts > 1_000_000 * PARTS_PER_PERCENT => {
                Err("is more than a million percent; is the unit right?".into())
            }
            _ => Ok(Budget::Share(parts)),
        };
    }
    let Some(&(_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!(
            "has the unknown unit \"{unit}\"; use B, KiB, MiB, GiB, TiB (or KB, MB, GB, TB) or %"
        ));
    };
    if unit.is_empty() && number.contains('.') {
        return Err("is not a whole number of bytes; add a unit, for example 1.5GiB".into());
    }
    match u64::try_from(scaled(number, u128::from(factor))?) {
        Ok(0) => Err("is zero; not even the parameters fit in nothing".into()),
        Ok(bytes) => Ok(Budget::Bytes(Bytes(bytes))),
        Err(_) => Err("is more bytes than a machine can address".into()),
    }
}

/// A size as it is typed: `8GiB`, or bytes if it is no whole number of anything larger.
/// [`parse_budget`] gives it back.
pub fn typed_bytes(bytes: Bytes) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole =
        |(power, _): &(u32, &str)| bytes.get() != 0 && bytes.get().is_multiple_of(1 << power);
    match units.into_iter().find(whole) {
        Some((power, unit)) => format!("{}{unit}", bytes.get() >> power),
        None => bytes.get().to_string(),
    }
}

/// Reads a share such as `20%`.
///
/// # Errors
/// What is wrong with the text, as the end of a sentence that begins with it.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').map(str::trim_end);
    let number = number.ok_or("is not a share; write for example 20%")?;
    if number.starts_with('-') {
        return Err("is negative; write for example 20%".into());
    }
    let parts = scaled(number, PARTS_PER_PERCENT)?;
    Ok(parts as f64 / (100 * PARTS_PER_PERCENT) as f64)
}

/// `number × factor`, rounded down. Reads digits with at most one point.
fn scaled(number: &str, factor: u128) -> Result<u128, String> {
    if let Some(other) = number.chars().find(|c| !c.is_ascii_digit() && *c != '.') {
        return Err(format!("has \"{other}\" where a number should be"));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = !(whole.is_empty() && fraction.is_empty());
    if !has_digits || fraction.contains('.') {
        return Err("does not start with a number; write for example 3GiB or 60%".into());
    }
    // 2^64 has 20 digits: more than that is too large in any unit, and more places mean nothing.
    const DIGITS: usize = 20;
    let whole = whole.trim_start_matches('0');
    if whole.len() > DIGITS {
        return Err("is more bytes than a machine can address".into());
    }
    let fraction = &fraction[..fraction.len().min(DIGITS)];
    let read = |digits: &str| digits.bytes().fold(0, |n, d| n * 10 + u128::from(d - b'0'));
    let below_one = read(fraction) * factor / 10u128.pow(fraction.len() as u32);
    Ok(read(whole) * factor + below_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: u64) {
        let budget = parse_budget(text).expect("a budget");
        assert_eq!(budget.resolve(Bytes(1000)), Bytes(expected), "{text}");
    }

    #[track_caller]
    fn check_refused(text: &str, word: &str) {
        let message = parse_budget(text).expect_err("nonsense");
        assert!(message.contains(word), "{text}: {message}");
    }

    #[test]
    fn sizes_are_read_exactly() {
        check("1", 1);
        check("123B", 123);
        check("3GiB", 3 << 30);
        check("1.5 GiB", 3 << 29);
        check("800MiB", 800 << 20);
        check("2KB", 2000);
        check("0.5KiB", 512);
        check(".25KiB", 256);
        check("18446744073709551615", u64::MAX);
    }

    #[test]
    fn a_size_is_told_as_it_is_typed() {
        let texts = [8 << 30, 3 << 29, 5 << 10, 1000, 1 << 41].map(|b| typed_bytes(Bytes(b)));
        assert_eq!(texts, ["8GiB", "1536MiB", "5KiB", "1000", "2TiB"]);
    }

    #[test]
    fn shares_are_of_the_plain_peak_and_round_down() {
        check("60%", 600);
        check("33.35%", 333);
        check("100%", 1000);
        check("250 %", 2500);
    }

    #[test]
    fn a_share_needs_its_sign() {
        assert_eq!(parse_share("20%"), Ok(0.2));
        assert_eq!(parse_share(" 0.5 % "), Ok(0.005));
        assert_eq!(parse_share("0%"), Ok(0.0));
        for (text, word) in [("20", "20%"), ("-1%", "negative"), ("x%", "\"x\""), ("%", "number")] {
            let message = parse_share(text).expect_err("nonsense");
            assert!(message.contains(word), "{text}: {message}");
        }
    }

    #[test]
    fn each_kind_of_nonsense_gets_its_own_word() {
        check_refused("-3GiB", "negative");
        check_refused("-5%", "negative");
        check_refused("0", "zero");
        check_refused("0%", "zero");
        check_refused("0.0GiB", "zero");
        check_refused("12XB", "\"XB\"");
        check_refused("3gib", "\"gib\"");
        check_refused("", "empty");
        check_refused("much", "\"much\"");
        check_refused("GiB", "number");
        check_refused("1.2.3GiB", "number");
        check_refused("1.5", "whole");
        check_refused("99999999TiB", "machine");
        check_refused("18446744073709551616", "machine");
        check_refused("999999999999999999999999", "machine");
        check_refused("2000000%", "million");
        check_refused("∞", "\"∞\"");
    }
}
