//! Random training steps, and everything that must hold for a plan of any of them.
//!
//! In: a seed. Out: a valid graph ([`random_graph`]), or the first promise that is broken on it
//! ([`check`]), or for any graph a valid plan of no use that recomputes and moves
//! ([`random_moves`]), or one that keeps to a budget ([`moves_within`]). The ordinary tests run
//! `check` on some hundred seeds, `cargo xtask soak` on ten thousand; a failure prints its seed,
//! and the same seed gives the same graph everywhere.

mod arbitrary;
mod check;
mod moves;
mod moves_within;
mod parts;
mod random;
mod training;

pub use check::check;
pub use moves::random_moves;
pub use moves_within::moves_within;

use rekindle_graph::Graph;

use random::Random;

/// A valid graph of up to about `size` forward nodes.
///
/// Even seeds give training steps (a forward pass with skip connections, its backward pass and
/// optimizer nodes), odd seeds arbitrary graphs. Both have nodes with several outputs, scratch,
/// in-place updates, nodes that run once, random nodes, sizes and times of zero.
pub fn random_graph(seed: u64, size: usize) -> Graph {
    graph(Random::new(seed), seed.is_multiple_of(2), size)
}

/// The same where a list says every choice, for property tests: a shorter list with smaller numbers
/// gives a simpler graph.
pub fn chosen_graph(choices: Vec<u16>, size: usize) -> Graph {
    let is_training = choices.first().is_some_and(|first| first % 2 == 1);
    graph(Random::Choices(choices.into_iter()), is_training, size)
}

fn graph(mut random: Random, is_training: bool, size: usize) -> Graph {
    let parts = match is_training {
        true => training::parts(&mut random, size),
        false => arbitrary::parts(&mut random, size),
    };
    Graph::new(parts).expect("the generator makes valid graphs")
}
