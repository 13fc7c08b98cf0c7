//! How a model is built, beyond what its own calls say: to train or to infer, which parameters
//! stay as they are, which get adapters, how sharp the labels are.
//!
//! A model is written once. These settings are the builder's, so that every model, whoever wrote
//! it, can be trained in part, adapted and evaluated without knowing of it.

use rekindle_graph::StorageId;

/// How the builder reads the calls of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Nothing is learned: dropout passes everything on, batch-norms take their running statistics
    /// and leave them as they are, and labels are not smoothed.
    pub inference: bool,
    /// The share of each label that is spread evenly over all classes, in `[0, 1)`.
    pub label_smoothing: f32,
    /// Parameters of these names get no gradient, and stay as they are.
    pub frozen: Patterns,
    /// Exceptions to `frozen`.
    pub trained: Patterns,
    /// Adapters beside the matrices that match its patterns.
    pub lora: Option<Lora>,
}

/// Low-rank adapters: beside a product with a matrix `W`, one with `scale · B · A`, where `A` and
/// `B` have few rows and columns and are what is trained. `B` starts as zero, so that the model
/// starts as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rows of `A` and columns of `B`.
    pub rank: usize,
    /// The product of both is scaled by this over the rank.
    pub alpha: f32,
    /// Which matrices get one, by the names of their parameters.
    pub weights: Patterns,
}

impl Lora {
    /// What `B · A` is multiplied with.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// An adapter of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapter {
    /// The matrix beside which it stands: `[out, in]`, or `[in, out]` if `transposed`.
    pub weight: StorageId,
    /// `A`: `[rank, in]`.
    pub a: StorageId,
    /// `B`: `[out, rank]`.
    pub b: StorageId,
    /// What their product is multiplied with.
    pub scale: f32,
    /// Whether the matrix is stored `[in, out]`.
    pub transposed: bool,
}

/// Names, in which `*` stands for any text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(pub Vec<String>);

impl Patterns {
    /// These patterns, separated by commas.
    pub fn new(text: &str) -> Patterns {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        Patterns(parts.map(String::from).collect())
    }

    /// Whether one of them is this name.
    pub fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, name))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Between two stars, the first place that fits is as good as any later one.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, name: &str, expected: bool) {
        assert_eq!(Patterns::new(pattern).matches(name), expected, "{pattern} and {name}");
    }

    #[test]
    fn a_star_stands_for_any_text() {
        check("fc.weight", "fc.weight", true);
        check("fc.weight", "fc.weights", false);
        check("", "fc.weight", false);
        check("*", "fc.weight", true);
        check("layer*", "layer1.0.conv1.weight", true);
        check("*.bias", "fc.bias", true);
        check("*.bias", "fc.bias.0", false);
        check("h.*.attn.*.weight", "h.0.attn.c_attn.weight", true);
        check("h.*.attn.*.weight", "h.0.mlp.c_fc.weight", false);
        check("a*a", "a", false);
        check("a*a", "aa", true);
        check("x, *.bias", "fc.bias", true);
    }
}
