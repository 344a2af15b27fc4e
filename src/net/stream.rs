//! A connection that is open or being opened: over TCP, over TLS, or over a Unix socket.
//!
//! The hazard is the way in which a connection is closed. If pending releases are sent on the next
//! connection, it has to be a reset, so that no old command arrives after them. If what was written
//! has to arrive, it must not be a reset.

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
    /// Continues to open the connection as far as possible without waiting, and returns whether it
    /// is open.
    ///
    /// # Errors
    /// If opening failed: the error of the system or of the encryption.
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

    /// Whether this is a TLS connection whose TCP connection is open.
    pub fn is_encrypting(&self) -> bool {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.tcp().peer_addr().is_ok(),
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

    /// Writes `bytes`. Returns how many were accepted, and whether the kernel has taken everything.
    /// If it has not, the poller reports when the kernel takes more.
    ///
    /// # Errors
    /// If the connection failed.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        let count = match self {
            Stream::Tcp(stream) => socket::write(stream, bytes)?,
            Stream::Unix(stream) => socket::write(stream, bytes)?,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => return stream.send(bytes),
        };
        Ok((count, count == bytes.len()))
    }

    /// Whether bytes were accepted that the kernel has not taken yet.
    pub fn has_unsent(&self) -> bool {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.has_unsent(),
        }
    }

    /// Whether the stream may hold bytes that were read while the connection was being opened.
    pub fn may_hold_input(&self) -> bool {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(_) => true,
        }
    }

    /// Closes by a reset. So bytes that the kernel still holds cannot arrive after those of the
    /// next connection. Only for a client that goes on and sends its pending releases on that
    /// connection.
    pub fn reset(self) {
        let socket = match &self {
            Stream::Tcp(stream) => SockRef::from(stream),
            // What was written to a Unix socket is already at the other end, so nothing arrives
            // later.
            Stream::Unix(_) => return,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => SockRef::from(stream.tcp()),
        };
        let _ = socket.set_linger(Some(Duration::ZERO));
    }

    /// Closes so that what was written still arrives. For the end of a client.
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
