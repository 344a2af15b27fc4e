//! Wrong usage: usage and configuration errors exit with 125, help and version do not.

use std::io::Write;

use super::*;

#[test]
fn usage_errors_exit_125() {
    let cases: [&[&str]; 8] = [
        &[],
        &["nonsense"],
        &["exec", "key"],
        &["acquire"],
        &["acquire", ""],
        &["acquire", "-s", "redis://h", "-t", "soon", "key"],
        &["release", "-s", "redis://h", "key", "no-token"],
        &["acquire", "-n", "-w", "1", "key"],
    ];
    for arguments in cases {
        let ended = run(&mut tool(arguments)).with_code(125);
        assert!(ended.out.is_empty() && !ended.errors.is_empty(), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn usage_error_for_a_missing_token_and_for_words_of_other_tools_has_a_tip() {
    let token = "tip: the last word is the token that `redlatch acquire` printed; if that is a \
        key, its token is missing after it\n";
    let cases: [(&[&str], &str); 7] = [
        (&["release", "-s", "10.0.0.1", "k"], token),
        (&["extend", "-s", "10.0.0.1", "k"], token),
        (&["lock", "k"], "tip: `redlatch exec KEY CMD` runs a command under the lock; "),
        (&["run", "k", "true"], "tip: `redlatch exec KEY CMD` runs a command under the lock; "),
        (&["with", "k", "true"], "tip: `redlatch exec KEY CMD` runs a command under the lock; "),
        (&["unlock", "k"], "tip: `redlatch release KEY TOKEN` releases a lock\n"),
        (&["renew", "k"], "tip: `redlatch extend KEY TOKEN` extends a lock\n"),
    ];
    for (arguments, tip) in cases {
        let ended = run(&mut tool(arguments)).with_code(125);
        assert!(ended.errors.contains(&format!("\n{tip}")), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn missing_nodes_and_missing_files_exit_125() {
    let ended = run(&mut tool(&["status"])).with_code(125);
    assert!(ended.errors.contains("-s URL") && ended.errors.contains("REDLATCH_SERVERS"));
    let mut command = tool(&["status", "-s", "redis://h", "--tls-ca", "no-such-file"]);
    let ended = run(&mut command).with_code(125);
    let told = if cfg!(feature = "tls") { "No such file" } else { "TLS is not built in" };
    assert!(ended.errors.contains(told), "{ended:?}");
    let mut command = tool(&["status", "-s", "rediss://h"]);
    command.env("SSL_CERT_FILE", "/dev/null").env_remove("SSL_CERT_DIR");
    let ended = run(&mut command).with_code(125);
    assert!(ended.errors.contains(if cfg!(feature = "tls") { "--tls-ca" } else { "tls" }));
}

/// Every verb. The help of the last one has no example.
const VERBS: &str = "exec hold elect wait force-release acquire extend release status leader \
                     resign list top doctor members init bench completions man demo";

#[test]
fn help_and_version_exit_0_and_print_to_stdout() {
    for verb in VERBS.split(' ') {
        let ended = run(&mut tool(&[verb, "--help"])).with_code(0);
        assert!(ended.out.contains("Usage: redlatch ") && ended.errors.is_empty(), "{ended:?}");
    }
    let version = run(&mut tool(&["--version"])).with_code(0);
    assert_eq!(version.out, concat!("redlatch ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn help_of_every_verb_has_an_example() {
    for verb in VERBS.split(' ').filter(|verb| *verb != "demo") {
        let help = run(&mut tool(&["help", verb])).with_code(0).out;
        assert!(help.contains(&format!("\n  redlatch {verb}")) || help.contains("$(redlatch "));
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

#[test]
fn completions_are_valid_for_their_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&mut tool(&["completions", shell])).with_code(0).out;
        for word in ["--no-restart-guard", "--persistent-nodes", "--check-members"] {
            assert!(script.contains(word.trim_start_matches('-')), "{shell}: {word}");
        }
        let mut reader = Command::new(shell);
        reader.args(["-n", "/dev/stdin"]);
        if let Some(ended) = output_of_program_with_input(&mut reader, &script) {
            let ended = ended.with_code(0);
            assert!(ended.errors.is_empty(), "{shell}: {ended:?}");
        }
    }
}

#[test]
fn manual_page_can_be_shown_by_man() {
    let page = run(&mut tool(&["man"])).with_code(0).out;
    assert!(page.contains("\n.TH redlatch 1"), "{page}");
    let mut groff = Command::new("groff");
    groff.args(["-man", "-Tascii", "-P-c", "-P-b", "-P-u", "-ww", "-rLL=80n"]);
    let Some(shown) = output_of_program_with_input(&mut groff, &page) else { return };
    let shown = shown.with_code(0);
    assert!(shown.errors.is_empty(), "{shown:?}");
    for word in
        ["EXEC", "ACQUIRE", "INIT", "TIMING", "ENVIRONMENT", "EXIT CODES", "REDLATCH_SERVERS"]
    {
        assert!(shown.out.contains(word), "{word}: {}", shown.out);
    }
}

/// Runs a program that reads `text`; `None` if this machine does not have it.
fn output_of_program_with_input(command: &mut Command, text: &str) -> Option<Ended> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (started, name) = (Instant::now(), command.get_program().to_owned());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("not looked at: there is no {name:?} here");
            return None;
        }
        child => child.expect("it can be started"),
    };
    let mut input = child.stdin.take().expect("it is piped");
    let text = text.to_string();
    std::thread::spawn(move || input.write_all(text.as_bytes()));
    let (out, errors) = (child.stdout.take().map(reader), child.stderr.take().map(reader));
    Some(Running { started, child, out, errors }.end(LIMIT))
}

#[test]
fn last_value_of_a_repeated_flag_wins_but_every_server_counts() {
    let urls = ["-s", "redis://127.0.0.1:1,redis://127.0.0.1:2", "-s", "redis://127.0.0.1:3"];
    let mut command = tool(&["status", "--node-timeout", "1h", "--node-timeout", "9ms"]);
    let ended = run(command.args(urls)).with_code(69);
    assert!(ended.out.starts_with("0 of 3 nodes can grant"), "{ended:?}");
}

#[test]
fn flags_that_the_verbs_share_may_stand_before_the_verb() {
    let fleet = Fleet::start(1);
    let url = fleet.urls().join(",");
    let ended = run(&mut tool(&["-s", &url, "--no-restart-guard", "--json", "status", "key"]));
    assert_eq!(ended.with_code(0).json()[0]["held"], false);
}

#[test]
fn status_hides_no_flag() {
    let help = run(&mut tool(&["status", "--help"])).with_code(0);
    for flag in
        ["--ttl", "--wait", "--nonblock", "--max-ttl", "--no-restart-guard", "--check-members"]
    {
        assert!(help.out.contains(flag), "{flag} is not in the help of status");
    }
}
