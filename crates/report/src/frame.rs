//! What is around the data: title, legend, axes with ticks and grid, limits and boundaries.
//!
//! [`Frame::new`] draws what lies behind the data, the body draws the data, and [`Frame::finish`]
//! draws what lies before them. Labels that would run into each other are left out (ticks) or moved
//! to another line (boundaries).

use crate::axis::{Scale, Unit};
use crate::chart::Chart;
use crate::svg::{Anchor, Style, Svg};
use crate::theme::{
    BACKGROUND, BOTTOM, BOUNDARY, GRID, HEIGHT, INK, LEFT, LEGEND_ROW, LEGEND_TOP, LIMIT, MUTED,
    RIGHT, TEXT_SIZE, TITLE_LINE, TITLE_SIZE, WIDTH, series, text_width,
};

/// Side of a legend's swatch, and the gaps beside it.
const SWATCH: f64 = 12.0;
/// Gap between a swatch and its name, and twice that between entries.
const GAP: f64 = 8.0;
/// The least gap between two tick labels.
const TICK_GAP: f64 = 10.0;
/// Height of a line of boundary labels, which stand above the plot.
const BOUNDARY_ROW: f64 = 20.0;

/// A picture in the making.
pub(crate) struct Frame<'a> {
    chart: &'a Chart,
    pub(crate) svg: Svg,
    /// Heights.
    pub(crate) y: Scale,
    /// The left and the right end of the plot.
    pub(crate) across: [f64; 2],
    /// The upper and the lower end of the plot.
    pub(crate) down: [f64; 2],
    /// Where the boundaries are, from left to right.
    boundaries: Vec<(f64, &'a str)>,
    /// What is written in front of the data.
    notes: Svg,
}

impl<'a> Frame<'a> {
    /// The background, the title, the legend, the heights and their grid.
    pub(crate) fn new(chart: &'a Chart) -> Frame<'a> {
        let mut svg = Svg::default();
        svg.rect("background", [0.0, 0.0], [WIDTH, HEIGHT], BACKGROUND, "");
        svg.text([LEFT, TITLE_LINE], &chart.title, style(TITLE_SIZE, INK, Anchor::Start, "title"));
        let below_legend = draw_legend(&mut svg, &chart.legend());
        let labelled = if chart.boundaries.is_empty() { 0.0 } else { 2.0 * BOUNDARY_ROW };
        let down = [below_legend + 12.0 + labelled, HEIGHT - BOTTOM];
        let across = [LEFT, WIDTH - RIGHT];
        let y = Scale::from_zero(chart.y.unit, chart.highest(), [down[1], down[0]]);
        let (boundaries, notes) = (Vec::new(), Svg::default());
        let mut frame = Frame { chart, svg, y, across, down, boundaries, notes };
        frame.draw_heights();
        frame
    }

    fn draw_heights(&mut self) {
        let [left, right] = self.across;
        for (value, label) in self.y.ticks() {
            let at = self.y.at(value);
            self.svg.line("grid", [left, at], [right, at], GRID, "");
            let label_style = style(TEXT_SIZE, MUTED, Anchor::End, "y-tick");
            self.svg.text([left - 8.0, at + TEXT_SIZE * 0.35], &label, label_style);
        }
        let name = self.chart.y.label(self.chart.highest());
        let middle = (self.down[0] + self.down[1]) / 2.0;
        let name_style = style(TEXT_SIZE, INK, Anchor::Middle, "y-name");
        self.svg.upward_text([24.0, middle], &name, name_style);
    }

    /// The unit of the heights.
    pub(crate) fn y_unit(&self) -> Unit {
        self.chart.y.unit
    }

    /// A linear x axis over the chart's span, with ticks; `inset` keeps the ends of the data off
    /// the plot's edge.
    pub(crate) fn linear_x(&mut self, inset: f64) -> Scale {
        let range = [self.across[0] + inset, self.across[1] - inset];
        let span = self.chart.x_span().unwrap_or([0.0, 1.0]);
        let scale = Scale::spanning(self.chart.x.unit, span, range);
        let ticks = scale.ticks();
        let places = ticks.iter().map(|(value, label)| (scale.at(*value), label.as_str()));
        self.draw_x_labels(&places.collect::<Vec<_>>());
        self.draw_x_name(self.chart.x.label(span[1]));
        let [low, high] = span;
        let seen = self.chart.boundaries.iter().filter(|mark| (low..=high).contains(&mark.0));
        self.boundaries = seen.map(|(x, label)| (scale.at(*x), label.as_str())).collect();
        self.boundaries.sort_by(|a, b| a.0.total_cmp(&b.0));
        scale
    }

    /// An x axis with a slot for each category; gives the slots' left ends and their common width.
    pub(crate) fn category_x(&mut self, categories: &[String]) -> (Vec<f64>, f64) {
        let [left, right] = self.across;
        let width = (right - left) / categories.len().max(1) as f64;
        let starts: Vec<f64> =
            (0..categories.len()).map(|index| left + index as f64 * width).collect();
        let middles = starts.iter().map(|start| start + width / 2.0);
        let places = middles.zip(categories.iter().map(String::as_str));
        self.draw_x_labels(&places.collect::<Vec<_>>());
        self.draw_x_name(self.chart.x.name.clone());
        (starts, width)
    }

    /// The labels at their places, without those that would touch the one before or leave the
    /// picture.
    fn draw_x_labels(&mut self, places: &[(f64, &str)]) {
        let mut free_from = 0.0;
        for (at, label) in places {
            let half = text_width(label, TEXT_SIZE) / 2.0;
            if at - half < free_from || at + half > WIDTH {
                continue;
            }
            free_from = at + half + TICK_GAP;
            let place = [*at, self.down[1] + 24.0];
            self.svg.text(place, label, style(TEXT_SIZE, MUTED, Anchor::Middle, "x-tick"));
        }
    }

    fn draw_x_name(&mut self, name: String) {
        let middle = (self.across[0] + self.across[1]) / 2.0;
        let name_style = style(TEXT_SIZE, INK, Anchor::Middle, "x-name");
        self.svg.text([middle, HEIGHT - 16.0], &name, name_style);
    }

    /// Lines where phases begin. A label stands right of its line, or left of it if the next line
    /// would run through it or the picture ends; one that would touch the label before goes to the
    /// other of two rows.
    fn draw_boundaries(&mut self) {
        let boundaries = std::mem::take(&mut self.boundaries);
        let mut free_from = [0.0; 2];
        for (index, &(line, label)) in boundaries.iter().enumerate() {
            let width = text_width(label, TEXT_SIZE);
            let (right, to_the_left) = (line + 4.0 + width, line - 4.0 - width);
            let next = boundaries.get(index + 1);
            let crossed = next.is_some_and(|(next, _)| right > *next);
            let left = match right > WIDTH - GAP || crossed && to_the_left >= free_from[0] {
                true => to_the_left,
                false => line + 4.0,
            };
            let row = if left >= free_from[0] { 0 } else { 1 };
            let base = self.down[0] - 6.0 - row as f64 * BOUNDARY_ROW;
            self.svg.line("boundary", [line, base - 10.0], [line, self.down[1]], BOUNDARY, "4 3");
            if left >= free_from[row] {
                free_from[row] = left + width + TICK_GAP;
                let label_style = style(TEXT_SIZE, MUTED, Anchor::Start, "boundary-label");
                self.svg.text([left, base], label, label_style);
            }
        }
    }

    /// Writes a short note above a mark of the data, such as a percentage.
    pub(crate) fn note(&mut self, at: [f64; 2], text: &str) {
        self.notes.text(at, text, in_front(INK, Anchor::Middle, "note"));
    }

    /// Writes a note upwards from `at`: it takes the place of a bar that is not there.
    pub(crate) fn upward_note(&mut self, at: [f64; 2], text: &str) {
        self.notes.upward_text(at, text, in_front(MUTED, Anchor::Start, "note"));
    }

    fn draw_limits(&mut self) {
        let [left, right] = self.across;
        for (value, label) in &self.chart.limits {
            let at = self.y.at(*value);
            self.svg.line("limit", [left, at], [right, at], LIMIT, "7 4");
            let text = format!("{label}: {}", self.y_unit().show(*value));
            let base = if at - self.down[0] < TEXT_SIZE { at + TEXT_SIZE + 2.0 } else { at - 6.0 };
            self.svg.text([right - 4.0, base], &text, in_front(LIMIT, Anchor::End, "limit-label"));
        }
    }

    /// What is in front of the data: the axis line, boundaries, limits and notes.
    pub(crate) fn finish(mut self) -> String {
        let [left, right] = self.across;
        self.svg.line("axis", [left, self.down[1]], [right, self.down[1]], INK, "");
        self.draw_boundaries();
        self.draw_limits();
        self.svg.cover(self.notes);
        self.svg.finish(&self.chart.title)
    }
}

/// Swatches and names in rows below the title, unless there is only one series; gives the lower
/// end.
fn draw_legend(svg: &mut Svg, names: &[&str]) -> f64 {
    let (mut x, mut y) = (LEFT, LEGEND_TOP);
    if names.len() < 2 {
        return y - LEGEND_ROW / 2.0;
    }
    for (index, name) in names.iter().enumerate() {
        let width = SWATCH + GAP + text_width(name, TEXT_SIZE);
        if x > LEFT && x + width > WIDTH - RIGHT {
            (x, y) = (LEFT, y + LEGEND_ROW);
        }
        svg.rect("swatch", [x, y - SWATCH / 2.0], [SWATCH, SWATCH], series(index), "");
        let at = [x + SWATCH + GAP, y + TEXT_SIZE * 0.35];
        svg.text(at, name, style(TEXT_SIZE, INK, Anchor::Start, "legend"));
        x += width + 2.0 * GAP;
    }
    y + LEGEND_ROW / 2.0
}

fn style(size: f64, fill: &'static str, anchor: Anchor, class: &'static str) -> Style {
    Style { size, fill, anchor, class, over_data: false }
}

fn in_front(fill: &'static str, anchor: Anchor, class: &'static str) -> Style {
    Style { over_data: true, ..style(TEXT_SIZE, fill, anchor, class) }
}
