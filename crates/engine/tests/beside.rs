//! A forward pass in the memory of a training step, between two of its runs.

use rekindle_engine::{Engine, Iteration, Layout};
use rekindle_models::{Model, ModelOptions, Values, build, data};
use rekindle_program::{Optimizer, Settings};

fn model(name: &str, inference: bool) -> Model {
    let options = ModelOptions {
        batch: 2,
        image_size: 32,
        sequence: 16,
        optimizer: Some(Optimizer::sgd(0.01)),
        settings: Settings { inference, ..Settings::default() },
        ..ModelOptions::default()
    };
    build(name, &options).expect("the model builds")
}

fn write_inputs(engine: &mut Engine, model: &Model) {
    for (tensor, values) in data::batch(model, 1, 1) {
        match values {
            Values::F32(values) => engine.write_f32(tensor, &values),
            Values::I64(values) => engine.write_i64(tensor, &values),
        }
        .expect("the data is the model's");
    }
}

/// The losses of three steps, as bits; with an evaluation after each, whose losses come second.
fn train(model: &Model, evaluated: Option<&Model>) -> (Vec<u32>, Vec<u32>) {
    let layout = Layout::plain(&model.program, 2);
    let mut other = evaluated.map(|it| layout.beside(&it.program).expect("it has the parameters"));
    let room = other.as_ref().map_or(layout.room(), Layout::room);
    let engine = Engine::with_layout(layout.with_room(room), 0, &mut |_, _| {});
    let mut engine = engine.expect("it is small");
    let (mut losses, mut found) = (Vec::new(), Vec::new());
    for number in 1..=3 {
        if let (Some(layout), Some(model)) = (&mut other, evaluated) {
            let loss = engine.run_beside(layout, |engine| {
                write_inputs(engine, model);
                let measured = engine.run(Iteration { seed: 0, number: 1 })?;
                assert_eq!(measured, engine.predicted());
                Ok(engine.read_f32(model.loss)?[0].to_bits())
            });
            found.push(loss.expect("it runs"));
        }
        write_inputs(&mut engine, model);
        let measured = engine.run(Iteration { seed: 7, number }).expect("the data is good");
        assert_eq!(measured, engine.predicted());
        losses.push(engine.read_f32(model.loss).expect("an output")[0].to_bits());
    }
    (losses, found)
}

#[test]
fn an_evaluation_changes_no_bit_of_the_training() {
    for name in ["mlp", "resnet18", "gpt2-tiny"] {
        let training = model(name, false);
        let (alone, _) = train(&training, None);
        let (losses, found) = train(&training, Some(&model(name, true)));
        assert_eq!(losses, alone, "{name}");
        // Without dropout and batch-norm, the forward pass is that of the step that follows.
        if name == "mlp" {
            assert_eq!(found, losses);
        }
    }
}

#[test]
fn inference_takes_running_statistics_and_drops_nothing() {
    let ops = |model: &Model| -> Vec<&str> {
        model.program.nodes.iter().map(|node| node.op.name()).collect()
    };
    let (resnet, gpt) = (model("resnet18", true), model("gpt2-tiny", true));
    assert!(ops(&resnet).contains(&"batch_norm") && !ops(&resnet).contains(&"batch_norm_stats"));
    assert!(
        !ops(&gpt).contains(&"dropout") && ops(&model("gpt2-tiny", false)).contains(&"dropout")
    );
    assert_eq!(gpt.program.outputs, [gpt.loss, gpt.logits.expect("it has logits")]);
}

#[test]
fn a_parameter_that_is_not_there_is_named() {
    let layout = Layout::plain(&model("mlp", false).program, 1);
    let error = layout.beside(&model("gpt2-tiny", true).program).expect_err("another model");
    assert!(error.to_string().contains("is not in the memory of mlp-b2"), "{error}");
}
