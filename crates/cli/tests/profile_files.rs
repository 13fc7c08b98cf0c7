//! `rekindle plan` from the profiler's two files, without a graph.

mod command;

use command::{Folder, json};

const NODES: &str = "rank,node_name,node_type,gtype,median_run_time_s,median_peak_mem_bytes,\
                     median_active_mem_bytes,device
0,a,activation,forward,0.001,110,110,cpu
1,b,activation,forward,0.001,116,116,cpu
2,c,activation,forward,0.001,120,120,cpu
3,c_back,gradient,backward,0.001,120,120,cpu
4,b_back,gradient,backward,0.001,116,116,cpu
5,a_back,gradient,backward,0.001,110,110,cpu
";
const ACTIVATIONS: &str = "activation_name,node_type,creation_rank,last_fw_use_rank,\
                           first_bw_use_rank,last_bw_use_rank,median_mem_size_bytes,\
                           inactive_time_s,recomp_time_s,recomp_memory_bytes
a,activation,0,1,5,5,10,0.003,0.004,10
b,activation,1,2,4,4,6,0.001,0.001,6
c,activation,2,-1,3,3,4,0,0.001,4
";

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("nodes.csv", NODES);
    folder.write("acts.csv", ACTIVATIONS);
    folder
}

const FILES: &str = "plan --node-stats nodes.csv --activation-stats acts.csv";

#[test]
fn decisions_come_from_the_tables_alone() {
    let folder = folder("tables");
    // Ratios: a 2500, b 6000, c 4000 bytes per second. b frees rank 3, c nothing, a ranks 2 to 4:
    // with all three the peak is 116, at rank 1.
    let ran = folder.rekindle(&format!("{FILES} --budget 116 --decisions d.csv --json"));
    assert!(ran.err.contains("level of activations"), "{}", ran.err);
    assert!(ran.err.contains("avg_swap_time_s"), "{}", ran.err);
    let said = json(&ran.works());
    assert_eq!(said["plain_peak_bytes"], 120);
    assert_eq!(said["peak_bytes"], 116);
    assert_eq!(said["recomputed"]["activations"], 3);
    let csv = folder.read("d.csv");
    assert_eq!(csv.lines().nth(1), Some("a,RECOMPUTE,10,0.004,0,5"), "{csv}");
}

#[test]
fn what_cannot_be_met_or_makes_no_sense_is_an_error() {
    let folder = folder("refused");
    folder.fails(&format!("{FILES} --budget 100 --decisions d.csv"), 3, &["lowest peak", "116"]);
    folder.fails(&format!("{FILES} --budget 116 --swap"), 2, &["avg_swap_time_s"]);
    folder.fails(&format!("{FILES} --budget 116 --out plan.json"), 2, &["--out"]);
    for (flag, word) in [
        ("--strategy sqrt", "sqrt needs a graph"),
        ("--report", "a report needs a graph"),
        ("--verbose", "needs a graph"),
        ("--decisions acts.csv", "named twice"),
    ] {
        folder.fails(&format!("{FILES} --budget 116 {flag}"), 2, &[word]);
    }
    folder.works(&format!("{FILES} --budget 116 --strategy mutwo --effort 3"));
    folder.fails("plan --node-stats nodes.csv --budget 1", 2, &["--activation-stats"]);
    let line = "plan --node-stats acts.csv --activation-stats acts.csv --budget 1";
    folder.fails(line, 5, &["acts.csv"]);
    assert_eq!(folder.files(), ["acts.csv", "nodes.csv"]);
}

#[test]
fn tables_that_contradict_themselves_are_refused_with_file_and_row() {
    let folder = folder("contradictions");
    let check = |file: &str, from: &str, to: &str, words: &[&str]| {
        let text = if file == "nodes.csv" { NODES } else { ACTIVATIONS };
        assert!(text.contains(from), "{from}");
        folder.write(file, text.replacen(from, to, 1));
        let ran = folder.rekindle(&format!("{FILES} --budget 116 --decisions d.csv"));
        ran.fails(5, words);
        folder.write(file, text);
    };
    let row = "2,c,activation,forward,0.001,120,120,cpu\n";
    check("nodes.csv", row, "", &["nodes.csv: row 5 (a_back)", "another rank is missing"]);
    check("nodes.csv", row, &row.repeat(2), &["row 4 (c)", "also that of row 3"]);
    check("nodes.csv", "120,120,cpu", "120,121,cpu", &["row 3 (c)", "more than the peak"]);
    check("acts.csv", "2,4,4,6,", "2,4,4,1000000000000,", &["acts.csv: row 2 (b)", "live"]);
    check("acts.csv", "b,activation,1,2,4", "b,activation,1,2,1", &["row 2 (b)", "first_bw"]);
    let row = "c,activation,2,-1,3,3,4,0,0.001,4\n";
    check("acts.csv", row, &row.repeat(2), &["row 4 (c)", "row 3"]);
    assert_eq!(folder.files(), ["acts.csv", "nodes.csv"]);
}

#[test]
fn a_name_that_looks_like_a_formula_stays_text() {
    let folder = folder("formula");
    for (file, text) in [("nodes.csv", NODES), ("acts.csv", ACTIVATIONS)] {
        let text = text.replace("\na,", "\n=1+1,").replace("0,a,", "0,=1+1,");
        folder.write(file, text);
    }
    folder.works(&format!("{FILES} --budget 116 --decisions d.csv"));
    assert!(folder.read("d.csv").contains("\n'=1+1,RECOMPUTE,"));
}
