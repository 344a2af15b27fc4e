//! One turn of the loop that drives a [`Coordinator`]: the order in which the driver reads its
//! sockets, handles timeouts and writes.
//!
//! A driver with real sockets runs a turn to its end ([`run`]). A simulation takes the same turn
//! one [`Step`] at a time, and may stop its clients between two steps. What a step does with a
//! socket is up to the [`Driver`]; this file decides only the order.
//!
//! The hazard is order, in two ways:
//!
//! * A timeout that is handled before the sockets were read. A caller that did not run for a second
//!   comes back with five answers in the buffers of its kernel and five node timeouts due. If the
//!   timeouts were handled first, five healthy nodes would count as silent, and the lock would be
//!   refused. So the driver first reads everything that the sockets hold. Then it writes what is
//!   queued, because no node can answer a question that was never sent. Only then it handles the
//!   timeouts.
//! * A lock that is handed out on a stale clock. Between two steps the process may be stopped for
//!   longer than a ttl. So every step that compares a deadline with the time reads the clock
//!   itself, and no step passes a moment on to the next.

use crate::proto::coordinator::{Action, Coordinator};
use crate::proto::ids::Op;
use crate::proto::locks::completions::Completion;
use crate::proto::time::Instant;

/// The sockets and the clock around a [`Coordinator`]: what a turn needs from the driver.
pub trait Driver {
    /// The core that is driven.
    fn core(&mut self) -> &mut Coordinator;

    /// The time now. Every call reads the clock anew.
    fn now(&mut self) -> Instant;

    /// Whether the last turn left bytes of a node unread.
    fn must_read_rest(&mut self) -> bool;

    /// Reads what the last turn left unread ([`must_read_rest`](Driver::must_read_rest)).
    fn read_rest(&mut self);

    /// Reads everything that the sockets hold by now, even if the poller did not report it. After
    /// this, [`write_all`](Driver::write_all) also tries the sockets that took nothing before.
    fn read_all(&mut self);

    /// Passes `now` to [`Coordinator::handle_timeout`].
    fn expire(&mut self, now: Instant);

    /// Opens or closes a connection.
    fn act(&mut self, action: Action);

    /// Writes the output of each node, in one write for each. Returns whether a write found a
    /// connection lost. The core may then have queued output for other nodes.
    fn write_all(&mut self) -> bool;

    /// A moment at which the driver wants to be awake for a reason of its own.
    fn wake_deadline(&mut self) -> Option<Instant>;
}

/// A part of a turn. Any time may pass between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Read what the last turn left in the sockets. Then check whether a timeout is due.
    ReadRest,
    /// A timeout is due: read everything that arrived.
    ReadAll,
    /// Write the questions that are still queued, so that none times out before it was sent.
    WriteFirst,
    /// Handle the timeouts that are due.
    Expire,
    /// Write everything, and end the turn.
    Write,
}

impl Step {
    /// The step that begins a turn.
    pub const FIRST: Step = Step::ReadRest;

    /// Takes this step. Returns the one that follows, or `None` at the end of the turn.
    #[inline]
    pub fn take(self, driver: &mut impl Driver) -> Option<Step> {
        match self {
            Step::ReadRest => {
                driver.read_rest();
                Some(if is_something_due(driver) { Step::ReadAll } else { Step::Write })
            }
            Step::ReadAll => {
                driver.read_all();
                Some(Step::WriteFirst)
            }
            Step::WriteFirst => {
                write_out(driver);
                Some(Step::Expire)
            }
            Step::Expire => {
                let now = driver.now();
                driver.expire(now);
                Some(Step::Write)
            }
            Step::Write => {
                write_out(driver);
                None
            }
        }
    }
}

/// Runs a whole turn.
#[inline]
pub fn run(driver: &mut impl Driver) {
    let mut step = Some(Step::FIRST);
    while let Some(taken) = step {
        step = taken.take(driver);
    }
}

/// Opens and closes connections and writes, and repeats this until no write finds a connection
/// lost.
#[inline]
pub fn write_out(driver: &mut impl Driver) {
    loop {
        while let Some(action) = driver.core().poll_action() {
            driver.act(action);
        }
        if !driver.write_all() {
            return;
        }
    }
}

/// The next request that has ended. A lock is handed out only before its deadline, by a clock that
/// is read here. The end of a release needs no clock.
#[inline]
pub fn hand_out(driver: &mut impl Driver) -> Option<Completion> {
    if let Some(completion) = driver.core().poll_released() {
        return Some(completion);
    }
    let now = driver.now();
    driver.core().poll_completion(now)
}

/// The outcome of a request, as [`Coordinator::fetch`] returns it, by a clock that is read here.
#[inline]
pub fn fetch(driver: &mut impl Driver, op: Op) -> Option<Completion> {
    let now = driver.now();
    driver.core().fetch(op, now)
}

/// When the driver has to turn again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Immediately, without a sleep.
    AtOnce,
    /// At this moment, or when a socket is ready before.
    At(Instant),
    /// When a socket is ready.
    OnEvent,
}

/// Returns how long the driver may sleep after a turn.
#[inline]
pub fn wake(driver: &mut impl Driver) -> Wake {
    let core = driver.core();
    let has_news = core.has_completions() || core.has_lock_updates() || core.has_standings();
    if has_news || driver.must_read_rest() {
        return Wake::AtOnce;
    }
    let moments = [driver.core().next_timeout(), driver.wake_deadline()];
    Instant::first_of(moments).map_or(Wake::OnEvent, Wake::At)
}

#[inline]
fn is_something_due(driver: &mut impl Driver) -> bool {
    driver.core().next_timeout().is_some_and(|due| due <= driver.now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ids::RecordId;
    use crate::proto::lock::{Fence, Lock, LockToken};
    use crate::proto::lock_options::LockOptions;
    use crate::proto::node_set::NodeId;
    use crate::proto::settings::{NodeSettings, Settings};
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::time::Duration;

    /// A driver that does nothing but note its calls. Each reading of its clock advances it by a
    /// nanosecond.
    struct Recorder {
        core: Coordinator,
        clock: u64,
        calls: Vec<&'static str>,
        expired_at: Option<Instant>,
        rest: bool,
        losses: usize,
        wake_deadline: Option<Instant>,
    }

    impl Recorder {
        /// A recorder that drives a core with one node, which wants to connect.
        fn new() -> Recorder {
            let settings = Settings::new(vec![NodeSettings::new("n0")]);
            let core = Coordinator::new(settings, [0; 32], Instant::from_nanos(0)).unwrap();
            Recorder {
                core,
                clock: 0,
                calls: Vec::new(),
                expired_at: None,
                rest: false,
                losses: 0,
                wake_deadline: None,
            }
        }

        /// A recorder whose node could not connect in time.
        fn overdue() -> Recorder {
            let mut recorder = Recorder::new();
            recorder.clock = recorder.core.next_timeout().unwrap().as_nanos();
            recorder
        }
    }

    impl Driver for Recorder {
        fn core(&mut self) -> &mut Coordinator {
            &mut self.core
        }

        fn now(&mut self) -> Instant {
            self.clock += 1;
            Instant::from_nanos(self.clock)
        }

        fn must_read_rest(&mut self) -> bool {
            self.rest
        }

        fn read_rest(&mut self) {
            self.calls.push("read the rest");
        }

        fn read_all(&mut self) {
            self.calls.push("read all");
        }

        fn expire(&mut self, now: Instant) {
            self.expired_at = Some(now);
            self.calls.push("expire");
        }

        fn act(&mut self, _: Action) {
            self.calls.push("act");
        }

        fn write_all(&mut self) -> bool {
            self.calls.push("write");
            let lost = self.losses > 0;
            self.losses = self.losses.saturating_sub(1);
            if lost {
                let now = self.now();
                self.core.handle_disconnected(NodeId::new(0), "broken", now);
            }
            lost
        }

        fn wake_deadline(&mut self) -> Option<Instant> {
            self.wake_deadline
        }
    }

    #[test]
    fn a_turn_in_which_nothing_is_due_reads_what_was_left_and_writes() {
        let mut driver = Recorder::new();
        run(&mut driver);
        assert_eq!(driver.calls, ["read the rest", "act", "write"]);
    }

    #[test]
    fn no_timeout_is_believed_before_the_sockets_were_read_and_written() {
        let mut driver = Recorder::overdue();
        run(&mut driver);
        let expected = ["read the rest", "read all", "act", "write", "expire", "write"];
        assert_eq!(driver.calls, expected);
    }

    #[test]
    fn a_step_that_comes_late_reads_the_clock_itself() {
        let mut driver = Recorder::overdue();
        let mut step = Step::FIRST;
        while step != Step::Expire {
            step = step.take(&mut driver).unwrap();
        }
        driver.clock += 1_000_000;
        let late = Instant::from_nanos(driver.clock);
        assert_eq!(step.take(&mut driver), Some(Step::Write));
        assert!(driver.expired_at.unwrap() > late);
    }

    #[test]
    fn clock_is_read_for_every_end_but_that_of_a_release() {
        let mut driver = Recorder::new();
        let start = driver.now();
        driver.core.acquire(b"k", LockOptions::once(Duration::from_secs(1)), 1, start).unwrap();
        driver.core.handle_disconnected(NodeId::new(0), "refused", start);
        let token = LockToken::random(&mut StdRng::from_seed([1; 32]));
        let lock = Lock { record: RecordId::of(0), token, fence: Fence::None };
        driver.core.release(lock, 2, start);
        let ends = std::iter::from_fn(|| Some((hand_out(&mut driver)?.data, driver.clock)));
        assert_eq!(ends.collect::<Vec<_>>(), [(1, 2), (2, 2)]);
    }

    #[test]
    fn a_connection_that_a_write_finds_lost_is_followed_by_another_write() {
        let mut driver = Recorder::new();
        driver.losses = 2;
        write_out(&mut driver);
        assert_eq!(driver.calls, ["act", "write", "write", "write"]);
    }

    #[test]
    fn a_driver_sleeps_until_the_first_of_what_it_waits_for() {
        let mut driver = Recorder::new();
        let due = driver.core.next_timeout().unwrap();
        assert_eq!(wake(&mut driver), Wake::At(due));
        let earlier = Instant::from_nanos(due.as_nanos() - 1);
        driver.wake_deadline = Some(earlier);
        assert_eq!(wake(&mut driver), Wake::At(earlier));
        driver.rest = true;
        assert_eq!(wake(&mut driver), Wake::AtOnce);
    }
}
