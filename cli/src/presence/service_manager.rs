//! Messages to the service manager, as sd_notify(3) describes them: datagrams to the socket that
//! `NOTIFY_SOCKET` names.
//!
//! The hazard is a manager that does not read. The socket does not block, and a message that finds
//! no room is dropped: nothing here depends on it.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use redlatch::clock::Instant;

/// The variable with the address of the socket.
const SOCKET: &str = "NOTIFY_SOCKET";
/// How often the manager wants to hear from us, in microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The process that the watchdog is about, if it is not everyone.
const WATCHED: &str = "WATCHDOG_PID";

/// The service manager that started us.
#[derive(Debug)]
pub struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// How often `WATCHDOG=1` is sent: twice as often as the manager wants it.
    every: Option<Duration>,
    next: Instant,
}

impl ServiceManager {
    /// `None` if no manager wants to be told.
    pub fn of_environment() -> Option<ServiceManager> {
        let address = address(&std::env::var_os(SOCKET)?)?;
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        let variable = |name| std::env::var(name).ok();
        let every = watchdog(variable(WATCHDOG), variable(WATCHED), std::process::id());
        Some(ServiceManager { socket, address, every, next: Instant::default() })
    }

    /// Sends a message: assignments, one a line.
    pub fn tell(&self, message: &str) {
        // If there is no room or no manager, the message is dropped.
        let _ = self.socket.send_to_addr(message.as_bytes(), &self.address);
    }

    /// Sends `WATCHDOG=1` if it is due, and returns when it is due again.
    pub fn feed_watchdog(&mut self, now: Instant) -> Option<Instant> {
        let every = self.every?;
        if self.next <= now {
            self.tell("WATCHDOG=1");
            self.next = now.saturating_add(every);
        }
        Some(self.next)
    }
}

/// A path, or a name in the abstract namespace, which begins with `@`. Other kinds are not for
/// processes of this machine.
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
    // The watchdog is not fed more often than the loop can sleep.
    about_us.then(|| (Duration::from_micros(micros) / 2).max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_fed_twice_as_often_as_it_wants() {
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
    fn only_sockets_of_this_machine_are_told() {
        assert!(address(OsStr::new("/run/notify")).is_some());
        let abstract_name = address(OsStr::new("@a/b")).expect("Linux has them");
        assert_eq!(abstract_name.as_abstract_name(), Some(&b"a/b"[..]));
        for bad in ["", "relative", "vsock:2:1234"] {
            assert!(address(OsStr::new(bad)).is_none(), "{bad}");
        }
    }
}
