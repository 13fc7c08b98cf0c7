//! Tables that cannot be true are refused, with file, row and reason.

use std::path::Path;

use rekindle_analysis::{ActivationStats, Kind, NodeStats, Seconds, check_tables};
use rekindle_graph::{Bytes, Phase};

/// Ranks 0 to 2 forward, 3 to 5 backward; the activations are made at 0 and 1.
fn tables() -> (Vec<NodeStats>, Vec<ActivationStats>) {
    let node = |rank: u32| NodeStats {
        rank,
        name: format!("node_{rank}"),
        kind: Kind::Activation,
        phase: Some([Phase::Forward, Phase::Backward][rank as usize / 3]),
        run_time: Seconds::default(),
        peak_mem: Bytes(100),
        active_mem: Bytes(90),
        device: "cpu".into(),
    };
    let activation = |creation: u32| ActivationStats {
        name: format!("node_{creation}"),
        kind: Kind::Activation,
        creation,
        last_forward: Some(2),
        first_backward: Some(3),
        last_backward: Some(5 - creation),
        memory_size: Bytes(40),
        inactive_time: None,
        swap_time: None,
        recomp_time: None,
        recomp_memory: Some(Bytes(60)),
        recompute_ratio: None,
    };
    let nodes = (0..6).map(node).collect();
    (nodes, vec![activation(0), activation(1)])
}

fn complaint(change: impl Fn(&mut Vec<NodeStats>, &mut Vec<ActivationStats>)) -> Option<String> {
    let (mut nodes, mut activations) = tables();
    change(&mut nodes, &mut activations);
    let (node_file, activation_file) = (Path::new("nodes.csv"), Path::new("acts.csv"));
    let checked = check_tables(node_file, &nodes, activation_file, &activations);
    checked.err().map(|error| error.to_string())
}

#[test]
fn what_can_be_true_is_taken() {
    assert_eq!(complaint(|_, _| {}), None);
    assert_eq!(complaint(|nodes, _| nodes.reverse()), None);
    assert_eq!(complaint(|_, acts| acts[0].last_forward = None), None);
    let unused = complaint(|_, acts| {
        acts[0].first_backward = None;
        acts[0].last_backward = None;
    });
    assert_eq!(unused, None);
    // Other programs do not know the phase of every node.
    assert_eq!(complaint(|nodes, _| nodes[3].phase = None), None);
    let nothing = complaint(|nodes, acts| {
        nodes.clear();
        acts.clear();
    });
    assert_eq!(nothing, None);
}

#[track_caller]
fn refuses(change: impl Fn(&mut Vec<NodeStats>, &mut Vec<ActivationStats>), expected: &str) {
    let message = complaint(change).expect("it cannot be true");
    assert!(message.contains(expected), "{message}");
}

#[test]
fn nodes_that_cannot_be_are_named() {
    refuses(
        |nodes, _| nodes.push(nodes[1].clone()),
        "nodes.csv: row 7 (node_1): `rank` is 1, which is also that of row 2",
    );
    refuses(
        |nodes, _| drop(nodes.remove(2)),
        "nodes.csv: row 5 (node_5): `rank` is 5, but the table has 5 rows",
    );
    refuses(|nodes, _| nodes[0].rank = u32::MAX, "row 1 (node_0): `rank` is 4294967295");
    refuses(
        |nodes, _| nodes[4].active_mem = Bytes(101),
        "row 5 (node_4): `median_active_mem_bytes` is 101, more than the peak of 100",
    );
}

#[test]
fn activations_that_cannot_be_are_named() {
    refuses(
        |_, acts| acts.push(acts[0].clone()),
        "acts.csv: row 3 (node_0): the same activation is in row 1",
    );
    refuses(
        |_, acts| acts[1].memory_size = Bytes(1_000_000_000_000),
        "acts.csv: row 2 (node_1): `median_mem_size_bytes` is 1000000000000, but all that is live",
    );
    refuses(
        |_, acts| acts[1].recomp_memory = Some(Bytes(101)),
        "`recomp_memory_bytes` is 101, but the whole step has a peak of 100",
    );
    refuses(
        |_, acts| acts[1].last_backward = Some(6),
        "`last_bw_use_rank` is 6, but there are 6 nodes",
    );
    refuses(
        |_, acts| acts[1].last_forward = Some(0),
        "`last_fw_use_rank` is 0, but `creation_rank` is 1",
    );
    refuses(
        |_, acts| acts[0].first_backward = Some(2),
        "`first_bw_use_rank` is 2, but `last_fw_use_rank` is 2",
    );
    refuses(
        |_, acts| acts[1].first_backward = Some(5),
        "row 2 (node_1): `last_bw_use_rank` is 4, but `first_bw_use_rank` is 5",
    );
    refuses(
        |_, acts| acts[0].last_backward = None,
        "row 1 (node_0): it has a first backward use or a last one, but not both",
    );
    refuses(
        |_, acts| acts[1].creation = 4,
        "`creation_rank` is 4, but that node (node_4) is of the phase Backward",
    );
}
