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
fn refusal_of_one_server_under_two_addresses_says_so() {
    let fleet = Fleet::start(2);
    // A quorum is ready without the second address, which has the node timeout to show itself.
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
