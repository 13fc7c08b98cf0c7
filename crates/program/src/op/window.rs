//! The window of a convolution or a pooling, slid over an image.

use crate::ProgramError;

/// A window that slides over an image: the sizes of both.
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
    /// More padding at the bottom and at the right.
    pub extra: [usize; 2],
    /// Vertical and horizontal distance of neighbouring taps.
    pub dilation: [usize; 2],
}

impl Window {
    /// Output height.
    pub fn out_height(&self) -> usize {
        self.positions(self.height, 0)
    }

    /// Output width.
    pub fn out_width(&self) -> usize {
        self.positions(self.width, 1)
    }

    fn positions(&self, size: usize, axis: usize) -> usize {
        let padded = size + 2 * self.padding[axis] + self.extra[axis];
        (padded - self.reach(axis)) / self.stride[axis] + 1
    }

    /// From the first to the last pixel under the window, both counted.
    pub fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1) * self.dilation[axis] + 1
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

impl Window {
    /// Fails unless the window fits and moves, so that the output sizes exist.
    pub(crate) fn check(&self, node: &str) -> Result<(), ProgramError> {
        let moves = self.stride.iter().chain(&self.kernel).chain(&self.dilation).all(|&n| n > 0);
        if !moves {
            return Err(ProgramError::Argument {
                node: node.into(),
                what: "kernel, stride and dilation",
                expected: "positive".into(),
                found: format!("{:?}, {:?} and {:?}", self.kernel, self.stride, self.dilation),
            });
        }
        let fits = |size: usize, axis: usize| {
            let padded = self.padding[axis].checked_mul(2);
            let padded = padded.and_then(|padding| padding.checked_add(self.extra[axis]));
            let padded = padded.and_then(|padding| padding.checked_add(size));
            let reach = (self.kernel[axis] - 1).checked_mul(self.dilation[axis]);
            padded.is_some_and(|padded| reach.is_some_and(|reach| reach < padded))
        };
        if fits(self.height, 0) && fits(self.width, 1) {
            return Ok(());
        }
        Err(ProgramError::Window {
            node: node.into(),
            kernel: self.kernel,
            image: [self.height, self.width],
            padding: self.padding,
        })
    }

    /// The shape of the output with this many channels.
    pub(crate) fn out_shape(&self, channels: usize) -> Vec<usize> {
        vec![self.batch, self.out_height(), self.out_width(), channels]
    }
}
