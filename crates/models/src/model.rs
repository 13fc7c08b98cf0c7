//! A model as a training step: what to ask for, and what comes out.

use rekindle_graph::StorageId;
use rekindle_program::{Builder, Optimizer, Program, ProgramError, Var};

/// The sizes of a step, and how it trains.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOptions {
    /// Samples in a batch.
    pub batch: usize,
    /// Height and width of the images, for models that see images.
    pub image_size: usize,
    /// Tokens in a sequence, for models that read text.
    pub sequence: usize,
    /// How parameters are updated. Without one, the step ends with the gradients as outputs.
    pub optimizer: Option<Optimizer>,
    /// The probability of every dropout, where it shall not be the model's own.
    pub dropout: Option<f32>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions { batch: 8, image_size: 224, sequence: 128, optimizer: None, dropout: None }
    }
}

/// What an input holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Numbers of mean zero and deviation one: images `[n, h, w, c]`, or features.
    Features {
        /// How many classes the samples belong to.
        classes: usize,
    },
    /// Numbers that are to be predicted.
    Targets,
    /// The class of each sample.
    Classes {
        /// How many classes there are.
        classes: usize,
    },
    /// Token ids.
    Tokens {
        /// How many tokens there are.
        vocab: usize,
    },
    /// Token ids of which some are masked.
    MaskedTokens {
        /// How many tokens there are.
        vocab: usize,
    },
    /// The token that was masked, or the ignored label where none was.
    MaskedLabels {
        /// How many tokens there are.
        vocab: usize,
    },
    /// For each token the one that follows it; the ignored label after the last.
    NextLabels {
        /// How many tokens there are.
        vocab: usize,
    },
}

/// A tensor that must be written before each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The tensor.
    pub tensor: StorageId,
    /// What it holds.
    pub kind: InputKind,
}

/// One training step of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The step. Its outputs are the loss, then (without an optimizer) the gradients.
    pub program: Program,
    /// What must be written before each step.
    pub inputs: Vec<Input>,
    /// The loss, a single number.
    pub loss: StorageId,
    /// What predictions are read from, such as scores of classes: one row for each label.
    pub logits: Option<StorageId>,
    /// Each trained parameter with its gradient, by parameter.
    pub gradients: Vec<(StorageId, StorageId)>,
    /// Second names of parameters that are used twice, as weight files may carry them.
    pub tied: Vec<(String, StorageId)>,
}

impl Model {
    /// How many numbers training changes.
    pub fn parameter_count(&self) -> usize {
        let lens = self.gradients.iter().map(|&(p, _)| self.program.tensor(p).len());
        lens.sum()
    }
}

/// The forward pass of a model, written with a builder: what becomes a [`Model`].
///
/// The models of this crate and imported ones all end here; so can one's own.
#[derive(Clone, Debug)]
pub struct Forward {
    /// What must be written before each step, and what it holds.
    pub inputs: Vec<(Var, InputKind)>,
    /// A single number.
    pub loss: Var,
    /// What predictions are read from, such as scores of classes: one row for each label.
    pub logits: Option<Var>,
    /// Second names of parameters that are used twice.
    pub tied: Vec<(String, Var)>,
}

impl Forward {
    /// The whole training step: forward, backward, and updates if there is an optimizer.
    ///
    /// # Errors
    /// If the loss is not a single number that depends on a parameter of `builder`.
    pub fn train(
        self,
        mut builder: Builder,
        optimizer: Option<Optimizer>,
    ) -> Result<Model, ProgramError> {
        let gradients = builder.backward(&self.loss)?;
        if let Some(optimizer) = optimizer {
            builder.optimize(&gradients, optimizer)?;
        }
        let mut program = builder.finish(&[&self.loss])?;
        if optimizer.is_none() {
            program.outputs.extend(gradients.pairs().iter().map(|&(_, g)| g));
        }
        Ok(self.model(program, gradients.pairs().to_vec()))
    }

    /// The forward pass alone, whose outputs are the loss and the logits.
    ///
    /// # Errors
    /// If the handles are not `builder`'s.
    pub fn evaluate(self, builder: Builder) -> Result<Model, ProgramError> {
        let outputs: Vec<&Var> = [&self.loss].into_iter().chain(&self.logits).collect();
        let program = builder.finish(&outputs)?;
        Ok(self.model(program, Vec::new()))
    }

    fn model(self, program: Program, gradients: Vec<(StorageId, StorageId)>) -> Model {
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|(var, kind)| Input { tensor: var.tensor(), kind: *kind });
        let tied = self.tied.into_iter().map(|(name, var)| (name, var.tensor()));
        Model {
            program,
            inputs: inputs.collect(),
            loss: self.loss.tensor(),
            logits: self.logits.map(|logits| logits.tensor()),
            gradients,
            tied: tied.collect(),
        }
    }
}
