//! redis-rs: the quorum over its multiplexed connections, one to each node.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script, Value};

use super::quorum::{self, Held, Node, RELEASE};
use super::tasks::Locks;
use super::{MOST_IN_FLIGHT, NODE_TIMEOUT, TTL};

/// The connection to one node, and the script that it knows.
#[derive(Clone)]
pub struct OneNode {
    connection: MultiplexedConnection,
    script: Arc<Script>,
}

impl Node for OneNode {
    async fn set(&self, key: &str, token: &str) -> bool {
        let mut connection = self.connection.clone();
        let mut command = redis::cmd("SET");
        command.arg(key).arg(token).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        matches!(command.query_async(&mut connection).await, Ok(Value::Okay))
    }

    async fn release(&self, key: &str, token: &str) -> bool {
        let mut connection = self.connection.clone();
        let mut invocation = self.script.prepare_invoke();
        invocation.key(key).arg(token);
        matches!(invocation.invoke_async(&mut connection).await, Ok(1))
    }
}

/// The nodes.
#[derive(Clone)]
pub struct RedisRs(Arc<[OneNode]>);

impl Locks for RedisRs {
    const NAME: &'static str = "redis-rs, a quorum by hand";
    type Held = Held;

    async fn connect(urls: &[String]) -> RedisRs {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(NODE_TIMEOUT))
            // The buffer has room for all callers at once: with the default of 50 they wait for
            // each other.
            .set_pipeline_buffer_size(2 * MOST_IN_FLIGHT);
        let script = Arc::new(Script::new(RELEASE));
        let mut nodes = Vec::new();
        for url in urls {
            let client = Client::open(url.as_str()).expect("the url of a server");
            let connecting = client.get_multiplexed_async_connection_with_config(&config);
            let mut connection = connecting.await.expect("a running server");
            script.load_async(&mut connection).await.expect("a script");
            nodes.push(OneNode { connection, script: script.clone() });
        }
        RedisRs(nodes.into())
    }

    async fn try_lock(&self, key: &str) -> Option<Held> {
        quorum::acquire(&self.0, key).await
    }

    async fn release(&self, held: Held) {
        quorum::release(&self.0, &held.key, &held.token).await;
    }
}
