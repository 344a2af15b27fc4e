//! The times of the search. As many as possible are equal, so that they lead to few different
//! moments: each moment adds states.

use std::time::Duration;

use redlatch::proto::{Instant, RestartGuard};

/// The ttl of all locks, which is the longest allowed.
pub const TTL: Duration = Duration::from_millis(100);
pub const MAX_TTL: Duration = TTL;
/// All times that lead to a step of a connection are as long as the node timeout.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(70);
pub const RESET_AFTER: Duration = NODE_TIMEOUT;
pub const CONNECT_TIMEOUT: Duration = NODE_TIMEOUT;
pub const RECONNECT: Duration = NODE_TIMEOUT;
/// A waiting client's pauses are as long as the node timeout, or as near to it as they may be.
pub const PAUSE: Duration = NODE_TIMEOUT;
pub const RETRY: Duration = NODE_TIMEOUT;
/// The ttl of a key that is handed over to a waiter that may have stopped.
pub const SHORT_TTL: Duration = Duration::from_millis(40);
/// How long a client waits in line: up to its third poll.
pub const WAIT: Duration = Duration::from_millis(220);
/// The probe interval, which is longer than any run.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(3600);

/// Timers that are due later than this are left out. Only probes are.
pub const HORIZON: Duration = Duration::from_secs(60);

/// All moments are whole milliseconds: this many nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;

/// When each run begins.
pub const START: Instant = Instant::from_nanos(3_600_000_000_000);

/// For how long after a node forgot its keys its grants do not count.
pub fn quarantine() -> Duration {
    RestartGuard::quarantine(MAX_TTL)
}
