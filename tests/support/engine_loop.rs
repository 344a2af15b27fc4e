//! An engine on a poller of the test's own, as in the loop of a program that embeds it.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use redlatch::{Config, Engine};

use super::support::{SECOND, eventually, millis};

/// Sleeps until there are events, for `most` at most.
pub fn sleep(poll: &mut mio::Poll, events: &mut mio::Events, most: Duration) {
    match poll.poll(events, Some(most)) {
        // Linux ends the sleep early if the process was stopped and is continued.
        Err(error) if error.kind() == ErrorKind::Interrupted => events.clear(),
        other => other.expect("the poller works"),
    }
}

pub struct Loop {
    pub engine: Engine,
    poll: mio::Poll,
    events: mio::Events,
}

impl Loop {
    /// A loop whose nodes may not be ready yet.
    pub fn new(config: Config) -> Loop {
        let poll = mio::Poll::new().expect("a poller");
        let engine = Engine::new(config, poll.registry(), mio::Token(1000)).expect("good settings");
        Loop { engine, poll, events: mio::Events::with_capacity(64) }
    }

    /// A loop whose nodes are all ready.
    #[track_caller]
    pub fn ready(config: Config) -> Loop {
        let nodes = config.get_settings().nodes.len();
        let mut embedded = Loop::new(config);
        embedded.turn_until("the nodes are ready", |it| it.coordinator().ready().len() == nodes);
        embedded
    }

    /// One turn: prepares, sleeps for at most 10 ms, and passes the events to the engine.
    pub fn turn(&mut self) {
        self.turn_within(millis(10));
    }

    /// One turn: prepares, sleeps for at most `most`, and passes the events to the engine.
    pub fn turn_within(&mut self, most: Duration) {
        let timeout = self.engine.prepare().unwrap_or(most).min(most);
        sleep(&mut self.poll, &mut self.events, timeout);
        for event in &self.events {
            assert!(self.engine.handle_event(event), "every socket here is the engine's");
        }
    }

    /// Repeats turns until `holds` is true, for 30 s at most.
    #[track_caller]
    pub fn turn_until(&mut self, what: &str, mut holds: impl FnMut(&mut Engine) -> bool) {
        eventually(30 * SECOND, what, || {
            self.turn();
            holds(&mut self.engine)
        });
    }

    pub fn turn_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.turn_within(millis(1));
        }
    }

    /// Repeats turns until a request ends, and returns its completion.
    #[track_caller]
    pub fn completion(&mut self) -> redlatch::Completion {
        let mut done = None;
        self.turn_until("a request ends", |engine| {
            done = done.take().or_else(|| engine.poll_completion());
            done.is_some()
        });
        done.expect("the loop ended with it")
    }
}
