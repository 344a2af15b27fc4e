//! The library's blocking client, as a program would use it: one call that waits.

use std::time::Duration;

use redlatch::{Client, Config, Error, KeySet, LockOptions, RestartGuard};

use super::contender::{Contender, Role};
use super::options::Kind;
use super::{TTL, ready};

/// A client and its keys.
pub struct Ours {
    client: Client,
    keys: KeySet,
    options: LockOptions,
}

/// The defaults, but for the addresses and the guard. A fenced lock needs the guard: it trusts the
/// nodes after a ttl.
pub fn config(role: &Role) -> Config {
    let config = Config::new(&role.urls).expect("the urls of the fleet");
    match role.kind {
        Kind::Fenced => config.max_ttl(TTL),
        _ => config.restart_guard(RestartGuard::Off),
    }
}

impl Ours {
    /// Connects to the nodes and waits until each of them is ready.
    pub fn connect(role: &Role) -> Ours {
        let client = ready::client(config(role));
        let keys = KeySet::new(&role.keys).expect("different keys");
        let options = LockOptions::new(TTL);
        let options = if role.kind == Kind::Fenced { options.fenced() } else { options };
        Ours { client, keys, options }
    }
}

impl Contender for Ours {
    fn hold(&mut self, wait: Duration, held: &mut dyn FnMut()) -> bool {
        let options = self.options.wait(wait);
        match self.client.lock(&self.keys, options) {
            Ok(guard) => {
                held();
                guard.release().expect("there is room for a release");
                true
            }
            Err(error @ Error::Config(_)) => panic!("{error}"),
            Err(_) => false,
        }
    }
}
