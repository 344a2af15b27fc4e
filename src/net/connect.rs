//! A node's way to an open socket: which address is next, the options, and the hard close.
//!
//! When to connect is not decided here: proto says so, with its pauses.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use mio::net::TcpStream;
use socket2::{SockRef, TcpKeepalive};

use super::address::Address;

/// How long the kernel tries to get bytes acknowledged before it gives a connection up. Proto finds
/// a silent node sooner; this ends connections to machines that are gone.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// An idle connection is probed after this long, so that a peer that vanished is found before it
/// is needed, and so that firewalls do not forget us.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Opens sockets to one node.
#[derive(Debug)]
pub struct Connector {
    addresses: Vec<SocketAddr>,
    next: usize,
    /// Why there are no addresses.
    problem: String,
}

impl Connector {
    /// Looks the address up, which may block. A name that is not found is no error here: the node
    /// is down.
    pub fn new(address: &Address) -> Connector {
        match address.resolve() {
            Ok(addresses) if addresses.is_empty() => {
                let problem = "its name has no address".into();
                Connector { addresses, next: 0, problem }
            }
            Ok(addresses) => Connector { addresses, next: 0, problem: String::new() },
            Err(error) => Connector { addresses: Vec::new(), next: 0, problem: error.to_string() },
        }
    }

    /// Begins to connect to the next of its addresses.
    pub fn open(&mut self) -> io::Result<TcpStream> {
        let count = self.addresses.len();
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, self.problem.clone()));
        }
        let address = self.addresses[self.next % count];
        self.next = (self.next + 1) % count;
        let stream = TcpStream::connect(address)?;
        // An option that a platform refuses costs latency or a later discovery, not safety.
        let socket = SockRef::from(&stream);
        let _ = socket.set_tcp_nodelay(true);
        let keepalive =
            TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        let _ = socket.set_tcp_keepalive(&keepalive);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        Ok(stream)
    }
}

/// Whether a connection that was begun is open.
///
/// # Errors
/// What the system says of it when it failed.
pub fn is_open(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Closes so that nothing the kernel still holds arrives later than what the next connection
/// says: a reset. Only where what is owed survives to be paid there.
pub fn reset(stream: TcpStream) {
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

/// Closes so that what was written still arrives: the end of a client.
pub fn finish(stream: TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
}
