//! Every kind of picture is valid SVG, shows all its data and words, and no two labels touch.

use std::sync::Arc;

use rekindle_report::{Area, Axis, Bars, Chart, Columns, Line, Series, Unit};
use resvg::usvg::{Group, Node, Options, Rect, Tree, fontdb, roxmltree};

const GIB: f64 = 1073741824.0;

/// A chart's SVG, as a document and as the renderer lays it out.
struct Picture {
    svg: String,
    texts: Vec<(String, Rect)>,
}

impl Picture {
    fn of(chart: &Chart) -> Picture {
        let svg = chart.to_svg();
        let mut fonts = fontdb::Database::new();
        fonts.load_font_data(notosans::REGULAR_TTF.to_vec());
        let options = Options {
            font_family: "Noto Sans".to_string(),
            fontdb: Arc::new(fonts),
            ..Options::default()
        };
        let tree = Tree::from_str(&svg, &options).expect("the SVG is valid");
        let mut texts = Vec::new();
        collect_texts(tree.root(), &mut texts);
        Picture { svg, texts }
    }

    /// How many elements have `class`.
    fn count(&self, class: &str) -> usize {
        let document = roxmltree::Document::parse(&self.svg).expect("the SVG is XML");
        document.descendants().filter(|node| node.attribute("class") == Some(class)).count()
    }

    #[track_caller]
    fn assert_words(&self, words: &[&str]) {
        for word in words {
            let found = self.texts.iter().any(|(text, _)| text == word);
            assert!(found, "no `{word}` in {:?}", self.texts);
        }
    }

    /// All labels lie in the picture, and none lies on another.
    #[track_caller]
    fn assert_tidy(&self) {
        for (index, (text, place)) in self.texts.iter().enumerate() {
            let across = place.left() >= 0.0 && place.right() <= 960.0;
            let down = place.top() >= 0.0 && place.bottom() <= 540.0;
            assert!(across && down, "`{text}` is cut off: {place:?}");
            for (other, other_place) in &self.texts[..index] {
                let apart = place.left() >= other_place.right()
                    || other_place.left() >= place.right()
                    || place.top() >= other_place.bottom()
                    || other_place.top() >= place.bottom();
                assert!(apart, "`{text}` lies on `{other}`");
            }
        }
    }
}

fn collect_texts(group: &Group, texts: &mut Vec<(String, Rect)>) {
    for node in group.children() {
        match node {
            Node::Group(group) => collect_texts(group, texts),
            Node::Text(text) => {
                let words = text.chunks().iter().map(|chunk| chunk.text());
                texts.push((words.collect(), text.abs_bounding_box()));
            }
            Node::Path(_) | Node::Image(_) => {}
        }
    }
}

fn batch() -> Axis {
    Axis::new("batch size", Unit::Count)
}

fn memory() -> Axis {
    Axis::new("peak memory", Unit::Bytes)
}

fn rank() -> Axis {
    Axis::new("rank", Unit::Count)
}

/// Bars of memory.
fn bars(title: &str, x: Axis, categories: &[&str], series: Vec<Bars>) -> Chart {
    let categories = categories.iter().copied();
    Chart::over_categories(title, x, memory(), categories, Series::Bars(series))
}

#[test]
fn bars_show_every_value_and_note() {
    let series = vec![
        Bars::new("plain", [1.0 * GIB, 2.0 * GIB, f64::NAN]).notes(["", "", "does not fit"]),
        Bars::new("planned", [0.5 * GIB, 1.2 * GIB, 2.0 * GIB]).notes(["−50 %", "−40 %", ""]),
    ];
    let chart = bars("Peak", batch(), &["4", "8", "16"], series).limit(2.5 * GIB, "budget");
    let picture = Picture::of(&chart);
    assert_eq!(picture.count("bar"), 5);
    assert_eq!(picture.count("swatch"), 2);
    assert_eq!(picture.count("limit"), 1);
    picture.assert_words(&["Peak", "batch size", "peak memory (GiB)", "plain", "planned"]);
    picture.assert_words(&["4", "8", "16"]);
    picture.assert_words(&["−50 %", "−40 %", "does not fit", "budget: 2.50 GiB"]);
    picture.assert_tidy();
}

#[test]
fn a_bar_is_as_high_as_its_value() {
    let series = vec![Bars::new("s", [1.0 * GIB, 3.0 * GIB])];
    let chart = bars("t", batch(), &["a", "b"], series);
    let svg = chart.to_svg();
    let document = roxmltree::Document::parse(&svg).expect("the SVG is XML");
    let bars = document.descendants().filter(|node| node.attribute("class") == Some("bar"));
    let heights: Vec<f64> =
        bars.map(|bar| bar.attribute("height").unwrap().parse().unwrap()).collect();
    assert!((heights[1] - 3.0 * heights[0]).abs() < 0.02, "{heights:?}");
}

#[test]
fn stacks_stand_on_each_other() {
    let series = ["weights", "gradients", "other"].map(|name| Bars::new(name, [GIB, 2.0 * GIB]));
    let stack = Series::Stack(series.to_vec());
    let chart = Chart::over_categories("Parts", batch(), memory(), ["4", "8"], stack);
    let picture = Picture::of(&chart);
    assert_eq!(picture.count("bar"), 6);
    picture.assert_words(&["weights", "gradients", "other", "6"]);
    picture.assert_tidy();
}

#[test]
fn columns_show_every_node_and_the_boundaries() {
    let node = |rank: u32| (f64::from(rank), f64::from(rank % 7) * 1e-3, format!("n{rank}"));
    let groups = vec![
        Columns::new("forward", (0..900).map(node)),
        Columns::new("backward", (900..2000).map(node)),
    ];
    let chart = Chart::columns("Run time", rank(), Axis::new("run time", Unit::Seconds), groups)
        .boundary(900.0, "backward begins")
        .boundary(905.0, "loss")
        .boundary(1990.0, "optimizer begins");
    let picture = Picture::of(&chart);
    assert_eq!(picture.count("column"), 2000);
    assert_eq!(picture.count("boundary"), 3);
    picture.assert_words(&["run time (ms)", "backward begins", "loss", "optimizer begins", "1000"]);
    picture.assert_tidy();
}

#[test]
fn lines_have_a_path_each_and_dots_where_points_are_few() {
    let line = |name: &str, factor: f64| {
        Line::new(name, (0..5).map(|i| [f64::from(i), f64::from(i) * factor]))
    };
    let planned = line("planned", 1.2).notes(["", "+20 %", "+20 %", "+20 %", "+20 %"]);
    let lines = Series::Lines(vec![line("plain", 1.0), planned]);
    let (latency, sizes) = (Axis::new("latency", Unit::Seconds), ["4", "8", "16", "32", "64"]);
    let few = Picture::of(&Chart::over_categories("t", batch(), latency.clone(), sizes, lines));
    assert_eq!((few.count("series"), few.count("dot"), few.count("note")), (2, 10, 4));
    few.assert_tidy();
    let long = Line::new("live", (0..3000).map(|i| [f64::from(i), 1.0]));
    let chart = Chart::lines("t", rank(), latency, vec![long]).boundary(9999.0, "outside");
    let many = Picture::of(&chart);
    assert_eq!((many.count("series"), many.count("dot"), many.count("boundary")), (1, 0, 0));
    many.assert_tidy();
}

#[test]
fn areas_have_a_layer_each() {
    let layers = vec![
        Area::new("parameters", vec![GIB; 300]),
        Area::new("activations", (0..300).map(|i| f64::from(150 - (i - 150i32).abs()) * 1e7)),
    ];
    let chart = Chart::areas("Live", rank(), memory(), layers)
        .boundary(150.0, "backward")
        .limit(2.0 * GIB, "budget");
    let picture = Picture::of(&chart);
    assert_eq!(picture.count("series"), 2);
    picture.assert_tidy();
}

#[test]
fn crowded_labels_are_thinned_not_overlaid() {
    let categories: Vec<String> = (0..80).map(|i| format!("layer{i}.conv")).collect();
    let categories: Vec<&str> = categories.iter().map(String::as_str).collect();
    let series = vec![Bars::new("s", vec![GIB; 80])];
    let chart = bars("t", rank(), &categories, series);
    let picture = Picture::of(&chart);
    assert!((2..20).contains(&picture.count("x-tick")));
    picture.assert_tidy();
}

#[test]
fn markup_in_names_is_text() {
    let series = vec![Bars::new("</svg>", [1.0])];
    let chart = bars("a < b & \"c\"", batch(), &["<x>"], series);
    Picture::of(&chart).assert_words(&["a < b & \"c\"", "<x>"]);
}

#[test]
fn empty_and_odd_data_are_still_pictures() {
    let nothing = bars("t", batch(), &[], vec![]);
    let line = Line::new("l", [[f64::NAN, 1.0], [1.0, f64::INFINITY]]);
    let odd = Chart::lines("t", rank(), memory(), vec![line]);
    let bare = Chart::areas("t", rank(), memory(), vec![]);
    let alone = Chart::columns("t", rank(), memory(), vec![Columns::new("c", [(5.0, 0.0, "n")])]);
    for chart in [nothing, odd, bare, alone] {
        Picture::of(&chart).assert_tidy();
        assert!(!chart.to_svg().contains("NaN"));
    }
}

#[test]
fn a_png_has_the_size_asked_for() {
    let chart = bars("t", batch(), &["4"], vec![Bars::new("s", [GIB])]);
    let png = chart.to_png(1.5).expect("it renders");
    let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!([side(16), side(20)], [1440, 810]);
    assert!(chart.to_png(1e9).is_err());
}

/// The colours that the picture's own rules put in the place of others where the reader's screen is
/// dark.
fn dark_rules(svg: &str) -> Vec<&str> {
    let (_, rules) = svg.split_once("prefers-color-scheme: dark").expect("rules");
    let (rules, _) = rules.split_once("</style>").expect("they end");
    rules.lines().filter(|line| line.contains("[fill=")).collect()
}

#[test]
fn a_dark_page_changes_every_colour_but_those_of_the_data() {
    let series = vec![Bars::new("plain", [GIB]).notes(["a note"]), Bars::new("planned", [GIB])];
    let svg = bars("t", batch(), &["4"], series).limit(2.0 * GIB, "budget").to_svg();
    let rules = dark_rules(&svg);
    let document = roxmltree::Document::parse(&svg).expect("the SVG is XML");
    for node in document.descendants() {
        let class = node.attribute("class").unwrap_or_default();
        if ["bar", "swatch", ""].contains(&class) {
            continue;
        }
        for colour in ["fill", "stroke"].iter().filter_map(|a| node.attribute(*a)) {
            let known = rules.iter().any(|rule| rule.contains(colour));
            assert!(known, "{class} has {colour} on a dark page too");
        }
    }
}

#[test]
fn a_png_is_the_light_picture_and_the_same_each_time() {
    let chart = bars("t", batch(), &["4"], vec![Bars::new("s", [GIB])]);
    let png = chart.to_png(1.0).expect("it renders");
    assert_eq!(png, chart.to_png(1.0).expect("it renders"));
    let pixels = resvg::tiny_skia::Pixmap::decode_png(&png).expect("a picture");
    let corner = pixels.pixel(1, 1).expect("it has a corner");
    assert_eq!([corner.red(), corner.green(), corner.blue()], [255; 3]);
}
