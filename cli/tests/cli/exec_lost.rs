//! `redlatch exec` with a lock that is lost: CMD and what it started have to be dead before another
//! client can get the lock.

use std::time::{SystemTime, UNIX_EPOCH};

use super::exec::{Desk, events, exec, names, started, state_of};
use super::*;

/// A script that writes the time into a file while the file `cmd` exists. So the process ends with
/// the test's directory, even if the test fails.
pub const RECORD: &str = "while [ -e cmd ]; do date +%s%3N >> ";

/// Stops two of three masters, so that no majority answers.
pub fn stop_majority(fleet: &Fleet) {
    fleet.on([0, 1], Node::stop);
}

/// Continues the masters, which execute what they were sent meanwhile, and checks that no key is
/// left.
pub fn continue_masters(fleet: &Fleet) {
    fleet.on([0, 1], Node::cont);
    eventually(LIMIT, "nothing is left on any node", || fleet.keys_everywhere().is_empty());
}

/// The last moment in a record, without a last line that is incomplete.
pub fn last_moment(desk: &Desk, name: &str) -> u64 {
    let full = |line: &String| line.len() == now_ms().to_string().len();
    let lines = desk.lines(name);
    let last = lines.iter().rev().find(|line| full(line));
    last.expect("something was recorded").parse().expect("milliseconds")
}

pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    u64::try_from(now.as_millis()).expect("it is early enough")
}

/// The last deadline in these events.
pub fn last_deadline(events: &[Value]) -> u64 {
    let mut told = events.iter().rev().filter_map(|event| event["deadline_unix_ms"].as_u64());
    told.next().expect("it was acquired")
}

/// When a process of CMD last wrote into its log, and the deadline of the lock.
pub struct LastWords {
    pub log: String,
    pub last: u64,
    pub deadline: u64,
}

impl LastWords {
    /// How late the last write was, in words; `None` if it was before the deadline.
    fn too_late(&self) -> Option<String> {
        let LastWords { log, last, deadline } = self;
        (last >= deadline).then(|| format!("{log}: {} ms after the deadline", last - deadline))
    }
}

/// The machine is too busy for the test if a plain timer is later than this: then the 250 ms from
/// SIGKILL to the deadline may not be enough.
const IN_TIME: Duration = Duration::from_millis(25);

/// Runs `lose`, and checks that CMD and what it started were dead before the deadline. If they were
/// late and a plain timer was late, too, runs it again, at most five times in all.
#[track_caller]
pub fn assert_dead_before_the_deadline(mut lose: impl FnMut() -> Vec<LastWords>) {
    for _ in 0..5 {
        let timer = PlainTimer::start();
        let too_late: Vec<String> = lose().iter().filter_map(LastWords::too_late).collect();
        if too_late.is_empty() {
            return;
        }
        let plain = timer.latest();
        println!("a plain timer was late by {plain:?}, and CMD by {too_late:?}");
        assert!(plain > IN_TIME, "a plain timer was in time, and CMD was not: {too_late:?}");
    }
    panic!("CMD outlived its lock five times");
}

fn last_sent(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["sent"].as_str()).collect()
}

#[test]
fn a_cmd_that_ignores_sigterm_and_what_it_started_are_dead_before_the_deadline() {
    assert_dead_before_the_deadline(lose_under_a_cmd_that_ignores_sigterm);
}

fn lose_under_a_cmd_that_ignores_sigterm() -> Vec<LastWords> {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = format!(
        "echo $$ > cmd; sh -c \"trap '' TERM; echo \\$\\$ > below; {RECORD} below-log; done\" \
            > /dev/null 2>&1 &
        trap 'date +%s%3N >> told' TERM; {RECORD} log; done"
    );
    let redlatch = Running::start(&mut exec(&fleet, &desk, &["-t", "3s", "--json"], &script));
    let (cmd, below) = (desk.process("cmd"), desk.process("below"));
    desk.wait_for("below-log");
    stop_majority(&fleet);
    let ended = redlatch.end(LIMIT).with_code(124);
    assert_eq!((state_of(cmd), state_of(below)), (None, None));
    let events = events(&ended);
    let deadline = last_deadline(&events);
    assert_eq!(desk.lines("told").len(), 1, "SIGTERM comes once");
    assert!(last_moment(&desk, "told") < deadline);
    let last_words = ["log", "below-log"].map(|log| {
        let last = last_moment(&desk, log);
        assert!(last > last_moment(&desk, "told"), "{log} has a grace");
        LastWords { log: log.to_owned(), last, deadline }
    });
    assert_eq!(last_sent(&events), ["SIGTERM", "SIGKILL"]);
    let lost = events.iter().find(|event| event["event"] == "lost").expect("it is logged");
    assert_eq!(lost["reason"], "deadline");
    let words = lost["message"].as_str().expect("a text");
    assert!(words.contains(&label(&fleet[0])), "{words}");
    continue_masters(&fleet);
    last_words.into()
}

/// The processor time that a process has used so far.
fn time_on_processors(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let (_, rest) = stat.rsplit_once(')').expect("the name ends");
    let ticks =
        rest.split_whitespace().skip(11).take(2).map(|it| it.parse::<u64>().expect("ticks"));
    Duration::from_millis(10 * ticks.sum::<u64>())
}

/// On a busy machine the kernel lets a process that uses much processor time wait, so SIGKILL would
/// be late.
#[test]
fn exec_uses_little_of_a_processor_while_it_waits_for_what_cmd_started() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script =
        "sh -c \"trap '' TERM; echo up > below; sleep 60\" > /dev/null 2>&1 & echo up > cmd
        trap 'exit 3' TERM; wait";
    let flags = ["-t", "12s", "--grace", "5s", "--no-renew", "--json", "--foreground"];
    let redlatch = Running::start(exec(&fleet, &desk, &flags, script).stderr(desk.log("events")));
    desk.wait_for("below");
    let is_told = || desk.lines("events").iter().any(|line| line.contains("SIGTERM"));
    eventually(LIMIT, "CMD gets SIGTERM", is_told);
    let (before, start) = (time_on_processors(redlatch.id()), Instant::now());
    eventually(LIMIT, "most of the grace is over", || start.elapsed() > 3 * SECOND);
    let used = time_on_processors(redlatch.id()) - before;
    println!("{used:?} of {:?}", start.elapsed());
    assert!(used < start.elapsed() / 10, "{used:?} of {:?}", start.elapsed());
    redlatch.end(LIMIT).with_code(124);
    fleet.wait_empty();
}

#[test]
fn cmd_that_ends_at_sigterm_within_its_grace_is_not_killed() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "trap 'echo tidy > log; exit 3' TERM; echo up > up; while :; do sleep 0.01; done";
    let flags = ["-t", "4s", "--grace", "2s", "--json"];
    let redlatch = started(&fleet, &desk, &flags, script);
    stop_majority(&fleet);
    let ended = redlatch.end(LIMIT).with_code(124);
    assert_eq!(desk.lines("log"), ["tidy"]);
    let events = events(&ended);
    assert_eq!(last_sent(&events), ["SIGTERM"]);
    let lost = events.iter().find(|event| event["event"] == "lost").expect("it is logged");
    assert_eq!(lost["reason"], "not_renewed", "its deadline had not come");
    let released = events.iter().find(|event| event["event"] == "released").expect("it is logged");
    let stopped: Vec<String> = (0..2).map(|node| label(&fleet[node])).collect();
    assert_eq!(released["unconfirmed"], serde_json::json!(stopped));
    let exit = events.iter().find(|event| event["event"] == "child_exit").expect("it is logged");
    assert_eq!((&exit["code"], &exit["exit_code"]), (&3.into(), &124.into()));
    continue_masters(&fleet);
}

#[test]
fn on_lost_kill_kills_cmd_at_once_and_on_lost_warn_lets_it_run_on() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "trap 'echo told >> log' TERM; echo up > up
        until [ -e go ]; do sleep 0.01; done; exit 3";
    let start = |how| {
        let _ = std::fs::remove_file(desk.path("up"));
        let flags = ["-t", "4s", "--json", "--on-lost", how];
        let running =
            Running::start(exec(&fleet, &desk, &flags, script).stderr(desk.log("events")));
        desk.wait_for("up");
        stop_majority(&fleet);
        running
    };
    assert_eq!(start("kill").end(LIMIT).code(), 124);
    continue_masters(&fleet);
    let warned = start("warn");
    let is_lost = || desk.lines("events").iter().any(|line| line.contains("\"lost\""));
    eventually(LIMIT, "the lock is lost", is_lost);
    desk.put("go");
    assert_eq!(warned.end(LIMIT).code(), 3);
    assert_eq!(desk.lines("log"), [""; 0], "nobody got SIGTERM");
    continue_masters(&fleet);
}

#[test]
fn a_lock_that_is_not_renewed_or_has_a_bound_ends_cmd() {
    let (fleet, desk) = Desk::with_fleet(3);
    let cases: [(&[&str], &str); 2] = [
        (&["-t", "4s", "--no-renew"], "not_renewed"),
        // A renewal comes late enough to be bounded by --max-hold, even on a busy machine.
        (&["-t", "6s", "--max-hold", "7s"], "max_hold"),
    ];
    for (flags, reason) in cases {
        let flags = [flags, &["--json"]].concat();
        let ended = run(&mut exec(&fleet, &desk, &flags, "sleep 60")).with_code(124);
        let events = events(&ended);
        let last = ["expiring", "lost", "child_exit", "released"];
        assert_eq!(names(&events[events.len() - 4..]), last, "{reason}");
        assert_eq!(events[events.len() - 3]["reason"], reason);
        fleet.wait_empty();
    }
    run(&mut exec(&fleet, &desk, &["--max-hold", "none"], "exit 3")).with_code(3);
}

#[test]
fn a_lock_that_another_takes_away_ends_cmd_at_once() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "trap 'echo told > log; exit' TERM; echo up > up; while :; do sleep 0.01; done";
    let redlatch = started(&fleet, &desk, &["-t", "60s", "--json"], script);
    for node in 0..2 {
        // Replaces the keys, as another holder would. Deleted keys would be healed.
        fleet[node].command(&["SET", "key", "another's"]);
    }
    let ended = redlatch.end(LIMIT).with_code(124);
    assert_eq!(desk.lines("log"), ["told"]);
    let events = events(&ended);
    let lost = events.iter().find(|event| event["event"] == "lost").expect("it is logged");
    assert_eq!(lost["reason"], "gone");
    assert_eq!(fleet[0].get("key").as_deref(), Some(&b"another's"[..]));
    eventually(SOON, "the third node is released", || fleet[2].keys().is_empty());
}

#[test]
fn exec_says_on_how_many_nodes_its_key_was_deleted_and_that_cmd_is_stopped() {
    let (fleet, desk) = Desk::with_fleet(3);
    for (flags, then) in [
        (&["-t", "60s"][..], "; CMD is stopped\n"),
        (&["-t", "60s", "--on-lost", "warn"], "; CMD runs on without the lock\n"),
    ] {
        let script = "echo up > up; for i in $(seq 300); do [ -e go ] && exit 3; sleep 0.1; done";
        let redlatch = Running::start(exec(&fleet, &desk, flags, script).stderr(desk.log("log")));
        desk.wait_for("up");
        eventually(LIMIT, "all hold it", || values(&fleet, "key").iter().all(Option::is_some));
        fleet.iter().take(2).for_each(|node| drop(node.command(&["DEL", "key"])));
        let told = || std::fs::read_to_string(desk.path("log")).unwrap_or_default();
        eventually(LIMIT, "the loss is reported", || told().contains("the lock is lost"));
        let why = "redlatch: the lock is lost (its key was deleted on 2 of 3 nodes, by DEL, \
            FLUSHALL, force-release or a restart without its data): needed 2 of 3 for \"key\": ";
        let text = told();
        assert!(text.starts_with(why) && text.contains(then), "{text}");
        assert!(!text.contains("no answer yet"), "{text}");
        desk.write("go", "");
        redlatch.end(LIMIT);
        let _ = std::fs::remove_file(desk.path("go"));
        let _ = std::fs::remove_file(desk.path("up"));
        fleet.wait_empty();
    }
}

/// Two masters lose only their markers. They may have forgotten the lock, so their answers do not
/// count for a renewal.
#[test]
fn exec_that_cannot_renew_names_the_nodes_that_do_not_count() {
    let (fleet, desk) = Desk::with_fleet(3);
    let guarded = |arguments: &[&str]| {
        let mut command = tool(arguments);
        command.env("REDLATCH_SERVERS", fleet.urls().join(",")).current_dir(desk.path(""));
        command
    };
    run(&mut guarded(&["init", "--yes", "--node-timeout", NODE_TIMEOUT])).with_code(0);
    let script = "trap 'exit 3' TERM; echo up > up; while :; do sleep 0.01; done";
    let words = ["exec", "-t", "9s", "--grace", "4s", "key", "--", "sh", "-c", script];
    let redlatch = Running::start(&mut guarded(&words));
    desk.wait_for("up");
    eventually(LIMIT, "all hold it", || values(&fleet, "key").iter().all(Option::is_some));
    fleet.iter().take(2).for_each(|node| drop(node.command(&["DEL", "redlatch:node"])));
    let ended = redlatch.end(LIMIT).with_code(124);
    let start = "redlatch: \"key\" could not be renewed: CMD was stopped, and ended ";
    let line = ended.errors.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("{ended:?}"));
    for node in fleet.iter().take(2) {
        let why = format!(
            "{} may have forgotten the lock, so its answers do not count for 5",
            node.address()
        );
        assert!(line.contains(&why), "{line}");
    }
    assert!(!line.contains(&label(&fleet[2])), "{line}");
}
