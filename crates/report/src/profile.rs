//! The charts of a profile, each with the name of its file: the one place that draws them.
//!
//! In: profiles with their graphs. Out: [`Picture`]s, of one profile or of one model at several
//! batch sizes.

use rekindle_analysis::{
    ActivationStats, Analysis, Boundaries, Breakdown, LAYERS, NodeStats, Profile, Seconds,
    breakdowns, gtype,
};
use rekindle_graph::{Bytes, Graph, NodeId, Phase};

use crate::{Area, Axis, Bars, Chart, Columns, Line, Series, Unit};

/// A chart and the name of its file, without extension.
pub type Picture = (String, Chart);

/// The charts of one profile: time and memory of each node, size and idle time of each activation,
/// and what the memory is made of over the step. `limit` is drawn where bytes are compared with it.
pub fn profile_charts(profile: &Profile, graph: &Graph, limit: Option<Bytes>) -> Vec<Picture> {
    let memory = Memory::new(graph);
    let (model, batch) = (&profile.model, profile.batch_size);
    let title = |what: &str| format!("{what}: {model}, batch {batch}");
    let nodes = |what: &str, y: Axis, value: fn(&NodeStats) -> f64| {
        let rank = Axis::new("rank of the node", Unit::Count);
        let chart = Chart::columns(title(what), rank, y, by_phase(&profile.nodes, value));
        with_boundaries(&memory.boundaries, chart, |id| Some(id.index()))
    };
    let activations = |what: &str, y: Axis, value: fn(&ActivationStats) -> f64| {
        let item = |a: &ActivationStats| (f64::from(a.creation), value(a), a.name.clone());
        let groups = Columns::new("activations", profile.activations.iter().map(item));
        let made = Axis::new("rank of the activation's maker", Unit::Count);
        Chart::columns(title(what), made, y, vec![groups])
    };
    let layers = LAYERS.iter().enumerate().map(|(layer, (name, _))| {
        let values = memory.running.iter().map(|(_, b)| b.layers()[layer]);
        Area::new(*name, values.map(|bytes| bytes.get() as f64))
    });
    let over_step =
        Chart::areas(title("Memory over the step"), nodes_run(), live_memory(), layers.collect());
    let run_time = Axis::new("run time", Unit::Seconds);
    let node_times = nodes("Run time of each node", run_time, |n| n.run_time.get());
    let node_peaks =
        nodes("Memory while each node runs", peak_memory(), |n| n.peak_mem.get() as f64);
    let size = Axis::new("size", Unit::Bytes);
    let sizes = activations("Size of each activation", size, |a| a.memory_size.get() as f64);
    let idle = Axis::new("inactive time", Unit::Seconds);
    let idle_times = activations("Idle time of each activation", idle, |a| {
        a.inactive_time.map_or(f64::NAN, Seconds::get)
    });
    let pictures = [
        ("node_run_time", node_times),
        ("node_peak_memory", with_limit(node_peaks, limit)),
        ("activation_size", sizes),
        ("activation_inactive_time", idle_times),
        ("memory", with_limit(memory.with_boundaries(over_step), limit)),
    ];
    let named = |(what, chart)| (format!("{model}_bs{batch}_{what}"), chart);
    pictures.map(named).into()
}

/// The charts of one model at several batch sizes: its peak, the memory over the step, and what the
/// peak is made of.
pub fn batch_size_charts(all: &[(&Profile, &Graph)], limit: Option<Bytes>) -> Vec<Picture> {
    let Some((first, _)) = all.first() else {
        return Vec::new();
    };
    let model = &first.model;
    let memories: Vec<Memory> = all.iter().map(|(_, graph)| Memory::new(graph)).collect();
    let sizes = all.iter().map(|(profile, _)| profile.batch_size);
    let over_sizes = |title: String, series: Series| {
        let batch = Axis::new("batch size", Unit::Count);
        let sizes = sizes.clone().map(|size| size.to_string());
        let chart = Chart::over_categories(title, batch, peak_memory(), sizes, series);
        with_limit(chart, limit)
    };
    let peaks: Vec<Breakdown> = memories.iter().map(Memory::peak).collect();
    let bars = Bars::new("peak memory", peaks.iter().map(|b| b.total().get() as f64))
        .notes(peaks.iter().map(|b| b.total().to_string()));
    let layers = LAYERS.iter().enumerate().map(|(layer, (name, _))| {
        let of = |b: &Breakdown| b.layers()[layer].get() as f64;
        Bars::new(*name, peaks.iter().map(of))
    });
    let lines = sizes.clone().zip(&memories).map(|(size, memory)| {
        let bytes = memory.running.iter().map(|(_, b)| b.total().get() as f64);
        let points = bytes.enumerate().map(|(at, bytes)| [at as f64, bytes]);
        Line::new(format!("batch {size}"), points)
    });
    let over_step = Chart::lines(
        format!("Memory over the step of {model}"),
        nodes_run(),
        live_memory(),
        lines.collect(),
    );
    let over_step = with_limit(memories[0].with_boundaries(over_step), limit);
    let title = format!("Peak memory of {model}");
    let peak = over_sizes(title, Series::Bars(vec![bars]));
    let title = format!("What the peak of {model} is made of");
    let stacked = over_sizes(title, Series::Stack(layers.collect()));
    vec![
        (format!("{model}_peak_memory"), peak),
        (format!("{model}_memory"), over_step),
        (format!("{model}_breakdown"), stacked),
    ]
}

/// What is live over the plain step.
struct Memory {
    boundaries: Boundaries,
    /// The nodes that run, in order, and what is live while each does. A step may begin with more
    /// sources than it has nodes, and nothing happens there.
    running: Vec<(NodeId, Breakdown)>,
}

impl Memory {
    fn new(graph: &Graph) -> Memory {
        let analysis = Analysis::new(graph);
        let breakdowns = breakdowns(graph, &analysis);
        let order = graph.natural_order().into_iter();
        Memory {
            boundaries: analysis.boundaries,
            running: order.map(|id| (id, breakdowns[id.index()])).collect(),
        }
    }

    fn peak(&self) -> Breakdown {
        let all = self.running.iter().map(|&(_, breakdown)| breakdown);
        all.max_by_key(Breakdown::total).unwrap_or_default()
    }

    /// Marks where the passes begin on an axis of the nodes that run.
    fn with_boundaries(&self, chart: Chart) -> Chart {
        let place = |id| self.running.iter().position(|&(node, _)| node == id);
        with_boundaries(&self.boundaries, chart, place)
    }
}

fn by_phase(nodes: &[NodeStats], value: fn(&NodeStats) -> f64) -> Vec<Columns> {
    let shown = [Phase::Forward, Phase::Backward, Phase::Optimizer].map(Some);
    let groups = shown.into_iter().map(|phase| {
        let of = nodes.iter().filter(|n| n.phase == phase);
        let items = of.map(|n| (f64::from(n.rank), value(n), n.name.clone()));
        Columns::new(gtype(phase), items)
    });
    groups.collect()
}

fn nodes_run() -> Axis {
    Axis::new("nodes run", Unit::Count)
}

fn live_memory() -> Axis {
    Axis::new("live memory", Unit::Bytes)
}

fn peak_memory() -> Axis {
    Axis::new("peak memory", Unit::Bytes)
}

/// Marks where the passes begin, at the place of each node. The optimizer's nodes stand among those
/// of the backward pass, so only the first of them is marked.
fn with_boundaries(
    boundaries: &Boundaries,
    chart: Chart,
    place: impl Fn(NodeId) -> Option<usize>,
) -> Chart {
    let marks =
        [(boundaries.first_backward, "backward"), (boundaries.first_optimizer, "first update")];
    let marks = marks.into_iter().filter_map(|(at, name)| Some((place(at?)?, name)));
    marks.fold(chart, |chart, (at, name)| chart.boundary(at as f64, name))
}

fn with_limit(chart: Chart, limit: Option<Bytes>) -> Chart {
    match limit {
        Some(limit) => chart.limit(limit.get() as f64, "memory limit"),
        None => chart,
    }
}
