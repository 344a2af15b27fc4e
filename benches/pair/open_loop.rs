//! An open loop: pairs begin at moments that were drawn beforehand, however many are in flight.
//!
//! A closed loop asks again only after an answer, so a slow answer also delays the next question,
//! and the delay of that question shows nowhere. Here the time of an acquire counts from its
//! intended arrival. If the loop is late, that is part of the figure.
//!
//! The hazard is the timer that wakes the loop for an arrival. A poller's own timeout is whole
//! milliseconds, which is 20 pairs. So each contender's poller has a timer of the system.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::arrivals::Arrivals;
use super::tally::Tally;

/// How many keys there are: an arrival that finds all of them in flight waits for one.
pub const KEYS: usize = 4_096;

/// The timer's token; the contenders use those far below.
const TIMER: Token = Token(1_000_000);

/// A contender, one step at a time.
pub trait Steps {
    /// The registry of the poller.
    fn registry(&self) -> &Registry;

    /// Asks for the lock of a key that is free.
    fn acquire(&mut self, slot: usize);

    /// Writes what was asked for, sleeps until the poller has an event, and reads.
    fn turn(&mut self);

    /// The next lock that was acquired or released in this turn. The release of one that was
    /// acquired is asked for at once.
    fn next_done(&mut self) -> Option<Done>;

    /// Waits for the answers after the majority.
    fn settle(&mut self);
}

/// A request that ended, with the number of its key.
#[derive(Debug, Clone, Copy)]
pub enum Done {
    Acquired(usize),
    Released(usize),
}

/// Begins a pair at each arrival. Returns when all of them are complete and no answer is
/// outstanding.
pub fn run(contender: &mut (impl Steps + ?Sized), mut arrivals: Arrivals, tally: &mut Tally) {
    let started = tally.started();
    let mut timer = Timer::begin(contender.registry());
    let mut free: Vec<usize> = (0..KEYS).rev().collect();
    let mut arrived = vec![started; KEYS];
    let mut next = arrivals.next().map(|after| started + after);
    while next.is_some() || free.len() < KEYS {
        let now = Instant::now();
        while let Some(arrival) = next.filter(|&arrival| arrival <= now) {
            let Some(slot) = free.pop() else { break };
            arrived[slot] = arrival;
            contender.acquire(slot);
            next = arrivals.next().map(|after| started + after);
        }
        if let Some(arrival) = next.filter(|_| !free.is_empty()) {
            timer.wake_at(arrival, now);
        }
        contender.turn();
        while let Some(done) = contender.next_done() {
            match done {
                Done::Acquired(slot) => tally.acquired(arrived[slot]),
                Done::Released(slot) => {
                    tally.completed();
                    free.push(slot);
                }
            }
        }
    }
    tally.end();
    timer.leave(contender.registry());
    contender.settle();
}

/// Wakes the poller at a moment, to the microsecond.
struct Timer {
    fd: OwnedFd,
    set_to: Option<Instant>,
}

impl Timer {
    fn begin(registry: &Registry) -> Timer {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags).expect("a timer");
        // The registration is edge-triggered, so the timer need not be read.
        registry
            .register(&mut SourceFd(&fd.as_raw_fd()), TIMER, Interest::READABLE)
            .expect("a timer can be polled");
        Timer { fd, set_to: None }
    }

    fn wake_at(&mut self, moment: Instant, now: Instant) {
        if self.set_to == Some(moment) {
            return;
        }
        // Zero would disarm the timer.
        let sleep = moment.saturating_duration_since(now).max(Duration::from_nanos(1));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (tv_sec, tv_nsec) = (sleep.as_secs() as i64, sleep.subsec_nanos().into());
        let spec = Itimerspec { it_interval: zero, it_value: Timespec { tv_sec, tv_nsec } };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec).expect("a time to wake");
        self.set_to = Some(moment);
    }

    fn leave(self, registry: &Registry) {
        registry.deregister(&mut SourceFd(&self.fd.as_raw_fd())).expect("it was registered");
    }
}
