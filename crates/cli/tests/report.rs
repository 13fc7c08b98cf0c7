//! `rekindle report` as a user meets it: what is there is shown, what is not is named with the
//! command that makes it.

mod command;

use command::{Folder, has};
use serde_json::Value;

/// The data inside a page.
fn data(html: &str) -> Value {
    let begin = "<script type=\"application/json\" id=\"data\">";
    let rest = html.split_once(begin).expect("the data are there").1;
    let text = rest.split_once("</script>").expect("they end").0;
    serde_json::from_str(text).expect("they are JSON")
}

fn missing(page: &Value) -> Vec<&str> {
    let all = page["missing"].as_array().expect("a list").iter();
    all.map(|m| m["section"].as_str().expect("a name")).collect()
}

const STEM: &str = "transformer-tiny_bs4";

fn profiled(name: &str) -> Folder {
    let folder = Folder::new(name);
    let line = "profile transformer-tiny --batch-size 4 --optimizer sgd --warmup 0 --measured 1 \
                --no-pictures --out .";
    folder.works(line);
    folder
}

#[test]
fn what_is_missing_is_named_and_its_command_makes_it() {
    let folder = profiled("missing");
    let said = folder.works("report .");
    assert!(said.contains("wrote ./index.html"), "{said}");
    let page = data(&folder.read("index.html"));
    assert_eq!(missing(&page), ["memory", "activations", "frontier", "batches"]);
    // The lines say what to type; typed with less work, they make the rest.
    let plan = format!("plan ./{STEM}.graph.json --budget 50% --out ./{STEM}.plan.json");
    let frontier = format!("frontier ./{STEM}.graph.json --out ./{STEM}.frontier.csv");
    let compare = "compare transformer-tiny --optimizer sgd --batch-sizes 4,8 --check --csv \
                   ./transformer-tiny.compare.csv";
    for line in [&plan, &frontier, compare] {
        assert!(said.contains(&format!("rekindle {line}")), "{line} is not in {said}");
    }
    let plan = plan.replace("50%", "70% --effort 0");
    folder.works(&plan);
    folder.works(&(frontier + " --points 3 --effort 0"));
    let compare = format!("{compare} --budget 70% --steps 1 --effort 0");
    folder.works(&compare);
    assert_eq!(folder.works("report ."), "wrote ./index.html\n");
    let page = data(&folder.read("index.html"));
    assert!(missing(&page).is_empty());
    let step = &page["steps"][0];
    assert_eq!(step["name"], "transformer-tiny, batch 4");
    assert_eq!(step["schedules"].as_array().map(Vec::len), Some(2));
    let [plain, planned] = [0, 1].map(|i| step["schedules"][i]["peak"].as_u64().expect("bytes"));
    assert!(10 * planned <= 7 * plain, "{planned} of {plain}");
    assert_eq!(step["beside"].as_array().map(Vec::len), Some(2));
    let activations = step["activations"].as_array().map(Vec::len);
    let decisions = step["schedules"][1]["decisions"].as_array().map(Vec::len);
    assert_eq!(activations, decisions);
    assert_eq!(page["comparisons"][1]["bit_equal"], true);
}

#[test]
fn tables_without_a_graph_are_a_step_too() {
    let folder = profiled("tables");
    std::fs::remove_file(folder.0.join(format!("{STEM}.graph.json"))).expect("it was there");
    let said = folder.works("report . --out page.html");
    let profile = "rekindle profile transformer-tiny --optimizer sgd --batch-size 4 --out .";
    assert!(said.contains(profile), "{said}");
    let page = data(&folder.read("page.html"));
    assert_eq!(missing(&page), ["memory", "batches"]);
    assert!(page["steps"][0]["nodes"].as_array().is_some_and(|n| n.len() > 50));
    assert_eq!(page["steps"][0]["schedules"], Value::Array(Vec::new()));
}

#[test]
fn a_plan_of_another_step_is_not_shown() {
    let folder = profiled("other");
    folder.works("plan @mlp-b256 --budget 100% --effort 0 --out mlp.plan.json");
    folder.works("report .");
    let page = data(&folder.read("index.html"));
    assert_eq!(page["steps"][0]["schedules"].as_array().map(Vec::len), Some(1));
}

#[test]
fn only_commands_that_can_work_are_suggested() {
    let folder = Folder::new("can work");
    // One that we have no model of, and one that came from elsewhere.
    for name in ["unet-b8", "mlp-b256"] {
        folder.write(&format!("{name}.json"), command::corpus(name));
    }
    let said = folder.works("report .");
    // Of the one, nothing can be won; half of the other is enough.
    for line in ["./unet-b8.json --budget 50%", "./mlp-b256.json --budget 100%"] {
        assert!(said.contains(&format!("rekindle plan {line}")), "{said}");
        folder.works(&format!("plan {line} --effort 0"));
    }
    for word in ["rekindle compare", "rekindle profile"] {
        assert!(!said.contains(word), "{said}");
    }
    assert!(said.contains("no comparison of unet"), "{said}");
    let told = folder.json("report . --json");
    let all = told["missing"].as_array().expect("a list").iter();
    for lacking in all {
        let is_comparison = lacking["section"] == "batches";
        assert_eq!(lacking["command"].is_null(), is_comparison, "{lacking}");
    }
    let whole = folder.0.display();
    let mut command = folder.command("report");
    let said = command::Ran::of(command.arg(&folder.0)).works();
    assert!(said.contains(&format!("rekindle plan '{whole}/unet-b8.json'")), "{said}");
}

#[test]
fn any_name_of_a_graph_gives_harmless_files() {
    let folder = Folder::new("names");
    let graph = command::corpus("mlp-b256");
    let long = "x".repeat(400);
    for (name, stem) in [
        ("../../up", "______up"),
        ("a/b:c-b4", "a_b_c_bs4"),
        ("", "step"),
        (long.as_str(), &long[..50]),
    ] {
        let named = graph.replacen("mlp-b256", name, 1);
        folder.write("g.json", named);
        folder.works("plan g.json --budget 100% --effort 0 --report=r");
        let written = folder.0.join(format!("r/{stem}.plan.json"));
        assert!(written.is_file(), "{name:?}: no {}", written.display());
    }
    assert_eq!(folder.files(), ["g.json", "r"]);
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_folder_is_left_alone() {
    let folder = profiled("pipe");
    folder.make_fifo("a.json");
    folder.make_fifo("b.csv");
    folder.works("report .");
}

#[test]
fn folders_and_files_of_no_use_are_errors() {
    let folder = Folder::new("nothing");
    folder.fails("report .", 2, &["rekindle profile"]);
    folder.fails("report gone", 5, &["gone"]);
    let broken = "budget_bytes,peak_bytes,time_us,overhead_percent,recomputed_runs,lower_bound_us,\
                  gap_percent\nx,1,1,1,1,1,1\n";
    folder.write("f.csv", broken);
    folder.fails("report .", 5, &["f.csv", "line: 2"]);
    folder.write("f.csv", "");
    folder.write("g.json", "{\"format\": \"remat.graph/1\"}");
    folder.fails("report .", 5, &["g.json"]);
}

#[test]
fn verbs_add_to_a_report() {
    let folder = Folder::new("added");
    let step = "transformer-tiny --optimizer sgd";
    let graph = format!("out/{STEM}.graph.json");
    for line in [
        format!(
            "profile {step} --batch-size 4 --warmup 0 --measured 1 --no-pictures --out out \
             --report=r"
        ),
        format!("plan {graph} --budget 70% --effort 0 --report=r"),
        format!("frontier {graph} --points 3 --effort 0 --report=r"),
        format!("compare {step} --batch-sizes 4 --budget 70% --steps 1 --effort 0 --report=r"),
    ] {
        let ran = folder.rekindle(&line);
        let (code, said) = (ran.code, ran.err);
        assert_eq!(code, 0, "{line}: {said}");
        assert!(said.contains("wrote r/index.html"), "{line}: {said}");
    }
    let page = data(&folder.read("r/index.html"));
    assert!(missing(&page).is_empty(), "{}", page["missing"]);
    assert_eq!(page["comparisons"].as_array().map(Vec::len), Some(1));
    // Without a folder's name it is the usual one, and a run adds its plan.
    let run = format!("run {step} --batch-size 4 --budget 70% --effort 0 --steps 1");
    folder.works(&format!("{run} --report"));
    let page = data(&folder.read("rekindle-report/index.html"));
    let schedules = page["steps"][0]["schedules"].as_array().map(Vec::len);
    assert_eq!(schedules, Some(2));
    folder.fails(&format!("{run} --report=out/{STEM}.graph.json"), 5, &["cannot make the folder"]);
}

#[test]
fn a_report_is_told_as_json() {
    let folder = profiled("told");
    let told = folder.json("report . --json");
    assert_eq!(told["report"], "./index.html");
    assert_eq!(told["steps"].as_array().map(Vec::len), Some(1));
    assert_eq!(missing(&told), missing(&data(&folder.read("index.html"))));
}

#[test]
fn a_small_demonstration_ends_in_a_report_that_lacks_nothing() {
    let folder = Folder::new("demo");
    let said = folder.works("demo --small --quiet");
    has(&said, &["plan", "verify", "frontier", "check", "planned peak", "index.html"]);
    assert!(
        said.lines().all(|line| line.chars().count() <= 80 || line.contains("index.html")),
        "{said}"
    );
    let page = data(&folder.read("rekindle-report/index.html"));
    assert!(missing(&page).is_empty(), "{}", page["missing"]);
    let told = folder.json("demo --small --json --quiet");
    let rows = told["compared"].as_array().expect("a list");
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row["measured_peak_bytes"], row["predicted_peak_bytes"]);
        assert!(row["measured_peak_bytes"].as_u64() <= row["budget_bytes"].as_u64());
    }
}
