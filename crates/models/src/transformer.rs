//! The seed transformer: an encoder of six `nn.TransformerEncoderLayer`s (post-norm, ReLU) over
//! token and learned position embeddings, with a linear head to the vocabulary.

use rekindle_program::op::Mask;
use rekindle_program::{Builder, DType, Init, ProgramError, Var};

use crate::ModelOptions;
use crate::attention::Attention;
use crate::layer::{layer_norm, linear, linear_from};
use crate::model::{Forward, InputKind};

/// The sizes of an encoder.
#[derive(Clone, Copy)]
pub(crate) struct TransformerConfig {
    width: usize,
    layers: usize,
    /// Heads of each attention; they divide the width.
    heads: usize,
    /// Columns between the two linear maps of a layer.
    hidden: usize,
    vocab: usize,
}

/// The seed transformer.
pub(crate) const SEED: TransformerConfig =
    TransformerConfig { width: 512, layers: 6, heads: 8, hidden: 2048, vocab: 30_000 };
/// Every part of it, in a size for tests.
pub(crate) const TINY: TransformerConfig =
    TransformerConfig { width: 64, layers: 3, heads: 2, hidden: 256, vocab: 1000 };

const DROPOUT: f32 = 0.1;
const NORM_EPS: f32 = 1e-5;

pub(crate) fn forward(
    b: &mut Builder,
    config: &TransformerConfig,
    options: &ModelOptions,
) -> Result<Forward, ProgramError> {
    let vocab = config.vocab;
    let dropout = options.dropout.unwrap_or(DROPOUT);
    let shape = [options.batch, options.sequence];
    let tokens = b.input("tokens", &shape, DType::I64)?;
    let labels = b.input("labels", &shape, DType::I64)?;
    let mut x = embed(b, config, &tokens, options)?;
    for layer in 0..config.layers {
        x =
            b.scope(&format!("encoder.layers.{layer}"), |b| encoder_layer(b, config, &x, dropout))?;
    }
    let logits = linear(b, "head", &x, vocab)?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
    Ok(Forward {
        inputs: vec![
            (tokens, InputKind::Tokens { vocab }),
            (labels, InputKind::NextLabels { vocab }),
        ],
        loss,
        logits: Some(logits),
        tied: vec![],
    })
}

fn embed(
    b: &mut Builder,
    config: &TransformerConfig,
    tokens: &Var,
    options: &ModelOptions,
) -> Result<Var, ProgramError> {
    let shape = [options.sequence, config.width];
    let positions = b.parameter("pos", &shape, Init::Normal { std: 0.02 })?;
    let table =
        b.parameter("embed.weight", &[config.vocab, config.width], Init::Normal { std: 1.0 })?;
    let ids = b.positions("position_ids", tokens.shape())?;
    let token = b.embedding("embed", tokens, &table)?;
    let position = b.embedding("embed_positions", &ids, &positions)?;
    b.add("embed_sum", &token, &position)
}

fn encoder_layer(
    b: &mut Builder,
    config: &TransformerConfig,
    x: &Var,
    dropout: f32,
) -> Result<Var, ProgramError> {
    let attended = b.scope("self_attn", |b| self_attention(b, config, x, dropout))?;
    let attended = b.dropout("dropout1", &attended, dropout)?;
    let sum = b.add("add1", x, &attended)?;
    let x = layer_norm(b, "norm1", &sum, NORM_EPS)?;

    let hidden = linear(b, "linear1", &x, config.hidden)?;
    let hidden = b.relu("relu", &hidden)?;
    let hidden = b.dropout("dropout", &hidden, dropout)?;
    let out = linear(b, "linear2", &hidden, config.width)?;
    let out = b.dropout("dropout2", &out, dropout)?;
    let sum = b.add("add2", &x, &out)?;
    layer_norm(b, "norm2", &sum, NORM_EPS)
}

/// `nn.MultiheadAttention`: one projection to queries, keys and values, whose weight is drawn as
/// one matrix (Xavier).
fn self_attention(
    b: &mut Builder,
    config: &TransformerConfig,
    x: &Var,
    dropout: f32,
) -> Result<Var, ProgramError> {
    let width = config.width;
    let bound = (6.0 / (width + 3 * width) as f32).sqrt();
    let weight = b.parameter("in_proj_weight", &[3 * width, width], Init::Uniform { bound })?;
    let bias = b.parameter("in_proj_bias", &[3 * width], Init::Zeros)?;
    let projected = b.linear("in_proj", x, &weight, Some(&bias))?;
    let parts = b.split("split", &projected, 3)?;
    let attention = Attention { heads: config.heads, mask: Mask::Full, dropout };
    let context = attention.attend(b, &parts[0], &parts[1], &parts[2])?;
    let bound = 1.0 / (width as f32).sqrt();
    linear_from(b, "out_proj", &context, width, Init::Uniform { bound })
}
