//! rslock, which does Redlock itself: it waits for the answers of all nodes.
//!
//! Its connections have the settings that it gives them: a node timeout of 500 ms, and room for 50
//! commands.

use rslock::{Lock, LockManager};

use super::tasks::Locks;
use super::{RETRY, TTL};

/// The manager.
#[derive(Clone)]
pub struct Rslock {
    once: LockManager,
    waiting: LockManager,
}

impl Locks for Rslock {
    const NAME: &'static str = "rslock";
    type Held = Lock;

    async fn connect(urls: &[String]) -> Rslock {
        let mut once = LockManager::new(urls.to_vec());
        once.set_retry(1, RETRY);
        let mut waiting = once.clone();
        // Rslock waits for a random part of this time.
        waiting.set_retry(u32::MAX, 2 * RETRY);
        Rslock { once, waiting }
    }

    async fn try_lock(&self, key: &str) -> Option<Lock> {
        self.once.lock(key.as_bytes(), TTL).await.ok()
    }

    async fn lock(&self, key: &str) -> Lock {
        self.waiting.lock(key.as_bytes(), TTL).await.expect("it never gives up")
    }

    async fn release(&self, held: Lock) {
        held.release().await;
    }
}
