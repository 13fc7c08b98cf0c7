//! The `remat` command: reads the arguments, runs one verb, and turns what went wrong into a message
//! and an exit code.

mod commands;
mod exit;
mod input;
mod output;
mod progress;
mod size;
mod summary;

use clap::Parser;
use std::process::ExitCode;

/// Train a model in the memory you have.
#[derive(Parser)]
#[command(name = "remat", version, after_help = exit::HELP)]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            exit::code(&error)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// clap checks a command's arguments against each other only in debug builds, verb by verb.
    #[test]
    fn the_arguments_of_every_verb_agree() {
        super::Arguments::command().debug_assert();
    }
}
