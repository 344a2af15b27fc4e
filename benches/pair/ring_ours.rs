//! The engine on io_uring, in a loop of its own.

use std::time::Duration;

use mio::Registry;
use redlatch::{Engine, LockOptions, SocketDriver, UringEngine};

use super::TTL;
use super::delete::Delete;
use super::ours::{Driven, Ours, config};
use super::support::{Node, eventually};

/// Connects to the nodes and waits until each of them is ready. Returns why there is no ring, if
/// the kernel refuses it.
pub fn connect(nodes: &[&Node], most: usize, delete: Delete) -> Result<Ours<UringEngine>, String> {
    let mut locks = UringEngine::new(config(nodes, delete)).expect("an engine");
    eventually(Duration::from_secs(5), "the nodes are ready", || {
        Driven::turn(&mut locks);
        locks.engine().coordinator().ready().len() == nodes.len()
    });
    match locks.socket_driver() {
        SocketDriver::Poller { reason } => Err(reason.into()),
        _ => Ok(Ours::on(locks, LockOptions::once(TTL), "ring", most)),
    }
}

impl Driven for UringEngine {
    fn engine(&self) -> &Engine {
        self.engine()
    }

    fn engine_mut(&mut self) -> &mut Engine {
        self.engine_mut()
    }

    fn turn(&mut self) {
        self.turn(None).expect("the ring works");
    }

    fn registry(&self) -> Option<&Registry> {
        None
    }
}
