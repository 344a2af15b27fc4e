//! The list of masters is changed on real servers: from one to three, one replaced, and by a tool
//! that is killed in each part of a step. Each step waits for [`LEASE`] and more, so the tests are
//! few.
//!
//! [`LEASE`]: redlatch::proto::LEASE

use super::*;

/// How long a run may take: up to three steps with their waits, on a busy machine.
const CHANGED: Duration = Duration::from_secs(150);

/// The tool on some nodes of the fleet, with a short wait.
fn changing(fleet: &Fleet, nodes: &[usize], arguments: &[&str]) -> Command {
    let mut command = tool(&["members", "--node-timeout", NODE_TIMEOUT]);
    let timing = ["--connect-timeout", "20s", "--max-ttl", "1s", "--ttl", "500ms"];
    command.args(timing).args(arguments).env("REDLATCH_SERVERS", urls(fleet, nodes));
    command
}

fn urls(fleet: &Fleet, nodes: &[usize]) -> String {
    nodes.iter().map(|&node| fleet[node].url()).collect::<Vec<_>>().join(",")
}

#[track_caller]
fn changed(fleet: &Fleet, nodes: &[usize], arguments: &[&str]) -> Ended {
    Running::start(&mut changing(fleet, nodes, arguments)).end(CHANGED)
}

/// Servers of which the first `listed` have an agreed list.
fn with_list(count: usize, listed: usize) -> Fleet {
    let fleet = Fleet::start(count);
    let of = |words: &[&str], nodes: usize| {
        let timing = ["--node-timeout", NODE_TIMEOUT, "--connect-timeout", "20s"];
        let mut command = tool(words);
        command.args(timing).args(["--max-ttl", "1s"]);
        let nodes: Vec<usize> = (0..nodes).collect();
        run(command.env("REDLATCH_SERVERS", urls(&fleet, &nodes)))
    };
    eventually(LIMIT, "each server recorded it", || {
        let ended = of(&["init", "--yes", "--json"], count).with_code(0);
        ended.json()["vouched"].as_array().is_some_and(|nodes| nodes.len() == count)
    });
    eventually(LIMIT, "the list is agreed", || {
        of(&["acquire", "--check-members", "--ttl", "500ms", "key"], listed);
        stages(&fleet)[..listed].iter().all(|stage| stage == "agreed 1")
    });
    fleet
}

/// The stage and the epoch of each server.
fn stages(fleet: &Fleet) -> Vec<String> {
    let stage = |list: Option<String>| {
        let list = list.unwrap_or_default();
        let words: Vec<&str> = list.split(' ').collect();
        if words.len() > 4 { format!("{} {}", words[2], words[4]) } else { String::new() }
    };
    values(fleet, "redlatch:members").into_iter().map(stage).collect()
}

#[test]
fn one_server_becomes_three_and_then_one_of_them_is_replaced() {
    let fleet = with_list(4, 1);
    let to = urls(&fleet, &[0, 1, 2]);
    let ended = changed(&fleet, &[0], &["change", "--to", &to]).with_code(0);
    let lines: Vec<&str> = ended.out.lines().collect();
    let decided = |line: &&&str| line.ends_with("  decided");
    assert_eq!(lines.iter().filter(decided).count(), 2, "{ended:?}");
    assert_eq!(ended.out.matches("; waiting 16.0 s").count(), 2, "{ended:?}");
    assert!(lines.last().is_some_and(|line| line.ends_with("  done; quorum 2 of 3")), "{ended:?}");
    assert_eq!(stages(&fleet), ["agreed 3", "agreed 3", "agreed 3", ""]);
    changed(&fleet, &[0, 1, 2], &["-q"]).with_code(0);
    // The old server is dead, so it is removed first.
    fleet[2].kill();
    let (old, new) = (fleet[2].url(), fleet[3].url());
    let replace = ["replace", &old, &new, "--json", "--connect-timeout", "2s"];
    let object = changed(&fleet, &[0, 1], &replace).with_code(0).json();
    assert_eq!(fields(&object), ["outcome", "epoch", "members"]);
    let addresses = object["members"].as_array().expect("a list").iter();
    let mut addresses: Vec<&str> =
        addresses.map(|member| member["address"].as_str().expect("a text")).collect();
    let mut wanted = [0, 1, 3].map(|node: usize| label(&fleet[node]));
    addresses.sort_unstable();
    wanted.sort_unstable();
    assert_eq!((addresses, &object["epoch"]), (wanted.iter().map(|it| &**it).collect(), &5.into()));
    changed(&fleet, &[0, 1, 3], &["-q"]).with_code(0);
}

#[test]
fn tool_that_is_killed_in_each_part_of_a_step_is_run_again_or_resumed() {
    let fleet = with_list(2, 1);
    let to = urls(&fleet, &[0, 1]);
    let change = ["change", "--to", &to];
    // The new server has no node marker, so it would be in quarantine for a minute.
    let _ = fleet[1].command(&["DEL", "redlatch:node"]);
    let long = [&change[..], &["--max-ttl", "60s"]].concat();
    let learning = Running::start(&mut changing(&fleet, &[0, 1], &long));
    eventually(LIMIT, "it is a learner", || stages(&fleet)[1] == "learner 1");
    eventually(LIMIT, "it could go on", || learning.started.elapsed() > 3 * SECOND);
    learning.signal(Signal::KILL);
    let learning = learning.end(LIMIT).with_code(137);
    assert!(learning.out.contains("  out of quarantine in "), "{learning:?}");
    assert_eq!(stages(&fleet), ["agreed 1", "learner 1"]);
    let nothing = changed(&fleet, &[0, 1], &["resume"]).with_code(0);
    assert!(nothing.out.starts_with("epoch 1: "), "{nothing:?}");
    let mut waiting = Running::start(&mut changing(&fleet, &[0, 1], &change));
    eventually(LIMIT, "both are told", || stages(&fleet) == ["told 2", "told 2"]);
    waiting.signal(Signal::INT);
    eventually(LIMIT, "it is gone", || waiting.try_reap());
    let stopped = waiting.end(LIMIT).with_code(130);
    assert!(stopped.errors.contains("redlatch members resume"), "{stopped:?}");
    assert_eq!(stages(&fleet), ["told 2", "told 2"]);
    let mut again = Running::start(&mut changing(&fleet, &[0, 1], &["resume"]));
    eventually(LIMIT, "it waits", || !again.try_reap() && again.started.elapsed() > SECOND);
    again.signal(Signal::KILL);
    eventually(LIMIT, "it is gone", || again.try_reap());
    let resumed = changed(&fleet, &[0, 1], &["resume"]).with_code(0);
    assert!(resumed.out.contains("  decided\n"), "{resumed:?}");
    assert_eq!(stages(&fleet), ["agreed 2", "agreed 2"]);
}

#[test]
fn change_is_refused_before_anything_is_written() {
    let fleet = with_list(5, 3);
    let before = values(&fleet, "redlatch:members");
    let url = |node: usize| fleet[node].url();
    let twice = format!("{},{}", url(0), url(0));
    let (none, kept) = (url(3), urls(&fleet, &[0, 1, 3]));
    let cases: [(&[&str], &str); 7] = [
        (&["change"], "no servers are wanted"),
        (&["change", "--to", &twice], "in the list twice"),
        (&["change", "--to", &none], "no wanted server is in the present list"),
        (&["--to", &kept], "--to needs an action"),
        (&["replace", &none], "give two servers"),
        (&["replace", &none, &url(4)], "is not in the list"),
        (&["resume", "--to", &kept], "only change takes --to"),
    ];
    for (arguments, words) in cases {
        let refused = changed(&fleet, &[0, 1, 2], arguments).with_code(125);
        assert!(refused.errors.contains(words), "{arguments:?}: {refused:?}");
    }
    fleet.on([1, 2], Node::kill);
    let change = ["change", "--to", &kept, "--connect-timeout", "2s"];
    let refused = changed(&fleet, &[0, 1, 2], &change).with_code(69);
    assert!(refused.errors.contains("the old list stays"), "{refused:?}");
    assert_eq!(fleet[0].get("redlatch:members"), before[0].clone().map(String::into_bytes));
    assert_eq!(fleet[3].get("redlatch:members"), None);
}

#[test]
fn holder_keeps_its_lock_while_a_dead_server_is_replaced() {
    let fleet = with_list(4, 3);
    let client = |words: &[&str]| {
        let mut command = tool(words);
        let timing = ["--node-timeout", NODE_TIMEOUT, "--max-ttl", "5s", "--ttl", "5s"];
        let list = ["--check-members", "--connect-timeout", "2s", "-s"];
        let servers = urls(&fleet, &[0, 1, 2, 3]);
        command.args(timing).args(list).args([&servers, "job", "--", "sleep", "600"]);
        command
    };
    let mut holder = Running::start(&mut client(&["exec"]));
    eventually(LIMIT, "it holds the lock", || values(&fleet, "job").iter().flatten().count() == 3);
    let token = held_by_majority(&fleet, "job");
    fleet[2].kill();
    let (old, new) = (fleet[2].url(), fleet[3].url());
    let replace = ["replace", &old, &new, "--max-ttl", "5s", "--connect-timeout", "2s"];
    changed(&fleet, &[0, 1], &replace).with_code(0);
    eventually(LIMIT, "the new server has the key", || {
        fleet[3].get("job").as_deref() == Some(token.as_bytes())
    });
    // From now on the new server is needed for each renewal.
    fleet[0].kill();
    let killed = Instant::now();
    eventually(LIMIT, "two ttls have passed", || killed.elapsed() > 10 * SECOND);
    assert!(!holder.try_reap(), "the holder has lost its lock");
    let refused = run(&mut client(&["exec", "-n"])).code();
    assert_ne!(refused, 0, "the lock is held");
    assert_eq!(held_by_majority_of(&fleet, &[1, 3], "job"), token);
    holder.signal(Signal::TERM);
    holder.end(LIMIT);
}

/// The token that all of these servers have.
#[track_caller]
fn held_by_majority_of(fleet: &Fleet, nodes: &[usize], key: &str) -> String {
    let found: Vec<_> = nodes.iter().map(|&node| fleet[node].get(key)).collect();
    assert!(found.iter().all(|it| it.is_some() && *it == found[0]), "{found:?}");
    String::from_utf8(found[0].clone().expect("it is there")).expect("a token is text")
}
