//! Thin columns, one for each of many items along a rank; a colour per group.

use crate::chart::span;
use crate::frame::Frame;
use crate::theme::series as colour;

/// The columns of one group, for instance of the forward pass.
#[derive(Clone, Debug)]
pub struct Columns {
    pub(crate) name: String,
    /// The place, the height and the name of each.
    items: Vec<(f64, f64, String)>,
}

impl Columns {
    /// A group; each item is its place, its height, and the name that is shown when it is pointed
    /// at.
    pub fn new(
        name: impl Into<String>,
        items: impl IntoIterator<Item = (f64, f64, impl Into<String>)>,
    ) -> Columns {
        let drawable = items.into_iter().filter(|(x, y, _)| x.is_finite() && y.is_finite());
        let items = drawable.map(|(x, value, name)| (x, value, name.into())).collect();
        Columns { name: name.into(), items }
    }
}

/// The narrowest column that can still be seen.
const NARROWEST: f64 = 0.8;
/// The widest column: few items do not become blocks.
const WIDEST: f64 = 24.0;

/// The highest column.
pub(crate) fn highest(groups: &[Columns]) -> f64 {
    groups.iter().flat_map(|group| &group.items).map(|item| item.1).fold(0.0, f64::max)
}

/// The first and the last place.
pub(crate) fn x_span(groups: &[Columns]) -> [f64; 2] {
    span(groups.iter().flat_map(|group| group.items.iter().map(|item| item.0)))
}

/// Draws every column.
pub(crate) fn draw(frame: &mut Frame<'_>, groups: &[Columns]) {
    let [low, high] = x_span(groups);
    let places = high - low + 1.0;
    let width = ((frame.across[1] - frame.across[0]) / places * 0.9).clamp(NARROWEST, WIDEST);
    let x = frame.linear_x(width / 2.0 + 1.0);
    for (index, group) in groups.iter().enumerate() {
        for (place, value, name) in &group.items {
            let top = frame.y.at(*value);
            let about = format!("{name}: {}", frame.y_unit().show(*value));
            let corner = [x.at(*place) - width / 2.0, top];
            frame.svg.rect("column", corner, [width, frame.down[1] - top], colour(index), &about);
        }
    }
}
