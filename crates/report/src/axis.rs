//! Axes: which unit the numbers are shown in, and where the ticks are.
//!
//! Data come in base units. The axis picks the multiple (KiB, MiB, … or µs, ms, …) in which the
//! largest value is at least 1, and round ticks (1, 2, 2.5 or 5 times a power of ten) in that
//! multiple.

/// What the numbers of an axis are, in their base unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, shown in powers of 1024.
    Bytes,
    /// Seconds, shown down to nanoseconds.
    Seconds,
    /// Things that are counted, or a rank.
    Count,
    /// A share in percent: 12.5 is 12.5 %.
    Percent,
}

/// The name and the unit of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    pub(crate) name: String,
    pub(crate) unit: Unit,
}

impl Axis {
    /// An axis for `name`, whose data are in the base unit of `unit`.
    pub fn new(name: impl Into<String>, unit: Unit) -> Axis {
        Axis { name: name.into(), unit }
    }

    /// The name with the unit in which the ticks are labelled.
    pub(crate) fn label(&self, largest: f64) -> String {
        match self.unit.multiple(largest).1 {
            "" => self.name.clone(),
            unit => format!("{} ({unit})", self.name),
        }
    }
}

const BYTE_MULTIPLES: [(f64, &str); 5] = [
    (1099511627776.0, "TiB"),
    (1073741824.0, "GiB"),
    (1048576.0, "MiB"),
    (1024.0, "KiB"),
    (1.0, "B"),
];
const SECOND_MULTIPLES: [(f64, &str); 4] = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")];

impl Unit {
    /// The multiple for values up to `largest`, and its sign.
    fn multiple(self, largest: f64) -> (f64, &'static str) {
        let pick = |multiples: &[(f64, &'static str)]| {
            let fitting = multiples.iter().find(|(factor, _)| largest >= *factor);
            *fitting.unwrap_or(&multiples[multiples.len() - 1])
        };
        match self {
            Unit::Bytes => pick(&BYTE_MULTIPLES),
            Unit::Seconds => pick(&SECOND_MULTIPLES),
            Unit::Count => (1.0, ""),
            Unit::Percent => (1.0, "%"),
        }
    }

    /// One value with its unit, as a person would write it.
    pub(crate) fn show(self, value: f64) -> String {
        let (factor, sign) = self.multiple(value.abs());
        let number = value / factor;
        let digits = match number.abs() {
            size if size == size.round() || size >= 100.0 => 0,
            size if size >= 10.0 => 1,
            _ => 2,
        };
        format!("{number:.digits$} {sign}").trim_end().to_string()
    }
}

/// A linear map from data to a stretch of the picture, with round ticks.
pub(crate) struct Scale {
    domain: [f64; 2],
    range: [f64; 2],
    unit: Unit,
    largest: f64,
}

impl Scale {
    /// From 0 to a round number that is at least `largest`: for heights.
    pub(crate) fn from_zero(unit: Unit, largest: f64, range: [f64; 2]) -> Scale {
        let largest = if largest > 0.0 && largest.is_finite() { largest } else { 1.0 };
        let step = round_step(largest / unit.multiple(largest).0, TICKS) * unit.multiple(largest).0;
        Scale { domain: [0.0, (largest / step).ceil() * step], range, unit, largest }
    }

    /// From the smallest to the largest value: for ranks and batch sizes.
    pub(crate) fn spanning(unit: Unit, values: [f64; 2], range: [f64; 2]) -> Scale {
        let [low, high] = values;
        let high = if high > low { high } else { low + 1.0 };
        Scale { domain: [low, high], range, unit, largest: high }
    }

    /// Where `value` lies in the picture.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let [low, high] = self.domain;
        let share = (value - low) / (high - low);
        self.range[0] + share * (self.range[1] - self.range[0])
    }

    /// The round values in the domain, with their labels in the axis's multiple.
    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        let factor = self.unit.multiple(self.largest).0;
        let [low, high] = self.domain.map(|value| value / factor);
        let step = round_step(high - low, TICKS);
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let between = (step * 10f64.powi(decimals as i32)).fract() > 1e-9;
        let decimals = decimals + usize::from(between);
        let first = (low / step).ceil() as i64;
        let last = (high / step + 1e-9).floor() as i64;
        (first..=last)
            .map(|index| index as f64 * step)
            .map(|value| (value * factor, format!("{value:.decimals$}")))
            .collect()
    }
}

/// How many steps between ticks an axis should have, about.
const TICKS: f64 = 6.0;

/// A round step that cuts `span` in about `count` parts.
fn round_step(span: f64, count: f64) -> f64 {
    let rough = span / count;
    let power = 10f64.powf(rough.log10().floor());
    let times =
        [1.0, 2.0, 2.5, 5.0].into_iter().find(|times| times * power >= rough * (1.0 - 1e-9));
    times.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(unit: Unit, largest: f64, labels: &[&str], axis: &str) {
        let scale = Scale::from_zero(unit, largest, [0.0, 1.0]);
        let found: Vec<String> = scale.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(found, labels);
        assert_eq!(Axis::new("y", unit).label(largest), axis);
        assert!(scale.domain[1] >= largest);
    }

    #[test]
    fn ticks_are_round_in_the_unit_that_fits() {
        let gib = 1073741824.0;
        check(Unit::Bytes, 3.3 * gib, &["0", "1", "2", "3", "4"], "y (GiB)");
        let fifths = ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "1.2"];
        check(Unit::Bytes, 1.2 * gib, &fifths, "y (GiB)");
        check(Unit::Bytes, 1000.0, &["0", "200", "400", "600", "800", "1000"], "y (B)");
        check(Unit::Seconds, 0.0042, &["0", "1", "2", "3", "4", "5"], "y (ms)");
        check(Unit::Count, 1500.0, &["0", "250", "500", "750", "1000", "1250", "1500"], "y");
    }

    #[test]
    fn a_quarter_step_keeps_its_decimals() {
        let quarters = ["0.00", "0.25", "0.50", "0.75", "1.00", "1.25", "1.50"];
        check(Unit::Seconds, 1.4, &quarters, "y (s)");
    }

    #[test]
    fn empty_and_odd_data_have_an_axis() {
        check(Unit::Count, 0.0, &["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"], "y");
        assert_eq!(Scale::from_zero(Unit::Bytes, f64::NAN, [0.0, 1.0]).domain, [0.0, 1.0]);
        assert_eq!(Scale::spanning(Unit::Count, [3.0, 3.0], [0.0, 1.0]).domain, [3.0, 4.0]);
    }

    #[test]
    fn a_value_is_shown_with_its_unit() {
        assert_eq!(Unit::Bytes.show(1.5 * 1073741824.0), "1.50 GiB");
        assert_eq!(Unit::Seconds.show(0.0123), "12.3 ms");
        assert_eq!(Unit::Count.show(7.0), "7");
        assert_eq!(Unit::Bytes.show(0.0), "0 B");
    }
}
