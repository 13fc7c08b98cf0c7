//! Max and average pooling.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Operand, Shapes, Window};
use crate::{Builder, DType, ProgramError, Var};

/// What all poolings share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// The image and the window.
    pub window: Window,
    /// How many channels each image has.
    pub channels: usize,
}

/// `max_pool`: `x → y, index` where `index` (`u8`) is the window position of the first maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxPool(pub Pooling);

/// `max_pool_dx`: `dy, index → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxPoolDx(pub Pooling);

/// `avg_pool`: `x → y`; padding counts as zeros in the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AvgPool(pub Pooling);

/// `avg_pool_dx`: `dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AvgPoolDx(pub Pooling);

/// How a pooling moves over the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Height and width of the window.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Vertical and horizontal padding, on both sides.
    pub padding: [usize; 2],
    /// More padding at the bottom and at the right, as where sizes are rounded up.
    pub extra: [usize; 2],
}

impl MaxPool {
    /// The most positions of a window: as many as one byte can name.
    pub const MAX_POSITIONS: usize = 256;
}

impl Builder {
    /// The maximum of each window of `x: [n, h, w, c]`.
    ///
    /// # Errors
    /// If `x` is no image, the window does not fit into it or has more than 256 positions, or a
    /// window could lie in the padding altogether.
    pub fn max_pool(
        &mut self,
        name: &str,
        x: &Var,
        options: PoolOptions,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let pooling = self.pooling(&name, x, options)?;
        let [kh, kw] = options.kernel;
        if kh.saturating_mul(kw) > MaxPool::MAX_POSITIONS {
            return Err(ProgramError::Argument {
                node: name,
                what: "kernel",
                expected: format!("of at most {} positions", MaxPool::MAX_POSITIONS),
                found: format!("{:?}", options.kernel),
            });
        }
        let shape = pooling.window.out_shape(pooling.channels);
        let writes = vec![(shape.clone(), DType::F32), (shape, DType::U8)];
        let mut vars = self.forward(name, MaxPool(pooling), &[x], writes)?;
        Ok(vars.swap_remove(0))
    }

    /// The mean of each window of `x: [n, h, w, c]`; padding counts as zeros.
    ///
    /// # Errors
    /// If `x` is no image, or the window does not fit into it.
    pub fn avg_pool(
        &mut self,
        name: &str,
        x: &Var,
        options: PoolOptions,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let pooling = self.pooling(&name, x, options)?;
        let shape = pooling.window.out_shape(pooling.channels);
        self.forward_one(name, AvgPool(pooling), &[x], shape)
    }

    fn pooling(&self, name: &str, x: &Var, options: PoolOptions) -> Result<Pooling, ProgramError> {
        let axes = ["n", "h", "w", "channels"];
        let [batch, height, width, channels] = self.expect_axes(name, "x", x, axes)?;
        let window = Window {
            batch,
            height,
            width,
            kernel: options.kernel,
            stride: options.stride,
            padding: options.padding,
            extra: options.extra,
            dilation: [1, 1],
        };
        window.check(name)?;
        // As PyTorch: a wider padding would make windows without any pixel.
        let too_wide = |axis: usize| {
            let image = [height, width][axis] + options.padding[axis];
            let last = [window.out_height(), window.out_width()][axis] - 1;
            options.padding[axis] > options.kernel[axis] / 2 || last * options.stride[axis] >= image
        };
        if (0..2).any(too_wide) {
            return Err(ProgramError::Argument {
                node: name.into(),
                what: "padding",
                expected: format!(
                    "at most half the kernel {:?}, and no window in it alone",
                    options.kernel
                ),
                found: format!("{:?} and {:?} more at the end", options.padding, options.extra),
            });
        }
        Ok(Pooling { window, channels })
    }
}

impl Pooling {
    /// How many elements the image has.
    fn x(&self) -> usize {
        self.window.in_pixels() * self.channels
    }

    /// How many elements the result has.
    fn y(&self) -> usize {
        self.window.out_pixels() * self.channels
    }
}

impl Operation for MaxPool {
    const FACTS: Facts<MaxPool> = Facts {
        name: "max_pool",
        shapes: |MaxPool(op)| {
            let (y, index) = (Operand::F32(op.y()), Operand::U8(op.y()));
            Shapes::new([Operand::F32(op.x())], [y, index])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            rule.emit_for(0, "dx", MaxPoolDx(op.0), vec![rule.dy(), rule.write(1)])
        }),
    };
}

impl Operation for MaxPoolDx {
    const FACTS: Facts<MaxPoolDx> = Facts {
        name: "max_pool_dx",
        shapes: |MaxPoolDx(op)| {
            let (dy, index) = (Operand::F32(op.y()), Operand::U8(op.y()));
            Shapes::new([dy, index], [Operand::F32(op.x())])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Operation for AvgPool {
    const FACTS: Facts<AvgPool> = Facts {
        name: "avg_pool",
        shapes: |AvgPool(op)| Shapes::f32([op.x()], [op.y()]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            rule.emit_for(0, "dx", AvgPoolDx(op.0), vec![rule.dy()])
        }),
    };
}

impl Operation for AvgPoolDx {
    const FACTS: Facts<AvgPoolDx> = Facts {
        name: "avg_pool_dx",
        shapes: |AvgPoolDx(op)| Shapes::f32([op.y()], [op.x()]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
