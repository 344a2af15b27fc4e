//! This library for tasks: `SharedClient`, driven by a task of the runtime.

use redlatch::{LockOptions, SharedClient, SharedGuard};

use super::tasks::Locks;
use super::{LONGEST_WAIT, TTL, settings};

/// The client.
#[derive(Clone)]
pub struct Redlatch(SharedClient);

impl Locks for Redlatch {
    const NAME: &'static str = "redlatch, `SharedClient` on tokio";
    type Held = SharedGuard;

    async fn connect(urls: &[String]) -> Redlatch {
        Redlatch(SharedClient::connect_tokio(settings(urls)).await.expect("a client"))
    }

    async fn try_lock(&self, key: &str) -> Option<SharedGuard> {
        self.0.try_lock(key, TTL).await.ok()
    }

    async fn lock(&self, key: &str) -> SharedGuard {
        let options = LockOptions::new(TTL).wait(LONGEST_WAIT);
        self.0.lock(key, options).await.expect("no contender holds the key for so long")
    }

    async fn release(&self, held: SharedGuard) {
        held.release().await.expect("it is held");
    }
}
