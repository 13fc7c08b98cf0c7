//! The profiler's pictures: what is drawn, and under which names.
//!
//! In: profiles with their graphs. Out: charts, each with the name of its file.

use rekindle_graph::{Bytes, NodeId};
use rekindle_profile::{ActivationStats, Gtype, Kind, NodeStats, Seconds};
use rekindle_report::{Area, Axis, Bars, Chart, Columns, Line, Series, Unit};

use super::Profiled;

/// A chart and the name of its file, without extension.
pub(crate) type Picture = (String, Chart);

/// What the bytes are grouped into, from the bottom of a stack to its top.
pub(crate) const LAYERS: [(&str, &[Kind]); 5] = [
    ("weights", &[Kind::Parameter]),
    ("optimizer states", &[Kind::OptimizerState]),
    ("gradients", &[Kind::Gradient]),
    ("feature maps", &[Kind::Activation]),
    ("other", &[Kind::Input, Kind::Other]),
];

/// The bytes of a layer; scratch belongs to the last.
pub(crate) fn layer_bytes(breakdown: &rekindle_profile::Breakdown, layer: usize) -> Bytes {
    let kinds = LAYERS[layer].1.iter().map(|&kind| breakdown.of(kind));
    let scratch = match layer + 1 == LAYERS.len() {
        true => breakdown.scratch,
        false => Bytes::ZERO,
    };
    kinds.sum::<Bytes>() + scratch
}

/// The pictures of one profile.
pub(crate) fn of_one(profiled: &Profiled, limit: Option<Bytes>) -> Vec<Picture> {
    let profile = &profiled.profile;
    let (model, batch) = (&profile.model, profile.batch_size);
    let named = |what: &str| format!("{model}_bs{batch}_{what}");
    let title = |what: &str| format!("{what}: {model}, batch {batch}");
    let seconds = |s: Option<Seconds>| s.map_or(f64::NAN, Seconds::get);
    let rank = || Axis::new("rank of the node", Unit::Count);
    let nodes = |what: &str, y: Axis, value: fn(&NodeStats) -> f64| {
        let groups = by_gtype(&profile.nodes, value);
        with_boundaries(
            profiled,
            Chart::columns(title(what), rank(), y, groups),
            Some,
        )
    };
    let activations = |what: &str, y: Axis, value: &dyn Fn(&ActivationStats) -> f64| {
        let item = |a: &ActivationStats| (f64::from(a.creation), value(a), a.name.clone());
        let items = profile.activations.iter().map(item);
        let made = Axis::new("rank of the activation's maker", Unit::Count);
        Chart::columns(
            title(what),
            made,
            y,
            vec![Columns::new("activations", items)],
        )
    };
    let time = |name: &str| Axis::new(name, Unit::Seconds);
    let bytes = |name: &str| Axis::new(name, Unit::Bytes);
    vec![
        (
            named("node_run_time"),
            nodes("Run time of each node", time("run time"), |n| {
                n.run_time.get()
            }),
        ),
        (
            named("node_peak_memory"),
            with_limit(
                nodes("Memory while each node runs", bytes("peak memory"), |n| {
                    n.peak_mem.get() as f64
                }),
                limit,
            ),
        ),
        (
            named("activation_size"),
            activations("Size of each activation", bytes("size"), &|a| {
                a.memory_size.get() as f64
            }),
        ),
        (
            named("activation_inactive_time"),
            activations(
                "Idle time of each activation",
                time("inactive time"),
                &|a| seconds(a.inactive_time),
            ),
        ),
        (
            named("memory"),
            with_limit(memory(profiled, title("Memory over the step")), limit),
        ),
    ]
}

/// The pictures of one model at several batch sizes.
pub(crate) fn of_batch_sizes(all: &[Profiled], limit: Option<Bytes>) -> Vec<Picture> {
    let Some(model) = all.first().map(|p| &p.profile.model) else {
        return Vec::new();
    };
    let sizes = || all.iter().map(|p| p.profile.batch_size.to_string());
    let batch = || Axis::new("batch size", Unit::Count);
    let peak_memory = || Axis::new("peak memory", Unit::Bytes);
    let peaks: Vec<Bytes> = all.iter().map(|p| p.peak().total()).collect();
    let bars = Bars::new("peak memory", peaks.iter().map(|b| b.get() as f64))
        .notes(peaks.iter().map(Bytes::to_string));
    let layers = LAYERS.iter().enumerate().map(|(layer, (name, _))| {
        let of = |p: &Profiled| layer_bytes(p.peak(), layer).get() as f64;
        Bars::new(*name, all.iter().map(of))
    });
    let lines = all.iter().map(|p| {
        let bytes = running(p).map(|rank| p.breakdowns[rank].total());
        let points = bytes.enumerate().map(|(at, b)| [at as f64, b.get() as f64]);
        Line::new(format!("batch {}", p.profile.batch_size), points)
    });
    let peak = Chart::over_categories(
        format!("Peak memory of {model}"),
        batch(),
        peak_memory(),
        sizes(),
        Series::Bars(vec![bars]),
    );
    let stacked = Chart::over_categories(
        format!("What the peak of {model} is made of"),
        batch(),
        peak_memory(),
        sizes(),
        Series::Stack(layers.collect()),
    );
    let over_step = Chart::lines(
        format!("Memory over the step of {model}"),
        nodes_run(),
        live_memory(),
        lines.collect(),
    );
    let over_step = with_boundaries(&all[0], over_step, |at| {
        running(&all[0]).position(|rank| rank == at)
    });
    vec![
        (format!("{model}_peak_memory"), with_limit(peak, limit)),
        (format!("{model}_memory"), with_limit(over_step, limit)),
        (format!("{model}_breakdown"), with_limit(stacked, limit)),
    ]
}

fn by_gtype(nodes: &[NodeStats], value: fn(&NodeStats) -> f64) -> Vec<Columns> {
    let shown = [Gtype::Forward, Gtype::Backward, Gtype::Optimizer];
    let groups = shown.into_iter().map(|gtype| {
        let of = nodes.iter().filter(|n| n.gtype == gtype);
        let items = of.map(|n| (f64::from(n.rank), value(n), n.name.clone()));
        Columns::new(gtype.name(), items)
    });
    groups.collect()
}

/// Live bytes by what they are for, over the nodes that run.
fn memory(profiled: &Profiled, title: String) -> Chart {
    let layers = LAYERS.iter().enumerate().map(|(layer, (name, _))| {
        let values = running(profiled).map(|rank| &profiled.breakdowns[rank]);
        Area::new(*name, values.map(|b| layer_bytes(b, layer).get() as f64))
    });
    let chart = Chart::areas(title, nodes_run(), live_memory(), layers.collect());
    with_boundaries(profiled, chart, |at| {
        running(profiled).position(|rank| rank == at)
    })
}

/// The ranks of the nodes that run. A step may begin with more sources than it has nodes, and
/// nothing happens there.
fn running(profiled: &Profiled) -> impl Iterator<Item = usize> {
    let order = profiled.graph.natural_order();
    order.into_iter().map(NodeId::index)
}

fn nodes_run() -> Axis {
    Axis::new("nodes run", Unit::Count)
}

fn live_memory() -> Axis {
    Axis::new("live memory", Unit::Bytes)
}

/// Marks where the passes begin, at the place of each rank. The optimizer's nodes stand among those
/// of the backward pass, so only the first of them is marked.
fn with_boundaries(
    profiled: &Profiled,
    chart: Chart,
    place: impl Fn(usize) -> Option<usize>,
) -> Chart {
    let boundaries = &profiled.analysis.boundaries;
    let marks: [(Option<NodeId>, &str); 2] = [
        (boundaries.first_backward, "backward"),
        (boundaries.first_optimizer, "first update"),
    ];
    let marks = marks
        .into_iter()
        .filter_map(|(at, name)| Some((place(at?.index())?, name)));
    marks.fold(chart, |chart, (at, name)| chart.boundary(at as f64, name))
}

fn with_limit(chart: Chart, limit: Option<Bytes>) -> Chart {
    match limit {
        Some(limit) => chart.limit(limit.get() as f64, "memory limit"),
        None => chart,
    }
}
