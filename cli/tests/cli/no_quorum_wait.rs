//! `--no-quorum-wait`: limits the wait while no quorum can be asked, and does not limit it
//! otherwise.

use super::*;

const BRIEF: [&str; 2] = ["--no-quorum-wait", "300ms"];

/// `acquire` and `exec` of the key with these flags.
fn waiters(fleet: &Fleet, flags: &[&str]) -> [Command; 2] {
    let verb = |verb: &str, rest: &[&str]| {
        let arguments = [&[verb][..], flags, &["key"], rest].concat();
        tool_on(fleet, &arguments)
    };
    [verb("acquire", &[]), verb("exec", &["--", "echo", "ran"])]
}

#[test]
fn no_quorum_wait_ends_on_dead_nodes() {
    let fleet = Fleet::start(3);
    fleet.on([0, 1], Node::kill);
    for mut waiter in waiters(&fleet, &BRIEF) {
        let ended = run(&mut waiter).with_code(69);
        assert!(ended.errors.contains("no quorum"), "{ended:?}");
        assert!(ended.ran >= Duration::from_millis(300), "{ended:?}");
        assert_eq!(ended.out, "", "{ended:?}");
    }
    assert_eq!(fleet.keys_everywhere(), []);
}

#[test]
fn no_quorum_wait_ends_where_the_quorum_is_lost_during_the_wait() {
    let fleet = Fleet::start(3);
    fleet.command(&["SET", "key", "another's", "PX", "600000"]);
    for mut waiter in waiters(&fleet, &BRIEF) {
        let waiting = Running::start(&mut waiter);
        // Waits for longer than the limit, to show that time in which a quorum answers does not
        // count.
        std::thread::sleep(Duration::from_millis(900));
        fleet.on([0, 1], Node::stop);
        let ended = waiting.end(LIMIT).with_code(69);
        assert!(ended.errors.contains("no quorum"), "{ended:?}");
        assert!(ended.took >= Duration::from_millis(250), "{ended:?}");
        fleet.on([0, 1], Node::cont);
    }
}

#[test]
fn no_quorum_wait_ends_where_a_quorum_refuses() {
    let fleet = Fleet::start(3);
    for node in fleet.iter().take(2) {
        assert!(node.command(&["CONFIG", "SET", "maxmemory", "1"]).is_ok());
    }
    for mut waiter in waiters(&fleet, &BRIEF) {
        let ended = run(&mut waiter).with_code(69);
        assert!(ended.errors.contains("memory"), "the reason is kept: {ended:?}");
    }
}

#[test]
fn no_quorum_wait_does_not_count_what_another_holds() {
    let fleet = Fleet::start(3);
    for mut waiter in waiters(&fleet, &BRIEF) {
        fleet.command(&["SET", "key", "another's", "PX", "4000"]);
        let ended = run(&mut waiter).with_code(0);
        assert!(ended.ran > SECOND, "{ended:?}");
        fleet.command(&["DEL", "key"]);
    }
}

#[test]
fn no_quorum_wait_lasts_until_nodes_are_back() {
    let fleet = Fleet::start(3);
    fleet.on([0, 1], Node::kill);
    let waiting = Running::start(&mut tool_on(&fleet, &["acquire", "key"]));
    std::thread::sleep(Duration::from_millis(500));
    fleet[0].restart();
    waiting.end(LIMIT).with_code(0);
}

#[test]
fn no_quorum_wait_does_not_count_quarantine() {
    let fleet = Fleet::start(3);
    let mut command = tool(&["acquire", "--node-timeout", "500ms", "--max-ttl", "5s", "-t", "1s"]);
    command.args(BRIEF).arg("key").env("REDLATCH_SERVERS", fleet.urls().join(","));
    let ended = run(&mut command).with_code(0);
    assert!(ended.ran > SECOND, "quarantine was over too soon: {ended:?}");
}
