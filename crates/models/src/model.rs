//! A model as a training step: what to ask for, and what comes out.

use rekindle_graph::StorageId;
use rekindle_program::{
    Adapter, Builder, Optimizer, Patterns, Program, ProgramError, Settings, Updates, Var,
};

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
    /// How many classes there are, where it shall not be the model's own number; for models that
    /// tell classes apart.
    pub classes: Option<usize>,
    /// What is built: a step that trains, all of it or a part, or one that infers.
    pub settings: Settings,
    /// Gradients whose norm, all together, is above this are scaled down to it.
    pub clip: Option<f32>,
    /// Whether gradients are summed over several steps before the parameters follow them.
    pub accumulate: bool,
    /// Parameters of these names do not decay.
    pub no_decay: Patterns,
    /// Whether parameters of one axis, which are biases and the scales of norms, decay.
    pub vectors_decay: bool,
}

impl ModelOptions {
    /// How the parameters are updated; nothing without an optimizer.
    pub fn updates(&self) -> Option<Updates> {
        self.optimizer.map(|optimizer| Updates {
            optimizer,
            no_decay: self.no_decay.clone(),
            vectors_decay: self.vectors_decay,
            clip: self.clip,
            accumulate: self.accumulate,
        })
    }
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            batch: 8,
            image_size: 224,
            sequence: 128,
            optimizer: None,
            dropout: None,
            classes: None,
            settings: Settings::default(),
            clip: None,
            accumulate: false,
            no_decay: Patterns::default(),
            vectors_decay: true,
        }
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
    /// The step. Its outputs are the loss, then the sum of the gradients' squares if they are
    /// clipped, then (without an optimizer) the gradients. Where nothing is learned they are the
    /// loss and the logits.
    pub program: Program,
    /// What must be written before each step.
    pub inputs: Vec<Input>,
    /// The loss, a single number.
    pub loss: StorageId,
    /// What predictions are read from, such as scores of classes: one row for each label. It is
    /// there after a step in which nothing is learned.
    pub logits: Option<StorageId>,
    /// Each trained parameter with its gradient, by parameter.
    pub gradients: Vec<(StorageId, StorageId)>,
    /// Second names of parameters that are used twice, as weight files may carry them.
    pub tied: Vec<(String, StorageId)>,
    /// The gradient of the loss that the backward pass begins with: one, until somebody writes it.
    pub loss_gradient: Option<StorageId>,
    /// The sum of the gradients' squares, if they are clipped.
    pub square_sum: Option<StorageId>,
    /// What stands beside frozen matrices.
    pub adapters: Vec<Adapter>,
}

impl Model {
    /// How many numbers training changes.
    pub fn parameter_count(&self) -> usize {
        let lens = self.gradients.iter().map(|&(p, _)| self.program.tensor(p).len());
        lens.sum()
    }
}

/// The forward pass of a model, written with a builder: what [`Forward::finish`] makes a [`Model`]
/// of.
#[derive(Clone, Debug)]
pub struct Forward {
    /// What must be written before each step: the data first, then the labels.
    pub inputs: Vec<(Var, InputKind)>,
    /// The loss, a single number.
    pub loss: Var,
    /// What the loss compares with the labels: `[rows, classes]`, if it does so.
    pub logits: Option<Var>,
    /// Second names of parameters that are used twice.
    pub tied: Vec<(String, Var)>,
}

impl Forward {
    /// What the builder's settings and `options` say: the whole training step, or the forward pass
    /// alone.
    ///
    /// # Errors
    /// If the loss depends on no parameter that is trained.
    pub fn finish(self, builder: Builder, options: &ModelOptions) -> Result<Model, ProgramError> {
        match builder.settings().inference {
            true => self.evaluate(builder),
            false => self.train(builder, options.updates()),
        }
    }

    /// The whole training step: forward, backward, and updates if there are any.
    ///
    /// # Errors
    /// If the loss depends on no parameter that is trained.
    pub fn train<U: Into<Updates>>(
        self,
        mut builder: Builder,
        updates: Option<U>,
    ) -> Result<Model, ProgramError> {
        let adapters = builder.adapters().to_vec();
        let gradients = builder.backward(&self.loss)?;
        let updates: Option<Updates> = updates.map(Into::into);
        let has_updates = updates.is_some();
        let square_sum = match updates {
            Some(updates) => builder.optimize(&gradients, updates)?,
            None => None,
        };
        let outputs: Vec<&Var> = [&self.loss].into_iter().chain(&square_sum).collect();
        let mut program = builder.finish(&outputs)?;
        if !has_updates {
            program.outputs.extend(gradients.pairs().iter().map(|&(_, g)| g));
        }
        let seed = format!("{}.seed", program.tensor(self.loss.tensor()).name);
        let loss_gradient = program.tensors.iter().position(|tensor| tensor.name == seed);
        Ok(Model {
            loss_gradient: loss_gradient.map(StorageId::new),
            square_sum: square_sum.map(|sum| sum.tensor()),
            gradients: gradients.pairs().to_vec(),
            ..self.model(program, adapters)
        })
    }

    /// The forward pass alone, whose outputs are the loss and the logits.
    ///
    /// # Errors
    /// If the handles are not `builder`'s.
    pub fn evaluate(self, builder: Builder) -> Result<Model, ProgramError> {
        let adapters = builder.adapters().to_vec();
        let outputs: Vec<&Var> = [&self.loss].into_iter().chain(&self.logits).collect();
        let program = builder.finish(&outputs)?;
        Ok(self.model(program, adapters))
    }

    fn model(self, program: Program, adapters: Vec<Adapter>) -> Model {
        let inputs = self.inputs.iter();
        let inputs = inputs.map(|(var, kind)| Input { tensor: var.tensor(), kind: *kind });
        let tied = self.tied.into_iter().map(|(name, var)| (name, var.tensor()));
        Model {
            program,
            inputs: inputs.collect(),
            loss: self.loss.tensor(),
            gradients: Vec::new(),
            tied: tied.collect(),
            logits: self.logits.map(|logits| logits.tensor()),
            loss_gradient: None,
            square_sum: None,
            adapters,
        }
    }
}
