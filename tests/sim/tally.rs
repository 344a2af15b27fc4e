//! Counts what happened in all runs. The hazard is a simulation in which nothing happens: it finds
//! nothing, and looks as if all was well. So the test demands that each of these things happened.

use crate::faults::Kind;

/// The faults, in the order in which they are counted.
const FAULTS: [(Kind, &str); 17] = [
    (Kind::Cut, "connection cut"),
    (Kind::Stall, "connection stalled"),
    (Kind::Freeze, "node stopped"),
    (Kind::Kill, "node killed"),
    (Kind::Stop, "client stopped"),
    (Kind::Trouble, "node in trouble"),
    (Kind::Lie, "answers turned into errors"),
    (Kind::ForgetScripts, "scripts forgotten"),
    (Kind::Refuse, "connections refused"),
    (Kind::Promote, "node made a replica and promoted"),
    (Kind::Copy, "node started again as a copy of another one"),
    (Kind::Jump, "clock of a node jumped"),
    (Kind::Crash, "client ended"),
    (Kind::Flush, "node flushed"),
    (Kind::FlushFirst, "node flushed before commands on their way"),
    (Kind::Delete, "key deleted on one node"),
    (Kind::Force, "key deleted on all nodes"),
];

/// What a node in trouble answers, in the order of the numbers in `faults`.
const TROUBLES: [&str; 12] = [
    "trouble: LOADING",
    "trouble: BUSY",
    "trouble: MISCONF",
    "trouble: NOREPLICAS",
    "trouble: OOM",
    "trouble: an unknown error",
    "trouble: a reply of another type",
    "trouble: no right to CLIENT KILL",
    "trouble: no right to INFO",
    "trouble: no HELLO",
    "trouble: no right to CLIENT TRACKING",
    "trouble: too many clients",
];

/// How often each thing happened.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    /// Faults that were drawn. Some found nothing that they could happen to.
    pub faults: u64,
    /// Locks with several keys that were handed out.
    pub sets: u64,
    /// Faults that happened, by kind.
    by_kind: [u64; FAULTS.len()],
    /// Nodes that refused commands for a while, by their answer.
    pub troubles: [u64; TROUBLES.len()],
    /// Nodes that started again: with their keys, and without.
    pub restarts: [u64; 2],
    /// Events of the simulation.
    pub events: u64,
    /// Locks handed out.
    pub handed_out: u64,
    /// How many of these have a fencing number.
    pub fenced: u64,
    /// How many of these are over several keys.
    pub fenced_sets: u64,
    /// Fencing numbers that were written back in a second round.
    pub written_back: u64,
    /// Requests refused because another client held the key.
    pub contended: u64,
    /// Requests that too few nodes answered in time.
    pub no_quorum: u64,
    /// Acquires that were granted too late.
    pub expired: u64,
    /// Requests refused before anything was sent.
    pub busy: u64,
    /// Extends that were won, by a lock or by its token.
    pub extended: u64,
    /// Extends that failed because the lock was gone.
    pub lost: u64,
    /// Releases that a majority confirmed.
    pub released: u64,
    /// Releases of locks whose key another client had by then.
    pub taken_by_other: u64,
    /// Releases of locks that were over.
    pub already_expired: u64,
    /// Releases that no majority confirmed.
    pub unconfirmed: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Handles used long after their lock was over.
    pub relics: u64,
    /// How often a client said that a node is suspect.
    pub suspects: u64,
    /// How often a client had pending releases for a node.
    pub pending_releases: u64,
    /// Clients that ended, and whose place a new process took.
    pub crashes: u64,
    /// Nodes that were replicas for a while.
    pub promotions: u64,
    /// Jumps of a node's clock that clients reported.
    pub jumps: u64,
    /// Nodes that were flushed.
    pub flushes: u64,
    /// Quarantines of nodes that clients reported.
    pub distrusted: u64,
    /// Locks that a node granted on a connection that its client had dropped.
    pub stale: u64,
    /// How many of these were granted when the client had a newer connection that was ready.
    pub stale_after_newer: u64,
    /// Locks that had auto-extend.
    pub kept: u64,
    /// How often a renewal moved a deadline, without a call of the owner.
    pub prolonged: u64,
    /// Warnings that a lock with auto-extend ends.
    pub warnings: u64,
    /// Locks with auto-extend that were lost.
    pub kept_lost: u64,
    /// Locks that were given away.
    pub given_away: u64,
    /// Locks that were adopted.
    pub adopted: u64,
    /// Locks that were gone when a user tried to adopt them.
    pub adopted_in_vain: u64,
    /// Extends by token that were won.
    pub borrowed: u64,
    /// Inspections of a key.
    pub inspected: u64,
    /// Keys that an operator deleted on a node.
    pub deleted: u64,
    /// Locks whose key an operator deleted on all nodes.
    pub forced: u64,
    /// Joins of lines, locks won in line, dead waiters that were skipped, claims and splits.
    pub in_line: [u64; 5],
    /// Keys that clients set again on nodes that had lost them.
    pub healed: u64,
    /// How often a client read only a part of the input of a connection.
    pub rests: u64,
    /// Turns with a due timer that began with unread input.
    pub unread: u64,
    /// Turns with a due timer that began with unwritten output.
    pub unwritten: u64,
    /// Connections that a client found gone when it wrote.
    pub broken: u64,
}

impl Tally {
    /// Counts a fault that happened.
    pub fn count_fault(&mut self, kind: Kind) {
        let place = FAULTS.iter().position(|(it, _)| *it == kind);
        self.by_kind[place.expect("each kind is listed")] += 1;
    }

    /// The counters with their names.
    pub fn counters(&mut self) -> Vec<(&'static str, &mut u64)> {
        let mut counters = vec![("faults drawn", &mut self.faults)];
        let faults = FAULTS.iter().map(|(_, name)| *name);
        counters.extend(faults.zip(&mut self.by_kind));
        counters.extend(TROUBLES.into_iter().zip(&mut self.troubles));
        let restarts = ["restarts with all keys", "restarts without keys"];
        counters.extend(restarts.into_iter().zip(&mut self.restarts));
        let in_line =
            ["joins of lines", "locks won in line", "waiters skipped", "claims", "splits"];
        counters.extend(in_line.into_iter().zip(&mut self.in_line));
        counters.extend([
            ("events", &mut self.events),
            ("locks handed out", &mut self.handed_out),
            ("locks with a fence", &mut self.fenced),
            ("locks with a fence for each of several keys", &mut self.fenced_sets),
            ("fences written back", &mut self.written_back),
            ("locks with several keys", &mut self.sets),
            ("contended", &mut self.contended),
            ("no quorum", &mut self.no_quorum),
            ("expired", &mut self.expired),
            ("busy", &mut self.busy),
            ("extended", &mut self.extended),
            ("lost", &mut self.lost),
            ("released", &mut self.released),
            ("taken by another", &mut self.taken_by_other),
            ("already expired", &mut self.already_expired),
            ("unconfirmed", &mut self.unconfirmed),
            ("cancelled", &mut self.cancelled),
            ("relics used", &mut self.relics),
            ("suspect nodes", &mut self.suspects),
            ("nodes owed something", &mut self.pending_releases),
            ("clients begun anew", &mut self.crashes),
            ("nodes promoted", &mut self.promotions),
            ("clock jumps seen", &mut self.jumps),
            ("nodes flushed", &mut self.flushes),
            ("nodes distrusted", &mut self.distrusted),
            ("stale grants", &mut self.stale),
            ("stale grants after a newer connection", &mut self.stale_after_newer),
            ("locks kept", &mut self.kept),
            ("locks prolonged by being kept", &mut self.prolonged),
            ("warnings", &mut self.warnings),
            ("kept locks lost", &mut self.kept_lost),
            ("locks given away", &mut self.given_away),
            ("locks taken up", &mut self.adopted),
            ("taken up in vain", &mut self.adopted_in_vain),
            ("locks prolonged by their token", &mut self.borrowed),
            ("inspections", &mut self.inspected),
            ("keys deleted", &mut self.deleted),
            ("locks taken away", &mut self.forced),
            ("keys healed", &mut self.healed),
            ("wires not read to their end", &mut self.rests),
            ("late turns with unread input", &mut self.unread),
            ("late turns with unwritten output", &mut self.unwritten),
            ("connections lost in a write", &mut self.broken),
        ]);
        counters
    }

    /// Adds another run's counters.
    pub fn add(&mut self, mut other: Tally) {
        for ((_, sum), (_, more)) in self.counters().into_iter().zip(other.counters()) {
            *sum += *more;
        }
    }
}
