//! What can go wrong when a picture is made.

use rekindle_graph::FileError;

/// Why a picture could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The picture's file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The picture has more pixels than memory can be had for.
    #[error("a picture of {width} × {height} pixels is too large; use a smaller scale")]
    TooLarge {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },
    /// The renderer refused the chart's SVG.
    #[error("the chart `{title}` could not be rendered: {reason}")]
    Render {
        /// The chart's title.
        title: String,
        /// What the renderer says.
        reason: String,
    },
}
