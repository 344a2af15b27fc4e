//! A node that does not know `HELLO` or `AUTH` repeats their arguments in its error. No error,
//! report, event or debug output of the core contains a part of the password.

use super::*;
use redlatch::NodeId;

/// If so many bytes of the password appear in a row, the test fails.
const PART: usize = 8;

/// Passwords of which a server repeats only a part, or with other characters for line ends.
fn passwords() -> [String; 3] {
    let long: String = (0..193).map(|at: u32| char::from(b'a' + (at * at % 26) as u8)).collect();
    [long, "first-half\nsecond-half".into(), "before\r\n\r\nthe-rest-of-it".into()]
}

/// The error of Redis 7 about a command that it does not know.
fn unknown(command: &[String]) -> String {
    let arguments: String = command[1..].iter().map(|word| format!("'{word}' ")).collect();
    let arguments: String = arguments.chars().take(128).collect();
    let line =
        format!("ERR unknown command '{}', with args beginning with: {arguments}", command[0]);
    format!("-{}\r\n", line.replace(['\r', '\n'], " "))
}

#[track_caller]
fn assert_no_part_is_shown(password: &str, shown: &str) {
    for start in 0..=password.len() - PART {
        let part = &password[start..start + PART];
        assert!(!shown.contains(part), "{part:?} is in {shown}");
    }
}

#[test]
fn a_password_that_a_node_repeats_is_shown_nowhere() {
    for password in passwords() {
        let mut bench = Bench::new(1);
        let id = NodeId::new(0);
        let credentials = redlatch::Credentials::password(password.as_str());
        bench.core.set_credentials(id, credentials);
        bench.lose(0);
        bench.pass(Duration::from_secs(60));
        bench.actions();
        bench.core.handle_connected(id, bench.now);
        let mut shown = String::new();
        let mut repeated = 0;
        // The node refuses HELLO, and then AUTH, and repeats the arguments of each.
        for handshake in ["HELLO", "AUTH"] {
            let commands = bench.sent(0);
            assert_eq!(commands[0][0], handshake);
            for command in commands {
                let reply = unknown(&command);
                repeated += usize::from(reply.contains(&password[..6]));
                bench.reply(0, &reply);
                shown += &format!("{:?}", bench.core);
            }
        }
        assert_eq!(repeated, 2, "the node repeats it each time");
        assert_eq!(bench.node_state(0), NodeState::Rejected(NodeError::UnknownCommand));
        bench.acquire();
        let error = bench.refused();
        let report = bench.core.report_node_states(bench.now);
        shown += &format!("{error} {error:?} {report:?} {:?}", bench.core);
        while let Some(event) = bench.core.poll_node_event() {
            shown += &format!("{event:?}");
        }
        assert!(shown.contains(&NodeError::UnknownCommand.to_string()), "{shown}");
        assert_no_part_is_shown(&password, &shown);
    }
}
