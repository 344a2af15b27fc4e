//! Refusals name what the operator can change.

use super::*;
use crate::support::Proxy;

#[test]
fn refusal_of_a_long_ttl_names_the_flag() {
    for verb in [&["acquire"][..], &["exec"]] {
        let command: &[&str] = if verb == ["exec"] { &["--", "true"] } else { &[] };
        let flags = ["-s", "redis://127.0.0.1:1", "-n", "-t", "300s", "key"];
        let ended = run(&mut tool(&[verb, &flags, command].concat())).with_code(125);
        assert!(ended.errors.contains("longer than max_ttl"), "{ended:?}");
        assert!(ended.errors.contains("raise --max-ttl"), "{ended:?}");
    }
}

#[test]
fn refusal_of_a_short_ttl_says_what_is_long_enough() {
    for ttl in ["10ms", "0.05", "0"] {
        let flags = ["acquire", "-s", "redis://127.0.0.1:1", "-n", "-t", ttl, "key"];
        let ended = run(&mut tool(&flags)).with_code(125);
        let told = ": it is over before a command has started; give 100ms at least (a bare number \
            is seconds)\n";
        assert!(ended.errors.starts_with("redlatch: --ttl ") && ended.errors.ends_with(told));
    }
}

/// A key may have thousands of bytes, but a message has to be one line.
#[test]
fn refusal_shows_the_beginning_of_a_long_key() {
    let fleet = Fleet::start(3);
    let key = "k".repeat(3000);
    let token = acquired(&fleet, &[&key]);
    let cut = format!("{}...", "k".repeat(100));
    let refused = run_on(&fleet, &["exec", "-n", &key, "true"]).with_code(75);
    assert!(refused.errors.contains(&format!(" for \"{cut}\" (3000 bytes): ")), "{refused:?}");
    let waits = run_on(&fleet, &["exec", "-w", "300ms", &key, "true"]).with_code(75);
    assert!(waits.errors.contains(&format!("waiting for \"{cut}\" (3000 bytes): ")), "{waits:?}");
    let seen = run_on(&fleet, &["status", &key]).with_code(1);
    assert!(seen.out.starts_with(&format!("{cut} (3000 bytes): held by ")), "{seen:?}");
    let free = run_on(&fleet, &["wait", "-w", "300ms", &key]).with_code(75);
    assert!(free.errors.contains(&format!("waited for \"{cut}\" (3000 bytes), ")), "{free:?}");
    for text in [refused.errors, waits.errors, seen.out, free.errors] {
        assert!(!text.contains(&"k".repeat(101)), "{text}");
    }
    run_on(&fleet, &["release", &key, &token]).with_code(0);
}

#[test]
fn refusal_of_one_server_under_two_addresses_says_so() {
    let fleet = Fleet::start(2);
    // A quorum is ready without the second address. The long node timeout gives that address time
    // to connect, so that the tool notices that it is the same server.
    let second = Proxy::start(fleet[0].address());
    let urls = [&fleet.urls()[..], &[second.url()]].concat();
    let mut command = tool(&["status", "--no-restart-guard", "--node-timeout", "5s"]);
    let ended = run(command.env("REDLATCH_SERVERS", urls.join(","))).with_code(125);
    assert!(ended.errors.contains("two addresses lead to one server"), "{ended:?}");
    let twice = ended.errors.matches(" is the same server as another address").count();
    assert_eq!(twice, 1, "{ended:?}");
    assert!(!ended.errors.contains("too many nodes"), "{ended:?}");
    assert!(!ended.errors.contains("\"\""), "an empty key: {ended:?}");
}
