//! Images in another size.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use crate::{Builder, ProgramError, Var};

/// What lies between two pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Between {
    /// The one before: `floor` of the position.
    Nearest,
    /// A mixture of the pixels around, by distance.
    Linear,
}

/// Where a pixel of the result lies in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// `(i + 1/2) / scale - 1/2`: centres of pixels.
    HalfPixel,
    /// `i / scale`: corners of pixels.
    Asymmetric,
    /// The first and the last pixel lie on each other.
    AlignCorners,
}

/// `resize`: `x: [batch, height, width, channels] → y: [batch, out height, out width, channels]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resize {
    /// Images in the batch.
    pub batch: usize,
    /// Height and width of the image.
    pub from: [usize; 2],
    /// Height and width of the result.
    pub to: [usize; 2],
    /// Channels of each pixel.
    pub channels: usize,
    /// What lies between two pixels.
    pub between: Between,
    /// Where a pixel of the result lies.
    pub position: Position,
}

/// `resize_dx`: `dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizeDx(pub Resize);

impl Resize {
    /// Along `axis`, the two pixels of the image that make pixel `i` of the result, and the share
    /// of the second.
    pub fn taps(&self, axis: usize, i: usize) -> ([usize; 2], f32) {
        let (from, to) = (self.from[axis], self.to[axis]);
        let (i, ratio) = (i as f64, from as f64 / to as f64);
        let at = match self.position {
            Position::HalfPixel => (i + 0.5) * ratio - 0.5,
            Position::Asymmetric => i * ratio,
            Position::AlignCorners => i * (from - 1) as f64 / (to.max(2) - 1) as f64,
        };
        let last = from - 1;
        match self.between {
            Between::Nearest => {
                let at = (at.floor().max(0.0) as usize).min(last);
                ([at, at], 0.0)
            }
            Between::Linear => {
                let at = at.clamp(0.0, last as f64);
                let low = at.floor() as usize;
                ([low, (low + 1).min(last)], (at - low as f64) as f32)
            }
        }
    }

    fn sizes(&self) -> [usize; 2] {
        [self.from, self.to].map(|[h, w]| self.batch * h * w * self.channels)
    }
}

impl Builder {
    /// The images `x: [n, h, w, c]` in the size `to`.
    ///
    /// # Errors
    /// If `x` is no image.
    pub fn resize(
        &mut self,
        name: &str,
        x: &Var,
        to: [usize; 2],
        between: Between,
        position: Position,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let axes = ["n", "h", "w", "channels"];
        let [batch, height, width, channels] = self.expect_axes(&name, "x", x, axes)?;
        let op = Resize { batch, from: [height, width], to, channels, between, position };
        self.forward_one(name, op, &[x], vec![batch, to[0], to[1], channels])
    }
}

impl Operation for Resize {
    const FACTS: Facts<Resize> = Facts {
        name: "resize",
        shapes: |op| {
            let [x, y] = op.sizes();
            Shapes::f32([x], [y])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            rule.emit_for(0, "dx", ResizeDx(*op), vec![rule.dy()])
        }),
    };
}

impl Operation for ResizeDx {
    const FACTS: Facts<ResizeDx> = Facts {
        name: "resize_dx",
        shapes: |ResizeDx(op)| {
            let [x, y] = op.sizes();
            Shapes::f32([y], [x])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
