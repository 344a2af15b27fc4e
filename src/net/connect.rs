//! Opens the socket of a node: chooses the address, sets the socket options, and begins TLS.
//!
//! proto decides when to connect, with its back-off.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use mio::net::{TcpStream, UnixStream};
use socket2::{SockRef, TcpKeepalive};

use super::address::{Address, Lookup};
use super::sentinels::{Master, MasterLookup};
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::Encryption;
use crate::config::Config;
use crate::proto::error::ConfigError;

/// How long the kernel waits for sent bytes to be acknowledged before it closes the connection.
/// This ends connections to machines that are gone; proto notices a silent node before that.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// The kernel probes a connection that was idle for this long. So a dead peer is found before a
/// request needs it, and firewalls do not drop the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// A node's name is looked up again after this many failures in a row, and then whenever their
/// number is a multiple of [`STALE_EVERY`].
const STALE_AFTER: u32 = 2;
const STALE_EVERY: u32 = 8;

/// Opens sockets to one node.
#[derive(Debug)]
pub struct Connector {
    place: Place,
    /// The lookup of the node's name, if it has one.
    lookup: Option<Lookup>,
    /// The look-up of the node's master, if its URL has Sentinels.
    sentinels: Option<MasterLookup>,
    /// The address of the last attempt.
    last_opened: Option<SocketAddr>,
    #[cfg(feature = "tls")]
    encryption: Option<Encryption>,
}

#[derive(Debug)]
enum Place {
    Tcp {
        addresses: Vec<SocketAddr>,
        next: usize,
        /// Why there are no addresses.
        problem: String,
    },
    Unix(PathBuf),
}

impl Connector {
    /// Does not look up the name: a node with a name has no address until
    /// [`take_found`](Connector::take_found), so [`open`](Connector::open) fails until then.
    ///
    /// # Errors
    /// The URL asks for encryption, but the configuration has no TLS, or the host name is invalid.
    pub fn new(address: &Address, config: &Config) -> Result<Connector, ConfigError> {
        let lookup = address.lookup(config.resolver.as_ref());
        let place = match (address, &lookup) {
            (Address::Unix(path), _) => Place::Unix(path.clone()),
            (Address::Tcp { .. }, Some(_)) => {
                let problem = "its name is still being looked up".to_owned();
                Place::Tcp { addresses: Vec::new(), next: 0, problem }
            }
            (Address::Sentinel { .. }, _) => {
                let problem = "its master is not known yet".to_owned();
                Place::Tcp { addresses: Vec::new(), next: 0, problem }
            }
            (Address::Tcp { host, port, .. }, None) => {
                let ip = host.parse().expect("what is not looked up is an IP address");
                let addresses = vec![SocketAddr::new(ip, *port)];
                Place::Tcp { addresses, next: 0, problem: String::new() }
            }
        };
        Ok(Connector {
            place,
            lookup,
            last_opened: None,
            sentinels: MasterLookup::of(address, config),
            #[cfg(feature = "tls")]
            encryption: match address {
                Address::Tcp { host, tls: true, .. } => {
                    Some(Encryption::to(host, config.tls.as_ref())?)
                }
                // This only checks that the configuration has TLS: `set_master` replaces it by the
                // encryption to the master.
                Address::Sentinel { sentinels, tls: true, .. } => {
                    Some(Encryption::to(&sentinels[0].0, config.tls.as_ref())?)
                }
                _ => None,
            },
        })
    }

    /// Begins to connect to the node's next address.
    pub fn open(&mut self) -> io::Result<Stream> {
        let (addresses, next) = match &mut self.place {
            Place::Unix(path) => return UnixStream::connect(path).map(Stream::Unix),
            Place::Tcp { addresses, problem, .. } if addresses.is_empty() => {
                return Err(io::Error::new(io::ErrorKind::NotFound, problem.clone()));
            }
            Place::Tcp { addresses, next, .. } => (addresses, next),
        };
        let address = addresses[*next % addresses.len()];
        *next = (*next + 1) % addresses.len();
        self.last_opened = Some(address);
        let stream = TcpStream::connect(address)?;
        // A platform may refuse these options. That costs only latency, or a later discovery of a
        // dead peer, so errors are ignored.
        let socket = SockRef::from(&stream);
        let _ = socket.set_tcp_nodelay(true);
        let keepalive =
            TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        let _ = socket.set_tcp_keepalive(&keepalive);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        #[cfg(feature = "tls")]
        if let Some(encryption) = &self.encryption {
            return encryption.begin(stream).map(|stream| Stream::Tls(Box::new(stream)));
        }
        Ok(Stream::Tcp(stream))
    }

    /// The lookup of the node's name, which may lead to another address now; `None` if the URL has
    /// an IP address or a path.
    pub fn lookup(&self) -> Option<&Lookup> {
        self.lookup.as_ref()
    }

    /// The look-up of the node's master; `None` if its URL has no Sentinels.
    pub fn master_lookup(&self) -> Option<&MasterLookup> {
        self.sentinels.as_ref()
    }

    /// The address to which the last connection was begun; `None` for a socket in the file system.
    pub fn last_opened(&self) -> Option<SocketAddr> {
        self.last_opened
    }

    /// Connects to this master from now on.
    ///
    /// # Errors
    /// No certificate can be for the name of its host.
    pub fn set_master(&mut self, master: Master) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(sentinels) = &self.sentinels {
            self.encryption = sentinels.encryption_to(&master.host)?;
        }
        self.take_found(Ok(master.addresses));
        Ok(())
    }

    /// Whether to look up the name again after this number of failures in a row.
    pub fn is_stale(&self, failures: u32) -> bool {
        let due = failures == STALE_AFTER || (failures > 0 && failures % STALE_EVERY == 0);
        self.lookup.is_some() && due
    }

    /// Takes the result of a lookup: the addresses, or why there are none.
    pub fn take_found(&mut self, found: io::Result<Vec<SocketAddr>>) {
        let reason = match &found {
            Ok(_) => "its name has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        if let Place::Tcp { problem, .. } = &mut self.place {
            *problem = reason;
        }
        self.set_addresses(found.unwrap_or_default());
    }

    /// Takes the new addresses of the name. If there are none, keeps the old ones.
    pub fn set_addresses(&mut self, found: Vec<SocketAddr>) {
        if let Place::Tcp { addresses, next, .. } = &mut self.place {
            if !found.is_empty() && *addresses != found {
                (*addresses, *next) = (found, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_again_after_failures() {
        let config = Config::new(["redis://localhost:1", "redis://127.0.0.1:2"]).unwrap();
        let connector = |node: usize| Connector::new(&config.addresses[node], &config).unwrap();
        let stale: Vec<u32> = (0..20).filter(|&n| connector(0).is_stale(n)).collect();
        assert_eq!(stale, [2, 8, 16]);
        assert!(!connector(1).is_stale(2), "an address leads nowhere else");
    }

    #[test]
    fn lookup_replaces_addresses_unless_it_finds_none() {
        let config = Config::new(["redis://localhost:1"]).unwrap();
        let mut connector = Connector::new(&config.addresses[0], &config).unwrap();
        let new = SocketAddr::from(([127, 0, 0, 1], 7));
        for found in [vec![new], vec![]] {
            connector.set_addresses(found);
            assert!(
                matches!(&connector.place, Place::Tcp { addresses, .. } if *addresses == [new])
            );
        }
    }
}
