//! The files: exact headers, round trips, other programs' files, and bad input.

mod toy;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use rekindle_analysis::{
    Analysis, Kind, Measurements, Profile, ProfilePaths, Seconds, TableError, check_tables,
    node_peaks, read_activation_stats, read_node_stats, read_profile, write_profile,
};
use rekindle_graph::Bytes;
use toy::perceptron;

/// A fresh folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("an old folder can go");
    }
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

/// The perceptron's profile with awkward numbers in it.
fn profile() -> Profile {
    let mut graph = perceptron();
    let times: Vec<_> =
        (0..graph.nodes().len()).map(|i| rekindle_graph::Micros(0.1 + i as f64 / 3.0)).collect();
    graph = graph.with_times(&times).expect("as many times as nodes");
    let activations = Analysis::new(&graph).activations.len();
    let swap_times: Vec<_> =
        (0..activations).map(|i| (i != 1).then_some(Seconds(1e-7 * i as f64 / 7.0))).collect();
    let measured = Measurements {
        device: "cpu, 2 threads",
        peak_mem: &node_peaks(&graph),
        swap_times: &swap_times,
    };
    let mut profile = Profile::new("perceptron", 4, &graph, &measured);
    profile.nodes[7].name = "a \"quoted\" name, with a comma".into();
    profile.nodes[8].name = "=HYPERLINK(1)".into();
    profile.activations[1].name = "'@cell".into();
    profile.activations[0].recompute_ratio = Some(f64::INFINITY);
    profile.activations[1].recomp_time = None;
    profile.activations[1].recomp_memory = None;
    profile.activations[1].recompute_ratio = None;
    profile.activations[2].last_forward = None;
    profile
}

#[test]
fn a_profile_reads_back_equal() {
    let (folder, graph, profile) = (folder("round-trip"), perceptron(), profile());
    write_profile(&folder, &profile, &graph).expect("the folder is there");
    let read = read_profile(&folder, "perceptron", 4).expect("just written");
    assert_eq!(read, (profile, graph));
    let left: Vec<_> = std::fs::read_dir(&folder).expect("it is there").collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn headers_and_names_are_exactly_those_of_the_format() {
    let (folder, profile) = (folder("headers"), profile());
    let paths = write_profile(&folder, &profile, &perceptron()).expect("the folder is there");
    assert_eq!(paths, ProfilePaths::new(&folder, "perceptron", 4));
    let file = |path: &Path| path.file_name().expect("a file").to_owned();
    assert_eq!(file(&paths.nodes), "profiler_stats_perceptron_bs4_node_stats.csv");
    assert_eq!(file(&paths.activations), "profiler_stats_perceptron_bs4_activation_stats.csv");
    assert_eq!(file(&paths.graph), "perceptron_bs4.graph.json");
    let lines = |path: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(path).expect("just written");
        text.lines().map(str::to_owned).collect()
    };
    let nodes = lines(&paths.nodes);
    assert_eq!(
        nodes[0],
        "rank,node_name,node_type,gtype,median_run_time_s,median_peak_mem_bytes,\
         median_active_mem_bytes,device"
    );
    assert_eq!(nodes[1], "0,x,input,input,0,132,132,\"cpu, 2 threads\"");
    let activations = lines(&paths.activations);
    assert_eq!(
        activations[0],
        "activation_name,node_type,creation_rank,last_fw_use_rank,first_bw_use_rank,\
         last_bw_use_rank,median_mem_size_bytes,inactive_time_s,avg_swap_time_s,recomp_time_s,\
         recomp_memory_bytes,recompute_ratio"
    );
    assert!(activations[1].starts_with("shift,activation,8,9,15,15,100,"));
    assert!(activations[1].ends_with(",200,inf"), "{}", activations[1]);
    assert!(activations[2].ends_with(",,,,"), "{}", activations[2]);
    assert!(activations[3].starts_with("fc2,activation,10,-1,12,12,40,"));
}

/// The folder of profiles measured on a GPU, where it stands beside the project.
fn gpu_profiles() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/gpu-profiles");
    let found = folder.is_dir().then_some(folder);
    if found.is_none() {
        // Not by a macro, whose output the test runner keeps to itself.
        let line = b"NOT RUN: the reading of GPU profiles, which are not in \
                     ../shared/gpu-profiles\n";
        std::io::stderr().write_all(line).expect("written");
    }
    found
}

#[test]
fn profiles_of_another_program_read_too() {
    let Some(folder) = gpu_profiles() else { return };
    for (model, batch_size, nodes, activations) in
        [("resnet", 32, 18_493, 775), ("transformer", 64, 3_663, 150)]
    {
        let paths = ProfilePaths::new(&folder, model, batch_size);
        let node_table = read_node_stats(&paths.nodes).expect("a node table");
        assert_eq!(node_table.rows.len(), nodes, "{model}");
        assert!(node_table.missing.is_empty(), "{model}");
        assert_eq!(node_table.rows[0].kind, Kind::Parameter);
        assert!(node_table.rows.iter().any(|n| n.phase.is_none()));
        let table = read_activation_stats(&paths.activations).expect("an activation table");
        assert_eq!(table.rows.len(), activations, "{model}");
        assert_eq!(table.missing, ["avg_swap_time_s", "recompute_ratio"], "{model}");
        assert_eq!(table.rows[1].last_forward, None);
        assert!(table.rows.iter().all(|a| a.recomp_time.is_some() && a.swap_time.is_none()));
        check_tables(&paths.nodes, &node_table.rows, &paths.activations, &table.rows)
            .expect("they can be true");
    }
}

/// What reading `text` as an activation table complains about.
#[track_caller]
fn check_complaint(name: &str, text: &str, expected: &str) {
    let path = folder(name).join("stats.csv");
    std::fs::write(&path, text).expect("the folder is there");
    let error = read_activation_stats(&path).expect_err("it is not a table of activations");
    let message = error.to_string();
    assert!(message.contains(expected), "{message}");
}

const HEADER: &str = "activation_name,node_type,creation_rank,last_fw_use_rank,first_bw_use_rank,\
                      last_bw_use_rank,median_mem_size_bytes,recomp_time_s\n";

#[test]
fn bad_cells_are_named_with_line_and_column() {
    let row = |text: &str| format!("{HEADER}a,activation,1,2,3,4,5,0.5\n{text}\n");
    let check =
        |name: &str, text: &str, expected: &str| check_complaint(name, &row(text), expected);
    check("size", "b,activation,1,2,3,4,-5,0.5", "line 3: `median_mem_size_bytes` is \"-5\"");
    check("rank", "b,activation,1,-2,3,4,5,0.5", "`last_fw_use_rank` is \"-2\"");
    check("time", "b,activation,1,2,3,4,5,NaN", "`recomp_time_s` is \"NaN\"");
    check("negative", "b,activation,1,2,3,4,5,-1", "`recomp_time_s` is \"-1\"");
    check("kind", "b,activity,1,2,3,4,5,1", "`node_type` is \"activity\"");
    check("name", ",activation,1,2,3,4,5,1", "`activation_name` is \"\"");
    check("short", "b,activation,1", "fields");
}

#[test]
fn a_file_of_another_kind_is_refused() {
    check_complaint("empty", "", "no column `activation_name`");
    check_complaint("other", "a,b\n1,2\n", "no column `activation_name`");
    let half = "activation_name,node_type\na,activation\n";
    check_complaint("half", half, "no column `creation_rank`");
    let missing = read_node_stats(Path::new("no/such/file.csv"));
    assert!(matches!(missing, Err(TableError::File(_))));
}

#[test]
fn columns_in_another_order_and_unknown_columns_are_fine() {
    let path = folder("order").join("stats.csv");
    let text = "colour,median_mem_size_bytes,creation_rank,last_fw_use_rank,first_bw_use_rank,\
                last_bw_use_rank,node_type,activation_name\nred,5,1,-1,3,4,activation,a\n";
    std::fs::write(&path, text).expect("the folder is there");
    let table = read_activation_stats(&path).expect("all that is needed is there");
    assert_eq!(table.rows[0].memory_size, Bytes(5));
    assert_eq!(table.rows[0].first_backward, Some(3));
    assert_eq!(table.missing.len(), 5, "{:?}", table.missing);
}
