//! fred: the quorum over its clients, one for each node, which pipeline what their callers send.

use std::sync::Arc;

use fred::prelude::*;
use fred::types::Value;
use fred::types::scripts::Script;

use super::quorum::{self, Held, Node, RELEASE};
use super::tasks::Locks;
use super::{NODE_TIMEOUT, TTL};

/// The client of one node, and the script that it knows.
#[derive(Clone)]
pub struct OneNode {
    client: Client,
    script: Script,
}

impl Node for OneNode {
    async fn set(&self, key: &str, token: &str) -> bool {
        let ttl = Some(Expiration::PX(TTL.as_millis() as i64));
        let set = self.client.set(key, token, ttl, Some(SetOptions::NX), false);
        matches!(set.await, Ok(Value::String(_)))
    }

    async fn release(&self, key: &str, token: &str) -> bool {
        matches!(self.script.evalsha_with_reload(&self.client, key, token).await, Ok(1_i64))
    }
}

/// The nodes.
#[derive(Clone)]
pub struct Fred(Arc<[OneNode]>);

impl Locks for Fred {
    const NAME: &'static str = "fred, a quorum by hand";
    type Held = Held;

    async fn connect(urls: &[String]) -> Fred {
        let script = Script::from_lua(RELEASE);
        let mut nodes = Vec::new();
        for url in urls {
            let config = Config::from_url(url).expect("the url of a server");
            let client = Builder::from_config(config)
                .with_performance_config(|config| config.default_command_timeout = NODE_TIMEOUT)
                .with_connection_config(|config| config.tcp.nodelay = Some(true))
                .build()
                .expect("a client");
            client.init().await.expect("a running server");
            script.load(&client).await.expect("a script");
            nodes.push(OneNode { client, script: script.clone() });
        }
        Fred(nodes.into())
    }

    async fn try_lock(&self, key: &str) -> Option<Held> {
        quorum::acquire(&self.0, key).await
    }

    async fn release(&self, held: Held) {
        quorum::release(&self.0, &held.key, &held.token).await;
    }
}
