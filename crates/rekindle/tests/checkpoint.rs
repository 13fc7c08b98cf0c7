//! A run that goes on from its checkpoint is the run that never stopped.

use std::path::PathBuf;

use rekindle::{Error, Trainer, check_checkpoint};
use rekindle_engine::Engine;
use rekindle_models::{Model, ModelOptions, build};
use rekindle_program::Optimizer;

const SEED: u64 = 3;

fn model(name: &str, batch: usize) -> Model {
    model_with(name, batch, Optimizer::adam(1e-3))
}

fn model_with(name: &str, batch: usize, optimizer: Optimizer) -> Model {
    let options = ModelOptions {
        batch,
        image_size: 32,
        sequence: 16,
        optimizer: Some(optimizer),
        ..ModelOptions::default()
    };
    build(name, &options).expect("the model builds")
}

fn trainer(model: &Model, seed: u64) -> Trainer<'_> {
    let engine = Engine::new(&model.program, 2).expect("it is small");
    Trainer::new(model, engine, seed).unwrap()
}

fn losses(trainer: &mut Trainer<'_>, steps: usize) -> Vec<u32> {
    let step = |_| trainer.step().expect("a step").loss.to_bits();
    (0..steps).map(step).collect()
}

/// A file name that disappears with the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        let name = format!("rekindle-{}-{name}.safetensors", std::process::id());
        Temporary(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_resumed_run_has_the_losses_of_one_that_never_stopped() {
    let model = model("resnet18", 2);
    let file = Temporary::new("resume");
    let whole = losses(&mut trainer(&model, SEED), 4);
    let mut first = trainer(&model, SEED);
    assert_eq!(losses(&mut first, 2), whole[..2]);
    first.save_checkpoint(&file.0).expect("written");
    drop(first);
    let mut second = trainer(&model, SEED);
    second.resume(&file.0).expect("read");
    assert_eq!(second.steps_done(), 2);
    assert_eq!(losses(&mut second, 2), whole[2..]);
}

#[test]
fn a_checkpoint_of_another_run_is_refused_and_changes_nothing() {
    let model = model("transformer-tiny", 2);
    let file = Temporary::new("refuse");
    let mut first = trainer(&model, SEED);
    losses(&mut first, 1);
    first.save_checkpoint(&file.0).expect("written");

    let mut other_seed = trainer(&model, SEED + 1);
    let refused = other_seed.resume(&file.0);
    assert!(matches!(refused, Err(Error::OtherRun { .. })), "{refused:?}");
    let expected = losses(&mut trainer(&model, SEED + 1), 1);
    assert_eq!(losses(&mut other_seed, 1), expected);

    let larger = self::model("transformer-tiny", 3);
    let refused = trainer(&larger, SEED).resume(&file.0);
    assert!(matches!(refused, Err(Error::OtherRun { .. })), "{refused:?}");
}

#[test]
fn a_run_goes_on_with_another_learning_rate_and_not_with_another_optimizer() {
    let model = |optimizer| model_with("transformer-tiny", 2, optimizer);
    let file = Temporary::new("optimizer");
    let first = model(Optimizer::adam(1e-3));
    let mut first = trainer(&first, SEED);
    losses(&mut first, 1);
    first.save_checkpoint(&file.0).expect("written");
    let slower = model(Optimizer::adam(1e-4));
    trainer(&slower, SEED).resume(&file.0).expect("read");
    // AdamW has the very same state.
    for other in [Optimizer::adamw(1e-3), Optimizer::sgd(1e-3)] {
        let refused = trainer(&model(other), SEED).resume(&file.0);
        let message = refused.expect_err("another optimizer").to_string();
        assert!(message.contains("with adam and seed 3"), "{message}");
    }
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let model = model("transformer-tiny", 2);
    let file = Temporary::new("damage");
    trainer(&model, SEED).save_checkpoint(&file.0).expect("written");
    let whole = std::fs::read(&file.0).expect("it is there");
    for kept in [0, 7, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file.0, &whole[..kept]).expect("written");
        let refused = trainer(&model, SEED).resume(&file.0);
        assert!(matches!(refused, Err(Error::Checkpoint { .. })), "{kept} bytes: {refused:?}");
        let message = refused.expect_err("damaged").to_string();
        assert!(message.contains("it is damaged"), "{kept} bytes: {message}");
    }
}

/// One flipped bit is noticed wherever it is, before anything is changed.
#[test]
fn a_flipped_bit_is_noticed() {
    let model = model_with("transformer-tiny", 2, Optimizer::sgd(1e-3));
    let file = Temporary::new("flip");
    let mut first = trainer(&model, SEED);
    losses(&mut first, 1);
    first.save_checkpoint(&file.0).expect("written");
    let whole = std::fs::read(&file.0).expect("it is there");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight")) as usize;
    let values = (header..whole.len()).step_by((whole.len() - header) / 50);
    let last = whole.len() - 4..whole.len();
    for (at, bit) in (0..header).step_by(37).chain(values).chain(last).zip((0..8).cycle()) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << bit;
        std::fs::write(&file.0, &flipped).expect("written");
        let refused = check_checkpoint(&file.0, &model.program, SEED);
        let is_noticed = matches!(refused, Err(Error::Checkpoint { .. }));
        assert!(is_noticed, "bit {bit} of byte {at}: {refused:?}");
    }
    let mut untouched = trainer(&model, SEED);
    untouched.resume(&file.0).expect_err("it is damaged still");
    assert_eq!(losses(&mut untouched, 1), losses(&mut trainer(&model, SEED), 1));
    std::fs::write(&file.0, &whole).expect("written");
    untouched.resume(&file.0).expect("it is whole again");
}

#[test]
fn a_checkpoint_of_the_old_format_is_named() {
    let model = model_with("transformer-tiny", 2, Optimizer::sgd(1e-3));
    let file = Temporary::new("old");
    trainer(&model, SEED).save_checkpoint(&file.0).expect("written");
    let mut bytes = std::fs::read(&file.0).expect("it is there");
    let key = b"remat.checkpoint/2";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("its key");
    bytes[at + key.len() - 1] = b'1';
    std::fs::write(&file.0, &bytes).expect("written");
    let refused = trainer(&model, SEED).resume(&file.0).expect_err("it has no checksum");
    assert!(refused.to_string().contains("older version"), "{refused}");
}
