//! The report: one HTML file that needs nothing else, from plain data.
//!
//! In: a [`Page`], which holds numbers and names. Out: a document with its style, its script and
//! its data inside; it loads nothing, and its own content policy forbids that it could. The files
//! in `page/` are the document's source; the colours are those of the charts.
//!
//! Everything that is shown was decided elsewhere. The script draws, sorts, filters and adds up
//! what is live at a moment. The same data give the same bytes.

mod data;
mod training;

pub use data::{
    ActivationRow, Beside, Comparison, DecisionRow, DrawnCopy, DrawnSchedule, DrawnTransfers,
    DrawnWait, FrontierPoint, Missing, NodeRow, Page, Section, StepReport, StoredFrontier, Tensor,
};

pub use training::{EvaluationPoint, TrainingPoint, TrainingRun};

use crate::svg::escaped;
use crate::theme;

const DOCUMENT: &str = include_str!("../../page/page.html");
const STYLE: &str = include_str!("../../page/page.css");
/// In the order in which they build on each other.
const SCRIPTS: &[&str] = &[
    include_str!("../../page/format.js"),
    include_str!("../../page/dom.js"),
    include_str!("../../page/plot.js"),
    include_str!("../../page/memory.js"),
    include_str!("../../page/panel.js"),
    include_str!("../../page/lanes.js"),
    include_str!("../../page/peak.js"),
    include_str!("../../page/frontier.js"),
    include_str!("../../page/activations.js"),
    include_str!("../../page/analysis.js"),
    include_str!("../../page/training.js"),
    include_str!("../../page/main.js"),
];

impl Page {
    /// The whole document.
    pub fn to_html(&self) -> String {
        let data = serde_json::to_string(self).expect("plain data has a JSON form");
        let pieces = [
            ("{{title}}", escaped(&self.title)),
            ("{{style}}", format!("{}\n{STYLE}", colours())),
            // A name may hold the end of a script; as an escape it is the same JSON and no markup.
            ("{{data}}", data.replace('<', "\\u003c")),
            ("{{script}}", SCRIPTS.concat()),
        ];
        let mut html = String::new();
        let mut rest = DOCUMENT;
        // Piece by piece, so that braces in the data are never taken for a place.
        for (place, text) in pieces {
            let (before, after) =
                rest.split_once(place).expect("the document has each place, in this order");
            html += before;
            html += &text;
            rest = after;
        }
        html + rest
    }
}

/// The colours of the charts, as the style's variables.
fn colours() -> String {
    let series = theme::SERIES.iter().enumerate();
    let series = series.map(|(index, colour)| format!("--series-{index}: {colour};"));
    format!(":root {{ {} }}", series.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(title: &str) -> Page {
        Page {
            title: title.into(),
            version: "0".into(),
            steps: Vec::new(),
            comparisons: Vec::new(),
            training: Vec::new(),
            missing: Vec::new(),
        }
    }

    #[test]
    fn names_are_never_markup() {
        let html = page("</script><b>{{data}} {{script}}").to_html();
        assert!(!html.contains("<b>"));
        assert!(html.contains("&lt;/script&gt;&lt;b&gt;{{data}} {{script}}</title>"));
        assert!(html.contains(r#""title":"\u003c/script>\u003cb>{{data}} {{script}}""#));
    }

    #[test]
    fn nothing_is_loaded_from_anywhere() {
        let html = page("t").to_html();
        assert!(html.contains("default-src 'none'"));
        for word in ["http://", "https://", "src=", "@import", "url("] {
            let found = html.matches(word).count();
            let names = html.matches("http://www.w3.org/2000/svg").count();
            let allowed = if word == "http://" { names } else { 0 };
            assert_eq!(found, allowed, "{word}");
        }
    }

    #[test]
    fn the_colours_are_those_of_the_charts() {
        assert!(page("t").to_html().contains("--series-0: #2563eb;"));
    }
}
