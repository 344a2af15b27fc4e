//! Gives a flag that is not on the command line the value of its environment variable, or else that
//! of the configuration file.
//!
//! The name of a variable is made from that of the flag, so every flag has one. The hazard is a
//! variable that contradicts a flag (REDLATCH_WAIT and `--nonblock`). The flag counts more, so such
//! a variable is left out before the arguments are parsed.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use redlatch::ConfigFile;

use crate::arguments::{Arguments, Output};
use crate::{config_file, exit, output};

/// The parser's definitions of all verbs, with the variables of their flags.
pub fn command() -> Command {
    let verbs: Vec<String> = Arguments::command().get_subcommands().map(name_of).collect();
    let with_all = |verb: Command| with_variables(verb, |_| false);
    verbs.iter().fold(Arguments::command(), |tool, verb| tool.mut_subcommand(verb, with_all))
}

/// Parses the arguments, with the variables and the configuration file as defaults. Prints an
/// error, the help or the version, and then returns the exit code as the error.
pub fn parse(words: Vec<OsString>) -> Result<Arguments, ExitCode> {
    let mut tool = Arguments::command();
    let alone = match tool.try_get_matches_from_mut(&words) {
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return Err(refused(error)),
        alone => alone.ok(),
    };
    let Some((verb, given)) = alone.as_ref().and_then(ArgMatches::subcommand) else {
        let matches = command().try_get_matches_from(&words);
        return matches.and_then(|it| Arguments::from_arg_matches(&it)).map_err(refused);
    };
    let built = tool.find_subcommand(verb).expect("the parser knows it");
    let file = if takes_file(built) { config_file::load(given) } else { Ok(ConfigFile::default()) };
    // `exec` and `elect` print no JSON on stdout, which belongs to CMD.
    let prints_json = !matches!(verb, "exec" | "elect");
    let json = prints_json && matches!(given.try_get_one("json"), Ok(Some(true)));
    let how = Output { quiet: false, verbose: false, json };
    let file = file.map_err(|refusal| refusal.report(&how))?;
    let matches = completed(built, given, &file).try_get_matches_from(&words);
    matches.and_then(|it| Arguments::from_arg_matches(&it)).map_err(|error| {
        let note = variable_in(&error, verb, given);
        let code = refused(error);
        note.into_iter().for_each(|note| output::complain(&note));
        code
    })
}

/// The definitions with the variables and the file's values for this verb, without those that a
/// given flag contradicts. `built` are the verb's definitions after they have parsed the arguments.
fn completed(built: &Command, given: &ArgMatches, file: &ConfigFile) -> Command {
    let named: Vec<&Arg> = built.get_arguments().filter(|arg| is_given(given, arg)).collect();
    let excludes = |one: &Arg, other: &Arg| {
        built.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let contradicted = |arg: &Arg| {
        let arg = built.get_arguments().find(|it| it.get_id() == arg.get_id());
        arg.is_some_and(|arg| named.iter().any(|it| excludes(arg, it) || excludes(it, arg)))
    };
    Arguments::command().mut_subcommand(built.get_name(), |verb| {
        let has_defaults = takes_file(&verb);
        let verb = with_variables(verb, contradicted);
        if has_defaults { config_file::with_defaults(verb, file) } else { verb }
    })
}

/// Whether a verb takes a configuration file. This asks the definitions, because only in a debug
/// build do the matches show that a verb does not have an argument.
fn takes_file(verb: &Command) -> bool {
    verb.get_arguments().any(|arg| arg.get_id() == "config")
}

fn is_given(given: &ArgMatches, arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    // In a debug build `value_source` panics for flags such as `--help`, so this asks before.
    given.try_contains_id(id).is_ok() && given.value_source(id) == Some(ValueSource::CommandLine)
}

/// Returns the verb with a variable for each of its flags, except the empty variables and those for
/// which `left_out` returns `true`.
fn with_variables(verb: Command, left_out: impl Fn(&Arg) -> bool) -> Command {
    verb.mut_args(|arg| {
        let Some(name) = variable(&arg) else { return arg };
        let is_empty = env::var_os(&name).is_some_and(|value| value.is_empty());
        if is_empty || left_out(&arg) {
            return arg;
        }
        let is_switch = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse);
        // The help must not show the value, which may have a password.
        let arg = arg.env(name).hide_env_values(true);
        if is_switch { arg.value_parser(BoolishValueParser::new()) } else { arg }
    })
}

/// The variable of a flag.
fn variable(arg: &Arg) -> Option<String> {
    let long = arg.get_long()?;
    if matches!(long, "help" | "version") {
        return None;
    }
    // The flag takes one server, its variable a list.
    let long = if long == "server" { "servers" } else { long };
    Some(format!("REDLATCH_{}", long.to_uppercase().replace('-', "_")))
}

fn name_of(verb: &Command) -> String {
    verb.get_name().to_string()
}

fn refused(error: clap::Error) -> ExitCode {
    exit::not_understood(&error)
}

/// A line that names the variable, if the refused value came from one.
fn variable_in(error: &clap::Error, verb: &str, given: &ArgMatches) -> Option<String> {
    let flag = error.get(ContextKind::InvalidArg)?.to_string();
    let flag = flag.split([' ', '=']).next()?.strip_prefix("--")?.to_string();
    let tool = Arguments::command();
    let arg =
        tool.find_subcommand(verb)?.get_arguments().find(|it| it.get_long() == Some(&flag))?;
    let name = variable(arg).filter(|_| !is_given(given, arg))?;
    env::var_os(&name).map(|_| format!("redlatch: --{flag} has this value from {name}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn definitions_are_consistent_with_their_variables() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_of_every_verb_has_a_variable_of_its_own() {
        for verb in command().get_subcommands() {
            let mut names = Vec::new();
            for arg in verb.get_arguments().filter(|arg| arg.get_long().is_some()) {
                let long = arg.get_long().unwrap_or_default();
                if long == "help" {
                    continue;
                }
                let name = arg.get_env().and_then(|name| name.to_str());
                assert!(name.is_some_and(|it| it.starts_with("REDLATCH_")), "{verb} --{long}");
                assert!(arg.is_hide_env_values_set(), "--{long}");
                names.push(name);
            }
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{verb}");
        }
    }

    #[test]
    fn file_is_the_default_and_a_flag_counts_more() {
        let file = ConfigFile {
            servers: vec!["a:1".into(), "b:1".into()],
            ttl: Some(Duration::from_millis(1500)),
            wait: Some(Duration::from_secs(7)),
            key_prefix: Some("file:".into()),
            owner: Some("file".into()),
            ..ConfigFile::default()
        };
        let parsed = |words: &[&str]| {
            let words = [&["redlatch", "status"], words].concat();
            let mut tool = Arguments::command();
            let alone = tool.try_get_matches_from_mut(&words).unwrap();
            let given = alone.subcommand().unwrap().1;
            let built = tool.find_subcommand("status").unwrap();
            let matches = completed(built, given, &file).try_get_matches_from(&words).unwrap();
            match Arguments::from_arg_matches(&matches).unwrap().verb {
                crate::arguments::Verb::Status(options) => {
                    (options.common.nodes, options.common.timing)
                }
                other => panic!("{other:?}"),
            }
        };
        let (nodes, timing) = parsed(&[]);
        assert_eq!(nodes.servers, ["a:1", "b:1"]);
        assert_eq!(
            (timing.ttl, timing.node_timeout),
            (file.ttl.unwrap(), Duration::from_millis(250))
        );
        assert_eq!(timing.longest_wait(), file.wait);
        assert_eq!((&*nodes.key_prefix, nodes.owner.as_deref()), ("file:", Some("file")));
        let (nodes, timing) = parsed(&["-s", "c:1", "-n", "-t", "2s", "--key-prefix", ""]);
        assert_eq!((nodes.servers.len(), &*nodes.key_prefix), (1, ""));
        assert_eq!(
            (timing.ttl, timing.longest_wait()),
            (Duration::from_secs(2), Some(Duration::ZERO))
        );
    }
}
