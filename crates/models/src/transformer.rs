//! The seed transformer: an encoder of six `nn.TransformerEncoderLayer`s (post-norm, ReLU) over
//! token and learned position embeddings, with a linear head to the vocabulary.

use remat_program::op::Mask;
use remat_program::{Builder, DType, Init, ProgramError, Var};

use crate::ModelOptions;
use crate::attention::Attention;
use crate::layer::{layer_norm, linear, linear_from, position_ids};
use crate::model::{Forward, InputKind};

const WIDTH: usize = 512;
const LAYERS: usize = 6;
const HEADS: usize = 8;
const HIDDEN: usize = 2048;
const VOCAB: usize = 30_000;
const DROPOUT: f32 = 0.1;
const NORM_EPS: f32 = 1e-5;

pub(crate) fn forward(b: &mut Builder, options: &ModelOptions) -> Result<Forward, ProgramError> {
    let dropout = options.dropout.unwrap_or(DROPOUT);
    let shape = [options.batch, options.sequence];
    let tokens = b.input("tokens", &shape, DType::I64)?;
    let labels = b.input("labels", &shape, DType::I64)?;
    let mut x = embed(b, &tokens, options)?;
    for layer in 0..LAYERS {
        x = b.scope(&format!("encoder.layers.{layer}"), |b| {
            encoder_layer(b, &x, dropout)
        })?;
    }
    let logits = linear(b, "head", &x, VOCAB)?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
    Ok(Forward {
        inputs: vec![
            (tokens, InputKind::Tokens { vocab: VOCAB }),
            (labels, InputKind::NextLabels { vocab: VOCAB }),
        ],
        loss,
        tied: vec![],
    })
}

fn embed(b: &mut Builder, tokens: &Var, options: &ModelOptions) -> Result<Var, ProgramError> {
    let shape = [options.sequence, WIDTH];
    let positions = b.parameter("pos", &shape, Init::Normal { std: 0.02 })?;
    let table = b.parameter("embed.weight", &[VOCAB, WIDTH], Init::Normal { std: 1.0 })?;
    let ids = position_ids(b, "position_ids", tokens)?;
    let token = b.embedding("embed", tokens, &table)?;
    let position = b.embedding("embed_positions", &ids, &positions)?;
    b.add("embed_sum", &token, &position)
}

fn encoder_layer(b: &mut Builder, x: &Var, dropout: f32) -> Result<Var, ProgramError> {
    let attended = b.scope("self_attn", |b| self_attention(b, x, dropout))?;
    let attended = b.dropout("dropout1", &attended, dropout)?;
    let sum = b.add("add1", x, &attended)?;
    let x = layer_norm(b, "norm1", &sum, NORM_EPS)?;

    let hidden = linear(b, "linear1", &x, HIDDEN)?;
    let hidden = b.relu("relu", &hidden)?;
    let hidden = b.dropout("dropout", &hidden, dropout)?;
    let out = linear(b, "linear2", &hidden, WIDTH)?;
    let out = b.dropout("dropout2", &out, dropout)?;
    let sum = b.add("add2", &x, &out)?;
    layer_norm(b, "norm2", &sum, NORM_EPS)
}

/// `nn.MultiheadAttention`: one projection to queries, keys and values, whose weight is drawn as
/// one matrix (Xavier).
fn self_attention(b: &mut Builder, x: &Var, dropout: f32) -> Result<Var, ProgramError> {
    let bound = (6.0 / (WIDTH + 3 * WIDTH) as f32).sqrt();
    let weight = b.parameter(
        "in_proj_weight",
        &[3 * WIDTH, WIDTH],
        Init::Uniform { bound },
    )?;
    let bias = b.parameter("in_proj_bias", &[3 * WIDTH], Init::Zeros)?;
    let projected = b.linear("in_proj", x, &weight, Some(&bias))?;
    let parts = b.split("split", &projected, 3)?;
    let attention = Attention {
        heads: HEADS,
        mask: Mask::Full,
        dropout,
    };
    let context = attention.attend(b, &parts[0], &parts[1], &parts[2])?;
    let bound = 1.0 / (WIDTH as f32).sqrt();
    linear_from(b, "out_proj", &context, WIDTH, Init::Uniform { bound })
}
