//! The times of the search. They are as alike as they can be, so that as few different moments as
//! possible follow: each of them adds states.

use std::time::Duration;

use redlatch::proto::{Instant, RestartGuard};

/// The ttl that is asked for: the longest that is allowed.
pub const TTL: Duration = Duration::from_millis(100);
pub const MAX_TTL: Duration = TTL;
/// The node timeout has the same length as all other times that lead to a step of a connection.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(70);
pub const RESET_AFTER: Duration = NODE_TIMEOUT;
pub const CONNECT_TIMEOUT: Duration = NODE_TIMEOUT;
pub const RECONNECT: Duration = NODE_TIMEOUT;
/// Each pause of a client that waits is as long as the node timeout, or as near to it as it may be.
pub const PAUSE: Duration = NODE_TIMEOUT;
pub const RETRY: Duration = NODE_TIMEOUT;
/// A ttl for a key that is handed over to a waiter that may have stopped.
pub const SHORT_TTL: Duration = Duration::from_millis(40);
/// How long a client waits in line: up to its third poll.
pub const WAIT: Duration = Duration::from_millis(220);
/// The probe interval, which is longer than any run.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(3600);

/// The search does not wait for timers that are due later than this: only probes are.
pub const HORIZON: Duration = Duration::from_secs(60);

/// All moments are whole milliseconds.
pub const MILLISECOND: u64 = 1_000_000;

/// When each run begins.
pub const START: Instant = Instant::from_nanos(3_600_000_000_000);

/// How long the grants of a node do not count after it forgot.
pub fn quarantine() -> Duration {
    RestartGuard::quarantine(MAX_TTL)
}
