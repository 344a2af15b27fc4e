//! A holder that never looks whether its lock is over: the store alone refuses its late write.
//!
//! ```text
//! redlatch-stores STORE VALUE redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3
//! ```
//!
//! STORE is `sqlite:PATH` or `postgresql://...`. The program acquires the lock, prints its number,
//! waits for a line of input, and writes VALUE.

#![forbid(unsafe_code)]

use std::time::Duration;

use redlatch::{Client, Config, LockOptions};
use redlatch_stores::Trouble;

/// How long the lock lives: nothing renews it.
const TTL: Duration = Duration::from_millis(1500);

fn main() -> Result<(), Trouble> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: redlatch-stores STORE VALUE REDIS...";
    let (Some(store), Some(value)) = (arguments.next(), arguments.next()) else {
        return Err(usage.into());
    };
    let mut store = redlatch_stores::open(&store)?;
    // A master that started a moment ago does not grant before `max_ttl` is over.
    let client = Client::connect(Config::new(arguments)?.max_ttl(2 * TTL))?;
    let options = LockOptions::new(TTL).wait(Duration::from_secs(60)).fenced();
    let guard = client.lock("report:1", options)?;
    let fence = guard.fence().ok_or("a fenced lock has a number")?;
    println!("holding {fence}");
    std::io::stdin().read_line(&mut String::new())?;
    match store.save(1, &value, fence)? {
        true => println!("written"),
        false => println!("refused: the store has a greater number"),
    }
    Ok(())
}
