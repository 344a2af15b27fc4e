//! The tool while a node is frozen: it waits only for the answers that it needs, and says where a
//! key may be left.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A node timeout that is so long that a test notices if the tool waits for it.
const PATIENT: &str = "10s";

/// As `tool_on`, with the node timeout of these tests.
fn patient_tool_on(fleet: &Fleet, arguments: &[&str]) -> Command {
    tool_at(&fleet.urls(), &["--no-restart-guard", "--node-timeout", PATIENT], arguments)
}

/// The duration of the shortest of five runs, each with another key.
#[track_caller]
fn shortest(fleet: &Fleet, before: &[&str], after: &[&str]) -> Duration {
    static KEYS: AtomicU32 = AtomicU32::new(0);
    let run = |_| {
        let key = format!("key:{}", KEYS.fetch_add(1, Ordering::Relaxed));
        let arguments = [before, &[key.as_str()], after].concat();
        run(&mut patient_tool_on(fleet, &arguments)).with_code(0).ran
    };
    (0..5).map(run).min().expect("it ran")
}

/// Starts the tool, and waits until all nodes hold the key `job`. Starts it again if a node was
/// connected too late to be asked, as on a busy machine.
#[track_caller]
fn held_on_all_nodes(fleet: &Fleet, arguments: &[&str]) -> Running {
    let is_held = || values(fleet, "job").iter().all(Option::is_some);
    loop {
        let mut tool = Running::start(&mut patient_tool_on(fleet, arguments));
        eventually(LIMIT, "all hold it, or it has ended", || is_held() || tool.try_reap());
        if is_held() {
            return tool;
        }
        tool.end(LIMIT).with_code(0);
    }
}

#[test]
fn a_frozen_minority_delays_neither_acquire_nor_exec() {
    let fleet = Fleet::start(5);
    let both = || {
        let exec = shortest(&fleet, &["exec"], &["--", "true"]);
        [exec, shortest(&fleet, &["acquire", "-t", "5s"], &[])]
    };
    let healthy = both();
    fleet[4].stop();
    let timer = PlainTimer::start();
    let frozen = both();
    println!("exec and acquire: {healthy:?}; one of five frozen: {frozen:?}");
    let more = timer.limit(Duration::from_millis(100));
    for (healthy, frozen) in healthy.iter().zip(frozen) {
        assert!(frozen < *healthy * 3 / 2 + more, "{frozen:?}");
    }
    fleet[4].cont();
}

#[test]
fn a_node_that_froze_under_the_lock_delays_the_exit_code_by_50_ms_and_is_named() {
    let fleet = Fleet::start(3);
    for json in [true, false] {
        let mut arguments = vec!["exec", "-t", "30s"];
        arguments.extend(json.then_some("--json"));
        // CMD runs for longer than the time after which the client replaces a silent connection.
        arguments.extend(["job", "--", "sleep", "1.5"]);
        let tool = held_on_all_nodes(&fleet, &arguments);
        fleet[2].stop();
        let ended = tool.end(LIMIT).with_code(0);
        assert!(ended.ran < 9 * SECOND, "{ended:?}");
        let label = label(&fleet[2]);
        let line = ended.errors.lines().find(|line| line.contains("released"));
        let line = line.unwrap_or_else(|| panic!("{ended:?}"));
        if json {
            let event: Value = serde_json::from_str(line).expect("one object a line");
            assert_eq!(event["outcome"], "released", "{line}");
            assert_eq!(event["unconfirmed"][0], label.as_str(), "{line}");
        } else {
            let text = "released; the key may stay for its ttl where no answer came";
            assert!(line.contains(&format!("{text} ({label})")), "{line}");
        }
        fleet[2].cont();
        fleet[2].command(&["DEL", "job"]);
        nothing_is_left(&fleet);
    }
}

#[test]
fn a_node_that_comes_back_while_the_tool_waits_gets_its_release() {
    let fleet = Fleet::start(3);
    let script =
        format!("kill -STOP {0}; sleep 1.2; (sleep 0.02; kill -CONT {0}) &", fleet[2].pid());
    let arguments = ["exec", "-t", "30s", "job", "--", "sh", "-c", &script];
    // The tool waits for only 50 ms. On a busy machine the node may come back later, so this is
    // tried several times.
    let comes_back_in_time = || {
        let ended = run(&mut patient_tool_on(&fleet, &arguments)).with_code(0);
        if !ended.errors.is_empty() {
            assert!(ended.errors.contains("the key may stay for its ttl"), "{ended:?}");
            println!("{ended:?}");
            fleet[2].command(&["DEL", "job"]);
            return false;
        }
        nothing_is_left(&fleet);
        true
    };
    assert!((0..10).any(|_| comes_back_in_time()), "it got no release in ten runs");
}
