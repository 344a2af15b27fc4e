//! How long the next process takes to be granted the key after a release, with and without
//! notifications.

use super::process::Process;
use super::*;

const ROUNDS: usize = 40;

/// The limit of the median hand-over if waiters are notified: ten round trips. A waiter that only
/// polls takes longer.
const TOLD: Duration = millis(10);

/// Lets two processes take turns. Returns how long the hand-overs took, sorted.
fn hand_overs(urls: &[String], rounds: usize, meanwhile: impl FnMut(&Process)) -> Vec<Duration> {
    let mut processes = [Process::start(urls), Process::start(urls)];
    hand_overs_of(&mut processes, rounds, meanwhile)
}

/// Lets two processes take turns. Returns how long each hand-over took from the release to the next
/// grant, sorted. The other process always waits already, and `meanwhile` is called with it. The
/// last one keeps the lock.
pub(super) fn hand_overs_of(
    processes: &mut [Process; 2],
    rounds: usize,
    mut meanwhile: impl FnMut(&Process),
) -> Vec<Duration> {
    let mut dice = Dice::printed(now());
    processes[0].lock("a", TTL);
    let mut took: Vec<Duration> = (0..rounds)
        .map(|round| {
            let (holder, waiter) = (round % 2, 1 - round % 2);
            processes[waiter].ask("a", TTL);
            let_pass(millis(20 + dice.below(30)));
            meanwhile(&processes[waiter]);
            let gave_back = processes[holder].release();
            let had = processes[waiter].wait_until_locked();
            assert!(had.have >= gave_back, "held by two: since {had:?}, until {gave_back}");
            Duration::from_nanos(had.have - gave_back)
        })
        .collect();
    took.sort();
    println!("hand-over: median {:?}, longest {:?}", took[rounds / 2], took[rounds - 1]);
    took
}

fn median(took: &[Duration]) -> Duration {
    took[took.len() / 2]
}

fn longest(took: &[Duration]) -> Duration {
    took[took.len() - 1]
}

#[test]
fn a_waiter_is_notified_of_the_release() {
    let fleet = Fleet::start(5);
    let timer = PlainTimer::start();
    let took = hand_overs(&fleet.urls(), ROUNDS, |_| {});
    assert!(median(&took) < timer.limit(TOLD) && longest(&took) < POLLED_BY, "{took:?}");
    nothing_is_left_but_the_last(&fleet);
}

#[test]
fn waiter_whose_notifications_are_lost_asks_by_itself() {
    let fleet = Fleet::start(5);
    let proxies: Vec<Proxy> = fleet.iter().map(|node| Proxy::start(node.address())).collect();
    proxies.iter().for_each(Proxy::lose_pushes);
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let took = hand_overs(&urls, ROUNDS / 4, |_| {});
    assert!(longest(&took) < POLLED_BY, "{took:?}");
    // Notifications are lost only on a minority of the nodes, so the waiter gets enough of them.
    drop(proxies);
    let lossy: Vec<Proxy> = fleet.iter().take(2).map(|node| Proxy::start(node.address())).collect();
    lossy.iter().for_each(Proxy::lose_pushes);
    let urls = lossy.iter().map(Proxy::url).chain(fleet.iter().skip(2).map(Node::url));
    fleet.command(&["DEL", "a"]);
    let timer = PlainTimer::start();
    let took = hand_overs(&urls.collect::<Vec<_>>(), ROUNDS, |_| {});
    assert!(median(&took) < timer.limit(TOLD) && longest(&took) < POLLED_BY, "{took:?}");
    nothing_is_left_but_the_last(&fleet);
}

#[test]
fn waiter_that_cannot_be_notified_asks_by_itself() {
    let fleet = Fleet::start(5);
    for node in &fleet {
        let user = ["ACL", "SETUSER", "untold", "on", ">pw", "~*", "+@all", "-client|tracking"];
        let said = node.command(&user);
        assert!(said.is_ok(), "{said:?}");
    }
    let urls = fleet.iter().map(|node| format!("redis://untold:pw@127.0.0.1:{}", node.port()));
    let took = hand_overs(&urls.collect::<Vec<_>>(), ROUNDS / 2, |_| {});
    assert!(longest(&took) < POLLED_BY, "{took:?}");
    nothing_is_left_but_the_last(&fleet);
}

#[test]
fn a_waiter_whose_connections_are_ended_registers_again() {
    let fleet = Fleet::start(5);
    // The waiter's registrations end together with its connections.
    let end_all = |waiter: &Process| fleet.iter().for_each(|node| waiter.end_connection(node));
    let took = hand_overs(&fleet.urls(), ROUNDS / 2, end_all);
    assert!(longest(&took) < POLLED_BY, "{took:?}");
    // Now the nodes end the waiter's connections one by one, one before each hand-over.
    fleet.command(&["DEL", "a"]);
    let mut turn = 0;
    let end_one = |waiter: &Process| {
        turn = (turn + 1) % fleet.len();
        waiter.end_connection(&fleet[turn]);
    };
    let timer = PlainTimer::start();
    let took = hand_overs(&fleet.urls(), ROUNDS, end_one);
    assert!(median(&took) < timer.limit(TOLD) && longest(&took) < POLLED_BY, "{took:?}");
    nothing_is_left_but_the_last(&fleet);
}

/// Checks that only the key of the last holder is left, which was killed. If that was before it
/// left the line of a node that it had reconnected to, its place there ends with the line's ttl.
fn nothing_is_left_but_the_last(fleet: &Fleet) {
    eventually(15 * SECOND, "the lines end", || {
        fleet.keys_everywhere().iter().all(|(_, key)| key == b"a")
    });
    let mut tokens: Vec<_> = fleet.iter().filter_map(|node| node.get("a")).collect();
    tokens.dedup();
    assert_eq!(tokens.len(), 1, "{tokens:?}");
}
