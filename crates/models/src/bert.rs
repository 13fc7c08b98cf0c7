//! BERT with the masked-language-model head, as Hugging Face's `BertForMaskedLM`: the decoder is
//! tied to the word embeddings, and the token types are all zero.
//!
//! Limit: the original gives no gradient to the row of the padding token (id 0). This one does, so
//! batches should be full: the padding token must not occur.

use rekindle_program::op::{GeluKind, Mask};
use rekindle_program::{Builder, DType, Init, ProgramError, Var};

use crate::ModelOptions;
use crate::attention::Attention;
use crate::layer::{layer_norm, linear_from};
use crate::model::{Forward, InputKind};

/// The sizes of a BERT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BertConfig {
    /// Columns of every hidden state.
    pub width: usize,
    /// How many layers the encoder has.
    pub layers: usize,
    /// Heads of each attention; they divide the width.
    pub heads: usize,
    /// Columns between the two linear maps of a layer.
    pub hidden: usize,
    /// How many different tokens there are.
    pub vocab: usize,
    /// How many tokens the longest sequence has.
    pub positions: usize,
}

impl BertConfig {
    /// `bert-base-uncased`.
    pub const BASE: BertConfig = BertConfig::new(768, 12, 12);
    /// `bert-large-uncased`.
    pub const LARGE: BertConfig = BertConfig::new(1024, 24, 16);
    /// The smallest of the published miniatures.
    pub const TINY: BertConfig = BertConfig::new(128, 2, 2);

    /// A BERT of the usual proportions: four times as many hidden columns, 30,522 tokens and 512
    /// positions.
    pub const fn new(width: usize, layers: usize, heads: usize) -> BertConfig {
        BertConfig { width, layers, heads, hidden: 4 * width, vocab: 30_522, positions: 512 }
    }
}

const TOKEN_TYPES: usize = 2;
const DROPOUT: f32 = 0.1;
const NORM_EPS: f32 = 1e-12;
const INIT: Init = Init::Normal { std: 0.02 };

pub(crate) fn forward(
    b: &mut Builder,
    config: &BertConfig,
    options: &ModelOptions,
) -> Result<Forward, ProgramError> {
    let dropout = options.dropout.unwrap_or(DROPOUT);
    let shape = [options.batch, options.sequence];
    let tokens = b.input("input_ids", &shape, DType::I64)?;
    let labels = b.input("labels", &shape, DType::I64)?;
    let words = [config.vocab, config.width];
    let words = b.parameter("bert.embeddings.word_embeddings.weight", &words, INIT)?;
    let mut x = b.scope("bert.embeddings", |b| embed(b, config, &tokens, &words, dropout))?;
    for layer in 0..config.layers {
        x = b.scope(&format!("bert.encoder.layer.{layer}"), |b| {
            encoder_layer(b, config, &x, dropout)
        })?;
    }
    let (logits, bias) = b.scope("cls.predictions", |b| predict(b, config, &x, &words))?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
    let vocab = config.vocab;
    Ok(Forward {
        inputs: vec![
            (tokens, InputKind::MaskedTokens { vocab }),
            (labels, InputKind::MaskedLabels { vocab }),
        ],
        loss,
        logits: Some(logits),
        tied: vec![
            ("cls.predictions.decoder.weight".into(), words),
            ("cls.predictions.decoder.bias".into(), bias),
        ],
    })
}

/// The sum of word, token-type and position embeddings, normalised.
fn embed(
    b: &mut Builder,
    config: &BertConfig,
    tokens: &Var,
    words: &Var,
    dropout: f32,
) -> Result<Var, ProgramError> {
    let width = config.width;
    let types = b.parameter("token_type_embeddings.weight", &[TOKEN_TYPES, width], INIT)?;
    let shape = [config.positions, width];
    let positions = b.parameter("position_embeddings.weight", &shape, INIT)?;
    let type_ids = b.constant_ids("token_type_ids", tokens.shape(), vec![0])?;
    let position_ids = b.positions("position_ids", tokens.shape())?;

    let word = b.embedding("word_embeddings", tokens, words)?;
    let kind = b.embedding("token_type_embeddings", &type_ids, &types)?;
    let sum = b.add("add_types", &word, &kind)?;
    let position = b.embedding("position_embeddings", &position_ids, &positions)?;
    let sum = b.add("add_positions", &sum, &position)?;
    let x = layer_norm(b, "LayerNorm", &sum, NORM_EPS)?;
    b.dropout("dropout", &x, dropout)
}

fn encoder_layer(
    b: &mut Builder,
    config: &BertConfig,
    x: &Var,
    dropout: f32,
) -> Result<Var, ProgramError> {
    let width = config.width;
    let attention = Attention { heads: config.heads, mask: Mask::Full, dropout };
    let context = b.scope("attention.self", |b| {
        let query = linear_from(b, "query", x, width, INIT)?;
        let key = linear_from(b, "key", x, width, INIT)?;
        let value = linear_from(b, "value", x, width, INIT)?;
        attention.attend(b, &query, &key, &value)
    })?;
    let x = b.scope("attention.output", |b| add_and_norm(b, &context, x, width, dropout))?;
    let hidden = b.scope("intermediate", |b| {
        let hidden = linear_from(b, "dense", &x, config.hidden, INIT)?;
        b.gelu("gelu", &hidden, GeluKind::Erf)
    })?;
    b.scope("output", |b| add_and_norm(b, &hidden, &x, width, dropout))
}

/// A linear map of `y`, added to `x` and normalised.
fn add_and_norm(
    b: &mut Builder,
    y: &Var,
    x: &Var,
    width: usize,
    dropout: f32,
) -> Result<Var, ProgramError> {
    let y = linear_from(b, "dense", y, width, INIT)?;
    let y = b.dropout("dropout", &y, dropout)?;
    let sum = b.add("add", &y, x)?;
    layer_norm(b, "LayerNorm", &sum, NORM_EPS)
}

/// The logits of each token, and the bias of the decoder.
fn predict(
    b: &mut Builder,
    config: &BertConfig,
    x: &Var,
    words: &Var,
) -> Result<(Var, Var), ProgramError> {
    let bias = b.parameter("bias", &[config.vocab], Init::Zeros)?;
    let x = b.scope("transform", |b| {
        let x = linear_from(b, "dense", x, config.width, INIT)?;
        let x = b.gelu("gelu", &x, GeluKind::Erf)?;
        layer_norm(b, "LayerNorm", &x, NORM_EPS)
    })?;
    let logits = b.linear("decoder", &x, words, Some(&bias))?;
    Ok((logits, bias))
}
