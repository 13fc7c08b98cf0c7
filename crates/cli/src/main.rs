//! The `rekindle` command: reads the arguments, runs one verb, and turns what went wrong into a
//! message and an exit code.

// First, because its `print!`, `println!` and `eprintln!` take the place of the usual ones
// everywhere.
#[macro_use]
mod output;
mod commands;
mod exit;
mod input;
mod interrupt;
mod progress;
mod summary;
mod trace;

use clap::Parser;
use std::process::ExitCode;

/// Train a model in the memory you have.
#[derive(Parser)]
#[command(name = "rekindle", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
    /// Show neither progress nor notes: only results and errors
    #[arg(long, short, global = true, display_order = 999)]
    quiet: bool,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let text = error.render().to_string();
            match text.strip_prefix("error: ") {
                Some(text) => output::error(text.trim_end()),
                None => eprintln!("{}", text.trim_end()),
            }
            return ExitCode::from(exit::USAGE);
        }
        Err(help) => help.exit(),
    };
    if arguments.quiet {
        output::be_quiet();
    }
    interrupt::watch();
    match arguments.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&message(&error));
            exit::code(&error)
        }
    }
}

/// The error and its causes, each said once: many errors name their cause in their own words. A
/// cause of several lines begins on one of its own.
fn message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += if cause.contains('\n') { "\n" } else { ": " };
            text += &cause;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use clap::CommandFactory as _;

    /// clap checks a command's arguments against each other only in debug builds, verb by verb.
    #[test]
    fn the_arguments_of_every_verb_agree() {
        super::Arguments::command().debug_assert();
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow!("no such file").context("cannot read it: no such file");
        assert_eq!(super::message(&error), "cannot read it: no such file");
        let error = anyhow!("no such file").context("cannot read it");
        assert_eq!(super::message(&error), "cannot read it: no such file");
        let error = anyhow!("no plan\n  at a node").context("it does not fit");
        assert_eq!(super::message(&error), "it does not fit\nno plan\n  at a node");
    }
}
