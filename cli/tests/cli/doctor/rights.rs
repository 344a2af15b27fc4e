//! Users with restricted rights, and servers that refuse to write.

use super::*;

/// The commands that a lock needs, and no others, as in docs/operations.md. `getrange` is for
/// `status`.
const ALL: &str = "-@all +set +eval +evalsha +get +del +pttl +pexpire +exists +delifeq +delex \
    +select +info +time +script|load +command|info +client|tracking +client|caching +client|kill \
    +client|setname +client|setinfo +getrange +config|get +zadd +zrank +zscore +zrange +zrem \
    +subscribe +publish +pubsub|numsub &*";

/// A command that the user may not use, and the expected finding: its name, its level, and a part
/// of its text.
type Missing = (&'static str, &'static str, &'static str, &'static str);

const MISSING: [Missing; 25] = [
    ("set", "permissions", "fail", "SET is refused (NOPERM"),
    ("eval", "permissions", "fail", "EVAL is refused (NOPERM"),
    ("get", "permissions", "fail", "GET is refused (NOPERM"),
    ("pttl", "permissions", "fail", "PTTL is refused (NOPERM"),
    ("pexpire", "permissions", "fail", "PEXPIRE is refused (NOPERM"),
    ("del", "permissions", "fail", "DEL is refused (NOPERM"),
    ("evalsha", "permissions", "warn", "EVALSHA is refused (NOPERM"),
    ("script|load", "permissions", "warn", "SCRIPT LOAD is refused (NOPERM"),
    ("time", "permissions", "warn", "TIME is refused (NOPERM"),
    ("exists", "permissions", "warn", "EXISTS is refused (NOPERM"),
    ("getrange", "permissions", "warn", "GETRANGE is refused (NOPERM"),
    ("command|info", "permissions", "warn", "COMMAND INFO is refused (NOPERM"),
    ("client|kill", "permissions", "warn", "CLIENT KILL is refused (NOPERM"),
    ("client|setname", "permissions", "warn", "CLIENT SETNAME is refused (NOPERM"),
    ("zadd", "permissions", "warn", "ZADD is refused (NOPERM"),
    ("zrank", "permissions", "warn", "ZRANK is refused (NOPERM"),
    ("zscore", "permissions", "warn", "ZSCORE is refused (NOPERM"),
    ("zrange", "permissions", "warn", "ZRANGE is refused (NOPERM"),
    ("zrem", "permissions", "warn", "ZREM is refused (NOPERM"),
    ("subscribe", "permissions", "warn", "SUBSCRIBE is refused (NOPERM"),
    ("publish", "permissions", "warn", "PUBLISH is refused (NOPERM"),
    ("pubsub|numsub", "permissions", "warn", "PUBSUB NUMSUB is refused (NOPERM"),
    ("client|tracking", "tracking", "warn", "CLIENT TRACKING is refused (NOPERM"),
    ("client|caching", "tracking", "warn", "CLIENT CACHING is refused (NOPERM"),
    ("config|get", "connections", "warn", "the node refuses CONFIG"),
];

/// The same for the server's own compare-and-delete command, if it has one.
const OWN: [Missing; 2] = [
    ("delifeq", "permissions", "warn", "DELIFEQ is refused (NOPERM"),
    ("delex", "permissions", "warn", "DELEX is refused (NOPERM"),
];

/// The entries of both lists for commands that this server knows.
fn missing(server: &Node) -> Vec<Missing> {
    let has = |it: &Missing| {
        let reply = server.command(&["COMMAND", "INFO", it.0]);
        matches!(reply, support::Value::Array(it) if matches!(it[0], support::Value::Array(_)))
    };
    let own: Vec<Missing> = OWN.into_iter().filter(has).collect();
    // On a server with a compare-and-delete command, a missing DEL or EVAL is only a warning.
    let spared = |it: Missing| match it.0 {
        "del" if !own.is_empty() => (it.0, it.1, "warn", "DEL is refused (NOPERM"),
        "eval" if !own.is_empty() => (it.0, "scripts", "warn", "no Lua scripts (NOPERM"),
        _ => it,
    };
    MISSING.into_iter().map(spared).chain(own.iter().copied()).collect()
}

/// How many addresses a server listens on. A server accepts at most 16.
const ADDRESSES: usize = 15;

/// Servers with many addresses each, and a user for each address, so that one run of doctor covers
/// all users.
struct Users {
    fleet: Fleet,
}

impl Users {
    fn start(count: usize) -> Users {
        let addresses = (1..=ADDRESSES).map(|host| format!("127.0.0.{host}"));
        let addresses: Vec<String> = std::iter::once("--bind".into()).chain(addresses).collect();
        Users { fleet: Fleet::each(count.div_ceil(ADDRESSES), |_, _| addresses.clone()) }
    }

    /// The server of the user with this number, which counts from 0.
    fn server(&self, number: usize) -> &Node {
        &self.fleet[number / ADDRESSES]
    }

    #[track_caller]
    fn set(&self, number: usize, rules: &str) {
        let user = format!("u{number}");
        // Sets the rules one by one, so that one with a command that the server does not know can
        // be left out.
        for rule in ["on", ">opensesame"].into_iter().chain(rules.split_whitespace()) {
            let reply = self.server(number).command(&["ACL", "SETUSER", &user, rule]);
            let unknown = format!("{reply:?}").contains("Unknown command");
            assert!(reply.is_ok() || (unknown && rule.starts_with('+')), "{rule}: {reply:?}");
        }
    }

    fn label(&self, number: usize) -> String {
        format!("127.0.0.{}:{}", number % ADDRESSES + 1, self.server(number).port())
    }

    fn url(&self, number: usize) -> String {
        format!("redis://u{number}:opensesame@{}", self.label(number))
    }
}

#[test]
fn each_command_that_is_refused_is_found_with_its_effect() {
    if is_old() {
        println!("not run: the server has no rules for subcommands, and other words");
        return;
    }
    let users = Users::start(MISSING.len() + OWN.len() + 3);
    let missing = missing(users.server(0));
    let count = missing.len();
    for (index, (command, ..)) in missing.iter().enumerate() {
        users.set(index, &format!("~* {ALL} -{command}"));
    }
    users.set(count, &format!("~* {ALL}"));
    users.set(count + 1, &format!("~* {ALL} -info"));
    users.set(count + 2, &format!("~* {ALL} -@all"));
    let urls: Vec<String> = (0..count + 3).map(|number| users.url(number)).collect();
    let diagnosis = ask_plainly(&urls);
    for (index, (command, name, level, words)) in missing.iter().enumerate() {
        let bad = diagnosis.bad(Some(&users.label(index)), &["age", "persistence"]);
        println!("without {command}: {bad:?}");
        if *command == "time" {
            // Without TIME the rate of the node's clock cannot be checked either.
            assert_alike(&bad, &[(name, level, words), ("clock-rate", "warn", "refuses TIME")]);
        } else {
            assert_alike(&bad, &[(name, level, words)]);
        }
    }
    // With all rights nothing is reported. Without INFO only that is reported, and not that other
    // checks need it.
    diagnosis.is(&users.label(count), &[]);
    let bad = diagnosis.bad(Some(&users.label(count + 1)), &[]);
    let names: Vec<&str> = bad.iter().map(|bad| bad.0.as_str()).collect();
    let untold = ["role", "loading", "cluster", "eviction", "persistence", "age", "permissions"];
    assert_eq!(names, [&untold[..], &["proxy", "connections"]].concat());
    assert!(bad.iter().all(|bad| bad.1 == "warn"), "{bad:?}");
    // For a user without any rights every command of the list is reported.
    let bad = diagnosis.bad(Some(&users.label(count + 2)), &[]);
    for (command, name, level, words) in MISSING.iter().filter(|it| it.1 == "permissions") {
        let found = bad.iter().any(|it| it.0 == *name && it.1 == *level && it.2.contains(words));
        assert!(found, "{command}: {bad:#?}");
    }
    // The user who may not delete leaves one key and its counter until their ttl is over.
    let left = users.fleet.keys_everywhere();
    assert!(left.len() <= 2, "{left:?}");
    for (server, key) in left {
        assert!(users.fleet[server].pttl(key) <= 5000);
    }
}

#[test]
fn doctor_names_the_prefix_to_a_user_with_rights_to_some_keys() {
    let users = Users::start(1);
    users.set(0, "~lock:* resetchannels &redlatch:* +@all");
    let diagnosis = ask_plainly(&[users.url(0)]);
    diagnosis.is(&users.label(0), &[("permissions", "fail", "try --key-prefix")]);
    let prefixed = [&PLAINLY[..], &["--key-prefix", "lock:"]].concat();
    let expected = [
        ("permissions", "warn", "~redlatch:line:{lock:*"),
        ("fencing", "warn", "~redlatch:fence:{lock:*"),
    ];
    ask(&[users.url(0)], &prefixed).is(&users.label(0), &expected);
    users.set(0, "~redlatch:line:{lock:* ~redlatch:fence:{lock:*");
    ask(&[users.url(0)], &prefixed).is(&users.label(0), &[]);
}

#[test]
fn doctor_reports_why_a_node_refuses_writes() {
    let fleet = Fleet::start(3);
    let set = |node: &Node, name, value| {
        assert!(node.command(&["CONFIG", "SET", name, value]).is_ok());
    };
    set(&fleet[0], "maxmemory", "1");
    set(&fleet[1], "min-replicas-to-write", "1");
    // Makes the save fail: even root cannot rename a file to the name of a directory.
    std::fs::create_dir(fleet[2].directory().join("dump.rdb")).expect("a new name");
    set(&fleet[2], "save", "3600 1");
    fleet[2].command(&["BGSAVE"]);
    eventually(5 * SECOND, "the save has failed", || {
        fleet[2].info("rdb_last_bgsave_status") == "err"
    });
    let diagnosis = ask_plainly(&fleet.urls());
    assert_eq!(diagnosis.code, 1);
    let full = ("eviction", "warn", "% full");
    diagnosis.is(&label(&fleet[0]), &[full, ("writes", "fail", "OOM")]);
    diagnosis.is(&label(&fleet[1]), &[("writes", "fail", "NOREPLICAS")]);
    diagnosis.is(&label(&fleet[2]), &[("writes", "fail", "MISCONF")]);
    diagnosis.is_together(&[("quorum", "fail", "0 of 3 nodes grant")]);
}

#[test]
fn doctor_finds_no_failure_in_a_managed_server_that_refuses_half_of_the_checks() {
    let renamed = ["CONFIG", "HELLO", "CLIENT"].map(|name| ["--rename-command", name, ""]);
    let arguments = [renamed.as_flattened(), &["--appendonly", "yes"]].concat();
    let fleet = Fleet::with(1, &arguments);
    let diagnosis = ask(&fleet.urls(), &PLAINLY);
    let bad = diagnosis.bad(Some(&label(&fleet[0])), &["age"]);
    println!("{bad:#?}");
    let expected = [
        ("persistence", "warn", "appendfsync is unknown"),
        ("permissions", "warn", "CLIENT KILL is refused (ERR unknown command"),
        ("permissions", "warn", "CLIENT SETNAME is refused (ERR unknown command"),
        ("permissions", "warn", "CLIENT SETINFO is refused (ERR unknown command"),
        ("tracking", "warn", "it refuses HELLO"),
        ("connections", "warn", "unknown: the node refuses CONFIG (timeout)"),
    ];
    assert_alike(&bad, &expected);
    assert_eq!(diagnosis.code, 0);
}
