//! Inspecting a key from outside, and force-releasing a lock whichever client holds it.

use super::monitor_lines::writes;
use super::*;
use redlatch::{ConfigError, KeyState, KeySummary, LostReason, NodeError, ReleaseOutcome, Value};

/// What an inspection finds: its summary, and the key's state on each node.
#[track_caller]
fn states(client: &Client, key: &str) -> (KeySummary, Vec<KeyState>) {
    let inspection = client.inspect(key).unwrap();
    assert_eq!(&*inspection.key, key.as_bytes());
    for node in &inspection.nodes {
        // `WrongType` is an answer of the node: the key holds another type.
        let answered =
            !matches!(node.state, KeyState::Failed(cause) if cause != NodeError::WrongType);
        assert_eq!(answered, !node.took.is_zero(), "{node:?}");
    }
    (inspection.summary(), inspection.nodes.iter().map(|node| node.state).collect())
}

fn held_for_ever(value: &[u8]) -> KeyState {
    KeyState::Held { value: Value::of(value), left: None }
}

#[test]
fn inspect_reports_free_held_split_and_endless_keys_and_changes_nothing() {
    let fleet = Fleet::start(3);
    let (client, holder) = (client(&fleet), client(&fleet));
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    assert_eq!(states(&client, "a"), (KeySummary::Free, vec![KeyState::Absent; 3]));

    let guard = holder.try_lock("a", TTL).unwrap();
    holder.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    let before: Vec<i64> = fleet.iter().map(|node| node.pttl("a")).collect();
    let (summary, seen) = states(&client, "a");
    let token = Value::of(guard.token().digits());
    println!("held: {summary:?}");
    let KeySummary::Held { value, nodes: 3, left: Some(left) } = summary else { panic!() };
    assert_eq!(value, token);
    assert!(left <= TTL && left > TTL / 2);
    for (state, before) in seen.iter().zip(before) {
        let KeyState::Held { value, left: Some(left) } = state else { panic!("{state:?}") };
        assert_eq!(*value, token);
        assert!(left.as_millis() as i64 <= before && *left > TTL / 2, "{left:?} of {before}");
    }
    // The holder's own client sees the lock, too.
    assert!(matches!(states(&holder, "a").0, KeySummary::Held { nodes: 3, .. }));
    guard.check().unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();

    for (node, value) in [(0, "x"), (1, "y")] {
        assert!(fleet[node].command(&["SET", "a", value]).is_ok());
    }
    let split = vec![held_for_ever(b"x"), held_for_ever(b"y"), KeyState::Absent];
    assert_eq!(states(&client, "a"), (KeySummary::Split, split));
    assert!(fleet[1].command(&["SET", "a", "x"]).is_ok());
    let for_ever = KeySummary::Held { value: Value::of(b"x"), nodes: 2, left: None };
    let seen = vec![held_for_ever(b"x"), held_for_ever(b"x"), KeyState::Absent];
    assert_eq!(states(&client, "a"), (for_ever, seen));

    for monitor in &monitors {
        let lines = writes(monitor);
        // The writing commands of the holder and of the test itself.
        let own = ["\"SET\"", "\"EVAL", "\"DELIFEQ\"", "\"DELEX\""];
        let others = |line: &&String| !own.iter().any(|word| line.contains(word));
        let others: Vec<&String> = lines.iter().filter(others).collect();
        assert_eq!(others, [""; 0], "to look was to write");
    }
    let error = client.inspect(vec![b'k'; 65 * 1024]).unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::KeyTooLong { .. })), "{error}");
}

#[test]
fn a_value_of_any_length_is_seen_by_its_beginning() {
    let (fleet, client) = fleet_and_client(3);
    let long = "x".repeat(3 << 20);
    assert!(fleet[0].command(&["SET", "a", long.as_str()]).is_ok());
    assert!(fleet[1].command(&["SET", "a", ""]).is_ok());
    let (summary, seen) = states(&client, "a");
    let beginning = held_for_ever(&long.as_bytes()[..160]);
    assert_eq!(seen, [beginning, held_for_ever(b""), KeyState::Absent]);
    assert_eq!(summary, KeySummary::Split);
    assert_eq!(client.nodes(), [NodeState::Ready; 3], "a connection was lost to it");
}

#[test]
fn nodes_that_do_not_answer_and_keys_that_are_no_locks_are_seen_as_what_they_are() {
    let fleet = Fleet::start(5);
    let client = ready::client(config(&fleet).node_timeout(SILENT));
    assert_eq!(fleet[0].command(&["RPUSH", "a", "1"]).int(), 1);
    fleet[1].kill();
    fleet[2].stop();
    // The client waits a node timeout for the stopped node.
    let start = Instant::now();
    let (summary, seen) = states(&client, "a");
    println!("two of five do not answer: {:?}: {summary:?}, {seen:?}", start.elapsed());
    assert_eq!(seen[0], KeyState::Failed(NodeError::WrongType));
    assert!(
        matches!(seen[1], KeyState::Failed(NodeError::Unreachable | NodeError::Lost)),
        "{seen:?}"
    );
    assert_eq!(
        seen[2..],
        [KeyState::Failed(NodeError::Silent), KeyState::Absent, KeyState::Absent]
    );
    assert_eq!(summary, KeySummary::Unknown);
    fleet[0].command(&["DEL", "a"]);
    assert_eq!(states(&client, "a").0, KeySummary::Free);
    let guard = client.try_lock("a", TTL).unwrap();
    let token = Value::of(guard.token().digits());
    let (summary, _) = states(&client, "a");
    let KeySummary::Held { value, nodes: 3, left: Some(_) } = summary else {
        panic!("{summary:?}")
    };
    assert_eq!(value, token);
    let text = format!("{value}");
    assert_eq!(text, guard.token().to_string(), "an operator can read it");
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet[2].cont();
}

#[test]
fn a_lock_that_is_ended_by_force_is_gone_everywhere_and_its_holder_is_reported_at_once() {
    let ttl = 30 * SECOND;
    let fleet = Fleet::start(5);
    let (holder, operator) = (client(&fleet), client(&fleet));
    // First another client force-releases the lock, then the holder's own client does.
    for by in [&operator, &holder] {
        let guard = holder.lock("a", kept(ttl)).unwrap();
        let plain = holder.try_lock("b", ttl).unwrap();
        holder.drive_until(SOON, "all have them", || fleet.keys_everywhere().len() == 10);
        let start = Instant::now();
        assert_eq!(by.dangerously_force_release("a").unwrap(), ReleaseOutcome::Released);
        let told = holder.until_lost(&guard);
        println!("ended by force, ttl {ttl:?}: its holder notices after {:?}", start.elapsed());
        assert!(start.elapsed() < ttl / 4, "told by its renewal");
        assert_eq!(told.reason(), LostReason::Gone);
        by.drive_until(SOON, "it is gone everywhere", || fleet.values("a").is_empty());
        assert_eq!(by.dangerously_force_release("a").unwrap(), ReleaseOutcome::AlreadyExpired);
        // No client heals the key, so the next one can have it.
        holder.drive(millis(100)).unwrap();
        assert_eq!(fleet.values("a"), [b""; 0]);
        let next = operator.try_lock("a", TTL).unwrap();
        assert_eq!(next.release().unwrap(), ReleaseOutcome::Released);
        // The other lock of the same holder is not affected.
        plain.check().unwrap();
        assert_eq!(plain.release().unwrap(), ReleaseOutcome::Released);
        fleet.wait_empty();
    }
    // Keys without a ttl, a list, and no key: force-release deletes whatever is there, on every
    // node.
    for node in [0, 3, 4] {
        assert!(fleet[node].command(&["SET", "a", "x"]).is_ok());
    }
    assert_eq!(fleet[1].command(&["RPUSH", "a", "1"]).int(), 1);
    let released = operator.dangerously_force_release("a").unwrap();
    println!("strings, a list, and nothing: {released:?}");
    operator.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn a_release_by_force_that_no_majority_answers_is_unconfirmed() {
    let fleet = Fleet::start(3);
    let client = ready::client(config(&fleet).node_timeout(SILENT));
    fleet.command(&["SET", "a", "x"]);
    fleet[1].stop();
    fleet[2].kill();
    let released = client.dangerously_force_release("a").unwrap();
    println!("{released:?}");
    let ReleaseOutcome::Unconfirmed { nodes } = released else { panic!("{released:?}") };
    assert_eq!(nodes.iter().collect::<Vec<_>>(), [NodeId::new(1), NodeId::new(2)]);
    assert_eq!(fleet[0].get("a"), None);
    // The stopped node executes the request when it is continued.
    fleet[1].cont();
    client.drive_until(SOON, "it is gone there, too", || fleet[1].get("a").is_none());
}
