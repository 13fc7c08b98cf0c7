//! A store: where storages can be moved to and from, how fast, and how a person writes it down:
//! `out=25GB/s,in=25GB/s,latency=10us`, and with it `half-duplex`, `limit=40GiB` and `activations`.
//!
//! In: text. Out: a [`Store`], or one sentence that says what is wrong with the text. A store
//! prints as text that gives the same store again, to the last bit of its numbers.

use std::fmt;

use crate::{Budget, Bytes, Micros, Rate, Role, ScheduleError, parse_budget, typed_bytes};

/// Where storages can be moved to and from: a file on a disk, or the host's memory beside a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Store {
    /// How fast storages are copied to it; zero if they cannot be.
    pub out_rate: Rate,
    /// How fast storages are copied back; zero if they cannot be.
    pub in_rate: Rate,
    /// What each transfer takes besides its bytes.
    pub latency: Micros,
    /// Whether both directions go at the same time. A disk has one channel for both.
    pub duplex: bool,
    /// The most that it may hold; `None` if there is no limit.
    pub limit: Option<Bytes>,
    /// Whether only what a training step makes is moved to it, and all that is persistent stays in
    /// memory: where parameters and optimizer state are in others' hands.
    pub activations_only: bool,
}

impl Store {
    /// Whether a storage of this role may be moved to it and back.
    pub fn takes(&self, role: Role) -> bool {
        !(self.activations_only && role.is_persistent())
    }

    /// Whether a storage of this role may live in it between training steps.
    pub fn keeps(&self, role: Role) -> bool {
        role.may_be_stored() && self.takes(role)
    }

    /// Whether its numbers can be.
    pub(crate) fn check(&self) -> Result<(), ScheduleError> {
        let numbers = [
            ("rate out", self.out_rate.get()),
            ("rate in", self.in_rate.get()),
            ("latency", self.latency.get()),
        ];
        match numbers.iter().find(|(_, n)| !n.is_finite() || *n < 0.0) {
            Some(&(what, number)) => {
                Err(ScheduleError::BadStore { what, text: number.to_string() })
            }
            None => Ok(()),
        }
    }
}

/// Bytes per microsecond. The first is what a rate is kept in, so that every rate has a text.
const RATES: [(&str, f64); 8] = [
    ("MB/s", 1.0),
    ("B/s", 1e-6),
    ("KB/s", 1e-3),
    ("GB/s", 1e3),
    ("TB/s", 1e6),
    ("KiB/s", 1024e-6),
    ("MiB/s", 1.048_576),
    ("GiB/s", 1_073.741_824),
];

/// Microseconds. The first is what a time is kept in.
const TIMES: [(&str, f64); 5] = [("us", 1.0), ("µs", 1.0), ("ns", 1e-3), ("ms", 1e3), ("s", 1e6)];

/// The end of every refusal: what would do.
const EXAMPLE: &str = "write for example out=25GB/s,in=25GB/s,latency=10us";

/// Reads a store. Both rates must be there; the latency is zero unless it is given, both directions
/// go at the same time unless it is `half-duplex`, there is no limit unless one is given, and it
/// takes everything unless it is for `activations`.
///
/// # Errors
/// What is wrong with the text, as the end of a sentence that begins with it: "is empty; …".
pub fn parse_store(text: &str) -> Result<Store, String> {
    if text.trim().is_empty() {
        return Err(format!("is empty; {EXAMPLE}"));
    }
    let (mut out_rate, mut in_rate, mut latency, mut limit) = (None, None, None, None);
    let (mut half_duplex, mut activations) = (None, None);
    for part in text.split(',').map(str::trim) {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(value.trim_start())),
            None => (part, None),
        };
        match (name, value) {
            ("out", Some(value)) => once(&mut out_rate, name, rate(name, value)?)?,
            ("in", Some(value)) => once(&mut in_rate, name, rate(name, value)?)?,
            ("latency", Some(value)) => once(&mut latency, name, time(value)?)?,
            ("limit", Some(value)) => once(&mut limit, name, bytes(value)?)?,
            ("half-duplex", None) => once(&mut half_duplex, name, ())?,
            ("activations", None) => once(&mut activations, name, ())?,
            ("half-duplex" | "activations", Some(_)) => {
                return Err(format!("gives {name} a value, and it takes none; {EXAMPLE}"));
            }
            ("out" | "in" | "latency" | "limit", None) => {
                return Err(format!("gives {name} no value; {EXAMPLE}"));
            }
            _ => {
                return Err(format!(
                    "has the unknown part \"{part}\"; a store is out=…, in=…, and if need be \
                     latency=…, limit=…, half-duplex and activations: {EXAMPLE}"
                ));
            }
        }
    }
    let missing = |way: &str| format!("does not say how fast bytes go {way} ({way}=…); {EXAMPLE}");
    let store = Store {
        out_rate: out_rate.ok_or_else(|| missing("out"))?,
        in_rate: in_rate.ok_or_else(|| missing("in"))?,
        latency: latency.unwrap_or(Micros::ZERO),
        duplex: half_duplex.is_none(),
        limit,
        activations_only: activations.is_some(),
    };
    match store.out_rate.get() == 0.0 && store.in_rate.get() == 0.0 {
        true => Err(format!("moves nothing, neither out nor in; {EXAMPLE}")),
        false => Ok(store),
    }
}

fn once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        Some(_) => Err(format!("says {name} twice; say it once")),
        None => Ok(()),
    }
}

fn rate(name: &str, text: &str) -> Result<Rate, String> {
    let units = "give B/s, KB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s or GiB/s";
    scaled(name, text, &RATES, units).map(Rate)
}

fn time(text: &str) -> Result<Micros, String> {
    scaled("latency", text, &TIMES, "give ns, us, ms or s").map(Micros)
}

fn bytes(text: &str) -> Result<Bytes, String> {
    match parse_budget(text) {
        Ok(Budget::Bytes(bytes)) => Ok(bytes),
        Ok(Budget::Share(_)) => {
            Err("has a limit in percent; give it in bytes, for example limit=40GiB".into())
        }
        Err(why) => Err(format!("has a limit that {why}")),
    }
}

/// A number with one of `units`.
fn scaled(name: &str, text: &str, units: &[(&str, f64)], known: &str) -> Result<f64, String> {
    if text.starts_with('-') {
        return Err(format!("has the negative {name} \"{text}\"; {EXAMPLE}"));
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim();
    let Ok(number) = number.parse::<f64>() else {
        return Err(format!(
            "has the {name} \"{text}\", which is not a number with a unit; {known}"
        ));
    };
    let Some(&(_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(match unit {
            "" => format!("has the {name} \"{text}\" without a unit; {known}"),
            unit => format!("has the {name} \"{text}\" with the unknown unit \"{unit}\"; {known}"),
        });
    };
    match number * factor {
        value if value.is_finite() => Ok(value),
        _ => Err(format!("has a {name} that no machine has")),
    }
}

/// The text among `units` that is read as the same value and that a person would write: with a
/// number from 1 to 1000 if there is one, and short. The first unit always gives a text.
fn text_of(value: f64, units: &[(&str, f64)]) -> String {
    let texts = units.iter().filter_map(|(unit, factor)| {
        let number = value / factor;
        let is_same = (number * factor).to_bits() == value.to_bits();
        let is_odd = !(1.0..1000.0).contains(&number);
        is_same.then(|| (is_odd, format!("{number}{unit}")))
    });
    let best = texts.min_by_key(|(is_odd, text)| (*is_odd, text.chars().count()));
    best.expect("the first unit has the factor one").1
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [out, back] = [self.out_rate, self.in_rate].map(|rate| text_of(rate.get(), &RATES));
        write!(f, "out={out},in={back}")?;
        if self.latency > Micros::ZERO {
            write!(f, ",latency={}", text_of(self.latency.get(), &TIMES))?;
        }
        if !self.duplex {
            write!(f, ",half-duplex")?;
        }
        if let Some(limit) = self.limit {
            write!(f, ",limit={}", typed_bytes(limit))?;
        }
        match self.activations_only {
            true => write!(f, ",activations"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(out: f64, back: f64, latency: f64) -> Store {
        Store {
            out_rate: Rate(out),
            in_rate: Rate(back),
            latency: Micros(latency),
            duplex: true,
            limit: None,
            activations_only: false,
        }
    }

    #[track_caller]
    fn check(text: &str, expected: Store) {
        assert_eq!(parse_store(text), Ok(expected), "{text}");
    }

    #[track_caller]
    fn check_refused(text: &str, word: &str) {
        let message = parse_store(text).expect_err("nonsense");
        assert!(message.contains(word), "{text}: {message}");
    }

    #[test]
    fn stores_are_read() {
        check("out=25GB/s,in=25GB/s,latency=10us", store(25e3, 25e3, 10.0));
        check("in=500MB/s, out = 0.25 GB/s", store(250.0, 500.0, 0.0));
        check("out=1GiB/s,in=1MiB/s,latency=.5ms", store(1_073.741_824, 1.048_576, 500.0));
        let disk = Store { duplex: false, limit: Some(Bytes(40 << 30)), ..store(3e3, 3e3, 0.0) };
        check("out=3GB/s,in=3GB/s,half-duplex,limit=40GiB", disk);
        check("out=0MB/s,in=1MB/s", store(0.0, 1.0, 0.0));
        let made = Store { activations_only: true, ..store(1e3, 1e3, 0.0) };
        check("out=1GB/s, activations, in=1GB/s", made);
    }

    #[test]
    fn each_kind_of_nonsense_gets_its_own_word() {
        check_refused("", "empty");
        check_refused("25GB/s", "unknown part \"25GB/s\"");
        check_refused("out=25GB/s", "in=");
        check_refused("in=25GB/s", "out=");
        check_refused("out=25GB/s,in", "no value");
        check_refused("out=25GB/s,in=25", "without a unit");
        check_refused("out=25GB/s,in=25GB", "unknown unit \"GB\"");
        check_refused("out=25gb/s,in=1GB/s", "unknown unit \"gb/s\"");
        check_refused("out=fast,in=1GB/s", "not a number");
        check_refused("out=1.2.3GB/s,in=1GB/s", "not a number");
        check_refused("out=-1GB/s,in=1GB/s", "negative out");
        check_refused("out=0GB/s,in=0GB/s", "moves nothing");
        check_refused("out=1GB/s,in=1GB/s,out=2GB/s", "says out twice");
        check_refused("out=1GB/s,in=1GB/s,latency=10", "without a unit");
        check_refused("out=1GB/s,in=1GB/s,latency=10min", "\"min\"");
        check_refused("out=1GB/s,in=1GB/s,limit=60%", "in bytes");
        check_refused("out=1GB/s,in=1GB/s,limit=0", "zero");
        check_refused("out=1GB/s,in=1GB/s,half-duplex=yes", "gives half-duplex a value");
        check_refused("out=1GB/s,in=1GB/s,activations=all", "gives activations a value");
        check_refused("out=1GB/s,in=1GB/s,speed=1", "unknown part \"speed=1\"");
        check_refused("out=1GB/s,,in=1GB/s", "unknown part \"\"");
        let huge = format!("out={}GB/s,in=1GB/s", "9".repeat(400));
        check_refused(&huge, "no machine");
    }

    #[test]
    fn a_store_prints_as_it_is_typed_and_comes_back() {
        for text in [
            "out=25GB/s,in=25GB/s,latency=10us",
            "out=500MB/s,in=1.5GB/s",
            "out=1GiB/s,in=3MiB/s,latency=5ms,half-duplex,limit=40GiB",
            "out=3GB/s,in=3GB/s,half-duplex,limit=1000",
            "out=1GB/s,in=1GB/s,latency=250ns",
            "out=1GB/s,in=1GB/s,limit=1GiB,activations",
        ] {
            let read = parse_store(text).expect("a store");
            assert_eq!(read.to_string(), text);
        }
        let odd = Store { limit: Some(Bytes(3 << 20)), ..store(0.1 + 0.2, 1.0 / 3.0, 1e-300) };
        assert_eq!(parse_store(&odd.to_string()), Ok(odd));
    }
}
