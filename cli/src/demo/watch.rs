//! Looks at every node again and again during the story, for the picture. Each node has a thread
//! and a connection for that, apart from those of the clients.
//!
//! A frozen node answers when it continues, and a dead one not at all. For that time there are no
//! looks, and what the node did then is not guessed.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use redlatch::{clock, clock::Instant};

use super::Stop;
use super::peek::{Held, Peek};

/// How long between two looks at a node.
const EVERY: Duration = Duration::from_millis(5);

/// The result of one look: what is there at the watched key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyState {
    pub at: Instant,
    pub held: Option<Held>,
}

/// The threads that look.
pub struct Watch {
    threads: Vec<(Sender<()>, JoinHandle<Vec<KeyState>>)>,
}

impl Watch {
    /// Starts to look for this key on the nodes at these URLs.
    pub fn start(urls: &[String], key: &'static str) -> Result<Watch, Stop> {
        let one = |url: &String| {
            let address = url.strip_prefix("redis://").and_then(|address| address.parse().ok());
            let address = address.ok_or_else(|| Stop::Failed(format!("an odd address: {url}")))?;
            let (stop, stopped) = channel();
            let thread = std::thread::Builder::new().name("watch".into());
            let thread = thread.spawn(move || look(address, key, &stopped));
            let failed = |error| Stop::Failed(format!("no thread to watch {url}: {error}"));
            Ok((stop, thread.map_err(failed)?))
        };
        Ok(Watch { threads: urls.iter().map(one).collect::<Result<_, _>>()? })
    }

    /// Stops looking, and returns what was seen of each node.
    pub fn end(self) -> Vec<Vec<KeyState>> {
        let (stops, threads): (Vec<_>, Vec<_>) = self.threads.into_iter().unzip();
        drop(stops);
        // A thread that panicked has seen nothing.
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    }
}

fn look(address: SocketAddr, key: &str, stopped: &Receiver<()>) -> Vec<KeyState> {
    let mut states = Vec::new();
    let mut connection = None;
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let mut peek = match connection.take() {
            Some(peek) => peek,
            None => match Peek::open(address) {
                Ok(peek) => peek,
                // The node is dead: no process listens.
                Err(_) => continue,
            },
        };
        // A connection that failed is not used again: an answer may still be in flight on it.
        if let Ok(held) = peek.held(key) {
            states.push(KeyState { at: clock::now(), held });
            connection = Some(peek);
        }
    }
    states
}
