//! The `remat` command.
fn main() {}
