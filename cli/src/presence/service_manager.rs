//! Messages to the service manager, as sd_notify(3) describes them: datagrams to the socket that
//! `NOTIFY_SOCKET` names.
//!
//! The hazard is a manager that does not read. So the socket does not block, and a message for
//! which it has no room is dropped. The lock does not depend on these messages.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use redlatch::clock::Instant;

/// The variable with the address of the socket.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The variable with the longest time between two messages to the watchdog, in microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The variable with the process that has to feed the watchdog; if unset, any process may.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// The service manager that started redlatch.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// The time between two `WATCHDOG=1`: half of what the manager allows.
    every: Option<Duration>,
    next: Instant,
}

impl ServiceManager {
    /// `None` if no manager expects messages.
    pub fn of_environment() -> Option<ServiceManager> {
        let address = address(&std::env::var_os(SOCKET)?)?;
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        let variable = |name| std::env::var(name).ok();
        let every = watchdog(variable(WATCHDOG), variable(WATCHDOG_PID), std::process::id());
        Some(ServiceManager { socket, address, every, next: Instant::default() })
    }

    /// Sends a message, which has one assignment on each line.
    pub fn notify(&self, message: &str) {
        // If the socket has no room, or no manager reads it, the message is dropped.
        let _ = self.socket.send_to_addr(message.as_bytes(), &self.address);
    }

    /// Sends `WATCHDOG=1` if it is due, and returns when it is due again.
    pub fn feed_watchdog(&mut self, now: Instant) -> Option<Instant> {
        let every = self.every?;
        if self.next <= now {
            self.notify("WATCHDOG=1");
            self.next = now.saturating_add(every);
        }
        Some(self.next)
    }
}

/// Reads the address: a path, or a name in the abstract namespace, which begins with `@`. Other
/// kinds of addresses (vsock) are not of this machine.
fn address(given: &OsStr) -> Option<SocketAddr> {
    match given.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(given).ok(),
        _ => None,
    }
}

fn watchdog(micros: Option<String>, process: Option<String>, us: u32) -> Option<Duration> {
    let micros = micros?.parse().ok().filter(|&micros: &u64| micros > 0)?;
    let about_us = process.is_none_or(|process| process.parse() == Ok(us));
    // At most once per millisecond, because the loop cannot sleep for a shorter time.
    about_us.then(|| (Duration::from_micros(micros) / 2).max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_notified_twice_as_often_as_it_demands() {
        let text = |text: &str| Some(text.to_owned());
        let half = Some(Duration::from_millis(500));
        assert_eq!(watchdog(text("1000000"), text("7"), 7), half);
        assert_eq!(watchdog(text("1000000"), None, 7), half);
        assert_eq!(watchdog(text("1"), None, 7), Some(Duration::from_millis(1)));
        for (micros, process) in [(None, None), (text("0"), None), (text("x"), None)] {
            assert_eq!(watchdog(micros, process, 7), None);
        }
        assert_eq!(watchdog(text("1000000"), text("8"), 7), None);
    }

    #[test]
    fn service_manager_is_notified_only_by_sockets_of_this_machine() {
        assert!(address(OsStr::new("/run/notify")).is_some());
        let abstract_name = address(OsStr::new("@a/b")).expect("Linux has them");
        assert_eq!(abstract_name.as_abstract_name(), Some(&b"a/b"[..]));
        for bad in ["", "relative", "vsock:2:1234"] {
            assert!(address(OsStr::new(bad)).is_none(), "{bad}");
        }
    }
}
