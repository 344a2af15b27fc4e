//! An open connection, or one that is being opened: over TCP, over a socket in the file system, or
//! encrypted. What is encrypted costs the others nothing but a look at which one it is.
//!
//! The hazard is the close: a reset where what is owed is paid on the next connection, an orderly
//! end where what was written has to arrive.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::SockRef;

use super::socket::{self, Readiness};
#[cfg(feature = "tls")]
use super::tls::TlsStream;

/// A connection to a node.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Goes on with the opening as far as it goes without waiting; whether it is done.
    ///
    /// # Errors
    /// What the system, or the encryption, says of it when it failed.
    pub fn go_on(&mut self) -> io::Result<bool> {
        match self {
            Stream::Tcp(stream) => is_open(stream.take_error(), stream.peer_addr()),
            Stream::Unix(stream) => is_open(stream.take_error(), stream.peer_addr()),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                let tcp = stream.tcp();
                Ok(is_open(tcp.take_error(), tcp.peer_addr())? && stream.shake_hands()?)
            }
        }
    }

    /// Reads once into `buffer`, as [`socket::read`] does.
    pub fn read(&mut self, buffer: &mut [u8], read_closed: bool) -> (usize, Readiness) {
        match self {
            Stream::Tcp(stream) => socket::read(stream, buffer, read_closed),
            Stream::Unix(stream) => socket::read(stream, buffer, read_closed),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => socket::read(stream.as_mut(), buffer, read_closed),
        }
    }

    /// Writes `bytes`; how many were taken, and whether the kernel has all that ever were. If not,
    /// the poller tells when it takes more.
    ///
    /// # Errors
    /// When the connection failed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        let count = match self {
            Stream::Tcp(stream) => socket::write(stream, bytes)?,
            Stream::Unix(stream) => socket::write(stream, bytes)?,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => return stream.send(bytes),
        };
        Ok((count, count == bytes.len()))
    }

    /// Whether something was taken that the kernel has not.
    pub fn has_unsent(&self) -> bool {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.has_unsent(),
        }
    }

    /// Whether something may have been read while it was being opened.
    pub fn may_hold_input(&self) -> bool {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(_) => true,
        }
    }

    /// Closes so that nothing the kernel still holds arrives later than what the next connection
    /// says: a reset. Only where what is owed survives to be paid there.
    pub fn reset(self) {
        let socket = match &self {
            Stream::Tcp(stream) => SockRef::from(stream),
            // The other end is on this machine: nothing arrives later there.
            Stream::Unix(_) => return,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => SockRef::from(stream.tcp()),
        };
        let _ = socket.set_linger(Some(Duration::ZERO));
    }

    /// Closes so that what was written still arrives: the end of a client.
    pub fn finish(self) {
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.finish(),
        };
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.tcp_mut(),
        }
    }
}

fn is_open<A>(error: io::Result<Option<io::Error>>, peer: io::Result<A>) -> io::Result<bool> {
    if let Some(error) = error? {
        return Err(error);
    }
    match peer {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

impl Source for Stream {
    fn register(&mut self, registry: &Registry, token: Token, how: Interest) -> io::Result<()> {
        self.source().register(registry, token, how)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, how: Interest) -> io::Result<()> {
        self.source().reregister(registry, token, how)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }
}
