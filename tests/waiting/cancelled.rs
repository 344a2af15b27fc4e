//! A wait that is cancelled at any moment leaves nothing, neither in the client nor on the nodes.

use super::*;

const TIMES: u64 = 1_000;

fn give_back(holder: &mut Loop, held: &mut Option<Lock>) {
    if let Some(lock) = held.take() {
        holder.engine.release(lock, 0);
    }
}

/// Locks the key with `holder`, and drives `other` meanwhile, which has releases to write.
fn lock_beside(holder: &mut Loop, other: &mut Loop) -> Lock {
    holder.engine.acquire("a", waiting(), 0).unwrap();
    let start = Instant::now();
    loop {
        other.turn_within(Duration::ZERO);
        holder.turn_within(Duration::ZERO);
        while let Some(done) = holder.engine.poll_completion() {
            if let Ok(Outcome::Acquired(lock)) = done.result {
                return lock;
            }
        }
        assert!(start.elapsed() < POLLED_BY, "what was cancelled is in the way");
    }
}

#[test]
fn a_wait_that_is_cancelled_at_any_moment_leaves_nothing() {
    let fleet = Fleet::start(5);
    let mut dice = Dice::printed(now());
    let (mut holder, mut waiter) = (
        Loop::ready(config(fleet.urls()).node_timeout(5 * SECOND)),
        Loop::ready(config(fleet.urls()).node_timeout(5 * SECOND)),
    );
    let mut held = None;
    for time in 0..TIMES {
        // The key may be free, be held, or become free during the wait. Up to two other waiters
        // come first.
        if held.is_none() && dice.below(4) > 0 {
            held = Some(lock_beside(&mut holder, &mut waiter));
        }
        let others = dice.below(3);
        let ops: Vec<Op> =
            (0..=others).map(|_| waiter.engine.acquire("a", waiting(), time).unwrap()).collect();
        let length = Duration::from_micros(dice.below(6_000));
        let free = Duration::from_micros(dice.below(6_000));
        let start = Instant::now();
        while start.elapsed() < length {
            waiter.turn_within(Duration::ZERO);
            if start.elapsed() > free {
                give_back(&mut holder, &mut held);
            }
            holder.turn_within(Duration::ZERO);
            while holder.engine.poll_completion().is_some() {}
        }
        // The waits are cancelled in a random order.
        let first = dice.below(others + 1) as usize;
        ops.iter().cycle().skip(first).take(ops.len()).for_each(|op| waiter.engine.cancel(*op));
        assert!(waiter.engine.poll_completion().is_none(), "a completion of a cancelled wait");
        assert_eq!(waiter.engine.coordinator().open_ops(), 0);
        if time % 50 == 0 {
            give_back(&mut holder, &mut held);
            holder.comes_to_rest();
            waiter.comes_to_rest();
            wait_until_nothing_is_left(&fleet);
        }
    }
    give_back(&mut holder, &mut held);
    holder.comes_to_rest();
    waiter.comes_to_rest();
    wait_until_nothing_is_left(&fleet);
    // Both clients can still lock.
    let lock = waiter.lock("a");
    waiter.engine.release_nowait(&lock);
    waiter.comes_to_rest();
    let lock = holder.lock("a");
    holder.engine.release_nowait(&lock);
    holder.comes_to_rest();
    wait_until_nothing_is_left(&fleet);
}
