//! A timer on the clock that deadlines are on. That clock goes on while the machine is suspended,
//! so if a deadline passes meanwhile, the loop wakes up together with the machine.
//!
//! The hazard is the poller's own timeout, which stops while the machine is suspended. Afterwards a
//! command would run past its deadline for the rest of the timeout.

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
        // Events of the poller are edge-triggered, so the timer need not be read.
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        Ok(Timer(timer))
    }

    /// Wakes the poller after `sleep`. If the timer cannot be set, the poller's own timeout has to
    /// do that.
    pub fn wake_after(&self, sleep: Duration) {
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(it_value) = Timespec::try_from(sleep) else { return };
        let time = Itimerspec { it_interval, it_value };
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &time);
    }
}
