//! The bench's own timer on its poller, for pairs that begin at a set time. A poller's timeout is
//! whole milliseconds, rounded up, and the error would be read as latency.
//!
//! If the system has no such timer, pairs begin up to a millisecond late. Their latency shows it,
//! because it is counted from when they should have begun.

use std::io;
use std::time::Duration;

use mio::{Registry, Token};

#[cfg(target_os = "linux")]
pub use timerfd::Pacer;

#[cfg(not(target_os = "linux"))]
pub use none::Pacer;

#[cfg(target_os = "linux")]
mod timerfd {
    use super::{Duration, Registry, Token, io};
    use std::os::fd::{AsRawFd, OwnedFd};

    use mio::Interest;
    use mio::unix::SourceFd;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    /// Wakes the poller.
    #[derive(Debug)]
    pub struct Pacer(OwnedFd);

    impl Pacer {
        pub fn new(registry: &Registry, token: Token) -> io::Result<Pacer> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
            // The timer is edge-triggered, so it need not be read.
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Pacer(timer))
        }

        /// Wakes the poller after `sleep`; an earlier setting is replaced.
        pub fn wake_in(&self, sleep: Duration) -> io::Result<()> {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Zero would switch the timer off.
            let sleep = sleep.max(Duration::from_nanos(1));
            let seconds = i64::try_from(sleep.as_secs()).unwrap_or(i64::MAX);
            let it_value = Timespec { tv_sec: seconds, tv_nsec: sleep.subsec_nanos().into() };
            let spec = Itimerspec { it_interval: zero, it_value };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec)?;
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod none {
    use super::{Duration, Registry, Token, io};

    /// The system has no such timer: only the poller's timeout is left.
    #[derive(Debug)]
    pub struct Pacer;

    impl Pacer {
        pub fn new(_: &Registry, _: Token) -> io::Result<Pacer> {
            Ok(Pacer)
        }

        pub fn wake_in(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }
    }
}
