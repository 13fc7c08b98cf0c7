//! A multi-layer perceptron: eight hidden layers of 1024, ten classes, as `nn.Sequential` names it.

use rekindle_program::{Builder, DType, ProgramError};

use crate::model::{Forward, InputKind};
use crate::{ModelOptions, layer};

const WIDTH: usize = 1024;
const HIDDEN_LAYERS: usize = 8;
const CLASSES: usize = 10;

pub(crate) fn forward(b: &mut Builder, options: &ModelOptions) -> Result<Forward, ProgramError> {
    let data = b.input("x", &[options.batch, WIDTH], DType::F32)?;
    let labels = b.input("labels", &[options.batch], DType::I64)?;
    let mut x = data.clone();
    for hidden in 0..HIDDEN_LAYERS {
        // Every other module of the sequence is a ReLU.
        x = layer::linear(b, &(2 * hidden).to_string(), &x, WIDTH)?;
        x = b.relu(&(2 * hidden + 1).to_string(), &x)?;
    }
    let logits = layer::linear(b, &(2 * HIDDEN_LAYERS).to_string(), &x, CLASSES)?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
    let classes = CLASSES;
    Ok(Forward {
        inputs: vec![
            (data, InputKind::Features { classes }),
            (labels, InputKind::Classes { classes }),
        ],
        loss,
        logits: Some(logits),
        tied: vec![],
    })
}
