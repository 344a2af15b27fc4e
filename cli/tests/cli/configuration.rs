//! Where a flag's value comes from: the command line, a variable, the file, or its default.

use std::path::PathBuf;

use super::*;
use support::CountingListener;

/// A file in the directory of the first server.
fn file(fleet: &Fleet, name: &str, text: &str) -> String {
    let path: PathBuf = fleet[0].directory().join(name);
    std::fs::write(&path, text).expect("the server's directory can be written");
    path.to_str().expect("a path in UTF-8").to_string()
}

/// Runs the tool without flags for nodes: these come from the file and the variables.
fn tool_without_node_flags(words: &[&str], config: &str, variables: &[(&str, &str)]) -> Ended {
    let mut command = tool(words);
    command.env("REDLATCH_CONFIG", config).env("REDLATCH_NO_RESTART_GUARD", "true");
    command.env("REDLATCH_NODE_TIMEOUT", "500ms");
    run(command.envs(variables.iter().copied()))
}

/// A TOML list of the servers, as `host:port`.
fn list_of(fleet: &Fleet) -> String {
    let quoted = fleet.iter().map(|node| format!("\"127.0.0.1:{}\"", node.port()));
    format!("[{}]", quoted.collect::<Vec<_>>().join(", "))
}

/// The keys of the nodes, each once, without the node marker.
fn keys(fleet: &Fleet) -> Vec<String> {
    let mut keys: Vec<String> = fleet
        .keys_everywhere()
        .into_iter()
        .map(|(_, key)| String::from_utf8(key).expect("a key is text"))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[test]
fn flag_counts_more_than_variable_and_that_more_than_the_file() {
    let fleet = Fleet::start(3);
    let text = format!(
        "servers = {}\nttl = \"20s\"\nkey_prefix = \"file:\"\nowner = \"file-owner\"\nwait = 0\n",
        list_of(&fleet)
    );
    let config = file(&fleet, "redlatch.toml", &text);
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str, &'a str, u64);
    let cases: [Case<'_>; 4] = [
        (&[], &[], "file:", "file-owner", 20),
        (
            &[],
            &[("REDLATCH_KEY_PREFIX", "env:"), ("REDLATCH_OWNER", "env"), ("REDLATCH_TTL", "30s")],
            "env:",
            "env",
            30,
        ),
        (
            &["--key-prefix", "flag:", "--owner", "flag", "-t", "40s"],
            &[("REDLATCH_KEY_PREFIX", "env:"), ("REDLATCH_OWNER", "env"), ("REDLATCH_TTL", "30s")],
            "flag:",
            "flag",
            40,
        ),
        // An empty variable counts as unset, but an empty flag is an empty value.
        (&["--owner", ""], &[("REDLATCH_KEY_PREFIX", "")], "file:", "", 20),
    ];
    for (flags, variables, prefix, owner, ttl) in cases {
        let words = [&["acquire", "--json"], flags, &["deploy"]].concat();
        let taken = tool_without_node_flags(&words, &config, variables).with_code(0).json();
        assert_eq!(taken["key"], "deploy");
        let token = taken["token"].as_str().expect("a token").to_string();
        let suffix = if owner.is_empty() { String::new() } else { format!(":{owner}") };
        assert_eq!(token[40..], suffix);
        let remaining = taken["remaining_ms"].as_u64().expect("a number");
        assert!((ttl - 2..ttl).contains(&(remaining / 1000)), "{ttl} s: {taken}");
        let sent = format!("{prefix}deploy");
        is_held_everywhere(&fleet, &sent, &token);
        assert_eq!(keys(&fleet), [sent]);
        // With the same configuration the other verbs find the lock under the name that the caller
        // gave.
        let status = [&["status", "--json"], flags, &["deploy"]].concat();
        let seen = &tool_without_node_flags(&status, &config, variables).with_code(1).json()[0];
        assert_eq!((seen["key"].as_str(), seen["held"].as_bool()), (Some("deploy"), Some(true)));
        assert_eq!(seen["owner"].as_str().unwrap_or(""), owner);
        // The configuration file sets the wait to zero.
        let denied = tool_without_node_flags(&words, &config, variables).with_code(75).json();
        assert_eq!(denied["owner"].as_str().unwrap_or(""), owner);
        assert_eq!(denied["holder"], token.as_str());
        let message = denied["message"].as_str().expect("a text");
        assert!(message.contains("for \"deploy\"") && message.contains("held by "), "{message}");
        let release = [&["release"], flags, &["deploy", &token]].concat();
        tool_without_node_flags(&release, &config, variables).with_code(0);
        nothing_is_left(&fleet);
    }
    // The file that the flag names counts.
    let other = file(&fleet, "other.toml", &text.replace("file:", "other:"));
    let words = ["--config", &other, "acquire", "deploy"];
    tool_without_node_flags(&words, &config, &[]).with_code(0);
    assert_eq!(keys(&fleet), ["other:deploy"]);
}

#[test]
fn flag_counts_more_than_a_variable_that_contradicts_it() {
    let fleet = Fleet::start(1);
    acquired(&fleet, &["-t", "20s", "deploy"]);
    let take = |flags: &[&str], variables: &[(&str, &str)], code| {
        let mut command = tool_on(&fleet, &[&["acquire"], flags, &["deploy"]].concat());
        run(command.envs(variables.iter().copied())).with_code(code)
    };
    // If the variable counted as well, the tool would wait for longer than a test may take, or
    // refuse the contradiction.
    assert!(take(&["-n"], &[("REDLATCH_WAIT", "1h")], 75).ran < LIMIT);
    take(&["-w", "0"], &[("REDLATCH_NONBLOCK", "true")], 75);
    take(&[], &[("REDLATCH_NONBLOCK", "1")], 75);
    take(&[], &[("REDLATCH_WAIT", "0.1")], 75);
    let quiet = take(&["-n", "-q"], &[("REDLATCH_VERBOSE", "yes")], 75);
    assert!(quiet.out.is_empty() && quiet.errors.is_empty(), "{quiet:?}");
    let json = take(&["-n"], &[("REDLATCH_JSON", "on")], 75);
    assert_eq!(json.json()["error"], "contended");
    assert!(!take(&["-n"], &[("REDLATCH_JSON", "false")], 75).errors.is_empty());
    let both = [("REDLATCH_WAIT", "1h"), ("REDLATCH_NONBLOCK", "true")];
    let refused = take(&[], &both, 125);
    assert!(refused.errors.contains("cannot be used with"), "{refused:?}");
}

#[test]
fn value_that_cannot_be_read_is_named_with_its_variable_or_its_line() {
    let fleet = Fleet::start(1);
    let told = |variables: &[(&str, &str)], config: &str| {
        let ended =
            tool_without_node_flags(&["status", "deploy"], config, variables).with_code(125);
        assert!(ended.out.is_empty() && !ended.errors.contains("hunter2"), "{ended:?}");
        ended.errors
    };
    let errors = told(&[("REDLATCH_TTL", "soon")], "/dev/null");
    assert!(errors.contains("not a duration") && errors.contains("REDLATCH_TTL"), "{errors}");
    let errors = told(&[("REDLATCH_JSON", "maybe")], "/dev/null");
    assert!(errors.contains("REDLATCH_JSON"), "{errors}");
    let long = "x".repeat(101);
    let servers = fleet.urls().join(",");
    for owner in ["two words", &long] {
        let set = [("REDLATCH_OWNER", owner), ("REDLATCH_SERVERS", &servers)];
        let errors = told(&set, "/dev/null");
        assert!(errors.contains("owner is "), "{errors}");
    }
    let bad = file(&fleet, "bad.toml", "# x\nserver = \"redis://:hunter2@h\"\n");
    let errors = told(&[], &bad);
    assert!(errors.contains("bad.toml: line 2: unknown field `server`"), "{errors}");
    let errors = told(&[], "/no/such/file");
    assert!(errors.contains("/no/such/file: No such file"), "{errors}");
    // Verbs that ask no node do not read the file, and neither does help.
    for words in [&["man"][..], &["completions", "bash"], &["status", "--help"]] {
        tool_without_node_flags(words, "/no/such/file", &[]).with_code(0);
    }
    let refused =
        tool_without_node_flags(&["acquire", "--json", "deploy"], &bad, &[]).with_code(125).json();
    assert_eq!(refused["error"], "config");
}

#[test]
fn key_or_prefix_that_is_reserved_is_refused_before_a_node_is_asked() {
    let fleet = Fleet::start(1);
    let list = list_of(&fleet);
    let plain = file(&fleet, "plain.toml", &format!("servers = {list}\n"));
    let text = format!("servers = {list}\nkey_prefix = \"redlatch:\"\n");
    let prefixed = file(&fleet, "prefixed.toml", &text);
    let token = "0123456789".repeat(4);
    let own = "redlatch:fence:{a}";
    let keys: [&[&str]; 11] = [
        &["acquire", own],
        &["acquire", "a", own],
        &["extend", "-t", "5s", own, &token],
        &["release", own, &token],
        &["force-release", "--yes", own],
        &["status", own],
        &["wait", own],
        &["leader", own],
        &["resign", own],
        &["exec", own, "--", "true"],
        &["exec", "a", "--also", own, "--", "true"],
    ];
    let told = format!("key \"{own}\": names that begin with \"redlatch:\" are reserved");
    for words in keys {
        let ended = tool_without_node_flags(words, &plain, &[]).with_code(125);
        assert!(ended.errors.contains(&told), "{words:?}: {ended:?}");
    }
    let connections = fleet[0].info("total_connections_received");
    let told = "key \"redlatch:\": names that begin with \"redlatch:\" are reserved";
    let flag: &[&str] = &["doctor", "--key-prefix", "redlatch:"];
    for (words, config) in
        [(&["acquire", "a"][..], &prefixed), (&["doctor"], &prefixed), (flag, &plain)]
    {
        let ended = tool_without_node_flags(words, config, &[]).with_code(125);
        assert!(ended.errors.contains(told), "{words:?}: {ended:?}");
    }
    let variable = [("REDLATCH_KEY_PREFIX", "redlatch:")];
    let ended = tool_without_node_flags(&["acquire", "a"], &plain, &variable).with_code(125);
    assert!(ended.errors.contains(told), "{ended:?}");
    assert_eq!(fleet[0].info("total_connections_received"), connections, "a node was asked");
    nothing_is_left(&fleet);
}

#[test]
fn password_comes_from_a_file_that_the_configuration_names() {
    const PASSWORD: &str = "hunter2 /@,";
    let fleet = Fleet::with(3, &["--requirepass", PASSWORD]);
    let folder = fleet[0].directory().to_str().expect("a path in UTF-8").to_string();
    let path = file(&fleet, "password", &format!("{PASSWORD}\n"));
    let servers = list_of(&fleet);
    let absolute =
        file(&fleet, "a.toml", &format!("servers = {servers}\npassword_file = \"{path}\"\n"));
    let relative =
        file(&fleet, "r.toml", &format!("servers = {servers}\npassword_file = \"password\"\n"));
    let none = file(&fleet, "n.toml", &format!("servers = {servers}\n"));
    let wrong = file(&fleet, "wrong", "wrong");
    let credentials = ("CREDENTIALS_DIRECTORY", folder.as_str());
    let take = |config: &str, variables: &[(&str, &str)], code| {
        let ended = tool_without_node_flags(&["acquire", "-n", "-v", "deploy"], config, variables)
            .with_code(code);
        let said = format!("{}{}", ended.out, ended.errors);
        assert!(!said.contains("hunter2"), "{said}");
        if code == 0 {
            tool_without_node_flags(&["release", "deploy", ended.out.trim()], config, variables)
                .with_code(0);
        }
        said
    };
    take(&absolute, &[], 0);
    take(&relative, &[credentials], 0);
    take(&none, &[("REDLATCH_PASSWORD_FILE", "password"), credentials], 0);
    // REDISCLI_AUTH counts more than a password file, and a variable more than the configuration.
    take(&none, &[("REDISCLI_AUTH", PASSWORD), ("REDLATCH_PASSWORD_FILE", &wrong)], 0);
    take(&absolute, &[("REDLATCH_PASSWORD_FILE", &wrong)], 125);
    take(&absolute, &[("REDISCLI_AUTH", "wrong")], 125);
    let said = take(&relative, &[], 125);
    assert!(said.contains("CREDENTIALS_DIRECTORY"), "{said}");
    let said = take(&none, &[("REDLATCH_PASSWORD_FILE", "/no/such/file")], 125);
    assert!(said.contains("/no/such/file"), "{said}");
    // No flag takes a password.
    let help = tool_without_node_flags(&["acquire", "--help"], "/dev/null", &[]).with_code(0).out;
    assert!(!help.contains("--password"), "{help}");
}

#[test]
fn owner_is_the_host_and_the_process_unless_given_and_shown_to_others() {
    let fleet = Fleet::start(3);
    let holder = tool_on(&fleet, &["exec", "deploy", "--", "sleep", "60"]).spawn();
    let mut holder = holder.expect("the binary was built with this test");
    eventually(LIMIT, "it holds the lock", || values(&fleet, "deploy").iter().all(Option::is_some));
    let token = values(&fleet, "deploy")[0].clone().expect("it is held");
    let process = format!(":{}", holder.id());
    assert!(token[40..].starts_with(':') && token.ends_with(&process), "{token}");
    let owner = &token[41..];

    let status = run_on(&fleet, &["status", "deploy"]).with_code(1);
    assert!(status.out.starts_with(&format!("deploy: held by {owner} on 3 of 3")), "{status:?}");
    let denied = run_on(&fleet, &["acquire", "-n", "deploy"]).with_code(75);
    let holds = format!("; held by {owner}, ");
    assert!(denied.errors.contains(&holds) && denied.errors.contains(" left"), "{denied:?}");
    let mut json = tool_on(&fleet, &["exec", "-w", "0.5", "--json", "deploy", "--", "true"]);
    let denied = run(&mut json).with_code(75);
    let lines: Vec<Value> =
        denied.errors.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{denied:?}");
    assert_eq!((&lines[0]["event"], &lines[0]["owner"]), (&"waiting".into(), &owner.into()));
    assert_eq!((&lines[1]["error"], &lines[1]["owner"]), (&"contended".into(), &owner.into()));
    assert_eq!(lines[1]["holder"], token.as_str());
    assert!(lines[1]["remaining_ms"].as_u64().is_some_and(|left| left > 1_000), "{lines:?}");
    holder.kill().expect("it is our child");
    holder.wait().expect("it is our child");

    // The value of another program is shown as it is, without an owner.
    fleet.command(&["SET", "other", "host:1 x"]);
    let denied = run_on(&fleet, &["acquire", "-n", "--json", "other"]).with_code(75).json();
    assert_eq!((&denied["holder"], &denied["owner"]), (&"host:1 x".into(), &Value::Null));
    assert_eq!(denied["remaining_ms"], Value::Null);
    let message = denied["message"].as_str().expect("a text");
    assert!(message.ends_with("; held by host:1 x for ever: the key has no ttl"), "{message}");
}

#[test]
fn connect_timeout_bounds_the_start() {
    // The listener accepts connections, but never answers.
    let silent = CountingListener::start();
    let took = |limit: &str| {
        let words = ["status", "-s", &silent.url(), "--connect-timeout", limit];
        run(&mut tool(&words)).with_code(69).ran
    };
    let (short, long) = (took("100ms"), took("4s"));
    println!("100ms: {short:?}, 4s: {long:?}");
    assert!(short < 3 * SECOND && long > 3 * SECOND, "100ms: {short:?}, 4s: {long:?}");
}

#[test]
fn help_names_the_variable_of_every_flag_and_no_value() {
    for verb in ["exec", "acquire", "status", "doctor", "init", "bench"] {
        let mut command = tool(&["help", verb]);
        command.env("REDLATCH_SERVERS", "redis://:hunter2@h").env("REDLATCH_TTL", "");
        let help = run(&mut command).with_code(0).out;
        assert!(help.contains("[env: REDLATCH_SERVERS]") && !help.contains("hunter2"), "{help}");
        assert!(help.contains("[env: REDLATCH_CONNECT_TIMEOUT]"), "{verb}: {help}");
    }
}

/// Where replicas are to confirm a grant, a server without any grants nothing: so the number has
/// reached the client from each of these places.
#[test]
fn replicas_are_counted_wherever_their_number_is_given() {
    let fleet = Fleet::start(1);
    let file = |text: &str, name: &str| file(&fleet, name, text);
    let servers = format!("servers = {}\nmax_ttl = \"500ms\"\nttl = \"400ms\"\n", list_of(&fleet));
    let (plain, counted) =
        (file(&servers, "plain.toml"), file(&format!("{servers}replicas = 1\n"), "counted.toml"));
    let acquire = |config: &str, words: &[&str], variable: Option<&str>| {
        let mut command = tool(&["acquire", "--node-timeout", "500ms"]);
        command.env("REDLATCH_CONFIG", config).args(words);
        run(command.envs(variable.map(|count| ("REDLATCH_REPLICAS", count))))
    };
    // So that the new server is in no quarantine.
    eventually(LIMIT, "the server is vouched for", || {
        let mut command = tool(&["init", "--yes", "--json", "--node-timeout", NODE_TIMEOUT]);
        let ended = run(command.env("REDLATCH_CONFIG", &plain)).with_code(0);
        ended.json()["vouched"].as_array().is_some_and(|nodes| nodes.len() == 1)
    });
    acquire(&plain, &["-w", "20s", "a"], None).with_code(0);
    for (config, words, variable) in [
        (&counted, &["-n", "b"][..], None),
        (&plain, &["-n", "--replicas", "1", "c"], None),
        (&plain, &["-n", "d"], Some("1")),
    ] {
        let ended = acquire(config, words, variable).with_code(69);
        assert!(ended.errors.contains("has too few replicas"), "{ended:?}");
    }
    acquire(&counted, &["-w", "20s", "--replicas", "0", "e"], None).with_code(0);
    let refused = acquire(&counted, &["--node-timeout", "50ms", "f"], None).with_code(125);
    assert!(refused.errors.contains("200 ms at least with replicas"), "{refused:?}");
}
