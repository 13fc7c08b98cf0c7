//! Training whose parameters and state live in a store between steps: the same files as without.

use std::path::PathBuf;

use rekindle::{Trainer, plain, set_up};
use rekindle_engine::Layout;
use rekindle_graph::{Bytes, Micros, Rate, Store};
use rekindle_models::{Model, ModelOptions, build};
use rekindle_program::Optimizer;
use rekindle_rewrite::rewrite;
use rekindle_soak::moves_within;

const THREADS: usize = 2;
const SEED: u64 = 3;

fn model(name: &str) -> Model {
    let optimizer = Some(Optimizer::adam(0.01));
    let options =
        ModelOptions { batch: 2, image_size: 32, sequence: 16, optimizer, ..Default::default() };
    build(name, &options).expect("the model builds")
}

/// A step that moves what it must to stay within a part of the plain one's peak.
fn moving(model: &Model, plain: &Layout, percent: u64) -> Layout {
    let rate = Rate(1000.0);
    let store =
        Store { out_rate: rate, in_rate: rate, latency: Micros(1.0), duplex: true, limit: None };
    let budget = Bytes(plain.predicted().live.get() / 100 * percent);
    let plan = moves_within(plain.graph(), budget, store).expect("every node fits");
    let rewritten = rewrite(plain.graph(), &plan).expect("a valid plan");
    let origins = rewritten.origins();
    Layout::new(&model.program, rewritten.graph.clone(), origins, THREADS).expect("it is the same")
}

fn trainer<'m>(model: &'m Model, layout: &Layout) -> Trainer<'m> {
    let folder = std::env::temp_dir();
    let engine = set_up(layout, SEED, Some(&folder), &mut |_| {}).expect("it can be set up");
    Trainer::new(model, engine, SEED).expect("the store is there")
}

/// A folder of one test alone.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("rekindle-{name}-{}", std::process::id()));
    std::fs::create_dir(&path).expect("a fresh folder");
    path
}

#[test]
fn weights_and_checkpoints_are_the_same_files_wherever_the_tensors_live() {
    for (name, percent) in [("gpt2-tiny", 60), ("resnet18", 60)] {
        let model = model(name);
        let plain = plain(&model, THREADS);
        let moving = moving(&model, &plain, percent);
        assert!(moving.store_bytes() > Bytes::ZERO);
        let folder = folder(name);
        let file = |name: &str| folder.join(name);
        let read = |name: &str| std::fs::read(file(name)).expect("it was written");
        let run = |layout: &Layout, word: &str| {
            let mut trainer = trainer(&model, layout);
            let losses = [(); 2].map(|()| trainer.step().expect("it runs").loss.to_bits());
            trainer.save_weights(&file(&format!("{word}.weights"))).expect("room");
            trainer.save_checkpoint(&file(&format!("{word}.checkpoint"))).expect("room");
            losses
        };
        assert_eq!(run(&plain, "plain"), run(&moving, "moving"), "{name}");
        assert!(read("plain.weights") == read("moving.weights"), "{name}");
        assert!(read("plain.checkpoint") == read("moving.checkpoint"), "{name}");
        // And what was written by one goes on in the other.
        let go_on = |layout: &Layout, word: &str| {
            let mut trainer = trainer(&model, layout);
            trainer.load_weights(&file("plain.weights")).expect("its own weights");
            trainer.save_weights(&file("again")).expect("room");
            assert!(read("again") == read("plain.weights"), "{name}, {word}");
            trainer.resume(&file("plain.checkpoint")).expect("its own checkpoint");
            trainer.step().expect("it runs").loss.to_bits()
        };
        assert_eq!(go_on(&plain, "plain"), go_on(&moving, "moving"), "{name}");
        std::fs::remove_dir_all(&folder).expect("it can go");
    }
}
