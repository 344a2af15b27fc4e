//! The shared client on smol, or any other runtime: a thread of the client drives it, and its calls
//! are plain futures.
//!
//! `cargo run --features testing --example smol [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use redlatch::testing::tcp::Masters;
use redlatch::{Config, RestartGuard, SharedClient};

const TTL: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    // Without addresses there are three masters inside this process.
    let masters = Masters::start(if urls.is_empty() { 3 } else { 0 })?;
    let config = match urls.is_empty() {
        // They are a moment old, and nothing was ever locked there.
        true => Config::new(masters.urls())?.restart_guard(RestartGuard::Off),
        false => Config::new(urls)?,
    };

    smol::block_on(async {
        let locks = SharedClient::connect(config).await?;
        let others = (1..=4).map(|task| smol::spawn(work(locks.clone(), task)));
        for task in others.collect::<Vec<_>>() {
            task.await?;
        }

        // For as long as it needs: the lock is renewed meanwhile.
        let report = |lease: redlatch::LockWatcher| async move {
            smol::Timer::after(Duration::from_millis(5)).await;
            lease.check()
        };
        locks.with_lock_async("report", TTL, report).await?;
        println!("the report is written");

        // At the end: keys that a node did not confirm by then end with their ttl.
        println!("keys that may be left: {}", locks.close(Duration::from_secs(1)).await);
        Ok(())
    })
}

/// They take turns: one at a time writes.
async fn work(locks: SharedClient, task: u32) -> Result<(), redlatch::Error> {
    let guard = locks.lock("invoice:42", TTL).await?;
    // A local read, before each side effect: is it still ours?
    guard.check()?;
    println!("task {task} writes");
    println!("given back: {:?}", guard.release().await?);
    Ok(())
}
