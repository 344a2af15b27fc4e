//! Orders of events that once gave two holders, or refused a right client for ever.

use redlatch::testing::master::{Restart, Trouble};

use super::*;

const PAIRS: [[&[usize]; 2]; 3] =
    [[&[0, 1, 2], &[2, 3, 4]], [&[0, 1, 2], &[0, 3, 4]], [&[0, 1, 2], &[1, 3, 4]]];

/// Lets master `twin` be the same server as `master`, under a second address.
fn make_twin(net: &mut Net<Client>, twin: usize, master: usize) {
    let [run_id, _] = net.master(master).identities();
    net.master_mut(twin).set_info("run_id", &run_id);
}

/// The nodes are reached in time, but the proposals take longer than the wait for the list.
fn holders_with_short_timeout(lists: [&[usize]; 2], seed: u64) -> usize {
    let mut net = Net::new(5, seed);
    net.set_latency(Duration::from_micros(100)..=millis(3));
    let begin = |net: &mut Net<Client>, masters: &[usize]| {
        let mut settings = settings_of(masters);
        settings.connect_timeout = millis(13);
        let client = client_with(net, masters, settings);
        ask(net, client);
        client
    };
    let first = begin(&mut net, lists[0]);
    net.pass(Duration::from_micros(seed % 40 * 100));
    let second = begin(&mut net, lists[1]);
    let mut held = [false; 2];
    for _ in 0..3000 {
        net.pass(millis(1));
        held[0] |= holds(&mut net, first);
        held[1] |= holds(&mut net, second);
    }
    held.into_iter().filter(|&it| it).count()
}

/// A client stands still while its proposal is in flight.
fn holders_after_a_pause(lists: [&[usize]; 2], seed: u64) -> usize {
    let mut net = Net::new(5, seed);
    net.set_latency(Duration::from_micros(100)..=millis(3));
    let first = client_with(&mut net, lists[0], settings_of(lists[0]));
    ask(&mut net, first);
    pass_until(&mut net, |net| lists[0].iter().any(|&it| !value(net, it).is_empty()));
    net.stop(first);
    let second = client_with(&mut net, lists[1], settings_of(lists[1]));
    ask(&mut net, second);
    net.pass(millis(1500));
    net.resume(first);
    net.pass(millis(3000));
    [first, second].into_iter().filter(|&it| holds(&mut net, it)).count()
}

#[test]
fn one_server_at_two_addresses_has_one_vote() {
    for check in [false, true] {
        let mut net = net(3);
        make_twin(&mut net, 2, 1);
        net.kill(0);
        let mut settings = settings_of(&[0, 1, 2]);
        settings.check_members = check;
        let first = client_with(&mut net, &[0, 1, 2], settings);
        net.pass(millis(3000));
        let counted = counted(&net, first, 3);
        assert_eq!(counted.iter().filter(|&&it| it).count(), 1, "{check} {counted:?}");
    }
}

#[test]
fn client_with_one_server_twice_leaves_no_list_that_nobody_can_read() {
    let mut net = net(4);
    make_twin(&mut net, 2, 1);
    let wrong = client(&mut net, &[0, 1, 2]);
    net.pass(millis(3000));
    let values: Vec<_> = (0..3).map(|it| value(&net, it)).collect();
    let counted = counted(&net, wrong, 3);
    net.stop(wrong);
    let right = client(&mut net, &[0, 1, 3]);
    net.pass(2 * TTL);
    let done = attempt(&mut net, right);
    assert!(done.is_ok(), "{done:?}\nwrong client counts {counted:?}\n{values:#?}");
}

#[test]
fn node_that_a_half_made_proposal_named_counts_with_its_later_id() {
    let mut net = net(3);
    let first = client(&mut net, &[0, 1, 2]);
    pass_until(&mut net, |net| (0..3).any(|it| value(net, it).contains("proposed")));
    net.stop(first);
    let at = (0..3).find(|&it| value(&net, it).contains("proposed")).expect("one has it");
    net.pass(millis(10));
    let left: Vec<_> = (0..3).filter(|&it| !value(&net, it).is_empty()).collect();
    assert_eq!(left, [at], "one node has the proposal");
    let down = (at + 1) % 3;
    net.kill(down);
    let second = client(&mut net, &[0, 1, 2]);
    net.pass(millis(2000));
    assert!(counts(&net, second, at));
    net.restart(at, Restart::Empty);
    net.pass(millis(2000));
    net.start(down, Restart::WithData);
    net.pass(Duration::from_secs(120));
    assert_eq!(counted(&net, second, 3), [true; 3], "{}", value(&net, at));
}

#[test]
fn list_that_takes_longer_than_the_connect_timeout_gives_no_second_holder() {
    for lists in PAIRS {
        let two = (0..100).filter(|&seed| holders_with_short_timeout(lists, seed) == 2);
        assert_eq!(two.count(), 0, "{lists:?}");
    }
}

#[test]
fn client_that_stands_still_while_it_proposes_is_no_second_holder() {
    let two = |lists| (0..60).filter(|&it| holders_after_a_pause(lists, it) == 2).count();
    let found = PAIRS.map(|lists| (lists, two(lists)));
    assert!(found.iter().all(|it| it.1 == 0), "{found:?}");
}

#[test]
fn of_two_nodes_with_one_id_that_wait_one_is_admitted() {
    let (mut net, first) = net_with_list(3);
    net.stop(first);
    let proposed = value(&net, 0).replace("agreed", "proposed");
    for master in [0, 2] {
        net.command(master, &[b"SET", MEMBERS, proposed.as_bytes()]);
    }
    net.freeze(1);
    let second = client(&mut net, &[0, 1, 2]);
    net.pass(millis(100));
    net.thaw(1);
    net.pass(millis(3000));
    let counted = counted(&net, second, 3);
    assert_eq!(counted.iter().filter(|&&it| it).count(), 2, "{counted:?}");
}

#[test]
fn node_that_is_flushed_before_the_list_is_confirmed_gets_it_back() {
    let mut net = net(3);
    let first = client(&mut net, &[0, 1, 2]);
    pass_until(&mut net, |net| (0..3).all(|it| value(net, it).contains("proposed")));
    net.command(1, &[b"FLUSHALL"]);
    net.pass(Duration::from_secs(30));
    assert!(has_list(&net, 1), "{:?}", value(&net, 1));
    lock_once(&mut net, first);
}

#[test]
fn refused_client_counts_the_nodes_once_the_other_list_is_gone() {
    let mut net = net(5);
    let wrong = client(&mut net, &[0, 3, 4]);
    pass_until(&mut net, |net| [0, 3, 4].iter().any(|&it| value(net, it).contains("proposed")));
    net.stop(wrong);
    net.pass(millis(10));
    let at = [0, 3, 4].into_iter().find(|&it| !value(&net, it).is_empty()).expect("one has it");
    let masters = match at {
        0 => [0, 1, 2],
        other => [1, 2, other],
    };
    let right = client(&mut net, &masters);
    assert!(attempt(&mut net, right).is_err());
    net.command(at, &[b"DEL", MEMBERS]);
    net.pass(Duration::from_secs(120));
    let done = attempt(&mut net, right);
    assert!(done.is_ok(), "{done:?}");
}

#[test]
fn probe_that_is_refused_once_does_not_end_the_check() {
    let (mut net, _) = net_with_list(3);
    let reply = b"-BUSY Redis is busy running a script\r\n".to_vec();
    net.master_mut(1).suffer(Trouble::Answers { commands: vec!["get".into()], reply });
    net.pass(Duration::from_secs(6));
    net.master_mut(1).serve();
    net.pass(Duration::from_secs(30));
    net.command(1, &[b"FLUSHALL"]);
    net.pass(Duration::from_secs(30));
    assert!(has_list(&net, 1));
}

#[test]
fn client_that_misses_a_node_does_not_count_one_with_another_list() {
    let mut net = net(5);
    let first = client(&mut net, &[0, 1, 2]);
    pass_until(&mut net, |net| !value(net, 0).is_empty());
    net.stop(first);
    assert!(value(&net, 0).contains("proposed"), "{}", value(&net, 0));
    net.kill(4);
    net.freeze(0);
    let second = client(&mut net, &[0, 3, 4]);
    ask(&mut net, second);
    net.pass(millis(100));
    net.thaw(0);
    net.pass(millis(3000));
    assert!(!holds(&mut net, second), "{:?}", counted(&net, second, 3));
}

#[test]
fn request_at_the_start_waits_for_no_second_handshake_with_the_check_off() {
    let mut net = net(3);
    [1, 2].into_iter().for_each(|it| net.freeze(it));
    let mut settings = settings_of(&[0, 1, 2]);
    (settings.check_members, settings.connect_timeout) = (false, millis(4000));
    let first = client_with(&mut net, &[0, 1, 2], settings);
    ask(&mut net, first);
    net.pass(millis(1000));
    net.freeze(0);
    net.cut(first, 0);
    net.pass(millis(200));
    assert!(result(&mut net, first).is_none());
    net.kill(1);
    net.pass(millis(200));
    assert!(result(&mut net, first).is_some(), "it waits for node 0, which was ready before");
}
