//! SVG to PNG, with the font that is built in, so that the picture is the same on every machine.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, Options, Tree, fontdb};

use crate::error::ReportError;

/// Renders `svg`, which is `size` units large, at `scale` pixels per unit.
pub(crate) fn render(
    title: &str,
    svg: &str,
    scale: f64,
    size: [f64; 2],
) -> Result<Vec<u8>, ReportError> {
    let failed = |reason: String| ReportError::Render { title: title.to_string(), reason };
    let tree = parse(svg).map_err(|error| failed(error.to_string()))?;
    let [width, height] = size.map(|side| (side * scale).round() as u32);
    let mut pixels = Pixmap::new(width, height).ok_or(ReportError::TooLarge { width, height })?;
    let transform = Transform::from_scale(scale as f32, scale as f32);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(error.to_string()))
}

/// The picture as the renderer sees it, every text laid out.
pub(crate) fn parse(svg: &str) -> Result<Tree, usvg::Error> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(notosans::REGULAR_TTF.to_vec());
    let options = Options {
        font_family: "Noto Sans".to_string(),
        fontdb: Arc::new(fonts),
        ..Options::default()
    };
    Tree::from_str(svg, &options)
}
