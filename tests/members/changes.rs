//! The list of masters is changed while clients hold locks. Here a step is written on the masters
//! by hand; the order of the steps of a tool is tested where the tool is.

use redlatch::testing::master::{Restart, Trouble};

use super::*;

/// The id of each of these masters, and its address.
fn members_of(ids: &[String], masters: &[usize]) -> String {
    let mut members: Vec<_> =
        masters.iter().map(|&it| format!("{}=10.0.0.{it}:6379", ids[it])).collect();
    members.sort();
    members.join(" ")
}

/// A list that is changed by hand.
struct Changed {
    name: String,
    epoch: u64,
    ids: Vec<String>,
}

impl Changed {
    /// The list that the masters of `first` have; the other masters get ids.
    fn of(net: &Net<Client>, first: &[usize], masters: usize) -> Changed {
        let text = value(net, first[0]);
        let words: Vec<_> = text.split(' ').collect();
        let id = |master: usize| match first.contains(&master) {
            true => value(net, master).split(' ').nth(1).expect("it has an id").to_owned(),
            false => net.master(master).identities()[0][..16].to_owned(),
        };
        Changed { name: words[3].to_owned(), epoch: 1, ids: (0..masters).map(id).collect() }
    }

    /// Writes what the master has from now on: a stage of the list of these members.
    fn write(&self, net: &mut Net<Client>, master: usize, stage: &str, members: &[usize]) {
        let members = members_of(&self.ids, members);
        let (id, name, epoch) = (&self.ids[master], &self.name, self.epoch);
        let text = format!("1 {id} {stage} {name} {epoch} {members}");
        net.command(master, &[b"SET", MEMBERS, text.as_bytes()]);
    }

    /// Tells these masters that the list has these members from now on.
    fn tell(&mut self, net: &mut Net<Client>, masters: &[usize], members: &[usize]) {
        self.epoch += 1;
        for &master in masters {
            self.write(net, master, "told", members);
        }
    }
}

/// Tells the master that joins and the first one that both are the list from now on, as the tool
/// does.
fn tell_both(list: &mut Changed, net: &mut Net<Client>) {
    list.tell(net, &[1, 0], &[0, 1]);
    for master in [1, 0] {
        let text = format!("{} ; was {}", value(net, master), members_of(&list.ids, &[0]));
        net.command(master, &[b"SET", MEMBERS, text.as_bytes()]);
    }
}

/// Lets another client mark the master, and end its quarantine.
fn pass_quarantine_of(net: &mut Net<Client>, master: usize) {
    let mut settings = settings_of(&[master]);
    settings.check_members = false;
    let client = client_with(net, &[master], settings);
    net.pass(2 * TTL);
    net.stop(client);
}

/// Takes the lock and keeps it.
#[track_caller]
fn hold(net: &mut Net<Client>, client: usize) -> redlatch::proto::Lock {
    match attempt(net, client) {
        Ok(Outcome::Acquired(lock)) => lock,
        other => panic!("{other:?}"),
    }
}

/// Extends the lock every two seconds for this long.
#[track_caller]
fn keep(net: &mut Net<Client>, client: usize, lock: &redlatch::proto::Lock, length: Duration) {
    let end = net.now().saturating_add(length);
    while net.now() < end {
        let now = net.now();
        net.client_mut(client).core.extend(lock, TTL, 0, now).expect("it can be asked for");
        net.pass(millis(2000));
        let done = result(net, client);
        assert!(matches!(done, Some(Ok(Outcome::Extended { .. }))), "{done:?}");
    }
}

/// A list of one master, to which a second one is about to be added. A client of both holds the
/// lock.
fn about_to_grow() -> (Net<Client>, Changed, usize, redlatch::proto::Lock) {
    let mut net = net(2);
    let first = client(&mut net, &[0]);
    lock_once(&mut net, first);
    let list = Changed::of(&net, &[0], 2);
    pass_quarantine_of(&mut net, 1);
    list.write(&mut net, 1, "learner", &[0]);
    let holder = client(&mut net, &[0, 1]);
    let lock = hold(&mut net, holder);
    (net, list, holder, lock)
}

#[test]
fn lock_is_kept_while_a_master_that_is_gone_is_replaced() {
    let (mut net, first) = net_with_list(4);
    let mut list = Changed::of(&net, &[0, 1, 2], 4);
    pass_quarantine_of(&mut net, 3);
    list.write(&mut net, 3, "learner", &[0, 1, 2]);
    let holder = client(&mut net, &[0, 1, 2, 3]);
    let lock = hold(&mut net, holder);
    keep(&mut net, holder, &lock, 2 * TTL);
    net.kill(2);
    keep(&mut net, holder, &lock, TTL);
    list.tell(&mut net, &[3, 0, 1], &[0, 1, 2, 3]);
    keep(&mut net, holder, &lock, WAIT);
    list.tell(&mut net, &[3, 0, 1], &[0, 1, 3]);
    keep(&mut net, holder, &lock, WAIT);
    net.kill(0);
    keep(&mut net, holder, &lock, TTL);
    let report = report(attempt(&mut net, first));
    assert_eq!(report.needed, 2, "{report}");
}

#[test]
fn lock_of_a_list_of_one_is_kept_while_a_second_master_joins() {
    let (mut net, mut list, holder, lock) = about_to_grow();
    list.tell(&mut net, &[1, 0], &[0, 1]);
    keep(&mut net, holder, &lock, WAIT);
}

#[test]
fn lock_whose_keys_were_deleted_is_lost_after_all_masters_were_replaced() {
    let (mut net, mut list, holder, lock) = about_to_grow();
    list.tell(&mut net, &[1, 0], &[0, 1]);
    keep(&mut net, holder, &lock, WAIT);
    list.tell(&mut net, &[1, 0], &[1]);
    keep(&mut net, holder, &lock, WAIT);
    net.command(1, &[b"DEL", KEY]);
    let now = net.now();
    net.client_mut(holder).core.extend(&lock, TTL, 0, now).expect("it can be asked for");
    net.pass(millis(2000));
    let done = result(&mut net, holder);
    assert!(matches!(done, Some(Err(Error::Lost { .. }))), "{done:?}");
    assert_eq!(net.master(1).get(net.now(), 0, KEY), None);
}

/// A master that lost its data is not used while too few others say whether the list was changed.
#[test]
fn node_without_its_list_does_not_count() {
    let (mut net, first) = net_with_list(4);
    let mut list = Changed::of(&net, &[0, 1, 2], 4);
    net.stop(first);
    pass_quarantine_of(&mut net, 3);
    list.tell(&mut net, &[3, 0, 1], &[0, 1, 2, 3]);
    list.tell(&mut net, &[3, 0, 1], &[0, 1, 3]);
    net.restart(0, Restart::Empty);
    net.kill(1);
    net.kill(3);
    let late = client(&mut net, &[0, 1, 2, 3]);
    net.pass(3 * TTL);
    assert_eq!(counted(&net, late, 4), [false, false, true, false], "{}", value(&net, 0));
    let report = report(attempt(&mut net, late));
    let words = report.nodes[0].detail.as_deref().unwrap_or_default();
    assert!(words.contains("it lost its list of masters"), "{report}");
    net.resume(first);
    net.pass(3 * TTL);
    assert!(!counts(&net, first, 0), "{}", value(&net, 0));
}

#[test]
fn learner_does_not_count() {
    let (mut net, _) = net_with_list(4);
    let list = Changed::of(&net, &[0, 1, 2], 4);
    list.write(&mut net, 3, "learner", &[0, 1, 2]);
    let second = client(&mut net, &[0, 1, 2, 3]);
    lock_once(&mut net, second);
    assert_eq!(counted(&net, second, 4), [true, true, true, false]);
    net.freeze(0);
    net.freeze(1);
    let report = report(attempt(&mut net, second));
    assert_eq!(refused(&report).len(), 1, "{report}");
}

#[test]
fn list_of_a_node_that_is_no_member_is_not_followed() {
    let (mut net, _) = net_with_list(4);
    let mut list = Changed::of(&net, &[0, 1, 2], 4);
    list.tell(&mut net, &[3], &[0, 1, 2, 3]);
    let third = client(&mut net, &[0, 1, 2, 3]);
    lock_once(&mut net, third);
    net.pass(TTL);
    assert_eq!(counted(&net, third, 4), [true, true, true, false]);
    list.write(&mut net, 0, "told", &[0, 1, 2, 3]);
    net.pass(3 * TTL);
    assert_eq!(counted(&net, third, 4), [true; 4]);
}

#[test]
fn client_that_stood_still_reads_the_list_before_it_asks_for_a_lock() {
    let (mut net, first) = net_with_list(5);
    let mut list = Changed::of(&net, &[0, 1, 2], 5);
    net.stop(first);
    for (masters, members) in [
        (&[3, 0, 1, 2], &[0, 1, 2, 3][..]),
        (&[3, 0, 1, 2], &[0, 1, 3]),
        (&[4, 0, 1, 3], &[0, 1, 3, 4]),
        (&[4, 0, 1, 3], &[1, 3, 4]),
    ] {
        list.tell(&mut net, masters, members);
        net.pass(WAIT);
    }
    let second = client(&mut net, &[0, 1, 2, 3, 4]);
    net.pass(2 * TTL);
    net.kill(1);
    let lock = hold(&mut net, second);
    // The program asks before the driver handles anything that came meanwhile.
    ask(&mut net, first);
    for node in (0..3).map(NodeId::new) {
        let output = String::from_utf8_lossy(net.get_client(first).core.output(node)).into_owned();
        assert!(output.contains("redlatch:members") && !output.contains("NX"), "{output}");
    }
    net.resume(first);
    net.pass(millis(3000));
    let done = result(&mut net, first);
    assert!(matches!(done, Some(Err(_))), "{done:?}");
    keep(&mut net, second, &lock, TTL);
}

#[test]
fn node_that_lost_its_data_gets_no_older_list_than_the_others_have() {
    let (mut net, first) = net_with_list(4);
    net.stop(first);
    let second = client(&mut net, &[0, 1, 2, 3]);
    lock_once(&mut net, second);
    let mut list = Changed::of(&net, &[0, 1, 2], 4);
    net.freeze(0);
    net.pass(TTL);
    list.tell(&mut net, &[3, 0], &[0, 1, 2, 3]);
    list.epoch -= 1;
    // The other node that was told forgets it, and the client hears only nodes that were not told.
    net.command(1, &[b"DEL", MEMBERS]);
    net.pass(TTL);
    assert_eq!(value(&net, 1), "", "the node that was told is not heard");
    net.thaw(0);
    // A node that was refused is tried again only after a long pause.
    net.pass(6 * TTL);
    assert!(value(&net, 1).contains(" returned "), "{}", value(&net, 1));
    let epoch = value(&net, 1).split(' ').nth(4).map(str::to_owned);
    assert_eq!(epoch.as_deref(), Some("2"), "{}", value(&net, 1));
}

/// Where a list is known, a master that does not show its own may be in none, or in a later one.
#[test]
fn master_that_does_not_show_its_list_does_not_count_beside_a_known_list() {
    let (mut net, _) = net_with_list(4);
    let reply = b"-NOPERM this user has no permissions\r\n".to_vec();
    let unreadable = Trouble::Answers { commands: vec!["get".into()], reply };
    net.master_mut(3).suffer(unreadable.clone());
    let second = client(&mut net, &[0, 1, 2, 3]);
    net.pass(2 * TTL);
    assert_eq!(counted(&net, second, 4), [true, true, true, false]);
    net.master_mut(2).suffer(unreadable);
    net.pass(2 * TTL);
    assert_eq!(counted(&net, second, 4), [true, true, false, false]);
}

#[test]
fn waiter_that_stood_still_reads_the_list_before_it_polls() {
    let mut net = net(3);
    let holder = client(&mut net, &[0, 1, 2]);
    let lock = hold(&mut net, holder);
    let waiter = client(&mut net, &[0, 1, 2]);
    let (now, options) = (net.now(), LockOptions::new(TTL).wait(60 * TTL));
    net.client_mut(waiter).core.acquire(KEY, options, 0, now).expect("it can be asked for");
    keep(&mut net, holder, &lock, TTL);
    net.stop(waiter);
    net.pass(WAIT);
    let now = net.now();
    let core = &mut net.client_mut(waiter).core;
    core.handle_timeout(now);
    for node in (0..3).map(NodeId::new) {
        let output = String::from_utf8_lossy(core.output(node)).into_owned();
        assert!(output.contains("redlatch:members"), "{output}");
        assert!(!output.contains("redlatch:line"), "{output}");
    }
}

#[test]
fn client_that_stood_still_reads_the_list_before_it_extends_by_a_token() {
    let mut net = net(3);
    let first = client(&mut net, &[0, 1, 2]);
    let token = hold(&mut net, first).token();
    net.stop(first);
    net.pass(WAIT);
    let now = net.now();
    let core = &mut net.client_mut(first).core;
    core.extend_token(KEY, token, TTL, 0, now).expect("it can be asked for");
    for node in (0..3).map(NodeId::new) {
        let output = String::from_utf8_lossy(core.output(node)).into_owned();
        assert!(output.contains("redlatch:members") && !output.contains("EVAL"), "{output}");
    }
}

#[test]
fn client_that_did_nothing_for_long_reads_the_list_and_then_gets_the_lock() {
    let mut net = net(3);
    let first = client(&mut net, &[0, 1, 2]);
    let lock = hold(&mut net, first);
    net.stop(first);
    net.pass(WAIT);
    ask(&mut net, first);
    net.resume(first);
    net.pass(millis(100));
    assert!(holds(&mut net, first));
    let _ = lock;
}

/// The client asks for the lock with a fencing number.
fn ask_fenced(net: &mut Net<Client>, client: usize) {
    let (now, options) = (net.now(), LockOptions::once(TTL).fenced());
    net.client_mut(client).core.acquire(KEY, options, 0, now).expect("it can be asked for");
}

/// The client gets the lock that it asked for, gives it back, and returns its number.
#[track_caller]
fn number_of_lock(net: &mut Net<Client>, client: usize) -> u64 {
    net.pass(millis(500));
    let Some(Ok(Outcome::Acquired(lock))) = result(net, client) else { panic!("it is free") };
    let (now, fence) = (net.now(), lock.fence().expect("it was asked for"));
    net.client_mut(client).core.release(lock, 0, now);
    net.pass(millis(100));
    assert!(matches!(result(net, client), Some(Ok(Outcome::Released(_)))));
    fence
}

#[track_caller]
fn number(net: &mut Net<Client>, client: usize) -> u64 {
    ask_fenced(net, client);
    number_of_lock(net, client)
}

const COUNTER: &[u8] = b"redlatch:fence:{k}";

/// Gives the master the counter that it had before, as if it had missed the locks since then.
fn let_it_miss(net: &mut Net<Client>, master: usize, counter: &[u8]) {
    net.command(master, &[b"SET", COUNTER, counter, b"PX", b"100000"]);
}

/// A master that missed the locks of the others is the only one that stays. The next lock is that
/// of a client that saw the changes, or of a new one.
#[test]
fn fencing_number_grows_though_the_masters_that_counted_are_removed() {
    for is_new in [false, true] {
        let (mut net, first) = net_with_list(3);
        net.pass(2 * TTL);
        number(&mut net, first);
        let missed = net.master(2).get(net.now(), 0, COUNTER).expect("it counts").to_vec();
        let last = (0..20).map(|_| number(&mut net, first)).last().expect("it has numbers");
        let_it_miss(&mut net, 2, &missed);
        let mut list = Changed::of(&net, &[0, 1, 2], 3);
        list.tell(&mut net, &[0, 1, 2], &[1, 2]);
        net.pass(WAIT);
        list.tell(&mut net, &[1, 2], &[2]);
        net.pass(WAIT);
        let second = client(&mut net, &[0, 1, 2]);
        net.pass(2 * TTL);
        let next = number(&mut net, if is_new { second } else { first });
        assert!(next > last, "{next} after {last} by a client that is new: {is_new}");
    }
}

/// A client that has seen a change sees a number of one that has not, and one more change.
#[test]
fn fencing_number_grows_over_a_lock_that_was_granted_by_the_list_before() {
    let mut net = net(3);
    let (first, late) = (client(&mut net, &[0, 1, 2]), client(&mut net, &[0, 1, 2]));
    lock_once(&mut net, first);
    lock_once(&mut net, late);
    net.pass(2 * TTL);
    let mut list = Changed::of(&net, &[0, 1, 2], 3);
    list.tell(&mut net, &[0, 1, 2], &[1, 2]);
    net.stop(late);
    net.pass(millis(6000));
    number(&mut net, first);
    let missed = net.master(2).get(net.now(), 0, COUNTER).expect("it counts").to_vec();
    ask_fenced(&mut net, late);
    net.resume(late);
    let last = number_of_lock(&mut net, late);
    let_it_miss(&mut net, 2, &missed);
    net.pass(WAIT);
    list.tell(&mut net, &[1, 2], &[2]);
    net.pass(WAIT);
    let next = number(&mut net, first);
    assert!(next > last, "{next} after {last}");
}

#[test]
fn lock_is_not_lost_while_another_client_has_its_key_on_the_master_that_joins() {
    let (mut net, mut list, holder, lock) = about_to_grow();
    list.tell(&mut net, &[1, 0], &[0, 1]);
    // A waiter that followed before the holder did.
    net.command(1, &[b"SET", KEY, b"of another", b"PX", b"5500"]);
    net.pass(millis(2500));
    let now = net.now();
    net.client_mut(holder).core.extend(&lock, TTL, 0, now).expect("it can be asked for");
    net.pass(millis(500));
    assert!(result(&mut net, holder).is_none(), "the extend has ended");
    net.pass(millis(3500));
    let done = result(&mut net, holder);
    assert!(matches!(done, Some(Ok(Outcome::Extended { .. }))), "{done:?}");
}

#[test]
fn lock_is_kept_while_another_client_waits_for_it_and_a_second_master_joins() {
    for later in 0..6 {
        let (mut net, mut list, holder, lock) = about_to_grow();
        // So the waiter reads the list before the holder in some runs, and after it in others.
        net.pass(millis(later * 1000));
        let waiter = client(&mut net, &[0, 1]);
        let (now, options) = (net.now(), LockOptions::new(TTL).wait(60 * TTL));
        net.client_mut(waiter).core.acquire(KEY, options, 0, now).expect("it can be asked for");
        keep(&mut net, holder, &lock, millis(2000));
        tell_both(&mut list, &mut net);
        keep(&mut net, holder, &lock, WAIT);
        let now = net.now();
        net.client_mut(holder).core.release_nowait(&lock, now);
        net.pass(millis(100));
        assert!(holds(&mut net, waiter), "{later}");
    }
}

#[test]
fn refusal_by_the_list_before_does_not_last_while_the_client_connects_to_a_master_that_joined() {
    let mut net = net(4);
    let first = client(&mut net, &[0]);
    lock_once(&mut net, first);
    let mut list = Changed::of(&net, &[0], 4);
    pass_quarantine_of(&mut net, 1);
    let asker = client(&mut net, &[0, 1, 2, 3]);
    lock_once(&mut net, asker);
    list.tell(&mut net, &[1, 0], &[0, 1]);
    let mut refused = 0;
    for _ in 0..3000 {
        ask(&mut net, asker);
        while !net.client_mut(asker).core.has_completions() {
            net.pass(millis(1));
        }
        match result(&mut net, asker) {
            Some(Ok(Outcome::Acquired(lock))) => {
                let now = net.now();
                net.client_mut(asker).core.release_nowait(&lock, now);
            }
            Some(Err(Error::Config(error))) => panic!("{error}"),
            _ => refused += 1,
        }
        net.pass(millis(1));
    }
    assert!(refused > 0, "the client did not follow while it asked");
    lock_once(&mut net, asker);
}
