//! The clock by which deadlines are measured. The library reads it only here. With the feature
//! `testing`, a test can advance it for the whole process (`redlatch::testing::clock`).
//!
//! The clock also counts the time during which the machine is suspended. So if a lock's deadline
//! passes while a laptop or a virtual machine sleeps, the lock is over when it wakes. On Linux
//! `std::time::Instant` stops during a suspend, so deadlines are not of that type.

use std::time::SystemTime;

pub use crate::proto::time::Instant;

/// The present moment, on the clock by which deadlines are measured.
pub fn now() -> Instant {
    // On Linux the monotonic clock stops during a suspend, but the boot clock goes on. On other
    // systems (the BSDs, macOS) the monotonic clock goes on.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let time = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    advanced(Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos)))
}

/// Adds the time by which tests have advanced the clock.
#[cfg(feature = "testing")]
fn advanced(moment: Instant) -> Instant {
    moment.saturating_add(crate::testing::clock::ahead())
}

/// Without the feature `testing`, nothing advances the clock.
#[cfg(not(feature = "testing"))]
const fn advanced(moment: Instant) -> Instant {
    moment
}

/// Converts a moment of the standard library's clock into one of this clock: for deadlines and
/// timers of a program that uses `std::time::Instant`. Both moments are equally far from the
/// present.
///
/// If the machine is suspended before that moment, the two do not agree any more, because only this
/// clock counts the suspended time.
#[expect(clippy::disallowed_methods, reason = "one reading of each clock is what converts")]
pub fn from_std(moment: std::time::Instant) -> Instant {
    let (theirs, ours) = (std::time::Instant::now(), now());
    match moment.checked_duration_since(theirs) {
        Some(ahead) => ours.saturating_add(ahead),
        None => {
            let ago = u64::try_from(theirs.duration_since(moment).as_nanos()).unwrap_or(u64::MAX);
            Instant::from_nanos(ours.as_nanos().saturating_sub(ago))
        }
    }
}

/// Converts a moment of this clock into one of the standard library's: for a timer of a runtime
/// that uses `std::time::Instant`. As with [`from_std`], convert it again after a suspend.
///
/// A moment that the standard library cannot express becomes the present.
#[expect(clippy::disallowed_methods, reason = "one reading of each clock is what converts")]
pub fn to_std(moment: Instant) -> std::time::Instant {
    let (ours, theirs) = (now(), std::time::Instant::now());
    let ahead = moment.saturating_since(ours);
    let ago = ours.saturating_since(moment);
    let moved = theirs.checked_add(ahead).and_then(|it| it.checked_sub(ago));
    moved.unwrap_or(theirs)
}

/// Converts a moment of this clock into wall time: for logs, and for other programs. Both moments
/// are equally far from the present.
///
/// Wall time is set and corrected while the machine runs, so never decide by it whether a lock is
/// held. A moment that wall time cannot express becomes the present.
#[expect(clippy::disallowed_methods, reason = "one reading of each clock is what converts")]
pub fn to_wall(moment: Instant) -> SystemTime {
    let (ours, wall) = (now(), SystemTime::now());
    let moved = wall.checked_add(moment.saturating_since(ours));
    moved.and_then(|it| it.checked_sub(ours.saturating_since(moment))).unwrap_or(wall)
}

/// Converts wall time into a moment of this clock: for example for a wait until a time of day
/// ([`LockOptions::wait_until`](crate::LockOptions::wait_until)). If the wall clock is set before
/// that moment, the two do not agree any more.
#[expect(clippy::disallowed_methods, reason = "one reading of each clock is what converts")]
pub fn from_wall(moment: SystemTime) -> Instant {
    let (ours, wall) = (now(), SystemTime::now());
    match moment.duration_since(wall) {
        Ok(ahead) => ours.saturating_add(ahead),
        Err(past) => {
            let ago = u64::try_from(past.duration().as_nanos()).unwrap_or(u64::MAX);
            Instant::from_nanos(ours.as_nanos().saturating_sub(ago))
        }
    }
}

impl From<std::time::Instant> for Instant {
    /// See [`from_std`].
    fn from(moment: std::time::Instant) -> Instant {
        from_std(moment)
    }
}

impl From<Instant> for std::time::Instant {
    /// See [`to_std`].
    fn from(moment: Instant) -> std::time::Instant {
        to_std(moment)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the other clock is what it is about")]
    fn a_moment_goes_to_the_clock_of_the_standard_library_and_back() {
        const NEAR: Duration = Duration::from_millis(50);
        let minute = Duration::from_secs(60);
        let (ours, theirs) = (now(), std::time::Instant::now());
        let later = std::time::Instant::from(ours.saturating_add(minute));
        assert!(later.duration_since(theirs + minute - NEAR) < 2 * NEAR);
        let earlier = Instant::from(theirs - Duration::from_millis(1));
        assert!(earlier < now() && ours.saturating_since(earlier) < NEAR);
        let back = Instant::from(std::time::Instant::from(ours));
        assert!(back.as_nanos().abs_diff(ours.as_nanos()) < NEAR.as_nanos() as u64);
        // A moment that one clock cannot express does not wrap around.
        let _ = std::time::Instant::from(Instant::from_nanos(u64::MAX));
        let _ = std::time::Instant::from(Instant::from_nanos(0));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the other clock is what it is about")]
    fn moment_goes_to_wall_time_and_back() {
        const NEAR: Duration = Duration::from_millis(500);
        let minute = Duration::from_secs(60);
        let (ours, wall) = (now(), SystemTime::now());
        let later = to_wall(ours.saturating_add(minute));
        assert!(later.duration_since(wall + minute - NEAR).unwrap() < 2 * NEAR);
        let earlier = to_wall(Instant::from_nanos(ours.as_nanos().saturating_sub(1_000_000)));
        assert!(earlier <= SystemTime::now() && wall.duration_since(earlier - NEAR).is_ok());
        for moment in [ours, ours.saturating_add(minute)] {
            let back = from_wall(to_wall(moment));
            assert!(back.as_nanos().abs_diff(moment.as_nanos()) < NEAR.as_nanos() as u64);
        }
        // A moment that one clock cannot express does not wrap around.
        assert!(from_wall(SystemTime::UNIX_EPOCH) < ours);
        let _ = to_wall(Instant::from_nanos(u64::MAX));
        let _ = to_wall(Instant::from_nanos(0));
    }

    #[test]
    fn clock_is_monotonic() {
        let start = now();
        let mut last = start;
        for _ in 0..1000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
        assert!(last > start);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn clock_counts_suspend() {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u64;
        let here = now().as_nanos() / 1_000_000_000;
        assert!(here.abs_diff(boot) <= 1, "{here} s here, {boot} s since boot");
    }

    /// The test above can fail only on a machine that was suspended since its start: on others the
    /// two system clocks show the same time. In a time namespace they differ on every machine.
    #[cfg(target_os = "linux")]
    #[test]
    #[ignore = "needs unshare: apt-get install util-linux, and run as root"]
    fn clock_counts_suspend_where_the_system_clocks_differ() {
        let exe = std::env::current_exe().expect("the path of this test");
        let test = "net::clock::tests::clock_counts_suspend";
        let output = std::process::Command::new("unshare")
            .args(["--time", "--boottime", "3600", "--fork"])
            .arg(exe)
            .args(["--exact", test])
            .output()
            .expect("unshare is there");
        let words = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && words.contains("1 passed"), "{words}");
    }
}
