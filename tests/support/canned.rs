//! A node that is no real server: a test chooses the reply to each command. So it can send what no
//! real server sends when a test wants it: garbage, a reply in pieces, a reset.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use super::listener::Scripted;

/// What a node does with a command.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Sends these bytes.
    Bytes(Vec<u8>),
    /// Sends these bytes one at a time, each in a segment of its own.
    Dripping(Vec<u8>),
    /// Sends these bytes and then closes the connection.
    Reset(Vec<u8>),
    /// Sends nothing.
    Silence,
}

/// A node that answers the handshake as a healthy master, and all other commands as a closure says.
#[derive(Debug)]
pub struct Canned {
    listener: Scripted,
    asked: Arc<Mutex<Vec<Vec<Vec<u8>>>>>,
}

impl Canned {
    /// `answer` gets the arguments of each command that is not of the handshake.
    pub fn start(answer: impl Fn(&[Vec<u8>]) -> Reply + Send + Sync + 'static) -> Canned {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let listener = Scripted::start(move |stream, _| {
            let _ = stream.set_nodelay(true);
            let mut input = Vec::new();
            while let Some(command) = next_command(stream, &mut input) {
                let reply = match handshake(&command) {
                    Some(bytes) => Reply::Bytes(bytes),
                    None => {
                        let reply = answer(&command);
                        seen.lock().unwrap_or_else(PoisonError::into_inner).push(command);
                        reply
                    }
                };
                if !send(stream, &reply) {
                    return;
                }
            }
        });
        Canned { listener, asked }
    }

    pub fn url(&self) -> String {
        self.listener.url()
    }

    pub fn connections(&self) -> usize {
        self.listener.connections()
    }

    /// The commands that came so far, without those of the handshake.
    pub fn asked(&self) -> Vec<Vec<Vec<u8>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often a command of this name came.
    pub fn count(&self, name: &str) -> usize {
        self.asked().iter().filter(|command| command[0] == name.as_bytes()).count()
    }
}

/// What a healthy master answers to a lock's commands.
pub fn healthy(command: &[Vec<u8>]) -> Vec<u8> {
    match command[0].as_slice() {
        b"SET" => b"+OK\r\n".to_vec(),
        b"EVAL" | b"EVALSHA" => b":1\r\n".to_vec(),
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}

fn handshake(command: &[Vec<u8>]) -> Option<Vec<u8>> {
    match command[0].as_slice() {
        b"HELLO" => Some(b"%2\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n".to_vec()),
        b"INFO" => Some(b"$13\r\nrole:master\r\n\r\n".to_vec()),
        b"COMMAND" => Some(b"*2\r\n_\r\n_\r\n".to_vec()),
        b"CLIENT" => Some(b"+OK\r\n".to_vec()),
        b"TIME" => Some(b"*2\r\n$10\r\n1700000000\r\n$1\r\n7\r\n".to_vec()),
        // The client runs a script without keys to learn whether it may run scripts.
        b"EVAL" if command.get(2).is_some_and(|keys| keys == b"0") => {
            Some(b"-ERR Lua redis lib command arguments must be strings or integers\r\n".to_vec())
        }
        b"SCRIPT" => Some(b"$40\r\n0123456789012345678901234567890123456789\r\n".to_vec()),
        _ => None,
    }
}

fn send(mut stream: &TcpStream, reply: &Reply) -> bool {
    match reply {
        Reply::Silence => true,
        Reply::Bytes(bytes) => stream.write_all(bytes).is_ok(),
        Reply::Dripping(bytes) => bytes.iter().all(|byte| {
            // Lets the reading thread run, so that it may read each byte by itself. No sleep is
            // needed.
            std::thread::yield_now();
            stream.write_all(&[*byte]).is_ok()
        }),
        Reply::Reset(bytes) => {
            let _ = stream.write_all(bytes);
            // If input is unread when the socket is closed, the kernel resets the connection. If
            // none is, the other end reads an early end of the stream.
            let _ = stream.shutdown(Shutdown::Both);
            false
        }
    }
}

fn next_command(mut stream: &TcpStream, input: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    loop {
        if let Some((command, length)) = parse(input) {
            input.drain(..length);
            return Some(command);
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => input.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Reads one command in RESP: its arguments and its length; `None` if it is not complete yet.
fn parse(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (count, mut at) = header(input, 0)?;
    let mut command = Vec::new();
    for _ in 0..count {
        let (length, start) = header(input, at)?;
        command.push(input.get(start..start + length)?.to_vec());
        at = start + length + 2;
    }
    (at <= input.len()).then_some((command, at))
}

fn header(input: &[u8], at: usize) -> Option<(usize, usize)> {
    let end = at + input.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
    let digits = std::str::from_utf8(input.get(at + 1..end)?).ok()?;
    Some((digits.parse().ok()?, end + 2))
}
