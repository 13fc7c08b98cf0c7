//! Charts for Rekindle, as SVG and PNG, and the report, as one HTML file.
//!
//! In: plain data in base units (bytes, seconds, counts). Out: a picture with axes, units and a
//! legend that can be read at a glance. A [`Chart`] is made by one of its constructors, one for
//! each kind of picture, and drawn by [`Chart::to_svg`] or [`Chart::to_png`]; the PNG is the SVG,
//! rendered. [`profile_charts`] and [`comparison`] are the charts that the tools draw, and a
//! [`StepRun`] is the picture of a step that was run. A [`Page`](page::Page) is what a report
//! shows, and [`Page::to_html`](page::Page::to_html) the report. Nothing here decides anything
//! about a training step, and the same data give the same bytes.
//!
//! ```
//! use rekindle_report::{Axis, Bars, Chart, Series, Unit};
//!
//! let chart = Chart::over_categories(
//!     "Peak memory of ResNet-152",
//!     Axis::new("batch size", Unit::Count),
//!     Axis::new("peak memory", Unit::Bytes),
//!     ["4", "8"],
//!     Series::Bars(vec![
//!         Bars::new("plain", [1.2e9, 2.4e9]),
//!         Bars::new("planned", [0.6e9, 1.2e9]),
//!     ]),
//! )
//! .limit(2e9, "budget");
//! assert!(chart.to_svg().starts_with("<svg"));
//! ```

mod areas;
mod axis;
mod bars;
mod chart;
mod columns;
mod comparison;
mod error;
mod frame;
mod lanes;
mod lines;
pub mod page;
mod png;
mod profile;
mod svg;
mod theme;

pub use areas::Area;
pub use axis::{Axis, Unit};
pub use bars::Bars;
pub use chart::{Chart, Series};
pub use columns::Columns;
pub use comparison::{Compared, comparison};
pub use error::ReportError;
pub use lanes::{Piece, StepRun};
pub use lines::Line;
pub use profile::{Picture, batch_size_charts, profile_charts};
