//! One client for many threads: they wait for their locks, and a thread of the client drives it.
//!
//! `cargo run --features testing --example shared [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::error::Error;
use std::thread;
use std::time::Duration;

use redlatch::testing::tcp::Masters;
use redlatch::{Config, LockOptions, RestartGuard, SharedClient};

const TTL: Duration = Duration::from_secs(10);

/// No lock is renewed for longer.
const MAX_HOLD: Duration = Duration::from_secs(3600);

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    // Without addresses there are three masters inside this process.
    let masters = Masters::start(if urls.is_empty() { 3 } else { 0 })?;
    let config = match urls.is_empty() {
        // They are a moment old, and nothing was ever locked there.
        true => Config::new(masters.urls())?.restart_guard(RestartGuard::Off),
        false => Config::new(urls)?,
    };

    let locks = SharedClient::connect_blocking(config)?;
    let workers: Vec<_> = (1..=4)
        .map(|worker| {
            let locks = locks.clone();
            thread::spawn(move || work(&locks, worker))
        })
        .collect();
    for worker in workers {
        worker.join().expect("it does not panic")?;
    }

    // Or a closure, for as long as it needs: the lock is renewed meanwhile.
    let total = locks.with_lock("report", TTL, |lease| lease.check().map(|()| 4 * 3))?;
    println!("the report says {total}");

    // At the end: keys that a node did not confirm by then end with their ttl.
    println!("keys that may be left: {}", locks.close(Duration::from_secs(1)).wait());
    Ok(())
}

/// They take turns: one at a time writes.
fn work(locks: &SharedClient, worker: u32) -> Result<(), redlatch::Error> {
    let options = LockOptions::new(TTL).auto_extend(MAX_HOLD);
    let guard = locks.lock("invoice:42", options).wait()?;
    for page in 1..=3 {
        // A local read: is it still ours?
        guard.check()?;
        println!("worker {worker} writes page {page}");
    }
    // Or drop it: that sends the release, and does not wait.
    println!("given back: {:?}", guard.release().wait()?);
    Ok(())
}
