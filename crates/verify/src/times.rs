//! The replay in time: when the last run and the last transfer are over.
//!
//! Method: the earliest moment at which each thing can be. A run is over its own time after the
//! latest of: the run before it, the arrival of everything that it reads, and, for what it updates
//! in place, the end of the copy that is being written. A transfer is over latency + bytes / rate
//! after the latest of: the moment at which compute came to it, the transfer before it on its
//! channel, and what it copies being complete. A free lets compute go on when the storage's own
//! transfers are over.

use rekindle_graph::{Graph, Micros, Schedule, Step};

/// When what is known of a storage is complete.
#[derive(Clone, Copy, Default)]
struct Complete {
    /// What is in memory.
    memory: f64,
    /// The offload that reads it there.
    read: f64,
    /// The copy in the store.
    copy: f64,
}

/// When everything is over. Steps that cannot be done as written take what they can: the replay of
/// values reports them.
pub(crate) fn measure(graph: &Graph, schedule: &Schedule) -> Micros {
    let mut complete = vec![Complete::default(); graph.storages().len()];
    let (mut compute, mut channels) = (0.0_f64, [0.0_f64; 2]);
    for step in &schedule.steps {
        let (storage, way) = match *step {
            Step::Run(id) => {
                let Some(node) = graph.nodes().get(id.index()) else {
                    continue;
                };
                let reads = node.reads.iter().map(|r| complete[r.index()].memory);
                let updates = node.updates.iter().map(|u| complete[u.index()].read);
                compute = reads.chain(updates).fold(compute, f64::max) + node.time.get();
                continue;
            }
            Step::Free(storage) => {
                if let Some(of) = complete.get_mut(storage.index()) {
                    compute = compute.max(of.memory).max(of.read);
                    (of.memory, of.read) = (0.0, 0.0);
                }
                continue;
            }
            Step::Offload(storage) => (storage, 0),
            Step::Fetch(storage) => (storage, 1),
        };
        let Some(of) = complete.get_mut(storage.index()) else {
            continue;
        };
        let Some(store) = schedule.store else {
            continue;
        };
        let rate = [store.out_rate, store.in_rate][way].get();
        if rate <= 0.0 {
            continue;
        }
        let source = [of.memory, of.copy][way];
        let begin = compute.max(channels[way]).max(source);
        let bytes = graph.storage(storage).bytes.get() as f64;
        let end = begin + store.latency.get() + bytes / rate;
        match way {
            0 => (of.read, of.copy) = (end, end),
            _ => (of.memory, of.read) = (end, 0.0),
        }
        match store.duplex {
            true => channels[way] = end,
            false => channels = [end; 2],
        }
    }
    Micros(channels.into_iter().fold(compute, f64::max))
}
