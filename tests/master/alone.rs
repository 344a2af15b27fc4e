//! The in-process master alone, in what the real server cannot be made to do for a comparison:
//! restarts, clocks that jump, commands of other servers, wrong replies.

use std::time::Duration;

use redlatch::proto::command::{EXTEND, RELEASE};
use redlatch::proto::{Instant, NODE_MARKER};
use redlatch::testing::master::{ConnectionId, Flavor, Master, Output, Restart, Trouble};

use super::resp_client::encode;

const START: Instant = Instant::from_nanos(0);
const A_SECOND_IN: Instant = Instant::from_nanos(1_000_000_000);

fn ask(master: &mut Master, now: Instant, connection: ConnectionId, words: &[&str]) -> String {
    master.handle_bytes(now, connection, &encode(words));
    let output = master.poll_output().expect("a reply");
    assert_eq!((output.connection, output.closes), (connection, false));
    String::from_utf8(output.bytes).expect("it is text")
}

/// A field of `INFO`.
fn info(master: &mut Master, now: Instant, field: &str) -> String {
    let connection = master.connect();
    let text = ask(master, now, connection, &["INFO"]);
    master.disconnect(connection);
    let field = format!("{field}:");
    let line = text.lines().find_map(|line| line.strip_prefix(&field));
    line.expect("the field is there").to_owned()
}

#[test]
fn key_is_gone_when_its_ttl_ends() {
    let mut master = Master::new(1, START);
    let connection = master.connect();
    ask(&mut master, START, connection, &["SET", "k", "t", "PX", "10"]);
    let moment = START.saturating_add(Duration::from_millis(10));
    let before = Instant::from_nanos(moment.as_nanos() - 1);
    assert_eq!(master.get(before, 0, b"k"), Some(&b"t"[..]));
    assert_eq!(master.pttl(before, 0, b"k"), 0);
    assert_eq!(master.keys(before, 0), [b"k"]);
    assert_eq!(master.get(moment, 0, b"k"), None);
    assert_eq!(master.pttl(moment, 0, b"k"), -2);
    assert!(master.keys(moment, 0).is_empty());
    assert_eq!(ask(&mut master, moment, connection, &["DBSIZE"]), ":1\r\n", "nobody looked yet");
    assert_eq!(ask(&mut master, moment, connection, &["SET", "k", "u", "NX"]), "+OK\r\n");
    assert_eq!(master.pttl(moment, 0, b"k"), -1);
}

/// The clock of this master is finer than 1 ms, and its `PTTL` is rounded down. An extend that sets
/// the rounded ttl again would shorten the life of the key each time.
#[test]
fn extend_for_a_shorter_time_leaves_the_end_of_a_key_however_often() {
    let mut master = Master::new(1, START);
    let connection = master.connect();
    ask(&mut master, START, connection, &["SET", "k", "t", "PX", "100"]);
    for nth in 1..=50 {
        let now = Instant::from_nanos(nth * 1_300_000);
        let extend = ["EVAL", EXTEND.source, "1", "k", "t", "10"];
        assert_eq!(ask(&mut master, now, connection, &extend), ":1\r\n");
    }
    let just_before = Instant::from_nanos(99_999_999);
    assert_eq!(master.get(just_before, 0, b"k"), Some(&b"t"[..]));
    assert_eq!(master.get(Instant::from_nanos(100_000_000), 0, b"k"), None);
}

#[test]
fn a_restart_forgets_connections_and_scripts_and_perhaps_keys() {
    for memory in [Restart::Empty, Restart::WithData] {
        let mut master = Master::new(1, START);
        let before = master.connect();
        ask(&mut master, START, before, &["SET", "k", "t", "PX", "10000"]);
        ask(&mut master, START, before, &["SCRIPT", "LOAD", RELEASE.source]);
        let run_id = info(&mut master, START, "run_id");
        master.handle_bytes(START, before, &encode(&["PING"]));

        master.restart(A_SECOND_IN, memory);
        let end = Output { connection: before, bytes: Vec::new(), closes: true };
        assert_eq!(master.poll_output(), Some(end), "and the PONG is lost");
        assert_eq!(master.poll_output(), None);
        master.handle_bytes(A_SECOND_IN, before, &encode(&["PING"]));
        assert_eq!(master.poll_output(), None);

        let after = master.connect();
        assert_ne!(before, after);
        assert_eq!(ask(&mut master, A_SECOND_IN, after, &["CLIENT", "ID"]), ":3\r\n");
        let evalsha = ["EVALSHA", RELEASE.sha1, "1", "k", "t"];
        assert!(ask(&mut master, A_SECOND_IN, after, &evalsha).starts_with("-NOSCRIPT"));
        let expected = if memory == Restart::Empty { -2 } else { 9000 };
        assert_eq!(master.pttl(A_SECOND_IN, 0, b"k"), expected, "downtime counts");
        assert_ne!(info(&mut master, A_SECOND_IN, "run_id"), run_id);
        assert_eq!(info(&mut master, A_SECOND_IN, "uptime_in_seconds"), "0");
    }
}

#[test]
fn restart_from_a_dump_of_another_master_has_its_keys_and_its_marker() {
    let mut masters = [1, 2].map(|seed| Master::new(seed, START));
    for master in &mut masters {
        master.set_uptime(START, 3600);
    }
    let [one, two] = &mut masters;
    let (own, other) = (one.connect(), two.connect());
    ask(one, START, own, &["SET", "own", "t", "PX", "5000"]);
    ask(two, START, other, &["SET", "k", "u", "PX", "3000"]);
    let dump = two.dump();
    ask(two, START, other, &["DEL", "k"]);
    let runs = [&*one, &*two].map(|master| master.identities()[0].clone());
    one.restart_from(A_SECOND_IN, dump);
    assert!(one.poll_output().expect("it hangs up").closes);
    assert_eq!(one.get(A_SECOND_IN, 0, b"own"), None);
    assert_eq!(one.get(A_SECOND_IN, 0, b"k"), Some(&b"u"[..]));
    assert_eq!(one.pttl(A_SECOND_IN, 0, b"k"), 2000);
    let marker = one.get(A_SECOND_IN, 0, NODE_MARKER.as_bytes()).expect("it has one");
    assert!(std::str::from_utf8(marker).expect("it is text").contains(&runs[1]));
    assert!(!runs.contains(&one.identities()[0]), "it is a new process");
    assert_eq!(info(one, A_SECOND_IN, "uptime_in_seconds"), "0");
}

#[test]
fn a_promotion_changes_the_replid_and_a_restart_with_data_keeps_the_offset() {
    let mut master = Master::new(1, START);
    let connection = master.connect();
    ask(&mut master, START, connection, &["SET", "k", "t", "PX", "10000"]);
    let run_id = info(&mut master, START, "run_id");
    let mut replids = vec![info(&mut master, START, "master_replid")];
    assert_eq!(info(&mut master, START, "second_repl_offset"), "-1");
    let mut offsets = Vec::new();
    for memory in [Restart::WithData, Restart::Empty] {
        master.promote(memory);
        while master.poll_output().is_some() {}
        assert_eq!(info(&mut master, START, "run_id"), run_id, "it is the same process");
        assert_eq!(info(&mut master, START, "master_replid2"), *replids.last().unwrap());
        replids.push(info(&mut master, START, "master_replid"));
        offsets.push(info(&mut master, START, "second_repl_offset"));
        let left = if memory == Restart::Empty { -2 } else { 10_000 };
        assert_eq!(master.pttl(START, 0, b"k"), left);
    }
    assert!(replids[0] != replids[1] && replids[1] != replids[2] && offsets[0] != offsets[1]);
    master.restart(A_SECOND_IN, Restart::WithData);
    assert_eq!(info(&mut master, A_SECOND_IN, "second_repl_offset"), offsets[1]);
    master.restart(A_SECOND_IN, Restart::Empty);
    assert_eq!(info(&mut master, A_SECOND_IN, "second_repl_offset"), "-1");
}

#[test]
fn a_key_ends_at_the_next_whole_millisecond_if_the_master_counts_those() {
    let mut master = Master::new(1, START);
    master.count_whole_milliseconds();
    let connection = master.connect();
    let at = |micros| START.saturating_add(Duration::from_micros(micros));
    ask(&mut master, at(700), connection, &["SET", "k", "t", "PX", "10"]);
    assert_eq!(master.pttl(at(10_999), 0, b"k"), 0);
    assert_eq!(master.get(at(10_999), 0, b"k"), Some(&b"t"[..]));
    assert_eq!(master.get(at(11_000), 0, b"k"), None);
    ask(&mut master, at(11_000), connection, &["SET", "k", "t"]);
    ask(&mut master, at(11_900), connection, &["PEXPIRE", "k", "5"]);
    assert_eq!(master.get(at(16_999), 0, b"k"), Some(&b"t"[..]));
    assert_eq!(master.get(at(17_000), 0, b"k"), None);
}

#[test]
fn client_ids_are_those_of_this_start() {
    let mut master = Master::new(1, START);
    master.connect();
    master.restart(START, Restart::Empty);
    let (killer, victim) = (master.connect(), master.connect());
    while master.poll_output().is_some() {}
    assert_eq!(ask(&mut master, START, killer, &["CLIENT", "KILL", "ID", "5"]), ":0\r\n");
    master.handle_bytes(START, killer, &encode(&["CLIENT", "KILL", "ID", "4"]));
    let closed = [master.poll_output(), master.poll_output()].map(|output| {
        let output = output.expect("a reply and an end");
        (output.connection, output.closes)
    });
    assert_eq!(closed, [(victim, true), (killer, false)]);
}

#[test]
fn two_masters_have_different_run_ids() {
    let seeds = [0, 1, 2, u64::MAX];
    let name = |seed| info(&mut Master::new(seed, START), A_SECOND_IN, "run_id");
    let names = seeds.map(name);
    for (index, seed) in seeds.into_iter().enumerate() {
        assert!(names[index].len() == 40 && !names[..index].contains(&names[index]));
        assert_eq!(names[index], name(seed), "and the same one again");
    }
}

#[test]
fn the_wall_clock_moves_ttls_and_uptime() {
    let mut master = Master::new(1, START);
    let connection = master.connect();
    master.set_uptime(START, 100);
    ask(&mut master, START, connection, &["SET", "k", "t", "PX", "10000"]);
    master.set_wall_clock(A_SECOND_IN, 1_800_000_000_000_000_000);
    assert_eq!(master.pttl(A_SECOND_IN, 0, b"k"), 9000, "setting the scene changes no ttl");
    let time = ask(&mut master, A_SECOND_IN, connection, &["TIME"]);
    assert_eq!(time, "*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n");
    assert_eq!(info(&mut master, A_SECOND_IN, "uptime_in_seconds"), "101");

    master.step_wall_clock(-3_600_000);
    assert_eq!(master.pttl(A_SECOND_IN, 0, b"k"), 3_609_000);
    assert_eq!(info(&mut master, A_SECOND_IN, "uptime_in_seconds"), "-3499");
    master.step_wall_clock(3_609_000);
    assert_eq!(master.pttl(A_SECOND_IN, 0, b"k"), -2);
}

#[test]
fn compare_and_delete_exists_only_in_the_flavors_that_have_it() {
    let mut master = Master::new(1, START);
    let connection = master.connect();
    let mut all = |flavor| {
        master.set_flavor(flavor);
        [
            &["DELIFEQ", "k", "t"][..],
            &["DELEX", "k", "IFEQ", "t"],
            &["CLIENT", "SETINFO", "LIB-NAME", "redlatch"],
            &["COMMAND", "INFO", "delifeq", "delex"],
        ]
        .map(|words| {
            ask(&mut master, START, connection, &["SET", "k", "t"]);
            let other = [&words[..words.len() - 1], &["other"]].concat();
            let refused = ask(&mut master, START, connection, &other);
            assert!(master.get(START, 0, b"k").is_some(), "another's stays: {refused}");
            ask(&mut master, START, connection, words).chars().take(4).collect::<String>()
        })
    };
    assert_eq!(all(Flavor::Redis70), ["-ERR", "-ERR", "-ERR", "*2\r\n"]);
    assert_eq!(all(Flavor::Redis84), ["-ERR", ":1\r\n", "+OK\r", "*2\r\n"]);
    assert_eq!(all(Flavor::Valkey90), [":1\r\n", "-ERR", "+OK\r", "*2\r\n"]);
    let info = ask(&mut master, START, connection, &["COMMAND", "INFO", "delifeq", "delex"]);
    assert!(info.contains("delifeq") && info.ends_with("$-1\r\n"));
}

/// The replies are those of Valkey 9.1.2.
#[test]
fn compare_and_set_exists_only_in_the_flavors_that_have_it() {
    let mut master = Master::new(1, START);
    let connection = master.connect();
    let mut say = |words: &[&str]| ask(&mut master, START, connection, words);
    let set = ["SET", "k", "u", "IFEQ", "t", "GET", "PX", "3000"];
    assert_eq!(say(&set), "-ERR syntax error\r\n");
    for flavor in [Flavor::Redis84, Flavor::Valkey90] {
        let mut master = Master::new(1, START);
        master.set_flavor(flavor);
        let connection = master.connect();
        let mut say = |words: &[&str]| ask(&mut master, START, connection, words);
        assert_eq!(say(&set), "$-1\r\n");
        assert_eq!(say(&["GET", "k"]), "$-1\r\n", "it creates nothing");
        say(&["SET", "k", "x", "PX", "9000"]);
        assert_eq!(say(&set), "$1\r\nx\r\n");
        assert_eq!(say(&["PTTL", "k"]), ":9000\r\n", "another's is not touched");
        say(&["SET", "k", "t", "PX", "9000"]);
        assert_eq!(say(&set), "$1\r\nt\r\n");
        assert_eq!(
            (say(&["GET", "k"]).as_str(), say(&["PTTL", "k"]).as_str()),
            ("$1\r\nu\r\n", ":3000\r\n")
        );
        assert_eq!(say(&["SET", "k", "v", "IFEQ", "u"]), "+OK\r\n");
        assert_eq!(say(&["PTTL", "k"]), ":-1\r\n", "it takes the ttl away");
        assert_eq!(say(&["SET", "k", "v", "IFEQ", "u"]), "$-1\r\n");
        assert_eq!(say(&["SET", "k", "v", "NX", "IFEQ", "v"]), "-ERR syntax error\r\n");
        say(&["LPUSH", "l", "1"]);
        assert!(say(&["SET", "l", "v", "IFEQ", "u", "GET"]).starts_with("-WRONGTYPE "));
    }
}

#[test]
fn master_without_lua_refuses_scripts_as_valkey_does() {
    let mut master = Master::new(1, START);
    master.suffer(Trouble::NoLua);
    let connection = master.connect();
    let mut say = |words: &[&str]| ask(&mut master, START, connection, words);
    let refused = "-ERR Could not find scripting engine 'lua'\r\n";
    assert_eq!(say(&["EVAL", "return 1", "0"]), refused);
    assert_eq!(say(&["SCRIPT", "LOAD", "return 1"]), refused);
    let sha1 = "e40f3e9065d7e93e8da245f486ebd4a5e00ac5b9";
    assert!(say(&["EVALSHA", sha1, "0"]).starts_with("-NOSCRIPT No matching script."));
    assert_eq!(say(&["SET", "k", "t"]), "+OK\r\n");
}

#[test]
fn master_in_trouble_answers_errors_until_it_serves_again() {
    let mut master = Master::new(1, START);
    let connection = master.connect();
    master.suffer(Trouble::Loading);
    assert!(ask(&mut master, START, connection, &["SET", "k", "t"]).starts_with("-LOADING "));
    assert!(ask(&mut master, START, connection, &["HELLO", "3"]).starts_with('%'));
    assert_eq!(info(&mut master, START, "loading"), "1");

    master.serve();
    master.suffer(Trouble::Answers { commands: vec!["set".into()], reply: b":1\r\n".into() });
    assert_eq!(ask(&mut master, START, connection, &["SET", "k", "t"]), ":1\r\n");
    assert_eq!(ask(&mut master, START, connection, &["GET", "k"]), "_\r\n", "a lie has no effect");

    master.serve();
    master.suffer(Trouble::Answers { commands: Vec::new(), reply: Vec::new() });
    master.handle_bytes(START, connection, &encode(&["PING"]));
    assert_eq!(master.poll_output(), None);

    master.serve();
    master.refuse_with("NOPERM this user has no permissions");
    let refused = ask(&mut master, START, connection, &["PING"]);
    assert_eq!(refused, "-NOPERM this user has no permissions\r\n");

    master.serve();
    master.suffer(Trouble::TurnsAway("ERR max number of clients reached".into()));
    let away = master.connect();
    let output = master.poll_output().expect("an error");
    assert_eq!(output.bytes, b"-ERR max number of clients reached\r\n");
    assert_eq!((output.connection, output.closes), (away, true));
    assert_eq!(ask(&mut master, START, connection, &["PING"]), "+PONG\r\n", "who is in stays in");
}

#[test]
fn info_says_what_the_test_set() {
    let mut master = Master::new(1, START);
    for (field, text) in [("cluster_enabled", "1"), ("role", "slave"), ("run_id", "same")] {
        master.set_info(field, text);
        assert_eq!(info(&mut master, START, field), text);
    }
    let connection = master.connect();
    assert!(ask(&mut master, START, connection, &["HELLO"]).contains("$7\r\nreplica\r\n"));
}
