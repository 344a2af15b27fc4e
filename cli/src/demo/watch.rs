//! Observes every node during the story, for the picture: a thread for each node reads the key
//! again and again, over a connection of its own.
//!
//! A frozen node answers only when it goes on, and a dead one not at all. For that time there are
//! no observations, and the picture does not guess what the node held.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use redlatch::{clock, clock::Instant};

use super::Stop;
use super::peek::{Held, Peek};

/// The pause between two observations of a node.
const EVERY: Duration = Duration::from_millis(5);

/// One observation: what the node held at the watched key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyState {
    pub at: Instant,
    pub held: Option<Held>,
}

/// The threads that observe the nodes.
pub struct Watch {
    threads: Vec<(Sender<()>, JoinHandle<Vec<KeyState>>)>,
}

impl Watch {
    /// Starts to observe this key on the nodes at these URLs.
    pub fn start(urls: &[String], key: &'static str) -> Result<Watch, Stop> {
        let one = |url: &String| {
            let address = url.strip_prefix("redis://").and_then(|address| address.parse().ok());
            let address = address.ok_or_else(|| Stop::Failed(format!("an odd address: {url}")))?;
            let (stop, stopped) = channel();
            let thread = std::thread::Builder::new().name("watch".into());
            let thread = thread.spawn(move || observe(address, key, &stopped));
            let failed = |error| Stop::Failed(format!("no thread to watch {url}: {error}"));
            Ok((stop, thread.map_err(failed)?))
        };
        Ok(Watch { threads: urls.iter().map(one).collect::<Result<_, _>>()? })
    }

    /// Ends the threads, and returns the observations of each node.
    pub fn end(self) -> Vec<Vec<KeyState>> {
        let (stops, threads): (Vec<_>, Vec<_>) = self.threads.into_iter().unzip();
        drop(stops);
        // The observations of a thread that panicked are lost.
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    }
}

fn observe(address: SocketAddr, key: &str, stopped: &Receiver<()>) -> Vec<KeyState> {
    let mut states = Vec::new();
    let mut connection = None;
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let mut peek = match connection.take() {
            Some(peek) => peek,
            None => match Peek::open(address) {
                Ok(peek) => peek,
                // No process listens: the node is dead.
                Err(_) => continue,
            },
        };
        // A connection that failed is dropped, because the late answer to this question could be
        // taken for that to the next.
        if let Ok(held) = peek.held(key) {
            states.push(KeyState { at: clock::now(), held });
            connection = Some(peek);
        }
    }
    states
}
