//! `rekindle rewrite` as a user meets it.

mod command;

use command::Folder;
use rekindle_graph::Graph;

#[test]
fn a_plan_is_rewritten_explained_and_drawn() {
    let folder = Folder::new("rewrite");
    folder.works("plan @unet-b8 --budget 70% --strategy mutwo --out plan.json");
    let out = folder.works("rewrite @unet-b8 plan.json --explain --out new.json --dot new.dot");
    assert!(out.contains("before") && out.contains("starts from") && out.contains("@1"), "{out}");
    assert!(folder.read("new.dot").contains("orange"));
    let graph = Graph::from_json(&folder.read("new.json")).expect("an ordinary graph");
    assert!(graph.nodes().iter().any(|n| n.name.ends_with("@1")));

    // The rewritten graph is planned and rewritten like any other; its plain step is the plan.
    let again = folder.rekindle("plan new.json --budget 97% --strategy mutwo --out again.json");
    again.works();
    folder.works("rewrite new.json again.json --out newer.json");
}

#[test]
fn what_is_rebuilt_from_nothing_says_so() {
    let folder = Folder::new("from-nothing");
    let graph = r#"{"format": "remat.graph/1", "name": "g", "outputs": [2],
        "storages": [{"bytes": 10, "role": "activation"}, {"bytes": 4, "role": "activation"},
                     {"bytes": 4, "role": "gradient"}],
        "nodes": [{"name": "mask", "phase": "forward", "time_us": 1, "reads": [], "writes": [0]},
                  {"name": "drop", "phase": "forward", "time_us": 1, "reads": [0], "writes": [1]},
                  {"name": "back", "phase": "backward", "time_us": 1,
                   "reads": [0, 1], "writes": [2]}]}"#;
    let plan = r#"{"format": "remat.plan/1", "graph": "g", "budget_bytes": 18, "peak_bytes": 18,
        "time_us": 4, "steps": [{"run": 0}, {"run": 1}, {"free": 0}, {"run": 0}, {"run": 2},
                                {"free": 0}, {"free": 1}]}"#;
    for (name, text) in [("g.json", graph), ("p.json", plan)] {
        folder.write(name, text);
    }
    let out = folder.works("rewrite g.json p.json --explain");
    assert!(out.contains("starts from nothing\n"), "{out}");
}

#[test]
fn a_plan_of_another_graph_is_refused_and_nothing_is_written() {
    let folder = Folder::new("other");
    folder.works("plan @mlp-b256 --budget 100% --out plan.json");
    folder.fails("rewrite @unet-b8 plan.json --out new.json", 4, &["mlp-b256", "unet-b8"]);
    assert_eq!(folder.files(), ["plan.json"]);
}
