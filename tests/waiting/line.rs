//! Waiting in line on real servers and between processes: the order, a successor or a holder that
//! dies or stops, a node that stops or forgets, and plain clients that take the key without the
//! line.

use std::collections::BTreeSet;
use std::sync::Mutex;

use redlatch::Client;

use super::process::Process;
use super::*;

/// The ttl of a key that is handed over, in these tests.
const HAND_OVER: Duration = millis(200);

pub fn line_config(fleet: &Fleet) -> Config {
    config(fleet.urls()).hand_over_ttl(HAND_OVER)
}

/// Waits until `length` waiters are in the line of each node, or have the key there: the holder may
/// have it only on a majority.
#[track_caller]
pub fn wait_for_line(fleet: &Fleet, length: usize) {
    let start = Instant::now();
    loop {
        let lines: Vec<_> = fleet.iter().map(tokens_on).collect();
        if is_one_line_behind_a_holder(&lines, length) {
            return;
        }
        let waited = start.elapsed();
        assert!(waited < 6 * SOON, "not {length} in line after {waited:?}: {lines:?}");
        let_pass(millis(2));
    }
}

/// The token that has the key on a node, and then those in its line.
fn tokens_on(node: &Node) -> Vec<String> {
    let value = node.get("a").and_then(|value| String::from_utf8(value).ok()).unwrap_or_default();
    let members = node.command(&["ZRANGE", "redlatch:line:{a}", "0", "-1"]).text_items();
    let token = |member: &String| member.rsplit(' ').next().unwrap_or_default().to_owned();
    std::iter::once(value).chain(members.iter().map(token)).collect()
}

/// Whether one token has the key on a majority, and the other tokens are the same on all nodes.
fn is_one_line_behind_a_holder(lines: &[Vec<String>], length: usize) -> bool {
    let holds = |token: &str| lines.iter().filter(|line| line[0] == token).count();
    let holder = lines.iter().map(|line| &line[0]).max_by_key(|token| holds(token));
    let waiters = |line: &Vec<String>| -> BTreeSet<String> {
        line.iter().filter(|token| Some(*token) != holder).cloned().collect()
    };
    let first = lines.first().map(waiters).unwrap_or_default();
    holder.is_some_and(|holder| holds(holder) > lines.len() / 2)
        && lines.iter().all(|line| waiters(line) == first)
        && first.len() == length
}

/// Three processes: the first one holds the lock, and two wait in line.
pub fn three(fleet: &Fleet, ttl: Duration) -> [Process; 3] {
    let mut all = [0; 3].map(|_| Process::start(&fleet.urls()));
    // The first process waits in line behind another program's key, so its release hands the key
    // over.
    fleet.command(&["SET", "a", "other", "PX", "200"]);
    all[0].ask("a", ttl);
    all[0].wait_until_locked();
    for (number, process) in all.iter_mut().enumerate().skip(1) {
        process.ask("a", TTL);
        wait_for_line(fleet, number);
    }
    all
}

#[test]
fn a_successor_that_was_killed_is_skipped_at_once() {
    let fleet = Fleet::start(5);
    let [mut holder, mut successor, mut next] = three(&fleet, TTL);
    successor.kill();
    let timer = PlainTimer::start();
    let gap = holder.hand_over_to(&mut next);
    println!("the next one has it after {gap:?}");
    assert!(gap < timer.limit(millis(300)), "{gap:?}");
    next.release();
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn a_successor_that_is_stopped_costs_the_next_one_the_hand_over_ttl() {
    let fleet = Fleet::start(5);
    let [mut holder, mut successor, mut next] = three(&fleet, TTL);
    successor.stop();
    // When the successor gets the key, it has not polled any node for a while.
    let_pass(millis(300));
    let timer = PlainTimer::start();
    let gap = holder.hand_over_to(&mut next);
    println!("the next one has it after {gap:?}");
    // These processes have the default node timeout of 250 ms, so the keys live for 1 s.
    assert!(gap > millis(900) && gap < timer.limit(millis(1_300)), "{gap:?}");
    successor.cont();
    next.hand_over_to(&mut successor);
    successor.release();
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn a_holder_that_was_killed_is_followed_at_its_expiry_in_order() {
    let fleet = Fleet::start(5);
    // The ttl is so long that the other two are in line before it ends, even if the machine stalls.
    let [mut holder, mut successor, mut next] = three(&fleet, 4 * SECOND);
    holder.kill();
    let had = successor.wait_until_locked();
    let released = successor.release();
    let then = next.wait_until_locked();
    assert!(then.have > released && had.have < then.have);
    next.release();
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn node_that_is_stopped_or_forgets_costs_waiters_in_line_no_turn() {
    let fleet = Fleet::start(5);
    let [mut holder, mut successor, mut next] = three(&fleet, TTL);
    fleet[4].stop();
    println!("stopped: {:?}", holder.hand_over_to(&mut successor));
    holder.ask("a", TTL);
    fleet[4].cont();
    fleet[3].kill();
    fleet[3].restart();
    println!("restarted: {:?}", successor.hand_over_to(&mut next));
    next.hand_over_to(&mut holder);
    holder.release();
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn line_and_locks_with_similar_names_do_not_collide() {
    let fleet = Fleet::start(3);
    let client = ready::client(line_config(&fleet));
    let names = ["a:line", "line:{a}", "{a}"];
    let guards = names.map(|name| client.lock(name, waiting()).expect("it is free"));
    let [mut holder, mut successor, mut next] = three(&fleet, TTL);
    holder.hand_over_to(&mut successor);
    successor.release();
    next.wait_until_locked();
    next.release();
    for guard in guards {
        assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
    }
    wait_until_nothing_is_left(&fleet);
}

/// Lets a waiter be handed the key, and returns how often it claimed it.
fn claims_of_a_waiter(fleet: &Fleet) -> u64 {
    let client = || Client::connect(config(fleet.urls())).expect("a good configuration");
    let holder = client();
    let held = holder.lock("a", waiting()).expect("it is free");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let waiter = client();
            let guard = waiter.lock("a", waiting()).expect("it is served");
            guard.release().expect("it is held");
            waiter.stats()
        });
        wait_for_line(fleet, 1);
        held.release().expect("it is held");
        let stats = waiter.join().expect("it is served");
        assert_eq!(stats.handed_over, 1);
        stats.claims
    })
}

#[test]
fn a_waiter_that_runs_is_handed_the_key_for_its_whole_ttl_and_claims_nothing() {
    let fleet = Fleet::start(3);
    // If the machine stalls, a node may take a running waiter for a stopped one, so one of five
    // tries has to be without claims.
    let claims: Vec<u64> = (0..5).map(|_| claims_of_a_waiter(&fleet)).collect();
    assert!(claims.contains(&0), "{claims:?}");
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn fenced_waiters_in_line_and_outside_of_it_have_numbers_that_grow() {
    const HOLDS: usize = 20;
    let fleet = Fleet::start(5);
    let guarded = || {
        let config = line_config(&fleet).restart_guard(RestartGuard::On).max_ttl(SECOND);
        // The client is ready only when the quarantine of the nodes is over.
        ready::client(config)
    };
    drop(guarded());
    let last = Mutex::new(0);
    let contend = |options: LockOptions| {
        let (client, mut held) = (guarded(), 0);
        while held < HOLDS {
            let Ok(guard) = client.lock("a", options.fenced()) else { continue };
            let fence = guard.fence().expect("it is fenced");
            let mut last = last.lock().expect("no client panics");
            // A holder whose thread ran late writes its number after the next holder. Its number is
            // not checked.
            if guard.remaining() > millis(300) {
                assert!(fence > *last, "{fence} after {last}");
                *last = fence;
                held += 1;
            }
            drop(last);
            let _ = guard.release();
        }
        client.stats().handed_over
    };
    let plain = LockOptions::new(millis(900)).wait(60 * SECOND);
    let handed_over: u64 = std::thread::scope(|scope| {
        let all = [plain; 5];
        let threads = all.map(|options| scope.spawn(move || contend(options)));
        threads.into_iter().map(|thread| thread.join().expect("no client panics")).sum()
    });
    println!("{handed_over} hand-overs");
    assert!(handed_over > 0);
}
