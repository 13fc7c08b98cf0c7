//! The files of a profile, for a step that was timed elsewhere.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use rekindle_graph::{NodeId, write_atomically};
use rekindle_profile::{
    Analysis, Breakdown, Gtype, Kind, Measured, NodeStats, Profile, breakdowns,
};
use rekindle_report::{Area, Axis, Chart, Columns, Unit};

use crate::error::invalid;
use crate::graph::Graph;

/// Pixels per unit of the drawing: sharp on a screen of twice the usual density.
const PNG_SCALE: f64 = 2.0;

/// Writes tables, graph and pictures into a folder, and gives their paths.
#[pyfunction]
pub(crate) fn write_profile(
    py: Python<'_>,
    graph: &Graph,
    folder: PathBuf,
    model: &str,
    batch_size: usize,
    device: &str,
) -> PyResult<Vec<PathBuf>> {
    let graph = &graph.graph;
    let analysis = Analysis::new(graph);
    let moments = breakdowns(graph, &analysis);
    let peaks: Vec<_> = moments.iter().map(Breakdown::total).collect();
    let measured = Measured {
        device,
        peak_mem: &peaks,
        swap_times: &vec![None; analysis.activations.len()],
    };
    let profile = Profile::new(model, batch_size, graph, &measured);
    let paths = rekindle_profile::write_profile(&folder, &profile, graph)
        .map_err(|error| invalid(py, error))?;
    let mut written = vec![paths.nodes, paths.activations, paths.graph];
    let running: Vec<usize> = graph
        .natural_order()
        .into_iter()
        .map(NodeId::index)
        .collect();
    let moments: Vec<&Breakdown> = running.iter().map(|&rank| &moments[rank]).collect();
    for (name, chart) in [
        ("memory", memory(&profile, &moments)),
        ("node_run_time", run_times(&profile)),
        ("activation_size", activation_sizes(&profile)),
    ] {
        let stem = format!("{model}_bs{batch_size}_{name}");
        written.extend(draw(&folder, &stem, &chart).map_err(|error| invalid(py, error))?);
    }
    Ok(written)
}

/// Live bytes by what they are for, over the nodes that run.
fn memory(profile: &Profile, moments: &[&Breakdown]) -> Chart {
    let areas = Kind::ALL.iter().map(|&kind| {
        let bytes = moments.iter().map(|moment| moment.of(kind).get() as f64);
        Area::new(kind.name(), bytes)
    });
    Chart::areas(
        title(profile, "Memory over the step"),
        Axis::new("nodes run", Unit::Count),
        Axis::new("live memory", Unit::Bytes),
        areas.collect(),
    )
}

fn run_times(profile: &Profile) -> Chart {
    let groups = [Gtype::Forward, Gtype::Backward].map(|gtype| {
        let of = |node: &&NodeStats| node.gtype == gtype;
        let item = |n: &NodeStats| (f64::from(n.rank), n.run_time.get(), n.name.clone());
        Columns::new(gtype.name(), profile.nodes.iter().filter(of).map(item))
    });
    Chart::columns(
        title(profile, "Run time of each node"),
        Axis::new("rank of the node", Unit::Count),
        Axis::new("run time", Unit::Seconds),
        groups.into(),
    )
}

fn activation_sizes(profile: &Profile) -> Chart {
    let items = profile.activations.iter().map(|a| {
        let bytes = a.memory_size.get() as f64;
        (f64::from(a.creation), bytes, a.name.clone())
    });
    Chart::columns(
        title(profile, "Size of each activation"),
        Axis::new("rank of the activation's maker", Unit::Count),
        Axis::new("size", Unit::Bytes),
        vec![Columns::new("activations", items)],
    )
}

fn title(profile: &Profile, what: &str) -> String {
    format!("{what}: {}, batch {}", profile.model, profile.batch_size)
}

fn draw(folder: &Path, stem: &str, chart: &Chart) -> Result<[PathBuf; 2], String> {
    let [svg, png] = ["svg", "png"].map(|kind| folder.join(format!("{stem}.{kind}")));
    write_atomically(&svg, chart.to_svg().as_bytes()).map_err(|error| error.to_string())?;
    let pixels = chart.to_png(PNG_SCALE).map_err(|error| error.to_string())?;
    write_atomically(&png, &pixels).map_err(|error| error.to_string())?;
    Ok([svg, png])
}
