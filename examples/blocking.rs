//! The blocking client: waits for a lock, looks at it before each side effect, gives it back.
//!
//! `cargo run --features testing --example blocking [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use redlatch::testing::tcp::Masters;
use redlatch::{Client, Config, LockOptions, RestartGuard};

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

    let client = Client::connect(config)?;
    // Waits for 5 s at most if another client has it.
    let options = LockOptions::new(TTL).wait(Duration::from_secs(5));
    let mut guard = client.lock("invoice:42", options)?;
    println!("held for {:.1?} more", guard.remaining());
    for page in 1..=3 {
        // A local read: is it still ours?
        guard.check()?;
        println!("page {page} is written");
        // Needed only if the rest takes longer than what is left.
        guard.extend(TTL)?;
    }
    // Or drop it: that sends the release, and does not wait.
    println!("given back: {:?}", guard.release()?);

    // At the end: keys that a node did not confirm by then end with their ttl.
    println!("keys that may be left: {}", client.close(Duration::from_secs(1)));
    Ok(())
}
