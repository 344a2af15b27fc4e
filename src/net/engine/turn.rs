//! A turn of the loop: what the engine does before the poller sleeps, after it woke, and between.

use std::time::Duration;

use super::Engine;
use crate::net::clock;
use crate::proto::coordinator::{Action, Coordinator};
use crate::proto::ids::Op;
use crate::proto::locks::completions::Completion;
use crate::proto::node_set::{MAX_NODES, NodeSet};
use crate::proto::time::Instant;
use crate::proto::turn::{self, Driver, Wake};

impl Engine {
    /// Call it before every sleep. Does what is due, writes what was requested, with one write for
    /// each node, and returns how long to sleep at most (`None`: until an event).
    pub fn prepare(&mut self) -> Option<Duration> {
        if !self.check_fork() {
            return self.coordinator.has_completions().then_some(Duration::ZERO);
        }
        self.go_on();
        self.plan_sleep()
    }

    /// Does what is due and writes what was requested, but does not plan the sleep that follows.
    /// For a caller that has checked for a fork in the same turn.
    pub(crate) fn go_on(&mut self) {
        turn::run(&mut Driving(self));
        self.observer.report_node_events(&mut self.coordinator);
    }

    /// Whether the driver can sleep without a timeout, because the alarm wakes it.
    pub(crate) fn has_alarm(&self) -> bool {
        self.alarm.stands_for_every_timeout()
    }

    /// Writes what was requested and sets the alarm, for drivers that sleep without a timeout.
    /// What is due is left to the next turn. In a forked process this does nothing, because the
    /// timer, too, is the parent's.
    pub(crate) fn end_turn(&mut self) {
        if self.check_fork() {
            self.write_out();
            self.plan_sleep();
        }
    }

    /// Makes sure that a sleep ends by that moment, even if nothing is due then.
    pub(crate) fn wake_by(&mut self, moment: Option<Instant>) {
        self.wake_deadline = moment;
    }

    /// How long to sleep at most. Sets the alarm.
    pub(crate) fn plan_sleep(&mut self) -> Option<Duration> {
        let due = match turn::wake(&mut Driving(self)) {
            Wake::AtOnce => {
                self.alarm.ring();
                return Some(Duration::ZERO);
            }
            Wake::OnEvent => {
                self.alarm.disarm();
                return None;
            }
            Wake::At(due) => due,
        };
        let now = clock::now();
        // The holder of an auto-extended lock has to learn of a loss in time, also after the
        // machine was suspended.
        let in_suspend = self.coordinator.auto_extended_locks() > 0;
        // What may be late is the poll of a waiter in line. The poller's own timeout is good enough
        // for it: usually a node hands the key over long before.
        if in_suspend || self.has_alarm() || !self.coordinator.may_be_late(due) {
            self.alarm.wake_at(due, now, in_suspend);
        }
        Some(due.saturating_since(now))
    }

    /// From now on the driver sleeps without a timeout. In return, [`end_turn`](Engine::end_turn)
    /// or [`prepare`](Engine::prepare) has to follow every request. Returns `false` if the system
    /// has no timer for that.
    pub(crate) fn needs_no_timeout(&mut self) -> bool {
        self.alarm.stand_for_every_timeout()
    }

    /// Sets how many bytes are read at once. A small number makes a test meet what is rare
    /// otherwise: a turn that leaves bytes unread.
    #[cfg(test)]
    pub(crate) fn read_at_once(&mut self, bytes: usize) {
        self.scratch = vec![0; bytes].into();
    }

    /// Writes what was requested, without doing what is due. Never waits.
    pub fn flush(&mut self) {
        if self.has_something_to_write() && self.check_fork() {
            self.write_out();
        }
    }

    /// As [`flush`](Engine::flush), for a caller that has checked for a fork in the same call.
    pub(crate) fn flush_unforked(&mut self) {
        if self.has_something_to_write() {
            self.write_out();
        }
    }

    pub(super) fn write_out(&mut self) {
        turn::write_out(&mut Driving(self));
    }

    /// Whether there is anything that the next write is for.
    pub(crate) fn has_something_to_write(&self) -> bool {
        let has_output = |node| !self.coordinator.output(node).is_empty();
        self.coordinator.has_actions() || self.nodes().iter().any(has_output)
    }

    /// The next request that ended. A lock is handed out only before its deadline. This call does
    /// not check for a fork: see [`check_fork`](Engine::check_fork).
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if !self.coordinator.has_completions() {
            return None;
        }
        let done = turn::hand_out(&mut Driving(self))?;
        self.observer.completed(&done);
        Some(done)
    }

    /// The next request that ended, without its result: [`fetch`](Engine::fetch) returns that
    /// later.
    pub(crate) fn poll_ended(&mut self) -> Option<(Op, u64)> {
        self.coordinator.poll_ended()
    }

    /// The result of a request, as of now; `None` while it goes on.
    pub(crate) fn fetch(&mut self, op: Op) -> Option<Completion> {
        turn::fetch(&mut Driving(self), op)
    }
}

/// The engine while it runs a turn. A type of its own, so that the steps of a turn are no methods
/// that users of the engine could call.
struct Driving<'a>(&'a mut Engine);

impl Driver for Driving<'_> {
    fn core(&mut self) -> &mut Coordinator {
        &mut self.0.coordinator
    }

    fn now(&mut self) -> Instant {
        clock::now()
    }

    fn must_read_rest(&mut self) -> bool {
        !self.0.more.is_empty()
    }

    fn read_rest(&mut self) {
        for node in std::mem::take(&mut self.0.more).iter() {
            self.0.read(node, false);
        }
    }

    fn read_all(&mut self) {
        self.0.take_masters();
        for node in self.0.nodes().iter() {
            if self.0.sockets[node.index()].opening {
                self.0.check_opening(node);
            }
            if self.0.coordinator.unanswered(node) > 0 {
                self.0.read(node, false);
            }
        }
        // The kernel may take bytes now that it did not take before.
        for socket in &mut self.0.sockets {
            socket.writable |= socket.stream.is_some() && !socket.opening;
        }
    }

    fn expire(&mut self, now: Instant) {
        self.0.ask_sentinels_again(now);
        self.0.coordinator.handle_timeout(now);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect(node) => self.0.open(node),
            Action::Disconnect(node) => {
                if let Some(stream) = self.0.drop_stream(node) {
                    // The pending releases of this node go out on its next connection.
                    stream.reset();
                }
            }
        }
    }

    fn write_all(&mut self) -> bool {
        let engine = &mut *self.0;
        let (mut written, mut counts) = (NodeSet::EMPTY, [0; MAX_NODES]);
        let mut failed = Vec::new();
        for node in engine.nodes().iter() {
            let socket = &mut engine.sockets[node.index()];
            let output = engine.coordinator.output(node);
            let Some(stream) = socket.stream.as_mut().filter(|_| socket.writable) else { continue };
            if output.is_empty() && !stream.has_unsent() {
                continue;
            }
            match stream.write(output) {
                Ok((count, all)) => {
                    socket.writable = all;
                    written.insert(node);
                    counts[node.index()] = count;
                }
                Err(error) => failed.push((node, error)),
            }
        }
        if !written.is_empty() {
            // The clock is read once, after all writes, so that no request counts as written too
            // early.
            let now = clock::now();
            for node in written.iter() {
                engine.coordinator.handle_sent(node, counts[node.index()], now);
            }
        }
        failed.iter().for_each(|(node, error)| engine.lost(*node, error));
        !failed.is_empty()
    }

    fn wake_deadline(&mut self) -> Option<Instant> {
        self.0.wake_deadline
    }
}
