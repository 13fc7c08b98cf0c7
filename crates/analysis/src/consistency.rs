//! Whether the two tables of a profile can both be true.
//!
//! In: the rows of both, and the files that they are from. Out: nothing, or the first row that
//! contradicts itself or another one.
//!
//! The rules: the ranks of the nodes are their positions in the step, so each number from zero on
//! is that of one row; what is live after a node is at most what is live while it runs; an
//! activation stands there once; it is made before it is used, forward before backward; its nodes
//! are there, and of the phases that they should be, where those are known; it is no larger than
//! all that is live where it is used, and making it again takes no more than the whole step.
//!
//! Limits: times are taken as they are, and the sizes of several activations are not added up,
//! since tables of other programs list a storage under each of its names.

use std::collections::BTreeMap;
use std::path::Path;

use rekindle_graph::{Bytes, Phase, one_line};

use crate::error::TableError;
use crate::profile::{ActivationStats, NodeStats};

/// Refuses tables that contradict themselves or each other.
///
/// # Errors
/// [`TableError::Contradiction`] names the file, the row (the first below the header is row 1) and
/// what is wrong.
pub fn check_tables(
    node_file: &Path,
    nodes: &[NodeStats],
    activation_file: &Path,
    activations: &[ActivationStats],
) -> Result<(), TableError> {
    let by_rank = by_rank(node_file, nodes)?;
    let largest = nodes.iter().map(|n| n.peak_mem).max().unwrap_or_default();
    let mut rows = BTreeMap::new();
    for (row, a) in activations.iter().enumerate() {
        let twice = rows.insert((a.creation, &a.name), row);
        let twice = twice.map(|other| format!("the same activation is in row {}", other + 1));
        if let Some(why) = twice.or_else(|| contradiction(a, &by_rank, largest)) {
            return Err(contradicts(activation_file, row, &a.name, why));
        }
    }
    Ok(())
}

fn contradicts(path: &Path, row: usize, name: &str, why: String) -> TableError {
    TableError::Contradiction { path: path.to_owned(), row: row + 1, name: one_line(name), why }
}

/// The nodes by their ranks.
fn by_rank<'n>(path: &Path, nodes: &'n [NodeStats]) -> Result<Vec<&'n NodeStats>, TableError> {
    let mut row_of = vec![None; nodes.len()];
    for (row, node) in nodes.iter().enumerate() {
        let (rank, count) = (node.rank, nodes.len());
        let why = match row_of.get_mut(rank as usize) {
            None => format!(
                "`rank` is {rank}, but the table has {count} rows, so another rank is missing; \
                 a rank is a node's position in the step"
            ),
            Some(Some(other)) => format!(
                "`rank` is {rank}, which is also that of row {}; a rank is a node's position in \
                 the step",
                *other + 1
            ),
            Some(none) if node.active_mem <= node.peak_mem => {
                *none = Some(row);
                continue;
            }
            Some(None) => format!(
                "`median_active_mem_bytes` is {}, more than the peak of {}",
                node.active_mem.get(),
                node.peak_mem.get()
            ),
        };
        return Err(contradicts(path, row, &node.name, why));
    }
    // As many rows as ranks, none twice and none beyond: each rank has its row.
    let rows = row_of.into_iter().flatten();
    Ok(rows.map(|row: usize| &nodes[row]).collect())
}

/// What is wrong with an activation, if anything.
fn contradiction(a: &ActivationStats, nodes: &[&NodeStats], largest: Bytes) -> Option<String> {
    let uses = [
        ("creation_rank", Some(a.creation), Phase::Forward),
        ("last_fw_use_rank", a.last_forward, Phase::Forward),
        ("first_bw_use_rank", a.first_backward, Phase::Backward),
        ("last_bw_use_rank", a.last_backward, Phase::Backward),
    ];
    if a.first_backward.is_some() != a.last_backward.is_some() {
        return Some("it has a first backward use or a last one, but not both".into());
    }
    let mut before: Option<(&str, u32, Phase)> = None;
    for (column, rank, phase) in uses {
        let Some(rank) = rank else { continue };
        let Some(node) = nodes.get(rank as usize) else {
            let count = nodes.len();
            return Some(format!("`{column}` is {rank}, but there are {count} nodes"));
        };
        // The backward pass begins after the forward pass; one node may be first and last.
        let early = |&(_, earlier, of): &(&str, u32, Phase)| {
            rank < earlier || (rank == earlier && phase != of)
        };
        if let Some((other, earlier, _)) = before.filter(early) {
            return Some(format!("`{column}` is {rank}, but `{other}` is {earlier}"));
        }
        if let Some(found) = node.phase.filter(|&found| found != phase) {
            let name = one_line(&node.name);
            return Some(format!(
                "`{column}` is {rank}, but that node ({name}) is of the phase {found:?}"
            ));
        }
        if a.memory_size > node.peak_mem {
            return Some(format!(
                "`median_mem_size_bytes` is {}, but all that is live at rank {rank} is {}",
                a.memory_size.get(),
                node.peak_mem.get()
            ));
        }
        before = Some((column, rank, phase));
    }
    let again = a.recomp_memory.filter(|&memory| memory > largest)?;
    Some(format!(
        "`recomp_memory_bytes` is {}, but the whole step has a peak of {}",
        again.get(),
        largest.get()
    ))
}
