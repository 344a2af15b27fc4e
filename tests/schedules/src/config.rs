//! The configuration of a client under test: its network, and settings under which nothing is due
//! by the clock.

use std::sync::Arc;
use std::time::Duration;

use crate::net::world::World;
use crate::proto::settings::{NodeSettings, RestartGuard, Settings};

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub struct Config {
    pub settings: Settings,
    pub world: Arc<World>,
}

impl Config {
    /// A client of these masters.
    pub fn new(world: &Arc<World>) -> Config {
        let nodes = (0..world.nodes()).map(|node| NodeSettings::new(format!("node-{node}")));
        let mut settings = Settings::new(nodes.collect());
        settings.restart_guard = RestartGuard::Off;
        settings.node_timeout = HOUR;
        settings.probe_interval = HOUR;
        settings.reset_after = HOUR;
        Config { settings, world: Arc::clone(world) }
    }
}
