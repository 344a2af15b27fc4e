//! `leader`: who leads an election.

use std::fs::File;

use super::elections::*;
use super::*;

#[test]
fn leader_is_shown_with_its_address_its_term_and_who_is_next_in_line() {
    let (fleet, desk) = vouched();
    let leads = CandidateProcess::start(&fleet, &desk, "web-1", &[], UNTIL_STOPPED);
    let term = leads.terms(&desk, 1)[0];
    let _waits = CandidateProcess::start(&fleet, &desk, "web-2", &[], UNTIL_STOPPED);
    wait_in_line(&fleet, 1);
    let start = format!("scheduler: web-1 at web-1:80 leads, term {term}, ");
    let line = leader_is(&fleet, &start);
    assert!(line.starts_with(&start), "{line}");
    assert!(line.ends_with(" s left; next in line: web-2@web-2:80\n"), "{line}");

    let json = run(&mut on(&fleet, &["leader", "--json", "scheduler"])).with_code(0).json();
    let names = ["key", "known", "name", "address", "term", "token", "remaining_ms", "next"];
    assert_eq!(fields(&json), [&names[..], &["observed_unix_ms"]].concat());
    assert_eq!((&json["key"], &json["known"]), (&"scheduler".into(), &true.into()));
    assert_eq!((&json["name"], &json["address"]), (&"web-1".into(), &"web-1:80".into()));
    assert_eq!((&json["term"], &json["next"]), (&term.into(), &"web-2@web-2:80".into()));
    assert_eq!(json["token"], held_by_majority(&fleet, "scheduler").as_str());
    assert!((1..=30_000).contains(&json["remaining_ms"].as_u64().expect("a number")), "{json}");

    for (flags, code) in [
        (&["--is", "web-1"][..], 0),
        (&["--is", "web-2"], 1),
        (&["--is", "web"], 1),
        (&["-q"], 0),
        (&["-q", "--is", "web-2"], 1),
    ] {
        let ended = run(&mut on(&fleet, &[&["leader", "scheduler"], flags].concat()));
        let ended = ended.with_code(code);
        assert_eq!(ended.out.is_empty(), flags[0] == "-q", "{ended:?}");
        assert_eq!(ended.errors, "");
    }
}

#[test]
fn leader_is_nobody_if_a_majority_holds_nothing() {
    let fleet = Fleet::start(3);
    for flags in [&[][..], &["--is", "web-1"]] {
        let ended = run_on(&fleet, &[&["leader", "scheduler"], flags].concat()).with_code(1);
        assert_eq!((&*ended.out, &*ended.errors), ("scheduler: nobody leads\n", ""));
    }
    let json = run_on(&fleet, &["leader", "--json", "scheduler"]).with_code(1).json();
    assert_eq!((&json["known"], &json["name"]), (&true.into(), &Value::Null));
    assert_eq!(fleet.keys_everywhere(), []);
}

#[test]
fn leader_is_not_known_without_a_quorum() {
    let (fleet, _token) = fleet_with_lock(3, &["-t", "60s", "scheduler"]);
    fleet.on([0, 2], Node::kill);
    for flags in [&[][..], &["--is", "web-1"]] {
        let ended = run_on(&fleet, &[&["leader", "scheduler"], flags].concat()).with_code(69);
        let words = "scheduler: not known: 1 of 3 nodes can be asked, 2 are needed: ";
        assert!(ended.out.starts_with(words), "{ended:?}");
        let lost = [0, 2].map(|node| fleet[node].address().to_string());
        assert!(lost.iter().all(|node| ended.out.contains(node)), "{ended:?}");
    }
    let json = run_on(&fleet, &["leader", "--json", "scheduler"]).with_code(69).json();
    assert_eq!((&json["known"], &json["name"]), (&false.into(), &Value::Null));
}

#[test]
fn leader_that_two_nodes_name_differently_is_not_known() {
    let fleet = Fleet::start(3);
    for (node, owner) in [(0, "web-1"), (1, "web-2")] {
        fleet[node].command(&["SET", "scheduler", &format!("{}:{owner}", foreign_token())]);
    }
    let ended = run_on(&fleet, &["leader", "scheduler"]).with_code(69);
    assert!(ended.out.contains("no majority of the nodes names one leader"), "{ended:?}");
}

#[test]
fn leader_watch_prints_a_line_for_each_change() {
    let (fleet, desk) = vouched();
    let seen = |what: &str| {
        eventually(LIMIT, what, || desk.lines("seen").iter().any(|line| line.contains(what)));
    };
    let log = File::create(desk.path("seen")).expect("the desk can be written");
    let mut watch = on(&fleet, &["leader", "--watch", "--json", "scheduler"]);
    let watch = Running::start(watch.stdout(log));
    seen("\"known\":true,\"name\":null");
    let first = CandidateProcess::start(&fleet, &desk, "web-1", &["-t", "3s"], UNTIL_STOPPED);
    let term = first.terms(&desk, 1)[0];
    seen(&format!("\"name\":\"web-1\",\"address\":\"web-1:80\",\"term\":{term}"));
    let second = CandidateProcess::start(&fleet, &desk, "web-2", &["-t", "3s"], UNTIL_STOPPED);
    wait_in_line(&fleet, 1);
    first.running.signal(Signal::KILL);
    let term = second.terms(&desk, 1)[0];
    seen(&format!("\"name\":\"web-2\",\"address\":\"web-2:80\",\"term\":{term}"));
    watch.signal(Signal::INT);
    watch.end(LIMIT).with_code(0);
    let lines = desk.lines("seen");
    let changed = |two: &[String]| {
        let [one, other]: [Value; 2] =
            [0, 1].map(|at| serde_json::from_str(&two[at]).expect("an object"));
        ["known", "token", "address", "term"].iter().any(|&name| one[name] != other[name])
    };
    assert!(lines.windows(2).all(changed), "{lines:#?}");
}

#[test]
fn leader_and_elect_refuse_a_bad_candidate_before_anything_is_sent() {
    let listener = support::CountingListener::start();
    let long = "x".repeat(60);
    let cases: [&[&str]; 11] = [
        &["leader", "scheduler", "--is", "web@1"],
        &["leader", "scheduler", "--is", ""],
        &["leader", "scheduler", "--is", "web 1"],
        &["leader", "scheduler", "--is", "web-1", "--watch"],
        &["elect", "--name", "web@1", "scheduler", "true"],
        &["elect", "--owner", "web@1", "scheduler", "true"],
        &["elect", "--name", "web-1", "--address", "a b", "scheduler", "true"],
        &["elect", "--name", "web-1", "--address", "", "scheduler", "true"],
        &["elect", "--name", &long, "--address", &long, "scheduler", "true"],
        &["elect", "--no-restart-guard", "scheduler", "true"],
        &["elect", "redlatch:leader:{a}", "true"],
    ];
    for arguments in cases {
        let mut command = tool(arguments);
        let ended = run(command.env("REDLATCH_SERVERS", listener.url())).with_code(125);
        assert!(ended.out.is_empty() && !ended.errors.is_empty(), "{arguments:?}: {ended:?}");
    }
    assert_eq!(listener.bytes(), 0);
}
