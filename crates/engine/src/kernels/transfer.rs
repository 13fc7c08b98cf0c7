//! Transfers: whole tensors to the spill tier and back.

use super::KernelError;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Fetch, Offload};

impl Kernel for Offload {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let bytes = call.read_bytes(0, self.0.bytes);
        Ok(call.spill.store(self.0.slot, bytes)?)
    }
}

impl Kernel for Fetch {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let bytes = call.write_bytes(0, self.0.bytes);
        Ok(call.spill.load(self.0.slot, bytes)?)
    }
}
