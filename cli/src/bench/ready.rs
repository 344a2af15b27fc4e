//! Before the first measurement: waits until the nodes are connected, and acquires and releases one
//! lock.
//!
//! So no figure includes the time to connect. If no lock can be had, the bench reports that in full
//! before it measures anything.

use std::io;
use std::time::Duration;

use redlatch::{ConfigError, Error, LockOptions, Outcome, clock, clock::Instant};

use super::driver::Driver;

/// The `data` of the first request: no pair of a measurement has this number.
const REHEARSAL: u64 = u64::MAX;

/// Waits until every client has connected to all nodes or failed to, or until every client has had
/// a quorum for a node timeout, but at most for the connect timeout. Returns the signal that ended
/// the wait, if any.
///
/// # Errors
/// The system's poller fails.
pub fn gather(driver: &mut Driver) -> Result<Option<i32>, Error> {
    let settings = driver.client(0).coordinator().settings();
    let (node_timeout, most) = (settings.node_timeout, settings.connect_timeout);
    let end = clock::now().saturating_add(most);
    let mut quorum_since = None;
    loop {
        let now = clock::now();
        let mut until = end;
        if driver.has_quorums() {
            until = quorum_since.get_or_insert(now).saturating_add(node_timeout).min(end);
        }
        if driver.knows_the_nodes() || now >= until {
            return Ok(None);
        }
        turn(driver, until)?;
        if let Some(signal) = driver.signal() {
            return Ok(Some(signal));
        }
    }
}

/// Acquires a lock and releases it. Returns the signal that ended this early, if any.
///
/// # Errors
/// The lock could not be acquired; the error says why.
pub fn rehearse(driver: &mut Driver, key: &str, ttl: Duration) -> Result<Option<i32>, Error> {
    let wait = driver.client(0).coordinator().settings().connect_timeout;
    let op = driver.client(0).acquire(key, LockOptions::new(ttl).wait(wait), REHEARSAL)?;
    loop {
        while let Some(done) = driver.completion() {
            match done.result? {
                Outcome::Acquired(lock) => {
                    driver.client(0).release(lock, REHEARSAL);
                }
                _ => return Ok(None),
            }
        }
        if let Some(signal) = driver.signal() {
            driver.client(0).cancel(op);
            return Ok(Some(signal));
        }
        turn(driver, Instant::from_nanos(u64::MAX))?;
    }
}

/// Turns the loop until no request is in flight and no release is pending, but for `limit` at most.
/// Returns how many locks may still be on a node.
///
/// # Errors
/// The system's poller fails.
pub fn settle(driver: &mut Driver, limit: Duration) -> Result<usize, Error> {
    let end = clock::now().saturating_add(limit);
    loop {
        // These results are not needed any more, but they have to be fetched.
        while driver.completion().is_some() {}
        if driver.open() == 0 || clock::now() >= end {
            return Ok(driver.open());
        }
        turn(driver, end)?;
    }
}

fn turn(driver: &mut Driver, until: Instant) -> Result<(), Error> {
    driver.turn(until).map_err(|error| poller_failed(&error))
}

/// The error to return if the poller fails.
pub fn poller_failed(error: &io::Error) -> Error {
    let problem = format!("poller: {error}").into();
    Error::Config(ConfigError::System { problem })
}
