//! What can go wrong between a model's name and its program.

use rekindle_program::ProgramError;

/// Why a model could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No model of this name.
    #[error("there is no model `{name}`; did you mean `{suggestion}`? The models are {known}")]
    UnknownModel {
        /// The name that was asked for.
        name: String,
        /// The most similar name.
        suggestion: &'static str,
        /// All names.
        known: String,
    },
    /// A sequence that is longer than the model has positions.
    #[error(
        "`{model}` has {positions} positions, but the sequence length is {sequence}; use a \
         sequence of at most {positions}"
    )]
    SequenceTooLong {
        /// The model.
        model: String,
        /// The sequence length that was asked for.
        sequence: usize,
        /// How many positions there are.
        positions: usize,
    },
    /// A sequence without a next token.
    #[error(
        "`{model}` learns to predict the next token, and a sequence of {sequence} has none; use a \
         sequence of at least 2"
    )]
    SequenceTooShort {
        /// The model.
        model: String,
        /// The sequence length that was asked for.
        sequence: usize,
    },
    /// The sizes do not fit together.
    #[error("cannot build `{model}`: {source}")]
    Program {
        /// The model.
        model: String,
        /// What the builder said.
        source: ProgramError,
    },
}
