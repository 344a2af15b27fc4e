//! An engine on a poller of its own, in the loop of a program that uses it.

#![allow(dead_code, reason = "each test or bench uses a part of this")]

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use mio::event::Event;
use redlatch::{Config, Engine};

use super::support::{SECOND, eventually, millis};

/// Sleeps until there are events, and no longer than that.
pub fn sleep(poll: &mut mio::Poll, events: &mut mio::Events, most: Duration) {
    match poll.poll(events, Some(most)) {
        // Linux ends the sleep early if the process was stopped and goes on.
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
    /// The nodes need not be ready yet.
    pub fn new(config: Config) -> Loop {
        let poll = mio::Poll::new().expect("a poller");
        let engine = Engine::new(config, poll.registry(), mio::Token(1000)).expect("good settings");
        Loop { engine, poll, events: mio::Events::with_capacity(64) }
    }

    /// With all nodes ready.
    #[track_caller]
    pub fn ready(config: Config) -> Loop {
        let nodes = config.get_settings().nodes.len();
        let mut embedded = Loop::new(config);
        embedded.turn_until("the nodes are ready", |it| it.coordinator().ready().len() == nodes);
        embedded
    }

    /// Prepares, sleeps for at most 10 ms, takes the events.
    pub fn turn(&mut self) {
        self.turn_within(millis(10));
    }

    /// Prepares, sleeps for at most this long, takes the events.
    pub fn turn_within(&mut self, most: Duration) {
        self.turn_beside(most, |event| panic!("no socket of the engine has {event:?}"));
    }

    /// The same, with events that are not the engine's.
    pub fn turn_beside(&mut self, most: Duration, mut other: impl FnMut(&Event)) {
        let timeout = self.engine.prepare().unwrap_or(most).min(most);
        sleep(&mut self.poll, &mut self.events, timeout);
        for event in &self.events {
            if !self.engine.handle_event(event) {
                other(event);
            }
        }
    }

    pub fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }

    /// Turns until `holds`, for 30 s at most.
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

    /// Turns until a request ends.
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
