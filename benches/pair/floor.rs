//! The floor as a contender, in a closed and in an open loop.
//!
//! If a node will be frozen, the floor gets only the other ones, which no client can know.

use std::time::Instant;

use mio::Registry;
use redlatch::majority;
use redlatch::proto::command;

use super::delete::Delete;
use super::open_loop::{Done, Steps};
use super::socket_floor::{Floor, Step};
use super::support::Node;
use super::tally::Tally;
use super::{Contender, NODES};

/// A floor that is connected to the nodes that will answer.
pub fn connect(nodes: &[&Node], name: &str, most: usize, delete: Delete) -> Floor {
    nodes.iter().for_each(|node| load_script(node));
    let addresses: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
    Floor::connect(&addresses, majority(NODES), name, most, delete.form())
}

/// Makes the node know the script of a release.
fn load_script(node: &Node) {
    let loaded = node.command(&["SCRIPT", "LOAD", command::RELEASE.source]);
    assert_eq!(loaded.text(), command::RELEASE.sha1);
}

impl Contender for Floor {
    fn run(&mut self, in_flight: usize, tally: &mut Tally) {
        Floor::run(self, in_flight, tally);
    }
}

impl Steps for Floor {
    fn registry(&self) -> &Registry {
        Floor::registry(self)
    }

    fn acquire(&mut self, slot: usize) {
        self.begin(slot, Instant::now());
    }

    fn turn(&mut self) {
        Floor::turn(self);
    }

    fn next_done(&mut self) -> Option<Done> {
        match self.next_decided()? {
            (slot, Step::Acquired) => {
                self.ask(slot);
                Some(Done::Acquired(slot))
            }
            (slot, Step::Released) => Some(Done::Released(slot)),
        }
    }

    fn settle(&mut self) {
        Floor::settle(self);
    }
}
