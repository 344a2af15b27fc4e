//! A timer that wakes the poller to the microsecond, if the system has one. The poller's own
//! timeout is rounded up to whole milliseconds, and the wait for another client's lock can be
//! shorter. The timer also goes on while the machine is suspended; the poller's timeout stops then.
//!
//! An alarm that goes off early is harmless, and one that is missing only delays the wake-up to the
//! poller's timeout. But a driver may ask the alarm to replace every timeout. Such a driver sleeps
//! without a timeout, and the alarm also has to ring if there is something to do immediately. For
//! it the hazard is an alarm that is not set.

use std::io;
use std::time::Duration;

use mio::{Registry, Token};

use crate::proto::time::Instant;

/// For longer sleeps the alarm is not set, because an error of a millisecond matters less than the
/// system call.
const SHORT: Duration = Duration::from_millis(10);

/// Wakes the poller at a moment.
#[derive(Debug)]
pub struct Alarm {
    timer: Option<timer::Timer>,
    /// The moment for which the timer was last set; it may have passed.
    set_to: Instant,
    /// The alarm is set only for sleeps shorter than this.
    shorter_than: Duration,
    /// `ring` was called, and the poller has not reported that yet.
    rung: bool,
    /// By how much tests had advanced the clock when the alarm last went off.
    #[cfg(feature = "testing")]
    ahead: Duration,
}

impl Alarm {
    /// An alarm that wakes the poller of `registry` under `token`. If the system refuses a timer,
    /// the alarm does nothing.
    pub fn new(registry: &Registry, token: Token) -> Alarm {
        let timer = timer::Timer::new(registry, token).ok();
        Alarm {
            timer,
            set_to: Instant::default(),
            shorter_than: SHORT,
            rung: false,
            #[cfg(feature = "testing")]
            ahead: Duration::ZERO,
        }
    }

    /// Sets the alarm for every sleep from now on; returns `false` if there is no timer.
    pub fn stand_for_every_timeout(&mut self) -> bool {
        self.shorter_than = Duration::MAX;
        self.stands_for_every_timeout()
    }

    /// Whether the driver needs no timeout of its own.
    pub fn stands_for_every_timeout(&self) -> bool {
        self.timer.is_some() && self.shorter_than == Duration::MAX
    }

    /// Makes the poller's next sleep end immediately, if the alarm replaces every timeout.
    pub fn ring(&mut self) {
        if self.stands_for_every_timeout() && !self.rung {
            self.rung = self.timer.as_ref().is_some_and(|timer| timer.ring().is_ok());
        }
    }

    /// Takes back a [`ring`](Alarm::ring) that the poller has not reported yet.
    pub fn disarm(&mut self) {
        if std::mem::take(&mut self.rung) {
            if let Some(timer) = &self.timer {
                timer.hush();
            }
        }
    }

    /// Records that the poller reported the alarm.
    pub fn went_off(&mut self) {
        self.rung = false;
        #[cfg(feature = "testing")]
        self.check_for_advances();
    }

    /// If a test has advanced the clock since the last call, the timer would go off too late: so
    /// this makes the next `wake_at` set it again.
    #[cfg(feature = "testing")]
    fn check_for_advances(&mut self) {
        let ahead = crate::testing::clock::ahead();
        if std::mem::replace(&mut self.ahead, ahead) != ahead {
            self.set_to = Instant::default();
        }
    }

    /// Makes the poller wake at `due`, if the sleep until then is short, or if `in_suspend` says
    /// that the poller has to wake even if the machine is suspended in between.
    pub fn wake_at(&mut self, due: Instant, now: Instant, in_suspend: bool) {
        let sleep = due.saturating_since(now);
        if sleep.is_zero() {
            return self.ring();
        }
        self.disarm();
        let set = self.set_to > now && self.set_to <= due;
        let long = sleep >= self.shorter_than && !in_suspend;
        if long || set {
            return;
        }
        if self.timer.as_ref().is_some_and(|timer| timer.set(sleep).is_ok()) {
            self.set_to = due;
        }
    }

    /// Deregisters from the poller.
    pub fn leave(&mut self, registry: &Registry) {
        if let Some(timer) = self.timer.take() {
            timer.leave(registry);
        }
    }

    /// Closes the timer without deregistering it, because after a fork the poller belongs to the
    /// parent.
    pub fn forget(&mut self) {
        self.timer = None;
    }
}

#[cfg(target_os = "linux")]
mod timer {
    use super::*;
    use mio::Interest;
    use mio::unix::SourceFd;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use std::os::fd::{AsRawFd, OwnedFd};
    #[cfg(feature = "testing")]
    use {crate::testing::clock::sleepers, std::sync::Arc};

    /// A timer, and an eventfd (the bell) that wakes the poller immediately, which costs less than
    /// setting the timer and taking its interrupt.
    #[derive(Debug)]
    pub struct Timer {
        timer: OwnedFd,
        bell: OwnedFd,
        /// The eventfd to which tests write when they advance the clock.
        #[cfg(feature = "testing")]
        advances: Arc<Advances>,
    }

    /// An eventfd besides the bell: a ring of the bell may be taken back, but this one must not be.
    #[cfg(feature = "testing")]
    #[derive(Debug)]
    struct Advances(OwnedFd);

    #[cfg(feature = "testing")]
    impl sleepers::Bell for Advances {
        fn ring(&self) {
            // The write cannot fail: the counter would be full only after 2^64 of them.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }
    }

    impl Timer {
        pub fn new(registry: &Registry, token: Token) -> io::Result<Timer> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
            let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            // Both descriptors are edge-triggered, so they need not be read.
            for fd in [&timer, &bell] {
                registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
            }
            Ok(Timer {
                timer,
                bell,
                #[cfg(feature = "testing")]
                advances: Timer::hear_advances(registry, token)?,
            })
        }

        #[cfg(feature = "testing")]
        fn hear_advances(registry: &Registry, token: Token) -> io::Result<Arc<Advances>> {
            let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            registry.register(&mut SourceFd(&bell.as_raw_fd()), token, Interest::READABLE)?;
            let advances = Arc::new(Advances(bell));
            sleepers::note(&advances);
            Ok(advances)
        }

        /// Makes the poller wake immediately.
        pub fn ring(&self) -> io::Result<()> {
            rustix::io::write(&self.bell, &1_u64.to_ne_bytes())?;
            Ok(())
        }

        /// Takes back a ring that the poller has not reported yet.
        pub fn hush(&self) {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }

        pub fn set(&self, sleep: Duration) -> io::Result<()> {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let (tv_sec, tv_nsec) = (sleep.as_secs() as i64, sleep.subsec_nanos().into());
            let spec = Itimerspec { it_interval: zero, it_value: Timespec { tv_sec, tv_nsec } };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
            Ok(())
        }

        pub fn leave(self, registry: &Registry) {
            for fd in [&self.timer, &self.bell] {
                let _ = registry.deregister(&mut SourceFd(&fd.as_raw_fd()));
            }
            #[cfg(feature = "testing")]
            let _ = registry.deregister(&mut SourceFd(&self.advances.0.as_raw_fd()));
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use super::*;

    /// No timer on this system.
    #[derive(Debug)]
    pub enum Timer {}

    impl Timer {
        pub fn new(_: &Registry, _: Token) -> io::Result<Timer> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub fn set(&self, _: Duration) -> io::Result<()> {
            match *self {}
        }

        pub fn ring(&self) -> io::Result<()> {
            match *self {}
        }

        pub fn hush(&self) {
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
    fn alarm_wakes_the_poller_each_time() {
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
    fn alarm_is_set_only_for_short_sleeps_and_earlier_moments() {
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

    /// Whether the alarm wakes the poller within this time.
    fn wakes(poll: &mut Poll, alarm: &mut Alarm, within: Duration) -> bool {
        let mut events = Events::with_capacity(4);
        poll.poll(&mut events, Some(within)).expect("the system has it");
        events.iter().for_each(|_| alarm.went_off());
        !events.is_empty()
    }

    #[test]
    fn alarm_rings_once_until_it_is_read() {
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
        // Setting a later moment takes back a ring. A moment that was set before the ring stays
        // set.
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
        // A moment that has passed wakes the poller immediately.
        alarm.wake_at(soon, clock::now(), false);
        assert!(wakes(&mut poll, &mut alarm, 20 * second));
        alarm.leave(poll.registry());
    }
}
