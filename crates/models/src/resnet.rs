//! ResNet-18, -34, -50, -101 and -152 as in torchvision: 1000 classes, stride on the 3×3
//! convolution of a bottleneck. Each batch-norm is fused with the ReLU, and the addition, that
//! follow it.

use rekindle_program::op::{PoolOptions, Then};
use rekindle_program::{Builder, DType, ProgramError, Var};

use crate::ModelOptions;
use crate::layer::{Square, batch_norm, conv, linear};
use crate::model::{Forward, InputKind};

const CLASSES: usize = 1000;
const STEM_CHANNELS: usize = 64;

/// A bottleneck's last convolution has this many times the channels of the others.
const EXPANSION: usize = 4;

const POINT: Square = Square { kernel: 1, stride: 1, padding: 0 };

/// How many residual blocks each of the four stages has, and of which kind.
#[derive(Clone, Copy)]
pub(crate) struct Depth {
    blocks: [usize; 4],
    bottleneck: bool,
}

pub(crate) const RESNET18: Depth = basic([2, 2, 2, 2]);
pub(crate) const RESNET34: Depth = basic([3, 4, 6, 3]);
pub(crate) const RESNET50: Depth = bottleneck([3, 4, 6, 3]);
pub(crate) const RESNET101: Depth = bottleneck([3, 4, 23, 3]);
pub(crate) const RESNET152: Depth = bottleneck([3, 8, 36, 3]);

const fn basic(blocks: [usize; 4]) -> Depth {
    Depth { blocks, bottleneck: false }
}

const fn bottleneck(blocks: [usize; 4]) -> Depth {
    Depth { blocks, bottleneck: true }
}

pub(crate) fn forward(
    b: &mut Builder,
    depth: Depth,
    options: &ModelOptions,
) -> Result<Forward, ProgramError> {
    let ModelOptions { batch, image_size, .. } = *options;
    let images = b.input("images", &[batch, image_size, image_size, 3], DType::F32)?;
    let labels = b.input("labels", &[batch], DType::I64)?;
    let mut x = stem(b, &images)?;
    for (stage, &blocks) in depth.blocks.iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let channels = STEM_CHANNELS << stage;
            x = b.scope(&format!("layer{}.{block}", stage + 1), |b| {
                residual_block(b, &x, channels, stride, depth.bottleneck)
            })?;
        }
    }
    let features = global_average(b, &x)?;
    let logits = linear(b, "fc", &features, CLASSES)?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
    let classes = CLASSES;
    Ok(Forward {
        inputs: vec![
            (images, InputKind::Features { classes }),
            (labels, InputKind::Classes { classes }),
        ],
        loss,
        logits: Some(logits),
        tied: vec![],
    })
}

fn stem(b: &mut Builder, images: &Var) -> Result<Var, ProgramError> {
    let window = Square { kernel: 7, stride: 2, padding: 3 };
    let x = conv(b, "conv1", images, STEM_CHANNELS, window)?;
    let x = batch_norm(b, "bn1", &x, Then::Relu)?;
    let pool = PoolOptions { kernel: [3, 3], stride: [2, 2], padding: [1, 1], extra: [0; 2] };
    b.max_pool("maxpool", &x, pool)
}

/// Two 3×3 convolutions, or a bottleneck of three, beside the identity or a projection.
fn residual_block(
    b: &mut Builder,
    x: &Var,
    channels: usize,
    stride: usize,
    bottleneck: bool,
) -> Result<Var, ProgramError> {
    let spatial = |stride| Square { kernel: 3, stride, padding: 1 };
    let windows: &[(usize, Square)] = if bottleneck {
        &[(channels, POINT), (channels, spatial(stride)), (channels * EXPANSION, POINT)]
    } else {
        &[(channels, spatial(stride)), (channels, spatial(1))]
    };
    let mut y = x.clone();
    for (i, &(out, window)) in windows.iter().enumerate() {
        let number = i + 1;
        y = conv(b, &format!("conv{number}"), &y, out, window)?;
        if number < windows.len() {
            y = batch_norm(b, &format!("bn{number}"), &y, Then::Relu)?;
        }
    }
    let residual = shortcut(b, x, &y, stride)?;
    batch_norm(b, &format!("bn{}", windows.len()), &y, Then::AddRelu(&residual))
}

/// `x` itself, or projected where the block changes its size.
fn shortcut(b: &mut Builder, x: &Var, y: &Var, stride: usize) -> Result<Var, ProgramError> {
    if x.shape() == y.shape() {
        return Ok(x.clone());
    }
    let out = y.shape().last().copied().unwrap_or(1);
    let window = Square { stride, ..POINT };
    let projected = conv(b, "downsample.0", x, out, window)?;
    batch_norm(b, "downsample.1", &projected, Then::Nothing)
}

/// The mean over each image: `[n, h, w, c]` to `[n, c]`.
fn global_average(b: &mut Builder, x: &Var) -> Result<Var, ProgramError> {
    let &[batch, height, width, channels] = x.shape() else {
        unreachable!("a convolution gives an image")
    };
    let whole =
        PoolOptions { kernel: [height, width], stride: [1, 1], padding: [0, 0], extra: [0; 2] };
    let mean = b.avg_pool("avgpool", x, whole)?;
    b.reshape(&mean, &[batch, channels])
}
