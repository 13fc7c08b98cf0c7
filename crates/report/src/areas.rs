//! Areas on top of each other over common steps: a stacked timeline.
//!
//! A value holds from its step to the next, so that the outline has steps and the peak is as high
//! as it is.

use crate::frame::Frame;
use crate::theme::series as colour;

/// One layer of the stack: a height for each step.
#[derive(Clone, Debug)]
pub struct Area {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

impl Area {
    /// A layer; what is not a number counts as zero.
    pub fn new(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Area {
        let values = values.into_iter().map(|value| if value.is_finite() { value } else { 0.0 });
        Area { name: name.into(), values: values.collect() }
    }

    fn value(&self, step: usize) -> f64 {
        self.values.get(step).copied().unwrap_or(0.0)
    }
}

/// How many steps there are.
pub(crate) fn steps(areas: &[Area]) -> usize {
    areas.iter().map(|area| area.values.len()).max().unwrap_or(0)
}

/// The highest stack.
pub(crate) fn highest(areas: &[Area]) -> f64 {
    let stack = |step| areas.iter().map(|area| area.value(step)).sum::<f64>();
    (0..steps(areas)).map(stack).fold(0.0, f64::max)
}

/// Draws the layers, the first at the bottom.
pub(crate) fn draw(frame: &mut Frame<'_>, areas: &[Area]) {
    let x = frame.linear_x(0.0);
    let steps = steps(areas);
    let mut base = vec![0.0; steps];
    for (index, area) in areas.iter().enumerate() {
        let top: Vec<f64> =
            base.iter().enumerate().map(|(step, low)| low + area.value(step)).collect();
        let edge = |heights: &[f64]| -> Vec<[f64; 2]> {
            let ends = |(step, height): (usize, &f64)| {
                let next = (step + 1).min(steps - 1);
                [step, next].map(|at| [x.at(at as f64), frame.y.at(*height)])
            };
            heights.iter().enumerate().flat_map(ends).collect()
        };
        let mut outline = edge(&top);
        outline.extend(edge(&base).into_iter().rev());
        frame.svg.polygon(&outline, colour(index));
        base = top;
    }
}
