//! A step that was run: its memory over time, and below it what compute and each channel of the
//! store did when.
//!
//! Time runs from left to right, the same for all; a lane is coloured while something goes on in
//! it. Pieces that are closer to each other than can be seen are drawn as one.

use crate::svg::{Anchor, Style, Svg};
use crate::theme::{
    BACKGROUND, BOUNDARY, GRID, HEIGHT, INK, LEFT, LIMIT, MUTED, RIGHT, TEXT_SIZE, TITLE_LINE,
    TITLE_SIZE, WIDTH, series,
};

/// What took place in a lane: from when to when in seconds, and the number of its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// When it began.
    pub from: f64,
    /// When it ended.
    pub to: f64,
    /// Which colour it gets.
    pub kind: usize,
}

/// Everything that the picture shows.
#[derive(Clone, Debug, Default)]
pub struct StepRun {
    /// What it is a step of, and in which memory.
    pub title: String,
    /// Bytes in use from each time on, in seconds.
    pub memory: Vec<(f64, f64)>,
    /// The bytes that the step may use, and what stands beside that line.
    pub budget: (f64, String),
    /// How long the step took, in seconds.
    pub seconds: f64,
    /// The names of the lanes, each with what took place in it, in the order of time.
    pub lanes: Vec<(String, Vec<Piece>)>,
    /// The names of the kinds, for the legend.
    pub kinds: Vec<String>,
}

/// Where the memory begins and ends.
const TOP: f64 = 92.0;
const GROUND: f64 = 352.0;
/// A lane's height, and the space between two.
const LANE: f64 = 30.0;
const GAP: f64 = 10.0;
const GIB: f64 = (1u64 << 30) as f64;
/// Room above the budget, as a share of it.
const HEADROOM: f64 = 1.12;
/// Closer pieces than this many units are one.
const SEEN: f64 = 0.4;

fn style(fill: &'static str, anchor: Anchor, class: &'static str) -> Style {
    Style { size: TEXT_SIZE, fill, anchor, class, over_data: false }
}

impl StepRun {
    /// The picture.
    pub fn to_svg(&self) -> String {
        let mut svg = Svg::default();
        svg.rect("background", [0.0, 0.0], [WIDTH, HEIGHT], BACKGROUND, "");
        let title = Style { size: TITLE_SIZE, ..style(INK, Anchor::Start, "title") };
        svg.text([LEFT, TITLE_LINE], &self.title, title);
        self.draw_legend(&mut svg);
        self.draw_memory(&mut svg);
        self.draw_lanes(&mut svg);
        svg.finish(&self.title)
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.seconds.max(f64::MIN_POSITIVE)
    }

    fn draw_legend(&self, svg: &mut Svg) {
        let mut x = LEFT;
        for (kind, name) in self.kinds.iter().enumerate() {
            svg.rect("key", [x, 56.0], [14.0, 14.0], series(kind), "");
            svg.text([x + 20.0, 68.0], name, style(INK, Anchor::Start, "legend"));
            x += 48.0 + crate::theme::text_width(name, TEXT_SIZE);
        }
    }

    fn draw_memory(&self, svg: &mut Svg) {
        let (budget, label) = &self.budget;
        let highest = budget * HEADROOM;
        let y = |bytes: f64| GROUND - (GROUND - TOP) * bytes / highest.max(f64::MIN_POSITIVE);
        let right = WIDTH - RIGHT;
        for gib in 0..=(highest / GIB) as u32 {
            let at = y(f64::from(gib) * GIB);
            svg.line("grid", [LEFT, at], [right, at], GRID, "");
            let text = if gib == 0 { "0".into() } else { format!("{gib} GiB") };
            svg.text([LEFT - 8.0, at + 5.0], &text, style(MUTED, Anchor::End, "tick"));
        }
        let mut outline = vec![[LEFT, GROUND]];
        let mut level = self.memory.first().map_or(0.0, |&(_, bytes)| bytes);
        outline.push([LEFT, y(level)]);
        for &(time, bytes) in &self.memory {
            outline.push([self.x(time), y(level)]);
            outline.push([self.x(time), y(bytes)]);
            level = bytes;
        }
        outline.extend([[right, y(level)], [right, GROUND]]);
        svg.polygon(&outline, MEMORY);
        svg.line("limit", [LEFT, y(*budget)], [right, y(*budget)], LIMIT, "6 4");
        svg.text([right, y(*budget) - 7.0], label, style(LIMIT, Anchor::End, "limit"));
        svg.line("axis", [LEFT, GROUND], [right, GROUND], BOUNDARY, "");
    }

    fn draw_lanes(&self, svg: &mut Svg) {
        let mut top = GROUND + GAP;
        for (name, pieces) in &self.lanes {
            svg.rect("lane", [LEFT, top], [WIDTH - LEFT - RIGHT, LANE], GRID, "");
            for piece in merged(pieces, SEEN * self.seconds / (WIDTH - LEFT - RIGHT)) {
                let (from, to) = (self.x(piece.from), self.x(piece.to));
                svg.rect("piece", [from, top], [to - from, LANE], series(piece.kind), "");
            }
            let middle = top + LANE / 2.0 + 5.0;
            svg.text([LEFT - 8.0, middle], name, style(INK, Anchor::End, "lane"));
            top += LANE + GAP;
        }
        let ticks = 6;
        for tick in 0..=ticks {
            let at = self.seconds * f64::from(tick) / f64::from(ticks);
            let text = format!("{at:.1} s");
            svg.text([self.x(at), top + 12.0], &text, style(MUTED, Anchor::Middle, "tick"));
        }
    }
}

/// Under the line of memory; light enough for both pages.
const MEMORY: &str = "#8a94a3";

/// The pieces, those of one kind that are closer than `apart` seconds as one.
fn merged(pieces: &[Piece], apart: f64) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for piece in pieces {
        match all.last_mut() {
            Some(last) if last.kind == piece.kind && piece.from - last.to < apart => {
                last.to = last.to.max(piece.to);
            }
            _ => all.push(*piece),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_cannot_be_told_apart_are_one() {
        let piece = |from, to, kind| Piece { from, to, kind };
        let pieces = [piece(0.0, 1.0, 0), piece(1.05, 2.0, 0), piece(2.0, 3.0, 1)];
        let expected = [piece(0.0, 2.0, 0), piece(2.0, 3.0, 1)];
        assert_eq!(merged(&pieces, 0.1), expected);
        assert_eq!(merged(&pieces, 0.01), pieces);
    }

    #[test]
    fn the_picture_has_its_lanes_and_its_budget() {
        let piece = Piece { from: 0.5, to: 1.0, kind: 0 };
        let run = StepRun {
            title: "A step".into(),
            memory: vec![(0.0, 1e9), (1.0, 2e9)],
            budget: (3e9, "budget".into()),
            seconds: 2.0,
            lanes: vec![("compute".into(), vec![piece]), ("out".into(), vec![])],
            kinds: vec!["forward".into()],
        };
        let svg = run.to_svg();
        assert_eq!(svg.matches("class=\"lane\"").count(), 4, "two lanes and their names");
        assert_eq!(svg.matches("class=\"piece\"").count(), 1);
        assert!(svg.contains("budget") && svg.contains("A step") && svg.contains("2.0 s"));
    }
}
