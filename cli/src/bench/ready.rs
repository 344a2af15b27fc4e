//! Before the first measurement: the nodes are connected, and one pair shows that locks can be had.
//!
//! So connecting is in no figure, and nodes that cannot be locked on are told of at once and in
//! full, instead of after a measurement of nothing.

use std::io;
use std::time::Duration;

use redlatch::{ConfigError, Error, LockOptions, Outcome, clock, clock::Instant};

use super::driver::Driver;

/// No pair of a measurement has this number.
const REHEARSAL: u64 = u64::MAX;

/// Waits until every client knows all of its nodes, or has a quorum and has given the others a
/// node timeout, and at most for the connect timeout. A signal that ends it is returned.
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

/// Takes a lock and gives it back. A signal that ends it is returned.
///
/// # Errors
/// Why there is no lock.
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

/// Turns until nothing is asked or owed any more, and for `limit` at most, and tells how many locks
/// may be left somewhere then.
///
/// # Errors
/// The system's poller fails.
pub fn settle(driver: &mut Driver, limit: Duration) -> Result<usize, Error> {
    let end = clock::now().saturating_add(limit);
    loop {
        // Nobody waits for them any more.
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

/// What a measurement cannot go on without.
pub fn poller_failed(error: &io::Error) -> Error {
    let problem = format!("the system's poller: {error}").into();
    Error::Config(ConfigError::System { problem })
}
