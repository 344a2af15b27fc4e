//! A free key reaches its waiter soon. If nothing goes wrong, a key that a majority of the nodes
//! does not hold, and that a user waits for, is asked for.

use crate::agenda::{Event, MILLI};
use crate::user::{LONGEST_WAIT, State, User};
use crate::world::World;

/// How often it is looked.
const STEP: u64 = MILLI;

impl World {
    /// Looks at all keys, and again a while later.
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
        let soon = self.soon();
        let name = &self.keys[key];
        let free = |node: &&crate::node::Node| node.master.get(node.clock(now), 0, name).is_none();
        let is_free = 2 * self.nodes.iter().filter(free).count() > self.nodes.len();
        self.occupied.retain(|(_, _, until)| *until > now);
        let occupied =
            |client: usize| self.occupied.iter().any(|(by, of, _)| (*by, *of) == (client, key));
        // A set may wait for another of its keys, and the later requests of its client for this key
        // wait for the set.
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
            self.checker.violate(format!("key {key} is free and waited for since {by} ns"));
        }
    }

    /// How long it may take: a few of the longest pauses between two polls, the way of a few
    /// answers, and the longest pause after a refused attempt, a fourth of what is left of a wait.
    fn soon(&self) -> u64 {
        let longest = self.plan.settings.retry.1.as_nanos() as u64;
        // A waiter in line learns by a poll of a key that was released without the line.
        let polls = 100 * MILLI;
        polls + LONGEST_WAIT / 4 + 4 * longest + 20 * self.plan.latency.1
    }
}
