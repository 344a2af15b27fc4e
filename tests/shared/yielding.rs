//! A call whose result is there at once still lets the executor run something else first. Without
//! that, a task that repeats the call would keep the driver from its turn for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use super::executor::Task;
use super::*;
use redlatch::testing::tcp::Masters;
use redlatch::{ConfigError, Error};

fn masters(count: usize) -> (Masters, Config) {
    let masters = Masters::start(count).expect("there are free ports");
    let config = Config::new(masters.urls()).expect("good addresses");
    let config = config.restart_guard(RestartGuard::Off).node_timeout(millis(100));
    (masters, config.reset_after(millis(100)))
}

/// Repeats the call without a pause until it gets the lock.
#[cfg(feature = "tokio")]
async fn retry_until_locked(client: &SharedClient, refused: &AtomicU64) {
    while client.try_lock("a", TTL).await.is_err() {
        refused.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(feature = "tokio")]
fn retries_end(runtime: tokio::runtime::Runtime) {
    let (masters, config) = masters(5);
    let refused = in_time("a loop that tries again at once", move || {
        runtime.block_on(async {
            let client = SharedClient::connect_tokio(config).await.expect("a good configuration");
            drop(client.lock("a", TTL).await.expect("five nodes are there"));
            (0..3).for_each(|node| masters[node].freeze());
            let refused = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&refused);
            let thaw = std::thread::spawn(move || {
                std::thread::sleep(millis(600));
                // After 600 ms a slow machine may not have refused a call yet, so the test waits
                // for that.
                eventually(SOON, "calls are refused", || counted.load(Ordering::SeqCst) > 1);
                (0..3).for_each(|node| masters[node].thaw());
                masters
            });
            retry_until_locked(&client, &refused).await;
            drop(thaw.join().expect("it thaws them"));
            refused.load(Ordering::SeqCst)
        })
    });
    println!("refused {refused} times before the lock was there");
}

#[cfg(feature = "tokio")]
#[test]
fn loop_of_calls_without_a_pause_lets_the_driver_run_on_a_current_thread_runtime() {
    retries_end(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
}

#[cfg(feature = "tokio")]
#[test]
fn loop_of_calls_without_a_pause_lets_the_driver_run_on_several_threads() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    retries_end(builder.worker_threads(2).enable_all().build().unwrap());
}

#[test]
fn a_call_that_ends_at_its_first_poll_yields_once_on_any_executor() {
    let (_masters, config) = masters(1);
    let client = SharedClient::connect_blocking(config).unwrap();
    let held = client.lock("a", TTL).wait().unwrap();
    // This call is refused without a request to a node: this client holds the key.
    let mut contended = Task::new(client.try_lock("a", TTL).into_future());
    // This one is refused before any request: its ttl is invalid.
    let mut invalid = Task::new(client.try_lock("b", Duration::ZERO).into_future());
    assert!(contended.poll().is_pending() && contended.is_woken());
    assert!(invalid.poll().is_pending() && invalid.is_woken());
    assert!(matches!(contended.poll(), Poll::Ready(Err(Error::Contended(_)))));
    let told = invalid.poll();
    assert!(matches!(told, Poll::Ready(Err(Error::Config(ConfigError::Ttl(_))))));
    // A thread that waits does not yield.
    assert!(matches!(client.try_lock("a", TTL).wait(), Err(Error::Contended(_))));
    drop(held);
    // A call that is dropped after its first poll leaves nothing.
    let dropped = Task::pending(client.try_lock("b", Duration::ZERO).into_future());
    drop(dropped);
    eventually(SOON, "nothing is open", || client.gauges().calls == 0);
}
