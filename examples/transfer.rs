//! A bank transfer: one lock on both accounts, or on none. Two threads transfer in opposite
//! directions, and neither waits for the other for ever.
//!
//! `cargo run --features testing --example transfer [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use redlatch::testing::tcp::Masters;
use redlatch::{Config, RestartGuard, SharedClient};

const TTL: Duration = Duration::from_secs(10);

/// The bank: any store would do, and it has no lock of its own over two accounts.
type Bank = Mutex<BTreeMap<&'static str, i64>>;

fn transfer(
    locks: &SharedClient,
    bank: &Bank,
    (from, to): (&'static str, &'static str),
    amount: i64,
) -> Result<(), redlatch::Error> {
    // Both accounts are locked, or none; the order of the names does not matter.
    let guard = locks.lock([from, to], TTL).wait()?;
    let balance = |account| *bank.lock().expect("no thread panics").get(account).unwrap_or(&0);
    let (less, more) = (balance(from) - amount, balance(to) + amount);
    // Before the side effect: are both still ours? A local read.
    guard.check()?;
    bank.lock().expect("no thread panics").extend([(from, less), (to, more)]);
    guard.release().wait()?;
    Ok(())
}

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
    let bank = Bank::new(BTreeMap::from([("account:7", 1000), ("account:9", 1000)]));
    std::thread::scope(|scope| {
        let there =
            || (0..50).try_for_each(|_| transfer(&locks, &bank, ("account:7", "account:9"), 3));
        let back =
            || (0..50).try_for_each(|_| transfer(&locks, &bank, ("account:9", "account:7"), 1));
        let threads = [scope.spawn(there), scope.spawn(back)];
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    for (account, balance) in bank.into_inner()? {
        println!("{account}: {balance}");
    }
    println!("keys that may be left: {}", locks.close(Duration::from_secs(1)).wait());
    Ok(())
}
