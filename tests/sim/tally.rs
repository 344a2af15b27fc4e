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

const RESTARTS: [&str; 2] = ["restarts with all keys", "restarts without keys"];
const IN_LINE: [&str; 5] =
    ["joins of lines", "locks won in line", "waiters skipped", "claims", "splits"];

/// Defines the counters of single things, each with the words that the test prints.
macro_rules! tally {
    ($($field:ident: $words:literal,)*) => {
        /// How often each thing happened.
        #[derive(Debug, Default, Clone)]
        pub struct Tally {
            by_kind: [u64; FAULTS.len()],
            pub troubles: [u64; TROUBLES.len()],
            pub restarts: [u64; RESTARTS.len()],
            pub in_line: [u64; IN_LINE.len()],
            $(#[doc = $words] pub $field: u64,)*
        }

        impl Tally {
            /// The counters with their names.
            pub fn counters(&mut self) -> Vec<(&'static str, &mut u64)> {
                let mut counters = vec![$(($words, &mut self.$field)),*];
                let faults = FAULTS.iter().map(|(_, name)| *name);
                counters.extend(faults.zip(&mut self.by_kind));
                counters.extend(TROUBLES.into_iter().zip(&mut self.troubles));
                counters.extend(RESTARTS.into_iter().zip(&mut self.restarts));
                counters.extend(IN_LINE.into_iter().zip(&mut self.in_line));
                counters
            }
        }
    };
}

tally! {
    faults: "faults drawn, also those that found nothing to happen to",
    events: "events of the simulation",
    handed_out: "locks handed out",
    fenced: "locks with a fencing number",
    fenced_sets: "locks with a fencing number for each of several keys",
    written_back: "fencing numbers written back in a second round",
    sets: "locks with several keys",
    contended: "requests refused because another client held the key",
    no_quorum: "requests that too few nodes answered in time",
    expired: "acquires granted too late",
    busy: "requests refused before anything was sent",
    extended: "extends won, by a lock or by its token",
    lost: "extends that failed because the lock was gone",
    released: "releases that a majority confirmed",
    taken_by_other: "releases of locks whose key another client had by then",
    already_expired: "releases of locks that were over",
    unconfirmed: "releases that no majority confirmed",
    cancelled: "requests cancelled",
    relics: "handles used long after their lock was over",
    suspects: "times that a client said that a node is suspect",
    pending_releases: "times that a client had pending releases for a node",
    crashes: "clients that ended, and whose place a new process took",
    promotions: "nodes that were replicas for a while",
    jumps: "jumps of a node's clock that clients reported",
    flushes: "nodes flushed",
    distrusted: "quarantines of nodes that clients reported",
    stale: "locks that a node granted on a connection that its client had dropped",
    stale_after_newer: "locks granted so when the client had a newer connection that was ready",
    kept: "locks with auto-extend",
    prolonged: "renewals that moved a deadline, without a call of the owner",
    warnings: "warnings that a lock with auto-extend ends",
    kept_lost: "locks with auto-extend that were lost",
    given_away: "locks given away",
    adopted: "locks adopted",
    adopted_in_vain: "locks that were gone when a user tried to adopt them",
    borrowed: "extends by token that were won",
    inspected: "inspections of a key",
    deleted: "keys that an operator deleted on a node",
    forced: "locks whose key an operator deleted on all nodes",
    healed: "keys that clients set again on nodes that had lost them",
    rests: "times that a client read only a part of the input of a connection",
    unread: "turns with a due timer that began with unread input",
    unwritten: "turns with a due timer that began with unwritten output",
    broken: "connections that a client found gone when it wrote",
}

impl Tally {
    /// Counts a fault that happened.
    pub fn count_fault(&mut self, kind: Kind) {
        let place = FAULTS.iter().position(|(it, _)| *it == kind);
        self.by_kind[place.expect("each kind is listed")] += 1;
    }

    /// Adds another run's counters.
    pub fn add(&mut self, mut other: Tally) {
        for ((_, sum), (_, more)) in self.counters().into_iter().zip(other.counters()) {
            *sum += *more;
        }
    }
}
