//! `list`: the locks that are held, for people and for scripts.

use super::*;

/// The rows of the table, without the headings.
fn rows(ended: &Ended) -> Vec<Vec<&str>> {
    let lines = ended.out.lines().skip(1);
    lines
        .map(|line| line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect())
        .collect()
}

/// A token, as another client writes it.
fn token_of(owner: &str) -> String {
    format!("{}:{owner}", foreign_token())
}

/// Acquires the lock on the key that is the last argument, with this owner, on all nodes.
pub fn owned(fleet: &Fleet, owner: &str, arguments: &[&str]) -> String {
    let (key, flags) = (arguments.last().expect("a key"), ["acquire", "--owner", owner]);
    let ended = run_on(fleet, &[&flags, arguments].concat()).with_code(0);
    is_held_everywhere(fleet, key, ended.out.trim());
    ended.out.trim().to_owned()
}

#[test]
fn list_has_a_row_for_each_lock_and_none_for_keys_of_other_programs() {
    let fleet = Fleet::start(3);
    owned(&fleet, "web-1", &["-t", "40s", "deploy"]);
    owned(&fleet, "web-2", &["-t", "50s", "a b"]);
    for node in &fleet {
        for command in [
            &["SET", "page", "<html>"][..],
            &["SET", "counter", "7"],
            &["RPUSH", "queue", "x"],
            &["ZADD", "ranks", "1", "x"],
            &["SET", "long", &"0123456789".repeat(40)],
        ] {
            node.command(command);
        }
    }
    let exec = ["exec", "--owner", "web-3", "deploy", "-c", "true"];
    let waiting = Running::start(&mut tool_on(&fleet, &exec));
    eventually(LIMIT, "it stands in line", || {
        let line = ["ZCARD", "redlatch:line:{deploy}"];
        fleet.iter().all(|node| node.command(&line) == support::Value::Int(1))
    });
    let before = fleet.keys_everywhere();
    let listed = run_on(&fleet, &["list"]).with_code(0);
    assert_eq!(listed.errors, "");
    assert!(listed.out.starts_with("  KEY     HOLDER"), "{listed:?}");
    let [with_a_blank, deploy] = &rows(&listed)[..] else { panic!("{listed:?}") };
    assert_eq!(with_a_blank[..3], ["a b", "web-2", "3 of 3"], "{listed:?}");
    assert_eq!(deploy[..3], ["deploy", "web-1", "3 of 3"], "{listed:?}");
    assert!(deploy[3].ends_with(" s") && deploy[3].starts_with('3'), "{listed:?}");
    assert_eq!(deploy[4..], ["1: web-3"], "{listed:?}");
    let mut after = fleet.keys_everywhere();
    after.sort();
    let mut before = before;
    before.sort();
    assert_eq!(before, after, "to look was to write");
    waiting.signal(Signal::TERM);
    waiting.end(LIMIT);
    let quiet = run_on(&fleet, &["list", "-q"]).with_code(0);
    assert!(quiet.out.is_empty() && quiet.errors.is_empty(), "{quiet:?}");
}

#[test]
fn list_of_no_lock_is_empty_and_0() {
    let fleet = Fleet::start(3);
    let none = run_on(&fleet, &["list"]).with_code(0);
    assert_eq!((&*none.out, &*none.errors), ("", "redlatch: no lock is held\n"));
    let json = run_on(&fleet, &["list", "--json"]).with_code(0);
    assert_eq!((&*json.out, &*json.errors), ("[]\n", ""));
}

#[test]
fn list_in_json_has_for_each_lock_what_status_prints() {
    let fleet = Fleet::start(3);
    for key in ["one", "two"] {
        acquired(&fleet, &["-t", "50s", key]);
    }
    let list = run_on(&fleet, &["list", "--json"]).with_code(0).json();
    let status = run_on(&fleet, &["status", "--json", "one", "two"]).with_code(1).json();
    let pairs = list.as_array().unwrap().iter().zip(status.as_array().unwrap());
    assert_eq!(list.as_array().unwrap().len(), 2, "{list}");
    for (listed, seen) in pairs {
        assert_eq!(fields(listed), fields(seen));
        for field in ["key", "held", "holder", "owner", "granted", "quorum", "nodes", "line"] {
            assert_eq!(listed[field], seen[field], "{field}");
        }
    }
}

#[test]
fn list_takes_a_pattern_after_the_prefix_and_the_prefix_is_none() {
    let fleet = Fleet::start(3);
    for (prefix, key) in
        [("a[1]:", "invoice:1"), ("a[1]:", "invoice:2"), ("a[1]:", "mail"), ("a1:", "invoice:3")]
    {
        let flags = ["acquire", "-t", "50s", "--key-prefix", prefix, key];
        run_on(&fleet, &flags).with_code(0);
    }
    let keys = |flags: &[&str]| {
        let list = run_on(&fleet, &[&["list", "--json"], flags].concat()).with_code(0).json();
        let keys = list.as_array().unwrap().iter();
        keys.map(|it| it["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&["--key-prefix", "a[1]:"]), ["invoice:1", "invoice:2", "mail"]);
    assert_eq!(keys(&["--key-prefix", "a[1]:", "invoice:*"]), ["invoice:1", "invoice:2"]);
    assert_eq!(keys(&["--key-prefix", "a[1]:", "invoice:[23]"]), ["invoice:2"]);
    assert_eq!(keys(&["--key-prefix", "a1:"]), ["invoice:3"]);
    assert_eq!(keys(&["*:invoice:?"]), ["a1:invoice:3", "a[1]:invoice:1", "a[1]:invoice:2"]);
}

/// Uses more keys than one portion has, and more locks than inspections that are in flight.
#[test]
fn list_finds_the_locks_among_thousands_of_keys() {
    let fleet = Fleet::start(3);
    for node in &fleet {
        let mut words = vec!["MSET".to_owned()];
        (0..5_000).for_each(|n| words.extend([format!("page:{n}"), "x".repeat(50)]));
        (0..1_500).for_each(|n| words.extend([format!("lock:{n:04}"), token_of("web-1")]));
        assert!(node.command(&words).is_ok());
    }
    let list = run_on(&fleet, &["list", "--json"]).with_code(0).json();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 1_500);
    for (n, lock) in list.iter().enumerate() {
        assert_eq!(lock["key"], format!("lock:{n:04}"));
        assert_eq!((&lock["granted"], &lock["owner"]), (&3.into(), &"web-1".into()), "{lock}");
    }
}

#[test]
fn list_says_that_it_leaves_locks_out() {
    let fleet = Fleet::start(1);
    let mut words = vec!["MSET".to_owned()];
    (0..10_500).for_each(|n| words.extend([format!("lock:{n:05}"), token_of("web-1")]));
    assert!(fleet[0].command(&words).is_ok());
    let listed = run_on(&fleet, &["list"]).with_code(0);
    assert_eq!(listed.out.lines().count(), 10_001);
    let why = "redlatch: there are more than 10000 locks, and not all are listed; give a PATTERN\n";
    assert_eq!(listed.errors, why);
    let listed = run_on(&fleet, &["list", "lock:00*"]).with_code(0);
    assert_eq!((listed.out.lines().count(), &*listed.errors), (1_001, ""));
}

#[test]
fn list_goes_by_the_password_and_the_database_of_the_url() {
    let fleet = Fleet::with(3, &["--requirepass", "opensesame"]);
    let url = |node: &Node, db| format!("redis://:opensesame@{}/{db}", node.address());
    let on = |db: u32, words: &[&str]| {
        let urls: Vec<String> = fleet.iter().map(|node| url(node, db)).collect();
        run(tool_on(&fleet, words).env("REDLATCH_SERVERS", urls.join(",")))
    };
    on(3, &["acquire", "-t", "60s", "deploy"]).with_code(0);
    assert!(on(3, &["list"]).with_code(0).out.contains("\n  deploy  "));
    assert_eq!(on(0, &["list"]).with_code(0).out, "");
}

#[test]
fn list_shows_a_key_of_a_minority_and_goes_by_a_quorum_of_the_nodes() {
    let fleet = Fleet::start(3);
    for (node, key) in [(0, "left"), (0, "held"), (1, "held")] {
        assert!(fleet[node].command(&["SET", key, &token_of("web-1")]).is_ok());
    }
    let listed = run_on(&fleet, &["list"]).with_code(0);
    let wanted = [vec!["held", "web-1", "2 of 3", "for ever"], vec!["left", "none", "1 of 3"]];
    assert_eq!(rows(&listed), wanted, "{listed:?}");
    fleet[2].kill();
    let listed = run_on(&fleet, &["list"]).with_code(0);
    let wanted = [vec!["held", "web-1", "2 of 3", "for ever"], vec!["left", "not known", "1 of 3"]];
    assert_eq!(rows(&listed), wanted, "{listed:?}");
    let why = format!(
        "redlatch: {}: its keys are not listed: not connected (Connection refused)\n",
        fleet[2].address()
    );
    assert_eq!(listed.errors, why);
    // A lock may be on the two nodes that do not answer.
    fleet[1].kill();
    let few = run_on(&fleet, &["list"]).with_code(69);
    assert!(few.out.contains("held") && few.errors.lines().count() == 3, "{few:?}");
    assert!(few.errors.contains("\nredlatch: no quorum: needed 2 of 3: "), "{few:?}");
}

#[test]
fn list_does_not_wait_long_for_a_frozen_node() {
    let fleet = Fleet::start(3);
    acquired(&fleet, &["-t", "60s", "deploy"]);
    fleet[2].stop();
    let urls = fleet.urls().join(",");
    let flags = ["list", "--no-restart-guard", "--connect-timeout", "500ms"];
    let listed = run(tool(&flags).env("REDLATCH_SERVERS", urls)).with_code(0);
    fleet[2].cont();
    assert_eq!(rows(&listed)[0][2], "2 of 3", "{listed:?}");
    let why = "its keys are not listed: no answer in time (nothing within 500ms)\n";
    assert!(listed.errors.ends_with(why), "{listed:?}");
    assert!(listed.ran < 10 * SECOND, "{listed:?}");
}

#[test]
fn list_names_the_right_that_it_lacks() {
    let fleet = Fleet::start(1);
    acquired(&fleet, &["-t", "60s", "lock:a"]);
    acquired(&fleet, &["-t", "60s", "other"]);
    let user =
        ["ACL", "SETUSER", "u", "on", ">pass", "~lock:*", "-@all", "+info", "+client|tracking"];
    let url = fleet[0].url().replace("redis://", "redis://u:pass@");
    let with = |rules: &[&str]| {
        assert!(fleet[0].command(&[&user[..], rules].concat()).is_ok());
        let flags = ["list", "--no-restart-guard", "--node-timeout", NODE_TIMEOUT];
        run(tool(&flags).env("REDLATCH_SERVERS", &url))
    };
    let without = with(&["+getrange", "+pttl"]).with_code(69);
    assert!(without.errors.contains("its keys are not listed: ") && without.out.is_empty());
    assert!(without.errors.contains("'scan' command"), "{without:?}");
    let without = with(&["+scan", "+pttl", "-getrange"]).with_code(69);
    assert!(without.errors.contains("'getrange' command"), "{without:?}");
    // Now the user lacks rights that the client itself needs.
    let without = with(&["+scan", "+pttl", "+getrange"]).with_code(69);
    assert!(without.out.contains("  lock:a  not known"), "{without:?}");
    let no_quorum = "redlatch: no quorum: needed 1 of 1: ";
    assert!(without.errors.starts_with(no_quorum), "{without:?}");
    assert!(without.errors.contains("eval"), "{without:?}");
    // A key that the user may not read is not listed.
    let listed = with(&["+scan", "+pttl", "+getrange", "+eval", "+set"]).with_code(0);
    assert_eq!(listed.out.lines().count(), 2, "{listed:?}");
    assert!(listed.out.contains("\n  lock:a  "), "{listed:?}");
}
