//! The settings of the core: the nodes' labels and credentials, the times, and every limit with its
//! reason. Addresses are not here: only the driver, which opens the sockets, needs them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::proto::error::ConfigError;
use crate::proto::lock::check_owner;
use crate::proto::node_set::MAX_NODES;
use crate::proto::own_keys::NAMESPACE;
use crate::proto::time::{Ttl, drift};

/// The longest `max_ttl` that can be configured. After its holder died, such a lock cannot be
/// acquired for a year, and no program needs a longer one.
pub const LONGEST_MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The longest key, in bytes. A key is copied into its record and into N outboxes, so its length
/// is a factor of every other bound.
pub const LONGEST_KEY: usize = 64 * 1024;

/// The node timeout unless it is changed. On a machine with ten times more work than processors, a
/// healthy node answers later than 50 ms now and then, and hardly ever later than 200 ms. A longer
/// timeout costs time only while a majority is frozen. docs/performance.md has the figures.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

/// The shortest node timeout with replicas. A node that waits for its replicas in vain answers up
/// to 100 ms late, because an idle server looks at such times ten times a second.
const SHORTEST_WITH_REPLICAS: Duration = Duration::from_millis(200);

/// The longest pause before the nodes are asked again for an extend that failed.
const LONGEST_EXTEND_PAUSE: Duration = Duration::from_millis(50);

/// The key of the node marker, unless it is changed.
pub const NODE_MARKER: &str = "redlatch:node";

/// A text that `Debug` does not show: a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Hides `text` from `Debug`.
    pub fn new(text: impl Into<Box<str>>) -> Secret {
        Secret(text.into())
    }

    /// The text, to be sent to the node it is for.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The credentials of the client at a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Credentials {
    /// The user; without one, the node's default user.
    pub user: Option<Box<str>>,
    /// The password, if the node requires one.
    pub password: Option<Secret>,
}

impl Credentials {
    /// The node's default user, with this password.
    pub fn password(password: impl Into<Box<str>>) -> Credentials {
        Credentials { user: None, password: Some(Secret::new(password)) }
    }

    /// This user, with this password.
    pub fn of(user: impl Into<Box<str>>, password: impl Into<Box<str>>) -> Credentials {
        Credentials { user: Some(user.into()), ..Credentials::password(password) }
    }
}

/// The settings of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeSettings {
    /// The node's name in reports: its address, without credentials.
    pub label: Box<str>,
    /// The user; without one, the node's default user.
    pub user: Option<Box<str>>,
    /// The password, if the node requires one.
    pub password: Option<Secret>,
    /// The database the keys are in.
    pub db: u32,
}

impl NodeSettings {
    /// A node called `label`, without credentials, database 0.
    pub fn new(label: impl Into<Box<str>>) -> NodeSettings {
        NodeSettings { label: label.into(), user: None, password: None, db: 0 }
    }
}

/// Limits on what waits, each with what happens when it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Open records: locks that are asked for, held, or not yet released on every node. At the
    /// limit, requests are refused as `Busy`. A record takes about 300 bytes and its key.
    pub records: usize,
    /// Questions to one node that it has not answered yet. At half of the limit the node is asked
    /// for nothing new and votes [`Full`](crate::proto::error::NodeError::Full): the other half is
    /// for releases. At the limit, releases wait as pending releases.
    pub asks: usize,
    /// Bytes to one node that the kernel has not taken. The limit and its half work as those of
    /// `asks`.
    pub outbox: usize,
}

impl Limits {
    /// Sets the limit of open records.
    #[must_use]
    pub const fn records(mut self, records: usize) -> Limits {
        self.records = records;
        self
    }

    /// Sets the limit of unanswered questions to a node.
    #[must_use]
    pub const fn asks(mut self, asks: usize) -> Limits {
        self.asks = asks;
        self
    }

    /// Sets the limit of bytes to a node that the kernel has not taken.
    #[must_use]
    pub const fn outbox(mut self, bytes: usize) -> Limits {
        self.outbox = bytes;
        self
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { records: 1 << 20, asks: 1 << 17, outbox: 32 << 20 }
    }
}

/// Whether a node that may have forgotten a live lock is kept from granting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RestartGuard {
    /// The node's grants do not count until every lock that it may have forgotten is over: for
    /// `max_ttl` and its drift after the node's start, and after a client first saw it without its
    /// node marker. This holds only if every client of the nodes keeps its ttls at or below
    /// `max_ttl`.
    #[default]
    On,
    /// As `On`, but a node that restarts and still has its node marker is trusted immediately by a
    /// client that knew it before, and from then on by every other client. If no client that knew
    /// it is running, a new client trusts the node once it has been up for `max_ttl` and its drift.
    /// The operator declares that every node writes each command to disk before it answers
    /// (`appendonly yes`, `appendfsync always`), so a node that has its marker has its locks.
    ///
    /// The library does not check this declaration; `redlatch doctor` does, if it may read
    /// `CONFIG`. A single node that forgets in spite of it can lead to two holders, if the first
    /// one had a bare majority.
    Persistent,
    /// The node's grants count immediately, and no node marker is written. For nodes that are all
    /// new, and for tests.
    Off,
}

impl RestartGuard {
    /// For how long the grants of a node do not count after it may have forgotten a lock: for as
    /// long as a client may still believe in that lock. This is `max_ttl` and its drift.
    pub fn quarantine(max_ttl: Duration) -> Duration {
        max_ttl.saturating_add(drift(max_ttl))
    }
}

/// The settings of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The nodes, each an independent master.
    pub nodes: Vec<NodeSettings>,
    /// The name of the client's connections in `CLIENT LIST`, if the nodes take a name; empty: no
    /// name.
    pub client_name: Box<str>,
    /// The text in each token of this client by which people recognize it; `None`: tokens without
    /// such a text. All tokens share this copy.
    pub owner: Option<Arc<str>>,
    /// Stands before every key that is sent, except the node marker. It does not begin with
    /// `redlatch:`.
    pub key_prefix: Box<str>,
    /// The longest ttl that may be asked for.
    pub max_ttl: Duration,
    /// How long a node may take to answer before the others decide without it, and how long it may
    /// be silent before it is suspect. Both times are one setting: if a node was suspect sooner,
    /// the next request would be refused although the node is only slow; if later, more requests
    /// would wait for it.
    pub node_timeout: Duration,
    /// The ttl with which a node hands a key over to a waiter in line from which it has not heard
    /// for a quarter of this time, unless the lock's own ttl is shorter; `None`: four node
    /// timeouts. A waiter that does not run any more then delays the others by this time only. A
    /// waiter that does run claims the key in a round trip of its own before it gets the lock.
    pub hand_over_ttl: Option<Duration>,
    /// How long a connection may take until its node is ready: connect, handshake, vetting.
    pub connect_timeout: Duration,
    /// The bounds of the pause before the next attempt of a request that stands in no line: too few
    /// nodes can be asked, or they refuse lines. The second half of each pause is drawn at random,
    /// so that two clients that split the vote do not meet again.
    pub retry: (Duration, Duration),
    /// The shortest and the longest pause before the client connects to a node again. The pause
    /// doubles each time, and its second half is drawn at random.
    pub reconnect: (Duration, Duration),
    /// How long a node may be silent before its connection is given up for a new one.
    pub reset_after: Duration,
    /// How often each node is asked for its time, its marker and whether it may evict. The answers,
    /// or their absence, show a dead connection, a clock that jumped, and keys that were lost.
    pub probe_interval: Duration,
    /// Whether a node that may have forgotten a live lock is kept from granting.
    pub restart_guard: RestartGuard,
    /// The key of the node marker on every node: by it the restart guard sees what a node forgot
    /// while this client was not connected. Empty: no marker, and such a loss is not seen.
    pub node_marker: Box<str>,
    /// How many replicas of a node have to have a grant before it counts; 0: no replica is asked.
    pub replicas: u32,
    /// Whether a node counts only if it is in the list of masters that the nodes keep.
    pub check_members: bool,
    /// Limits on what waits.
    pub limits: Limits,
    /// Whether a driver reads the nodes' answers at all times, as an event loop does. If not, a
    /// release must not depend on an answer. So it is sent with the source of its script, never by
    /// its SHA1: a node that has forgotten the script would refuse that.
    pub attended: bool,
    /// Whether the client uses nodes that may evict keys. A lock that is evicted is lost.
    pub allow_eviction: bool,
}

impl Settings {
    /// Settings for these nodes, with defaults for everything else.
    pub fn new(nodes: Vec<NodeSettings>) -> Settings {
        Settings {
            nodes,
            client_name: "redlatch".into(),
            owner: None,
            key_prefix: "".into(),
            max_ttl: Duration::from_secs(60),
            node_timeout: NODE_TIMEOUT,
            hand_over_ttl: None,
            connect_timeout: Duration::from_secs(1),
            retry: (Duration::from_millis(5), Duration::from_millis(50)),
            reconnect: (Duration::from_millis(20), Duration::from_millis(500)),
            reset_after: Duration::from_millis(500),
            probe_interval: Duration::from_secs(5),
            restart_guard: RestartGuard::On,
            node_marker: NODE_MARKER.into(),
            replicas: 0,
            check_members: false,
            limits: Limits::default(),
            attended: true,
            allow_eviction: false,
        }
    }

    /// The ttl with which a key is handed over, as it is set or by default.
    pub fn hand_over_ttl(&self) -> Duration {
        self.hand_over_ttl.unwrap_or(self.node_timeout.saturating_mul(4)).max(Ttl::SHORTEST)
    }

    /// How long a node may wait for its replicas: less than a node timeout, so that its answer
    /// comes before the node counts as silent.
    pub fn replica_patience(&self) -> Duration {
        self.node_timeout / 2
    }

    /// The pause before the nodes are asked again for an extend that failed. It may be much shorter
    /// than the node timeout, because unreachable nodes fail immediately, and a lock with a short
    /// ttl has to be extended before its deadline.
    pub fn extend_again_after(&self) -> Duration {
        self.node_timeout.min(LONGEST_EXTEND_PAUSE)
    }

    /// The key of the node marker, if the restart guard wants one.
    pub fn wanted_marker(&self) -> Option<&str> {
        let wanted = self.restart_guard != RestartGuard::Off && !self.node_marker.is_empty();
        wanted.then_some(&self.node_marker)
    }

    /// Whether the nodes are asked for their list of masters: not without the restart guard, which
    /// knows when a node may have lost it.
    pub fn checks_members(&self) -> bool {
        self.check_members && self.wanted_marker().is_some()
    }

    /// Checks whether the settings can work.
    ///
    /// # Errors
    /// The first setting that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.nodes.is_empty() {
            return Err(ConfigError::NoNodes);
        }
        if self.nodes.len() > MAX_NODES {
            return Err(ConfigError::TooManyNodes { given: self.nodes.len() });
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if self.nodes[..index].iter().any(|other| other.label == node.label) {
                return Err(ConfigError::DuplicateNode { label: node.label.clone() });
            }
        }
        let longest = self.node_marker.len().max(self.key_prefix.len());
        if longest > LONGEST_KEY {
            let (given, most) = (longest, LONGEST_KEY);
            return Err(ConfigError::KeyTooLong { given, most });
        }
        if self.key_prefix.starts_with(NAMESPACE) {
            return Err(ConfigError::ReservedKey { sent: self.key_prefix.as_bytes().into() });
        }
        if !self.client_name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ConfigError::ClientName { given: self.client_name.clone() });
        }
        if let Err(problem) = self.owner.as_deref().map_or(Ok(()), check_owner) {
            let given = self.owner.as_deref().unwrap_or_default().into();
            return Err(ConfigError::Owner { given, problem });
        }
        let sees_promotions =
            self.restart_guard == RestartGuard::On && self.wanted_marker().is_some();
        if self.replicas > 0 && !sees_promotions {
            return Err(ConfigError::Replicas);
        }
        if self.replicas > 0 && self.node_timeout < SHORTEST_WITH_REPLICAS {
            let (name, given) = ("node_timeout", self.node_timeout);
            return Err(ConfigError::Setting {
                name,
                given,
                must: "200 ms at least with replicas",
            });
        }
        self.validate_times()
    }

    fn validate_times(&self) -> Result<(), ConfigError> {
        let second = Duration::from_secs(1);
        let (hour, millisecond) = (3600 * second, Duration::from_millis(1));
        let within = |name, given: Duration, least: Duration, most: Duration, must| {
            if given < least || given > most {
                return Err(ConfigError::Setting { name, given, must });
            }
            Ok(())
        };
        let millis_to_hour = "from 1 ms to 1 hour";
        within("max_ttl", self.max_ttl, Ttl::SHORTEST, LONGEST_MAX_TTL, "from 3 ms to 365 days")?;
        within("node_timeout", self.node_timeout, millisecond, hour, millis_to_hour)?;
        within("connect_timeout", self.connect_timeout, millisecond, hour, millis_to_hour)?;
        within("reset_after", self.reset_after, millisecond, hour, millis_to_hour)?;
        let hand_over = self.hand_over_ttl.unwrap_or(second);
        within("hand_over_ttl", hand_over, Ttl::SHORTEST, hour, "from 3 ms to 1 hour")?;
        within("probe_interval", self.probe_interval, millisecond, hour, millis_to_hour)?;
        let ranges = [("retry", self.retry), ("reconnect", self.reconnect)];
        for (name, (shortest, longest)) in ranges {
            within(name, shortest, millisecond, hour, millis_to_hour)?;
            within(name, longest, shortest, hour, "no shorter than the shortest, up to 1 hour")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(labels: &[&str]) -> Settings {
        Settings::new(labels.iter().map(|&label| NodeSettings::new(label)).collect())
    }

    #[test]
    fn settings_check_the_list_of_nodes() {
        assert_eq!(of(&[]).validate(), Err(ConfigError::NoNodes));
        assert_eq!(of(&["a"]).validate(), Ok(()));
        let twice = ConfigError::DuplicateNode { label: "a".into() };
        assert_eq!(of(&["a", "b", "a"]).validate(), Err(twice));
        let labels: Vec<String> = (0..33).map(|n| n.to_string()).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        assert_eq!(of(&labels[..32]).validate(), Ok(()));
        assert_eq!(of(&labels).validate(), Err(ConfigError::TooManyNodes { given: 33 }));
    }

    #[test]
    fn a_name_that_no_node_takes_is_refused() {
        let mut settings = of(&["a"]);
        for (name, good) in [("", true), ("billing-7", true), ("a b", false), ("a\n", false)] {
            settings.client_name = name.into();
            assert_eq!(settings.validate().is_ok(), good, "{name:?}");
        }
    }

    #[test]
    fn owner_that_a_token_cannot_name_is_refused() {
        let mut settings = of(&["a"]);
        let (most, longer) = ("x".repeat(100), "x".repeat(101));
        for (owner, good) in
            [("web-1:4711/a", true), (&most, true), (&longer, false), ("a b", false)]
        {
            settings.owner = Some(owner.into());
            assert_eq!(settings.validate().is_ok(), good, "{owner:?}");
        }
        let error = settings.validate().unwrap_err().to_string();
        assert_eq!(error, "owner is \"a b\": it must be printable ASCII without spaces");
    }

    #[test]
    fn times_that_cannot_work_are_named() {
        let mut settings = of(&["a"]);
        settings.node_timeout = Duration::ZERO;
        let error = settings.validate().unwrap_err().to_string();
        assert_eq!(error, "node_timeout: 0ns cannot work; it must be from 1 ms to 1 hour");
        let mut settings = of(&["a"]);
        settings.retry = (Duration::from_millis(9), Duration::from_millis(8));
        assert!(
            settings.validate().unwrap_err().to_string().starts_with("retry: 8ms cannot work; ")
        );
        let mut settings = of(&["a"]);
        settings.max_ttl = Duration::MAX;
        assert!(settings.validate().is_err());
    }

    #[test]
    fn a_password_is_not_shown() {
        let mut node = NodeSettings::new("a");
        node.password = Some(Secret::new("hunter2"));
        assert!(!format!("{node:?}").contains("hunter2"));
    }

    #[test]
    fn prefix_and_name_of_the_marker_may_be_as_long_as_a_key() {
        for (length, good) in [(LONGEST_KEY, true), (LONGEST_KEY + 1, false)] {
            let text: Box<str> = "x".repeat(length).into();
            let mut prefixed = of(&["a"]);
            prefixed.key_prefix = text.clone();
            let mut marked = of(&["a"]);
            marked.node_marker = text;
            for settings in [prefixed, marked] {
                let (given, most) = (length, LONGEST_KEY);
                let refused = Err(ConfigError::KeyTooLong { given, most });
                assert_eq!(settings.validate(), if good { Ok(()) } else { refused });
            }
        }
    }

    #[test]
    fn prefix_that_begins_with_the_names_of_the_librarys_own_keys_is_refused() {
        for (prefix, good) in [("redlatch:", false), ("redlatch:app:", false), ("redlatch", true)] {
            let mut settings = of(&["a"]);
            settings.key_prefix = prefix.into();
            let refused = Err(ConfigError::ReservedKey { sent: prefix.as_bytes().into() });
            assert_eq!(settings.validate(), if good { Ok(()) } else { refused });
        }
    }

    #[test]
    fn credentials_and_limits_are_those_that_were_given() {
        let credentials = Credentials::of("billing", "secret");
        assert_eq!(credentials.user.as_deref(), Some("billing"));
        assert_eq!(credentials.password, Credentials::password("secret").password);
        let limits = Limits::default().records(1).asks(2).outbox(3);
        assert_eq!((limits.records, limits.asks, limits.outbox), (1, 2, 3));
    }

    #[test]
    fn longest_max_ttl_is_a_year_and_the_longest_key_has_64_kib() {
        let year = Duration::from_secs(31_536_000);
        for (max_ttl, good) in [(year, true), (year + Duration::from_millis(1), false)] {
            let mut settings = of(&["a"]);
            settings.max_ttl = max_ttl;
            assert_eq!(settings.validate().is_ok(), good, "{max_ttl:?}");
        }
        assert_eq!(LONGEST_KEY, 65_536);
    }
}
