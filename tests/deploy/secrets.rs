//! No output has a password in it: this test runs all other tests of this binary once more, and
//! searches everything that they print.

use std::process::Command;

use super::credentials::PASSWORD;
use super::*;
use redlatch::Credentials;

/// Begins the lines of the test that prints such things, which proves that their output was
/// searched.
const SHOWN: &str = "shown: ";

/// Prints everything that can be printed, at the moments when a password is nearest.
#[test]
fn debug_output_shows_no_password() {
    let fleet = Fleet::with(1, &["--requirepass", PASSWORD]);
    let config = config([url(&fleet[0], ":op3n%3As%40same%2Fzebra@", "")])
        .credentials(|_| Some(Credentials::of("default", PASSWORD)));
    println!("{SHOWN}{config:?} {:?} {:?}", config.get_settings(), Credentials::password(PASSWORD));
    for wrong in [":op3n%3As%40same%2Fzebra@h:x", "u:op3n:s@same/zebra@", "u:op3n:s@same/zebra@h/x"]
    {
        for scheme in ["redis://", "rediss://", "redis+unix://", "http://", ""] {
            let error = Config::new([format!("{scheme}{wrong}")]).unwrap_err();
            println!("{SHOWN}{error} {error:?}");
        }
    }
    let mut poll = mio::Poll::new().unwrap();
    let mut events = mio::Events::with_capacity(8);
    let mut engine = redlatch::Engine::new(config, poll.registry(), mio::Token(0)).unwrap();
    // Prints the engine at each step of the handshake, with the password in the outbox and without
    // it.
    eventually(SOON, "the node is ready", || {
        println!("{SHOWN}{engine:?} {:?}", engine.coordinator());
        let timeout = engine.prepare().unwrap_or(millis(10)).min(millis(10));
        println!("{SHOWN}{engine:?} {:?}", engine.coordinator());
        sleep(&mut poll, &mut events, timeout);
        for event in &events {
            engine.handle_event(event);
            println!("{SHOWN}{engine:?} {:?}", engine.coordinator());
        }
        while let Some(event) = engine.poll_node_event() {
            println!("{SHOWN}{event:?}");
        }
        engine.coordinator().ready().len() == 1
    });
    println!("{SHOWN}{:?}", engine.stats());
}

/// The test also looks for parts of [`PASSWORD`], because a line may have been cut off in the
/// middle.
#[test]
fn no_output_has_a_password_in_it() {
    let binary = std::env::current_exe().expect("this binary has a path");
    let mut tests = Command::new(binary);
    tests.args([
        "deploy::credentials::",
        "deploy::encrypted::",
        "deploy::secrets::debug_output_shows_no_password",
    ]);
    tests.args(["deploy::rights::what_a_lock_cannot", "--nocapture", "--test-threads", "1"]);
    let output = tests.output().expect("this binary can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.lines().filter(|line| line.contains(SHOWN)).count() > 20, "nothing was shown");
    for output in [said, String::from_utf8_lossy(&output.stderr)] {
        for needle in ["zebra", "op3n", "PRIVATE KEY"] {
            let found: Vec<_> = output.lines().filter(|line| line.contains(needle)).collect();
            assert!(found.is_empty(), "{found:#?}");
        }
    }
}
