//! Reads the keys of a real node over a separate connection, without a client of the library.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::BytesMut;
use redlatch::proto::command;
use redlatch::proto::resp::{Limits, Reply, Step, decode};

/// How long a node on this machine may take to connect or to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub token: String,
    /// What is left of its ttl.
    pub left: Duration,
}

/// A connection that reads the keys of one node.
pub struct Peek {
    stream: TcpStream,
}

impl Peek {
    pub fn open(address: SocketAddr) -> io::Result<Peek> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Peek { stream })
    }

    /// The id of the server process that answers.
    pub fn process_id(&mut self) -> io::Result<Option<u32>> {
        let info = self.ask(&[b"INFO", b"server"], text)?;
        let line = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        Ok(line.and_then(|id| id.trim_end().parse().ok()))
    }

    /// Every key that holds a string, with its value, sorted by key. The line of a key is a sorted
    /// set, so it is left out.
    pub fn keys(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut names: Vec<String> = self.ask(&[b"KEYS", b"*"], |reply| match reply {
            Reply::Array(items) => items.iter().map(text).collect(),
            _ => None,
        })?;
        names.sort();
        let mut keys = Vec::new();
        for name in names {
            // A key that expires after the list was read is left out.
            let held = self.ask(&[b"GET", name.as_bytes()], |reply| match reply {
                Reply::Null => Some(None),
                Reply::Error(line) if line.starts_with(b"WRONGTYPE") => Some(None),
                _ => text(reply).map(Some),
            })?;
            keys.extend(held.map(|held| (name, held)));
        }
        Ok(keys)
    }

    /// What one key holds.
    pub fn held(&mut self, key: &str) -> io::Result<Option<Held>> {
        let token = self.ask(&[b"GET", key.as_bytes()], |reply| match reply {
            Reply::Null => Some(None),
            _ => text(reply).map(Some),
        })?;
        let Some(token) = token else { return Ok(None) };
        let left = self.ask(&[b"PTTL", key.as_bytes()], |reply| match reply {
            Reply::Integer(millis) => Some(millis),
            _ => None,
        })?;
        // If the key expired after the GET, PTTL is negative: then the key holds nothing.
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        Ok(left.map(|left| Held { token, left }))
    }

    fn ask<T>(
        &mut self,
        words: &[&[u8]],
        read: impl FnOnce(Reply<'_>) -> Option<T>,
    ) -> io::Result<T> {
        let mut bytes = BytesMut::new();
        command::encode(&mut bytes, words);
        self.stream.write_all(&bytes)?;
        let mut input = Vec::new();
        loop {
            let mut chunk = [0; 4096];
            let count = self.stream.read(&mut chunk)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            input.extend_from_slice(&chunk[..count]);
            match decode(&input, &Limits::default()).map_err(io::Error::other)? {
                Step::Partial => {}
                Step::Complete { reply, .. } => {
                    let odd = || io::Error::other(format!("an odd reply: {reply:?}"));
                    return read(reply).ok_or_else(odd);
                }
            }
        }
    }
}

fn text(reply: Reply<'_>) -> Option<String> {
    match reply {
        Reply::Bulk(bytes) | Reply::Simple(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
        _ => None,
    }
}
