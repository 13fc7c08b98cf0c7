//! Sessions on data: summed gradients, adapters, evaluation beside training.

use std::path::PathBuf;
use std::sync::Arc;

use rekindle::data::{BadFiles, Batches, DataOptions, Dataset};
use rekindle::models::{Model, ModelOptions, build, weights};
use rekindle::program::{Lora, Optimizer, Patterns, Settings};
use rekindle::train::{
    Evaluation, LearningRate, Recipe, Session, Shape, Start, save_merged, wanted,
};
use rekindle_engine::{Engine, Layout};
use rekindle_graph::Bytes;

/// A file that disappears with the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("rekindle-{}-{name}", std::process::id())))
    }

    /// Tokens that follow a rule.
    fn tokens(name: &str) -> Temporary {
        let file = Temporary::new(name);
        let ids = (0..1200u32).flat_map(|i| ((i * i % 61) as u16).to_le_bytes());
        std::fs::write(&file.0, ids.collect::<Vec<u8>>()).expect("writable");
        file
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn model(batch: usize, options: ModelOptions) -> Model {
    let options = ModelOptions {
        batch,
        sequence: 8,
        dropout: Some(0.0),
        optimizer: Some(Optimizer::sgd(0.1)),
        ..options
    };
    build("gpt2-tiny", &options).expect("the model builds")
}

fn dataset(model: &Model, file: &Temporary) -> Arc<Dataset> {
    let (wanted, _) = wanted(model).expect("it learns from tokens");
    let path = file.0.with_extension("bin");
    std::fs::copy(&file.0, &path).expect("writable");
    let dataset = Dataset::open(&path, wanted, &DataOptions::default()).expect("tokens");
    std::fs::remove_file(&path).expect("it stays open");
    Arc::new(dataset)
}

fn recipe(accumulate: u64) -> Recipe {
    let shape = Shape::Constant;
    Recipe {
        epochs: 1,
        updates: Some(5),
        accumulate,
        learning_rate: LearningRate { highest: 0.1, floor: 0.0, warmup: 2, shape },
        evaluate_every: None,
        patience: None,
        seed: 4,
        about: serde_json::Value::Null,
    }
}

fn session<'m>(
    model: &'m Model,
    data: &Arc<Dataset>,
    evaluation: Option<(&'m Model, Vec<u32>)>,
    accumulate: u64,
) -> Session<'m> {
    let batch = model.program.tensor(model.inputs[0].tensor).shape[0];
    let all = (0..data.len() as u32).collect();
    let batches = Batches::training(Arc::clone(data), all, batch, 4, BadFiles::Refuse);
    let layout = Layout::plain(&model.program, 2);
    let evaluation = evaluation.map(|(model, part)| {
        let batches = Batches::evaluation(Arc::clone(data), part, batch, BadFiles::Refuse);
        Evaluation::beside(&layout, model, batches).expect("the same parameters")
    });
    let room = evaluation.as_ref().map_or(Bytes::ZERO, Evaluation::room);
    let engine = Engine::with_layout(layout.with_room(room), 4, &mut |_, _| {});
    let start = Start {
        model,
        engine: engine.expect("it is small"),
        batches: batches.expect("enough samples"),
        evaluation,
        recipe: recipe(accumulate),
        data_memory: Bytes(1 << 20),
    };
    Session::new(start).expect("it starts")
}

/// A batch in two halves, whose gradients are summed, is the batch.
#[test]
fn two_halves_are_a_whole() {
    let file = Temporary::tokens("halves");
    let clip = Some(0.5);
    let whole = model(8, ModelOptions { clip, ..ModelOptions::default() });
    let half = model(4, ModelOptions { clip, accumulate: true, ..ModelOptions::default() });
    let (mut one, mut two) = (
        session(&whole, &dataset(&whole, &file), None, 1),
        session(&half, &dataset(&half, &file), None, 2),
    );
    for update in 1..=5 {
        let (one, two) = (one.update().expect("a step"), two.update().expect("two steps"));
        // Sums in another order: a few units in the last place, which five updates let grow.
        assert!((one.loss - two.loss).abs() < 1e-5 * one.loss, "{update}: {one:?} {two:?}");
        let norms = one.gradient_norm.zip(two.gradient_norm).expect("they are clipped");
        assert!((norms.0 - norms.1).abs() < 1e-4 * norms.0, "{update}: {norms:?}");
    }
    assert!(one.update().is_err(), "the recipe is over, and so is the data");
}

/// Merged weights in a plain model find what the adapted model finds.
#[test]
fn merged_adapters_are_the_adapted_model() {
    let file = Temporary::tokens("merged");
    let settings = |inference| Settings {
        inference,
        frozen: Patterns::new("*"),
        lora: Some(Lora { rank: 3, alpha: 6.0, weights: Patterns::new("*attn*.weight") }),
        ..Settings::default()
    };
    let options = |settings| ModelOptions { settings, ..ModelOptions::default() };
    let (adapted, looked) = (model(4, options(settings(false))), model(4, options(settings(true))));
    let data = dataset(&adapted, &file);
    let part: Vec<u32> = (0..30).collect();
    let mut trained = session(&adapted, &data, Some((&looked, part.clone())), 1);
    for _ in 0..5 {
        trained.update().expect("a step");
    }
    let (found, _) = trained.evaluate(&mut |_, _, _| {}).expect("an evaluation");
    let weights_file = Temporary::new("merged.safetensors");
    save_merged(&weights_file.0, &adapted, trained.engine(), None).expect("written");

    let inference = Settings { inference: true, ..Settings::default() };
    let plain = model(4, options(inference));
    let layout = Layout::plain(&plain.program, 2);
    let mut engine = Engine::with_layout(layout.clone(), 0, &mut |_, _| {}).expect("it is small");
    weights::load(&weights_file.0, &plain, |id, fill| engine.write_pieces(id, fill)).expect("read");
    let batches = Batches::evaluation(data, part, 4, BadFiles::Refuse);
    let mut evaluation = Evaluation::beside(&layout, &plain, batches).expect("itself");
    let merged = evaluation.run(&mut engine, &mut |_, _, _| {}).expect("an evaluation");
    assert!((merged.loss - found.loss).abs() < 1e-5 * found.loss, "{merged:?} and {found:?}");
    assert_eq!(merged.rows, found.rows);
}
