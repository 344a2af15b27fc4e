//! What a client is made with: the addresses of the nodes, and the settings. And what a lock is
//! asked for with.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::net::address::{Address, Resolver};
use crate::net::callback::Callback;
use crate::net::clock;
#[cfg(feature = "tls")]
use crate::net::tls::Tls;
use crate::proto::error::ConfigError;
use crate::proto::keeper::AutoExtend;
use crate::proto::settings::{Credentials, Limits, RestartGuard, Settings};
use crate::proto::time::Instant;

/// How long a lock is waited for unless [`LockOptions`] say otherwise, by every kind of client.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

/// Addresses and settings of a client.
///
/// ```
/// use std::time::Duration;
/// use redlatch::Config;
///
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
///     .node_timeout(Duration::from_millis(20));
/// # Ok::<(), redlatch::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub(crate) settings: Settings,
    pub(crate) addresses: Vec<Address>,
    pub(crate) credentials: Option<AskForCredentials>,
    pub(crate) resolver: Option<Resolver>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// Who we are to the node with this label; `None`: whom its URL says.
pub(crate) type AskForCredentials = Callback<dyn Fn(&str) -> Option<Credentials> + Send + Sync>;

impl Config {
    /// The nodes at these URLs: `redis://[user[:password]@]host[:port][/db]`, `rediss://...` for
    /// the same over TLS (feature `tls`), or `redis+unix://[user[:password]@]/path[?db=N]`. User,
    /// password and path are percent-encoded.
    ///
    /// Each has to be a master of its own, on a machine of its own: not replicas of each other,
    /// not the nodes of a cluster.
    ///
    /// A name that has several addresses is one node, and its addresses are tried in turn. All of
    /// them have to lead to one server. If they lead to different servers, two clients may count
    /// the votes of different servers for this node, and both may be granted a lock. A client
    /// cannot see that by itself; `redlatch doctor` asks at each address, and fails.
    ///
    /// # Errors
    /// An empty list, a bad URL, or the same node twice.
    pub fn new<I>(urls: I) -> Result<Config, ConfigError>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let parsed: Result<Vec<_>, _> =
            urls.into_iter().map(|url| Address::parse(url.as_ref())).collect();
        let (addresses, nodes) = parsed?.into_iter().unzip();
        let config = Config {
            settings: Settings::new(nodes),
            addresses,
            credentials: None,
            resolver: None,
            #[cfg(feature = "tls")]
            tls: None,
        };
        config.settings.validate()?;
        Ok(config)
    }

    /// How long a node may take to answer before the others decide without it. 50 ms unless set.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Config {
        self.settings.node_timeout = timeout;
        self
    }

    /// How long a connection may take until its node is ready, and how long
    /// [`Client::connect`](crate::Client::connect) waits for the nodes at most. 1 s unless set.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Config {
        self.settings.connect_timeout = timeout;
        self
    }

    /// The longest ttl that may be asked for. 60 s unless set.
    #[must_use]
    pub fn max_ttl(mut self, ttl: Duration) -> Config {
        self.settings.max_ttl = ttl;
        self
    }

    /// The shortest and the longest pause before the next attempt for a key that is held, where the
    /// nodes do not tell of its release; they grow from the one to the other. 5 and 50 ms unless
    /// set. Where they tell, one is made behind eight of the longest pauses whatever was told.
    #[must_use]
    pub fn retry(mut self, shortest: Duration, longest: Duration) -> Config {
        self.settings.retry = (shortest, longest);
        self
    }

    /// The shortest and the longest pause before a node is connected to again. 20 and 500 ms
    /// unless set. A connection that was good for a while is replaced without a pause.
    #[must_use]
    pub fn reconnect(mut self, shortest: Duration, longest: Duration) -> Config {
        self.settings.reconnect = (shortest, longest);
        self
    }

    /// How long a node may be silent before its connection is given up for a new one. 500 ms
    /// unless set.
    #[must_use]
    pub fn reset_after(mut self, silence: Duration) -> Config {
        self.settings.reset_after = silence;
        self
    }

    /// How often each node is asked for its time: it finds a connection that is dead while nobody
    /// asks anything, and a clock that jumped. 5 s unless set.
    #[must_use]
    pub fn probe_interval(mut self, interval: Duration) -> Config {
        self.settings.probe_interval = interval;
        self
    }

    /// Whether a node that may have forgotten a live lock is kept from granting. On unless set:
    /// on a cluster that was just started, nothing is granted for `max_ttl`.
    #[must_use]
    pub fn restart_guard(mut self, guard: RestartGuard) -> Config {
        self.settings.restart_guard = guard;
        self
    }

    /// The key of the node marker on every node, `redlatch:node` unless changed here: a small key
    /// without a ttl by which the restart guard sees that a node lost its keys while this client
    /// was not connected. All clients of the nodes should use the same one. An empty name: no
    /// marker is written, and such a loss is not seen.
    pub fn node_marker(mut self, key: impl Into<Box<str>>) -> Config {
        self.settings.node_marker = key.into();
        self
    }

    /// What our connections are called in the nodes' `CLIENT LIST`: `redlatch` unless set. Empty:
    /// nothing. A node that takes no name is used all the same.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<Box<str>>) -> Config {
        self.settings.client_name = name.into();
        self
    }

    /// Asks `ask` who we are, with the label of the node (`host:port`, `unix:/path`), each time a
    /// connection opens: for passwords that change. `None` is whom its URL says. A connection that
    /// is open stays what it is.
    ///
    /// It is asked on the loop, so it must not wait: let it hand out what something else fetched.
    #[must_use]
    pub fn credentials(
        mut self,
        ask: impl Fn(&str) -> Option<Credentials> + Send + Sync + 'static,
    ) -> Config {
        self.credentials = Some(Callback(Arc::new(ask)));
        self
    }

    /// Looks names up with `look_up`, which gets the name and the port, instead of asking the
    /// system: for service discovery, and for tests. All addresses that it returns for a name have
    /// to lead to one server: see [`Config::new`]. It may wait. It is called where the client or
    /// engine is made, and by [`Client`](crate::Client) on threads of their own behind failures.
    #[must_use]
    pub fn resolver(
        mut self,
        look_up: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Config {
        self.resolver = Some(Callback(Arc::new(look_up)));
        self
    }

    /// Whom to trust at `rediss://` URLs, and who we are there: a [`Tls`], or an
    /// `Arc<rustls::ClientConfig>`. Without it, such URLs are refused when the client is made.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: impl Into<Tls>) -> Config {
        self.tls = Some(tls.into());
        self
    }

    /// Whom to trust at `rediss://` URLs, where that was said: for other connections to the nodes.
    #[cfg(feature = "tls")]
    pub fn encryption(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Bounds on what waits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Config {
        self.settings.limits = limits;
        self
    }

    /// Uses nodes that may evict keys all the same. A lock that is evicted is lost.
    #[must_use]
    pub fn allow_eviction(mut self, allow: bool) -> Config {
        self.settings.allow_eviction = allow;
        self
    }

    /// Where the nodes are, in the order of the list.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// What a lock is asked for with. A plain [`Duration`] is a ttl, with the defaults for the rest:
/// every client waits 10 s for a key that others hold ([`wait`](LockOptions::wait)), and the lock
/// is not renewed ([`keep`](LockOptions::keep)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    pub(crate) ttl: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) keep: Option<AutoExtend>,
}

impl LockOptions {
    /// The key lives for `ttl` unless it is extended: whole milliseconds, rounded down. What the
    /// holder has is less, by a hundredth and 2 ms.
    pub fn new(ttl: Duration) -> LockOptions {
        LockOptions { ttl, wait: None, keep: None }
    }

    /// One attempt, without a wait: it fails if others hold the key at this moment.
    pub fn once(ttl: Duration) -> LockOptions {
        LockOptions::new(ttl).wait(Duration::ZERO)
    }

    /// Waits for the key for at most this long if others hold it, or if too few nodes can be
    /// asked. 10 s unless set; zero is one attempt.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> LockOptions {
        self.wait = Some(wait);
        self
    }

    /// Waits until this moment, on the clock of [`clock::now`].
    #[must_use]
    pub fn wait_until(self, moment: Instant) -> LockOptions {
        self.wait(moment.saturating_since(clock::now()))
    }

    /// Waits until the lock is had, or cannot be had as things are configured.
    #[must_use]
    pub fn wait_forever(self) -> LockOptions {
        self.wait(Duration::MAX)
    }

    /// Renews the lock by itself from the moment it is held: at a third of the ttl, until it is
    /// released or lost, or as far as `keep` allows. A plain [`Duration`] is the longest time that
    /// it may be held.
    #[must_use]
    pub fn auto_extend(mut self, keep: impl Into<AutoExtend>) -> LockOptions {
        self.keep = Some(keep.into());
        self
    }
}

impl From<Duration> for LockOptions {
    fn from(ttl: Duration) -> LockOptions {
        LockOptions::new(ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_list_of_nodes_is_refused() {
        assert_eq!(Config::new([""; 0]), Err(ConfigError::NoNodes));
        let twice = Config::new(["redis://h", "redis://h:6379/1"]);
        assert_eq!(twice, Err(ConfigError::DuplicateNode { label: "h:6379".into() }));
        assert!(Config::new(["redis://h", "nonsense"]).is_err());
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = Config::new(["redis://u:hunter2@h"]).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
