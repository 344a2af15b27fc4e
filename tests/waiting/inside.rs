//! Many waiters inside one client are served in order, and do not keep other clients from their
//! turn.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const WAITERS: u64 = 100;

/// The most locks in a row that a client takes before it hands one over (rule 32).
const STREAK: usize = 65;

#[test]
fn a_hundred_waiters_in_one_client_are_served_in_order() {
    let fleet = Fleet::start(5);
    let (mut holder, mut crowd) = (
        Loop::ready(config(fleet.urls()).node_timeout(5 * SECOND)),
        Loop::ready(config(fleet.urls()).node_timeout(5 * SECOND)),
    );
    let lock = holder.lock("a");
    for data in 0..WAITERS {
        crowd.engine.acquire("a", waiting(), data).unwrap();
        // A pause between the requests, so that their first attempts do not split the votes.
        crowd.turn_within(millis(1));
    }
    crowd.turn_for(millis(100));
    holder.engine.release(lock, 0);
    holder.comes_to_rest();
    let start = Instant::now();
    let mut order = Vec::new();
    crowd.turn_until("all of them had it", |engine| {
        while let Some(done) = engine.poll_completion() {
            match done.result {
                Ok(Outcome::Acquired(lock)) => {
                    order.push(done.data);
                    engine.release_nowait(&lock);
                }
                other => panic!("{other:?}"),
            }
        }
        order.len() == WAITERS as usize
    });
    println!("{WAITERS} in {:?}", start.elapsed());
    assert_eq!(order, (0..WAITERS).collect::<Vec<_>>());
    crowd.comes_to_rest();
    wait_until_nothing_is_left(&fleet);
}

/// One hold: whether it was the single waiter's, when it was requested, and when it was granted.
#[derive(Debug, Clone, Copy)]
struct Hold {
    single: bool,
    asked: u64,
    have: u64,
}

#[test]
fn a_single_waiter_beside_a_hundred_has_its_turn() {
    let fleet = Fleet::start(5);
    let crowd = Loop::ready(config(fleet.urls()).node_timeout(5 * SECOND));
    let single = Loop::ready(config(fleet.urls()).node_timeout(5 * SECOND));
    let holds = Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| contend(crowd, WAITERS, false, &over, &holds));
        scope.spawn(|| contend(single, 1, true, &over, &holds));
        let enough = || {
            let holds = holds.lock().expect("nobody panicked");
            holds.iter().filter(|hold| hold.single).count() >= 20
        };
        let start = Instant::now();
        while !enough() && start.elapsed() < 30 * SECOND {
            let_pass(millis(5));
        }
        over.store(true, Ordering::SeqCst);
    });
    let mut holds = holds.into_inner().expect("nobody panicked");
    holds.sort_by_key(|hold| hold.have);
    let turns: Vec<Hold> = holds.iter().copied().filter(|hold| hold.single).collect();
    let others = |turn: &Hold| {
        let between = |hold: &&Hold| turn.asked < hold.have && hold.have < turn.have;
        holds.iter().filter(between).count()
    };
    let before: Vec<usize> = turns.iter().map(others).collect();
    println!("{} holds; before each of the single one's turns: {before:?}", holds.len());
    assert!(turns.len() >= 20, "{} turns", turns.len());
    // The single waiter's thread may run so late that the crowd has the key many times before it is
    // in line. So the bound is ten times that of rule 32.
    assert!(before.iter().all(|others| *others < 10 * STREAK), "{before:?}");
    wait_until_nothing_is_left(&fleet);
}

/// Keeps `waiters` requests for the key in flight until the test is over.
fn contend(
    mut embedded: Loop,
    waiters: u64,
    single: bool,
    over: &AtomicBool,
    holds: &Mutex<Vec<Hold>>,
) {
    let mut asked = vec![0; waiters as usize];
    let mut ops = vec![None; waiters as usize];
    let ask = |embedded: &mut Loop, data: u64, asked: &mut [u64], ops: &mut [Option<Op>]| {
        asked[data as usize] = now();
        let op = embedded.engine.acquire("a", waiting(), data).expect("there is room");
        ops[data as usize] = Some(op);
    };
    (0..waiters).for_each(|data| ask(&mut embedded, data, &mut asked, &mut ops));
    while !over.load(Ordering::SeqCst) {
        while let Some(done) = embedded.engine.poll_completion() {
            match done.result {
                Ok(Outcome::Acquired(lock)) => {
                    let hold = Hold { single, asked: asked[done.data as usize], have: now() };
                    holds.lock().expect("nobody panicked").push(hold);
                    embedded.engine.release(lock, done.data);
                }
                Ok(Outcome::Released(_)) => ask(&mut embedded, done.data, &mut asked, &mut ops),
                other => panic!("{other:?}"),
            }
        }
        embedded.turn_within(millis(5));
    }
    ops.into_iter().flatten().for_each(|op| embedded.engine.cancel(op));
    embedded.comes_to_rest();
}
