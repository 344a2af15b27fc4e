//! What the tests of `elect`, `leader` and `resign` share: candidates as processes, and what the
//! nodes say of them.

use std::fs::File;
use std::path::Path;

use super::exec::Desk;
use super::*;

/// A fleet whose grants count at once, and its desk. A leader's lock has a fencing number, so the
/// restart guard is on.
pub fn vouched() -> (Fleet, Desk) {
    let (fleet, desk) = Desk::with_fleet(3);
    run(&mut on(&fleet, &["init", "--yes"])).with_code(0);
    (fleet, desk)
}

/// The tool with a verb and its flags, on the nodes of this fleet and with [`NODE_TIMEOUT`].
pub fn on(fleet: &Fleet, arguments: &[&str]) -> Command {
    let (verb, rest) = arguments.split_first().expect("a verb");
    let mut command = tool(&[verb, "--node-timeout", NODE_TIMEOUT]);
    command.args(rest).env("REDLATCH_SERVERS", fleet.urls().join(","));
    command
}

/// A candidate whose events are in a file of the desk, `NAME.events`.
pub struct CandidateProcess {
    pub running: Running,
    name: &'static str,
}

/// The command that runs `redlatch elect scheduler` with a shell script, in the desk's directory.
/// The candidate's address is `NAME:80`.
pub fn elect(fleet: &Fleet, desk: &Desk, name: &str, flags: &[&str], script: &str) -> Command {
    let address = format!("{name}:80");
    let own = ["elect", "--name", name, "--address", &address, "--json"];
    let rest = ["scheduler", "--", "sh", "-c", script];
    let mut command = on(fleet, &[&own[..], flags, &rest].concat());
    command.current_dir(desk.path(""));
    command
}

impl CandidateProcess {
    pub fn start(
        fleet: &Fleet,
        desk: &Desk,
        name: &'static str,
        flags: &[&str],
        script: &str,
    ) -> CandidateProcess {
        let log = File::create(file(desk, name)).expect("the desk can be written");
        let running = Running::start(elect(fleet, desk, name, flags, script).stderr(log));
        CandidateProcess { running, name }
    }

    /// Its events so far. All other lines are CMD's.
    pub fn events(&self, desk: &Desk) -> Vec<Value> {
        let text = std::fs::read_to_string(file(desk, self.name)).expect("it is there");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let ours = whole.lines().filter(|line| line.starts_with('{'));
        ours.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Its events of this name so far.
    pub fn named(&self, desk: &Desk, event: &str) -> Vec<Value> {
        self.events(desk).into_iter().filter(|it| it["event"] == event).collect()
    }

    /// Waits until it has begun so many terms, and returns their numbers.
    #[track_caller]
    pub fn terms(&self, desk: &Desk, count: usize) -> Vec<u64> {
        let what = format!("{} has led {count} times", self.name);
        eventually(LIMIT, &what, || self.named(desk, "leading").len() >= count);
        let terms = self.named(desk, "leading");
        terms.iter().map(|event| event["term"].as_u64().expect("a number")).collect()
    }
}

fn file(desk: &Desk, name: &str) -> impl AsRef<Path> + use<> {
    desk.path(&format!("{name}.events"))
}

/// Waits until so many waiters stand in line on a majority of the nodes. A node that a waiter asked
/// before the leader did holds the waiter's token, and not the leader's.
#[track_caller]
pub fn wait_in_line(fleet: &Fleet, count: i64) {
    eventually(LIMIT, "they stand in line", || {
        let in_line = |node: &&Node| {
            node.command(&["ZCARD", "redlatch:line:{scheduler}"]) == support::Value::Int(count)
        };
        fleet.iter().filter(in_line).count() > fleet.len() / 2
    });
}

/// Waits until `redlatch leader` prints a line with these words, and returns the line.
#[track_caller]
pub fn leader_is(fleet: &Fleet, words: &str) -> String {
    let mut seen = String::new();
    eventually(LIMIT, &format!("the leader is {words}"), || {
        seen = run(&mut on(fleet, &["leader", "scheduler"])).out;
        seen.contains(words)
    });
    seen
}

/// A CMD that runs until it is stopped, and says so in the file `up`.
pub const UNTIL_STOPPED: &str = "echo $$ > up; while [ -e up ]; do sleep 0.05; done";
