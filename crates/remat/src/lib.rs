//! Train a model in the memory you have.
