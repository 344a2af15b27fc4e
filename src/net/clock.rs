//! The only place that reads a clock.
//!
//! It counts the time the machine is suspended: a lock whose deadline passes while a laptop or a
//! virtual machine sleeps is over when it wakes. `std::time::Instant` stops in suspend on Linux,
//! so deadlines are not of that type.

use crate::proto::time::Instant;

/// The present moment, on the clock that deadlines are on.
pub fn now() -> Instant {
    // On Linux the monotonic clock stops in suspend and this one does not. Elsewhere (the BSDs,
    // macOS) the monotonic clock goes on.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let time = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_and_never_back() {
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
    fn it_is_the_clock_that_counts_suspend() {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u64;
        let here = now().as_nanos() / 1_000_000_000;
        assert!(here.abs_diff(boot) <= 1, "{here} s here, {boot} s since boot");
    }

    /// A machine that was never suspended has the same time on both clocks, so the test above can
    /// fail only on one that was. In a time namespace the clocks differ on every machine.
    #[cfg(target_os = "linux")]
    #[test]
    #[ignore = "needs unshare: apt-get install util-linux, and run as root"]
    fn it_counts_suspend_also_where_the_clocks_differ() {
        let exe = std::env::current_exe().expect("the path of this test");
        let test = "net::clock::tests::it_is_the_clock_that_counts_suspend";
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
