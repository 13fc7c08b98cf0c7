//! `rekindle completions`: what a shell needs to complete the tool's words.

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

/// Print a script that completes verbs and flags in a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle completions bash > ~/.local/share/bash-completion/completions/rekindle
  rekindle completions zsh > ~/.zfunc/_rekindle
  rekindle completions fish > ~/.config/fish/completions/rekindle.fish")]
pub(crate) struct Arguments {
    /// The shell to complete for
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) {
    let mut script = Vec::new();
    let mut command = crate::Arguments::command();
    generate(arguments.shell, &mut command, "rekindle", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
}
