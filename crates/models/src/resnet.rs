//! ResNet-18, -34, -50, -101 and -152 as in torchvision: 1000 classes, stride on the 3×3
//! convolution of a bottleneck. Each batch-norm is fused with the ReLU, and the addition, that
//! follow it.
//!
//! ResNet-20 is the one for small images (He et al., 2016, section 4.2): a 3×3 convolution instead
//! of the stem, three stages of 16, 32 and 64 channels, ten classes; projections where a block
//! changes its size.

use rekindle_program::op::{PoolOptions, Then};
use rekindle_program::{Builder, DType, ProgramError, Var};

use crate::ModelOptions;
use crate::layer::{Square, batch_norm, conv, linear};
use crate::model::{Forward, InputKind};

/// A bottleneck's last convolution has this many times the channels of the others.
const EXPANSION: usize = 4;

const POINT: Square = Square { kernel: 1, stride: 1, padding: 0 };

/// How many residual blocks each of the stages has, of which kind, and what stands around them.
#[derive(Clone, Copy)]
pub(crate) struct Depth {
    blocks: &'static [usize],
    bottleneck: bool,
    /// Channels of the first stage.
    width: usize,
    /// Whether images are small: nothing is halved before the first stage.
    small: bool,
    classes: usize,
}

pub(crate) const RESNET20: Depth =
    Depth { blocks: &[3, 3, 3], bottleneck: false, width: 16, small: true, classes: 10 };

pub(crate) const RESNET18: Depth = basic(&[2, 2, 2, 2]);
pub(crate) const RESNET34: Depth = basic(&[3, 4, 6, 3]);
pub(crate) const RESNET50: Depth = bottleneck(&[3, 4, 6, 3]);
pub(crate) const RESNET101: Depth = bottleneck(&[3, 4, 23, 3]);
pub(crate) const RESNET152: Depth = bottleneck(&[3, 8, 36, 3]);

const fn basic(blocks: &'static [usize]) -> Depth {
    Depth { blocks, bottleneck: false, width: 64, small: false, classes: 1000 }
}

const fn bottleneck(blocks: &'static [usize]) -> Depth {
    Depth { bottleneck: true, ..basic(blocks) }
}

pub(crate) fn forward(
    b: &mut Builder,
    depth: Depth,
    options: &ModelOptions,
) -> Result<Forward, ProgramError> {
    let ModelOptions { batch, image_size, .. } = *options;
    let images = b.input("images", &[batch, image_size, image_size, 3], DType::F32)?;
    let labels = b.input("labels", &[batch], DType::I64)?;
    let mut x = stem(b, depth, &images)?;
    for (stage, &blocks) in depth.blocks.iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let channels = depth.width << stage;
            x = b.scope(&format!("layer{}.{block}", stage + 1), |b| {
                residual_block(b, &x, channels, stride, depth.bottleneck)
            })?;
        }
    }
    let features = global_average(b, &x)?;
    let classes = options.classes.unwrap_or(depth.classes);
    let logits = linear(b, "fc", &features, classes)?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
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

fn stem(b: &mut Builder, depth: Depth, images: &Var) -> Result<Var, ProgramError> {
    let window = match depth.small {
        true => Square { kernel: 3, stride: 1, padding: 1 },
        false => Square { kernel: 7, stride: 2, padding: 3 },
    };
    let x = conv(b, "conv1", images, depth.width, window)?;
    let x = batch_norm(b, "bn1", &x, Then::Relu)?;
    if depth.small {
        return Ok(x);
    }
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
