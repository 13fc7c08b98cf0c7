//! Convolution.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Shapes, SumRows, Window};
use crate::autodiff::Rule;
use crate::{Builder, ProgramError, Var};

/// `conv`: `x, w [, bias] → y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    /// The image and the window.
    pub window: Window,
    /// Channels of `x`.
    pub in_channels: usize,
    /// Channels of `y`.
    pub out_channels: usize,
    /// Into how many groups the channels fall; both channel counts are multiples of it.
    pub groups: usize,
    /// Whether a bias is read.
    pub bias: bool,
}

/// `conv_dx`: `dy, w → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvDx(pub Conv);

/// `conv_dw`: `x, dy → dw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvDw(pub Conv);

/// How a convolution moves over the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Vertical and horizontal zero padding, on both sides.
    pub padding: [usize; 2],
    /// More padding at the bottom and at the right.
    pub extra: [usize; 2],
    /// Vertical and horizontal distance of neighbouring taps.
    pub dilation: [usize; 2],
    /// Into how many groups the channels fall; both channel counts are multiples of it.
    pub groups: usize,
}

impl Default for ConvOptions {
    fn default() -> Self {
        ConvOptions { stride: [1; 2], padding: [0; 2], extra: [0; 2], dilation: [1; 2], groups: 1 }
    }
}

impl Builder {
    /// The convolution of `x: [n, h, w, ci]` with `weight: [kh, kw, ci / groups, co]`.
    ///
    /// # Errors
    /// If the shapes or the options do not agree, or the window does not fit into the image.
    pub fn conv(
        &mut self,
        name: &str,
        x: &Var,
        weight: &Var,
        bias: Option<&Var>,
        options: ConvOptions,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let [batch, height, width, in_channels] =
            self.expect_axes(&name, "x", x, ["n", "h", "w", "channels"])?;
        let axes = ["kh", "kw", "in channels / groups", "out channels"];
        let [kh, kw, group_channels, out_channels] =
            self.expect_axes(&name, "weight", weight, axes)?;
        let groups = options.groups;
        if groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 {
            return Err(ProgramError::Argument {
                node: name,
                what: "groups",
                expected: format!("a divisor of {in_channels} and {out_channels} channels"),
                found: groups.to_string(),
            });
        }
        if group_channels != in_channels / groups {
            let expected = [kh, kw, in_channels / groups, out_channels];
            self.expect_shape(&name, "weight", weight, &expected)?;
        }
        let window = Window {
            batch,
            height,
            width,
            kernel: [kh, kw],
            stride: options.stride,
            padding: options.padding,
            extra: options.extra,
            dilation: options.dilation,
        };
        window.check(&name)?;
        let mut reads = vec![x, weight];
        if let Some(bias) = bias {
            self.expect_shape(&name, "bias", bias, &[out_channels])?;
            reads.push(bias);
        }
        let op = Conv { window, in_channels, out_channels, groups, bias: bias.is_some() };
        self.forward_one(name, op, &reads, window.out_shape(out_channels))
    }
}

impl Builder {
    /// The transposed convolution: what [`Builder::conv`] with `weight: [kh, kw, co / groups, ci]`
    /// would take from `size` to the image `x: [n, h, w, ci]`, the other way round.
    ///
    /// # Errors
    /// If the shapes or the options do not agree, or the convolution of an image of that size has
    /// not the size of `x`.
    pub fn conv_transposed(
        &mut self,
        name: &str,
        x: &Var,
        weight: &Var,
        size: [usize; 2],
        options: ConvOptions,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let [batch, height, width, out_channels] =
            self.expect_axes(&name, "x", x, ["n", "h", "w", "channels"])?;
        let axes = ["kh", "kw", "out channels / groups", "in channels"];
        let [kh, kw, group_channels, _] = self.expect_axes(&name, "weight", weight, axes)?;
        let groups = options.groups;
        self.expect_shape(&name, "weight", weight, &[kh, kw, group_channels, out_channels])?;
        let window = Window {
            batch,
            height: size[0],
            width: size[1],
            kernel: [kh, kw],
            stride: options.stride,
            padding: options.padding,
            extra: options.extra,
            dilation: options.dilation,
        };
        window.check(&name)?;
        let found = [window.out_height(), window.out_width()];
        if groups == 0 || !out_channels.is_multiple_of(groups) || found != [height, width] {
            return Err(ProgramError::Argument {
                node: name,
                what: "size and groups",
                expected: format!("of a convolution to {height} × {width} × {out_channels}"),
                found: format!("{size:?}, which gives {found:?}, and {groups}"),
            });
        }
        let in_channels = group_channels * groups;
        let op = Conv { window, in_channels, out_channels, groups, bias: false };
        let shape = vec![batch, size[0], size[1], in_channels];
        self.forward_one(name, ConvDx(op), &[x, weight], shape)
    }
}

impl Operation for Conv {
    const FACTS: Facts<Conv> = Facts {
        name: "conv",
        shapes: |op| {
            let [x, w, y] = op.sizes();
            Shapes::f32([x, w], [y]).and_read(op.bias, op.out_channels)
        },
        effect: Effects::Pure,
        flops: Conv::flops,
        derivative: Derivative::Rule(Conv::gradient),
    };
}

impl Operation for ConvDx {
    const FACTS: Facts<ConvDx> = Facts {
        name: "conv_dx",
        shapes: |op| {
            let [x, w, y] = op.0.sizes();
            Shapes::f32([y, w], [x])
        },
        effect: Effects::Pure,
        flops: |op| op.0.flops(),
        // In the forward pass it is the transposed convolution.
        derivative: Derivative::Rule(|op, rule| {
            let (x, weight, dy) = (rule.read(0), rule.read(1), rule.dy());
            if rule.wants(1) {
                rule.emit_for(1, "dw", ConvDw(op.0), vec![dy, x])?;
            }
            if rule.wants(0) {
                rule.emit_for(0, "dx", op.0, vec![dy, weight])?;
            }
            Ok(())
        }),
    };
}

impl Operation for ConvDw {
    const FACTS: Facts<ConvDw> = Facts {
        name: "conv_dw",
        shapes: |op| {
            let [x, w, y] = op.0.sizes();
            Shapes::f32([x, y], [w])
        },
        effect: Effects::Pure,
        flops: |op| op.0.flops(),
        derivative: Derivative::None,
    };
}

impl Conv {
    /// How many elements `x`, `w` and `y` have.
    fn sizes(&self) -> [usize; 3] {
        let Conv { window, in_channels, out_channels, groups, .. } = self;
        let w = window.kernel[0] * window.kernel[1] * (in_channels / groups) * out_channels;
        let x = window.in_pixels() * in_channels;
        [x, w, window.out_pixels() * out_channels]
    }

    /// Each weight meets each pixel of the result once, also in both gradients.
    fn flops(&self) -> u64 {
        let [_, weights, _] = self.sizes();
        2 * self.window.out_pixels() as u64 * weights as u64
    }

    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let (x, weight, dy) = (rule.read(0), rule.read(1), rule.dy());
        let plain = Conv { bias: false, ..*self };
        if rule.wants(1) {
            rule.emit_for(1, "dw", ConvDw(plain), vec![x, dy])?;
        }
        if self.bias && rule.wants(2) {
            let (rows, cols) = (self.window.out_pixels(), self.out_channels);
            rule.emit_for(2, "db", SumRows { rows, cols }, vec![dy])?;
        }
        if rule.wants(0) {
            rule.emit_for(0, "dx", ConvDx(plain), vec![dy, weight])?;
        }
        Ok(())
    }
}
