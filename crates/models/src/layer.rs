//! Layers with their parameters, named and initialised as PyTorch does.

use remat_program::op::{BatchNormState, ConvOptions, Then};
use remat_program::{Builder, DType, Init, ProgramError, Var};

/// PyTorch's defaults.
const BATCH_NORM_EPS: f32 = 1e-5;
const BATCH_NORM_MOMENTUM: f32 = 0.1;

/// What PyTorch draws a linear layer's weight and bias from.
pub(crate) fn uniform_by_inputs(inputs: usize) -> Init {
    Init::Uniform {
        bound: 1.0 / (inputs as f32).sqrt(),
    }
}

/// `nn.Linear`.
pub(crate) fn linear(
    b: &mut Builder,
    name: &str,
    x: &Var,
    out: usize,
) -> Result<Var, ProgramError> {
    let inputs = x.shape().last().copied().unwrap_or(1);
    let init = uniform_by_inputs(inputs);
    let weight = b.parameter(&format!("{name}.weight"), &[out, inputs], init.clone())?;
    let bias = b.parameter(&format!("{name}.bias"), &[out], init)?;
    b.linear(name, x, &weight, Some(&bias))
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
    let Square {
        kernel,
        stride,
        padding,
    } = window;
    let channels = x.shape().last().copied().unwrap_or(1);
    let fan_out = out * kernel * kernel;
    let init = Init::Normal {
        std: (2.0 / fan_out as f32).sqrt(),
    };
    let shape = [kernel, kernel, channels, out];
    let weight = b.parameter(&format!("{name}.weight"), &shape, init)?;
    let options = ConvOptions {
        stride: [stride; 2],
        padding: [padding; 2],
        groups: 1,
    };
    b.conv(name, x, &weight, None, options)
}

/// `nn.BatchNorm2d`, with what follows it.
pub(crate) fn batch_norm(
    b: &mut Builder,
    name: &str,
    x: &Var,
    then: Then<'_>,
) -> Result<Var, ProgramError> {
    let channels = [x.shape().last().copied().unwrap_or(1)];
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
