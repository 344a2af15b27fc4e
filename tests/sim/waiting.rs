//! A free key soon reaches a waiter. If there are no faults, a key that no majority holds and that
//! a user waits for is soon asked for.

use crate::agenda::{Event, MILLI};
use crate::user::{LONGEST_WAIT, State, User};
use crate::world::World;

/// The time between two checks of all keys.
const STEP: u64 = MILLI;

impl World {
    /// Checks all keys, and schedules the next check.
    pub fn watch_free_keys(&mut self) {
        if self.healed {
            return;
        }
        for key in 0..self.keys.len() {
            self.watch_key(key);
        }
        self.agenda.put(self.agenda.now() + STEP, Event::Watch);
    }

    fn watch_key(&mut self, key: usize) {
        let now = self.agenda.now();
        let soon = self.longest_wait();
        let name = &self.keys[key];
        let free = |node: &&crate::node::Node| node.master.get(node.clock(now), 0, name).is_none();
        let is_free = 2 * self.nodes.iter().filter(free).count() > self.nodes.len();
        self.occupied.retain(|(_, _, until)| *until > now);
        let occupied =
            |client: usize| self.occupied.iter().any(|(by, of, _)| (*by, *of) == (client, key));
        // A set may wait for another of its keys; then later requests of its client for this key
        // wait for the set, and not for the key.
        let set_waits = |user: &User| match user.state {
            State::Waiting { wish, .. } => {
                wish.also != 0 && (user.key == key || wish.has_also(key))
            }
            _ => false,
        };
        let clients = self.clients.iter().enumerate().filter(|(number, _)| !occupied(*number));
        let clients = clients.filter(|(_, client)| !client.users.iter().any(set_waits));
        let mut users = clients.flat_map(|(_, client)| &client.users);
        let waits = |since: u64, gives_up: u64| now < gives_up && since + STEP < now;
        let is_waited_for = users.any(|user| match user.state {
            State::Waiting { since, gives_up, .. } => user.key == key && waits(since, gives_up),
            _ => false,
        });
        if !(is_free && is_waited_for) {
            self.free_since[key] = None;
            return;
        }
        let since = *self.free_since[key].get_or_insert(now);
        if now - since > soon {
            let by = now - since;
            self.checker.report(format!("key {key} is free and waited for since {by} ns"));
        }
    }

    /// How long a free key may have a waiter: a few of the longest pauses between two polls, a few
    /// answers in flight, and the longest pause after a refused attempt, which is a fourth of what
    /// is left of the wait.
    fn longest_wait(&self) -> u64 {
        let longest = self.plan.settings.retry.1.as_nanos() as u64;
        // A waiter in line learns only by polling that a key was released without the line.
        let polls = 100 * MILLI;
        polls + LONGEST_WAIT / 4 + 4 * longest + 20 * self.plan.latency.1
    }
}
