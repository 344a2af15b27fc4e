//! What is asked for wrongly: usage and configuration errors are 125, help and version are not.

use super::*;

#[test]
fn what_the_parser_refuses_is_125() {
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
fn help_and_version_are_0_and_on_stdout() {
    for verb in ["exec", "acquire", "extend", "release", "status", "doctor", "bench", "demo"] {
        let ended = run(&mut tool(&[verb, "--help"])).with_code(0);
        assert!(ended.out.contains("Usage: redlatch ") && ended.errors.is_empty(), "{ended:?}");
    }
    let version = run(&mut tool(&["--version"])).with_code(0);
    assert_eq!(version.out, concat!("redlatch ", env!("CARGO_PKG_VERSION"), "\n"));
}
