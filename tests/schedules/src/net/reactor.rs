//! A poller that sleeps on a condition variable of the network.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::world::{Events, World};
use crate::config::Config;
use crate::proto::error::ConfigError;
use crate::proto::node_set::NodeId;

#[derive(Debug)]
pub struct Reactor {
    world: Arc<World>,
    events: Events,
}

impl Reactor {
    /// A poller, and the engine on it, whose connections are open.
    pub fn of(config: Config) -> Result<(Reactor, Engine), ConfigError> {
        let world = Arc::clone(&config.world);
        let mut engine = Engine::new(config)?;
        engine.go_on();
        while world.answer() {
            (0..world.nodes()).for_each(|node| engine.read_all_of(NodeId::new(node)));
            engine.go_on();
        }
        Ok((Reactor { world, events: Events::default() }, engine))
    }

    pub fn waker(&self) -> Result<Waker, ConfigError> {
        Ok(Waker(Arc::clone(&self.world)))
    }

    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.events = self.world.poll(timeout == Some(Duration::ZERO));
        Ok(())
    }

    pub fn hand_over(&self, engine: &mut Engine) {
        engine.handle_events(&self.events);
    }
}

/// Wakes the thread that waits for the poller.
#[derive(Debug)]
pub struct Waker(Arc<World>);

impl Waker {
    pub fn wake(&self) -> io::Result<()> {
        self.0.wake();
        Ok(())
    }
}

pub fn system(what: &str, error: &io::Error) -> ConfigError {
    ConfigError::System { problem: format!("{what}: {error}").into() }
}
