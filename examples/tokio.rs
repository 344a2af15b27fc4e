//! The shared client in a tokio runtime: a task drives it, and its calls are awaited.
//!
//! `cargo run --features testing,tokio --example tokio [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use redlatch::testing::tcp::Masters;
use redlatch::{Config, LockOptions, RestartGuard, SharedClient};

const TTL: Duration = Duration::from_secs(10);

/// No lock is renewed for longer.
const MAX_HOLD: Duration = Duration::from_secs(3600);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    // Without addresses there are three masters inside this process.
    let masters = Masters::start(if urls.is_empty() { 3 } else { 0 })?;
    let config = match urls.is_empty() {
        // They are a moment old, and nothing was ever locked there.
        true => Config::new(masters.urls())?.restart_guard(RestartGuard::Off),
        false => Config::new(urls)?,
    };

    let locks = SharedClient::connect_tokio(config).await?;
    let options = LockOptions::new(TTL).auto_extend(MAX_HOLD);
    let guard = locks.lock("invoice:42", options).await?;
    println!("held for {:.1?} more", guard.remaining());
    tokio::select! {
        // The work is dropped if the lock is lost meanwhile; dropping `lost` changes nothing.
        error = guard.lost() => return Err(error.into()),
        () = write_pages() => {}
    }

    // A call that is dropped takes its request back: a timeout leaves no lock.
    let other = locks.lock("invoice:42", TTL);
    let timeout = tokio::time::timeout(Duration::from_millis(50), other).await;
    println!(
        "in the meantime: {}",
        if timeout.is_err() { "no other task" } else { "another task" }
    );
    println!("given back: {:?}", guard.release().await?);

    // At the end: keys that a node did not confirm by then end with their ttl.
    println!("keys that may be left: {}", locks.close(Duration::from_secs(1)).await);
    Ok(())
}

async fn write_pages() {
    for page in 1..=3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        println!("page {page} is written");
    }
}
