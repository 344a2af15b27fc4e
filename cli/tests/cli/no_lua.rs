//! Every verb of the tool on servers that run no Lua scripts for it: its exit code and its text.
//! Servers differ: Valkey from 9.1 on can be without Lua, any server can forbid scripts by an ACL,
//! and only some have commands in the place of scripts.

use super::hold::Holding;
use super::top::{CollectUntil, started};
use super::*;

pub const NO_LUA: &str =
    "runs no Lua scripts, which several keys, a fencing number and an extend by token need";

const NOPERM: &str = "denies a permission (ACL) (NOPERM this user has no permissions to run the \
                      'eval' command";

/// Servers without Lua; `None` if Lua is no module of this server.
pub fn without_lua(count: usize) -> Option<Fleet> {
    let server = support::Server::get();
    if !server.valkey || server.version < (9, 1) {
        println!("not run: {} {:?} has no module lua", server.binary, server.version);
        return None;
    }
    let fleet = Fleet::with(count, &["--enable-module-command", "yes"]);
    fleet.command(&["MODULE", "UNLOAD", "lua"]);
    Some(fleet)
}

/// Servers that forbid scripts to the user `worker`.
fn that_forbid_scripts() -> Fleet {
    let fleet = Fleet::start(3);
    for node in &fleet {
        let rule = ["on", ">zebra", "~*", "&*", "+@all", "-@scripting"];
        assert!(node.command(&[&["ACL", "SETUSER", "worker"], &rule[..]].concat()).is_ok());
    }
    fleet
}

/// Whether the server has commands that compare and set, and that compare and delete.
fn replaces_scripts() -> bool {
    let server = support::Server::get();
    server.version >= if server.valkey { (9, 0) } else { (8, 4) }
}

/// The words of a verb, its exit code, and a text of its output. The rows run one after the other:
/// `TOKEN` is what the last `acquire` printed.
type Row<'a> = (&'a [&'a str], i32, &'a str);

const PLAIN_LOCKS: [Row<'_>; 21] = [
    (&["acquire", "-t", "60s", "deploy"], 0, ""),
    (&["acquire", "-n", "deploy"], 75, "held"),
    (&["status"], 0, "3 of 3 nodes can grant"),
    (&["status", "deploy"], 1, "held by"),
    (&["list"], 0, "deploy"),
    (&["wait", "-n", "deploy"], 75, "did not become free"),
    (&["exec", "-n", "deploy", "--", "true"], 75, "held"),
    (&["extend", "-t", "60s", "deploy", "TOKEN"], 125, NO_LUA),
    (&["release", "deploy", "TOKEN"], 0, "released"),
    (&["release", "deploy", "TOKEN"], 1, ""),
    (&["wait", "deploy"], 0, ""),
    // The lock is kept while the command runs for longer than its ttl.
    (&["exec", "-t", "1s", "deploy", "--", "sleep", "2"], 0, ""),
    (&["acquire", "-t", "60s", "deploy"], 0, ""),
    (&["force-release", "--yes", "deploy"], 0, "deleted TOKEN"),
    (&["acquire", "a", "b"], 125, NO_LUA),
    (&["exec", "--also", "b", "a", "--", "true"], 125, NO_LUA),
    (&["list"], 0, "no lock is held"),
    (&["bench", "--duration", "100ms"], 0, "pairs/s"),
    (&["members"], 1, "no list"),
    (&["members", "resume"], 125, "no server has a list"),
    (&["members", "undo"], 125, "no server has a list"),
];

const NO_LOCKS: [Row<'_>; 16] = [
    (&["acquire", "deploy"], 125, NOPERM),
    (&["status"], 69, "denies a permission (ACL)"),
    (&["status", "deploy"], 69, "deploy: not known: fewer than 2 of 3 nodes answered"),
    (&["list"], 69, NOPERM),
    (&["wait", "deploy"], 125, NOPERM),
    (&["exec", "deploy", "--", "true"], 125, NOPERM),
    (&["hold", "deploy"], 125, NOPERM),
    (&["extend", "deploy", "TOKEN"], 125, NOPERM),
    (&["release", "deploy", "TOKEN"], 125, NOPERM),
    (&["force-release", "--yes", "deploy"], 125, NOPERM),
    (&["exec", "--also", "b", "a", "--", "true"], 125, NOPERM),
    (&["bench", "--duration", "100ms"], 125, NOPERM),
    (&["members"], 1, "no list"),
    (&["members", "resume"], 125, "no server has a list"),
    (&["doctor"], 1, "no permissions to run the 'eval' command"),
    (&["init", "--yes"], 125, NOPERM),
];

/// The tool on these servers, as this user.
fn tool_as(user: &str, fleet: &Fleet, words: &[&str]) -> Command {
    let urls = fleet.iter().map(|node| format!("redis://{user}{}", node.address()));
    let mut command = tool_on(fleet, words);
    command.env("REDLATCH_SERVERS", urls.collect::<Vec<_>>().join(","));
    command
}

/// Runs every row.
#[track_caller]
fn play(rows: &[Row<'_>], user: &str, fleet: &Fleet) {
    let mut token = foreign_token();
    for (words, code, text) in rows {
        let words: Vec<&str> =
            words.iter().map(|&word| if word == "TOKEN" { &*token } else { word }).collect();
        let ended = run(&mut tool_as(user, fleet, &words));
        println!("redlatch {}: {ended:?}", words.join(" "));
        let ended = ended.with_code(*code);
        // A table breaks long lines.
        let said = format!("{} {}", ended.out, ended.errors);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let wanted = text.replace("TOKEN", &token);
        assert!(said.contains(&wanted), "{words:?}: {wanted}: {said}");
        if *code != 0 || words[0] != "list" {
            assert!(!said.contains("no lock is held"), "{words:?}: {said}");
        }
        if words[0] == "acquire" && *code == 0 {
            token = ended.out.trim().to_owned();
        }
    }
}

/// What `top` shows once it has asked the nodes for their keys.
#[track_caller]
fn assert_top_shows(text: &str, user: &str, fleet: &Fleet) {
    let (running, lines) = started(tool_as(user, fleet, &["top", "--every", "100ms"]));
    let seen: Vec<String> = lines.take(2_000).collect_until(text);
    assert!(seen.last().is_some_and(|line| line.contains(text)), "{text}: {seen:#?}");
    drop(running);
}

fn verbs_work_or_say_what_they_need(user: &str, fleet: &Fleet) {
    play(&PLAIN_LOCKS, user, fleet);
    let mut holding = Holding::start(&mut tool_as(user, fleet, &["hold", "-t", "4s", "key"]));
    assert_eq!(holding.token.find(':'), Some(40), "{:?}", holding.token);
    assert_top_shows("key", user, fleet);
    drop(holding.stdin.take());
    holding.tool.end(LIMIT).with_code(0);
    assert_top_shows("no lock is held", user, fleet);
    assert_eq!(fleet.keys_everywhere(), []);
}

#[test]
fn every_verb_works_without_lua_or_says_what_it_needs() {
    let Some(fleet) = without_lua(3) else { return };
    verbs_work_or_say_what_they_need("", &fleet);
}

#[test]
fn every_verb_where_scripts_are_forbidden_works_or_says_what_it_needs() {
    let fleet = that_forbid_scripts();
    if replaces_scripts() {
        return verbs_work_or_say_what_they_need("worker:zebra@", &fleet);
    }
    play(&NO_LOCKS, "worker:zebra@", &fleet);
    assert_top_shows("no lock is known: too few nodes answer", "worker:zebra@", &fleet);
}
