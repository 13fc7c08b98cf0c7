//! The engine's side of the comparisons with PyTorch.
//!
//! `engine_peer replay MODEL key=value…` trains a few steps on given weights and data and writes
//! down what came out; `python/tests/test_engine.py` does the same in PyTorch and compares.
//! `engine_peer serve MODEL key=value…` runs one step for each line of standard input and prints
//! how long it took; `cargo xtask bench engine` lets it and PyTorch take turns.

mod replay;
mod request;
mod serve;

use std::error::Error;
use std::process::ExitCode;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("replay") => replay::run(&request::Request::parse(words)?),
        Some("serve") => serve::run(&request::Request::parse(words)?),
        _ => Err("say `replay` or `serve`, then the model and key=value pairs".into()),
    }
}
