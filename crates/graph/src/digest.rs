//! The digest of a graph: a plan carries the one of its graph, so that it is never taken for a plan
//! of another.
//!
//! It is SHA-256 over everything that a plan's validity and its bytes depend on, and over the names
//! and operations of the nodes. Times are not in it: a graph that is measured again is the same
//! graph. Neither are the graph's own name and origin, which are words about it.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::{Effect, Graph, Phase, PlanFileError, Role};

/// What tells one graph from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Graph {
    /// Its digest, times aside.
    pub fn digest(&self) -> Digest {
        let mut text = Text::default();
        text.count(self.storages().len());
        for storage in self.storages() {
            text.number(storage.bytes.get());
            text.number(role(storage.role));
        }
        text.count(self.nodes().len());
        for node in self.nodes() {
            text.word(&node.name);
            text.word(&node.op);
            text.number(phase(node.phase));
            text.number(effect(node.effect));
            text.number(node.workspace.get());
            for list in [&node.reads, &node.writes, &node.updates] {
                text.list(list.iter().map(|s| s.0));
            }
        }
        text.list(self.outputs().iter().map(|s| s.0));
        text.list(self.targets().iter().map(|n| n.0));
        Digest(Sha256::digest(&text.0).into())
    }
}

/// What is digested. Every list says how long it is, so that no two graphs give the same text.
#[derive(Default)]
struct Text(Vec<u8>);

impl Text {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    fn word(&mut self, word: &str) {
        self.count(word.len());
        self.0.extend(word.bytes());
    }

    fn list(&mut self, ids: impl ExactSizeIterator<Item = u32>) {
        self.count(ids.len());
        ids.for_each(|id| self.number(id.into()));
    }
}

// The numbers below are part of every plan file: a new variant gets a new number.

fn role(role: Role) -> u64 {
    match role {
        Role::Parameter => 0,
        Role::Input => 1,
        Role::Constant => 2,
        Role::Tangent => 3,
        Role::OptimizerState => 4,
        Role::Activation => 5,
        Role::Gradient => 6,
        Role::Other => 7,
    }
}

fn phase(phase: Phase) -> u64 {
    match phase {
        Phase::Input => 0,
        Phase::Forward => 1,
        Phase::Backward => 2,
        Phase::Optimizer => 3,
    }
}

fn effect(effect: Effect) -> u64 {
    match effect {
        Effect::Pure => 0,
        Effect::Random => 1,
        Effect::Once => 2,
    }
}

/// How a digest begins in a file.
const PREFIX: &str = "sha256:";

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Digest {
    type Err = PlanFileError;

    fn from_str(text: &str) -> Result<Digest, PlanFileError> {
        let bad = || PlanFileError::Digest { text: text.into() };
        let digits = text.strip_prefix(PREFIX).ok_or_else(bad)?.as_bytes();
        let digit = |d: u8| char::from(d).to_digit(16).ok_or_else(bad);
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(bad());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
        }
        Ok(Digest(bytes))
    }
}
