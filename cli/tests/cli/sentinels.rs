//! Nodes that are the masters of Sentinels: what the verbs show of them, and `exec` over a
//! failover.

use super::*;
use support::sentinels::{MASTER, Sentinels};

/// Two masters of their own after a master with its replica.
fn replicated() -> Fleet {
    let fleet = Fleet::with(4, &["--repl-diskless-sync-delay", "0"]);
    let port = fleet[0].port().to_string();
    assert!(fleet[1].command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    eventually(LIMIT, "the replica has a copy", || fleet[1].info("master_link_status") == "up");
    fleet
}

/// The tool on the master of these Sentinels and on the two other masters.
fn tool_behind(sentinels: &Sentinels, fleet: &Fleet, words: &[&str]) -> Command {
    let servers = [sentinels.url(), fleet[2].url(), fleet[3].url()].join(",");
    let mut command = tool(words);
    command.env("REDLATCH_SERVERS", servers).env("REDLATCH_NODE_TIMEOUT", NODE_TIMEOUT);
    command
}

#[test]
fn exec_keeps_its_lock_over_a_failover_of_one_node() {
    let fleet = replicated();
    let sentinels = Sentinels::start(3, &fleet[0], 1);
    let [started, end, log] = ["started", "end", "log"].map(|it| fleet[0].directory().join(it));
    let (started_at, end_at) = (started.display(), end.display());
    let cmd = format!("touch {started_at}; while [ ! -e {end_at} ]; do sleep 0.05; done");
    let words = ["exec", "-v", "-t", "4s", "--max-ttl", "4s", "deploy", "-c", &cmd];
    let errors = std::fs::File::create(&log).expect("the directory can be written");
    let running = Running::start(tool_behind(&sentinels, &fleet, &words).stderr(errors));
    eventually(LIMIT, "CMD runs", || started.exists());
    sentinels.fail_over(&fleet[1]);
    let label = sentinels.url().replace("redis+", "");
    let ready = [0, 1].map(|index| format!("{label} at {} is ready", fleet[index].address()));
    let ignored = format!("grants of {label} are ignored for ");
    let promoted = |line: &str| line.ends_with(": another server was promoted in its place");
    let said = |line: &str| line.contains(&ignored) && promoted(line);
    // CMD lasts until the tool has reported all of it, however long Sentinels and machine need.
    eventually(LIMIT, "the tool reports the failover", || {
        let text = std::fs::read_to_string(&log).expect("the tool writes it");
        ready.iter().all(|line| text.contains(line)) && text.lines().any(said)
    });
    std::fs::write(&end, "").expect("the directory can be written");
    running.end(LIMIT).with_code(0);
    eventually(LIMIT, "the key is released", || {
        [1, 2, 3].iter().all(|&index| fleet[index].get("deploy").is_none())
    });
}

#[test]
fn verbs_show_the_present_master_and_take_the_credentials_for_sentinels() {
    const PASSWORD: &str = "hunter2 of the Sentinels";
    let fleet = Fleet::start(1);
    let lines = |_: &std::path::Path, _| {
        let name = "user ann on >hunter2 +@all".to_owned();
        vec![name]
    };
    let sentinels = Sentinels::with(1, fleet[0].port(), Some(PASSWORD), lines);
    let file = fleet[0].directory().join("sentinel-password");
    std::fs::write(&file, format!("{PASSWORD}\n")).expect("the directory can be written");
    let file = file.to_str().expect("a path in UTF-8");
    let url = sentinels.url();
    let toml = fleet[0].directory().join("redlatch.toml");
    let text = format!("servers = [\"{url}\"]\nsentinel_password_file = \"{file}\"\n");
    std::fs::write(&toml, text).expect("the directory can be written");
    let toml = toml.to_str().expect("a path in UTF-8");
    let of = |words: &[&str], variables: &[(&str, &str)], code: Option<i32>| {
        let mut command = tool(&[words, &["--no-restart-guard"]].concat());
        command.env("REDLATCH_SERVERS", &url).envs(variables.iter().copied());
        let mut ended = run(&mut command);
        if let Some(code) = code {
            ended = ended.with_code(code);
        }
        // A table breaks long lines.
        let said = format!("{} {}", ended.out, ended.errors);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!said.contains("hunter2"), "{said}");
        said
    };
    let auth = ("REDLATCH_SENTINEL_AUTH", PASSWORD);
    let place = fleet[0].address().to_string();
    let status = of(&["status"], &[auth], Some(0));
    assert!(status.contains(&format!("ready at {place}")), "{status}");
    assert!(
        status.contains(&format!("sentinel://{}", url.split_once("//").unwrap().1)),
        "{status}"
    );
    of(&["status"], &[("REDLATCH_SENTINEL_PASSWORD_FILE", file)], Some(0));
    of(&["status"], &[("REDLATCH_CONFIG", toml)], Some(0));
    of(&["status", "--sentinel-user", "ann"], &[("REDLATCH_SENTINEL_AUTH", "hunter2")], Some(0));
    let said = of(&["status", "--sentinel-user", "ann"], &[], Some(125));
    assert!(said.contains("sentinel_user: it needs a password; "), "{said}");
    let said = of(&["status"], &[], Some(69));
    assert!(said.contains("it requires a password; give the credentials for Sentinels"), "{said}");
    let doctor = of(&["doctor", "-v"], &[auth], None);
    assert!(doctor.contains(&format!(" at {place}")), "{doctor}");
    let doctor = of(&["doctor"], &[], None);
    assert!(doctor.contains("look at the addresses of the Sentinels, the name"), "{doctor}");
    of(&["acquire", "deploy"], &[auth], Some(0));
    let list = of(&["list"], &[auth], Some(0));
    assert!(list.contains("deploy"), "{list}");
    let members = run(tool(&["members"]).env("REDLATCH_SERVERS", &url).envs([auth]));
    assert!(!members.errors.contains("Sentinel"), "{members:?}");
    let words = ["exec", "-q", "other", "--", "printenv", "REDLATCH_SENTINEL_AUTH"];
    let mut command = tool(&words);
    let command = command.env("REDLATCH_SERVERS", &url).env("REDLATCH_NO_RESTART_GUARD", "1");
    let ended = run(command.envs([auth])).with_code(1);
    assert!(ended.out.is_empty(), "CMD has the password: {ended:?}");
    assert!(url.ends_with(MASTER));
}
