//! `rekindle max-batch` as a user meets it.

mod command;

use command::Folder;
use serde_json::Value;

/// A network whose activations are most of its memory, with the least that the planner does.
const SMALL: &str = "transformer-tiny --optimizer sgd --effort 0 --threads 1 --quiet";

fn bytes(value: &Value) -> u64 {
    value.as_u64().expect("a number of bytes")
}

#[test]
fn the_batch_that_is_named_trains_in_the_budget_and_the_plain_one_is_the_largest() {
    let folder = Folder::new("max-batch");
    let found = folder.rekindle(&format!("max-batch {SMALL} --budget 24MiB --json"));
    let found: Value = serde_json::from_str(&found.works()).expect("JSON and nothing else");
    let budget = bytes(&found["budget_bytes"]);
    let (plain, planned) = (&found["plain"], &found["planned"]);
    let (plain_batch, batch) = (bytes(&plain["batch"]), bytes(&planned["batch"]));
    assert!(plain_batch < batch, "{found:#}");
    assert!(bytes(&planned["arena_bytes"]) <= budget);
    assert!(bytes(&found["refused"]["batch"]) > batch, "{found:#}");

    let run = |arguments: &str| folder.rekindle(&format!("run {SMALL} --steps 1 {arguments}"));
    run(&format!("--plain --budget {budget} --batch-size {plain_batch}")).works();
    let next = plain_batch + 1;
    run(&format!("--plain --budget {budget} --batch-size {next}")).fails(3, &["plain step"]);
    let ran = run(&format!("--budget {budget} --batch-size {batch} --json")).works();
    let ran: Value = serde_json::from_str(&ran).expect("JSON");
    assert!(bytes(&ran["steps"][0]["measured_peak_bytes"]) <= budget);
}

#[test]
fn an_overhead_that_is_allowed_bounds_the_batch() {
    let folder = Folder::new("max-batch-overhead");
    let found =
        folder.rekindle(&format!("max-batch {SMALL} --budget 24MiB --max-overhead 0% --json"));
    let found: Value = serde_json::from_str(&found.works()).expect("JSON");
    assert_eq!(found["planned"]["predicted_overhead"].as_f64(), Some(0.0));
    let text = folder.rekindle(&format!("max-batch {SMALL} --budget 24MiB")).works();
    for word in ["plain", "planned", "a sample", "Batch", "no violation", "rekindle compare"] {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let folder = Folder::new("max-batch-refused");
    folder
        .rekindle(&format!("max-batch {SMALL} --budget 1MiB"))
        .fails(3, &["smallest arena known"]);
    folder.rekindle(&format!("max-batch {SMALL} --budget 50%")).fails(2, &["which batch size"]);
    folder
        .rekindle(&format!("max-batch {SMALL} --budget 1GiB --max-overhead 20"))
        .fails(2, &["20%"]);
    folder.rekindle("max-batch transformer-tinny --budget 1GiB").fails(2, &["transformer-tiny"]);
}
