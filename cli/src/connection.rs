//! A blocking connection to one node, apart from those of the library's client, for questions that
//! the library never asks. Sends plain commands and returns the answers in order, each with a time
//! limit. Knows nothing of locks.
//!
//! The hazard is a node that is silent, or answers byte by byte. So [`Patience`] limits the wait
//! for each answer, and that for all answers together.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use redlatch::proto::resp::{Limits, Reply, Step, decode};
use redlatch::proto::{NodeSettings, command};
use redlatch::{Address, Config, NodeError, clock, clock::Instant};

/// How many characters of an error are kept, because a node may send a text of any length.
const LONGEST_ERROR: usize = 200;

/// The largest answer that is accepted: thousands of keys, each as long as a lock's key can be.
const LIMITS: Limits = Limits { line: 64 * 1024, bulk: 64 << 20, elements: 1 << 16, depth: 8 };

/// One answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Text(String),
    Number(i64),
    Error(String),
    Nothing,
    Many(Vec<Answer>),
}

impl Answer {
    /// Why the node refused the command; `None` if it did not.
    pub fn cause(&self) -> Option<NodeError> {
        match self {
            Answer::Error(line) => Some(NodeError::of_error(line.as_bytes())),
            _ => None,
        }
    }

    /// Whether the node, asked by `EVAL`, said that it runs no scripts, for this user at least.
    pub fn refuses_scripts(&self) -> bool {
        let Answer::Error(line) = self else { return false };
        match NodeError::of_error(line.as_bytes()) {
            NodeError::NoLua | NodeError::UnknownCommand => true,
            NodeError::NoPermission => line.contains("'eval'"),
            _ => false,
        }
    }

    /// Why the node refused the command, with its error line; `None` if it did not.
    pub fn refusal(&self) -> Option<Trouble> {
        match self {
            Answer::Error(line) => {
                let cause = NodeError::of_error(line.as_bytes());
                Some(Trouble { cause, words: line.clone() })
            }
            _ => None,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub cause: NodeError,
    /// The error text of the system or of the node.
    pub words: String,
}

impl Trouble {
    /// The error as text for people.
    pub fn in_words(&self) -> String {
        match &*self.words {
            "" => self.cause.to_string(),
            words => format!("{} ({words})", self.cause),
        }
    }
}

/// What a node answered to a handshake.
#[derive(Debug, Default)]
pub struct Greeting {
    /// The node answered anything at all.
    pub answered: bool,
    /// The answer to HELLO. If it is an error, its text is left out, which could have the password.
    pub hello: Option<Answer>,
    /// The node accepted our credentials.
    pub accepted: bool,
}

/// Some of a node's keys, and the cursor for the next ones.
#[derive(Debug)]
pub struct Portion {
    /// `0` if there are no more keys.
    pub cursor: Vec<u8>,
    pub keys: Vec<Vec<u8>>,
}

/// How long to wait for a node.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// The limit for connecting, and for each answer.
    pub each: Duration,
    /// The moment at which all waits end.
    pub until: Instant,
}

impl Patience {
    /// How long the next connection or answer may take.
    fn limit(self) -> Duration {
        let left = self.until.saturating_since(clock::now());
        // To the system, zero means no limit.
        self.each.min(left).max(Duration::from_millis(1))
    }
}

/// How connections are encrypted.
#[cfg(feature = "tls")]
pub type Tls = redlatch::Tls;
/// Without the feature `tls` there is no value of this type.
#[cfg(not(feature = "tls"))]
#[derive(Debug, Clone, Copy)]
pub enum Tls {}

/// How the client's connections to its nodes are encrypted.
#[cfg(feature = "tls")]
pub fn tls(config: &Config) -> Option<Tls> {
    config.get_tls().cloned()
}

#[cfg(not(feature = "tls"))]
pub fn tls(_: &Config) -> Option<Tls> {
    None
}

/// An open connection.
pub struct Connection {
    stream: Stream,
    input: BytesMut,
    patience: Patience,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

impl Connection {
    /// Connects to the server at which this node is at present, sends our credentials, and selects
    /// the database of the node.
    pub fn to_node(
        config: &Config,
        node: usize,
        tls: Option<&Tls>,
        patience: Patience,
    ) -> Result<Connection, Trouble> {
        let server = server(config, node)?;
        Connection::to_database(&server, &config.get_settings().nodes[node], tls, patience)
    }

    /// Connects. If the name has several addresses, tries each until one connects.
    pub fn open(
        address: &Address,
        tls: Option<&Tls>,
        patience: Patience,
    ) -> Result<Connection, Trouble> {
        let Address::Unix(path) = address else {
            let found =
                addresses(address).map_err(|error| trouble(NodeError::Unreachable, &error))?;
            let mut opened = Err(trouble(NodeError::Unreachable, &"its name has no address"));
            for place in found {
                opened = Connection::open_at(place, address, tls, patience);
                if opened.is_ok() {
                    break;
                }
            }
            return opened;
        };
        let stream = UnixStream::connect(path).map(Stream::Unix);
        Connection::over(stream, patience)
    }

    /// Connects to one of the addresses of a name.
    pub fn open_at(
        place: SocketAddr,
        address: &Address,
        tls: Option<&Tls>,
        patience: Patience,
    ) -> Result<Connection, Trouble> {
        let limit = patience.limit();
        let stream = TcpStream::connect_timeout(&place, limit).and_then(|stream| {
            let _ = stream.set_nodelay(true);
            match address {
                Address::Tcp { host, tls: true, .. } => encrypted(host, stream, tls),
                _ => Ok(Stream::Tcp(stream)),
            }
        });
        Connection::over(stream, patience)
    }

    fn over(stream: io::Result<Stream>, patience: Patience) -> Result<Connection, Trouble> {
        let stream = stream.map_err(|error| trouble(NodeError::Unreachable, &error))?;
        Ok(Connection { stream, input: BytesMut::new(), patience })
    }

    /// Connects, sends our credentials, and selects the database of the node.
    fn to_database(
        address: &Address,
        node: &NodeSettings,
        tls: Option<&Tls>,
        patience: Patience,
    ) -> Result<Connection, Trouble> {
        let mut connection = Connection::open(address, tls, patience)?;
        connection.greet(node, &mut Greeting::default())?;
        if node.db != 0 {
            let answer = connection.ask(&[b"SELECT", node.db.to_string().as_bytes()])?;
            answer.refusal().map_or(Ok(()), Err)?;
        }
        Ok(connection)
    }

    /// Returns the connection with other time limits.
    pub fn with_patience(self, patience: Patience) -> Connection {
        Connection { patience, ..self }
    }

    /// Sends HELLO and our credentials, as the library does.
    pub fn greet(&mut self, node: &NodeSettings, greeting: &mut Greeting) -> Result<(), Trouble> {
        let password = node.password.as_ref().map(|password| password.reveal().as_bytes());
        let user = node.user.as_deref().map(str::as_bytes);
        let hello = match password {
            Some(password) => {
                let user = user.unwrap_or(b"default");
                self.ask(&[b"HELLO", b"3", b"AUTH", user, password])?
            }
            None => self.ask(&[b"HELLO", b"3"])?,
        };
        greeting.answered = true;
        let cause = hello.cause();
        // The error text is left out: a node that does not know HELLO quotes its arguments, and one
        // of them is the password.
        let refused = matches!(hello, Answer::Error(_));
        greeting.hello = Some(if refused { Answer::Error(String::new()) } else { hello });
        // Tries AUTH if HELLO was refused as a command. A server that checks credentials before it
        // looks up the command answers NOAUTH to an unknown HELLO.
        let again = match cause {
            Some(NodeError::UnknownCommand | NodeError::NoPermission) => true,
            Some(NodeError::NoAuth) => password.is_some(),
            _ => false,
        };
        let refused = match (again, password, user) {
            (false, ..) => cause,
            (true, None, _) => None,
            (true, Some(password), None) => self.ask(&[b"AUTH", password])?.cause(),
            (true, Some(password), Some(user)) => self.ask(&[b"AUTH", user, password])?.cause(),
        };
        // The error text is left out, because it may have the password.
        greeting.accepted = refused.is_none();
        refused.map_or(Ok(()), |cause| Err(Trouble { cause, words: String::new() }))
    }

    /// Asks one question.
    pub fn ask(&mut self, words: &[&[u8]]) -> Result<Answer, Trouble> {
        self.ask_all(&[words]).map(|mut answers| answers.remove(0))
    }

    /// Sends all questions in one write, so that the node executes all of them even if this process
    /// ends. Returns one answer for each, in the same order.
    pub fn ask_all(&mut self, questions: &[&[&[u8]]]) -> Result<Vec<Answer>, Trouble> {
        self.ask_as(questions, of)
    }

    /// Sends a `SCAN`, and returns the keys of the answer.
    pub fn scan(&mut self, words: &[&[u8]]) -> Result<Portion, Trouble> {
        let read = |reply: &Reply<'_>| match reply {
            Reply::Push(_) => None,
            reply => Some(portion(reply)),
        };
        self.ask_as(&[words], read)?.remove(0)
    }

    fn ask_as<T>(
        &mut self,
        questions: &[&[&[u8]]],
        read: impl Fn(&Reply<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Trouble> {
        let mut output = BytesMut::new();
        questions.iter().for_each(|words| command::encode(&mut output, words));
        let limit = self.patience.limit();
        let written = self.stream.limit(limit).and_then(|()| self.stream.write_all(&output));
        // Answers are read also after a failed write, because the node may have sent the reason
        // before it closed the connection.
        let said: Result<_, _> = questions.iter().map(|_| self.answer(&read)).collect();
        written.map_err(|error| trouble(NodeError::Lost, &error)).and(said)
    }

    /// Returns the next answer, as `read` returns it. Skips pushes, for which `read` returns
    /// `None`, because they answer no question.
    fn answer<T>(&mut self, read: impl Fn(&Reply<'_>) -> Option<T>) -> Result<T, Trouble> {
        let end = clock::now().saturating_add(self.patience.limit());
        loop {
            while let Step::Complete { reply, consumed } = self.decoded()? {
                let answer = read(&reply);
                self.input.advance(consumed);
                if let Some(answer) = answer {
                    return Ok(answer);
                }
            }
            self.read(end)?;
        }
    }

    fn decoded(&self) -> Result<Step<'_>, Trouble> {
        decode(&self.input, &LIMITS).map_err(|error| trouble(NodeError::Garbage, &error))
    }

    fn read(&mut self, end: Instant) -> Result<(), Trouble> {
        let left = end.saturating_since(clock::now());
        let mut chunk = [0; 16 * 1024];
        let read = if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            self.stream.limit(left).and_then(|()| self.stream.read(&mut chunk))
        };
        match read {
            Ok(0) => Err(trouble(NodeError::Lost, &"closed by the node")),
            Ok(count) => {
                self.input.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if is_silence(&error) => {
                let waited = self.patience.each;
                Err(trouble(NodeError::Silent, &format!("nothing within {waited:?}")))
            }
            Err(error) => Err(trouble(NodeError::Lost, &error)),
        }
    }
}

impl Stream {
    fn limit(&self, limit: Duration) -> io::Result<()> {
        let limit = Some(limit);
        match self {
            Stream::Tcp(tcp) => {
                tcp.set_read_timeout(limit).and_then(|()| tcp.set_write_timeout(limit))
            }
            Stream::Unix(unix) => {
                unix.set_read_timeout(limit).and_then(|()| unix.set_write_timeout(limit))
            }
            #[cfg(feature = "tls")]
            Stream::Tls(tls) => {
                tls.sock.set_read_timeout(limit).and_then(|()| tls.sock.set_write_timeout(limit))
            }
        }
    }

    fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(chunk),
            Stream::Unix(stream) => stream.read(chunk),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(chunk),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// Where the node's server is at present, which its Sentinels know if it has any.
pub fn server(config: &Config, node: usize) -> Result<Address, Trouble> {
    config.find_server(node).map_err(|error| trouble(NodeError::Unreachable, &error))
}

/// The addresses that the system's resolver has for the node, without duplicates.
pub fn addresses(address: &Address) -> io::Result<Vec<SocketAddr>> {
    let Address::Tcp { host, port, .. } = address else { return Ok(Vec::new()) };
    let mut found: Vec<SocketAddr> = Vec::new();
    for place in (&**host, *port).to_socket_addrs()? {
        if !found.contains(&place) {
            found.push(place);
        }
    }
    Ok(found)
}

#[cfg(feature = "tls")]
fn encrypted(host: &str, stream: TcpStream, tls: Option<&Tls>) -> io::Result<Stream> {
    let tls = tls.ok_or_else(|| io::Error::other("no CA to trust is named: --tls-ca"))?;
    let name = host.to_owned().try_into().map_err(io::Error::other)?;
    let session = rustls::ClientConnection::new(tls.client_config(), name);
    let session = session.map_err(io::Error::other)?;
    Ok(Stream::Tls(Box::new(rustls::StreamOwned::new(session, stream))))
}

#[cfg(not(feature = "tls"))]
fn encrypted(_: &str, _: TcpStream, _: Option<&Tls>) -> io::Result<Stream> {
    Err(io::Error::other("rediss:// is not built in; build redlatch with the feature `tls`"))
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn trouble(cause: NodeError, words: &dyn std::fmt::Display) -> Trouble {
    let text = words.to_string();
    Trouble { cause, words: text.split(" (os error").next().unwrap_or_default().to_owned() }
}

/// Reads the answer to `SCAN`, which has a cursor and keys.
fn portion(reply: &Reply<'_>) -> Result<Portion, Trouble> {
    let garbage = || trouble(NodeError::Garbage, &"no cursor and keys");
    if let Reply::Error(_) = reply {
        let refused = of(reply).and_then(|answer| answer.refusal());
        return Err(refused.unwrap_or_else(garbage));
    }
    let Reply::Array(items) = reply else { return Err(garbage()) };
    let items: Vec<Reply<'_>> = items.iter().collect();
    let [Reply::Bulk(cursor), Reply::Array(keys)] = items.as_slice() else { return Err(garbage()) };
    let key = |item| match item {
        Reply::Bulk(key) => Ok(key.to_vec()),
        _ => Err(garbage()),
    };
    Ok(Portion { cursor: cursor.to_vec(), keys: keys.iter().map(key).collect::<Result<_, _>>()? })
}

/// The reply as an answer; `None` for a push, which answers no question.
fn of(reply: &Reply<'_>) -> Option<Answer> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(match reply {
        // This push is the answer to `SUBSCRIBE`.
        Reply::Push(items) if items.iter().next() == Some(Reply::Bulk(b"subscribe")) => {
            Answer::Text("subscribe".into())
        }
        Reply::Push(_) => return None,
        Reply::Error(line) => Answer::Error(text(line).chars().take(LONGEST_ERROR).collect()),
        Reply::Integer(number) => Answer::Number(*number),
        Reply::Null => Answer::Nothing,
        Reply::Boolean(truth) => Answer::Number(i64::from(*truth)),
        Reply::Simple(bytes) | Reply::Bulk(bytes) => Answer::Text(text(bytes)),
        Reply::Double(bytes) | Reply::BigNumber(bytes) => Answer::Text(text(bytes)),
        Reply::Array(items) | Reply::Set(items) | Reply::Map(items) => {
            Answer::Many(items.iter().filter_map(|item| of(&item)).collect())
        }
    })
}
