//! The node marker in doctor's report, and the declaration of `--persistent-nodes`.

use super::*;

#[test]
fn a_marker_that_may_not_be_used_and_one_of_another_program_are_found() {
    if is_old() {
        println!("not run: a script does not say there what its user may not do");
        return;
    }
    let fleet = Fleet::start(5);
    let rules: [&[&str]; 4] =
        [&["~lock:*"], &["~lock:*", "%R~redlatch:node"], &["~*", "-time"], &["~*", "-set"]];
    let mut urls = fleet.urls();
    for (index, rules) in rules.iter().enumerate() {
        let user = [&["ACL", "SETUSER", "u", "on", ">opensesame", "+@all"], *rules].concat();
        assert!(fleet[index].command(&user).is_ok(), "{user:?}");
        urls[index] = format!("redis://u:opensesame@{}", label(&fleet[index]));
    }
    assert!(fleet[4].command(&["SET", "redlatch:node", "mine", "EX", "1000"]).is_ok());
    // On these two nodes the default user writes the marker, and doctor's user may only read it.
    let mut init = tool(&["init", "--yes", "--node-timeout", "5s"]);
    let readable = [fleet[1].url(), fleet[3].url()].join(",");
    run(init.env("REDLATCH_SERVERS", readable)).with_code(0);
    let marker = fleet[1].get("redlatch:node");
    let prefix = ["--node-timeout", "5s", "--key-prefix", "lock:"];
    let diagnosis = ask(&urls, &prefix);
    for node in &fleet.iter().collect::<Vec<_>>()[..4] {
        let (level, words) = diagnosis.words(Some(&label(node)), "marker");
        println!("{words}");
        assert_eq!(level, "warn");
        assert!(words.starts_with("the key redlatch:node may not be read and written ("));
        assert!(words.contains("while a client is not connected, that goes unnoticed"), "{words}");
        assert!(words.ends_with("ACL rule: ~redlatch:node +get +set +eval +time"), "{words}");
    }
    let foreign = diagnosis.words(Some(&label(&fleet[4])), "marker");
    assert_eq!(foreign.0, "warn");
    assert!(foreign.1.starts_with("another program uses the key redlatch:node: "), "{foreign:?}");
    assert_eq!(fleet[4].get("redlatch:node").as_deref(), Some(&b"mine"[..]));
    assert!(fleet[4].pttl("redlatch:node") > 900_000, "its ttl was changed");
    assert_eq!(fleet[1].get("redlatch:node"), marker, "it was only looked at");
    // Without the restart guard no marker is used.
    let off = ask(&urls[..1], &[&PLAINLY[..], &["--key-prefix", "lock:"]].concat());
    let expected = ("ok".to_owned(), "not used: the restart guard is off".to_owned());
    assert_eq!(off.words(Some(&label(&fleet[0])), "marker"), expected);
}

#[test]
fn nodes_that_do_not_keep_what_was_declared_are_failures() {
    let declared = |urls: &[String]| ask(urls, &["--persistent-nodes", "--node-timeout", "5s"]);
    let fleet = lasting(3);
    assert!(fleet[0].command(&["CONFIG", "SET", "appendfsync", "everysec"]).is_ok());
    assert!(fleet[1].command(&["CONFIG", "SET", "appendonly", "no"]).is_ok());
    let mut urls = fleet.urls();
    let diagnosis = declared(&urls);
    assert_eq!(diagnosis.code, 1);
    let expected = [
        ("fail", "but appendfsync is everysec: a power loss forgets locks"),
        ("fail", "but appendonly is no: a restart forgets locks"),
        ("ok", "appendonly, appendfsync always, as declared"),
    ];
    for (node, (level, words)) in fleet.iter().zip(expected) {
        let found = diagnosis.words(Some(&label(node)), "persistence");
        assert!(found.0 == level && found.1.contains(words), "{found:?}");
    }
    let user = ["ACL", "SETUSER", "u", "on", ">opensesame", "~*", "+@all", "-config"];
    assert!(fleet[2].command(&user).is_ok());
    urls[2] = format!("redis://u:opensesame@{}", label(&fleet[2]));
    let (level, words) = declared(&urls).words(Some(&label(&fleet[2])), "persistence");
    assert_eq!(level, "warn");
    assert!(words.contains("the node refuses CONFIG"), "{words}");
}
