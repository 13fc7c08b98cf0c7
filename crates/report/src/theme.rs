//! Sizes and colours of every picture.

/// Width of the picture, in user units.
pub(crate) const WIDTH: f64 = 960.0;
/// Height of the picture.
pub(crate) const HEIGHT: f64 = 540.0;
/// Space left of the plot: the tick labels and the turned axis name.
pub(crate) const LEFT: f64 = 84.0;
/// Space right of the plot, so that the last tick label is not cut.
pub(crate) const RIGHT: f64 = 28.0;
/// Space below the plot: tick labels and axis name.
pub(crate) const BOTTOM: f64 = 68.0;
/// Where the title's base line is.
pub(crate) const TITLE_LINE: f64 = 36.0;
/// Where the first legend row's middle is.
pub(crate) const LEGEND_TOP: f64 = 60.0;
/// Height of a legend row.
pub(crate) const LEGEND_ROW: f64 = 22.0;

/// Size of the title.
pub(crate) const TITLE_SIZE: f64 = 20.0;
/// Size of every other text: it stays readable when the picture is shown at half a page's width.
pub(crate) const TEXT_SIZE: f64 = 14.0;

/// The page.
pub(crate) const BACKGROUND: &str = "#ffffff";
/// Title, axis lines, axis names.
pub(crate) const INK: &str = "#1f2933";
/// Tick labels.
pub(crate) const MUTED: &str = "#52606d";
/// Grid lines.
pub(crate) const GRID: &str = "#e4e7eb";
/// Limits: a budget or the memory of the machine.
pub(crate) const LIMIT: &str = "#c81e1e";
/// The lines between phases.
pub(crate) const BOUNDARY: &str = "#7b8794";

/// What takes a colour's place where the reader's page is dark; the data keep theirs, which are
/// seen on both.
pub(crate) const ON_DARK: [(&str, &str); 6] = [
    (BACKGROUND, "#0d1117"),
    (INK, "#e6ebf1"),
    (MUTED, "#a9b5c2"),
    (GRID, "#2a3542"),
    (LIMIT, "#ff7b72"),
    (BOUNDARY, "#7f8c9a"),
];

/// One colour per series, told apart by people who see few colours as well (they differ in
/// lightness).
pub(crate) const SERIES: [&str; 8] =
    ["#2563eb", "#f28e2b", "#0f9d76", "#8b5cf6", "#8a94a3", "#3bb4d8", "#9a6b3f", "#d64550"];

/// The colour of the `index`-th series; they repeat after eight.
pub(crate) fn series(index: usize) -> &'static str {
    SERIES[index % SERIES.len()]
}

/// About how wide `text` is at `size`, on the large side, so that labels that are said not to
/// overlap do not.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(glyph_width).sum::<f64>() * size
}

/// Widths of Noto Sans in em, by groups of letters; the widest of each group.
fn glyph_width(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | ' ' | '.' | ',' | ':' | '\'' | '|' => 0.34,
        'f' | 'r' | 't' | 's' | '(' | ')' | '-' => 0.48,
        'm' | 'M' | 'w' | 'W' | '%' | '@' => 0.94,
        'A'..='Z' => 0.75,
        _ => 0.62,
    }
}
