//! Bars over categories, side by side or on top of each other.

use crate::frame::Frame;
use crate::theme::series as colour;

/// One series of bars: a value for each category.
#[derive(Clone, Debug)]
pub struct Bars {
    pub(crate) name: String,
    /// One per category; a value that is not a number leaves its place empty.
    pub(crate) values: Vec<f64>,
    /// Written above the bars, one per category; an empty one is not written.
    pub(crate) notes: Vec<String>,
}

impl Bars {
    /// A series; a value that is missing is given as `f64::NAN`.
    pub fn new(name: impl Into<String>, values: impl IntoIterator<Item = f64>) -> Bars {
        Bars { name: name.into(), values: values.into_iter().collect(), notes: Vec::new() }
    }

    /// Writes a note above each bar, for instance a percentage or why there is no bar.
    pub fn notes(mut self, notes: impl IntoIterator<Item = impl Into<String>>) -> Bars {
        self.notes = notes.into_iter().map(Into::into).collect();
        self
    }

    /// The bar's height, or `None` where there is none.
    fn value(&self, category: usize) -> Option<f64> {
        self.values.get(category).copied().filter(|value| value.is_finite())
    }
}

/// Share of a slot that its bars fill.
const FILLED: f64 = 0.72;

/// The highest bar.
pub(crate) fn highest(series: &[Bars]) -> f64 {
    let values = series.iter().flat_map(|bars| bars.values.iter().copied());
    values.filter(|value| value.is_finite()).fold(0.0, f64::max)
}

/// The highest stack.
pub(crate) fn highest_stack(categories: usize, series: &[Bars]) -> f64 {
    let stack = |category| series.iter().filter_map(|bars| bars.value(category)).sum::<f64>();
    (0..categories).map(stack).fold(0.0, f64::max)
}

/// Draws the bars of each category side by side.
pub(crate) fn draw_grouped(frame: &mut Frame<'_>, categories: &[String], series: &[Bars]) {
    let (starts, slot) = frame.category_x(categories);
    let width = slot * FILLED / series.len().max(1) as f64;
    for (category, start) in starts.iter().enumerate() {
        for (index, bars) in series.iter().enumerate() {
            let left = start + slot * (1.0 - FILLED) / 2.0 + index as f64 * width;
            let value = bars.value(category);
            if let Some(value) = value {
                let about = about(frame, &categories[category], bars, value);
                draw_bar(frame, index, [left, width * 0.94], [0.0, value], &about);
            }
            if let Some(note) = bars.notes.get(category).filter(|note| !note.is_empty()) {
                let middle = left + width * 0.47;
                match value {
                    Some(value) => frame.note([middle, frame.y.at(value) - 6.0], note),
                    None => frame.upward_note([middle + 5.0, frame.down[1] - 8.0], note),
                }
            }
        }
    }
}

/// Draws the bars of each category on top of each other, the first at the bottom.
pub(crate) fn draw_stacked(frame: &mut Frame<'_>, categories: &[String], series: &[Bars]) {
    let (starts, slot) = frame.category_x(categories);
    let width = slot * FILLED;
    for (category, start) in starts.iter().enumerate() {
        let left = start + slot * (1.0 - FILLED) / 2.0;
        let mut base = 0.0;
        for (index, bars) in series.iter().enumerate() {
            if let Some(value) = bars.value(category) {
                let about = about(frame, &categories[category], bars, value);
                draw_bar(frame, index, [left, width], [base, base + value], &about);
                base += value;
            }
        }
    }
}

fn draw_bar(
    frame: &mut Frame<'_>,
    series: usize,
    across: [f64; 2],
    heights: [f64; 2],
    about: &str,
) {
    let [bottom, top] = heights.map(|height| frame.y.at(height));
    let [left, width] = across;
    frame.svg.rect("bar", [left, top], [width, bottom - top], colour(series), about);
}

fn about(frame: &Frame<'_>, category: &str, bars: &Bars, value: f64) -> String {
    format!("{category}, {}: {}", bars.name, frame.y_unit().show(value))
}
