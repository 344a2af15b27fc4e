//! Lets flags stand before the verb: `redlatch -s URL status` means `redlatch status -s URL`. Moves
//! the flags that the verbs share after the verb, before the arguments are parsed.
//!
//! The hazard is to take the value of a flag for the verb. So the parser's definitions decide
//! whether a flag has a value. If a flag is unknown, nothing is moved, and the parser reports it.

use std::ffi::OsString;

use clap::{Arg, Command};

/// Returns the arguments with the flags before the verb moved after it. The first argument is the
/// program. Builds the definitions only if there are such flags, because that takes a millisecond.
pub fn after_verb(
    mut arguments: Vec<OsString>,
    definitions: impl FnOnce() -> Command,
) -> Vec<OsString> {
    let first = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    if !first.starts_with('-') || matches!(first, "-V" | "--version" | "-h" | "--help") {
        return arguments;
    }
    let tool = definitions();
    let Some(shared) = tool.find_subcommand("status") else { return arguments };
    let mut verb = 1;
    loop {
        let Some(word) = arguments.get(verb).and_then(|word| word.to_str()) else {
            return arguments;
        };
        if !word.starts_with('-') {
            break;
        }
        let Some(words) = words_of_flag(word, shared) else { return arguments };
        verb += words;
    }
    // What stands before the verb moves after it, in the same order.
    arguments[1..=verb].rotate_right(1);
    arguments
}

/// How many arguments a flag and its value take; `None` if it is not a flag that the verbs share.
fn words_of_flag(word: &str, shared: &Command) -> Option<usize> {
    let takes_value = |arg: &Arg| arg.get_action().takes_values();
    if let Some(long) = word.strip_prefix("--") {
        let (name, attached) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        let arg = shared.get_arguments().find(|arg| arg.get_long() == Some(name))?;
        return Some(if takes_value(arg) && !attached { 2 } else { 1 });
    }
    let mut letters = word.strip_prefix('-')?.chars();
    let mut words = None;
    while let Some(letter) = letters.next() {
        let arg = shared.get_arguments().find(|arg| arg.get_short() == Some(letter))?;
        if takes_value(arg) {
            return Some(if letters.as_str().is_empty() { 2 } else { 1 });
        }
        words = Some(1);
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    #[track_caller]
    fn check(line: &str, moved: &str) {
        let words = line.split(' ').map(OsString::from).collect();
        let found = after_verb(words, Arguments::command);
        let found: Vec<&str> = found.iter().map(|word| word.to_str().expect("ASCII")).collect();
        assert_eq!(found.join(" "), moved);
    }

    #[test]
    fn flags_before_the_verb_are_moved_after_it_with_their_values() {
        check("redlatch -s URL status", "redlatch status -s URL");
        check("redlatch -sURL -qt 5s status a", "redlatch status -sURL -qt 5s a");
        check(
            "redlatch --server=URL --json exec k -- c",
            "redlatch exec --server=URL --json k -- c",
        );
        check("redlatch --node-timeout 1s exec -n k", "redlatch exec --node-timeout 1s -n k");
    }

    #[test]
    fn flags_that_are_not_shared_are_left_to_the_parser() {
        for line in [
            "redlatch",
            "redlatch status -s URL",
            "redlatch --help",
            "redlatch -V",
            "redlatch -s",
            "redlatch -s URL",
            "redlatch --frobnicate status",
            "redlatch - status",
        ] {
            check(line, line);
        }
    }
}
