//! A timer that wakes the poller to the microsecond, where the system has one: a poller's own
//! timeout is whole milliseconds, rounded up, and a wait for another's lock is shorter than that.
//! And it goes on while the machine is suspended, where that timeout stops.
//!
//! An alarm that comes early is harmless, and one that never comes is only late: the poller's
//! timeout stands behind it. But for those who asked it to stand for every timeout: they sleep
//! without one, and have it ring where there is something to do at once.

use std::io;
use std::time::Duration;

use mio::{Registry, Token};

use crate::proto::time::Instant;

/// Sleeps that are longer than this are not worth a system call for a millisecond.
const SHORT: Duration = Duration::from_millis(10);

/// Wakes the poller at a moment.
#[derive(Debug)]
pub struct Alarm {
    timer: Option<timer::Timer>,
    /// When it goes off; it may have done so.
    set_to: Instant,
    /// It is not set for sleeps that are as long as this.
    shorter_than: Duration,
    /// It was rung, and nobody has heard of it yet.
    rung: bool,
}

impl Alarm {
    /// An alarm that wakes the poller of `registry` under `token`. Where the system refuses it,
    /// there is none.
    pub fn new(registry: &Registry, token: Token) -> Alarm {
        let timer = timer::Timer::new(registry, token).ok();
        Alarm { timer, set_to: Instant::default(), shorter_than: SHORT, rung: false }
    }

    /// From now on it is set for every sleep; `false` where there is no timer.
    pub fn stand_for_every_timeout(&mut self) -> bool {
        self.shorter_than = Duration::MAX;
        self.stands_for_every_timeout()
    }

    /// Whether those who sleep need no timeout of their own.
    pub fn stands_for_every_timeout(&self) -> bool {
        self.timer.is_some() && self.shorter_than == Duration::MAX
    }

    /// Wakes the poller at once, where it stands for every timeout.
    pub fn ring(&mut self) {
        if self.stands_for_every_timeout() && !self.rung {
            self.rung = self.set(Duration::from_nanos(1));
            // What it was set to is overwritten.
            self.set_to = Instant::default();
        }
    }

    /// It is not to wake the poller at once any more.
    pub fn disarm(&mut self) {
        if std::mem::take(&mut self.rung) {
            self.set(Duration::ZERO);
            self.set_to = Instant::default();
        }
    }

    /// The poller told of it.
    pub fn went_off(&mut self) {
        self.rung = false;
    }

    /// Sees to it that the poller wakes at `due`, where the sleep until then is short, or where
    /// `in_suspend` time counts, too: what is due may have been so for long when the machine is
    /// awake again.
    pub fn wake_at(&mut self, due: Instant, now: Instant, in_suspend: bool) {
        let sleep = due.saturating_since(now);
        if sleep.is_zero() {
            return self.ring();
        }
        let set = self.set_to > now && self.set_to <= due;
        let long = sleep >= self.shorter_than && !in_suspend;
        if long || (set && !self.rung) {
            return;
        }
        if self.set(sleep) {
            (self.set_to, self.rung) = (due, false);
        }
    }

    /// Zero: it does not go off.
    fn set(&self, sleep: Duration) -> bool {
        self.timer.as_ref().is_some_and(|timer| timer.set(sleep).is_ok())
    }

    /// Leaves the poller.
    pub fn leave(&mut self, registry: &Registry) {
        if let Some(timer) = self.timer.take() {
            timer.leave(registry);
        }
    }

    /// Is closed, and nothing else: the poller is another process's.
    pub fn forget(&mut self) {
        self.timer = None;
    }
}

#[cfg(target_os = "linux")]
mod timer {
    use super::*;
    use mio::Interest;
    use mio::unix::SourceFd;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use std::os::fd::{AsRawFd, OwnedFd};

    #[derive(Debug)]
    pub struct Timer(OwnedFd);

    impl Timer {
        pub fn new(registry: &Registry, token: Token) -> io::Result<Timer> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
            // Told at each edge, so that it need not be read.
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Timer(timer))
        }

        pub fn set(&self, sleep: Duration) -> io::Result<()> {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let (tv_sec, tv_nsec) = (sleep.as_secs() as i64, sleep.subsec_nanos().into());
            let spec = Itimerspec { it_interval: zero, it_value: Timespec { tv_sec, tv_nsec } };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec)?;
            Ok(())
        }

        pub fn leave(self, registry: &Registry) {
            let _ = registry.deregister(&mut SourceFd(&self.0.as_raw_fd()));
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use super::*;

    /// There is none.
    #[derive(Debug)]
    pub enum Timer {}

    impl Timer {
        pub fn new(_: &Registry, _: Token) -> io::Result<Timer> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub fn set(&self, _: Duration) -> io::Result<()> {
            match *self {}
        }

        pub fn leave(self, _: &Registry) {
            match self {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::net::clock;
    use mio::{Events, Poll};

    #[test]
    fn it_wakes_the_poller_each_time() {
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(4));
        let mut alarm = Alarm::new(poll.registry(), Token(7));
        for _ in 0..3 {
            let due = clock::now().saturating_add(Duration::from_micros(200));
            alarm.wake_at(due, clock::now(), false);
            poll.poll(&mut events, Some(Duration::from_secs(20))).unwrap();
            assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(7)]);
            assert!(clock::now() >= due);
        }
        alarm.leave(poll.registry());
    }

    #[test]
    fn it_is_set_only_for_short_sleeps_and_to_earlier_moments() {
        let poll = Poll::new().unwrap();
        let mut alarm = Alarm::new(poll.registry(), Token(7));
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut set = |due, now| {
            alarm.wake_at(at(due), at(now), false);
            alarm.set_to
        };
        assert_eq!(set(2000, 1000), at(0));
        assert_eq!(set(1005, 1000), at(1005));
        assert_eq!(set(1007, 1000), at(1005));
        assert_eq!(set(1003, 1000), at(1003));
        assert_eq!(set(1007, 1004), at(1007));
        assert_eq!(set(1000, 1004), at(1007));
    }

    /// Whether it wakes the poller within this time.
    fn wakes(poll: &mut Poll, alarm: &mut Alarm, within: Duration) -> bool {
        let mut events = Events::with_capacity(4);
        poll.poll(&mut events, Some(within)).expect("the system has it");
        events.iter().for_each(|_| alarm.went_off());
        !events.is_empty()
    }

    #[test]
    fn it_rings_once_until_somebody_heard_of_it() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let mut poll = Poll::new().unwrap();
        let mut alarm = Alarm::new(poll.registry(), Token(7));
        alarm.ring();
        assert!(!wakes(&mut poll, &mut alarm, second / 10), "they have a timeout of their own");
        assert!(alarm.stand_for_every_timeout());
        for _ in 0..3 {
            alarm.ring();
            alarm.ring();
            assert!(wakes(&mut poll, &mut alarm, 20 * second));
            assert!(!wakes(&mut poll, &mut alarm, second / 10));
        }
        // What it was set to is set again behind a ring, and takes the ring's place.
        let late = clock::now().saturating_add(hour);
        let soon = clock::now().saturating_add(second);
        alarm.wake_at(soon, clock::now(), false);
        alarm.ring();
        alarm.wake_at(late, clock::now(), false);
        assert!(!wakes(&mut poll, &mut alarm, second / 10), "a ring that was taken back");
        alarm.ring();
        assert!(wakes(&mut poll, &mut alarm, 20 * second));
        alarm.wake_at(soon, clock::now(), false);
        assert!(wakes(&mut poll, &mut alarm, 20 * second));
        alarm.ring();
        alarm.disarm();
        assert!(!wakes(&mut poll, &mut alarm, second / 10), "a ring that was hushed");
        // What is due already is due at once.
        alarm.wake_at(soon, clock::now(), false);
        assert!(wakes(&mut poll, &mut alarm, 20 * second));
        alarm.leave(poll.registry());
    }
}
