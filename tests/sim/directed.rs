//! Scenarios that chance would hardly find, told step by step in the same world.

use std::time::Duration;

use crate::agenda::{MICRO, MILLI};
use crate::client::instant;
use crate::dice::Dice;
use crate::plan::Plan;
use crate::trace::Trace;
use crate::user::{Purpose, State, Wish};
use crate::world::World;

/// The clients.
const HOLDER: usize = 0;
const RIVAL: usize = 1;

struct Scenario {
    world: World,
    trace: Trace,
}

impl Scenario {
    /// Every client knows every node.
    fn new() -> Scenario {
        let trace = Trace::on();
        let mut world = World::of(Plan::directed(), Dice::new(1), trace.clone());
        for client in [HOLDER, RIVAL] {
            world.rouse(client);
        }
        world.run_until(50 * MILLI);
        Scenario { world, trace }
    }

    /// Lets it go on up to this many milliseconds behind the first fifty.
    fn until(&mut self, millis: u64) {
        self.world.run_until((50 + millis) * MILLI);
    }

    /// What is between the client and the node takes so long from now on.
    fn stall(&mut self, client: usize, node: usize, millis: u64) {
        let wire = self.world.clients[client].wires[node].expect("it is connected");
        self.world.network.stall(wire, millis * MILLI, &mut self.world.agenda);
    }

    fn acquire(&mut self, client: usize, ttl: u64) {
        let (wish, purpose) = (Wish::of(ttl), Purpose::Acquire { user: 0 });
        let asked = self.world.acquire(client, 0, wish, 0, purpose);
        self.world.wait_for(client, 0, wish, 0, asked);
        self.world.clients[client].users[0].at = u64::MAX;
        self.world.rouse(client);
    }

    fn extend(&mut self, client: usize, ttl: u64) {
        let now = self.world.agenda.now();
        let serial = self.world.next_serial();
        let it = &mut self.world.clients[client];
        let State::Holding(held) = &it.users[0].state else { panic!("{}", self.trace.text()) };
        let ttl = Duration::from_millis(ttl);
        it.coordinator.extend(&held.lock, ttl, serial, instant(now)).expect("it is held");
        let due = now + 10 * self.world.plan.node_timeout();
        self.world.note_request(client, serial, Purpose::Relic, "extend", due);
        self.world.rouse(client);
    }

    /// For how many milliseconds more the client believes in its lock.
    fn left(&self, client: usize) -> u64 {
        let now = self.world.agenda.now();
        let it = &self.world.clients[client];
        let State::Holding(held) = &it.users[0].state else { return 0 };
        it.coordinator.remaining(&held.lock, instant(now)).as_millis() as u64
    }

    fn assert(&self, good: bool) {
        let violations = self.world.checker.violations();
        assert!(good && violations.is_empty(), "{}{violations:?}", self.trace.text());
    }
}

/// The third node grants the key to the rival, restarts without it, and is healed by the holder.
/// It stands for what it forgot: would it count for the holder at once, there were two.
#[test]
fn what_was_healed_in_quarantine_does_not_count_before_it_is_over() {
    let mut it = Scenario::new();
    it.stall(HOLDER, 2, 5);
    it.acquire(HOLDER, 60);
    it.until(2);
    it.assert(it.left(HOLDER) > 50);
    // Its question reaches the first node when the holder's key is over there.
    it.stall(RIVAL, 0, 83);
    it.stall(RIVAL, 1, 83);
    it.acquire(RIVAL, 300);
    it.until(4);
    let now = it.world.agenda.now();
    it.world.kill_until(2, now + 500 * MICRO);
    // The rival does not learn of the restart until it is told so.
    it.world.clients[RIVAL].stop(now, 85 * MILLI);
    it.until(10);
    it.extend(HOLDER, 60);
    it.until(15);
    it.assert(it.world.clients[HOLDER].coordinator.stats().healed == 1);
    it.stall(HOLDER, 0, 200);
    it.extend(HOLDER, 300);
    it.until(100);
    it.assert(it.left(HOLDER) == 0);
    it.assert(it.left(RIVAL) > 100);
}
