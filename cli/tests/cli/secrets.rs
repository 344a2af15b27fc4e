//! Passwords reach the nodes, but appear neither in the output nor among the arguments of any
//! process that the tool starts.

use super::scripts::has_been_asked_by_a_waiter;
use super::*;

const PASSWORD: &str = "hunter2-p@ss";
/// The password as it stands in a URL.
const ENCODED: &str = "hunter2-p%40ss";

/// Checks that a text has neither form of the password, nor its beginning.
#[track_caller]
fn assert_no_password_in(what: &str, text: &str) {
    assert!(!text.contains("hunter2"), "{what}: {text}");
}

#[track_caller]
fn assert_run_prints_no_password(ended: &Ended) {
    assert_no_password_in("its output", &ended.out);
    assert_no_password_in("its errors", &ended.errors);
}

fn with_password(fleet: &Fleet, user: &str, password: &str) -> String {
    let url = |node: &Node| format!("redis://{user}:{password}@127.0.0.1:{}", node.port());
    fleet.iter().map(url).collect::<Vec<_>>().join(",")
}

/// Runs every verb, with all its outputs.
#[track_caller]
fn every_verb(fleet: &Fleet, adjust: impl Fn(&mut Command)) {
    let run = |arguments: &[&str], code| {
        let mut command = tool_on(fleet, arguments);
        adjust(&mut command);
        let ended = run(&mut command).with_code(code);
        assert_run_prints_no_password(&ended);
        ended
    };
    let token = run(&["acquire", "-v", "deploy"], 0).out.trim().to_string();
    run(&["acquire", "-n", "-v", "deploy"], 75);
    run(&["acquire", "-n", "--json", "deploy"], 75);
    run(&["extend", "--json", "deploy", &token], 0);
    run(&["status", "-v", "deploy"], 1);
    run(&["status", "--json"], 0);
    run(&["release", "--json", "deploy", &token], 0);
    run(&["init", "--yes", "-v"], 0);
    run(&["init", "--yes", "--json"], 0);
    run(&["init"], 125);
    run(&["acquire", "--help"], 0);
    run(&["acquire", "-t", "-1", "deploy"], 125);
}

#[test]
fn a_password_in_a_url_or_in_the_environment_is_used_and_never_printed() {
    let fleet = Fleet::with(3, &["--requirepass", PASSWORD]);
    let urls = with_password(&fleet, "", ENCODED);
    every_verb(&fleet, |command| {
        command.env("REDLATCH_SERVERS", &urls);
    });
    every_verb(&fleet, |command| {
        command.env("REDISCLI_AUTH", PASSWORD);
    });
    // A URL with a user but no password gets that of the environment; a password in a URL stays.
    let of_user = urls.replace(&format!(":{ENCODED}@"), "default@");
    every_verb(&fleet, |command| {
        command.env("REDISCLI_AUTH", PASSWORD).env("REDLATCH_SERVERS", &of_user);
    });
    every_verb(&fleet, |command| {
        command.env("REDISCLI_AUTH", "other").env("REDLATCH_SERVERS", &urls);
    });
}

#[test]
fn a_wrong_password_is_not_printed_either() {
    let fleet = Fleet::with(3, &["--requirepass", "right"]);
    let urls = with_password(&fleet, "ann", ENCODED);
    let cases: [(&[&str], i32); 6] = [
        (&["acquire", "-v", "deploy"], 125),
        (&["acquire", "--json", "deploy"], 125),
        (&["extend", "deploy", &foreign_token()], 125),
        (&["release", "--json", "deploy", &foreign_token()], 125),
        (&["status", "deploy"], 69),
        (&["status", "--json"], 69),
    ];
    for (arguments, code) in cases {
        let ended = run(tool_on(&fleet, arguments).env("REDLATCH_SERVERS", &urls)).with_code(code);
        assert_run_prints_no_password(&ended);
        let said = format!("{}{}", ended.out, ended.errors);
        assert!(said.contains("password"), "nothing can be set right by {said}");
        let mut of_environment = tool_on(&fleet, arguments);
        let ended = run(of_environment.env("REDISCLI_AUTH", PASSWORD)).with_code(code);
        assert_run_prints_no_password(&ended);
    }
}

/// This many bytes of a password in a row must not be printed.
const PART: usize = 8;

/// Checks that no part of the password was printed, in any encoding.
#[track_caller]
fn assert_no_part_printed(password: &str, ended: &Ended) {
    let parts = password.as_bytes().windows(PART);
    for part in parts.map(|part| std::str::from_utf8(part).expect("ASCII")) {
        let printed = format!("{}{}", ended.out, ended.errors);
        assert!(!printed.contains(part), "{part:?} of a password: {ended:?}");
    }
}

#[test]
fn a_server_that_repeats_a_part_of_the_password_does_not_make_the_tool_repeat_it() {
    // The server repeats at most 128 bytes of the longer password, and replaces the newline by a
    // space.
    let long: String = (0..193).map(|at: u32| char::from(b'a' + (at * at % 26) as u8)).collect();
    let gone = ["--rename-command", "HELLO", "", "--rename-command", "AUTH", ""];
    let fleet = Fleet::with(3, &gone);
    for password in [long.as_str(), "first-half\nsecond-half"] {
        let said = fleet[0].client().command(&["AUTH", password]).expect("it answers");
        assert!(format!("{said:?}").contains(&password[..PART]), "{said:?}");
        let urls = with_password(&fleet, "", &password.replace('\n', "%0A"));
        let token = foreign_token();
        let cases: [(&[&str], i32); 10] = [
            (&["acquire", "-v", "deploy"], 125),
            (&["acquire", "--json", "deploy"], 125),
            (&["extend", "--json", "deploy", &token], 125),
            (&["release", "-v", "deploy", &token], 125),
            (&["status", "-v", "deploy"], 69),
            (&["status", "--json"], 69),
            (&["exec", "-v", "deploy", "--", "true"], 125),
            (&["exec", "--json", "deploy", "--", "true"], 125),
            (&["doctor", "-v"], 1),
            (&["doctor", "--json"], 1),
        ];
        for (arguments, code) in cases {
            for of_environment in [false, true] {
                let mut command = tool_on(&fleet, arguments);
                if of_environment {
                    command.env("REDISCLI_AUTH", password);
                } else {
                    command.env("REDLATCH_SERVERS", &urls);
                }
                let ended = run(&mut command).with_code(code);
                assert_no_part_printed(password, &ended);
                let printed = format!("{}{}", ended.out, ended.errors);
                let told = ["does not know the command (AUTH: ERR)", "unknown_command"];
                assert!(told.iter().any(|words| printed.contains(words)), "{printed}");
            }
        }
    }
}

#[test]
fn refused_arguments_are_quoted_without_their_password() {
    let url = format!("redis://ann:{ENCODED}@h");
    let cases: [&[&str]; 20] = [
        &["acquire", "-s", &format!("{url}:no-port"), "key"],
        &["acquire", "--json", "-s", &format!("{url}:no-port"), "key"],
        &["acquire", "-s", &format!("http://ann:{ENCODED}@h"), "key"],
        &["acquire", "-s", &format!("ann:{ENCODED}@h"), "key"],
        &["acquire", "-s", "redis://ann:hunter2,hunter2@h", "key"],
        &["acquire", "-s", "redis://hunter2@h", "key"],
        &["acquire", "-s", &format!("{url},{url}"), "key"],
        &["acquire", "key", &url],
        &["acquire", &format!("--servers={url}"), "key"],
        &["acquire", &format!("--json={url}"), "key"],
        &["completions", &url],
        &["release", "key", &url],
        // The user of the tool forgot the `@` and the host.
        &["acquire", "-s", "redis://:hunter2", "key"],
        &["acquire", "--json", "-s", "redis://ann:hunter2", "key"],
        &["acquire", "-s", "ann:hunter2", "key"],
        &["acquire", "-s", "redis://10.0.0.1,redis://:hunter2,redis://ann:x@h", "key"],
        &["acquire", "-s", "redis+unix://:hunter2/run/s", "key"],
        &["acquire", "-s", "redis://h?password=hunter2", "key"],
        &["acquire", "key", "redis://:hunter2"],
        &["acquire", "--json=redis://:hunter2", "key"],
    ];
    for arguments in cases {
        let ended = run(&mut tool(arguments)).with_code(125);
        assert_run_prints_no_password(&ended);
        assert!(!ended.errors.is_empty() || !ended.out.is_empty(), "{arguments:?}");
    }
    let ended = run(&mut tool(&["acquire", "-s", &format!("{url}:no-port"), "key"]));
    assert!(ended.errors.contains("redis://ann:***@h:***"), "{ended:?}");
}

#[test]
fn nothing_in_ps_has_a_password_that_was_not_on_our_command_line() {
    let fleet = Fleet::with(3, &["--requirepass", PASSWORD]);
    let mut command = tool_on(&fleet, &["acquire", "deploy"]);
    command.env("REDLATCH_SERVERS", with_password(&fleet, "", ENCODED));
    let token = run(&mut command).with_code(0).out;
    let waiter = Running::start(&mut command);
    has_been_asked_by_a_waiter(&fleet);
    for file in ["cmdline", "comm"] {
        let text = std::fs::read(format!("/proc/{}/{file}", waiter.id())).expect("it runs");
        assert_no_password_in(file, &String::from_utf8_lossy(&text));
    }
    let children = format!("/proc/{0}/task/{0}/children", waiter.id());
    assert_eq!(std::fs::read_to_string(children).unwrap_or_default(), "", "it has no children");
    let mut release = tool_on(&fleet, &["release", "deploy", token.trim()]);
    run(release.env("REDISCLI_AUTH", PASSWORD)).with_code(0);
    waiter.end(LIMIT).with_code(0);
}
