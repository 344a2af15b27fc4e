//! Locks over several keys (sets): what the client asks the nodes, what their answers mean, and
//! which releases are pending afterwards.

use std::time::Duration;

use redlatch::proto::sets::{ACQUIRE, ADOPT, EXTEND_SET, RELEASE_SET};
use redlatch::proto::{KeySet, LockUpdateKind, ReportedSet};
use redlatch::{ConfigError, Error, Lock, LockOptions, LostReason, NodeId, Op, ReleaseOutcome};

use crate::bench::{Bench, Command, FLUSH, TTL};

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

fn keys(names: &[&str]) -> KeySet {
    KeySet::new(names).expect("a good set")
}

/// Asks for these keys, once.
fn ask(bench: &mut Bench, names: &[&str]) -> Op {
    ask_with_wait(bench, names, Duration::ZERO)
}

fn ask_with_wait(bench: &mut Bench, names: &[&str], wait: Duration) -> Op {
    bench.ask_for(keys(names), 7, LockOptions::new(TTL).wait(wait))
}

/// The script that a command runs, by its source or its SHA1, and its keys.
fn script(command: &Command) -> (&'static str, Vec<&str>) {
    let scripts = [
        ("acquire", ACQUIRE.source, ACQUIRE.sha1),
        ("extend", EXTEND_SET.source, EXTEND_SET.sha1),
        ("release", RELEASE_SET.source, RELEASE_SET.sha1),
        ("adopt", ADOPT, ""),
    ];
    let matches = |(_, source, sha1): &&(&str, &str, &str)| match &command[0][..] {
        "EVAL" => command[1] == *source,
        "EVALSHA" => command[1] == *sha1,
        _ => false,
    };
    let (name, ..) = scripts.iter().find(matches).unwrap_or_else(|| panic!("{command:?}"));
    let count: usize = command[2].parse().expect("a number of keys");
    (name, command[3..3 + count].iter().map(String::as_str).collect())
}

/// Asserts that the node was sent one command, which runs this script over these keys.
#[track_caller]
fn expect(bench: &mut Bench, node: usize, name: &str, keys: &[&str]) -> Command {
    let sent = bench.sent(node);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(script(&sent[0]), (name, keys.to_vec()));
    sent[0].clone()
}

/// Acquires a lock on these keys, which every node grants.
fn hold(bench: &mut Bench, names: &[&str]) -> Lock {
    ask(bench, names);
    confirm(bench, "acquire", names);
    bench.won()
}

/// So many nodes that were asked for these keys, once.
fn asked(nodes: usize, names: &[&str]) -> Bench {
    let mut bench = Bench::new(nodes);
    ask(&mut bench, names);
    bench
}

/// So many nodes, and a lock on these keys, as `hold` acquires it.
fn held(nodes: usize, names: &[&str]) -> (Bench, Lock) {
    let mut bench = Bench::new(nodes);
    let lock = hold(&mut bench, names);
    (bench, lock)
}

/// Asserts that each node was sent only this script, as `expect` does, and confirms it.
#[track_caller]
fn confirm(bench: &mut Bench, name: &str, keys: &[&str]) {
    for node in 0..bench.markers.len() {
        expect(bench, node, name, keys);
        bench.reply(node, ":1\r\n");
    }
}

/// Releases a lock on the only node.
fn release(bench: &mut Bench, lock: &Lock) {
    bench.core.release_nowait(lock, bench.now);
    bench.answer([0], ":1\r\n");
}

/// The key that an error names, and what it reports of the set.
fn named(error: &Error) -> (&str, Option<ReportedSet>) {
    let report = error.report().expect("it has a report");
    (std::str::from_utf8(&report.key).expect("text"), report.set)
}

#[test]
fn set_is_one_script_with_all_keys_on_each_node() {
    let mut bench = asked(3, &["b", "a", "b"]);
    for node in 0..3 {
        let said = expect(&mut bench, node, "acquire", &["a", "b"]);
        assert_eq!((&said[0][..], &said[6][..]), ("EVAL", "10000"), "a node's first one");
        bench.reply(node, ":1\r\n");
    }
    let lock = bench.won();
    bench.core.extend(&lock, TTL, 0, bench.now).expect("it is held");
    confirm(&mut bench, "extend", &["a", "b"]);
    bench.extended();
    bench.core.release(lock, 0, bench.now);
    confirm(&mut bench, "release", &["a", "b"]);
    assert_eq!(bench.released(), ReleaseOutcome::Released);
    bench.assert_idle();
    ask(&mut bench, &["c", "d"]);
    assert_eq!(expect(&mut bench, 0, "acquire", &["c", "d"])[0], "EVALSHA", "the node knows it");
}

#[test]
fn set_of_one_key_is_a_plain_lock() {
    let mut bench = asked(1, &["a", "a"]);
    assert_eq!(bench.sent(0)[0][..2], ["SET", "a"]);
}

#[test]
fn set_with_a_bad_key_is_refused_before_anything_is_sent() {
    let mut bench = Bench::with(1, |settings| settings.key_prefix = "prefix:".into());
    let marker = keys(&["a", "node"]);
    let mut marked = Bench::with(1, |settings| settings.node_marker = "node".into());
    let error =
        marked.core.acquire(&marker, LockOptions::new(TTL).wait(TTL), 0, marked.now).unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::KeyOfMarker { .. })), "{error}");
    assert!(marked.sent(0).is_empty());
    // With the prefix before each key, the keys together are longer than one key may be.
    let long = [vec![b'a'; 65_525], vec![b'b']];
    let long = KeySet::new(long).expect("without prefixes it fits");
    let error =
        bench.core.acquire(&long, LockOptions::new(TTL).wait(TTL), 0, bench.now).unwrap_err();
    assert!(
        matches!(error, Error::Config(ConfigError::KeyTooLong { given: 65_540, .. })),
        "{error}"
    );
    assert!(bench.sent(0).is_empty());
}

#[test]
fn set_that_a_node_refuses_leaves_nothing_there_and_names_the_key() {
    let mut bench = asked(3, &["a", "b", "c"]);
    bench.answer_each([(0, ":1\r\n"), (1, ":-2\r\n"), (2, ":-2\r\n")]);
    let error = bench.refused();
    assert!(error.is_contended(), "{error}");
    assert_eq!(named(&error), ("b", Some(ReportedSet { keys: 3, named: true })));
    assert!(error.to_string().contains("for \"b\", one of 3 keys: "), "{error}");
    expect(&mut bench, 0, "release", &["a", "b", "c"]);
    assert!(bench.sent(1).is_empty() && bench.sent(2).is_empty());
    bench.reply(0, ":1\r\n");
    bench.assert_idle();
}

#[test]
fn script_over_a_set_that_fails_leaves_a_release_of_every_key() {
    let mut bench = asked(1, &["a", "b"]);
    drop(bench.sent(0));
    // In spite of the error the node may have set the first key, so the client releases both.
    bench.reply(0, OOM);
    bench.no_quorum();
    expect(&mut bench, 0, "release", &["a", "b"]);
    // -4: the node released the first key, and the second one was absent.
    bench.reply(0, ":-4\r\n");
    bench.assert_idle();
}

#[test]
fn release_of_a_set_is_asked_again_if_a_node_refused_it() {
    let (mut bench, lock) = held(1, &["a", "b"]);
    bench.core.release(lock, 0, bench.now);
    expect(&mut bench, 0, "release", &["a", "b"]);
    bench.reply(0, "-MISCONF no\r\n");
    assert!(bench.sent(0).is_empty());
    bench.pass(Duration::from_millis(50));
    confirm(&mut bench, "release", &["a", "b"]);
    drop(bench.completion());
    bench.assert_idle();
}

#[test]
fn script_over_a_set_that_a_node_refused_is_sent_by_its_source_again() {
    let mut bench = Bench::new(1);
    for (answer, form) in [("-LOADING no\r\n", "EVAL"), (":1\r\n", "EVAL"), (":1\r\n", "EVALSHA")] {
        let op = ask(&mut bench, &["a", "b"]);
        assert_eq!(expect(&mut bench, 0, "acquire", &["a", "b"])[0], form);
        bench.reply(0, answer);
        bench.core.cancel(op, bench.now);
        drop((bench.completion(), bench.sent(0)));
        bench.reply(0, ":1\r\n");
    }
}

#[test]
fn script_that_a_node_forgot_does_not_stop_sha1_of_another_script() {
    let mut bench = Bench::new(1);
    let extends = |bench: &mut Bench| {
        bench.ask(1, LockOptions::once(TTL).fenced());
        drop(bench.sent(0));
        bench.reply(0, ":7\r\n");
        let lock = bench.won();
        bench.core.extend(&lock, TTL, 0, bench.now).expect("it is held");
        let form = bench.sent(0)[0][0].clone();
        bench.reply(0, ":1\r\n");
        drop(bench.completion());
        release(bench, &lock);
        form
    };
    assert_eq!([extends(&mut bench), extends(&mut bench)], ["EVAL", "EVALSHA"]);
    let lock = hold(&mut bench, &["a", "b"]);
    release(&mut bench, &lock);
    ask(&mut bench, &["a", "b"]);
    assert_eq!(expect(&mut bench, 0, "acquire", &["a", "b"])[0], "EVALSHA");
    bench.reply(0, "-NOSCRIPT no\r\n");
    assert_eq!(expect(&mut bench, 0, "acquire", &["a", "b"])[0], "EVAL");
    bench.reply(0, ":1\r\n");
    drop(bench.won());
    assert_eq!(extends(&mut bench), "EVALSHA", "the node still knows the script of an extend");
}

#[test]
fn set_whose_script_failed_in_the_middle_is_released_although_the_repeat_is_denied() {
    let (mut bench, lock) = held(1, &["a", "b"]);
    release(&mut bench, &lock);
    ask(&mut bench, &["a", "b"]);
    assert_eq!(expect(&mut bench, 0, "acquire", &["a", "b"])[0], "EVALSHA");
    bench.reply(0, "-NOPERM this user has no permissions to access one of the keys\r\n");
    assert_eq!(expect(&mut bench, 0, "acquire", &["a", "b"])[0], "EVAL");
    // -2: the second key is another client's. The first script may have set the first key before it
    // failed, so the client releases both.
    bench.reply(0, ":-2\r\n");
    assert!(matches!(bench.refused(), Error::Contended(_)));
    expect(&mut bench, 0, "release", &["a", "b"]);
}

#[test]
fn loss_of_a_set_names_the_key_that_is_gone_and_releases_the_others() {
    let mut bench = Bench::new(3);
    bench.core.report_lock_updates();
    let lock = hold(&mut bench, &["a", "b", "c"]);
    bench.core.extend(&lock, TTL, 0, bench.now).expect("it is held");
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.reply(0, ":1\r\n");
    bench.reply(1, ":-4\r\n");
    // -4: the second key, `b`, is gone. -5: it is another client's.
    bench.reply(2, ":-5\r\n");
    let error = bench.refused();
    assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
    assert_eq!(named(&error), ("b", Some(ReportedSet { keys: 3, named: true })));
    let update = bench.core.poll_lock_update().expect("the loss is reported");
    let LockUpdateKind::Lost(error) = update.kind else { panic!("{update:?}") };
    assert_eq!(named(&error).0, "b");
    // A node that lost one key may still have the others, so the client releases it, too.
    for (node, answer) in [(0, ":1\r\n"), (1, ":-4\r\n"), (2, ":-5\r\n")] {
        expect(&mut bench, node, "release", &["a", "b", "c"]);
        bench.reply(node, answer);
    }
    bench.assert_idle();
}

#[test]
fn heal_of_a_set_brings_back_what_one_node_lost() {
    let (mut bench, lock) = held(3, &["a", "b"]);
    bench.pass(TTL / 10);
    bench.core.extend(&lock, TTL / 2, 0, bench.now).expect("it is held");
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.reply(0, ":-4\r\n");
    assert!(!bench.core.holders(&lock).contains(NodeId::new(0)), "it is known to lack a key");
    bench.reply(1, ":1\r\n");
    bench.reply(2, ":1\r\n");
    let healed = expect(&mut bench, 0, "acquire", &["a", "b"]);
    assert_eq!((&healed[0][..], &healed[5]), ("EVAL", &lock.token().to_string()));
    let left: u64 = healed[6].parse().expect("milliseconds");
    assert!(left < 9000, "no key outlives the lock: {left} ms");
    bench.reply(0, ":1\r\n");
    assert_eq!(bench.core.stats().healed, 1);
    assert!(bench.core.holders(&lock).contains(NodeId::new(0)));
}

#[test]
fn heal_of_a_set_leaves_a_key_that_another_client_took_there() {
    let (mut bench, lock) = held(3, &["a", "b"]);
    bench.core.extend(&lock, TTL, 0, bench.now).expect("it is held");
    bench.answer_each([(0, ":-5\r\n"), (1, ":1\r\n"), (2, ":1\r\n")]);
    assert!(bench.sent(0).is_empty());
}

#[test]
fn set_whose_grant_a_node_in_quarantine_gave_is_no_majority() {
    let mut bench = Bench::new(3);
    for node in 0..2 {
        bench.reply(node, FLUSH);
        drop(bench.sent(node));
    }
    ask(&mut bench, &["a", "b"]);
    (0..3).for_each(|node| drop(bench.sent(node)));
    (0..3).for_each(|node| bench.reply(node, ":1\r\n"));
    let error = bench.refused();
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    assert!(error.to_string().contains("restart guard"), "{error}");
    for node in 0..3 {
        let sent = bench.sent(node);
        assert!(sent.iter().any(|command| command[0].starts_with("EVAL")), "{node}: {sent:?}");
    }
}

#[test]
fn script_over_a_set_that_was_forgotten_is_not_sent_again_after_its_release() {
    let (mut bench, lock) = held(1, &["a", "b"]);
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(expect(&mut bench, 0, "release", &["a", "b"])[0], "EVAL", "its answer may be lost");
    bench.reply(0, ":1\r\n");
    let op = ask(&mut bench, &["a", "b"]);
    assert_eq!(expect(&mut bench, 0, "acquire", &["a", "b"])[0], "EVALSHA");
    bench.reply(0, "-NOSCRIPT no\r\n");
    assert_eq!(expect(&mut bench, 0, "acquire", &["a", "b"])[0], "EVAL");
    // The caller gives up, so the release is in flight when the node answers NOSCRIPT.
    bench.core.cancel(op, bench.now);
    expect(&mut bench, 0, "release", &["a", "b"]);
    bench.reply(0, "-NOSCRIPT no\r\n");
    assert!(bench.sent(0).is_empty(), "a repeat would come after the release");
    bench.reply(0, ":-2\r\n");
    bench.assert_idle();
}

#[test]
fn set_is_released_by_its_script_also_where_a_node_has_a_command_of_its_own() {
    let delifeq = "*2\r\n*1\r\n$7\r\ndelifeq\r\n_\r\n";
    let mut bench = Bench::of(1, crate::bench::INFO_OLD, delifeq, |_| {});
    for form in ["EVAL", "EVALSHA"] {
        let lock = hold(&mut bench, &["a", "b"]);
        bench.core.release(lock, 0, bench.now);
        assert_eq!(expect(&mut bench, 0, "release", &["a", "b"])[0], form);
        bench.reply(0, ":1\r\n");
        drop(bench.completion());
    }
}

#[test]
fn close_releases_every_key_of_a_set() {
    let mut bench = asked(1, &["a", "b"]);
    drop(bench.sent(0));
    bench.core.close(bench.now);
    assert_eq!(expect(&mut bench, 0, "release", &["a", "b"])[0], "EVAL");
    // At its end the client repeats an unanswered release by SHA1, by its source.
    let mut bench = Bench::new(1);
    for round in 0..2 {
        let lock = hold(&mut bench, &["a", "b"]);
        bench.core.release(lock, 0, bench.now);
        let form = expect(&mut bench, 0, "release", &["a", "b"])[0].clone();
        if round == 0 {
            assert_eq!(form, "EVAL");
            bench.reply(0, ":1\r\n");
            drop(bench.completion());
        } else {
            assert_eq!(form, "EVALSHA");
        }
    }
    bench.core.close(bench.now);
    assert_eq!(expect(&mut bench, 0, "release", &["a", "b"])[0], "EVAL");
}

#[test]
fn set_is_adopted_as_a_whole_under_a_new_token() {
    let (mut bench, lock) = held(1, &["a", "b"]);
    let token = bench.core.into_token(lock, bench.now).expect("it is held");
    bench.assert_idle();
    let both = keys(&["b", "a"]);
    for answer in [":1\r\n", ":-4\r\n"] {
        bench.core.adopt(&both, token.clone(), TTL, 0, bench.now).expect("it is asked");
        let said = expect(&mut bench, 0, "adopt", &["a", "b"]);
        assert_eq!(said[5], token.to_string());
        assert_ne!(said[6], token.to_string());
        bench.reply(0, answer);
        if answer == ":1\r\n" {
            let lock = bench.won();
            bench.core.release(lock, 0, bench.now);
            confirm(&mut bench, "release", &["a", "b"]);
            drop(bench.completion());
        }
    }
    let error = bench.refused();
    assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
    assert_eq!(named(&error).0, "b");
    assert!(bench.sent(0).is_empty(), "the script changed nothing");
    bench.assert_idle();
}

#[test]
fn set_is_released_by_its_token_alone() {
    let (mut bench, lock) = held(1, &["a", "b"]);
    let token = bench.core.into_token(lock, bench.now).expect("it is held");
    bench.core.release_token(["a", "b"], token, 0, bench.now).expect("it is asked");
    expect(&mut bench, 0, "release", &["a", "b"]);
    bench.reply(0, ":-5\r\n");
    assert_eq!(bench.released(), ReleaseOutcome::TakenByOther);
    bench.assert_idle();
}

#[test]
fn reply_that_a_script_over_a_set_cannot_give_is_no_vote() {
    for reply in [":0\r\n", ":2\r\n", ":-65\r\n", "+OK\r\n", "$-1\r\n"] {
        let mut bench = asked(1, &["a", "b"]);
        drop(bench.sent(0));
        bench.reply(0, reply);
        let error = bench.refused();
        assert!(matches!(error, Error::NoQuorum(_)), "{reply:?}: {error}");
        assert!(bench.core.ready().is_empty(), "{reply:?}: the connection ends");
    }
}
