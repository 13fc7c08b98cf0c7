//! Where tensors go that leave the arena: the engine says which and when, somebody else keeps them.

use rekindle_graph::Bytes;

/// Keeps the bytes of tensors that are out of the arena. A slot holds what was stored in it last.
pub trait Spill {
    /// Keeps a copy of `bytes`.
    ///
    /// # Errors
    /// If it cannot.
    fn store(&mut self, slot: usize, bytes: &[u8]) -> Result<(), SpillError>;

    /// Copies back what the slot holds.
    ///
    /// # Errors
    /// If it cannot, or the slot does not hold that many bytes.
    fn load(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), SpillError>;
}

/// Why bytes could not be kept or given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpillError {
    /// The copy is to be in memory, and there is not so much.
    #[error(
        "there is no memory for a copy of {0} outside the arena; \
         take a smaller batch, or let tensors go to a file"
    )]
    Memory(Bytes),
    /// Anything else, in words.
    #[error("{0}")]
    Failed(String),
}

/// What an engine has until it gets a spill tier.
pub(crate) struct NoSpill;

impl Spill for NoSpill {
    fn store(&mut self, _: usize, _: &[u8]) -> Result<(), SpillError> {
        let message = "the step moves tensors out of the arena, but the engine has no spill tier";
        Err(SpillError::Failed(message.into()))
    }

    fn load(&mut self, slot: usize, _: &mut [u8]) -> Result<(), SpillError> {
        Err(SpillError::Failed(format!("nothing was ever stored in slot {slot}")))
    }
}
