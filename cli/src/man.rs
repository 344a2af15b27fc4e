//! `redlatch man`: prints one manual page for all verbs, from the parser's definitions.
//!
//! Flags that the verbs share are printed once. The hazard is a line of text that roff takes for a
//! request. So every text that this file adds is escaped.

use std::io;
use std::process::ExitCode;

use clap::{Arg, Command};
use clap_mangen::Man;

use crate::exit;
use crate::output::{self, Refusal};
use crate::variables;

const EXAMPLES: &str = "\
Examples:
  redlatch man | man -l -
  redlatch man > /usr/local/share/man/man1/redlatch.1";

/// The verb from which the flags that the verbs share are printed.
const SHARED_AS_IN: &str = "exec";

const ENVIRONMENT: &str = "\
.SH ENVIRONMENT
.TP
.B REDLATCH_SERVERS
The nodes, where there is no \\fB\\-s\\fR: URLs, separated by commas.
.TP
.B REDLATCH_...
Every other flag has a variable of its name: \\fB\\-\\-node\\-timeout\\fR is REDLATCH_NODE_TIMEOUT.
The variable of a flag without a value is true or false. An empty variable counts as unset.
A flag counts more than its variable, and that more than the file.
.TP
.B REDISCLI_AUTH
The password for nodes whose URL has none.
.TP
.B REDLATCH_PASSWORD_FILE
A file with that password: an absolute path, or a name in \\fBCREDENTIALS_DIRECTORY\\fR.
.TP
.B REDLATCH_SENTINEL_AUTH
The password for Sentinels.
.TP
.B REDLATCH_SENTINEL_PASSWORD_FILE
A file with that password.
.TP
.B NO_COLOR
Where it is set there are no colours. There are none either where the output is no terminal.
";

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
    let mut command = variables::command();
    command.build();
    let verbs: Vec<&Command> = command.get_subcommands().filter(|verb| is_shown(verb)).collect();
    let man = Man::new(command.clone());
    let mut page = rendered(|into| man.render_title(into))?;
    page += &rendered(|into| man.render_name_section(into))?;
    page += ".SH SYNOPSIS\n";
    for verb in &verbs {
        let usage = (*verb).clone().render_usage().to_string();
        page += &format!("{}\n.br\n", escaped(usage.trim_start_matches("Usage: ").trim()));
    }
    page += &rendered(|into| man.render_description_section(into))?;
    for verb in &verbs {
        page += &about(verb)?;
    }
    if let Some(verb) = verbs.iter().find(|verb| verb.get_name() == SHARED_AS_IN) {
        let shared = (*verb).clone().mut_args(|arg| hidden_if(arg, |arg| !is_shared(arg)));
        page += &rendered(|into| Man::new(shared).render_options_section(into))?;
    }
    page += ENVIRONMENT;
    page += &after_help(&command, ".SH");
    Ok(page)
}

fn is_shown(verb: &Command) -> bool {
    !verb.is_hide_set() && verb.get_name() != "help"
}

/// The section of a verb: what it does, the arguments that only it has, and examples.
fn about(verb: &Command) -> io::Result<String> {
    let own = Man::new(
        verb.clone().mut_args(|arg| hidden_if(arg, |arg| is_shared(arg) || arg.get_id() == "help")),
    );
    let name = verb.get_name().to_uppercase();
    let text = rendered(|into| own.render_description_section(into))?;
    let text = text.replace(".SH DESCRIPTION", &format!(".SH {name}"));
    let options = rendered(|into| own.render_options_section(into))?;
    Ok(text + &options.replace(".SH OPTIONS", ".SS Arguments") + &after_help(verb, ".SS"))
}

/// Whether several verbs have this flag.
fn is_shared(arg: &Arg) -> bool {
    matches!(arg.get_help_heading(), Some("Nodes" | "Timing" | "Output"))
}

fn hidden_if(arg: Arg, test: impl Fn(&Arg) -> bool) -> Arg {
    let hide = arg.is_hide_set() || test(&arg);
    arg.hide(hide)
}

fn rendered(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> io::Result<String> {
    let mut bytes = Vec::new();
    render(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The text after a verb's help, as roff: paragraphs, and lists with a title, whose lines are not
/// wrapped.
fn after_help(command: &Command, heading: &str) -> String {
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut page = String::new();
    for block in text.split("\n\n") {
        match block.split_once(":\n") {
            Some((title, list)) => {
                let title = if heading == ".SH" { title.to_uppercase() } else { title.to_string() };
                page += &format!("{heading} \"{title}\"\n.nf\n");
                list.lines().for_each(|line| page += &format!("{}\n", escaped(line)));
                page += ".fi\n";
            }
            None => page += &format!(".PP\n{}\n", escaped(block)),
        }
    }
    page
}

/// A line, escaped for roff.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn man_escapes_roff_control_characters() {
        assert_eq!(escaped(".x -n \\ 'a'"), "\\&.x \\-n \\e \\(aqa\\(aq");
    }

    #[test]
    fn every_verb_has_a_section_and_what_they_share_is_printed_once() {
        let page = page().unwrap();
        for verb in variables::command().get_subcommands() {
            let heading = format!("\n.SH {}\n", verb.get_name().to_uppercase());
            assert_eq!(page.matches(&heading).count(), usize::from(is_shown(verb)), "{heading}");
        }
        assert_eq!(page.matches("\n.SH NODES").count(), 1);
        assert_eq!(page.matches("\n\\fB\\-\\-node\\-timeout\\fR").count(), 1);
    }
}
