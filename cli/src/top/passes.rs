//! A thread that asks the nodes for all their keys, again and again.
//!
//! The hazard is the load on the nodes, because a node with millions of keys needs seconds for a
//! pass. So the thread pauses for nine times the length of a pass before the next one.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use redlatch::{Config, clock};

use crate::list::{Found, Source, scan};
use crate::output::Refusal;

/// The pause after a pass, as a multiple of its length.
const PAUSE: u32 = 9;

/// The handle of the thread. When it is dropped, the thread ends after its present pass.
pub struct Passes {
    found: Receiver<Found>,
    /// Nothing is sent over this channel. The thread ends when this end is dropped.
    _end: Sender<()>,
}

impl Passes {
    /// Starts the thread, which begins a pass once per `every`, or less often.
    pub fn start(config: &Config, pattern: &str, every: Duration) -> Result<Passes, Refusal> {
        let mut sources = Source::all(config);
        let (prefix, pattern) = (config.get_settings().key_prefix.clone(), pattern.to_owned());
        let ((sender, found), (end, ended)) = (sync_channel(1), channel());
        let passes = move || {
            while make_pass(&mut sources, (&prefix, &pattern), &sender, every, &ended) {}
        };
        thread::Builder::new()
            .name("passes".into())
            .spawn(passes)
            .map_err(|error| Refusal::internal(format!("a thread cannot be started: {error}")))?;
        Ok(Passes { found, _end: end })
    }

    /// The result of a pass that has ended since the last call, if any.
    pub fn last(&self) -> Option<Found> {
        self.found.try_recv().ok()
    }
}

/// Makes one pass, and the pause after it. Returns whether the handle still exists.
fn make_pass(
    sources: &mut [Source],
    (prefix, pattern): (&str, &str),
    sender: &SyncSender<Found>,
    every: Duration,
    ended: &Receiver<()>,
) -> bool {
    let start = clock::now();
    let found = scan(sources, prefix, pattern);
    let took = clock::now().saturating_since(start);
    let pause = every.saturating_sub(took).max(PAUSE * took);
    sender.send(found).is_ok() && ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout)
}
