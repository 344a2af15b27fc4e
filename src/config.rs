//! The addresses of the nodes and the settings of a client.

mod duration;
mod file;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::net::address::{Address, Resolver};
use crate::net::callback::Callback;
use crate::net::sentinels::{Master, MasterLookup};
#[cfg(feature = "tls")]
use crate::net::tls::Tls;
use crate::proto::error::ConfigError;
use crate::proto::settings::{Credentials, Limits, RestartGuard, Settings};

pub use duration::{InvalidDuration, parse_duration};
pub use file::{ConfigFile, TlsFiles};

/// A builder of clients and engines: the addresses of the nodes, and the settings.
///
/// Each method takes the builder and returns it with one setting changed. `Client::connect`,
/// `Engine::new` and their like end it, and check the settings. What is set so far can be read with
/// the methods `get_...`.
///
/// ```
/// use std::time::Duration;
/// use redlatch::Config;
///
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?
///     .node_timeout(Duration::from_millis(20));
/// assert_eq!(config.get_settings().node_timeout, Duration::from_millis(20));
/// # Ok::<(), redlatch::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) settings: Settings,
    pub(crate) addresses: Vec<Address>,
    pub(crate) credentials: Option<AskForCredentials>,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) resolver: Option<Resolver>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// The user and password for the node with this label; `None`: those of its URL.
pub(crate) type AskForCredentials = Callback<dyn Fn(&str) -> Option<Credentials> + Send + Sync>;

impl Config {
    /// The nodes at these URLs: `redis://[user[:password]@]host[:port][/db]`, `rediss://...` for
    /// the same over TLS (feature `tls`), or `redis+unix://[user[:password]@]/path[?db=N]`. User,
    /// password and path are percent-encoded. `host:port` is `redis://host:port`.
    ///
    /// `redis+sentinel://[user[:password]@]host[:port],.../name[/db]` is the master that these
    /// Sentinels have under that name, with user and password of the master. Before each
    /// connection, and again and again while one is open, the client asks the Sentinels for its
    /// address. `rediss+sentinel://...`: the connections to Sentinels and master use TLS.
    ///
    /// Each has to be a master of its own, on a machine of its own: neither replicas of each other
    /// nor nodes of a cluster.
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
            sentinel_credentials: Credentials::default(),
            resolver: None,
            #[cfg(feature = "tls")]
            tls: None,
        };
        config.settings.validate()?;
        Ok(config)
    }

    /// The configuration in the variables of the environment: see [`ConfigFile::from_env`], which
    /// lists them. The command-line tool reads the same ones.
    ///
    /// # Errors
    /// No nodes, a variable that cannot be read, or a file that cannot be used.
    pub fn from_env() -> Result<Config, ConfigError> {
        ConfigFile::from_env()?.try_into()
    }

    /// How long a node may take to answer before the others decide without it. 250 ms unless set. A
    /// minority that is frozen costs nothing, whatever this is. With a majority frozen it is the
    /// time to the refusal.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Config {
        self.settings.node_timeout = timeout;
        self
    }

    /// How long a key lives at first when it is handed over to a waiter in line of which the node
    /// has not heard for a quarter of this time, if the ttl of the lock is longer: four node
    /// timeouts unless set. A waiter that stopped before it was next in line costs the others this
    /// time; one that stops later costs them the ttl of its lock.
    #[must_use]
    pub fn hand_over_ttl(mut self, ttl: Duration) -> Config {
        self.settings.hand_over_ttl = Some(ttl);
        self
    }

    /// How long a connection may take until its node is ready, and how long
    /// [`Client::connect`](crate::Client::connect) waits for the nodes at most. 1 s unless set.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Config {
        self.settings.connect_timeout = timeout;
        self
    }

    /// The longest ttl that a lock may have. 60 s unless set.
    #[must_use]
    pub fn max_ttl(mut self, ttl: Duration) -> Config {
        self.settings.max_ttl = ttl;
        self
    }

    /// The bounds of the pause before the next attempt of a request that stands in no line: too few
    /// nodes can be asked, or they refuse lines to this user. 5 and 50 ms unless set. Within them
    /// a pause is twice as long after an attempt that may have met another one.
    #[must_use]
    pub fn retry(mut self, shortest: Duration, longest: Duration) -> Config {
        self.settings.retry = (shortest, longest);
        self
    }

    /// The shortest and the longest pause of the back-off, before a node is connected to again. 20
    /// and 500 ms unless set. A connection that was ready for at least `longest` is replaced
    /// without a pause.
    #[must_use]
    pub fn reconnect(mut self, shortest: Duration, longest: Duration) -> Config {
        self.settings.reconnect = (shortest, longest);
        self
    }

    /// How long a node may be silent before its connection is replaced. 500 ms unless set.
    #[must_use]
    pub fn reset_after(mut self, silence: Duration) -> Config {
        self.settings.reset_after = silence;
        self
    }

    /// How often each node is sent a probe: `TIME`, `GET` of its node marker, `INFO memory`. This
    /// finds a dead connection while no request is in flight, a clock that jumped, keys that were
    /// lost without a notice, and a node that may evict. 5 s unless set.
    #[must_use]
    pub fn probe_interval(mut self, interval: Duration) -> Config {
        self.settings.probe_interval = interval;
        self
    }

    /// Whether a node that may have forgotten a live lock is kept from granting. On unless set: on
    /// a cluster that was just started, no lock is granted for `max_ttl`.
    #[must_use]
    pub fn restart_guard(mut self, guard: RestartGuard) -> Config {
        self.settings.restart_guard = guard;
        self
    }

    /// The key of the node marker on every node, `redlatch:node` unless changed here. The marker is
    /// a small key without a ttl. The restart guard uses it to see that a node lost its keys while
    /// this client was not connected. All clients of the nodes should use the same one. With an
    /// empty name no marker is written, and such a loss is not seen.
    #[must_use]
    pub fn node_marker(mut self, key: impl Into<Box<str>>) -> Config {
        self.settings.node_marker = key.into();
        self
    }

    /// Whether a node counts only if it is in the list of masters that the nodes themselves keep:
    /// so two clients with different lists notice it. Each node has the list under
    /// `redlatch:members`. The first client that reaches all nodes writes it. A later one may have
    /// more nodes, and counts only those of the list: so a client that is given a new node first
    /// follows when `redlatch members change` adds that node, while locks are held. Off unless set.
    /// It needs the restart guard, and a user who may read and write that key: a node that refuses
    /// it counts only while no list is known.
    ///
    /// This is experimental: docs/safety.md has what is not noticed. While no list is agreed,
    /// because a node cannot be reached, a new client waits up to the connect timeout before its
    /// first lock. After 15 s in which the client did nothing, its next request first reads the
    /// list again, which takes one round trip more.
    #[must_use]
    pub fn check_members(mut self, check: bool) -> Config {
        self.settings.check_members = check;
        self
    }

    /// Counts a grant or an extend of a node only if this many of its replicas have it, too: for
    /// nodes with a failover, such as one master with replicas. All replicas have to be counted,
    /// and each has to follow the master itself, not another replica. Before another server becomes
    /// a replica, every client needs the greater count. 0 unless set.
    ///
    /// A master that is cut off goes on answering, and its holder would extend the lock there,
    /// while another client gets it from the promoted replica. With this, the master cannot
    /// confirm an extend any more once a replica was promoted, and the promoted one grants only
    /// after its quarantine. While a replica is missing the node grants nothing: after a failover
    /// not before the old master is back. Each grant takes one more round trip, from the master to
    /// its replicas. docs/safety.md has the argument.
    ///
    /// The node confirms one grant of a client after another, so many at once are slower. It needs
    /// the restart guard [`On`](RestartGuard::On), the node marker, and a node timeout of 200 ms at
    /// least.
    #[must_use]
    pub fn replicas(mut self, count: u32) -> Config {
        self.settings.replicas = count;
        self
    }

    /// The name of this client's connections in the nodes' `CLIENT LIST`: `redlatch` unless set.
    /// Empty: no name. A node that refuses the name is used all the same.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<Box<str>>) -> Config {
        self.settings.client_name = name.into();
        self
    }

    /// Puts `prefix` before every key that is sent: for a server that others use, too, or a user
    /// who may only touch such keys. The key of the node marker has no prefix.
    ///
    /// Guards, errors, reports and inspections have the key as the caller named it, without the
    /// prefix. All clients that share a lock have to use the same prefix. Empty unless set. A
    /// prefix that begins with `redlatch:` is refused: such names are reserved for the library's
    /// own keys.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<Box<str>>) -> Config {
        self.settings.key_prefix = prefix.into();
        self
    }

    /// Names this client in each of its tokens, for people: `host:pid/job`, say. A token is then
    /// `<40 hex digits>:<owner>`, `redlatch status` shows it, and
    /// [`Value::owner`](crate::Value::owner) reads it. It changes nothing in who holds a lock:
    /// tokens are compared whole. Empty, as unless set: plain tokens.
    ///
    /// Printable ASCII without spaces, 100 bytes at most; anything else is refused when the client
    /// is made, before anything is sent.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Config {
        self.settings.owner = Some(owner.into()).filter(|owner| !owner.is_empty());
        self
    }

    /// Calls `ask` for user and password each time a connection opens, with the label of the node
    /// (`host:port`, `unix:/path`): for passwords that change. If it returns `None`, those of the
    /// URL are used. Open connections stay as they are.
    ///
    /// `ask` runs on the loop, so it must not block: let it return what another thread fetched.
    #[must_use]
    pub fn credentials(
        mut self,
        ask: impl Fn(&str) -> Option<Credentials> + Send + Sync + 'static,
    ) -> Config {
        self.credentials = Some(Callback(Arc::new(ask)));
        self
    }

    /// The user and password of this client at the Sentinels of `redis+sentinel://` URLs. Those in
    /// the URL are for the master. None unless set.
    #[must_use]
    pub fn sentinel_credentials(mut self, credentials: Credentials) -> Config {
        self.sentinel_credentials = credentials;
        self
    }

    /// Looks names up with `look_up`, which gets the name and the port, instead of asking the
    /// system: for service discovery, and for tests. All addresses that it returns for a name have
    /// to lead to one server: see [`Config::new`]. It may block. It is called when the client or
    /// engine is made. After failures [`Client`](crate::Client) calls it again, on threads of
    /// their own.
    #[must_use]
    pub fn resolver(
        mut self,
        look_up: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Config {
        self.resolver = Some(Callback(Arc::new(look_up)));
        self
    }

    /// Which CAs to trust at `rediss://` URLs, and the client's own certificate: a [`Tls`], or an
    /// `Arc<rustls::ClientConfig>`. Without it, such URLs are refused when the client is made.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: impl Into<Tls>) -> Config {
        self.tls = Some(tls.into());
        self
    }

    /// The TLS settings for `rediss://` URLs, if any: for other connections to the nodes.
    #[cfg(feature = "tls")]
    pub fn get_tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The limits of queues and counts.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Config {
        self.settings.limits = limits;
        self
    }

    /// Accepts nodes that may evict keys. A lock whose key is evicted is lost.
    #[must_use]
    pub fn allow_eviction(mut self, allow: bool) -> Config {
        self.settings.allow_eviction = allow;
        self
    }

    /// The addresses of the nodes, in the order of the list.
    pub fn get_addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Where the server of a node is at present. For a URL with Sentinels this asks them, which
    /// blocks for up to half of the connect timeout, and for as long as a name server takes. Any
    /// other address is returned as it is.
    ///
    /// # Errors
    /// There is no such node, or no Sentinel names its master: then the error says why each does
    /// not.
    pub fn find_server(&self, node: usize) -> io::Result<Address> {
        let address = self.addresses.get(node);
        let address = address.ok_or_else(|| io::Error::other("there is no such node"))?;
        let Some(lookup) = MasterLookup::of(address, self) else { return Ok(address.clone()) };
        let Master { host, port, .. } = lookup.run(0)?;
        Ok(Address::Tcp { host, port, tls: address.is_encrypted() })
    }

    /// The settings as they are so far.
    pub fn get_settings(&self) -> &Settings {
        &self.settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_list_of_nodes_is_refused() {
        assert_eq!(Config::new([""; 0]).unwrap_err(), ConfigError::NoNodes);
        let twice = Config::new(["redis://h", "redis://h:6379/1"]);
        let error = ConfigError::DuplicateNode { label: "h:6379".into() };
        assert_eq!(twice.unwrap_err(), error);
        assert!(Config::new(["redis://h", "nonsense"]).is_err());
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = Config::new(["redis://u:hunter2@h"]).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
