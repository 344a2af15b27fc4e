//! Handles that are used long after their lock was over, and must do nothing.

use std::time::Duration;

use redlatch::Lock;

use crate::agenda::MILLI;
use crate::client::instant;
use crate::user::{Held, Purpose, RELEASE_TIMEOUTS};
use crate::world::World;

/// A handle whose owner has forgotten it.
#[derive(Debug)]
pub struct Relic {
    /// When it will be used.
    pub at: u64,
    pub lock: Lock,
    /// The belief of its owner, who may have acted on the lock up to that moment.
    pub belief: usize,
}

impl World {
    /// Drops the handle without a release. Sometimes it is used later, as a relic.
    pub fn forget(&mut self, client: usize, user: usize, held: Held) {
        let now = self.agenda.now();
        self.trace.note(now, || format!("client {client} user {user} forgets its lock"));
        let until = self.checker.belief(held.belief).until.max(now);
        if self.dice.chance(600) {
            let at = until + self.dice.below(300 * MILLI);
            self.clients[client].relics.push(Relic { at, lock: held.lock, belief: held.belief });
        }
        self.rest(client, user);
    }

    /// Uses a handle whose lock is over: it must do nothing.
    pub fn use_relic(&mut self, client: usize, relic: Relic) {
        let now = self.agenda.now();
        self.tally.relics += 1;
        let what = self.dice.below(4);
        self.trace.note(now, || format!("client {client} uses a relic: {what}"));
        let serial = self.next_serial();
        let it = &mut self.clients[client];
        if !it.coordinator.remaining(&relic.lock, instant(now)).is_zero() {
            self.checker.report(format!("client {client} believes in a lock that is over"));
        }
        if matches!(what, 0 | 2) {
            self.checker.end(now, relic.belief);
        }
        match what {
            0 => it.coordinator.release_nowait(&relic.lock, instant(now)),
            1 => {
                let ttl = Duration::from_secs(1);
                if it.coordinator.extend(&relic.lock, ttl, serial, instant(now)).is_ok() {
                    self.checker.report(format!("client {client} extends a lock that is over"));
                }
            }
            2 => {
                let _ = it.coordinator.release(relic.lock, serial, instant(now));
                let due = now + RELEASE_TIMEOUTS * self.plan.node_timeout();
                self.note_request(client, serial, Purpose::Relic, "release", due);
            }
            _ => {}
        }
    }
}
