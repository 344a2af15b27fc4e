//! `leader`: who leads an election.

use super::*;

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
    fleet[0].kill();
    fleet[2].kill();
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
fn leader_refuses_a_bad_candidate_before_anything_is_sent() {
    let listener = support::CountingListener::start();
    let cases: [&[&str]; 4] = [
        &["leader", "scheduler", "--is", "web@1"],
        &["leader", "scheduler", "--is", ""],
        &["leader", "scheduler", "--is", "web 1"],
        &["leader", "scheduler", "--is", "web-1", "--watch"],
    ];
    for arguments in cases {
        let mut command = tool(arguments);
        let ended = run(command.env("REDLATCH_SERVERS", listener.url())).with_code(125);
        assert!(ended.out.is_empty() && !ended.errors.is_empty(), "{arguments:?}: {ended:?}");
    }
    assert_eq!(listener.bytes(), 0);
}
