//! `redlatch man`: the manual page, from the definitions of the arguments.

use std::io;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::arguments::Arguments;
use crate::exit;
use crate::output::{self, Refusal};

const EXAMPLES: &str = "\
Examples:
  redlatch man | man -l -
  redlatch man > /usr/local/share/man/man1/redlatch.1";

/// Print the manual page
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Options {}

/// Runs the verb.
pub fn run(_: &Options) -> ExitCode {
    let page = page().map_err(|error| Refusal::internal(format!("the manual page: {error}")));
    exit::with(page.and_then(|page| output::print(page.trim_end())))
}

fn page() -> io::Result<String> {
    let mut command = Arguments::command();
    command.build();
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        section(verb.clone(), &mut page)?;
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn section(verb: Command, page: &mut Vec<u8>) -> io::Result<()> {
    Man::new(verb).render_options_section(page)
}
