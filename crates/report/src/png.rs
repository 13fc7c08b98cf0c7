//! SVG to PNG, with the font that is built in, so that the picture is the same on every machine.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::chart::Chart;
use crate::error::ReportError;
use crate::theme::{HEIGHT, WIDTH};

/// Renders `chart` at `scale` pixels per unit of its SVG.
pub(crate) fn render(chart: &Chart, scale: f64) -> Result<Vec<u8>, ReportError> {
    let failed = |reason: String| ReportError::Render { title: chart.title.clone(), reason };
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(notosans::REGULAR_TTF.to_vec());
    let options = Options {
        font_family: "Noto Sans".to_string(),
        fontdb: Arc::new(fonts),
        ..Options::default()
    };
    let tree = Tree::from_str(&chart.to_svg(), &options);
    let tree = tree.map_err(|error| failed(error.to_string()))?;
    let [width, height] = [WIDTH, HEIGHT].map(|side| (side * scale).round() as u32);
    let mut pixels = Pixmap::new(width, height).ok_or(ReportError::TooLarge { width, height })?;
    let transform = Transform::from_scale(scale as f32, scale as f32);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(error.to_string()))
}
