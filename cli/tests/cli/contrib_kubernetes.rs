//! `contrib/kubernetes/`: a Service that follows the leader of an election. No cluster runs here:
//! the commands of the manifest run on the servers of a test.

use std::path::Path;

use super::elections::*;
use super::*;

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib/kubernetes/leader.yaml");

/// The two commands of the manifest: that of the container, and that of its readiness probe.
fn commands() -> [Vec<String>; 2] {
    let manifest = std::fs::read_to_string(MANIFEST).expect("it is there");
    let lines = manifest.lines().filter_map(|line| line.trim().strip_prefix("command: "));
    let commands = lines.map(|line| serde_json::from_str(line).expect("a list of words"));
    commands.collect::<Vec<_>>().try_into().expect("two commands")
}

/// One of the commands, as it runs in the pod of this name.
fn in_pod(fleet: &Fleet, words: &[String], pod: &str) -> Command {
    // CMD is a `cat` that waits for the end of its input.
    let expanded = words.iter().map(|word| {
        let word = word.replace("$(POD_NAME)", pod).replace("$(POD_IP)", "10.0.0.7");
        word.replace("/app/scheduler", "cat")
    });
    let words: Vec<String> = expanded.collect();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let mut command = without_configuration(command);
    // Both find redlatch in the PATH.
    let folder = Path::new(env!("CARGO_BIN_EXE_redlatch")).parent().expect("it is in a folder");
    let path = std::env::var("PATH").expect("there is one");
    command.env("PATH", format!("{}:{path}", folder.display())).env("POD_NAME", pod);
    command.env("REDLATCH_NODE_TIMEOUT", NODE_TIMEOUT);
    command.env("REDLATCH_SERVERS", fleet.urls().join(","));
    command
}

#[test]
fn contrib_manifest_is_ready_only_in_the_pod_that_leads() {
    let (fleet, _desk) = vouched();
    let [elect, probe] = commands();
    let ready = |pod: &str| run(&mut in_pod(&fleet, &probe, pod)).code();
    assert_eq!(ready("pod-1"), 1);
    let first = Running::start(in_pod(&fleet, &elect, "pod-1").stdin(Stdio::piped()));
    eventually(LIMIT, "the first pod is ready", || ready("pod-1") == 0);
    leader_is(&fleet, "pod-1 at 10.0.0.7:8080 leads");
    let _second = Running::start(in_pod(&fleet, &elect, "pod-2").stdin(Stdio::piped()));
    wait_in_line(&fleet, 1);
    assert_eq!(ready("pod-2"), 1);
    first.signal(Signal::TERM);
    first.end(LIMIT).with_code(143);
    eventually(LIMIT, "the second pod is ready", || ready("pod-2") == 0);
    assert_eq!(ready("pod-1"), 1);
}

#[test]
#[ignore = "needs kubernetes-validate: pip install kubernetes-validate"]
fn contrib_manifest_is_valid_for_kubernetes() {
    let mut command = Command::new("kubernetes-validate");
    command.args(["--strict", MANIFEST]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = run(&mut command).with_code(0);
    assert_eq!(format!("{}{}", said.out, said.errors).matches(" passed ").count(), 2, "{said:?}");
}
