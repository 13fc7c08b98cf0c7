//! `rekindle max-batch` as a user meets it.

mod command;

use command::{Folder, has, json};
use serde_json::Value;

/// A network whose activations are most of its memory, with the least that the planner does.
const SMALL: &str = "transformer-tiny --optimizer sgd --effort 0 --threads 1 --quiet";

fn bytes(value: &Value) -> u64 {
    value.as_u64().expect("a number of bytes")
}

#[test]
fn the_batch_that_is_named_trains_in_the_budget_and_the_plain_one_is_the_largest() {
    let folder = Folder::new("max-batch");
    let found = folder.json(&format!("max-batch {SMALL} --budget 24MiB --json"));
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
    let ran = json(&ran);
    assert!(bytes(&ran["steps"][0]["measured_peak_bytes"]) <= budget);
}

#[test]
fn an_overhead_that_is_allowed_bounds_the_batch() {
    let folder = Folder::new("max-batch-overhead");
    let found = folder.json(&format!("max-batch {SMALL} --budget 24MiB --max-overhead 0% --json"));
    assert_eq!(found["planned"]["predicted_overhead"].as_f64(), Some(0.0));
    let text = folder.works(&format!("max-batch {SMALL} --budget 24MiB"));
    has(&text, &["plain", "planned", "a sample", "Batch", "no violation", "rekindle compare"]);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let folder = Folder::new("max-batch-refused");
    folder.fails(&format!("max-batch {SMALL} --budget 1MiB"), 3, &["smallest arena known"]);
    folder.fails(&format!("max-batch {SMALL} --budget 50%"), 2, &["which batch size"]);
    folder.fails(&format!("max-batch {SMALL} --budget 1GiB --max-overhead 20"), 2, &["20%"]);
    folder.fails("max-batch transformer-tinny --budget 1GiB", 2, &["transformer-tiny"]);
}
