//! `rekindle train` and `rekindle evaluate`: from data to weights, whatever happens in between.
#![cfg(unix)]

mod command;

use std::process::{Child, Stdio};

use command::{Folder, has};
use serde_json::Value;

/// A model that is quick on images of eight pixels.
const STEP: &str = "resnet20 --image-size 8 --batch-size 4 --data images --effort 0 --seed 3";

/// Writes images of two classes: bright on the left, bright on the right.
fn images(folder: &Folder, each: u32) {
    for (class, side) in [("left", 0), ("right", 4)] {
        std::fs::create_dir_all(folder.0.join("images").join(class)).expect("writable");
        for number in 0..each {
            let bright = |x: u32| x / 4 * 4 == side;
            let pixel = |x: u32, y: u32| {
                let noise = (x * 7 + y * 13 + number * 29) % 60;
                image::Luma([(if bright(x) { 190 } else { 0 } + noise) as u8])
            };
            let path = folder.0.join(format!("images/{class}/{number:03}.png"));
            image::GrayImage::from_fn(8, 8, pixel).save(path).expect("writable");
        }
    }
}

#[test]
fn images_become_weights_that_tell_them_apart() {
    let folder = Folder::new("train-images");
    images(&folder, 24);
    let line = format!(
        "train {STEP} --epochs 3 --validate 25% --out t.safetensors --learning-rate 0.003 --clip 5 \
         --schedule cosine --warmup 2 --label-smoothing 0.05 --csv m.csv --json-lines m.jsonl \
         --report=r --budget 90% --json"
    );
    let told = folder.json(&line);
    assert_eq!(told["updates"], 27);
    assert!(told["predicted_peak_bytes"].as_u64() <= told["plain_peak_bytes"].as_u64());
    let evaluations = told["evaluations"].as_array().expect("a list");
    assert_eq!(evaluations.len(), 3);
    let best = told["best_loss"].as_f64().expect("a number");
    assert!(best < 0.3, "{told:#}");
    // One line for each update and each evaluation; the first line names the columns.
    assert_eq!(folder.read("m.csv").lines().count(), 1 + 27 + 3);
    assert_eq!(folder.read("m.jsonl").lines().count(), 27 + 3);
    let line: Value =
        serde_json::from_str(folder.read("m.jsonl").lines().next().expect("a line")).expect("JSON");
    assert!(line["loss"].is_f64() && line["gradient_norm"].is_f64(), "{line}");
    has(&folder.read("r/index.html"), &["\"training\":[{\"updates\":[{\"update\":1.0"]);
    let found = folder.json(
        "evaluate resnet20 --image-size 8 --batch-size 5 --data images --weights t.safetensors \
         --json",
    );
    assert_eq!(found["rows"], 48);
    assert!(found["accuracy"].as_f64() > Some(0.95), "{found:#}");
}

/// A small network that PyTorch exported: it takes images of 16 pixels and tells two classes apart.
const EXPORTED: &[u8] = include_bytes!("../../onnx/tests/small.onnx");

#[test]
fn an_exported_file_trains_in_a_budget_and_is_exported_again() {
    let folder = Folder::new("train-onnx");
    images(&folder, 24);
    folder.write("model.onnx", EXPORTED);
    let data = "--data images --batch-size 6 --effort 0 --json";
    let line = format!(
        "train model.onnx {data} --epochs 8 --validate 25% --learning-rate 0.01 --seed 3 \
         --out o.safetensors --export o.onnx"
    );
    let plain = folder.json(&line);
    assert!(plain["best_loss"].as_f64() < Some(0.2), "{plain:#}");
    let file = |name: &str| std::fs::read(folder.0.join(name)).expect("written");
    let (weights, exported) = (file("o.safetensors"), file("o.onnx"));
    let bounded = folder.json(&format!("{line} --budget 192MiB"));
    assert!(bounded["highest_resident_bytes"].as_u64() <= Some(192 << 20), "{bounded:#}");
    assert_eq!(outcome(&bounded), outcome(&plain));
    assert!(file("o.safetensors") == weights && file("o.onnx") == exported, "other weights");
    // The weights in the old file and those of the new one are the same model.
    let evaluate = |model: &str, more: &str| {
        let line = format!("evaluate {model} --data images --batch-size 5 --json {more}");
        let found = folder.json(&line);
        ["loss", "accuracy", "rows"].map(|key| found[key].clone())
    };
    let by_file = evaluate("o.onnx", "");
    assert_eq!(evaluate("model.onnx", "--weights o.safetensors"), by_file);
    assert!(by_file[1].as_f64() > Some(0.95), "{by_file:?}");
    // What goes on from the exported file starts where it ended.
    let again = folder.json(&format!("train o.onnx {data} --updates 1 --validate 25% --seed 3"));
    assert!(again["best_loss"].as_f64() < Some(0.3), "{again:#}");
}

#[test]
fn numbers_are_learned_from_arrays() {
    let folder = Folder::new("train-mse");
    folder.write("model.onnx", EXPORTED);
    let header = |shape: &str, count: usize| {
        let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        let text = format!("{text:<117}\n");
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.reserve(count * 4);
        bytes
    };
    let samples = 14usize;
    let mut inputs = header("(14, 3, 16, 16)", samples * 768);
    let mut targets = header("(14, 2)", samples * 2);
    for sample in 0..samples {
        let level = sample as f32 / samples as f32;
        for at in 0..768 {
            inputs.extend((level * 2.0 - 1.0 + (at % 7) as f32 * 0.01).to_le_bytes());
        }
        targets.extend([level, 1.0 - level].into_iter().flat_map(f32::to_le_bytes));
    }
    std::fs::create_dir_all(folder.0.join("arrays")).expect("writable");
    folder.write("arrays/inputs.npy", inputs);
    folder.write("arrays/targets.npy", targets);
    let line = "train model.onnx --loss mse --data arrays --validate arrays --batch-size 4 \
                --epochs 60 --learning-rate 0.01 --effort 0 --json --csv m.csv --out o.safetensors";
    let told = folder.json(line);
    assert!(told["best_loss"].as_f64() < Some(0.02), "{told:#}");
    // Of the last batch two samples count, and the loss is the mean over what counts.
    let line = "evaluate model.onnx --loss mse --data arrays --weights o.safetensors --json";
    let [four, seven] = [4, 7].map(|batch| {
        folder.json(&format!("{line} --batch-size {batch}"))["loss"].as_f64().expect("a number")
    });
    assert!((four - seven).abs() < 1e-6, "{four} and {seven}");
    // A folder of images has no numbers to learn.
    images(&folder, 4);
    let line = "train model.onnx --loss mse --data images --batch-size 4";
    folder.fails(line, 5, &["targets.npy"]);
}

#[test]
fn a_damaged_or_foreign_file_says_what_is_wrong() {
    let folder = Folder::new("train-no-onnx");
    images(&folder, 4);
    folder.write("half.onnx", &EXPORTED[..EXPORTED.len() / 2]);
    folder.fails("train half.onnx --data images", 5, &["no complete ONNX file"]);
    folder.write("text.onnx", "no model at all");
    folder.fails("train text.onnx --data images", 5, &["no complete ONNX file"]);
    folder.fails("train gone.onnx --data images", 5, &["gone.onnx"]);
    folder.write("model.onnx", EXPORTED);
    folder.fails("train model.onnx --data images --loss next-token", 2, &["next-token"]);
    std::fs::create_dir_all(folder.0.join("images/third")).expect("writable");
    std::fs::copy(folder.0.join("images/left/000.png"), folder.0.join("images/third/1.png"))
        .expect("writable");
    folder.fails("train model.onnx --data images --batch-size 4", 2, &["3 classes", "tells 2"]);
}

/// What a run must have in common with another that is the same.
fn outcome(told: &Value) -> [Value; 4] {
    ["bits", "best_loss", "best_update", "updates"].map(|key| told[key].clone())
}

#[test]
fn neither_budget_nor_threads_change_a_bit() {
    let folder = Folder::new("train-budget");
    images(&folder, 8);
    // Larger than the others, so that there is something to recompute.
    let line = "train resnet20 --image-size 32 --batch-size 6 --data images --effort 0 --seed 3 \
                --epochs 2 --validate 25% --accumulate 2 --clip 0.5 --json";
    let plain = folder.json(&format!("{line} --threads 1 --out plain.safetensors"));
    for (budget, threads) in [("75%", 1), ("85%", 2)] {
        let line = format!("{line} --budget {budget} --threads {threads} --out o.safetensors");
        let planned = folder.json(&line);
        assert!(planned["planned"]["recomputed_runs"].as_u64() > Some(0), "{planned:#}");
        assert_eq!(outcome(&planned), outcome(&plain));
        let file = |name: &str| std::fs::read(folder.0.join(name)).expect("written");
        assert!(file("o.safetensors") == file("plain.safetensors"), "{budget}: other weights");
    }
}

/// Kills a run once its metrics have so many lines, as nothing can be prepared for.
fn kill_after(folder: &Folder, mut child: Child, lines: usize) {
    loop {
        let text = std::fs::read_to_string(folder.0.join("m.csv")).unwrap_or_default();
        let over = child.try_wait().expect("it can be asked");
        if text.lines().count() >= lines || over.is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().expect("it is ours");
    child.wait().expect("it ends");
}

#[test]
fn a_killed_run_goes_on_with_the_same_bits() {
    let folder = Folder::new("train-killed");
    images(&folder, 8);
    let line = format!(
        "train {STEP} --epochs 3 --validate 25% --accumulate 2 --schedule linear --flip --json"
    );
    let whole = folder.json(&format!("{line} --out whole.safetensors --csv whole.csv"));
    let files = "--out o.safetensors --csv m.csv --checkpoints run --checkpoint-every 1 --resume";
    let line = format!("{line} {files}");
    for lines in [2, 3, 5] {
        let mut command = folder.command(&line);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        kill_after(&folder, child.expect("it starts"), lines);
    }
    let resumed = folder.json(&line);
    assert_eq!(outcome(&resumed), outcome(&whole));
    let file = |name: &str| std::fs::read(folder.0.join(name)).expect("written");
    assert!(file("o.safetensors") == file("whole.safetensors"), "other weights");
    // Of the metrics everything but the time.
    let metrics = |name: &str| -> Vec<String> {
        let text = folder.read(name);
        let cells = text.lines().map(|line| line.split(',').map(String::from).collect());
        let without_time = |mut cells: Vec<String>| {
            cells.remove(2);
            cells.join(",")
        };
        cells.map(without_time).collect()
    };
    assert_eq!(metrics("m.csv"), metrics("whole.csv"));
    // Another recipe is another run.
    folder.fails(&format!("{line} --warmup 1"), 5, &["warm-up 0, not 1"]);
}

#[test]
fn bad_files_are_refused_or_skipped_and_named() {
    let folder = Folder::new("train-bad");
    images(&folder, 4);
    folder.write("images/left/broken.png", "no image");
    let line = format!("train {STEP} --out o.safetensors");
    folder.fails(&line, 5, &["images/left/broken.png"]);
    let ran = folder.rekindle(&format!("{line} --epochs 2 --bad-files skip --json"));
    has(&ran.err, &["skipped images/left/broken.png", "1 bad file"]);
    let told = command::json(&ran.works());
    assert_eq!(told["skipped_files"][0], "images/left/broken.png");
}

#[test]
fn adapters_train_in_less_and_are_merged_into_the_weights() {
    let folder = Folder::new("train-lora");
    let ids = (0..2000u32).flat_map(|i| ((i * i % 97) as u16).to_le_bytes());
    let ids: Vec<u8> = ids.collect();
    folder.write("tokens.bin", ids);
    let step = "gpt2-tiny --sequence 16 --batch-size 4 --data tokens.bin";
    let line = format!("train {step} --updates 12 --learning-rate 0.01 --validate 20% --json");
    let whole = folder.json(&format!("{line} --out base.safetensors"));
    let line = format!("{line} --weights base.safetensors --lora 4 --out lora.safetensors");
    let told = folder.json(&format!("{line} --lora-weights *attn*.weight,*mlp*.weight"));
    assert!(told["plain_peak_bytes"].as_u64() < whole["plain_peak_bytes"].as_u64());
    let best = told["best_loss"].as_f64().expect("a number");
    assert!(best < whole["best_loss"].as_f64().expect("a number"), "it went on learning");
    // The merged weights are a plain model's, and as good.
    let [before, after] = ["base", "lora"].map(|file| {
        let line = format!("evaluate {step} --weights {file}.safetensors --json");
        folder.json(&line)["loss"].as_f64().expect("a number")
    });
    assert!(after < before, "{after} and {before}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let folder = Folder::new("train-refused");
    images(&folder, 4);
    folder.fails(&format!("train {STEP} --learning-rate=-1"), 2, &["learning rate"]);
    folder.fails(&format!("train {STEP} --clip 0"), 2, &["norm"]);
    folder.fails(&format!("train {STEP} --accumulate 9"), 2, &["8 samples", "36"]);
    folder.fails(&format!("train {STEP} --budget 100MiB"), 2, &["--data-memory"]);
    folder.fails(&format!("train {STEP} --patience 1"), 2, &["--validate"]);
    folder.fails("train resnet20 --data nowhere", 5, &["nowhere"]);
    folder.fails("train gpt2-tiny --data images", 5, &[".txt"]);
    folder.fails("train bert-tiny --data images", 2, &["rekindle run"]);
    folder.fails("evaluate resnet20 --data images --weights nowhere", 5, &["nowhere"]);
    folder.write("images.txt", "some text");
    folder.fails("train gpt2-tiny --data images.txt", 2, &["tokenizer.json"]);
}

/// The whole process, data and all, within the budget that was given in bytes.
#[cfg(target_os = "linux")]
#[test]
fn the_process_stays_within_its_budget() {
    let folder = Folder::new("train-resident");
    images(&folder, 8);
    let line = format!("train {STEP} --batch-size 8 --image-size 32 --validate 25% --json");
    let line = line.replace("--batch-size 4 ", "").replace("--image-size 8 ", "");
    let plain = folder.json(&line);
    let arena = plain["plain_peak_bytes"].as_u64().expect("a number") * 8 / 10;
    let budget = arena + (128 << 20);
    let told = folder.json(&format!("{line} --budget {budget}"));
    assert!(told["planned"]["recomputed_runs"].as_u64() > Some(0), "{told:#}");
    assert!(told["arena_bytes"].as_u64() <= Some(arena), "{told:#}");
    assert!(told["highest_resident_bytes"].as_u64() <= Some(budget), "{told:#}");
    assert_eq!(outcome(&told), outcome(&plain));
}
