//! Models by name.

use rekindle_program::{Builder, ProgramError};

use crate::model::Forward;
use crate::{BertConfig, Model, ModelError, ModelOptions, bert, gpt2, mlp, resnet, transformer};

/// What a model is made of.
#[derive(Clone, Copy)]
enum Family {
    Mlp,
    Resnet(resnet::Depth),
    Transformer(transformer::TransformerConfig),
    Bert(BertConfig),
    Gpt2(gpt2::Gpt2Config),
}

const MODELS: &[(&str, Family)] = &[
    ("mlp", Family::Mlp),
    ("resnet20", Family::Resnet(resnet::RESNET20)),
    ("resnet18", Family::Resnet(resnet::RESNET18)),
    ("resnet34", Family::Resnet(resnet::RESNET34)),
    ("resnet50", Family::Resnet(resnet::RESNET50)),
    ("resnet101", Family::Resnet(resnet::RESNET101)),
    ("resnet152", Family::Resnet(resnet::RESNET152)),
    ("transformer-tiny", Family::Transformer(transformer::TINY)),
    ("transformer", Family::Transformer(transformer::SEED)),
    ("bert-tiny", Family::Bert(BertConfig::TINY)),
    ("bert-base", Family::Bert(BertConfig::BASE)),
    ("bert-large", Family::Bert(BertConfig::LARGE)),
    ("gpt2-tiny", Family::Gpt2(gpt2::TINY)),
    ("gpt2", Family::Gpt2(gpt2::SMALL)),
    ("gpt2-medium", Family::Gpt2(gpt2::MEDIUM)),
    ("gpt2-large", Family::Gpt2(gpt2::LARGE)),
    ("gpt2-xl", Family::Gpt2(gpt2::XL)),
];

/// The names of all models.
pub fn names() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _)| *name)
}

/// One training step of a model.
///
/// # Errors
/// If there is no such model, or its sizes do not fit together.
pub fn build(name: &str, options: &ModelOptions) -> Result<Model, ModelError> {
    let Some((_, family)) = MODELS.iter().find(|(known, _)| *known == name) else {
        return Err(unknown(name));
    };
    family.build(name, options)
}

/// One training step of a BERT of any size, called `name`.
///
/// # Errors
/// If its sizes do not fit together.
pub fn build_bert(
    name: &str,
    config: BertConfig,
    options: &ModelOptions,
) -> Result<Model, ModelError> {
    Family::Bert(config).build(name, options)
}

impl Family {
    fn build(self, name: &str, options: &ModelOptions) -> Result<Model, ModelError> {
        let sequence = options.sequence;
        if let Some(positions) = self.positions().filter(|&positions| sequence > positions) {
            return Err(ModelError::SequenceTooLong { model: name.into(), sequence, positions });
        }
        if self.predicts_next() && sequence < 2 {
            return Err(ModelError::SequenceTooShort { model: name.into(), sequence });
        }
        let settings = options.settings.clone();
        let mut builder = Builder::with_settings(self.program_name(name, options), settings);
        let model = self
            .forward(&mut builder, options)
            .and_then(|forward| forward.finish(builder, options));
        model.map_err(|source| ModelError::Program { model: name.into(), source })
    }

    fn forward(self, b: &mut Builder, options: &ModelOptions) -> Result<Forward, ProgramError> {
        match self {
            Family::Mlp => mlp::forward(b, options),
            Family::Resnet(depth) => resnet::forward(b, depth, options),
            Family::Transformer(config) => transformer::forward(b, &config, options),
            Family::Bert(config) => bert::forward(b, &config, options),
            Family::Gpt2(config) => gpt2::forward(b, &config, options),
        }
    }

    /// The longest sequence, where the model has a fixed table of positions.
    fn positions(self) -> Option<usize> {
        match self {
            Family::Bert(config) => Some(config.positions),
            Family::Gpt2(_) => Some(gpt2::POSITIONS),
            Family::Mlp | Family::Resnet(_) | Family::Transformer(_) => None,
        }
    }

    /// Whether the labels are the tokens that come next.
    fn predicts_next(self) -> bool {
        matches!(self, Family::Transformer(_) | Family::Gpt2(_))
    }

    /// The name with the sizes that matter: `resnet152-b4`, `bert-base-b8-s128`.
    fn program_name(self, name: &str, options: &ModelOptions) -> String {
        let ModelOptions { batch, image_size, sequence, classes, .. } = options;
        let sizes = match self {
            Family::Mlp => format!("{name}-b{batch}"),
            Family::Resnet(_) if *image_size == 224 => format!("{name}-b{batch}"),
            Family::Resnet(_) => format!("{name}-b{batch}-i{image_size}"),
            Family::Transformer(_) | Family::Bert(_) | Family::Gpt2(_) => {
                format!("{name}-b{batch}-s{sequence}")
            }
        };
        sizes + &classes.map_or(String::new(), |classes| format!("-c{classes}"))
    }
}

fn unknown(name: &str) -> ModelError {
    let suggestion = names().min_by_key(|known| distance(name, known)).expect("there are models");
    ModelError::UnknownModel {
        name: name.into(),
        suggestion,
        known: names().collect::<Vec<_>>().join(", "),
    }
}

/// The number of characters to insert, delete or replace between two names (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
