//! The operations a program is made of.
//!
//! An [`Op`] carries every dimension that its kernel needs; its operands are plain blocks of memory.
//! So a reshape is no operation, and a kernel never looks at a shape outside its own op.
//!
//! Layouts: images are `[n, h, w, c]`, convolution weights `[kh, kw, ci / groups, co]`, linear
//! weights `[out, in]`, token ids and labels `i64`. A "row" is everything but the last axis.
//! Each op documents its operands as `reads → writes`; what it updates in place is marked `*`.

use remat_graph::Effect;

/// A two-dimensional convolution or the window of a pooling: sizes of the image and of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Images in the batch.
    pub batch: usize,
    /// Input height.
    pub height: usize,
    /// Input width.
    pub width: usize,
    /// Window height and width.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Vertical and horizontal zero padding, on both sides.
    pub padding: [usize; 2],
}

impl Window {
    /// Output height.
    pub fn out_height(&self) -> usize {
        (self.height + 2 * self.padding[0] - self.kernel[0]) / self.stride[0] + 1
    }

    /// Output width.
    pub fn out_width(&self) -> usize {
        (self.width + 2 * self.padding[1] - self.kernel[1]) / self.stride[1] + 1
    }

    /// Pixels of all input images.
    pub fn in_pixels(&self) -> usize {
        self.batch * self.height * self.width
    }

    /// Pixels of all output images.
    pub fn out_pixels(&self) -> usize {
        self.batch * self.out_height() * self.out_width()
    }
}

/// `conv`: `x, w [, bias] → y`; `conv_dx`: `dy, w → dx`; `conv_dw`: `x, dy → dw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    /// The image and the window.
    pub window: Window,
    /// Channels of `x`.
    pub in_channels: usize,
    /// Channels of `y`.
    pub out_channels: usize,
    /// Groups; both channel counts are multiples of it.
    pub groups: usize,
    /// Whether a bias is read (forward only).
    pub bias: bool,
}

/// `max_pool`: `x → y, index` where `index` (`u8`) is the window position of the first maximum;
/// `max_pool_dx`: `dy, index → dx`; `avg_pool`: `x → y` (padding counts as zeros in the mean);
/// `avg_pool_dx`: `dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// The image and the window.
    pub window: Window,
    /// Channels.
    pub channels: usize,
}

/// `matmul`: `a, b [, bias] → c`: `c[m, n] = op(a) · op(b) (+ bias[n])`, row major, where `op`
/// transposes: `a` is stored `[k, m]` if `transpose_a`, `b` is stored `[n, k]` if `transpose_b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// Rows of `c`.
    pub m: usize,
    /// Columns of `c`.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// `a` is stored transposed.
    pub transpose_a: bool,
    /// `b` is stored transposed.
    pub transpose_b: bool,
    /// Whether a bias is read.
    pub bias: bool,
}

/// How the matrices of the heads lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heads {
    /// `[batch, heads, rows, columns]`.
    Outer,
    /// `[batch, rows, heads, columns]`, as a linear layer writes them.
    Interleaved,
}

/// `head_matmul`: `a, b → c`: for each batch and head, `c = alpha · op(a) · op(b)`, with the stored
/// matrices laid out as each operand's [`Heads`] says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadMatmul {
    /// Batches.
    pub batch: usize,
    /// Heads per batch.
    pub heads: usize,
    /// Rows of each `c`.
    pub m: usize,
    /// Columns of each `c`.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// Layout of `a`.
    pub a: Heads,
    /// Layout of `b`.
    pub b: Heads,
    /// Layout of `c`.
    pub c: Heads,
    /// `a` is stored transposed.
    pub transpose_a: bool,
    /// `b` is stored transposed.
    pub transpose_b: bool,
    /// The factor.
    pub alpha: f32,
}

/// What a batch-norm does after normalising.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Nothing.
    Linear,
    /// ReLU.
    Relu,
    /// Add a second operand, then ReLU (the end of a residual block).
    AddRelu,
}

/// Batch normalisation over the rows of `x: [rows, channels]`, in training mode.
///
/// `batch_norm_stats`: `x → stats` (`[2, channels]`: mean, biased variance);
/// `batch_norm`: `x, stats, gamma, beta [, residual] → y`;
/// `batch_norm_update`: `stats, running_mean*, running_var*, batches*` (`batches` is `i64[1]`; the
/// running variance takes the unbiased one), may run once;
/// `batch_norm_dx`: `x, stats, gamma [, beta if Relu] [, y if AddRelu], dy [, dy2] →
/// dx, dgamma, dbeta [, dresidual if AddRelu]`. The gradient of `y` is `dy` or `dy + dy2`.
/// `Relu` recomputes its mask from `x` with the very arithmetic of the forward kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Pixels of all images.
    pub rows: usize,
    /// Channels.
    pub channels: usize,
    /// Added to the variance.
    pub eps: f32,
    /// What follows.
    pub tail: Tail,
}

/// `layer_norm`: `x, gamma, beta → y, stats` (`[rows, 2]`: mean, reciprocal deviation);
/// `layer_norm_dx`: `x, stats, gamma, dy → dx, dgamma, dbeta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Rows.
    pub rows: usize,
    /// The normalised axis.
    pub cols: usize,
    /// Added to the variance.
    pub eps: f32,
}

/// Which columns a softmax looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All.
    Full,
    /// Row `r` sees columns up to `r mod cols`; the rest is zero.
    Causal,
}

/// `softmax`: `x → y`; `softmax_dx`: `y, dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    /// Rows.
    pub rows: usize,
    /// The axis that sums to one.
    pub cols: usize,
    /// Which columns are seen.
    pub mask: Mask,
}

/// Which GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gelu {
    /// The exact one, by the error function.
    Erf,
    /// The approximation by the hyperbolic tangent (GPT-2).
    Tanh,
}

/// `embedding`: `ids, table → y`; `embedding_dw`: `ids, dy [, base] → dtable`, which starts from
/// `base` or zero and adds the rows of `dy` in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Embedding {
    /// Ids.
    pub rows: usize,
    /// Rows of the table.
    pub vocab: usize,
    /// Columns of the table.
    pub cols: usize,
    /// Whether a base is read (backward only).
    pub base: bool,
}

/// `dropout`: `x → y`: each element is zeroed with probability `p` and scaled by `1 / (1 - p)`
/// otherwise. The mask is a pure function of (seed, step, site, element), so the gradient is the
/// same op on `dy` with the same site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Elements.
    pub len: usize,
    /// Probability of zero.
    pub p: f32,
    /// Which dropout of the program this is.
    pub site: u32,
}

/// `cross_entropy`: `logits, labels → loss, lse` (`loss: [1]`, the mean over rows whose label is not
/// [`CrossEntropy::IGNORE`]; `lse: [rows]`, the log of the sum of exponentials);
/// `cross_entropy_dx`: `logits, labels, lse, dloss → dlogits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropy {
    /// Rows.
    pub rows: usize,
    /// Classes.
    pub classes: usize,
}

impl CrossEntropy {
    /// Rows with this label do not count.
    pub const IGNORE: i64 = -100;
}

/// `permute`: `x → y`: `y`'s axis `i` is `x`'s axis `order[i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permute {
    /// The shape of `x`.
    pub shape: [usize; 4],
    /// Which axis of `x` comes where.
    pub order: [usize; 4],
}

/// `split`: `x: [rows, parts · cols] → parts × [rows, cols]`; `concat` is its inverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Rows.
    pub rows: usize,
    /// Number of parts.
    pub parts: usize,
    /// Columns of each part.
    pub cols: usize,
}

/// `sgd`: `param*, grad [, momentum*]`, as PyTorch's SGD with dampening 0. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Elements.
    pub len: usize,
    /// Learning rate.
    pub learning_rate: f32,
    /// Momentum; a buffer is kept if it is not zero.
    pub momentum: f32,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f32,
}

/// `adam`: `param*, grad, first*, second*`, as PyTorch's Adam (or AdamW if `decoupled`), without
/// amsgrad. The step count of the bias correction is the run's step, from 1. May run once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Elements.
    pub len: usize,
    /// Learning rate.
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Weight decay.
    pub weight_decay: f32,
    /// Decay the weight itself (AdamW) and not the gradient.
    pub decoupled: bool,
}

/// An operation with all its dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // Each variant is documented at its dimensions, or is plain.
pub enum Op {
    /// Never runs: its write is there from the start.
    Source,
    Conv(Conv),
    ConvDx(Conv),
    ConvDw(Conv),
    MaxPool(Pooling),
    MaxPoolDx(Pooling),
    AvgPool(Pooling),
    AvgPoolDx(Pooling),
    Matmul(Matmul),
    HeadMatmul(HeadMatmul),
    /// `x: [rows, cols] → sum over rows: [cols]`; the gradient of a bias.
    SumRows {
        rows: usize,
        cols: usize,
    },
    BatchNormStats(BatchNorm),
    BatchNorm(BatchNorm),
    /// The momentum is PyTorch's: `running = (1 - momentum) · running + momentum · batch`.
    BatchNormUpdate {
        norm: BatchNorm,
        momentum: f32,
    },
    BatchNormDx(BatchNorm),
    LayerNorm(LayerNorm),
    LayerNormDx(LayerNorm),
    /// `x → y`
    Relu {
        len: usize,
    },
    /// `y, dy → dx`
    ReluDx {
        len: usize,
    },
    /// `x → y`
    Gelu {
        len: usize,
        kind: Gelu,
    },
    /// `x, dy → dx`
    GeluDx {
        len: usize,
        kind: Gelu,
    },
    Softmax(Softmax),
    SoftmaxDx(Softmax),
    Embedding(Embedding),
    EmbeddingDw(Embedding),
    Dropout(Dropout),
    CrossEntropy(CrossEntropy),
    CrossEntropyDx(CrossEntropy),
    /// `a, b → a + b`
    Add {
        len: usize,
    },
    /// `x → factor · x`
    Scale {
        len: usize,
        factor: f32,
    },
    Permute(Permute),
    Split(Split),
    Concat(Split),
    Sgd(Sgd),
    Adam(Adam),
}

impl Op {
    /// A short name, as reports show it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Source => "source",
            Op::Conv(_) => "conv",
            Op::ConvDx(_) => "conv_dx",
            Op::ConvDw(_) => "conv_dw",
            Op::MaxPool(_) => "max_pool",
            Op::MaxPoolDx(_) => "max_pool_dx",
            Op::AvgPool(_) => "avg_pool",
            Op::AvgPoolDx(_) => "avg_pool_dx",
            Op::Matmul(_) => "matmul",
            Op::HeadMatmul(_) => "head_matmul",
            Op::SumRows { .. } => "sum_rows",
            Op::BatchNormStats(_) => "batch_norm_stats",
            Op::BatchNorm(_) => "batch_norm",
            Op::BatchNormUpdate { .. } => "batch_norm_update",
            Op::BatchNormDx(_) => "batch_norm_dx",
            Op::LayerNorm(_) => "layer_norm",
            Op::LayerNormDx(_) => "layer_norm_dx",
            Op::Relu { .. } => "relu",
            Op::ReluDx { .. } => "relu_dx",
            Op::Gelu { .. } => "gelu",
            Op::GeluDx { .. } => "gelu_dx",
            Op::Softmax(_) => "softmax",
            Op::SoftmaxDx(_) => "softmax_dx",
            Op::Embedding(_) => "embedding",
            Op::EmbeddingDw(_) => "embedding_dw",
            Op::Dropout(_) => "dropout",
            Op::CrossEntropy(_) => "cross_entropy",
            Op::CrossEntropyDx(_) => "cross_entropy_dx",
            Op::Add { .. } => "add",
            Op::Scale { .. } => "scale",
            Op::Permute(_) => "permute",
            Op::Split(_) => "split",
            Op::Concat(_) => "concat",
            Op::Sgd(_) => "sgd",
            Op::Adam(_) => "adam",
        }
    }

    /// Whether it may run again.
    pub fn effect(&self) -> Effect {
        match self {
            Op::BatchNormUpdate { .. } | Op::Sgd(_) | Op::Adam(_) => Effect::Once,
            Op::Dropout(_) => Effect::Random,
            _ => Effect::Pure,
        }
    }

    /// Which of its reads it overwrites in place.
    pub fn updates(&self) -> &'static [usize] {
        match self {
            Op::BatchNormUpdate { .. } => &[1, 2, 3],
            Op::Sgd(sgd) if sgd.momentum != 0.0 => &[0, 2],
            Op::Sgd(_) => &[0],
            Op::Adam(_) => &[0, 2, 3],
            _ => &[],
        }
    }

    /// Multiplications and additions of one run; zero for what only moves or maps elements.
    pub fn flops(&self) -> u64 {
        let product = |sizes: &[usize]| 2 * sizes.iter().map(|&s| s as u64).product::<u64>();
        match self {
            Op::Conv(c) | Op::ConvDx(c) | Op::ConvDw(c) => product(&[
                c.window.out_pixels(),
                c.window.kernel[0] * c.window.kernel[1],
                c.in_channels / c.groups,
                c.out_channels,
            ]),
            Op::Matmul(g) => product(&[g.m, g.n, g.k]),
            Op::HeadMatmul(g) => product(&[g.batch, g.heads, g.m, g.n, g.k]),
            _ => 0,
        }
    }
}
