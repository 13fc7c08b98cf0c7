//! Moving whole tensors out of the arena and back. No model writes these ops; a step that must run
//! in less memory than it has tensors does.

/// `offload`: `x →` copies a tensor to a slot of the spill tier; `fetch`: `→ x` copies it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Where it is kept; each tensor that leaves has its own.
    pub slot: usize,
    /// How large it is.
    pub bytes: usize,
}
