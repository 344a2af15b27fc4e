//! The checks: each is a function from plain values to findings. A finding is a line that an
//! operator can act on.
//!
//! A failure means that clients should ask the node for no lock. A warning means that the node will
//! cost time or safety one day. A note says what a small set-up gives: the operator may have chosen
//! it. The hazard is to report a check as passed that could not be made: then the check returns a
//! warning that says so.

mod access;
mod clocks;
mod list;
mod marker;
mod members;
mod network;
mod rights;
mod server;

use std::time::Duration;

use redlatch::{NodeError, clock::Instant, majority};

use super::examination::Examination;
use super::meeting::Met;

/// The name of every check, in the order of the output.
pub const NAMES: [&str; 24] = [
    "node-count",
    "quorum",
    "distinct",
    "members",
    "reachable",
    "credentials",
    "role",
    "loading",
    "cluster",
    "eviction",
    "persistence",
    "age",
    "marker",
    "permissions",
    "writes",
    "tracking",
    "release",
    "scripts",
    "fencing",
    "proxy",
    "round-trip",
    "clock-rate",
    "clock-skew",
    "connections",
];

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    Note,
    Warn,
    Fail,
}

impl Level {
    pub const fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub name: &'static str,
    pub level: Level,
    /// The node's label; `None` if the finding is about all nodes.
    pub node: Option<String>,
    pub detail: String,
}

impl Finding {
    fn new(name: &'static str, level: Level, detail: impl Into<String>) -> Finding {
        // The text may quote the node, whose control characters must not act on the terminal.
        let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
        let detail = detail.into().chars().map(plain).collect();
        Finding { name, level, node: None, detail }
    }

    fn ok(name: &'static str, detail: impl Into<String>) -> Finding {
        Finding::new(name, Level::Ok, detail)
    }

    fn note(name: &'static str, detail: impl Into<String>) -> Finding {
        Finding::new(name, Level::Note, detail)
    }

    fn warn(name: &'static str, detail: impl Into<String>) -> Finding {
        Finding::new(name, Level::Warn, detail)
    }

    fn fail(name: &'static str, detail: impl Into<String>) -> Finding {
        Finding::new(name, Level::Fail, detail)
    }

    /// The finding of a check that the node makes impossible, because it refuses a command.
    fn unknown(name: &'static str, refused: &str) -> Finding {
        Finding::warn(name, format!("unknown: the node refuses {refused}"))
    }
}

/// The client's settings, against which the nodes are checked.
#[derive(Debug, Clone, Copy)]
pub struct Use<'a> {
    pub max_ttl: Duration,
    pub node_timeout: Duration,
    pub probe_interval: Duration,
    pub restart_guard: bool,
    /// The operator declares that the nodes lose no lock in a restart.
    pub persistent: bool,
    /// The key of the node marker.
    pub marker: &'a str,
    /// How many replicas of a node have to confirm each grant.
    pub replicas: u32,
    /// Whether the client checks the list of masters.
    pub check_members: bool,
    /// When the nodes were examined.
    pub now: Instant,
}

/// One node, and what doctor found out about it.
#[derive(Debug)]
pub struct Subject {
    pub label: String,
    pub encrypted: bool,
    pub user: Option<String>,
    pub met: Met,
    pub seen: Examination,
}

impl Subject {
    /// The library's error, or else that of doctor's own connection.
    fn trouble(&self) -> Option<NodeError> {
        let own = || self.seen.trouble.as_ref().map(|trouble| trouble.cause);
        self.met.trouble().or_else(own)
    }

    /// Whether the node is loading its data. Then its answers are slow for that reason, so they do
    /// not measure the network.
    fn is_loading(&self) -> bool {
        self.seen.info("loading").is_some_and(|value| value != "0")
    }
}

/// All findings, in the order of `NAMES` within each node.
pub fn all(subjects: &[Subject], how: &Use) -> Vec<Finding> {
    let mut of_nodes = Vec::new();
    for subject in subjects {
        let mut found = access::reachable(subject);
        found.extend(access::credentials(subject));
        if subject.seen.handshake_answered {
            found.extend(server::checks(subject, how));
            found.extend(rights::checks(subject));
            found.extend(network::checks(subject, how));
            if !subject.is_loading() {
                found.extend(clocks::rate(subject));
            }
        }
        found.extend(access::unexplained(subject, &found));
        let node = &subject.label;
        of_nodes.extend(found.into_iter().map(|it| Finding { node: Some(node.clone()), ..it }));
    }
    of_nodes.extend(clocks::skew(subjects, how));
    let label = |it: &Finding| it.node.clone().unwrap_or_default();
    of_nodes.sort_by_key(|it| subjects.iter().position(|subject| subject.label == label(it)));
    let mut findings = list::checks(subjects, &of_nodes, how);
    findings.push(members::check(subjects, how));
    findings.extend(of_nodes);
    findings
}

/// Whether too few nodes answered to form a quorum.
pub fn no_quorum_answered(subjects: &[Subject]) -> bool {
    subjects.iter().filter(|subject| subject.seen.answered).count() < majority(subjects.len())
}

/// A length of time in words.
fn span(length: Duration) -> String {
    let seconds = length.as_secs_f64().round() as u64;
    let of = |unit: u64| (seconds + unit / 2) / unit;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", of(60)),
        7200..172_800 => format!("{} h", of(3600)),
        _ => format!("{} days", of(86_400)),
    }
}

/// Rounds up to whole seconds, so that the operator does not try again too early.
fn round_up_to_seconds(length: Duration) -> Duration {
    Duration::from_secs(length.as_secs_f64().ceil() as u64)
}

#[cfg(test)]
mod examples {
    //! Healthy nodes, which the tests change.

    use redlatch::NodeState;
    use redlatch::proto::{Identity, Marker};

    use super::*;
    use crate::connection::Answer;
    use crate::doctor::examination::Reading;
    use crate::doctor::marker::Seen;
    use crate::doctor::trial::{FENCING, Outcome, Trial};
    use crate::members::lists;

    pub const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    pub fn using() -> Use<'static> {
        Use {
            max_ttl: Duration::from_secs(60),
            node_timeout: Duration::from_millis(50),
            probe_interval: Duration::from_secs(5),
            restart_guard: true,
            persistent: false,
            marker: "redlatch:node",
            replicas: 0,
            check_members: false,
            now: NOW,
        }
    }

    /// A healthy node called `label`.
    pub fn node(label: &str) -> Subject {
        let info = [
            ("redis_version", "7.0.15"),
            ("run_id", label),
            ("uptime_in_seconds", "86400"),
            ("role", "master"),
            ("connected_slaves", "0"),
            ("second_repl_offset", "-1"),
            ("loading", "0"),
            ("cluster_enabled", "0"),
            ("maxmemory", "0"),
            ("maxmemory_policy", "noeviction"),
            ("aof_enabled", "1"),
            ("connected_clients", "3"),
            ("maxclients", "10000"),
        ];
        let settings = [("appendfsync", "always".to_owned()), ("timeout", "0".to_owned())];
        let commands = ["SET", "GET", "DEL", "EVAL", "EVALSHA", "CLIENT TRACKING", "PTTL", FENCING];
        let trial = |command| Trial { command, outcome: Outcome::Done };
        // The marker was written ten minutes before the first reading of the node's clock.
        let since_micros = 1_000_000_000_000 - 600_000_000;
        let marker = Marker { identity: Identity::default(), since_micros, vouched: false };
        let seen = Examination {
            found_at: None,
            answered: true,
            handshake_answered: true,
            hello: Some(Answer::Many(Vec::new())),
            info: info.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            settings: settings.into(),
            identities: vec![label.to_owned()],
            elsewhere: Some(label.to_owned()),
            places: Vec::new(),
            trials: commands.map(trial).into(),
            marker: Seen::Fits(marker),
            list: Some(lists::Seen::Blank),
            readings: readings(0.0, 0.0),
            round_trips: vec![Duration::from_micros(200); 8],
            trouble: None,
        };
        let met = Met { state: NodeState::Ready, distrust: None, words: None };
        Subject { label: label.to_owned(), encrypted: false, user: None, met, seen }
    }

    /// The readings of a clock that is `ahead` seconds ahead, and gains `rate` seconds in a second.
    pub fn readings(ahead: f64, rate: f64) -> Vec<Reading> {
        let reading = |millis: u64| {
            let asked_at = NOW.saturating_add(Duration::from_millis(millis));
            let read_at = asked_at.saturating_add(Duration::from_micros(200));
            let micros = 1e12 + ahead * 1e6 + (millis as f64 * 1e3 + 100.0) * (1.0 + rate);
            Reading { micros: micros as u64, asked_at, read_at }
        };
        [0, 1, 2, 998, 999, 1000].map(reading).into()
    }

    /// The worst finding of this name.
    #[track_caller]
    pub fn worst_of(found: &[Finding], name: &str) -> (Level, String) {
        let of_name: Vec<&Finding> = found.iter().filter(|it| it.name == name).collect();
        let worst = of_name.iter().max_by_key(|it| it.level);
        let worst = worst.unwrap_or_else(|| panic!("nothing of {name}"));
        (worst.level, worst.detail.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{node, using};
    use super::*;

    #[test]
    fn healthy_nodes_pass_every_check_in_order() {
        let nodes = ["a", "b", "c"].map(node);
        let found = all(&nodes, &using());
        for finding in &found {
            assert_eq!(finding.level, Level::Ok, "{finding:?}");
            assert!(NAMES.contains(&finding.name), "{finding:?}");
            assert!(!finding.detail.is_empty(), "{finding:?}");
        }
        for name in NAMES {
            assert!(found.iter().any(|finding| finding.name == name), "nothing of {name}");
        }
        assert!(!no_quorum_answered(&nodes));
    }

    #[test]
    fn node_text_cannot_control_the_terminal() {
        let found = Finding::ok("role", "\x1b[2Jgone\r\n");
        assert_eq!(found.detail, " [2Jgone  ");
    }

    #[test]
    fn lengths_of_time_are_printed_in_the_usual_units() {
        let cases = [(12, "12 s"), (600, "10 min"), (86_400, "24 h"), (864_000, "10 days")];
        for (seconds, said) in cases {
            assert_eq!(span(Duration::from_secs(seconds)), said);
        }
    }
}
