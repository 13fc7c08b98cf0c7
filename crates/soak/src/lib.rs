//! Random training steps, and everything that must hold for a plan of any of them.
//!
//! In: a seed. Out: a valid graph ([`random_graph`]), or the first promise that is broken on it
//! ([`check`]). The ordinary tests run `check` on some hundred seeds, `cargo xtask soak` on ten
//! thousand; a failure prints its seed, and the same seed gives the same graph everywhere.

mod arbitrary;
mod check;
mod parts;
mod random;
mod training;

pub use check::check;

use rekindle_graph::Graph;

use random::Random;

/// A valid graph of up to about `size` forward nodes.
///
/// Even seeds give training steps (a forward pass with skip connections, its backward pass and
/// optimizer nodes), odd seeds arbitrary graphs. Both have nodes with several outputs, scratch,
/// in-place updates, nodes that run once, random nodes, sizes and times of zero.
pub fn random_graph(seed: u64, size: usize) -> Graph {
    let mut random = Random::new(seed);
    let parts = match seed.is_multiple_of(2) {
        true => training::parts(&mut random, size),
        false => arbitrary::parts(&mut random, size),
    };
    Graph::new(parts).expect("the generator makes valid graphs")
}
