//! Which nodes count: with another list, without one, and after they lost their data.

use redlatch::testing::master::{Restart, Trouble};

use super::*;

/// How many of two clients, which begin within 4 ms of each other, hold the key.
fn holders(lists: [&[usize]; 2], seed: u64, check: bool) -> usize {
    let mut net = Net::new(5, seed);
    net.set_latency(Duration::from_micros(100)..=millis(3));
    let begin = |net: &mut Net<Client>, masters: &[usize]| {
        let addresses: Vec<_> = masters.iter().map(|it| format!("10.0.0.{it}:6379")).collect();
        let mut settings = settings_for(&addresses);
        settings.check_members = check;
        let client = client_with(net, masters, settings);
        ask(net, client);
        client
    };
    let first = begin(&mut net, lists[seed as usize % 2]);
    net.pass(Duration::from_micros(seed % 40 * 100));
    let second = begin(&mut net, lists[1 - seed as usize % 2]);
    net.pass(millis(3000));
    let held = |client| matches!(result(&mut net, client), Some(Ok(Outcome::Acquired(_))));
    [first, second].map(held).into_iter().filter(|&held| held).count()
}

/// How many orders of the events are played for each pair of lists.
fn seeds() -> u64 {
    asked::number("MEMBERS_SEEDS").unwrap_or(60)
}

const PAIRS: [[&[usize]; 2]; 6] = [
    [&[0, 1, 2], &[0, 3, 4]],
    [&[0, 1, 2], &[2, 3, 4]],
    [&[0, 1, 2], &[0, 1, 2, 3, 4]],
    [&[0, 1, 2], &[0, 1, 3]],
    [&[0, 1, 2], &[4, 3, 0]],
    [&[0], &[0, 1, 2]],
];

#[test]
fn clients_whose_lists_share_a_node_never_both_hold() {
    for lists in PAIRS {
        let mut held = [0; 3];
        for seed in 0..seeds() {
            held[holders(lists, seed, true)] += 1;
        }
        assert_eq!(held[2], 0, "{lists:?}: two holders");
        assert!(held[1] * 10 > held[0], "{lists:?}: mostly one of them holds, but {held:?}");
    }
    let unchecked = (0..seeds()).filter(|&seed| holders(PAIRS[0], seed, false) == 2).count();
    assert!(unchecked as u64 > seeds() / 4, "orders with two holders without it: {unchecked}");
}

#[test]
fn client_with_another_list_is_refused_and_names_both() {
    let (mut net, first) = net_with_list(5);
    assert!((0..3).all(|master| has_list(&net, master)));
    let second = client(&mut net, &[0, 3, 4]);
    let report = report(attempt(&mut net, second));
    let nodes: Vec<_> = refused(&report).iter().map(|(node, _)| *node).collect();
    assert_eq!(nodes, [1, 2], "{report}");
    lock_once(&mut net, first);
}

#[test]
fn client_with_more_nodes_than_the_list_counts_those_of_the_list() {
    let (mut net, _) = net_with_list(5);
    let second = client(&mut net, &[0, 1, 2, 3, 4]);
    lock_once(&mut net, second);
    net.freeze(0);
    lock_once(&mut net, second);
    net.freeze(1);
    let report = report(attempt(&mut net, second));
    assert_eq!((report.needed, refused(&report).len()), (2, 2), "{report}");
}

/// The holder has the key on nodes 1 and 2 of three. A client that knows node 0 alone of the list,
/// or nodes 0 and 1, cannot prove that the lock is gone: the nodes that it does not know may have
/// the key.
#[test]
fn token_is_not_gone_for_a_client_that_does_not_know_all_nodes_of_the_list() {
    for known in [&[0, 3][..], &[0, 1]] {
        for adopts in [false, true] {
            let (mut net, holder) = net_with_list(4);
            let other = client(&mut net, known);
            net.pass(millis(500));
            let Ok(Outcome::Acquired(lock)) = attempt(&mut net, holder) else { panic!("no lock") };
            net.command(0, &[b"DEL", KEY]);
            let (now, token) = (net.now(), lock.token());
            let core = &mut net.client_mut(other).core;
            match adopts {
                true => core.adopt(KEY, token, LockOptions::once(TTL), 0, now).unwrap(),
                false => core.extend_token(KEY, token, TTL, 0, now).unwrap(),
            };
            net.pass(millis(500));
            let result = result(&mut net, other).expect("it has ended");
            let is_right = matches!(result, Err(Error::Config(_) | Error::NoQuorum(_)));
            assert!(is_right, "nodes {known:?}, adopts: {adopts}: {result:?}");
        }
    }
}

#[test]
fn client_that_has_one_wrong_node_holds_by_the_others() {
    let (mut net, _) = net_with_list(4);
    let second = client(&mut net, &[0, 1, 3]);
    lock_once(&mut net, second);
    assert_eq!([0, 1, 2].map(|node| counts(&net, second, node)), [true, true, false]);
    net.freeze(1);
    let report = report(attempt(&mut net, second));
    assert_eq!(refused(&report).len(), 1, "{report}");
    assert!(refused(&report)[0].1.contains("is not in it"), "{report}");
}

#[test]
fn node_that_was_flushed_gets_its_place_back_from_a_client_that_runs() {
    let (mut net, first) = net_with_list(3);
    net.command(1, &[b"FLUSHALL"]);
    net.pass(millis(100));
    assert!(has_list(&net, 1), "the client that runs wrote it again");
    net.pass(2 * TTL);
    net.freeze(0);
    lock_once(&mut net, first);
}

#[test]
fn node_that_restarts_empty_gets_its_place_back_by_its_address() {
    let (mut net, first) = net_with_list(3);
    net.stop(first);
    net.restart(1, Restart::Empty);
    let second = client(&mut net, &[0, 1, 2]);
    net.pass(millis(100));
    assert!(has_list(&net, 1));
    net.pass(2 * TTL);
    net.freeze(0);
    lock_once(&mut net, second);
}

#[test]
fn empty_server_at_a_local_address_does_not_take_a_place() {
    let at_home =
        |third: &str| settings_for(&["10.0.0.0:6379".into(), "10.0.0.1:6379".into(), third.into()]);
    for local in [
        "127.0.0.1:6379",
        "Localhost:6379",
        "[::1]:6379",
        "[::ffff:127.0.0.1]:6379",
        "0.0.0.0:6379",
        "unix:/run/redis.sock",
        "sentinel://10.0.0.9:26379,127.0.0.1:26379/orders",
    ] {
        let mut net = net(4);
        // Each machine has a server of its own at this address.
        let first = client_with(&mut net, &[0, 1, 2], at_home(local));
        lock_once(&mut net, first);
        let second = client_with(&mut net, &[0, 1, 3], at_home(local));
        net.pass(millis(100));
        assert!(!has_list(&net, 3), "{local}");
        assert!(!counts(&net, second, 2), "{local}");
    }
    let mut net = net(3);
    let all_local: Vec<_> = (0..3).map(|node| format!("127.0.0.1:{node}")).collect();
    let first = client_with(&mut net, &[0, 1, 2], settings_for(&all_local));
    lock_once(&mut net, first);
    net.restart(1, Restart::Empty);
    net.stop(first);
    client_with(&mut net, &[0, 1, 2], settings_for(&all_local));
    net.pass(millis(100));
    assert!(has_list(&net, 1), "where all addresses are local, one is as good as another");
}

#[test]
fn server_with_a_copy_of_another_ones_data_does_not_count() {
    let (mut net, first) = net_with_list(4);
    let (dump, now) = (net.master(0).dump(), net.now());
    net.stop(first);
    net.kill(2);
    net.start(2, Restart::Empty);
    net.master_mut(2).restart_from(now, dump);
    let second = client(&mut net, &[0, 1, 2]);
    net.pass(2 * TTL);
    let counted = [0, 1, 2].map(|node| counts(&net, second, node));
    assert_eq!(counted.iter().filter(|&&counts| counts).count(), 2, "{counted:?}");
}

#[test]
fn copy_of_a_node_that_is_gone_does_not_take_its_place() {
    let (mut net, first) = net_with_list(3);
    let (dump, now) = (net.master(0).dump(), net.now());
    net.kill(0);
    net.master_mut(2).restart_from(now, dump);
    net.pass(2 * TTL);
    assert_eq!([0, 1, 2].map(|node| counts(&net, first, node)), [false, true, false]);
}

#[test]
fn node_gets_its_place_back_from_a_client_with_another_name_for_it() {
    let (mut net, first) = net_with_list(3);
    let names: Vec<_> = (0..3).map(|node| format!("redis-{node}:6379")).collect();
    let second = client_with(&mut net, &[0, 1, 2], settings_for(&names));
    lock_once(&mut net, second);
    net.stop(first);
    net.restart(1, Restart::Empty);
    net.pass(millis(1000));
    assert!(has_list(&net, 1), "the second client saw the node in the list before");
}

#[test]
fn nodes_of_two_lists_make_no_quorum_together() {
    let mut net = net(6);
    for list in [[0, 1, 2], [3, 4, 5]] {
        let client = client(&mut net, &list);
        lock_once(&mut net, client);
    }
    net.freeze(0);
    let mixed = client(&mut net, &[0, 1, 3]);
    let report = report(attempt(&mut net, mixed));
    assert!(refused(&report).iter().any(|(node, _)| [1, 2].contains(node)), "{report}");
}

/// A net in which a client has proposed the list of nodes 0 to 2 to the first one of them, and has
/// died then.
fn net_with_an_unfinished_proposal() -> Net<Client> {
    let mut net = net(5);
    let proposer = client(&mut net, &[0, 1, 2]);
    let is_proposed =
        |net: &Net<Client>, master| net.master(master).get(net.now(), 0, MEMBERS).is_some();
    while !(0..3).any(|master| is_proposed(&net, master)) {
        net.pass(millis(1));
    }
    net.stop(proposer);
    assert_eq!((0..3).filter(|&master| is_proposed(&net, master)).count(), 1);
    net
}

#[test]
fn proposal_is_finished_by_a_client_with_the_same_list_and_refused_by_others() {
    let mut net = net_with_an_unfinished_proposal();
    let same = client(&mut net, &[2, 1, 0]);
    lock_once(&mut net, same);
    assert!((0..3).all(|master| has_list(&net, master)));
    let proposed = (0..3).find(|&master| {
        let net = net_with_an_unfinished_proposal();
        net.master(master).get(net.now(), 0, MEMBERS).is_some()
    });
    let proposed = proposed.expect("one of them has it");
    for others in [vec![proposed], vec![proposed, 3, 4], vec![0, 1], vec![0, 1, 2, 3, 4]] {
        if !others.contains(&proposed) {
            continue;
        }
        let mut net = net_with_an_unfinished_proposal();
        let other = client(&mut net, &others);
        let report = report(attempt(&mut net, other));
        assert!(!refused(&report).is_empty(), "{others:?}: {report}");
    }
}

#[test]
fn list_waits_for_all_nodes_and_locks_do_not() {
    for frozen in [false, true] {
        let mut net = net(3);
        if frozen {
            net.freeze(2);
        } else {
            net.kill(2);
        }
        let first = client(&mut net, &[0, 1, 2]);
        lock_once(&mut net, first);
        assert!((0..2).all(|master| !has_list(&net, master)), "no list without all nodes");
        if frozen {
            net.thaw(2);
        } else {
            net.start(2, Restart::Empty);
        }
        net.pass(millis(5_000));
        assert!((0..3).all(|master| has_list(&net, master)), "frozen: {frozen}");
        lock_once(&mut net, first);
    }
}

#[test]
fn node_whose_list_may_not_be_read_or_written_counts_unchecked() {
    let reply = b"-NOPERM this user has no permissions\r\n".to_vec();
    let unreadable = Trouble::Answers { commands: vec!["get".into()], reply };
    for trouble in [unreadable, Trouble::OutOfMemory] {
        let mut net = net(3);
        net.master_mut(1).suffer(trouble.clone());
        let first = client(&mut net, &[0, 1, 2]);
        lock_once(&mut net, first);
        assert!(counts(&net, first, 1), "{trouble:?}");
        assert!((0..3).all(|master| !has_list(&net, master)), "{trouble:?}");
    }
}
