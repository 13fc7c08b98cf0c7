//! Max and average pooling.

use super::{Op, Window};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

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

/// How a pooling moves over the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Height and width of the window.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Vertical and horizontal padding, on both sides.
    pub padding: [usize; 2],
}

/// The positions within a window that one byte can name.
const MAX_POOL_POSITIONS: usize = 256;

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
        if kh.saturating_mul(kw) > MAX_POOL_POSITIONS {
            return Err(ProgramError::Argument {
                node: name,
                what: "kernel",
                expected: format!("of at most {MAX_POOL_POSITIONS} positions"),
                found: format!("{:?}", options.kernel),
            });
        }
        let shape = pooling.window.out_shape(pooling.channels);
        let writes = vec![(shape.clone(), DType::F32), (shape, DType::U8)];
        let mut vars = self.forward(name, Op::MaxPool(pooling), &[x], writes)?;
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
        self.forward_one(name, Op::AvgPool(pooling), &[x], shape)
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
        };
        window.check(name)?;
        // As PyTorch: a wider padding would make windows without any pixel.
        if (0..2).any(|axis| options.padding[axis] > options.kernel[axis] / 2) {
            return Err(ProgramError::Argument {
                node: name.into(),
                what: "padding",
                expected: format!("at most half the kernel {:?}", options.kernel),
                found: format!("{:?}", options.padding),
            });
        }
        Ok(Pooling { window, channels })
    }
}

impl Pooling {
    pub(crate) fn max_gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let (dy, index) = (rule.dy(), rule.write(1));
        rule.emit_for(0, "dx", Op::MaxPoolDx(self), vec![dy, index])
    }

    pub(crate) fn average_gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let dy = rule.dy();
        rule.emit_for(0, "dx", Op::AvgPoolDx(self), vec![dy])
    }
}
