//! A chart: its words, its data, and the marks that cross all data.
//!
//! The kinds of picture differ only in their body; the frame around it (title, legend, axes, limits
//! and boundaries) is the same for all.

use std::path::{Path, PathBuf};

use rekindle_graph::write_atomically;

use crate::areas::{self, Area};
use crate::axis::Axis;
use crate::bars::{self, Bars};
use crate::columns::{self, Columns};
use crate::error::ReportError;
use crate::frame::Frame;
use crate::lines::{self, Line};
use crate::png;

/// Pixels of a saved PNG for each unit of the SVG: sharp on most screens and in print.
const PNG_SCALE: f64 = 2.0;

/// A picture of data.
#[derive(Clone, Debug)]
pub struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) body: Body,
    /// Named values of the y axis.
    pub(crate) limits: Vec<(f64, String)>,
    /// Named values of the x axis.
    pub(crate) boundaries: Vec<(f64, String)>,
}

/// The data of a chart, by what its x axis is.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Categories { categories: Vec<String>, series: Series },
    Columns(Vec<Columns>),
    Lines(Vec<Line>),
    Areas(Vec<Area>),
}

/// Data over categories.
#[derive(Clone, Debug)]
pub enum Series {
    /// Side by side in each category: for instance peak memory per batch size, plain and planned.
    Bars(Vec<Bars>),
    /// On top of each other, the first at the bottom: for instance what the peak is made of, per
    /// batch size.
    Stack(Vec<Bars>),
    /// Across the categories, for instance latency per batch size. A point's x is the index of its
    /// category.
    Lines(Vec<Line>),
}

/// The heights reach so far beyond a limit, so that its label has room above the line.
const LIMIT_HEADROOM: f64 = 1.02;

impl Chart {
    /// A slot for each category, at equal distances: for instance one for each batch size.
    pub fn over_categories(
        title: impl Into<String>,
        x: Axis,
        y: Axis,
        categories: impl IntoIterator<Item = impl Into<String>>,
        series: Series,
    ) -> Chart {
        let categories = categories.into_iter().map(Into::into).collect();
        Chart::new(title, x, y, Body::Categories { categories, series })
    }

    /// A thin column for each of many items in order: for instance the run time of every node
    /// against its rank.
    pub fn columns(title: impl Into<String>, x: Axis, y: Axis, groups: Vec<Columns>) -> Chart {
        Chart::new(title, x, y, Body::Columns(groups))
    }

    /// Lines through points: for instance memory against rank for several batch sizes.
    pub fn lines(title: impl Into<String>, x: Axis, y: Axis, lines: Vec<Line>) -> Chart {
        Chart::new(title, x, y, Body::Lines(lines))
    }

    /// Areas on top of each other over a common axis: for instance live bytes by role against rank.
    pub fn areas(title: impl Into<String>, x: Axis, y: Axis, areas: Vec<Area>) -> Chart {
        Chart::new(title, x, y, Body::Areas(areas))
    }

    fn new(title: impl Into<String>, x: Axis, y: Axis, body: Body) -> Chart {
        let title = title.into();
        Chart { title, x, y, body, limits: Vec::new(), boundaries: Vec::new() }
    }

    /// Draws a line at the height `value`: a budget, or the memory of the machine.
    pub fn limit(mut self, value: f64, label: impl Into<String>) -> Chart {
        self.limits.push((value, label.into()));
        self
    }

    /// Draws a line across at `x`, where a phase begins. Has no meaning over categories, and is not
    /// drawn there.
    pub fn boundary(mut self, x: f64, label: impl Into<String>) -> Chart {
        self.boundaries.push((x, label.into()));
        self
    }

    /// The picture as an SVG document of 960 × 540.
    pub fn to_svg(&self) -> String {
        let mut frame = Frame::new(self);
        match &self.body {
            Body::Categories { categories, series } => match series {
                Series::Bars(bars) => bars::draw_grouped(&mut frame, categories, bars),
                Series::Stack(bars) => bars::draw_stacked(&mut frame, categories, bars),
                Series::Lines(lines) => lines::draw_over_categories(&mut frame, categories, lines),
            },
            Body::Columns(groups) => columns::draw(&mut frame, groups),
            Body::Lines(lines) => lines::draw(&mut frame, lines),
            Body::Areas(areas) => areas::draw(&mut frame, areas),
        }
        frame.finish()
    }

    /// The picture as a PNG file, `scale` pixels for each unit of the SVG: 2 suits most screens.
    ///
    /// # Errors
    /// If the scale asks for more pixels than can be had.
    pub fn to_png(&self, scale: f64) -> Result<Vec<u8>, ReportError> {
        png::render(self, scale)
    }

    /// Writes the picture to `folder` as `name.svg` and `name.png`, each whole or not at all, and
    /// gives their paths.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, folder: &Path, name: &str) -> Result<[PathBuf; 2], ReportError> {
        let [svg, png] = ["svg", "png"].map(|ending| folder.join(format!("{name}.{ending}")));
        write_atomically(&svg, self.to_svg().as_bytes())?;
        write_atomically(&png, &self.to_png(PNG_SCALE)?)?;
        Ok([svg, png])
    }

    /// The names in the legend, in the order of their colours.
    pub(crate) fn legend(&self) -> Vec<&str> {
        match &self.body {
            Body::Categories { series: Series::Bars(bars) | Series::Stack(bars), .. } => {
                bars.iter().map(|b| b.name.as_str()).collect()
            }
            Body::Categories { series: Series::Lines(lines), .. } | Body::Lines(lines) => {
                lines.iter().map(|l| l.name.as_str()).collect()
            }
            Body::Columns(groups) => groups.iter().map(|g| g.name.as_str()).collect(),
            Body::Areas(areas) => areas.iter().map(|a| a.name.as_str()).collect(),
        }
    }

    /// The largest height that the data and the limits need.
    pub(crate) fn highest(&self) -> f64 {
        let data = match &self.body {
            Body::Categories { categories, series } => match series {
                Series::Bars(bars) => bars::highest(bars),
                Series::Stack(bars) => bars::highest_stack(categories.len(), bars),
                Series::Lines(lines) => lines::highest(lines),
            },
            Body::Columns(groups) => columns::highest(groups),
            Body::Lines(lines) => lines::highest(lines),
            Body::Areas(areas) => areas::highest(areas),
        };
        let limits = self.limits.iter().map(|limit| limit.0 * LIMIT_HEADROOM);
        limits.fold(data, f64::max)
    }

    /// The first and the last value along the x axis; `None` where it holds categories.
    pub(crate) fn x_span(&self) -> Option<[f64; 2]> {
        match &self.body {
            Body::Categories { .. } => None,
            Body::Columns(groups) => Some(columns::x_span(groups)),
            Body::Lines(lines) => {
                Some(span(lines.iter().flat_map(|l| l.points.iter().map(|p| p[0]))))
            }
            Body::Areas(areas) => Some([0.0, areas::steps(areas).saturating_sub(1) as f64]),
        }
    }
}

/// The smallest and the largest of `values`; from 0 to 1 if there are none.
pub(crate) fn span(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let finite = values.filter(|value| value.is_finite());
    let [low, high] = finite.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| {
        [low.min(value), high.max(value)]
    });
    if low <= high { [low, high] } else { [0.0, 1.0] }
}
