//! `redlatch completions`: what a shell needs to complete our command lines.

use std::process::ExitCode;

use crate::exit;
use crate::output;
use crate::variables;

const EXAMPLES: &str = "\
Examples:
  redlatch completions bash > /etc/bash_completion.d/redlatch
  redlatch completions zsh > /usr/local/share/zsh/site-functions/_redlatch
  redlatch completions fish > ~/.config/fish/completions/redlatch.fish";

/// Print completions for your shell
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Options {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl From<Shell> for clap_complete::Shell {
    fn from(shell: Shell) -> clap_complete::Shell {
        match shell {
            Shell::Bash => clap_complete::Shell::Bash,
            Shell::Zsh => clap_complete::Shell::Zsh,
            Shell::Fish => clap_complete::Shell::Fish,
        }
    }
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    let mut script = Vec::new();
    let shell = clap_complete::Shell::from(options.shell);
    clap_complete::generate(shell, &mut variables::command(), "redlatch", &mut script);
    let script = String::from_utf8_lossy(&script);
    exit::with(output::print(script.trim_end()))
}
