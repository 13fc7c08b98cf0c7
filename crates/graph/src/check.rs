//! The check that every graph passes before it exists.
//!
//! In: parts with ids of any value. Out: who writes, reads and updates each storage, or the first
//! thing that is wrong. Linear in the size of the graph.

use crate::{Bytes, Effect, GraphError, GraphParts, Node, NodeId, Phase, StorageId};

/// Who touches each storage; indexed by [`StorageId`].
pub(crate) struct Links {
    pub(crate) writer: Vec<NodeId>,
    pub(crate) readers: Vec<Vec<NodeId>>,
    pub(crate) updater: Vec<Option<NodeId>>,
}

pub(crate) fn check(parts: &GraphParts) -> Result<Links, GraphError> {
    check_ids(parts)?;
    check_sizes(parts)?;
    check_times(parts)?;
    check_inputs(parts)?;
    let writer = find_writers(parts)?;
    check_order(parts, &writer)?;
    let readers = find_readers(parts);
    let updater = find_updaters(parts, &readers)?;
    Ok(Links { writer, readers, updater })
}

fn nodes(parts: &GraphParts) -> impl Iterator<Item = (NodeId, &Node)> {
    parts.nodes.iter().enumerate().map(|(i, n)| (NodeId::new(i), n))
}

fn check_ids(parts: &GraphParts) -> Result<(), GraphError> {
    let count = parts.storages.len();
    for (id, node) in nodes(parts) {
        let named = [("reads", &node.reads), ("writes", &node.writes), ("updates", &node.updates)];
        for (how, list) in named {
            if let Some(s) = list.iter().find(|s| s.index() >= count) {
                return Err(GraphError::DanglingStorage {
                    id,
                    name: node.shown_name(),
                    how,
                    storage: i64::from(s.0),
                    count,
                });
            }
        }
        if !node.time.get().is_finite() || node.time.get() < 0.0 {
            let text = node.time.get().to_string();
            return Err(GraphError::Time { id, name: node.shown_name(), text });
        }
    }
    let dangling = |list, what, index: u32, count| GraphError::DanglingEntry {
        list,
        what,
        index: i64::from(index),
        count,
    };
    if let Some(s) = parts.outputs.iter().find(|s| s.index() >= count) {
        return Err(dangling("outputs", "storage", s.0, count));
    }
    if let Some(n) = parts.targets.iter().find(|n| n.index() >= parts.nodes.len()) {
        return Err(dangling("targets", "node", n.0, parts.nodes.len()));
    }
    Ok(())
}

/// The most bytes that a graph may have in all. What lies between this and 2^63 is for sums and
/// differences of sums, with or without a sign: so none of them overflows.
const MOST_BYTES: Bytes = Bytes(1 << 61);

/// All sizes together are bounded. Each storage counts twice, since a re-run node may hold a second
/// copy of an output for one step.
fn check_sizes(parts: &GraphParts) -> Result<(), GraphError> {
    let mut sum = Bytes::ZERO;
    let mut add = |bytes: Bytes, at: &dyn Fn() -> String| {
        let all = sum.checked_add(bytes).filter(|&all| all <= MOST_BYTES);
        sum = all.ok_or_else(|| GraphError::SizeOverflow { at: at() })?;
        Ok(())
    };
    for (i, storage) in parts.storages.iter().enumerate() {
        let at = || format!("storage {i}");
        add(storage.bytes, &at)?;
        add(storage.bytes, &at)?;
    }
    for (id, node) in nodes(parts) {
        add(node.workspace, &|| format!("node {id} ({})", node.name))?;
    }
    Ok(())
}

/// The most microseconds that a step may take. Numbers end near 1.8e308; what lies between is for
/// plans, which run nodes again and again, and for sums of their times: so none of them is
/// infinite.
const LONGEST_STEP: f64 = 1e300;

fn check_times(parts: &GraphParts) -> Result<(), GraphError> {
    let mut sum = 0.0;
    for (id, node) in nodes(parts) {
        sum += node.time.get();
        if sum > LONGEST_STEP {
            return Err(GraphError::TimeOverflow {
                id,
                name: node.shown_name(),
                text: format!("{:e}", node.time.get()),
            });
        }
    }
    Ok(())
}

fn check_inputs(parts: &GraphParts) -> Result<(), GraphError> {
    let wrong = |id, how| GraphError::InputRuns {
        id,
        name: parts.nodes[NodeId::index(id)].shown_name(),
        how,
    };
    for (id, node) in nodes(parts) {
        if node.phase == Phase::Input && !node.reads.is_empty() {
            return Err(wrong(id, "reads storages"));
        }
    }
    match parts.targets.iter().find(|t| parts.nodes[t.index()].phase == Phase::Input) {
        Some(&id) => Err(wrong(id, "is a target")),
        None => Ok(()),
    }
}

fn find_writers(parts: &GraphParts) -> Result<Vec<NodeId>, GraphError> {
    let mut writer: Vec<Option<NodeId>> = vec![None; parts.storages.len()];
    for (id, node) in nodes(parts) {
        for &storage in &node.writes {
            if node.reads.contains(&storage) {
                return Err(GraphError::ReadsOwnWrite { id, name: node.shown_name(), storage });
            }
            if let Some(first) = writer[storage.index()].replace(id) {
                return Err(GraphError::TwoWriters {
                    storage,
                    first,
                    first_name: parts.nodes[first.index()].shown_name(),
                    second: id,
                    second_name: node.shown_name(),
                });
            }
        }
    }
    let found = writer.into_iter().enumerate();
    found.map(|(i, w)| w.ok_or(GraphError::NoWriter { storage: StorageId::new(i) })).collect()
}

/// Every read comes after the write. Inputs are written before everything.
fn check_order(parts: &GraphParts, writer: &[NodeId]) -> Result<(), GraphError> {
    for (id, node) in nodes(parts) {
        for &storage in &node.reads {
            let by = writer[storage.index()];
            let from_start = parts.nodes[by.index()].phase == Phase::Input;
            if by >= id && !from_start {
                return Err(find_cycle(parts, writer).unwrap_or(GraphError::ReadBeforeWrite {
                    id,
                    name: node.shown_name(),
                    storage,
                    writer: by,
                    writer_name: parts.nodes[by.index()].shown_name(),
                }));
            }
        }
    }
    Ok(())
}

/// A cycle among the nodes, if there is one: depth-first search with an explicit stack.
fn find_cycle(parts: &GraphParts, writer: &[NodeId]) -> Option<GraphError> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let mut mark = vec![Mark::New; parts.nodes.len()];
    for start in 0..parts.nodes.len() {
        // Each entry: a node and the next of its reads to follow.
        let mut path = vec![(start, 0)];
        while let Some((node, next)) = path.pop() {
            if next == 0 && mark[node] == Mark::Done {
                continue;
            }
            mark[node] = Mark::OnPath;
            let Some(read) = parts.nodes[node].reads.get(next) else {
                mark[node] = Mark::Done;
                continue;
            };
            path.push((node, next + 1));
            let before = writer[read.index()].index();
            match mark[before] {
                Mark::New => path.push((before, 0)),
                Mark::Done => {}
                Mark::OnPath => {
                    let from = path.iter().position(|&(n, _)| n == before).unwrap_or(0);
                    // The path follows reads, that is, against the flow of data.
                    let mut names: Vec<String> = path[from..]
                        .iter()
                        .rev()
                        .map(|&(n, _)| parts.nodes[n].shown_name())
                        .collect();
                    names.insert(0, parts.nodes[before].shown_name());
                    return Some(GraphError::Cycle { path: names });
                }
            }
        }
    }
    None
}

fn find_readers(parts: &GraphParts) -> Vec<Vec<NodeId>> {
    let mut readers = vec![Vec::new(); parts.storages.len()];
    for (id, node) in nodes(parts) {
        for storage in &node.reads {
            readers[storage.index()].push(id);
        }
    }
    readers
}

fn find_updaters(
    parts: &GraphParts,
    readers: &[Vec<NodeId>],
) -> Result<Vec<Option<NodeId>>, GraphError> {
    let mut updater: Vec<Option<NodeId>> = vec![None; parts.storages.len()];
    for (id, node) in nodes(parts) {
        for &storage in &node.updates {
            let bad =
                |why: String| GraphError::BadUpdate { id, name: node.shown_name(), storage, why };
            if node.effect != Effect::Once {
                return Err(
                    bad("it may run more than once; mark it `\"recompute\": false`".into()),
                );
            }
            if !node.reads.contains(&storage) {
                return Err(bad("does not list it under `reads`".into()));
            }
            if let Some(other) = updater[storage.index()].replace(id) {
                return Err(bad(format!("node {other} updates it too")));
            }
            // What moves a storage copies whatever it holds.
            let computes = |r: NodeId| parts.nodes[r.index()].transfer().is_none();
            let mut readers = readers[storage.index()].iter();
            if let Some(late) = readers.find(|&&r| r > id && computes(r)) {
                let name = &parts.nodes[late.index()].name;
                return Err(bad(format!("node {late} ({name}) reads it afterwards")));
            }
        }
    }
    Ok(updater)
}
