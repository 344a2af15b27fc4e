//! The look-up of a master by its name at Sentinels. It blocks, so it runs on a thread of its own.
//!
//! The hazard is a Sentinel that was cut off from the others and names a former master. So the
//! Sentinels are asked until a majority of those in the URL names one address. If none has one, the
//! address that most of them name is used, and the handshake there finds out whether it is a
//! master.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use bytes::BytesMut;

use super::address::{Address, Resolver, host_text, resolve};
use super::clock;
use super::socket::error_text;
#[cfg(feature = "tls")]
use super::tls::{Encryption, Tls, in_words};
use crate::config::Config;
use crate::proto::quorum::majority;
use crate::proto::settings::Credentials;
use crate::proto::time::Instant;
use crate::proto::wire::command;
use crate::proto::wire::resp::{Limits, Reply, Step, decode};

/// A look-up takes at most this part of the connect timeout, because the client also waits for the
/// master's handshake.
const PART_OF_CONNECT_TIMEOUT: u32 = 2;

/// The limits on an answer: a host and a port, or an error.
const LIMITS: Limits = Limits { line: 4096, bulk: 4096, elements: 2, depth: 1 };

/// How many bytes are read at once: more than the answers take.
const CHUNK: usize = 4096;

/// How many characters of a Sentinel's error are shown.
const LONGEST_ERROR: usize = 100;

/// Asks Sentinels for the address of their master.
#[derive(Debug, Clone)]
pub(crate) struct MasterLookup {
    sentinels: Box<[(Box<str>, u16)]>,
    master: Box<str>,
    /// Those of the Sentinels, not of the master.
    credentials: Credentials,
    /// The caller's resolver, for the names of the Sentinels and of the master.
    resolver: Option<Resolver>,
    limit: Duration,
    /// How the connections are encrypted, if they are.
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// Where Sentinels found the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Master {
    /// A name or an IP address.
    pub(crate) host: Box<str>,
    pub(crate) port: u16,
    /// The addresses of `host`.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether a majority of the Sentinels in the URL names it.
    pub(crate) by_majority: bool,
}

impl Master {
    /// `host:port`
    pub(crate) fn text(&self) -> String {
        host_text(&self.host, self.port)
    }
}

impl MasterLookup {
    /// `None` if the URL has no Sentinels.
    pub(crate) fn of(address: &Address, config: &Config) -> Option<MasterLookup> {
        let Address::Sentinel { sentinels, master, .. } = address else { return None };
        Some(MasterLookup {
            sentinels: sentinels.clone(),
            master: master.clone(),
            credentials: config.sentinel_credentials.clone(),
            resolver: config.resolver.clone(),
            limit: config.settings.connect_timeout / PART_OF_CONNECT_TIMEOUT,
            #[cfg(feature = "tls")]
            tls: config.tls.clone().filter(|_| address.is_encrypted()),
        })
    }

    /// Asks the Sentinels one after the other, the first of them being number `first`. A name
    /// server may block for longer than the limit.
    ///
    /// # Errors
    /// No Sentinel names the master, and why each of them does not; or the name of the master's
    /// host has no address.
    pub(crate) fn run(&self, first: usize) -> io::Result<Master> {
        let end = clock::now().saturating_add(self.limit);
        let count = self.sentinels.len();
        let mut named: Vec<((Box<str>, u16), usize)> = Vec::new();
        let mut troubles = Vec::new();
        for asked in 0..count {
            let (host, port) = &self.sentinels[(first % count + asked) % count];
            let share = end.saturating_since(clock::now()) / (count - asked) as u32;
            let place = match self.ask(host, *port, share) {
                Ok(place) => place,
                Err(error) => {
                    troubles.push(format!("{}: {}", host_text(host, *port), error_text(&error)));
                    continue;
                }
            };
            match named.iter_mut().find(|(other, _)| *other == place) {
                Some((_, votes)) => *votes += 1,
                None => named.push((place, 1)),
            }
            if named.iter().any(|&(_, votes)| votes >= majority(count)) {
                break;
            }
        }
        let most = named.iter().map(|&(_, votes)| votes).max();
        let Some(((host, port), votes)) = named.into_iter().find(|it| Some(it.1) == most) else {
            let (name, troubles) = (&self.master, troubles.join("; "));
            let problem = format!("no Sentinel names the master {name}: {troubles}");
            return Err(io::Error::new(io::ErrorKind::NotFound, problem));
        };
        let addresses = self.addresses(&host, port).map_err(|error| {
            let place = host_text(&host, port);
            io::Error::new(error.kind(), format!("{place}, which the Sentinels name: {error}"))
        })?;
        Ok(Master { host, port, addresses, by_majority: votes >= majority(count) })
    }

    fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match host.parse::<IpAddr>() {
            Ok(ip) => Ok(vec![SocketAddr::new(ip, port)]),
            Err(_) => resolve(self.resolver.as_ref(), host, port),
        }
    }

    /// Asks one Sentinel, at each address of its name until one answers.
    fn ask(&self, host: &str, port: u16, limit: Duration) -> io::Result<(Box<str>, u16)> {
        let end = clock::now().saturating_add(limit);
        let mut problem = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        for address in self.addresses(host, port)? {
            match self.ask_at(address, host, end) {
                Ok(place) => return Ok(place),
                Err(error) if is_silence(&error) => {
                    let silent = format!("no answer within {} ms", limit.as_millis());
                    problem = io::Error::new(io::ErrorKind::TimedOut, silent);
                }
                Err(error) => problem = in_words(error),
            }
        }
        Err(problem)
    }

    fn ask_at(&self, address: SocketAddr, host: &str, end: Instant) -> io::Result<(Box<str>, u16)> {
        let tcp = TcpStream::connect_timeout(&address, left(end)?)?;
        // The same socket, to set how long it may block.
        let socket = tcp.try_clone()?;
        let mut stream = self.stream(tcp, host)?;
        socket.set_read_timeout(Some(left(end)?))?;
        socket.set_write_timeout(Some(left(end)?))?;
        stream.write_all(&self.question())?;
        stream.flush()?;
        let (mut input, mut chunk) = (BytesMut::new(), [0; CHUNK]);
        loop {
            if let Some(place) = self.read_answer(&input)? {
                return Ok(place);
            }
            socket.set_read_timeout(Some(left(end)?))?;
            match stream.read(&mut chunk) {
                Ok(0) => {
                    let closed = "it closed the connection";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed));
                }
                Ok(count) => input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    #[cfg(feature = "tls")]
    fn stream(&self, tcp: TcpStream, host: &str) -> io::Result<Box<dyn ReadWrite>> {
        Ok(match self.encryption_to(host)? {
            Some(encryption) => Box::new(encryption.begin_blocking(tcp)?),
            None => Box::new(tcp),
        })
    }

    /// The encryption of a connection to a Sentinel or to the master, if the URL asks for it.
    #[cfg(feature = "tls")]
    pub(super) fn encryption_to(&self, host: &str) -> io::Result<Option<Encryption>> {
        let to = |tls| Encryption::to(host, Some(tls)).map_err(io::Error::other);
        self.tls.as_ref().map(to).transpose()
    }

    #[cfg(not(feature = "tls"))]
    fn stream(&self, tcp: TcpStream, _: &str) -> io::Result<Box<dyn ReadWrite>> {
        Ok(Box::new(tcp))
    }

    fn question(&self) -> BytesMut {
        let mut output = BytesMut::new();
        let user = self.credentials.user.as_deref().map(str::as_bytes);
        let password = self.credentials.password.as_ref().map(|it| it.reveal().as_bytes());
        match (user, password) {
            (Some(user), Some(password)) => {
                command::encode(&mut output, &[b"AUTH", user, password]);
            }
            (None, Some(password)) => command::encode(&mut output, &[b"AUTH", password]),
            (_, None) => {}
        }
        let name = self.master.as_bytes();
        command::encode(&mut output, &[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name]);
        output
    }

    /// Reads the answers to [`question`](MasterLookup::question); `None` if they are not complete.
    fn read_answer(&self, mut input: &[u8]) -> io::Result<Option<(Box<str>, u16)>> {
        if self.credentials.password.is_some() {
            let Step::Complete { reply, consumed } = decoded(input)? else { return Ok(None) };
            if let Reply::Error(line) = reply {
                // Only the code, because the text may quote the password.
                let code = shown(line.split(|&byte| byte == b' ').next().unwrap_or_default());
                return Err(other(format!("it refuses the credentials for Sentinels ({code})")));
            }
            input = &input[consumed..];
        }
        let Step::Complete { reply, .. } = decoded(input)? else { return Ok(None) };
        match reply {
            Reply::Null => Err(other("it knows no master of this name")),
            Reply::Error(line) if line.starts_with(b"NOAUTH") => {
                Err(other("it requires a password; give the credentials for Sentinels"))
            }
            Reply::Error(line) if line.starts_with(b"ERR unknown command") => {
                Err(other("it is no Sentinel"))
            }
            Reply::Error(line) => Err(other(shown(line))),
            reply => place(&reply).map(Some).ok_or_else(no_address),
        }
    }
}

/// A connection to a Sentinel, encrypted or not.
trait ReadWrite: Read + Write {}

impl<S: Read + Write> ReadWrite for S {}

/// The time that is left.
fn left(end: Instant) -> io::Result<Duration> {
    match end.saturating_since(clock::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

#[cfg(not(feature = "tls"))]
fn in_words(error: io::Error) -> io::Error {
    error
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn decoded(input: &[u8]) -> io::Result<Step<'_>> {
    decode(input, &LIMITS).map_err(|_| no_address())
}

/// The host and the port in an answer.
fn place(reply: &Reply<'_>) -> Option<(Box<str>, u16)> {
    let Reply::Array(items) = reply else { return None };
    let items: Vec<Reply<'_>> = items.iter().collect();
    let [Reply::Bulk(host), Reply::Bulk(port)] = items.as_slice() else { return None };
    let host = std::str::from_utf8(host).ok()?;
    let is_bad = |c: char| c.is_whitespace() || c.is_control();
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    (!host.is_empty() && !host.contains(is_bad) && port > 0).then(|| (host.into(), port))
}

/// An error line as one line for people.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.chars().filter(|c| !c.is_control()).take(LONGEST_ERROR).collect()
}

fn no_address() -> io::Error {
    other("its answer is no host and port")
}

fn other(problem: impl Into<String>) -> io::Error {
    io::Error::other(problem.into())
}
