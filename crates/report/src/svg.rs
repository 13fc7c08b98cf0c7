//! A writer of SVG: shapes and text as elements, with everything escaped.
//!
//! Coordinates are written with at most two decimals, so that the same chart is the same text on
//! every machine. Colours are those of a light page; a style sheet replaces them where the reader
//! prefers dark pages, also inside an `<img>`.

use std::fmt::Write as _;

use crate::theme;

/// An SVG document that grows from back to front.
#[derive(Default)]
pub(crate) struct Svg {
    body: String,
}

/// A place in the picture, or a size: across and down.
type Point = [f64; 2];

/// Where a text stands with respect to its point.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    /// The point is the left end.
    Start,
    /// The point is the middle.
    Middle,
    /// The point is the right end.
    End,
}

/// How a text looks.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    pub(crate) size: f64,
    pub(crate) fill: &'static str,
    pub(crate) anchor: Anchor,
    /// What kind of text it is, for whoever styles or checks the picture.
    pub(crate) class: &'static str,
    /// Whether it stands in front of data, and needs a rim of the background's colour to be read
    /// there.
    pub(crate) over_data: bool,
}

/// The rim of a text that stands in front of data.
const HALO: &str =
    " stroke=\"#ffffff\" stroke-width=\"4\" stroke-linejoin=\"round\" paint-order=\"stroke\"";

impl Svg {
    /// A filled rectangle; `hover` is what a viewer shows when pointed at.
    pub(crate) fn rect(&mut self, class: &str, at: Point, size: Point, fill: &str, hover: &str) {
        let [x, y] = at.map(Short);
        let [width, height] = size.map(|v| Short(v.max(0.0)));
        let shape = format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
             fill=\"{fill}\""
        );
        self.element(&shape, "rect", hover);
    }

    /// A filled circle.
    pub(crate) fn dot(&mut self, centre: Point, radius: f64, fill: &str, hover: &str) {
        let [x, y] = centre.map(Short);
        let shape =
            format!("<circle class=\"dot\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{fill}\"");
        self.element(&shape, "circle", hover);
    }

    /// A straight line; `dash` is empty or a dash pattern.
    pub(crate) fn line(&mut self, class: &str, from: Point, to: Point, stroke: &str, dash: &str) {
        let [x1, y1] = from.map(Short);
        let [x2, y2] = to.map(Short);
        let dash =
            if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let width = if class == "limit" { 2 } else { 1 };
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" \
             stroke=\"{stroke}\" stroke-width=\"{width}\"{dash}/>"
        );
    }

    /// An open line through `points`.
    pub(crate) fn polyline(&mut self, points: &[Point], stroke: &str) {
        let _ = writeln!(
            self.body,
            "<path class=\"series\" d=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"2\" \
             stroke-linejoin=\"round\"/>",
            path(points)
        );
    }

    /// A filled outline through `points`.
    pub(crate) fn polygon(&mut self, points: &[Point], fill: &str) {
        let _ =
            writeln!(self.body, "<path class=\"series\" d=\"{}Z\" fill=\"{fill}\"/>", path(points));
    }

    /// A level text.
    pub(crate) fn text(&mut self, at: Point, text: &str, style: Style) {
        let [x, y] = at.map(Short);
        self.words(&format!("x=\"{x}\" y=\"{y}\""), text, style);
    }

    /// A text that reads upwards.
    pub(crate) fn upward_text(&mut self, at: Point, text: &str, style: Style) {
        let [x, y] = at.map(Short);
        self.words(&format!("transform=\"translate({x} {y}) rotate(-90)\""), text, style);
    }

    fn words(&mut self, place: &str, text: &str, style: Style) {
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let halo = if style.over_data { HALO } else { "" };
        let _ = writeln!(
            self.body,
            "<text class=\"{}\" {place} font-size=\"{}\" fill=\"{}\" \
             text-anchor=\"{anchor}\"{halo}>{}</text>",
            style.class,
            Short(style.size),
            style.fill,
            escaped(text)
        );
    }

    fn element(&mut self, shape: &str, name: &str, hover: &str) {
        let _ = if hover.is_empty() {
            writeln!(self.body, "{shape}/>")
        } else {
            writeln!(self.body, "{shape}><title>{}</title></{name}>", escaped(hover))
        };
    }

    /// Puts `front` before everything that is there.
    pub(crate) fn cover(&mut self, front: Svg) {
        self.body += &front.body;
    }

    /// The whole document.
    pub(crate) fn finish(self, title: &str) -> String {
        let (width, height) = (theme::WIDTH, theme::HEIGHT);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" \
             font-family=\"'Noto Sans', 'Segoe UI', Helvetica, Arial, sans-serif\">\n\
             <title>{}</title>\n{}{}</svg>\n",
            escaped(title),
            dark_style(),
            self.body
        )
    }
}

/// Rules are stronger than the attributes of an element, so they need not name what has which
/// colour.
fn dark_style() -> String {
    let mut style = String::from("<style>@media (prefers-color-scheme: dark) {\n");
    for (light, dark) in theme::ON_DARK {
        let _ = writeln!(
            style,
            "[fill=\"{light}\"] {{ fill: {dark} }} [stroke=\"{light}\"] {{ stroke: {dark} }}"
        );
    }
    style + "}</style>\n"
}

fn path(points: &[Point]) -> String {
    let mut data = String::new();
    for (index, point) in points.iter().enumerate() {
        let [x, y] = point.map(Short);
        let _ = write!(data, "{}{x} {y}", if index == 0 { 'M' } else { 'L' });
    }
    data
}

/// `text` for use between tags: what XML forbids there is replaced.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// A coordinate with at most two decimals.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.2}", self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("a<b & \u{1}c"), "a&lt;b &amp;  c");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!(Short(10.0).to_string(), "10");
        assert_eq!(Short(0.126).to_string(), "0.13");
        assert_eq!(Short(-2.5).to_string(), "-2.5");
    }
}
