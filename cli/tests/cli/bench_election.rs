//! `bench --election`: how long candidates have no leader, and what is on the nodes afterwards.

use support::{Folder, Node};

use super::elections::*;
use super::exec::{parent_of, state_of};
use super::*;

/// A candidate of another program: the lock is that of a file, and its holder leads.
const BY_FLOCK: &str = "exec 9> \"$LOCK\"; flock 9; echo leading; exec sleep 1000";

fn bench(fleet: &Fleet, flags: &[&str]) -> Command {
    let own = ["bench", "--election", "--candidates", "3", "--changes", "2", "-t", "1s"];
    on(fleet, &[&own[..], flags].concat())
}

/// Whether this node has the lock of the bench's election.
fn has_leader(node: &Node) -> bool {
    node.keys().iter().any(|key| key.starts_with(b"redlatch-bench:"))
}

/// The processes that this process started.
fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("it is mounted");
    let numbers = processes.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|&it| parent_of(it) == Some(parent)).collect()
}

#[test]
fn bench_measures_the_time_to_the_next_leader_and_leaves_no_lock() {
    let (fleet, _desk) = vouched();
    let ended = run(&mut bench(&fleet, &["--json"])).with_code(0);
    assert_eq!(ended.errors, "");
    let json = ended.json();
    let rows = json.as_array().expect("a list");
    let ways: Vec<_> = rows.iter().map(|row| row["leader_goes_by"].as_str()).collect();
    assert_eq!(ways, ["resign", "kill", "stop"].map(Some));
    for row in rows {
        let expected =
            ["nodes", "candidates", "ttl_ms", "leader_goes_by", "changes", "next_leader_us"];
        assert_eq!(fields(row), expected);
        let settings = (&row["nodes"], &row["candidates"], &row["ttl_ms"], &row["changes"]);
        assert_eq!(settings, (&3.into(), &3.into(), &1000.into(), &2.into()));
        let times = ["p50", "p90", "p99", "p999", "max"]
            .map(|it| row["next_leader_us"][it].as_f64().expect("a number"));
        assert!(times.is_sorted() && times[0] > 0.0, "{row}");
    }
    // A leader that is gone without a word is believed until its lock ends.
    let longest = |row: &Value| row["next_leader_us"]["max"].as_f64().expect("a number");
    assert!(longest(&rows[1]) > 100_000.0 && longest(&rows[2]) > 100_000.0, "{json}");
    // The lock itself is gone; its counter and the leader's address expire.
    assert!(!fleet.iter().any(has_leader), "no lock is left");
}

#[test]
fn bench_ends_its_candidates_when_a_signal_ends_it() {
    let (fleet, _desk) = vouched();
    let running = Running::start(&mut bench(&fleet, &["--changes", "1000"]));
    eventually(LIMIT, "a candidate leads", || fleet.iter().all(has_leader));
    let candidates = children(running.id());
    assert!(!candidates.is_empty(), "the candidates are processes");
    running.signal(Signal::TERM);
    running.end(LIMIT).with_code(128 + 15);
    assert!(candidates.into_iter().all(|it| state_of(it).is_none()), "the candidates are gone");
    assert!(!fleet.iter().any(has_leader), "the leader gave its lock back");
}

#[test]
fn bench_runs_the_candidates_of_another_program() {
    let files = Folder::new();
    let flags = ["bench", "--election", "--leader-goes-by", "kill", "-t", "200ms"];
    let own = ["--candidates", "3", "--changes", "3", "--json", "--candidate-cmd", BY_FLOCK];
    let mut command = tool(&[&flags[..], &own].concat());
    let json = run(command.env("LOCK", files.path("lock"))).with_code(0).json();
    assert_eq!((&json[0]["nodes"], &json[0]["changes"]), (&Value::Null, &3.into()));
    assert!(json[0]["next_leader_us"]["p50"].as_f64() > Some(0.0), "{json}");
}

#[test]
fn bench_refuses_an_election_that_cannot_be_measured_before_it_starts_a_candidate() {
    let cases: [(&[&str], &str); 6] = [
        (&["--candidates", "1"], "--candidates 1: it can be 2 to 64"),
        (&["--changes", "0"], "--changes 0: it can be 1 to 100000"),
        (&["--contended"], "cannot be used with"),
        (&["--duration", "3s"], "cannot be used with"),
        (&["--leader-goes-by", "magic"], "resign, kill, stop"),
        (&["-t", "10ms"], "10ms"),
    ];
    for (flags, message) in cases {
        let all = [&["bench", "--election", "-s", "127.0.0.1:1"], flags].concat();
        let ended = run(&mut tool(&all)).with_code(125);
        assert!(ended.errors.contains(message), "{flags:?}: {ended:?}");
    }
    let ended = run(&mut tool(&["bench", "--candidates", "3", "-s", "127.0.0.1:1"]));
    assert!(ended.with_code(125).errors.contains("--election"));
}

#[test]
fn bench_reports_what_refuses_the_first_candidate() {
    let (fleet, _desk) = vouched();
    let ended = run(&mut bench(&fleet, &["--no-restart-guard"])).with_code(125);
    assert!(ended.errors.contains("the restart guard is off"), "{ended:?}");
    assert!(ended.errors.contains("the first candidate ended before it led"), "{ended:?}");
    let ended = run(&mut tool(&["bench", "--election", "--candidate-cmd", "echo no", "-t", "1s"]));
    assert!(ended.with_code(125).errors.contains("the first candidate ended before it led"));
}
