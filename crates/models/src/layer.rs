//! Layers with their parameters, named and initialised as PyTorch does.

use rekindle_program::op::{BatchNormState, ConvOptions, Then};
use rekindle_program::{Builder, DType, Init, ProgramError, Var};

/// PyTorch's defaults for a batch-norm.
const BATCH_NORM_EPS: f32 = 1e-5;
const BATCH_NORM_MOMENTUM: f32 = 0.1;

/// `nn.Linear`, with weight and bias drawn as PyTorch does.
pub(crate) fn linear(
    b: &mut Builder,
    name: &str,
    x: &Var,
    out: usize,
) -> Result<Var, ProgramError> {
    let bound = 1.0 / (columns(x) as f32).sqrt();
    let init = Init::Uniform { bound };
    linear_layer(b, name, x, out, [init.clone(), init])
}

/// `nn.Linear` with a weight drawn from `init` and a bias of zeros.
pub(crate) fn linear_from(
    b: &mut Builder,
    name: &str,
    x: &Var,
    out: usize,
    init: Init,
) -> Result<Var, ProgramError> {
    linear_layer(b, name, x, out, [init, Init::Zeros])
}

fn linear_layer(
    b: &mut Builder,
    name: &str,
    x: &Var,
    out: usize,
    [weight, bias]: [Init; 2],
) -> Result<Var, ProgramError> {
    let weight = b.parameter(&format!("{name}.weight"), &[out, columns(x)], weight)?;
    let bias = b.parameter(&format!("{name}.bias"), &[out], bias)?;
    b.linear(name, x, &weight, Some(&bias))
}

/// `nn.LayerNorm` over the last axis.
pub(crate) fn layer_norm(
    b: &mut Builder,
    name: &str,
    x: &Var,
    eps: f32,
) -> Result<Var, ProgramError> {
    let gamma = b.parameter(&format!("{name}.weight"), &[columns(x)], Init::Ones)?;
    let beta = b.parameter(&format!("{name}.bias"), &[columns(x)], Init::Zeros)?;
    b.layer_norm(name, x, &gamma, &beta, eps)
}

/// The extent of the last axis.
fn columns(x: &Var) -> usize {
    x.shape().last().copied().unwrap_or(1)
}

/// The window of a square convolution.
#[derive(Clone, Copy)]
pub(crate) struct Square {
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
}

/// `nn.Conv2d` without bias, initialised by `kaiming_normal_` with `fan_out`, as in torchvision.
pub(crate) fn conv(
    b: &mut Builder,
    name: &str,
    x: &Var,
    out: usize,
    window: Square,
) -> Result<Var, ProgramError> {
    let Square { kernel, stride, padding } = window;
    let channels = columns(x);
    let fan_out = out * kernel * kernel;
    let init = Init::Normal { std: (2.0 / fan_out as f32).sqrt() };
    let shape = [kernel, kernel, channels, out];
    let weight = b.parameter(&format!("{name}.weight"), &shape, init)?;
    let options =
        ConvOptions { stride: [stride; 2], padding: [padding; 2], ..ConvOptions::default() };
    b.conv(name, x, &weight, None, options)
}

/// `nn.BatchNorm2d`, with what follows it.
pub(crate) fn batch_norm(
    b: &mut Builder,
    name: &str,
    x: &Var,
    then: Then<'_>,
) -> Result<Var, ProgramError> {
    let channels = [columns(x)];
    let named = |part: &str| format!("{name}.{part}");
    let state = BatchNormState {
        gamma: b.parameter(&named("weight"), &channels, Init::Ones)?,
        beta: b.parameter(&named("bias"), &channels, Init::Zeros)?,
        running_mean: b.buffer(&named("running_mean"), &channels, DType::F32, Init::Zeros)?,
        running_var: b.buffer(&named("running_var"), &channels, DType::F32, Init::Ones)?,
        batches: b.buffer(&named("num_batches_tracked"), &[], DType::I64, Init::Zeros)?,
        eps: BATCH_NORM_EPS,
        momentum: BATCH_NORM_MOMENTUM,
    };
    b.batch_norm(name, x, &state, then)
}
