//! A real `redis-server` for the comparison, and `Wire`, a plain connection to it.
//!
//! The server is a child of the test, on a port of 127.0.0.1. If the program is missing, the test
//! fails. The hazard is another server on the same port: so the test checks the process id.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::resp_client::encode;

/// How long the test waits for an expected reply.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct Server {
    child: Child,
    port: u16,
    /// Kept open, because a server that cannot write its log may end.
    _log: BufReader<ChildStdout>,
    pub directory: PathBuf,
}

impl Server {
    pub fn start() -> Server {
        // Another process may bind the free port before the server does. So the start is tried
        // again, until the process that answers is the child of this test.
        let server = (0..10).find_map(|_| Server::try_start());
        server.expect("redis-server starts on one of ten free ports")
    }

    fn try_start() -> Option<Server> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let started = STARTED.fetch_add(1, Ordering::Relaxed);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let directory =
            std::env::temp_dir().join(format!("redlatch-{}-{started}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the server");
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "no", "--enable-debug-command", "yes"]);
        command.args(["--enable-protected-configs", "yes", "--dir"]).arg(&directory);
        let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("redis-server is missing: apt-get install -y redis-server")
            }
            Err(error) => panic!("redis-server: {error}"),
        };
        let mut log = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while !line.contains("Ready to accept connections") {
            line.clear();
            if log.read_line(&mut line).expect("its log is text") == 0 {
                child.wait().expect("it ended");
                return None;
            }
        }
        let server = Server { child, port, _log: log, directory };
        let mut wire = server.connect();
        let info = wire.ask(&[b"INFO", b"server"]);
        let ours = format!("process_id:{}\r\n", server.child.id());
        String::from_utf8_lossy(&info).contains(&ours).then_some(server)
    }

    pub fn connect(&self) -> Wire {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_nodelay(true).expect("nodelay");
        Wire { stream, input: Vec::new() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the server has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What a connection gave to read.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A reply or a push, undecoded.
    Frame(Vec<u8>),
    ClosedReason,
    /// No reply in time. These bytes, the beginning of one, may have come.
    Silence(Vec<u8>),
}

/// A connection to the server.
pub struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Wire {
    pub fn send(&mut self, bytes: &[u8]) {
        // If the connection was closed, the next read reports that.
        let _ = self.stream.write_all(bytes);
    }

    /// Sends one command and returns its reply, undecoded.
    pub fn ask(&mut self, words: &[&[u8]]) -> Vec<u8> {
        self.send(&encode(words));
        match self.frame() {
            Answer::Frame(frame) => frame,
            other => panic!("{}: {other:?}", show(&words.join(&b' '))),
        }
    }

    pub fn frame(&mut self) -> Answer {
        loop {
            if let Some(length) = frame_length(&self.input) {
                return Answer::Frame(self.input.drain(..length).collect());
            }
            match self.read(PATIENCE) {
                Some(0) => return Answer::ClosedReason,
                Some(_) => {}
                None => return Answer::Silence(self.input.clone()),
            }
        }
    }

    /// Lets time pass. The server must not send anything meanwhile.
    pub fn silence(&mut self, time: Duration) {
        let read = self.read(time);
        assert!(read.is_none() && self.input.is_empty(), "unasked: {}", show(&self.input));
    }

    fn read(&mut self, patience: Duration) -> Option<usize> {
        read(&mut self.stream, &mut self.input, patience)
    }
}

/// Reads once from a connection. Returns how many bytes came: `None` if none came for so long, and
/// zero if the connection has ended. A server that ends with unread bytes resets its connections.
pub fn read(stream: &mut TcpStream, input: &mut Vec<u8>, patience: Duration) -> Option<usize> {
    let mut chunk = [0; 16 * 1024];
    stream.set_read_timeout(Some(patience)).expect("a timeout");
    match stream.read(&mut chunk) {
        Ok(length) => {
            input.extend_from_slice(&chunk[..length]);
            Some(length)
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(0),
        Err(error) => panic!("reading from the server: {error}"),
    }
}

/// The length of the first reply, or `None` if it is not complete yet.
pub fn frame_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || -> i64 {
        let digits = std::str::from_utf8(&bytes[1..end - 2]).expect("a length is text");
        digits.parse().expect("a length is a number")
    };
    let elements = match bytes[0] {
        b'+' | b'-' | b':' | b'_' => 0,
        b'$' | b'=' => match usize::try_from(number()) {
            Ok(length) => {
                let whole = end + length + 2;
                return (bytes.len() >= whole).then_some(whole);
            }
            Err(_) => 0,
        },
        b'*' | b'~' | b'>' => number().max(0),
        b'%' => 2 * number(),
        mark => panic!("a reply that starts with {mark}: {}", show(bytes)),
    };
    let mut at = end;
    for _ in 0..elements {
        at += frame_length(&bytes[at..])?;
    }
    Some(at)
}

/// The bytes as text for a message: the first 1,500 of them.
pub fn show(bytes: &[u8]) -> String {
    let (shown, rest) = bytes.split_at(bytes.len().min(1500));
    format!("\"{}\"{}", shown.escape_ascii(), if rest.is_empty() { "" } else { "..." })
}
