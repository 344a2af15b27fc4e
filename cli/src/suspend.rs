//! A timer on the clock that deadlines are on: it goes on while the machine is suspended, and so
//! whoever sleeps until a deadline is awake at once when the machine is.
//!
//! The hazard is the poller's own timeout, which stops in suspend: a command would run on behind
//! its deadline for as long as there was left to sleep.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// The token of the timer on the poller.
const TIMER: Token = Token(3);

/// The timer.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    pub fn new(registry: &Registry) -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // Told at each edge, so that it need not be read.
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        Ok(Timer(timer))
    }

    /// Wakes the poller after that time; where it cannot be set, the poller's own timeout does.
    pub fn wake_after(&self, sleep: Duration) {
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(it_value) = Timespec::try_from(sleep) else { return };
        let time = Itimerspec { it_interval, it_value };
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &time);
    }
}
