//! The engine's turn on simulated connections: what its steps do here, and what has to be true when
//! a timer expires.
//!
//! The hazard is the one that `proto::turn` describes: a timer that expires although the answer is
//! there. So each turn is checked: before the core gets the new time, the client has read all that
//! lay in its kernel when the turn began, and written all that the kernel would have taken.

use redlatch::proto::turn::{self, Driver, Wake};
use redlatch::proto::{Action, Coordinator};
use redlatch::{NodeId, proto::Instant};

use crate::agenda::MICRO;
use crate::client::instant;
use crate::network::Piece;
use crate::world::World;

/// The input and output that waited when a client's turn began, by node.
#[derive(Debug)]
pub struct Waiting {
    /// How many pieces of that input the client has not read yet.
    unread: Vec<usize>,
    /// Whether the client has not yet tried to write that output, though the kernel would have
    /// taken it.
    unwritten: Vec<bool>,
}

impl Waiting {
    /// No input and no output.
    pub fn nothing(nodes: usize) -> Waiting {
        Waiting { unread: vec![0; nodes], unwritten: vec![false; nodes] }
    }

    /// Notes that a piece was read.
    pub fn read_one(&mut self, node: usize) {
        self.unread[node] = self.unread[node].saturating_sub(1);
    }

    /// Notes that the connection is gone, together with what waited on it.
    pub fn forget(&mut self, node: usize) {
        (self.unread[node], self.unwritten[node]) = (0, false);
    }
}

/// A client of the world, for one step of its turn.
pub struct Driving<'a> {
    pub world: &'a mut World,
    /// The number of the client.
    pub client: usize,
}

impl Driver for Driving<'_> {
    fn core(&mut self) -> &mut Coordinator {
        &mut self.world.clients[self.client].coordinator
    }

    fn now(&mut self) -> Instant {
        instant(self.world.agenda.now())
    }

    fn must_read_rest(&mut self) -> bool {
        self.world.clients[self.client].left_unread.contains(&true)
    }

    fn read_rest(&mut self) {
        for node in 0..self.world.nodes.len() {
            if std::mem::take(&mut self.world.clients[self.client].left_unread[node]) {
                let most = if self.world.dice.chance(200) { 1 } else { usize::MAX };
                self.world.read(self.client, node, most);
            }
        }
    }

    fn read_all(&mut self) {
        let waiting = &self.world.clients[self.client].waiting;
        self.world.tally.unread += u64::from(waiting.unread.iter().any(|&pieces| pieces > 0));
        self.world.tally.unwritten += u64::from(waiting.unwritten.contains(&true));
        self.world.read_all(self.client);
    }

    fn expire(&mut self, now: Instant) {
        self.world.check_before_timers(self.client, now);
        self.core().handle_timeout(now);
        self.world.check_beliefs(self.client);
    }

    fn act(&mut self, action: Action) {
        self.world.act_on_wire(self.client, action);
    }

    fn write_all(&mut self) -> bool {
        self.world.write_all(self.client)
    }

    fn wake_deadline(&mut self) -> Option<Instant> {
        self.world.wake_deadline(self.client).map(instant)
    }
}

impl World {
    /// A client, to be driven by the functions of `proto::turn`.
    pub fn drive(&mut self, client: usize) -> Driving<'_> {
        Driving { world: self, client }
    }

    /// When a sleeping client has something to do even if nothing arrives.
    pub fn sleeps_until(&mut self, client: usize) -> u64 {
        match turn::wake(&mut self.drive(client)) {
            Wake::AtOnce => self.agenda.now(),
            Wake::At(at) => at.as_nanos(),
            Wake::OnEvent => u64::MAX,
        }
    }

    /// When a user of the client wants to act next, or its kernel takes more output.
    fn wake_deadline(&self, client: usize) -> Option<u64> {
        let (now, it) = (self.agenda.now(), &self.clients[client]);
        let users = it.users.iter().map(|user| user.at);
        let relics = it.relics.iter().map(|relic| relic.at);
        let told = it.told.iter().map(|told| told.at);
        let full = it.wires.iter().enumerate().filter_map(|(node, wire)| {
            let wire = &self.network.wires[(*wire)?];
            let full = wire.open && now < wire.full_until;
            let waits = full && !it.coordinator.output(NodeId::new(node)).is_empty();
            waits.then_some(wire.full_until)
        });
        users.chain(relics).chain(told).chain(full).min().filter(|&at| at < u64::MAX)
    }

    /// Notes at the beginning of a turn which input and output waits.
    pub fn note_what_waits(&mut self, client: usize) {
        for node in 0..self.nodes.len() {
            let wire = self.clients[client].wires[node];
            let unread = wire.map_or(0, |wire| self.network.wires[wire].inbox.len());
            let unwritten = self.could_write(client, node);
            let waiting = &mut self.clients[client].waiting;
            (waiting.unread[node], waiting.unwritten[node]) = (unread, unwritten);
        }
    }

    /// Whether there is output for a node that the kernel would take.
    fn could_write(&self, client: usize, node: usize) -> bool {
        let it = &self.clients[client];
        let wire = it.wires[node].map(|wire| &self.network.wires[wire]);
        let takes = wire.is_some_and(|wire| wire.open && wire.full_until <= self.agenda.now());
        takes && !it.coordinator.output(NodeId::new(node)).is_empty()
    }

    /// Checks, when a client falls asleep, that nothing is left for which no event wakes it. The
    /// poller reports input only once, and does not report that a socket takes output.
    pub fn check_before_sleep(&mut self, client: usize) {
        let it = &self.clients[client];
        let unread = it.left_unread.contains(&true);
        let unwritten = (0..self.nodes.len()).any(|node| self.could_write(client, node));
        if unread || unwritten || it.coordinator.has_actions() {
            self.checker.report(format!(
                "client {client} falls asleep with input unread ({unread}), or output unwritten \
                 ({unwritten}), or a connection to be opened or closed"
            ));
        }
    }

    /// Checks, when timers are about to expire, that nothing waits any more that waited when the
    /// turn began.
    fn check_before_timers(&mut self, client: usize, by: Instant) {
        let (now, waiting) = (self.agenda.now(), &self.clients[client].waiting);
        let unread = waiting.unread.iter().any(|&pieces| pieces > 0);
        let unwritten = waiting.unwritten.contains(&true);
        if unread || unwritten || by != instant(now) {
            self.checker.report(format!(
                "client {client} believes a timeout at {now} ns, by a clock read at {by:?}, \
                 before it looked at its sockets: {waiting:?}"
            ));
        }
    }

    /// Writes once to each node for which there is output. The kernel may take only a part, or
    /// report that the connection is gone before the client has read that. Returns whether one was
    /// found gone.
    fn write_all(&mut self, client: usize) -> bool {
        let mut lost = false;
        for node in 0..self.nodes.len() {
            let Some(wire) = self.clients[client].wires[node] else { continue };
            lost |= self.write(client, node, wire);
        }
        lost
    }

    fn write(&mut self, client: usize, node: usize, wire: usize) -> bool {
        let (now, id) = (self.agenda.now(), NodeId::new(node));
        if !self.could_write(client, node) {
            return false;
        }
        let it = &self.network.wires[wire];
        let output = self.clients[client].coordinator.output(id).to_vec();
        self.clients[client].waiting.unwritten[node] = false;
        let over = it.inbox.iter().any(|piece| matches!(piece, Piece::End(_)));
        if over && self.dice.chance(800) {
            self.tally.broken += 1;
            self.network.wires[wire].inbox.clear();
            self.lose(client, node, wire, "broken pipe");
            self.check_beliefs(client);
            return true;
        }
        self.check_heals(client, wire, &output);
        let mut count = output.len();
        let it = &mut self.network.wires[wire];
        if !self.healed && self.dice.chance(10) {
            count = self.dice.place(count + 1);
            it.full_until = now + 1 + self.dice.below(500 * MICRO);
        }
        // Bytes that are written after a cut are lost, because the client does not know of the cut
        // yet.
        if !it.cut && !it.ended {
            self.network.send(wire, &output[..count], &mut self.agenda, &mut self.dice);
        }
        self.clients[client].coordinator.handle_sent(id, count, instant(now));
        false
    }
}

#[cfg(test)]
mod tests {
    use redlatch::{NodeId, NodeState};

    use crate::agenda::MILLI;
    use crate::dice::Dice;
    use crate::plan::Plan;
    use crate::trace::Trace;
    use crate::user::{Purpose, State, Wish};
    use crate::world::World;

    /// How long the client does not run: longer than the node timeout, shorter than the ttl.
    const AWAY: u64 = 150 * MILLI;
    const TTL: u64 = 290;

    /// A world in which client 0 knows every node and has requested a lock, but has written nothing
    /// yet.
    fn one_that_asked(trace: &Trace) -> World {
        let mut world = World::of(Plan::directed(), Dice::new(1), trace.clone());
        world.rouse(0);
        world.run_until(400 * MILLI);
        let (wish, purpose) = (Wish::of(TTL), Purpose::Acquire { user: 0 });
        let asked = world.acquire(0, 0, wish, 0, purpose);
        world.wait_for(0, 0, wish, 0, asked);
        world.clients[0].users[0].at = u64::MAX;
        world
    }

    /// Lets the client run again, and checks that it found no node silent and won the lock.
    fn has_the_lock_after_its_absence(mut world: World, trace: &Trace) {
        world.run_until(world.agenda.now() + AWAY + 10 * MILLI);
        let it = &world.clients[0];
        let holds = matches!(it.users[0].state, State::Holding(_));
        let node_states =
            (0..world.nodes.len()).map(|node| it.coordinator.node_state(NodeId::new(node)));
        let silent = node_states.filter(|state| *state == NodeState::Suspect).count();
        let violations = world.checker.violations();
        assert!(holds && silent == 0 && violations.is_empty(), "{}{violations:?}", trace.text());
    }

    /// When the client runs again, the node timeout of its requests is over, but the answers came
    /// long before.
    #[test]
    fn stopped_client_reads_its_answers_before_its_timers_expire() {
        let trace = Trace::on();
        let mut world = one_that_asked(&trace);
        world.rouse(0);
        let now = world.agenda.now();
        world.run_until(now);
        world.keep_busy_before_its_turn(0, AWAY);
        has_the_lock_after_its_absence(world, &trace);
    }

    /// When the client runs again, the node timeout of its requests is over before they are
    /// written.
    #[test]
    fn stopped_client_writes_its_requests_before_its_timers_expire() {
        let trace = Trace::on();
        let mut world = one_that_asked(&trace);
        world.keep_busy_before_its_turn(0, AWAY);
        has_the_lock_after_its_absence(world, &trace);
    }
}
