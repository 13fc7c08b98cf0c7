//! What a run's numbers depend on, beside the model and the data.

use serde_json::{Value, json};

/// How the learning rate goes on after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// It stays.
    #[default]
    Constant,
    /// Half a period of a cosine, down to the floor.
    Cosine,
    /// A straight line down to the floor.
    Linear,
}

impl Shape {
    /// By its name.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Constant => "constant",
            Shape::Cosine => "cosine",
            Shape::Linear => "linear",
        }
    }
}

/// The learning rate of every update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// After the warm-up.
    pub highest: f64,
    /// What it falls to, if it falls.
    pub floor: f64,
    /// In so many updates it rises to `highest`, in equal steps.
    pub warmup: u64,
    /// How it goes on.
    pub shape: Shape,
}

impl LearningRate {
    /// The rate of update number `update` of `total`, counted from 0.
    pub fn at(&self, update: u64, total: u64) -> f64 {
        let LearningRate { highest, floor, warmup, shape } = *self;
        if update < warmup {
            return highest * (update + 1) as f64 / warmup as f64;
        }
        let left = total.saturating_sub(warmup).max(1) as f64;
        let gone = ((update - warmup) as f64 / left).min(1.0);
        match shape {
            Shape::Constant => highest,
            Shape::Linear => highest + (floor - highest) * gone,
            Shape::Cosine => {
                floor + (highest - floor) * 0.5 * (1.0 + (std::f64::consts::PI * gone).cos())
            }
        }
    }
}

/// How a run goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Times that the data is gone through.
    pub epochs: u64,
    /// The last update, if it is to come before the epochs are over.
    pub updates: Option<u64>,
    /// Steps in an update.
    pub accumulate: u64,
    /// The learning rate of every update.
    pub learning_rate: LearningRate,
    /// Updates between two evaluations; an epoch if nothing is said.
    pub evaluate_every: Option<u64>,
    /// The run ends after so many evaluations without a better one.
    pub patience: Option<u64>,
    /// The seed of the weights, the order of the data, and dropout.
    pub seed: u64,
    /// What else the numbers depend on, as whoever made the model and opened the data says: a
    /// resumed run must say the same.
    pub about: Value,
}

impl Recipe {
    /// As a checkpoint holds it: a run can go on if this is the same.
    pub fn to_json(&self) -> Value {
        let LearningRate { highest, floor, warmup, shape } = self.learning_rate;
        json!({
            "epochs": self.epochs,
            "updates": self.updates,
            "accumulate": self.accumulate,
            "learning rate": highest,
            "lowest learning rate": floor,
            "warm-up": warmup,
            "schedule": shape.name(),
            "evaluate every": self.evaluate_every,
            "patience": self.patience,
            "about": self.about,
        })
    }
}

/// The first thing in which two recipes differ, in words.
pub(crate) fn difference(theirs: &Value, ours: &Value) -> Option<String> {
    if theirs == ours {
        return None;
    }
    if let (Some(its), Some(own)) = (theirs.as_object(), ours.as_object()) {
        let mut keys: Vec<&String> = its.keys().chain(own.keys()).collect();
        keys.sort();
        keys.dedup();
        let part = |all: &serde_json::Map<String, Value>, key: &str| {
            all.get(key).cloned().unwrap_or(Value::Null)
        };
        return keys.into_iter().find_map(|key| {
            let (its, own) = (part(its, key), part(own, key));
            let found = difference(&its, &own)?;
            Some(if its.is_object() && own.is_object() { found } else { format!("{key} {found}") })
        });
    }
    let word = |value: &Value| if value.is_null() { "none".into() } else { value.to_string() };
    Some(format!("{}, not {}", word(theirs), word(ours)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_and_falls_as_it_should() {
        let rate = |shape, update| {
            let rate = LearningRate { highest: 1.0, floor: 0.2, warmup: 4, shape };
            (1e6 * rate.at(update, 12)).round() / 1e6
        };
        for shape in [Shape::Constant, Shape::Linear, Shape::Cosine] {
            assert_eq!([0, 1, 3, 4].map(|u| rate(shape, u)), [0.25, 0.5, 1.0, 1.0]);
        }
        assert_eq!([8, 12].map(|u| rate(Shape::Constant, u)), [1.0, 1.0]);
        assert_eq!([8, 12, 99].map(|u| rate(Shape::Linear, u)), [0.6, 0.2, 0.2]);
        assert_eq!([8, 12, 99].map(|u| rate(Shape::Cosine, u)), [0.6, 0.2, 0.2]);
        let none = LearningRate { highest: 1.0, floor: 0.0, warmup: 0, shape: Shape::Linear };
        assert_eq!(none.at(0, 0), 1.0);
    }

    #[test]
    fn a_difference_is_named() {
        let (one, two) = (json!({"a": 1, "b": {"c": 2}}), json!({"a": 1, "b": {"c": 3}}));
        assert_eq!(difference(&one, &one), None);
        assert_eq!(difference(&one, &two).as_deref(), Some("c 2, not 3"));
        assert_eq!(difference(&json!({}), &json!({"a": 1})).as_deref(), Some("a none, not 1"));
    }
}
