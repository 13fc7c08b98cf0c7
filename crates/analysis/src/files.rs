//! The files of a profile: two CSV tables and the graph with its measured times.
//!
//! In one folder: `profiler_stats_<model>_bs<N>_node_stats.csv`,
//! `profiler_stats_<model>_bs<N>_activation_stats.csv` and `<model>_bs<N>.graph.json`
//! (`remat.graph/1`). Each is written whole or not at all, and what is read back equals what was
//! written: floats are printed with the digits that identify them.
//!
//! A rank of -1 means that there is no such use. An empty cell means that the number does not
//! exist: an activation that cannot be made again has no recomputation time. A ratio of `inf` means
//! that making it again costs no time.

use std::path::{Path, PathBuf};

use rekindle_graph::{Graph, read_graph, write_atomically};

use crate::TableError;
use crate::kind::{Kind, gtype, phase_of};
use crate::profile::{ActivationStats, NodeStats, Profile, Seconds};
use crate::table::{Row, Table, csv_text, number, read_table, text_cell, text_of_cell};

/// The columns of the node table, in order.
pub const NODE_COLUMNS: &[&str] = &[
    "rank",
    "node_name",
    "node_type",
    "gtype",
    "median_run_time_s",
    "median_peak_mem_bytes",
    "median_active_mem_bytes",
    "device",
];

/// The columns of the activation table, in order.
pub const ACTIVATION_COLUMNS: &[&str] = &[
    "activation_name",
    "node_type",
    "creation_rank",
    "last_fw_use_rank",
    "first_bw_use_rank",
    "last_bw_use_rank",
    "median_mem_size_bytes",
    "inactive_time_s",
    "avg_swap_time_s",
    "recomp_time_s",
    "recomp_memory_bytes",
    "recompute_ratio",
];

/// Where the files of one profile are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfilePaths {
    /// The node table.
    pub nodes: PathBuf,
    /// The activation table.
    pub activations: PathBuf,
    /// The graph with its measured times.
    pub graph: PathBuf,
}

impl ProfilePaths {
    /// The files of `model` at `batch_size` in `folder`.
    pub fn new(folder: &Path, model: &str, batch_size: usize) -> ProfilePaths {
        let stats = |what| folder.join(format!("profiler_stats_{model}_bs{batch_size}_{what}.csv"));
        ProfilePaths {
            nodes: stats("node_stats"),
            activations: stats("activation_stats"),
            graph: folder.join(format!("{model}_bs{batch_size}.graph.json")),
        }
    }
}

/// Writes the three files of a profile.
///
/// # Errors
/// Names the file that cannot be written.
pub fn write_profile(
    folder: &Path,
    profile: &Profile,
    graph: &Graph,
) -> Result<ProfilePaths, TableError> {
    let paths = ProfilePaths::new(folder, &profile.model, profile.batch_size);
    write_node_stats(&paths.nodes, &profile.nodes)?;
    write_activation_stats(&paths.activations, &profile.activations)?;
    write_atomically(&paths.graph, graph.to_json().as_bytes())?;
    Ok(paths)
}

/// Reads the three files of a profile.
///
/// # Errors
/// Names the file, the line and the column. A column that the profiler always writes must be there.
pub fn read_profile(
    folder: &Path,
    model: &str,
    batch_size: usize,
) -> Result<(Profile, Graph), TableError> {
    let paths = ProfilePaths::new(folder, model, batch_size);
    let nodes = read_node_stats(&paths.nodes)?;
    let activations = read_activation_stats(&paths.activations)?;
    complete(&paths.nodes, &nodes, NODE_COLUMNS)?;
    complete(&paths.activations, &activations, ACTIVATION_COLUMNS)?;
    let profile = Profile {
        model: model.into(),
        batch_size,
        nodes: nodes.rows,
        activations: activations.rows,
    };
    Ok((profile, read_graph(&paths.graph)?))
}

fn complete<T>(
    path: &Path,
    table: &Table<T>,
    expected: &'static [&'static str],
) -> Result<(), TableError> {
    match table.missing.first() {
        None => Ok(()),
        Some(column) => Err(TableError::MissingColumn { path: path.to_owned(), column, expected }),
    }
}

/// Writes the node table.
///
/// # Errors
/// Names the file.
pub fn write_node_stats(path: &Path, nodes: &[NodeStats]) -> Result<(), TableError> {
    let row = |n: &NodeStats| {
        vec![
            n.rank.to_string(),
            text_cell(&n.name),
            n.kind.name().into(),
            gtype(n.phase).into(),
            n.run_time.get().to_string(),
            n.peak_mem.get().to_string(),
            n.active_mem.get().to_string(),
            text_cell(&n.device),
        ]
    };
    let text = csv_text(NODE_COLUMNS, nodes.iter().map(row));
    Ok(write_atomically(path, text.as_bytes())?)
}

/// Reads a node table. Only the device may be missing.
///
/// # Errors
/// Names the file, the line and the column.
pub fn read_node_stats(path: &Path) -> Result<Table<NodeStats>, TableError> {
    read_table(path, NODE_COLUMNS, |row| {
        let device =
            row.optional("device", "a name", |cell| Some(text_of_cell(cell).to_owned()))?;
        Ok(NodeStats {
            rank: row.rank("rank")?,
            name: row.name("node_name")?,
            kind: kind(row)?,
            phase: row.parse(
                "gtype",
                "input, forward, backward, optimizer or intermediate/other",
                phase_of,
            )?,
            run_time: row.parse("median_run_time_s", number::SECONDS, number::seconds)?,
            peak_mem: row.parse("median_peak_mem_bytes", number::BYTES, number::bytes)?,
            active_mem: row.parse("median_active_mem_bytes", number::BYTES, number::bytes)?,
            device: device.unwrap_or_else(|| "unknown".into()),
        })
    })
}

/// Writes the activation table.
///
/// # Errors
/// Names the file.
pub fn write_activation_stats(
    path: &Path,
    activations: &[ActivationStats],
) -> Result<(), TableError> {
    let rank = |r: Option<u32>| r.map_or("-1".into(), |r| r.to_string());
    let seconds = |s: Option<Seconds>| s.map_or(String::new(), |s| s.get().to_string());
    let row = |a: &ActivationStats| {
        vec![
            text_cell(&a.name),
            a.kind.name().into(),
            a.creation.to_string(),
            rank(a.last_forward),
            rank(a.first_backward),
            rank(a.last_backward),
            a.memory_size.get().to_string(),
            seconds(a.inactive_time),
            seconds(a.swap_time),
            seconds(a.recomp_time),
            a.recomp_memory.map_or(String::new(), |b| b.get().to_string()),
            a.recompute_ratio.map_or(String::new(), |r| r.to_string()),
        ]
    };
    let text = csv_text(ACTIVATION_COLUMNS, activations.iter().map(row));
    Ok(write_atomically(path, text.as_bytes())?)
}

/// Reads an activation table. The times, the recomputation's memory and the ratio may be missing.
///
/// # Errors
/// Names the file, the line and the column.
pub fn read_activation_stats(path: &Path) -> Result<Table<ActivationStats>, TableError> {
    read_table(path, ACTIVATION_COLUMNS, |row| {
        let seconds = |column| row.optional(column, number::SECONDS, number::seconds);
        Ok(ActivationStats {
            name: row.name("activation_name")?,
            kind: kind(row)?,
            creation: row.rank("creation_rank")?,
            last_forward: row.rank_or_none("last_fw_use_rank")?,
            first_backward: row.rank_or_none("first_bw_use_rank")?,
            last_backward: row.rank_or_none("last_bw_use_rank")?,
            memory_size: row.parse("median_mem_size_bytes", number::BYTES, number::bytes)?,
            inactive_time: seconds("inactive_time_s")?,
            swap_time: seconds("avg_swap_time_s")?,
            recomp_time: seconds("recomp_time_s")?,
            recomp_memory: row.optional("recomp_memory_bytes", number::BYTES, number::bytes)?,
            recompute_ratio: row.optional("recompute_ratio", number::RATIO, number::ratio)?,
        })
    })
}

fn kind(row: &Row) -> Result<Kind, TableError> {
    let expected = "parameter, gradient, activation, optimizer_state, input or other";
    row.parse("node_type", expected, Kind::from_name)
}
