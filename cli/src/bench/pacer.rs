//! An exact timer for pairs that begin at a set time. A poller's timeout is rounded up to whole
//! milliseconds, and the bench would report that error as latency.
//!
//! On systems without such a timer, pairs begin up to a millisecond late. Their latency includes
//! that, because it is measured from the intended moment.

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
            // Events of the poller are edge-triggered, so the timer need not be read.
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Pacer(timer))
        }

        /// Wakes the poller once after `sleep`, in place of an earlier setting.
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

    /// Does nothing: without such a timer the poller's own timeout ends the sleep.
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
