//! The engine on the network of a test. Requests, updates and turns are those of the library.

#[path = "../../../../../src/net/engine/elections.rs"]
mod elections;
#[path = "../../../../../src/net/engine/fork.rs"]
mod fork;
#[path = "../../../../../src/net/engine/requests.rs"]
mod requests;
mod sockets;
#[path = "../../../../../src/net/engine/turn.rs"]
mod turn;
#[path = "../../../../../src/net/engine/updates.rs"]
mod updates;

use std::net::SocketAddr;
use std::sync::Arc;

use super::clock;
use super::names::Lookup;
use super::observe::{Interface, Observer};
use super::world::{Events, World};
use crate::config::Config;
use crate::proto::cluster::state::NodeState;
use crate::proto::coordinator::{Coordinator, NodeEvent};
use crate::proto::error::ConfigError;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::stats::Stats;
use crate::proto::time::Instant;
use sockets::{Alarm, Socket};

#[derive(Debug)]
pub struct Engine {
    coordinator: Coordinator,
    sockets: Vec<Socket>,
    alarm: Alarm,
    wake_deadline: Option<Instant>,
    more: NodeSet,
    observer: Observer,
    owner: u32,
    world: Arc<World>,
}

impl Engine {
    pub fn new(config: Config) -> Result<Engine, ConfigError> {
        let Config { settings, world } = config;
        let sockets = (0..world.nodes()).map(|_| Socket::default()).collect();
        Ok(Engine {
            coordinator: Coordinator::new(settings, [7; 32], clock::now())?,
            sockets,
            alarm: Alarm::new(&world),
            wake_deadline: None,
            more: NodeSet::EMPTY,
            observer: Observer::new(Interface::Engine),
            owner: std::process::id(),
            world,
        })
    }

    pub fn handle_events(&mut self, events: &Events) {
        if events.rung {
            self.alarm.went_off();
        }
        events.readable.iter().for_each(|node| self.read_all_of(NodeId::new(*node)));
    }

    pub fn read_all_of(&mut self, node: NodeId) {
        let bytes = self.world.read(node.index());
        if !bytes.is_empty() {
            self.coordinator.handle_bytes(node, &bytes, clock::now());
        }
    }

    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.observer.next_node_event(&mut self.coordinator)
    }

    pub fn lookup(&self, _: NodeId) -> Option<Lookup> {
        None
    }

    pub fn set_address(&mut self, _: NodeId, _: Vec<SocketAddr>) {}

    pub fn take_stale(&mut self) -> Option<NodeId> {
        None
    }

    pub fn observer(&mut self) -> &mut Observer {
        &mut self.observer
    }

    pub fn stats(&self) -> &Stats {
        self.coordinator.stats()
    }

    pub fn node_state(&self, node: NodeId) -> NodeState {
        self.coordinator.node_state(node)
    }

    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    fn nodes(&self) -> NodeSet {
        NodeSet::first(self.sockets.len())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.coordinator.close(clock::now());
        self.write_out();
        self.world.end();
    }
}
