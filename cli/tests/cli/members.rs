//! The list of masters that the servers keep: two machines with other lists of servers do not run a
//! command at the same time, and `members` shows which server has which list.

use super::*;

/// The tool on some nodes of the fleet. The restart guard is on, because the check needs it. The
/// connect timeout is long, because no list is written while a node cannot be reached.
fn tool_of(fleet: &Fleet, nodes: &[usize], arguments: &[&str]) -> Command {
    let urls: Vec<String> = nodes.iter().map(|&node| fleet[node].url()).collect();
    tool_at(&urls, &["--node-timeout", NODE_TIMEOUT, "--connect-timeout", "20s"], arguments)
}

#[track_caller]
fn run_of(fleet: &Fleet, nodes: &[usize], arguments: &[&str]) -> Ended {
    run(&mut tool_of(fleet, nodes, arguments))
}

/// A command that says that it ran, under the lock of these nodes.
#[track_caller]
fn checked(fleet: &Fleet, nodes: &[usize]) -> Ended {
    let command = ["exec", "--check-members", "deploy", "--", "echo", "ran"];
    run_of(fleet, nodes, &command)
}

/// Starts servers whose grants count at once.
fn vouched(count: usize) -> Fleet {
    let fleet = Fleet::start(count);
    let all: Vec<usize> = (0..count).collect();
    eventually(LIMIT, "each server recorded it", || {
        let ended = run_of(&fleet, &all, &["init", "--yes", "--json"]).with_code(0);
        ended.json()["vouched"].as_array().is_some_and(|nodes| nodes.len() == count)
    });
    fleet
}

fn lists(fleet: &Fleet) -> Vec<Option<String>> {
    values(fleet, "redlatch:members")
}

/// Waits until the first three servers know that their list is agreed.
#[track_caller]
fn is_agreed(fleet: &Fleet) {
    eventually(LIMIT, "the list is agreed", || {
        let has_it =
            |list: &Option<String>| list.as_ref().is_some_and(|it| it.contains(" agreed "));
        lists(fleet)[..3].iter().all(has_it)
    });
}

fn addresses(fleet: &Fleet, nodes: &[usize]) -> Vec<String> {
    nodes.iter().map(|&node| label(&fleet[node])).collect()
}

#[test]
fn exec_with_another_list_is_refused_and_its_command_does_not_run() {
    let fleet = vouched(5);
    assert_eq!(checked(&fleet, &[0, 1, 2]).with_code(0).out, "ran\n");
    is_agreed(&fleet);
    let refused = checked(&fleet, &[0, 3, 4]).with_code(125);
    assert_eq!(refused.out, "", "the command ran");
    assert!(refused.errors.contains("has another list of masters than this client"), "{refused:?}");
    for address in addresses(&fleet, &[0, 1, 2]) {
        assert!(refused.errors.contains(&address), "the list is not named: {refused:?}");
    }
    assert!(refused.errors.contains("\nredlatch members: shows the list"), "{refused:?}");
    assert_eq!(lists(&fleet)[3..], [None, None]);
    let command = ["acquire", "-n", "--json", "--check-members", "deploy"];
    let refused = run_of(&fleet, &[0, 3, 4], &command).with_code(125).json();
    assert_eq!(
        (&refused["error"], &refused["nodes"][1]["outcome"]),
        (&"config".into(), &"other_list".into())
    );
    assert_eq!(checked(&fleet, &[0, 1, 2]).with_code(0).out, "ran\n");
    // Without the check a command with these other servers runs, too.
    let unchecked = run_of(&fleet, &[0, 3, 4], &["exec", "deploy", "--", "echo", "ran"]);
    assert_eq!(unchecked.with_code(0).out, "ran\n");
}

#[test]
fn exec_with_one_wrong_server_runs_by_the_others() {
    let fleet = vouched(4);
    checked(&fleet, &[0, 1, 2]).with_code(0);
    is_agreed(&fleet);
    let holder = ["exec", "--check-members", "deploy", "--", "sh", "-c", "echo ran; read end"];
    let mut command = tool_of(&fleet, &[0, 1, 3], &holder);
    let mut running = Running::start(command.stdin(Stdio::piped()));
    let held = || values(&fleet, "deploy").iter().map(Option::is_some).collect::<Vec<_>>();
    eventually(LIMIT, "the two servers of the list hold it", || {
        held() == [true, true, false, false]
    });
    let second = ["exec", "-n", "--check-members", "deploy", "--", "echo", "ran"];
    assert_eq!(run_of(&fleet, &[0, 1, 2], &second).with_code(75).out, "");
    drop(running.child.stdin.take());
    assert_eq!(running.end(LIMIT).out, "ran\n");
    let servers = ["members", "--json"];
    let seen = run_of(&fleet, &[0, 1, 3], &servers).with_code(1).json();
    assert_eq!(seen["missing"], Value::from(addresses(&fleet, &[2])));
}

#[test]
fn members_shows_the_list_of_each_server_and_returns_a_code_for_scripts() {
    let fleet = vouched(5);
    let code = |nodes: &[usize]| {
        let ended = run_of(&fleet, nodes, &["members", "-q", "--connect-timeout", "2s"]);
        assert_eq!((&*ended.out, &*ended.errors), ("", ""));
        ended.code()
    };
    let shown = |nodes: &[usize]| run_of(&fleet, nodes, &["members"]).out;
    assert_eq!(code(&[0, 1, 2]), 1, "there is none yet");
    assert!(shown(&[0, 1, 2]).starts_with("no list\n"), "{}", shown(&[0, 1, 2]));
    checked(&fleet, &[0, 1, 2]).with_code(0);
    is_agreed(&fleet);
    assert_eq!(code(&[2, 0, 1]), 0);
    let text = shown(&[0, 1, 2]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "3 nodes, epoch 1, quorum 2; the same on all");
    for (line, (address, list)) in
        lines[2..].iter().zip(addresses(&fleet, &[0, 1, 2]).iter().zip(lists(&fleet)))
    {
        let list = list.expect("it is agreed");
        let id = list.split(' ').nth(1).expect("the id of the server");
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), [address, id, "1", "agreed"]);
    }
    assert_eq!(lines.len(), 5);
    for others in [&[0, 1][..], &[0, 1, 3], &[0, 1, 2, 3], &[0, 3, 4], &[3, 4]] {
        assert_eq!(code(others), 1, "{others:?}");
    }
    checked(&fleet, &[3, 4]).with_code(0);
    assert!(shown(&[0, 1, 3]).starts_with("2 different lists: "), "{}", shown(&[0, 1, 3]));
    assert!(fleet[2].command(&["ACL", "SETUSER", "default", "resetkeys", "~lock:*"]).is_ok());
    assert_eq!(code(&[0, 1, 2]), 1);
    assert!(shown(&[0, 1, 2]).ends_with("  no permission\n"), "{}", shown(&[0, 1, 2]));
    assert!(fleet[2].command(&["ACL", "SETUSER", "default", "~*"]).is_ok());
    assert_eq!(code(&[0, 1, 2]), 0);
    fleet[2].kill();
    assert_eq!(code(&[0, 1, 2]), 1, "one cannot be asked");
    assert!(shown(&[0, 1, 2]).contains("  unreachable: not connected"), "{}", shown(&[0, 1, 2]));
    let ended = run_of(&fleet, &[0, 1, 2], &["members", "--json"]).with_code(1).json();
    assert_eq!(fields(&ended), ["same", "message", "missing", "nodes"]);
    let node = &ended["nodes"][0];
    assert_eq!(fields(node), ["node", "state", "id", "epoch", "members", "detail"]);
    assert_eq!(
        (&ended["same"], node["members"].as_array().map(Vec::len)),
        (&false.into(), Some(3))
    );
    assert_eq!(ended["nodes"][2]["state"], "unreachable");
    fleet[1].kill();
    assert_eq!(code(&[0, 1, 2]), 69);
}

#[test]
fn server_that_restarted_empty_gets_its_place_in_the_list_back() {
    let fleet = vouched(3);
    checked(&fleet, &[0, 1, 2]).with_code(0);
    is_agreed(&fleet);
    let mut returned = lists(&fleet);
    returned[2] = returned[2].as_ref().map(|list| list.replace(" agreed ", " returned "));
    fleet[2].kill();
    fleet[2].restart();
    assert_eq!(lists(&fleet)[2], None, "it kept its keys");
    let lost = run_of(&fleet, &[0, 1, 2], &["members"]).with_code(1);
    let on = format!("; lost on {}, ", fleet[2].address());
    assert!(lost.out.contains(&on), "{lost:?}");
    eventually(LIMIT, "its place is written again", || {
        run_of(&fleet, &[0, 1, 2], &["status", "-q", "--check-members"]);
        lists(&fleet) == returned
    });
    run_of(&fleet, &[0, 1, 2], &["members", "-q"]).with_code(0);
}

#[test]
fn no_list_is_written_without_the_flag_or_by_a_verb_that_only_looks() {
    let fleet = vouched(3);
    let all = [0, 1, 2];
    run_of(&fleet, &all, &["exec", "deploy", "--", "true"]).with_code(0);
    run_of(&fleet, &all, &["status"]).with_code(0);
    run_of(&fleet, &all, &["members", "--check-members"]).with_code(1);
    run_of(&fleet, &all, &["doctor", "--check-members"]);
    assert_eq!(lists(&fleet), [None, None, None]);
    let mut by_variable = tool_of(&fleet, &all, &["exec", "deploy", "--", "true"]);
    run(by_variable.env("REDLATCH_CHECK_MEMBERS", "true")).with_code(0);
    is_agreed(&fleet);
    let both = ["status", "--check-members", "--no-restart-guard"];
    assert!(run_of(&fleet, &all, &both).with_code(125).errors.contains("cannot be used with"));
}

#[test]
fn doctor_fails_where_the_list_is_of_other_servers() {
    let fleet = vouched(4);
    checked(&fleet, &[0, 1, 2]).with_code(0);
    is_agreed(&fleet);
    let row = |nodes: &[usize], flags: &[&str]| {
        let ended = run_of(&fleet, nodes, &[&["doctor", "--json"], flags].concat()).json();
        let checks = ended["checks"].as_array().expect("a list").clone();
        let found = checks.into_iter().find(|it| it["name"] == "members").expect("one row");
        (found["level"].clone(), found["detail"].as_str().expect("a text").to_owned())
    };
    let (level, words) = row(&[0, 1, 2], &["--check-members"]);
    assert_eq!((level, &*words), ("ok".into(), "3 nodes, epoch 1, quorum 2; the same on all"));
    let (level, words) = row(&[0, 1, 3], &["--check-members"]);
    assert_eq!(level, "fail");
    assert!(words.contains(&addresses(&fleet, &[2])[0]), "{words}");
    assert_eq!(lists(&fleet)[3], None);
}
