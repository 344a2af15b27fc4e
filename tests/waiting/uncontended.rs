//! A process that waits for no other does not pay for the waiting of others: a lock costs two
//! commands on each node.

use super::*;

const PAIRS: u64 = 20;

#[test]
fn a_free_key_costs_a_set_and_a_release_on_each_node() {
    let fleet = Fleet::start(5);
    let mut embedded = Loop::ready(config(fleet.urls()).node_timeout(5 * SECOND));
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    let mut tokens = Vec::new();
    for pair in 0..PAIRS {
        // Every second request would wait if the key was held.
        let options = if pair % 2 == 0 { LockOptions::new(TTL) } else { waiting() };
        let op = embedded.engine.acquire("a", options, pair).expect("there is room");
        let lock = embedded.locked(op);
        tokens.push(lock.token().to_string());
        // All nodes answer before the release. A release before their answers would cost another
        // command.
        wait_until_all_is_answered(&mut embedded);
        embedded.engine.release(lock, pair);
        embedded.comes_to_rest();
        wait_until_all_is_answered(&mut embedded);
    }
    // Gives the client time for a command after the release, which it must not send.
    embedded.turn_for(millis(50));
    drop(embedded);
    for (node, monitor) in fleet.iter().zip(&monitors) {
        let lines = monitor.lines();
        // The commands inside a script, and TIME, do not count.
        let asked =
            lines.iter().filter(|line| !line.contains(" lua] ") && !is_command(line, "TIME"));
        let asked: Vec<&String> = asked.collect();
        assert_eq!(asked.len(), 2 * PAIRS as usize, "{}: {lines:#?}", node.url());
        for (pair, token) in asked.chunks(2).zip(&tokens) {
            let set = format!("\"SET\" \"a\" \"{token}\" \"NX\" \"PX\" \"{}\"", TTL.as_millis());
            assert!(pair[0].ends_with(&set), "{pair:?}");
            let release =
                ["EVALSHA", "DELIFEQ", "DELEX"].iter().any(|name| is_command(pair[1], name));
            assert!(release && pair[1].contains(token), "{pair:?}");
        }
    }
}

fn wait_until_all_is_answered(embedded: &mut Loop) {
    embedded.turn_until("all is answered", |engine| {
        let core = engine.coordinator();
        core.ready().iter().all(|node| core.unanswered(node) == 0)
    });
}

fn is_command(line: &str, command: &str) -> bool {
    line.contains(&format!("] \"{command}\""))
}
