//! GPT-2, as Hugging Face's `GPT2LMHeadModel`: pre-norm, causal, the head tied to the token
//! embeddings. Linear maps are `Conv1D`s, whose weights are stored `[in, out]`.
//!
//! The original shifts the labels by one before the loss; here the labels come shifted, each row
//! ending with the ignored label, which is the same loss.

use rekindle_program::op::{GeluKind, Mask, Transpose};
use rekindle_program::{Builder, DType, Init, ProgramError, Var};

use crate::ModelOptions;
use crate::attention::Attention;
use crate::layer::layer_norm;
use crate::model::{Forward, InputKind};

/// The sizes of a GPT-2.
#[derive(Clone, Copy)]
pub(crate) struct Gpt2Config {
    width: usize,
    layers: usize,
    /// Heads of each attention; they divide the width.
    heads: usize,
    vocab: usize,
}

/// `gpt2`.
pub(crate) const SMALL: Gpt2Config =
    Gpt2Config { width: 768, layers: 12, heads: 12, vocab: 50_257 };
/// `gpt2-medium`.
pub(crate) const MEDIUM: Gpt2Config = Gpt2Config { width: 1024, layers: 24, heads: 16, ..SMALL };
/// `gpt2-large`.
pub(crate) const LARGE: Gpt2Config = Gpt2Config { width: 1280, layers: 36, heads: 20, ..SMALL };
/// `gpt2-xl`.
pub(crate) const XL: Gpt2Config = Gpt2Config { width: 1600, layers: 48, heads: 25, ..SMALL };
/// Every part of a GPT-2, in a size for tests.
pub(crate) const TINY: Gpt2Config = Gpt2Config { width: 64, layers: 3, heads: 2, vocab: 1000 };

const DROPOUT: f32 = 0.1;
const NORM_EPS: f32 = 1e-5;
const INIT: Init = Init::Normal { std: 0.02 };

/// How many tokens the longest sequence has.
pub(crate) const POSITIONS: usize = 1024;

pub(crate) fn forward(
    b: &mut Builder,
    config: &Gpt2Config,
    options: &ModelOptions,
) -> Result<Forward, ProgramError> {
    let vocab = config.vocab;
    let dropout = options.dropout.unwrap_or(DROPOUT);
    let shape = [options.batch, options.sequence];
    let tokens = b.input("input_ids", &shape, DType::I64)?;
    let labels = b.input("labels", &shape, DType::I64)?;
    let words = b.parameter("transformer.wte.weight", &[vocab, config.width], INIT)?;
    let mut x = b.scope("transformer", |b| embed(b, config, &tokens, &words, dropout))?;
    for layer in 0..config.layers {
        x = b.scope(&format!("transformer.h.{layer}"), |b| block(b, config, &x, dropout))?;
    }
    let x = layer_norm(b, "transformer.ln_f", &x, NORM_EPS)?;
    let logits = b.linear("lm_head", &x, &words, None)?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
    Ok(Forward {
        inputs: vec![
            (tokens, InputKind::Tokens { vocab }),
            (labels, InputKind::NextLabels { vocab }),
        ],
        loss,
        logits: Some(logits),
        tied: vec![("lm_head.weight".into(), words)],
    })
}

fn embed(
    b: &mut Builder,
    config: &Gpt2Config,
    tokens: &Var,
    words: &Var,
    dropout: f32,
) -> Result<Var, ProgramError> {
    let positions = b.parameter("wpe.weight", &[POSITIONS, config.width], INIT)?;
    let ids = b.positions("position_ids", tokens.shape())?;
    let word = b.embedding("wte", tokens, words)?;
    let position = b.embedding("wpe", &ids, &positions)?;
    let sum = b.add("add", &word, &position)?;
    b.dropout("drop", &sum, dropout)
}

fn block(b: &mut Builder, config: &Gpt2Config, x: &Var, dropout: f32) -> Result<Var, ProgramError> {
    let normed = layer_norm(b, "ln_1", x, NORM_EPS)?;
    let attended = b.scope("attn", |b| attention(b, config, &normed, dropout))?;
    let x = b.add("add_1", x, &attended)?;
    let normed = layer_norm(b, "ln_2", &x, NORM_EPS)?;
    let mapped = b.scope("mlp", |b| {
        let hidden = conv1d(b, "c_fc", &normed, 4 * config.width, INIT)?;
        let hidden = b.gelu("act", &hidden, GeluKind::Tanh)?;
        let out = conv1d(b, "c_proj", &hidden, config.width, config.residual_init())?;
        b.dropout("dropout", &out, dropout)
    })?;
    b.add("add_2", &x, &mapped)
}

fn attention(
    b: &mut Builder,
    config: &Gpt2Config,
    x: &Var,
    dropout: f32,
) -> Result<Var, ProgramError> {
    let projected = conv1d(b, "c_attn", x, 3 * config.width, INIT)?;
    let parts = b.split("split", &projected, 3)?;
    let attention = Attention { heads: config.heads, mask: Mask::Causal, dropout };
    let context = attention.attend(b, &parts[0], &parts[1], &parts[2])?;
    let out = conv1d(b, "c_proj", &context, config.width, config.residual_init())?;
    b.dropout("resid_dropout", &out, dropout)
}

impl Gpt2Config {
    /// Narrower where a map ends on the residual path, which each layer widens twice.
    fn residual_init(&self) -> Init {
        Init::Normal { std: 0.02 / ((2 * self.layers) as f32).sqrt() }
    }
}

/// A linear map whose weight is stored `[in, out]`.
fn conv1d(
    b: &mut Builder,
    name: &str,
    x: &Var,
    out: usize,
    init: Init,
) -> Result<Var, ProgramError> {
    let &[batch, sequence, inputs] = x.shape() else {
        unreachable!("hidden states are [batch, sequence, columns]")
    };
    let weight = b.parameter(&format!("{name}.weight"), &[inputs, out], init)?;
    let bias = b.parameter(&format!("{name}.bias"), &[out], Init::Zeros)?;
    let rows = b.reshape(x, &[batch * sequence, inputs])?;
    let y = b.matmul(name, &rows, &weight, Some(&bias), Transpose::default())?;
    b.reshape(&y, &[batch, sequence, out])
}
