//! Lines through points, with a dot at each point as long as the points are few.

use crate::frame::Frame;
use crate::theme::series as colour;

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    pub(crate) name: String,
    /// In the order in which they are joined.
    pub(crate) points: Vec<[f64; 2]>,
    /// Written above the points, one per point; an empty one is not written.
    pub(crate) notes: Vec<String>,
}

impl Line {
    /// A line through `points`, each x and y; points that are not finite are left out.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = [f64; 2]>) -> Line {
        let finite = points.into_iter().filter(|point| point.iter().all(|v| v.is_finite()));
        Line { name: name.into(), points: finite.collect(), notes: Vec::new() }
    }

    /// Writes a note above each point, for instance a percentage.
    pub fn notes(mut self, notes: impl IntoIterator<Item = impl Into<String>>) -> Line {
        self.notes = notes.into_iter().map(Into::into).collect();
        self
    }
}

/// Up to so many points, each gets a dot.
const DOTTED: usize = 32;
/// Radius of a dot.
const DOT: f64 = 4.5;

/// The highest point.
pub(crate) fn highest(lines: &[Line]) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(|point| point[1]).fold(0.0, f64::max)
}

/// Draws lines over a linear axis.
pub(crate) fn draw(frame: &mut Frame<'_>, lines: &[Line]) {
    let dotted = lines.iter().all(|line| line.points.len() <= DOTTED);
    let x = frame.linear_x(if dotted { 24.0 } else { 0.0 });
    draw_lines(frame, lines, dotted, |value| x.at(value));
}

/// Draws lines over categories: a point's x is the index of its category.
pub(crate) fn draw_over_categories(frame: &mut Frame<'_>, categories: &[String], lines: &[Line]) {
    let (_, slot) = frame.category_x(categories);
    let left = frame.across[0];
    draw_lines(frame, lines, true, |index| left + (index + 0.5) * slot);
}

/// Draws every line; the frame puts the notes in front of all lines.
fn draw_lines(frame: &mut Frame<'_>, lines: &[Line], dotted: bool, x: impl Fn(f64) -> f64) {
    for (index, line) in lines.iter().enumerate() {
        let places: Vec<[f64; 2]> =
            line.points.iter().map(|[px, py]| [x(*px), frame.y.at(*py)]).collect();
        frame.svg.polyline(&places, colour(index));
        if dotted {
            for (place, [_, value]) in places.iter().zip(&line.points) {
                let about = format!("{}: {}", line.name, frame.y_unit().show(*value));
                frame.svg.dot(*place, DOT, colour(index), &about);
            }
        }
        for ([x, y], note) in places.iter().zip(&line.notes).filter(|(_, note)| !note.is_empty()) {
            frame.note([*x, y - DOT - 6.0], note);
        }
    }
}
