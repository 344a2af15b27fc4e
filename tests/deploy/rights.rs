//! Users with few rights, and servers that refuse half of their commands: what the client can do
//! without, and which missing right is an error that names it.

use super::*;
use redlatch::{Error, KeyState, LockOptions, NodeError, NodeReply};

/// The ACL rule in docs/operations.md. A test compares the two.
const RULE: &str = "~lock:* ~redlatch:node -@all +set +eval +evalsha +get +del +pttl +pexpire \
                    +exists +delifeq +delex +select +info +time +script|load +command|info \
                    +client|tracking +client|caching +client|kill +client|setname +client|setinfo";

/// What the page adds for fenced locks.
const FENCED: &str = "+multi +incr +exec";

/// Words of the rule that not every server knows.
const NOT_EVERYWHERE: [&str; 4] = ["+delifeq", "+delex", "+client|setinfo", "+command|info"];

/// Gives the user `worker` these rights on every node, without the words that the servers do not
/// know.
#[track_caller]
fn grant(fleet: &Fleet, rule: &[&str]) {
    for node in fleet {
        let mut command = vec!["ACL", "SETUSER", "worker", "reset", "on", ">zebra"];
        command.extend(rule);
        let mut said = node.command(&command);
        for word in NOT_EVERYWHERE {
            let about_it = format!("{said:?}").to_lowercase().contains(word);
            if about_it {
                command.retain(|given| *given != word);
                said = node.command(&command);
            }
        }
        assert!(said.is_ok(), "{said:?}");
    }
}

fn worker_config(fleet: &Fleet) -> Config {
    config(fleet.iter().map(|node| url(node, "worker:zebra@", "/1")))
}

fn whole_rule() -> Vec<&'static str> {
    RULE.split_ascii_whitespace().collect()
}

fn rule_without(word: &str) -> Vec<&'static str> {
    let left: Vec<_> = whole_rule().into_iter().filter(|given| *given != word).collect();
    assert!(left.len() < whole_rule().len(), "{word} is not in the rule");
    left
}

/// Acquires, extends and releases a lock on a key of the worker's.
#[track_caller]
fn lock_extend_and_release_as_worker(client: &Client, without: &str) {
    let wrong = |error: Error| -> ! { panic!("without {without}: {error}") };
    let mut guard = client.lock("lock:a", TTL).unwrap_or_else(|e| wrong(e));
    guard.extend(2 * TTL).unwrap_or_else(|e| wrong(e));
    assert_eq!(guard.release(), Ok(ReleaseOutcome::Released), "without {without}");
}

/// Stops a node until the client gives up the connection, and continues it. The client then sends
/// its pending releases.
#[track_caller]
fn replace_a_connection(fleet: &Fleet, client: &Client) {
    fleet[0].stop();
    drop(client.lock("lock:b", TTL).expect("two of three"));
    eventually(30 * SECOND, "the silent connection is given up", || {
        client.drive(millis(5)).expect("the poller works");
        matches!(client.nodes()[0], NodeState::Down(_) | NodeState::Connecting)
    });
    fleet[0].cont();
    eventually(10 * SECOND, "it is paid what it is owed", || {
        client.drive(millis(5)).expect("the poller works");
        client.nodes()[0] == NodeState::Ready && fleet.keys_everywhere().is_empty()
    });
}

/// Waits until one waiter is in the line of the worker's key on two of three nodes. The third node
/// may have executed the waiter's request before the holder's, and have given it the key.
#[track_caller]
fn wait_for_one_in_line(fleet: &Fleet) {
    let count = "redis.call('SELECT', 1) return redis.call('ZCARD', KEYS[1])";
    let command = ["EVAL", count, "1", "redlatch:line:{lock:a}"];
    eventually(6 * SOON, "a waiter stands in line", || {
        fleet.iter().filter(|node| node.command(&command).int() == 1).count() >= 2
    });
}

#[test]
fn acl_rule_in_the_docs_is_enough_for_locks() {
    let paper = include_str!("../../docs/operations.md");
    let told = paper.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains(RULE), "docs/operations.md does not have the rule: {RULE}");
    let fleet = Fleet::start(3);
    grant(&fleet, &whole_rule());
    let client = ready(worker_config(&fleet));
    lock_extend_and_release_as_worker(&client, "nothing");
    let other = ready(worker_config(&fleet));
    let guard = client.lock("lock:a", TTL).unwrap();
    assert!(matches!(other.try_lock("lock:a", TTL), Err(Error::Contended(_))));
    drop(guard);
    replace_a_connection(&fleet, &client);
    // The servers refused none of these commands, except those that they do not know.
    for node in &fleet {
        let log = format!("{:?}", node.command(&["ACL", "LOG"])).to_lowercase();
        let known = NOT_EVERYWHERE.iter().map(|word| format!("\"{}\"", &word[1..]));
        let refusals = log.matches("\"object\"").count();
        let of_known: usize = known.map(|word| log.matches(&word).count()).sum();
        assert_eq!(refusals, of_known, "refused: {log}");
    }
}

/// Valkey 9.1 has rules for databases.
#[test]
fn acl_rule_may_keep_a_user_to_the_database_of_the_url() {
    let paper = include_str!("../../docs/operations.md");
    assert!(paper.contains("`db=1`"), "docs/operations.md does not have the rule");
    let server = crate::support::Server::get();
    if !server.valkey || server.version < (9, 1) {
        println!("not run: {} {:?} has no such rules", server.binary, server.version);
        return;
    }
    let fleet = Fleet::start(3);
    grant(&fleet, &[&whole_rule()[..], &["db=1"]].concat());
    let client = ready(worker_config(&fleet));
    lock_extend_and_release_as_worker(&client, "nothing");
    replace_a_connection(&fleet, &client);
    for node in &fleet {
        let log = format!("{:?}", node.command(&["ACL", "LOG"])).to_lowercase();
        assert!(!log.contains("database"), "refused: {log}");
    }
    let elsewhere = config(fleet.iter().map(|node| url(node, "worker:zebra@", "/2")));
    let client = Client::connect(elsewhere).unwrap();
    let error = client.lock("lock:a", TTL).unwrap_err();
    assert!(error.to_string().contains("permissions to access database"), "{error}");
}

#[test]
fn acl_rule_for_lines_is_enough_for_them() {
    let fleet = Fleet::start(3);
    let commands = ["+zadd", "+zrank", "+zscore", "+zrange", "+zrem", "+subscribe", "+publish"];
    let channels = ["+pubsub|numsub", "resetchannels", "&redlatch:*"];
    let line = [&["~redlatch:line:{lock:*"][..], &commands, &channels].concat();
    let paper = include_str!("../../docs/operations.md");
    let told = paper.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains(&line.join(" ")), "docs/operations.md does not have: {line:?}");
    let whole = whole_rule();
    let all = [&whole[..], &line].concat();
    for rights in [all, [&whole[..], &line[1..]].concat(), whole.clone()] {
        grant(&fleet, &rights);
        let (first, second) = (ready(worker_config(&fleet)), worker_config(&fleet));
        for _ in 0..3 {
            let guard = first.lock("lock:a", LockOptions::new(6 * TTL)).unwrap();
            let second = second.clone();
            let waiter = std::thread::spawn(move || {
                let second = ready(second);
                let wait = LockOptions::new(TTL).wait(60 * SECOND);
                let released = second.lock("lock:a", wait).unwrap().release();
                let stats = second.stats();
                (released, stats.handed_over)
            });
            // Without the rights to the line or its key, the client polls after pauses.
            let in_line = rights.contains(&line[0]);
            if in_line {
                wait_for_one_in_line(&fleet)
            } else {
                std::thread::sleep(millis(300))
            }
            assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
            let (released, handed_over) = waiter.join().unwrap();
            assert_eq!(released, Ok(ReleaseOutcome::Released));
            assert_eq!(handed_over, u64::from(in_line));
        }
        eventually(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
        for node in &fleet {
            let log = format!("{:?}", node.command(&["ACL", "LOG"])).to_lowercase();
            assert!(!log.contains("pubsub"), "refused: {log}");
        }
    }
}

/// A user with these rights can join a line; only its polls are refused.
#[test]
fn waiter_that_may_join_but_not_poll_asks_again_after_pauses() {
    let fleet = Fleet::start(3);
    let line = "~redlatch:line:{lock:* +zadd +zrank +zscore +zrange +zrem +subscribe +publish \
                +pubsub|numsub resetchannels &redlatch:*";
    let whole = [RULE, line].join(" ");
    for refused in ["+zrank", "+zscore"] {
        let all = whole.split_ascii_whitespace();
        grant(&fleet, &all.filter(|word| *word != refused).collect::<Vec<_>>());
        let (first, second) = (ready(worker_config(&fleet)), worker_config(&fleet));
        let guard = first.lock("lock:a", LockOptions::new(6 * TTL)).unwrap();
        let waiter = std::thread::spawn(move || {
            let wait = LockOptions::new(TTL).wait(60 * SECOND);
            let second = ready(second);
            let released = second.lock("lock:a", wait).unwrap().release();
            (released, second.stats().handed_over)
        });
        eventually(6 * SOON, "a poll is refused on each node", || {
            let log = |node: &Node| format!("{:?}", node.command(&["ACL", "LOG"]));
            fleet.iter().all(|node| log(node).to_lowercase().contains(&refused[1..]))
        });
        let exists = "redis.call('SELECT', 1) return redis.call('EXISTS', KEYS[1])";
        let is_left = |node: &Node, key| node.command(&["EVAL", exists, "1", key]).int() == 1;
        eventually(6 * SOON, "no line is left", || {
            !fleet.iter().any(|node| is_left(node, "redlatch:line:{lock:a}"))
        });
        assert_eq!(guard.release(), Ok(ReleaseOutcome::Released), "without {refused}");
        assert_eq!(waiter.join().unwrap(), (Ok(ReleaseOutcome::Released), 0), "without {refused}");
        eventually(SOON, "no key is left", || !fleet.iter().any(|it| is_left(it, "lock:a")));
    }
}

/// The ACL rule in docs/operations.md for plain and fenced locks, on one key and on several, and
/// for waiting in line.
#[test]
fn acl_rule_for_all_features_is_enough_for_them() {
    let keys = "~lock:* ~redlatch:line:{lock:* ~redlatch:fence:{lock:* ~redlatch:node \
                ~redlatch:members";
    let paper = include_str!("../../docs/operations.md");
    let told = paper.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains(&format!("ACL SETUSER worker resetkeys {keys}")), "no rule {keys}");
    let fleet = Fleet::start(3);
    let line = "+zadd +zrank +zscore +zrange +zrem +subscribe +publish +pubsub|numsub \
                resetchannels &redlatch:*";
    let rights = whole_rule().into_iter().filter(|word| !word.starts_with('~'));
    let script_alone: Vec<_> = rights.chain(line.split(' ')).chain(keys.split(' ')).collect();
    assert!(told.contains(&format!("`{FENCED}`")), "no rights {FENCED}");
    grant(&fleet, &script_alone.iter().copied().chain(FENCED.split(' ')).collect::<Vec<_>>());
    // No list of masters is agreed while a node cannot be reached.
    let guarded = || {
        let config = worker_config(&fleet).restart_guard(RestartGuard::On).max_ttl(3 * SECOND);
        config.check_members(true).connect_timeout(20 * SECOND)
    };
    let [client, other] = [guarded(), guarded()].map(ready);
    let options = LockOptions::new(millis(2900)).wait(10 * SECOND);
    let mut guard = client.lock("lock:a", options).unwrap();
    guard.extend(millis(2900)).unwrap();
    assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
    for names in [&["lock:a"][..], &["lock:a", "lock:{b}"]] {
        let mut fences = Vec::new();
        for client in [&client, &other, &client] {
            let mut guard = client.lock(names, options.fenced()).unwrap();
            guard.extend(millis(2900)).unwrap();
            fences.push(guard.fences().map(|(_, fence)| fence).collect::<Vec<_>>());
            assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
        }
        assert!(fences[0] < fences[1] && fences[1] < fences[2], "{fences:?}");
        assert_eq!(fences[0].len(), names.len());
    }
    let executed = |node: &Node| format!("{:?}", node.command(&["INFO", "commandstats"]));
    assert!(fleet.iter().filter(|node| executed(node).contains("cmdstat_exec")).count() >= 2);
    let log = |node: &Node| format!("{:?}", node.command(&["ACL", "LOG"])).to_lowercase();
    assert!(!fleet.iter().any(|node| log(node).contains("multi")), "a transaction is refused");
    // Without the rights to a transaction the script counts.
    grant(&fleet, &script_alone);
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let guard = client.lock("lock:a", options.fenced()).unwrap();
        numbers.push(guard.fence());
        assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
    }
    assert!(numbers[0].is_some() && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let guard = client.lock("lock:a", options).unwrap();
    let waiter = std::thread::spawn(move || {
        let released = other.lock("lock:a", options).unwrap().release();
        (released, other.stats().handed_over)
    });
    wait_for_one_in_line(&fleet);
    assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
    assert_eq!(waiter.join().unwrap(), (Ok(ReleaseOutcome::Released), 1));
    for node in &fleet {
        let log = format!("{:?}", node.command(&["ACL", "LOG"])).to_lowercase();
        let refused_keys = log.matches("\"key\"").count();
        assert_eq!(refused_keys, 0, "refused: {log}");
    }
    // A brace in the pattern is a plain character, so the user may touch no other key of redlatch.
    let mut mine = fleet[0].client();
    assert!(mine.command(&["AUTH", "worker", "zebra"]).unwrap().is_ok());
    assert!(mine.command(&["SELECT", "1"]).unwrap().is_ok());
    assert_eq!(mine.command(&["EXISTS", "redlatch:node"]).unwrap().int(), 1, "no marker");
    assert_eq!(mine.command(&["EXISTS", "redlatch:members"]).unwrap().int(), 1, "no list");
    for (key, may) in OWN_KEYS {
        let said = mine.command(&["EXISTS", key]).unwrap();
        assert_eq!(format!("{said:?}").contains("NOPERM"), !may, "{key}: {said:?}");
    }
}

/// Keys beside that of a lock, and whether the rule lets a user of the locks `lock:*` touch them.
const OWN_KEYS: [(&str, bool); 5] = [
    ("redlatch:fence:{lock:a}", true),
    ("redlatch:fence:lock:a}", false),
    ("redlatch:fence:{other:a}", false),
    ("redlatch:line:{lock:a}", true),
    ("redlatch:line:lock:a", false),
];

#[test]
fn rights_that_a_lock_needs_are_named() {
    let fleet = Fleet::start(3);
    let server = crate::support::Server::get();
    let has_own = server.version >= if server.valkey { (9, 0) } else { (8, 4) };
    for word in ["+set", "+eval", "~lock:*"] {
        if word == "+eval" && has_own {
            // Plain locks do without: `no_lua.rs`.
            continue;
        }
        grant(&fleet, &rule_without(word));
        let client = Client::connect(worker_config(&fleet)).unwrap();
        let error = client.lock("lock:a", TTL).unwrap_err();
        assert!(matches!(error, Error::Config(_)), "without {word}: {error}");
        let told = if word == "~lock:*" { "key" } else { &word[1..] };
        assert!(error.to_string().contains("denies a permission (ACL)"), "without {word}: {error}");
        assert!(error.to_string().contains(told), "without {word}: {error}");
        println!("without {word}: {error}");
    }
    // The user has no right to this key.
    grant(&fleet, &whole_rule());
    let client = ready(worker_config(&fleet));
    let error = client.lock("invoice:42", TTL).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    println!("a key of others: {error}");
}

/// The server also checks the rights to each command inside a script.
#[test]
fn rights_that_a_script_lacks_are_reported_where_needed() {
    let fleet = Fleet::start(3);
    for word in ["+get", "+del", "+pttl", "+pexpire"] {
        grant(&fleet, &rule_without(word));
        let client = ready(worker_config(&fleet));
        let mut guard = client.lock("lock:a", TTL).unwrap();
        let extended = guard.extend(2 * TTL);
        if word == "+del" {
            assert_eq!(extended, Ok(()));
        } else {
            let error = extended.unwrap_err();
            assert!(matches!(error, Error::Config(_)), "without {word}: {error}");
            let report = error.report().expect("nodes were asked");
            let refused = NodeReply::Failed(NodeError::NoPermission);
            assert!(report.nodes.iter().filter(|node| node.reply == refused).count() >= 2);
            println!("without {word}: {error}");
        }
        let released = guard.release().unwrap();
        // A server with a compare-and-delete command does not run a script for the release.
        let refused = matches!(released, ReleaseOutcome::Unconfirmed { .. });
        let native = crate::support::Server::get().valkey;
        assert_eq!(refused, matches!(word, "+get" | "+del") && !native, "without {word}");
        drop(client);
        fleet.command(&["FLUSHALL"]);
    }
}

#[test]
fn rights_that_a_lock_does_not_need_may_be_missing() {
    let fleet = Fleet::start(3);
    let optional = [
        "+evalsha",
        "+exists",
        "+delifeq",
        "+delex",
        "+info",
        "+time",
        "+script|load",
        "+command|info",
        "+client|tracking",
        "+client|caching",
        "+client|kill",
        "+client|setname",
        "+client|setinfo",
    ];
    for word in optional {
        grant(&fleet, &rule_without(word));
        let client = ready(worker_config(&fleet));
        for _ in 0..3 {
            lock_extend_and_release_as_worker(&client, word);
        }
        eventually(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    }
    // Now all optional rights are missing together.
    let least: Vec<_> = whole_rule().into_iter().filter(|word| !optional.contains(word)).collect();
    grant(&fleet, &least);
    let client = ready(worker_config(&fleet));
    for _ in 0..3 {
        lock_extend_and_release_as_worker(&client, "any");
    }
    replace_a_connection(&fleet, &client);
}

#[test]
fn only_inspect_needs_a_permission_of_its_own() {
    let fleet = Fleet::start(3);
    for (may, extra) in [(false, &[][..]), (true, &["+getrange"][..])] {
        grant(&fleet, &[&whole_rule()[..], extra].concat());
        let client = ready(worker_config(&fleet));
        let guard = client.lock("lock:a", TTL).unwrap();
        let seen = client.inspect("lock:a").unwrap();
        for node in &seen.nodes {
            let refused = node.state == KeyState::Failed(NodeError::NoPermission);
            assert_eq!(refused, !may, "{node:?}");
            let told = node.detail.as_deref().unwrap_or_default().contains("getrange");
            assert_eq!(told, !may, "{node:?}");
        }
        guard.release().unwrap();
    }
}

/// Managed services remove whole commands.
#[test]
fn servers_without_config_client_info_script_command_and_hello_are_used() {
    let commands = ["CONFIG", "CLIENT", "INFO", "SCRIPT", "COMMAND", "HELLO"];
    let each = commands.iter().map(std::slice::from_ref).chain([&commands[..]]);
    for gone in each {
        let arguments: Vec<_> =
            gone.iter().flat_map(|name| ["--rename-command", *name, ""]).collect();
        let fleet = Fleet::with(3, &arguments);
        // The timeouts are short, so that the client soon gives up a silent connection.
        let config = config(fleet.urls()).node_timeout(millis(2_500)).reset_after(millis(100));
        let client = ready(config);
        lock_extend_and_release_as_worker(&client, &gone.join(" "));
        replace_a_connection(&fleet, &client);
    }
}

#[test]
fn server_that_reports_no_uptime_is_in_quarantine_when_it_is_first_met() {
    let fleet = Fleet::with(1, &["--rename-command", "INFO", ""]);
    let config = config(fleet.urls()).restart_guard(RestartGuard::On).max_ttl(4 * SECOND);
    let client = Client::connect(config).unwrap();
    let error = client.try_lock("a", millis(100)).unwrap_err();
    assert!(error.to_string().contains("does not report its uptime"), "{error}");
    assert!(client.lock("a", millis(900)).is_ok(), "it is trusted after that");
}

/// If a node has a compare-and-delete command, the client uses it.
#[test]
fn a_compare_and_delete_of_the_nodes_own_is_used() {
    let fleet = Fleet::start(1);
    let client = ready(config(fleet.urls()));
    let monitor = fleet[0].monitor();
    lock_extend_and_release(&client);
    let lines = monitor.lines();
    let server = crate::support::Server::get();
    let native = match (server.valkey, server.version) {
        (true, version) if version >= (9, 0) => Some("\"DELIFEQ\""),
        (false, version) if version >= (8, 4) => Some("\"DELEX\""),
        _ => None,
    };
    let used = lines.iter().any(|line| native.is_some_and(|name| line.contains(name)));
    assert_eq!(used, native.is_some(), "{lines:#?}");
    println!("released by {}", native.unwrap_or("a script"));
}
