//! A timer on the clock of the deadlines. That clock goes on while the machine is suspended, so a
//! thread that sleeps until a deadline wakes up as soon as the machine does.
//!
//! The hazard is the poller's own timeout, which stops in suspend: after a suspend a command would
//! run on past its deadline for the rest of the sleep.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// The poller's token for the timer.
const TIMER: Token = Token(3);

/// A timer that suspend does not stop.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    pub fn new(registry: &Registry) -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // Reported at each edge, so that the timer need not be read.
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        Ok(Timer(timer))
    }

    /// Wakes the poller after that time. If the timer cannot be set, the poller's own timeout does
    /// it.
    pub fn wake_after(&self, sleep: Duration) {
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(it_value) = Timespec::try_from(sleep) else { return };
        let time = Itimerspec { it_interval, it_value };
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &time);
    }
}
