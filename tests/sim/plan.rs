//! What a seed decides before anything happens: how many there are of everything, how fast the
//! network is, what goes wrong and how often, and how the callers behave.

use std::time::Duration;

use redlatch::proto::{Limits, NodeSettings, RestartGuard, Settings};

use crate::agenda::{MICRO, MILLI, SECOND};
use crate::dice::Dice;
use crate::faults::{Kind, SEES_OLD_FLUSHES};

/// What becomes of the keys of a node that is killed, and what guards against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// The keys are kept, so no guard is needed.
    Kept,
    /// The keys may be gone, and the restart guard is on.
    Guarded,
    /// The keys may be gone, and the guard is off: here locks cannot exclude each other.
    Unguarded,
    /// The clocks of nodes jump, so keys end too early. The restart guard is on, but it sees a jump
    /// only when it asks for the time: here locks cannot exclude each other either.
    Jumping,
}

impl Memory {
    /// Whether the restart guard is on.
    pub fn is_guarded(self) -> bool {
        matches!(self, Memory::Guarded | Memory::Jumping)
    }

    /// Whether locks exclude each other.
    pub fn excludes(self) -> bool {
        matches!(self, Memory::Kept | Memory::Guarded)
    }
}

/// How long a ttl is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// The ttl is as long as a round trip, or a node timeout: the lock is often over before it is
    /// won.
    Short,
    /// Long enough to be of use, over within a run.
    Middle,
    /// Far longer than a run and its end: a key that is left over is seen.
    Long,
}

/// What a seed decides before anything happens.
#[derive(Debug)]
pub struct Plan {
    /// How many clients there are.
    pub clients: usize,
    /// How many masters.
    pub nodes: usize,
    /// How many users each client has: each wants one lock at a time.
    pub users: usize,
    /// How many keys they want.
    pub keys: usize,
    /// How long they go on, and things go wrong.
    pub length: u64,
    /// The settings of the clients.
    pub settings: Settings,
    /// The shortest and the longest way of a byte, each way, as a rule.
    pub latency: (u64, u64),
    /// How many pieces in a thousand are late, and by how much at most.
    pub late: (u64, u64),
    /// How much longer each way of a byte to and from the last node is.
    pub far: u64,
    /// How long a step of a client takes at most, if it takes any time.
    pub pace: u64,
    /// How long callers take at most to fetch what was reported; zero: nothing is reported first.
    pub fetched_late: u64,
    /// The pause between two faults at most; zero: nothing goes wrong.
    pub fault_pause: u64,
    /// The faults, and how often each of them comes compared with the others.
    pub faults: Vec<(u64, Kind)>,
    /// How long ttls are, and how often compared with the rest.
    pub lengths: [(u64, Length); 3],
    /// How many in a thousand acts of a holder prolong the lock.
    pub extends: u64,
    /// How many in a thousand want their lock kept.
    pub keeps: u64,
    /// How many locks in a thousand are wanted with a fencing number.
    pub fences: u64,
    /// How many in a thousand of the wanted locks have several keys.
    pub sets: u64,
    /// How many in a thousand acts of a holder give the lock away.
    pub gives: u64,
    /// How many in a thousand locks that are given away are for one user, by their token.
    pub lends: u64,
    /// How many acts in a thousand of a user without a lock only look.
    pub looks: u64,
    /// How many holders in a thousand keep the lock up to its end, if that is not too far.
    pub patience: u64,
    /// The longest pause of a user between two locks.
    pub rest: u64,
    /// How many nodes in a thousand were started a short while ago.
    pub young: u64,
    /// What becomes of the keys of a node that is killed.
    pub memory: Memory,
    /// A test decides which client does what.
    pub directed: bool,
}

impl Plan {
    /// Draws a plan. Without `memory`, nodes that forget are guarded against.
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

    /// A world of three nodes and three clients with a user each, in which nothing happens by
    /// itself, and the nodes are guarded against restarts.
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

    /// A world of kept locks that operators take away. Nothing else goes wrong there except faults
    /// that keep clients from seeing it, and there is time for several rounds within a ttl.
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

    /// A world in which nodes forget while others are silent, and holders prolong their locks by
    /// what is left. Connections are cut there only by the end of a process, so every client gets
    /// the push of every flush.
    fn let_nodes_forget(&mut self, dice: &mut Dice) {
        if dice.chance(700) {
            self.nodes = 3;
            let labels = (0..self.nodes).map(|node| NodeSettings::new(format!("n{node}")));
            self.settings.nodes = labels.collect();
        }
        self.settings.limits = Limits::default();
        self.settings.max_ttl = Duration::from_millis(dice.one_of(&[100, 300, 300]));
        self.settings.node_timeout = Duration::from_millis(25);
        // This node answers later than the majority.
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
            // Nodes come back as copies of others, and locks live long enough for that to matter.
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

    /// Whether nothing goes wrong, and nothing is slow or short.
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

/// Draws the faults. Each kind of fault is likely in some worlds and absent from others: a failure
/// that needs one fault again and again would drown in a mixture of all faults.
fn faults(memory: Memory, settings: &Settings, dice: &mut Dice) -> Vec<(u64, Kind)> {
    if memory == Memory::Guarded && dice.chance(150) {
        // Nothing is cut here: a client knows of a flush if it gets the push. With cuts it could
        // lose the connection before the push, or find out later that it was not connected at the
        // time of the flush.
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
            // An operator may delete a key on one node, another client may get it there, and a copy
            // may bring the first one back in its place.
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
        // With a short `max_ttl` nodes are trusted again before the run ends.
        settings.max_ttl = Duration::from_millis(dice.one_of(&[100, 300, 60_000]));
    } else if dice.chance(200) {
        settings.max_ttl = Duration::from_millis(300);
    }
    // Probes are rare if it may take a minute until a node is trusted: there would be too many of
    // them.
    let often = settings.max_ttl <= CRASHING && dice.chance(300) || memory == Memory::Jumping;
    settings.probe_interval = Duration::from_millis(if often { 200 } else { 5000 });
    if dice.chance(100) {
        // The limits are so small that nodes are full, and that no record is free.
        let asks = dice.between(4, 12) as usize;
        let records = dice.between(4, 12) as usize;
        settings.limits = Limits::default().records(records).asks(asks).outbox(2_000);
    }
    settings
}

/// The longest ttl in a world in which clients crash: no client owns what a dead client leaves, and
/// it has to be over before the end of the run is looked at.
const CRASHING: Duration = Duration::from_millis(300);

/// A silent connection is kept for longer than anything is silent.
const NEVER: Duration = Duration::from_secs(10);

/// How long it may take after the last fault until nothing is left of it: longer than the longest
/// pause before a connection, the longest ttl that is not long, and what is late; far shorter than
/// a long ttl.
pub const QUIET: u64 = 5 * SECOND;
