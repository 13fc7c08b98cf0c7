//! Losses by name, put on a model's output.

use rekindle_models::{Forward, InputKind};
use rekindle_program::op::{Map, Pair};
use rekindle_program::{DType, Var};

use crate::OnnxError;
use crate::import::Import;
use crate::value::Seen;

/// What a model is trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The mean cross-entropy of the first output, `[n, classes, …]`, and a class for each rest.
    CrossEntropy,
    /// The mean squared difference of the first output and as many targets.
    Mse,
    /// The mean cross-entropy of the first output, `[n, sequence, vocabulary]`, and the token that
    /// follows each.
    NextToken,
    /// The output of the graph that is a single number.
    InGraph,
}

impl Loss {
    /// Every loss.
    pub const ALL: [Loss; 4] = [Loss::CrossEntropy, Loss::Mse, Loss::NextToken, Loss::InGraph];

    /// As a user writes it.
    pub fn name(self) -> &'static str {
        match self {
            Loss::CrossEntropy => "cross-entropy",
            Loss::Mse => "mse",
            Loss::NextToken => "next-token",
            Loss::InGraph => "graph",
        }
    }

    /// The loss of this name.
    pub fn from_name(name: &str) -> Option<Loss> {
        Loss::ALL.into_iter().find(|loss| loss.name() == name)
    }

    /// The forward pass with this loss on the graph's outputs.
    pub(crate) fn put(
        self,
        import: &mut Import<'_>,
        outputs: &[Seen],
    ) -> Result<Forward, OnnxError> {
        let wrong = |why: String| OnnxError::Loss { loss: self.name(), why };
        let Some(first) = outputs.first() else {
            return Err(wrong("the graph has no output that depends on data".into()));
        };
        let (loss, logits, classes) = match self {
            Loss::InGraph => {
                let single = outputs.iter().find(|output| output.var.len() == 1);
                let Some(single) = single else {
                    return Err(wrong("no output of the graph is a single number".into()));
                };
                let loss = import.builder.reshape(&single.var, &[1])?;
                let others = outputs.iter().find(|output| output.var.len() > 1);
                (loss, others.map(|other| other.var.clone()), 1)
            }
            Loss::Mse => {
                let targets = import.input_name("targets");
                // Targets come in the order of the output's own axes.
                let output = import.plain(first)?;
                let targets = import.builder.input(&targets, output.shape(), DType::F32)?;
                import.inputs.push((targets.clone(), InputKind::Targets));
                (mse(import, &output, &targets)?, Some(output), 1)
            }
            Loss::CrossEntropy | Loss::NextToken => {
                let rank = first.order.len();
                let axis = if self == Loss::NextToken { rank.wrapping_sub(1) } else { 1 };
                if rank < 2 || (self == Loss::NextToken && rank != 3) {
                    let shape = first.shape();
                    return Err(wrong(format!("the first output has shape {shape:?}")));
                }
                let logits = import.with_last(first, axis)?;
                let mut shape = logits.shape().to_vec();
                let classes = shape.pop().unwrap_or(1);
                let labels = import.input_name("labels");
                let labels = import.builder.input(&labels, &shape, DType::I64)?;
                let kind = match self {
                    Loss::NextToken => InputKind::NextLabels { vocab: classes },
                    _ => InputKind::Classes { classes },
                };
                import.inputs.push((labels.clone(), kind));
                let name = import.input_name("loss");
                let loss = import.builder.cross_entropy(&name, &logits, &labels)?;
                (loss, Some(logits), classes)
            }
        };
        let inputs = import.inputs.iter().cloned().map(|(var, kind)| match kind {
            InputKind::Features { .. } => (var, InputKind::Features { classes }),
            kind => (var, kind),
        });
        Ok(Forward { inputs: inputs.collect(), loss, logits, tied: vec![] })
    }
}

fn mse(import: &mut Import<'_>, output: &Var, targets: &Var) -> Result<Var, OnnxError> {
    let [difference, square, loss] =
        ["difference", "square", "loss"].map(|name| import.input_name(name));
    let b = &mut import.builder;
    let difference = b.binary(&difference, Pair::Sub, output, targets)?;
    let square = b.unary(&square, &difference, Map::Power { exponent: 2.0 })?;
    let flat = b.reshape(&square, &[square.len()])?;
    Ok(b.mean(&loss, &flat, &[0])?)
}
