//! Moving whole tensors out of the arena and back. No model writes these ops; a step that must run
//! in less memory than it has tensors does.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Operand, Shapes};

/// A tensor of any type on its way out of the arena or back into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The slot of the spill tier that keeps it; each tensor that leaves has its own.
    pub slot: usize,
    /// How large it is.
    pub bytes: usize,
}

/// `swap_out`: `x →` copies a tensor to its slot. May run once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offload(pub Transfer);

/// `swap_in`: `→ x` copies a tensor back from its slot. May run once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fetch(pub Transfer);

impl Operation for Offload {
    const FACTS: Facts<Offload> = Facts {
        name: "swap_out",
        shapes: |op| Shapes::new([Operand::U8(op.0.bytes)], []),
        effect: Effects::Once { updates: |_| &[] },
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Operation for Fetch {
    const FACTS: Facts<Fetch> = Facts {
        name: "swap_in",
        shapes: |op| Shapes::new([], [Operand::U8(op.0.bytes)]),
        effect: Effects::Once { updates: |_| &[] },
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
