//! A blocking RESP2 client of the tests' own, so that the library is not checked by its own parser.
//!
//! Every wait ends, because connecting and reading have timeouts. The one hazard: after an error
//! the connection may be in the middle of a reply, so the caller drops it.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// One reply of a server.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Value>),
}

impl Value {
    /// Whether this is `+OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Value::Simple(text) if text == "OK")
    }

    /// The number of an integer reply; panics on any other.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Value::Int(number) => *number,
            other => panic!("an integer was expected, not {other:?}"),
        }
    }

    /// The bytes of a bulk or simple reply, lossily as text; panics on any other.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Value::Simple(text) => text.clone(),
            Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("a text was expected, not {other:?}"),
        }
    }

    /// The items of an array of texts; panics on any other reply.
    #[track_caller]
    pub fn text_items(&self) -> Vec<String> {
        match self {
            Value::Array(items) => items.iter().map(Value::text).collect(),
            other => panic!("an array was expected, not {other:?}"),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Simple(text) => write!(f, "+{text}"),
            Value::Error(text) => write!(f, "-{text}"),
            Value::Int(number) => write!(f, ":{number}"),
            Value::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Value::Nil => f.write_str("nil"),
            Value::Array(items) => f.debug_list().entries(items).finish(),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct RespClient {
    stream: BufReader<TcpStream>,
}

impl RespClient {
    pub fn connect(address: SocketAddr) -> io::Result<RespClient> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.set_write_timeout(Some(READ_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(RespClient { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads one reply; an error reply is a value, not an `Err`.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<Value> {
        self.send(arguments)?;
        self.read()
    }

    /// Sends one command and reads nothing.
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        self.stream.get_mut().write_all(&encode(arguments))
    }

    /// Reads one reply.
    pub fn read(&mut self) -> io::Result<Value> {
        read_value(&mut self.stream)
    }

    /// This end's address, as the server sees it.
    pub fn local_address(&self) -> SocketAddr {
        self.stream.get_ref().local_addr().expect("a connected socket has an address")
    }

    /// The socket, so that another thread can shut it down.
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Whether the connection is open and nothing unread is in it.
    pub fn is_idle(&self) -> bool {
        let socket = self.stream.get_ref();
        if !self.stream.buffer().is_empty() || socket.set_nonblocking(true).is_err() {
            return false;
        }
        let peeked = socket.peek(&mut [0]);
        let restored = socket.set_nonblocking(false).is_ok();
        let silent = matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        silent && restored
    }
}

/// The bytes of a command.
pub fn encode<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn read_value(stream: &mut BufReader<TcpStream>) -> io::Result<Value> {
    let line = read_line(stream)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| broken("an empty line"))?;
    match kind {
        "+" => Ok(Value::Simple(rest.to_owned())),
        "-" => Ok(Value::Error(rest.to_owned())),
        ":" => Ok(Value::Int(number(rest)?)),
        "$" => {
            let Ok(length) = usize::try_from(number(rest)?) else { return Ok(Value::Nil) };
            let mut bytes = vec![0; length + 2];
            stream.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(Value::Bulk(bytes))
        }
        "*" => {
            let Ok(length) = usize::try_from(number(rest)?) else { return Ok(Value::Nil) };
            (0..length).map(|_| read_value(stream)).collect::<io::Result<_>>().map(Value::Array)
        }
        _ => Err(broken(&line)),
    }
}

fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n") {
        Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed")),
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| broken(text))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {what}"))
}
