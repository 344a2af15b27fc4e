//! What a seed decides before a run: the numbers of clients, nodes, users and keys, the speed of
//! the network, which faults come and how often, and how callers behave.

use std::time::Duration;

use redlatch::proto::{Limits, NodeSettings, RestartGuard, Settings};

use crate::agenda::{MICRO, MILLI, SECOND};
use crate::dice::Dice;
use crate::faults::{Kind, SEES_OLD_FLUSHES};

/// What happens to the keys of a node that is killed, and which guard is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// The keys are kept, so no guard is needed.
    Kept,
    /// The keys may be gone, and the restart guard is on.
    Guarded,
    /// The keys may be gone, and the guard is off: here two clients may hold a lock.
    Unguarded,
    /// The clocks of nodes jump, so that keys expire too early. The restart guard is on, but it
    /// notices a jump only by a probe: here two clients may hold a lock, too.
    Jumping,
}

impl Memory {
    /// Whether the restart guard is on.
    pub fn is_guarded(self) -> bool {
        matches!(self, Memory::Guarded | Memory::Jumping)
    }

    /// Whether two clients must never hold a lock.
    pub fn excludes(self) -> bool {
        matches!(self, Memory::Kept | Memory::Guarded)
    }
}

/// How long a ttl is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// About a round trip, or a node timeout: the lock is often over before it is won.
    Short,
    /// Long enough to be used, and over within a run.
    Middle,
    /// Far longer than a run and its end, so that a leaked key is found.
    Long,
}

/// What a seed decides before a run.
#[derive(Debug)]
pub struct Plan {
    /// How many clients there are.
    pub clients: usize,
    /// How many masters there are.
    pub nodes: usize,
    /// How many users each client has. Each user wants one lock at a time.
    pub users: usize,
    /// How many keys they want.
    pub keys: usize,
    /// How long users act and faults come, in nanoseconds.
    pub length: u64,
    /// The settings of the clients.
    pub settings: Settings,
    /// The shortest and the longest time of a piece in flight, unless it is late.
    pub latency: (u64, u64),
    /// How many pieces in a thousand are late, and by how much at most.
    pub late: (u64, u64),
    /// How much longer pieces to and from the last node are in flight.
    pub far: u64,
    /// The longest time of a client's step; zero: steps take no time.
    pub pace: u64,
    /// The longest time from the report of a completion until the caller fetches it; zero:
    /// completions are fetched at once, without a report.
    pub fetched_late: u64,
    /// The longest pause between two faults; zero: there are no faults.
    pub fault_pause: u64,
    /// The kinds of faults, with their weights.
    pub faults: Vec<(u64, Kind)>,
    /// The lengths of ttls, with their weights.
    pub lengths: [(u64, Length); 3],
    /// How many in a thousand acts of a holder extend the lock.
    pub extends: u64,
    /// How many in a thousand locks have auto-extend.
    pub keeps: u64,
    /// How many in a thousand locks have a fencing number.
    pub fences: u64,
    /// How many in a thousand locks have several keys.
    pub sets: u64,
    /// How many in a thousand acts of a holder give the lock away.
    pub gives: u64,
    /// How many in a thousand locks that are given away are offered to one user alone.
    pub lends: u64,
    /// How many in a thousand acts of a user without a lock are an inspection.
    pub looks: u64,
    /// How many in a thousand holders keep the lock up to its deadline, if that is near.
    pub patience: u64,
    /// The longest pause of a user between two locks.
    pub rest: u64,
    /// How many nodes in a thousand were started shortly before the run.
    pub young: u64,
    /// What happens to the keys of a node that is killed.
    pub memory: Memory,
    /// A test decides what each client does.
    pub directed: bool,
}

impl Plan {
    /// Draws a plan. If `memory` is `None`, it is drawn too, but the guard is on wherever nodes
    /// forget.
    pub fn draw(memory: Option<Memory>, dice: &mut Dice) -> Plan {
        let drawn =
            dice.weighted(&[(10, Memory::Kept), (9, Memory::Guarded), (1, Memory::Jumping)]);
        let memory = memory.unwrap_or(drawn);
        let nodes = dice.weighted(&[(1, 1), (1, 2), (12, 3), (4, 4), (10, 5), (1, 6), (1, 7)]);
        let latency = dice.weighted(&[
            (5, (20 * MICRO, 300 * MICRO)),
            (3, (300 * MICRO, 3 * MILLI)),
            (2, (2 * MILLI, 25 * MILLI)),
        ]);
        let mut settings = settings(nodes, memory, dice);
        let faults = faults(memory, &settings, dice);
        if faults.iter().any(|(_, kind)| *kind == Kind::Flush) && !SEES_OLD_FLUSHES {
            settings.reset_after = NEVER;
        }
        let forced = memory == Memory::Kept && dice.chance(120);
        let forgetful = memory == Memory::Guarded && dice.chance(250);
        let mut plan = Plan {
            clients: dice.weighted(&[(5, 2), (3, 3), (2, 4)]),
            nodes,
            users: dice.weighted(&[(5, 1), (3, 2), (1, 3)]),
            keys: dice.weighted(&[(4, 1), (4, 2), (2, 4)]),
            length: dice.between(150 * MILLI, 900 * MILLI),
            settings,
            latency,
            late: (dice.one_of(&[0, 0, 10, 50]), dice.one_of(&[10, 50, 200]) * MILLI),
            far: 0,
            pace: dice.one_of(&[0, 0, 100 * MICRO, 2 * MILLI]),
            fetched_late: dice.one_of(&[0, 0, 100 * MICRO, 5 * MILLI]),
            fault_pause: dice.one_of(&[0, 400, 200, 100, 60]) * MILLI,
            faults,
            lengths: [
                (dice.one_of(&[0, 1, 6]), Length::Short),
                (dice.one_of(&[1, 3]), Length::Middle),
                (dice.one_of(&[1, 3]), Length::Long),
            ],
            extends: dice.one_of(&[0, 100, 300, 800]),
            keeps: dice.one_of(&[0, 300, 800]),
            fences: 0,
            sets: 0,
            gives: dice.one_of(&[0, 0, 100, 400]),
            lends: 300,
            looks: dice.one_of(&[0, 0, 50]),
            patience: dice.one_of(&[100, 600]),
            rest: dice.one_of(&[2, 20, 100]) * MILLI,
            young: 0,
            memory,
            directed: false,
        };
        if memory == Memory::Guarded {
            plan.young = dice.one_of(&[0, 0, 0, 300]);
            plan.fences = dice.one_of(&[0, 500, 1000]);
        }
        if plan.keys > 1 {
            plan.sets = dice.one_of(&[0, 300, 800]);
        }
        if forced {
            plan.let_operators_take_locks(dice);
        } else if forgetful {
            plan.let_nodes_forget(dice);
        }
        plan
    }

    /// The plan of a directed scenario: three nodes with the restart guard on, and three clients
    /// with one user each. Nothing happens by itself.
    pub fn directed() -> Plan {
        let mut plan = Plan::draw(Some(Memory::Guarded), &mut Dice::new(0));
        (plan.clients, plan.nodes, plan.users, plan.keys) = (3, 3, 1, 1);
        let labels = (0..plan.nodes).map(|node| NodeSettings::new(format!("n{node}")));
        plan.settings = Settings::new(labels.collect());
        plan.settings.max_ttl = Duration::from_millis(300);
        plan.settings.node_timeout = Duration::from_millis(100);
        plan.settings.reconnect = (Duration::from_millis(1), Duration::from_millis(2));
        (plan.latency, plan.late, plan.pace) = ((20 * MICRO, 100 * MICRO), (0, 0), 0);
        plan.fetched_late = 0;
        plan.young = 0;
        (plan.fault_pause, plan.rest, plan.directed) = (0, u64::MAX / 4, true);
        plan
    }

    /// Changes the plan: operators take away locks with auto-extend. The only other faults keep
    /// clients from noticing that, and a ttl is long enough for several rounds.
    fn let_operators_take_locks(&mut self, dice: &mut Dice) {
        self.settings.max_ttl = Duration::from_secs(60);
        self.settings.limits = Limits::default();
        self.settings.node_timeout = Duration::from_millis(dice.one_of(&[10, 25]));
        self.latency = (20 * MICRO, 500 * MICRO);
        (self.late, self.fault_pause) = ((0, 0), 60 * MILLI);
        self.lengths = [(0, Length::Short), (5, Length::Middle), (1, Length::Long)];
        (self.extends, self.keeps) = (dice.one_of(&[0, 300]), 900);
        self.faults = vec![(4, Kind::Force), (1, Kind::Delete), (dice.below(2), Kind::Stop)];
    }

    /// Changes the plan: nodes forget while others are silent, and holders extend their locks.
    /// Connections are cut only when a process ends, so every client gets the push of every flush.
    fn let_nodes_forget(&mut self, dice: &mut Dice) {
        if dice.chance(700) {
            self.nodes = 3;
            let labels = (0..self.nodes).map(|node| NodeSettings::new(format!("n{node}")));
            self.settings.nodes = labels.collect();
        }
        self.settings.limits = Limits::default();
        self.settings.max_ttl = Duration::from_millis(dice.one_of(&[100, 300, 300]));
        self.settings.node_timeout = Duration::from_millis(25);
        // In half of the runs the last node answers later than the majority does.
        self.far = dice.one_of(&[0, 8 * MILLI]);
        self.settings.reset_after = NEVER;
        self.latency = (20 * MICRO, 500 * MICRO);
        (self.late, self.fault_pause) = ((0, 0), dice.one_of(&[60, 30]) * MILLI);
        self.lengths = [(0, Length::Short), (5, Length::Middle), (1, Length::Long)];
        (self.extends, self.keeps) = (500, dice.one_of(&[0, 800]));
        (self.gives, self.lends) = (dice.one_of(&[100, 700]), dice.one_of(&[200, 700]));
        self.faults = vec![
            (dice.below(3), Kind::Kill),
            (2, Kind::Flush),
            (3, Kind::FlushFirst),
            (3, Kind::Stall),
            (2, Kind::Freeze),
            (dice.below(2), Kind::Stop),
        ];
        if dice.chance(500) {
            // Nodes come back as copies of others, and locks live long enough to be harmed by that.
            self.length = dice.between(500 * MILLI, 900 * MILLI);
            (self.keeps, self.gives, self.patience) = (900, dice.one_of(&[0, 200]), 900);
            (self.rest, self.fault_pause) = (2 * MILLI, 100 * MILLI);
            let others = [Kind::Kill, Kind::Flush, Kind::Stall, Kind::Freeze, Kind::Stop];
            self.faults = vec![(6, Kind::Copy)];
            self.faults.extend(others.map(|kind| (dice.below(2), kind)));
        }
    }

    /// A ttl, in milliseconds.
    pub fn ttl(&self, dice: &mut Dice) -> u64 {
        let drawn = match dice.weighted(&self.lengths) {
            Length::Short => dice.between(3, 80),
            Length::Middle => dice.between(80, 1000),
            Length::Long => dice.between(30_000, 60_000),
        };
        drawn.min(self.settings.max_ttl.as_millis() as u64)
    }

    /// Whether there are no faults, and no step, piece or limit gets in the way.
    pub fn is_untroubled(&self) -> bool {
        let in_time = 2 * self.latency.1 + 2 * self.pace < self.node_timeout();
        let room = self.settings.limits == Limits::default();
        self.fault_pause == 0 && self.late.0 == 0 && self.pace == 0 && in_time && room
    }

    /// The node timeout, in nanoseconds.
    pub fn node_timeout(&self) -> u64 {
        self.settings.node_timeout.as_nanos() as u64
    }
}

/// Draws the faults. Each kind is frequent in some worlds and absent from others, because a failure
/// that needs one kind of fault again and again would hardly come up in a mixture of all.
fn faults(memory: Memory, settings: &Settings, dice: &mut Dice) -> Vec<(u64, Kind)> {
    if memory == Memory::Guarded && dice.chance(150) {
        // If the coordinators do not notice old flushes, no connection is cut: otherwise a client
        // could miss the push of a flush, or connect only after the flush.
        let cuts = u64::from(SEES_OLD_FLUSHES);
        return vec![
            (3, Kind::Flush),
            (1, Kind::Stop),
            (1, Kind::ForgetScripts),
            (cuts, Kind::Cut),
            (if settings.max_ttl <= CRASHING { cuts } else { 0 }, Kind::Crash),
        ];
    }
    let mut faults: Vec<(u64, Kind)> =
        Kind::USUAL.iter().map(|&kind| (dice.one_of(&[0, 0, 1, 5]), kind)).collect();
    if memory != Memory::Kept {
        faults.push((3, Kind::Kill));
        faults.push((dice.one_of(&[0, 0, 2]), Kind::Promote));
        let copies = dice.one_of(&[0, 0, 2]);
        faults.push((copies, Kind::Copy));
        if copies > 0 {
            // Deletions are left out: an operator may delete a key on one node, another client may
            // get the key there, and the copy may bring the first one back in its place.
            faults.retain(|(_, kind)| *kind != Kind::Delete);
        }
    }
    if memory == Memory::Jumping {
        faults.push((5, Kind::Jump));
    }
    if settings.max_ttl <= CRASHING {
        faults.push((dice.one_of(&[0, 1, 3]), Kind::Crash));
    }
    if faults.iter().all(|(weight, _)| *weight == 0) {
        faults[0].0 = 1;
    }
    faults
}

fn settings(nodes: usize, memory: Memory, dice: &mut Dice) -> Settings {
    let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
    let mut settings = Settings::new(labels.collect());
    settings.node_timeout = Duration::from_millis(dice.one_of(&[10, 25, 50, 100]));
    settings.connect_timeout = Duration::from_millis(dice.one_of(&[200, 1000]));
    settings.retry.1 = Duration::from_millis(dice.one_of(&[5, 50]));
    settings.reconnect.1 = Duration::from_millis(dice.one_of(&[50, 1000]));
    settings.reset_after = Duration::from_millis(dice.one_of(&[60, 500]));
    settings.attended = dice.chance(800);
    settings.restart_guard = if memory.is_guarded() { RestartGuard::On } else { RestartGuard::Off };
    if memory.is_guarded() {
        // With a short `max_ttl` nodes are trusted again within the run.
        settings.max_ttl = Duration::from_millis(dice.one_of(&[100, 300, 60_000]));
    } else if dice.chance(200) {
        settings.max_ttl = Duration::from_millis(300);
    }
    // If it takes up to a minute until nodes are trusted, probes are rare: otherwise the run would
    // have too many of them.
    let often = settings.max_ttl <= CRASHING && dice.chance(300) || memory == Memory::Jumping;
    settings.probe_interval = Duration::from_millis(if often { 200 } else { 5000 });
    if dice.chance(100) {
        // The limits are so small that nodes are often full and records often run out.
        let asks = dice.between(4, 12) as usize;
        let records = dice.between(4, 12) as usize;
        settings.limits = Limits::default().records(records).asks(asks).outbox(2_000);
    }
    settings
}

/// The longest ttl if clients crash. No client owns what a dead client leaves, so it has to expire
/// before the end of the run is checked.
const CRASHING: Duration = Duration::from_millis(300);

/// A silent connection is kept for longer than any silence lasts.
const NEVER: Duration = Duration::from_secs(10);

/// How long after the last fault its consequences may last. It is longer than the longest back-off,
/// the longest ttl that is not `Long`, and the longest delay of bytes; and far shorter than a
/// `Long` ttl.
pub const QUIET: u64 = 5 * SECOND;
