//! What waiters in line need of a connection: the subscription to the channel of this client, and
//! the scripts of the line. A client that never stands in line asks for neither.
//!
//! The hazard is `SUBSCRIBE` on a connection without RESP3: it would refuse every other command
//! from then on. So such a node is not asked to subscribe, and its waiters poll. A node behind a
//! proxy that drops the confirmation is not asked a second time, because the client would again
//! take the next reply for the confirmation.

use crate::proto::cluster::{Change, Cluster};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;
use crate::proto::wire::known_scripts::ScriptName;
use crate::proto::wire::line::{Channel, HandedOver, Standing};

/// Whether the messages of a node come on its present connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub(super) enum Listening {
    /// The client has not asked for them.
    #[default]
    No,
    /// The client has asked, and there is no answer yet.
    Asked,
    /// Notifications come.
    Yes,
    /// The node refused, or speaks RESP2.
    Refused,
}

impl Cluster {
    /// Whether the client listens to its channel on its connections.
    pub fn is_listening(&self) -> bool {
        self.channel.is_some()
    }

    /// The channel of this client on a node, if it listens.
    pub fn channel(&self, node: NodeId) -> Option<Channel> {
        self.channel.map(|channel| channel.at(node))
    }

    /// From now on the client listens on every connection, to the node's own form of this channel.
    pub fn listen_to(&mut self, channel: Channel, now: Instant) {
        self.channel = Some(channel);
        for node in self.all_nodes().iter() {
            self.begin_to_listen(node, now);
        }
    }

    /// Subscribes once on a connection, if the client listens and the node may be asked.
    pub fn begin_to_listen(&mut self, node: NodeId, now: Instant) {
        let Some(channel) = self.channel(node) else { return };
        let entry = &mut self.nodes[node.index()];
        if !entry.state.is_usable() || entry.listening != Listening::No {
            return;
        }
        if entry.vetted.resp3 && !entry.drops_confirmations {
            entry.listening = Listening::Asked;
            let ask = Ask::Node(NodeAsk::Subscribe);
            self.ask(node, ask, now, |out| {
                command::encode(out, &[b"SUBSCRIBE", channel.as_bytes()]);
            });
        } else {
            entry.listening = Listening::Refused;
            self.report(node, Change::Listens);
        }
        self.load(node, ScriptName::Join, now);
        if self.settings.attended {
            // The node then knows the script at the first release. A client that reads its sockets
            // only within calls sends the source with that release instead.
            self.load(node, ScriptName::HandOver, now);
        }
    }

    /// Sends the source of a script, so that the node knows it.
    fn load(&mut self, node: NodeId, name: ScriptName, now: Instant) {
        self.ask(node, Ask::Node(NodeAsk::Load(name)), now, |out| {
            command::encode(out, &[b"SCRIPT", b"LOAD", name.script().source.as_bytes()]);
        });
    }

    /// Acts on the answer to the subscription.
    pub(super) fn on_listening_answer(&mut self, node: NodeId, listens: bool) {
        let answer = if listens { Listening::Yes } else { Listening::Refused };
        self.nodes[node.index()].listening = answer;
        self.report(node, Change::Listens);
    }

    /// Whether the node notifies this client by messages; `None` if that is not known yet.
    pub fn notifies(&self, node: NodeId) -> Option<bool> {
        match self.nodes[node.index()].listening {
            Listening::Yes => Some(true),
            Listening::Refused => Some(false),
            Listening::No | Listening::Asked => None,
        }
    }

    /// What the last answer of a node to a join says.
    pub fn standing(&self, node: NodeId) -> &Standing {
        self.nodes[node.index()].connection.standing()
    }

    /// The message of the hand-over that was reported last. A message on the channel of another
    /// node is left out, because this node did not hand the key over: a replica relays the messages
    /// of its master.
    pub fn take_handed_over(&mut self, node: NodeId) -> Option<HandedOver> {
        let message = self.nodes[node.index()].connection.take_handed_over();
        message.filter(|message| self.channel(node) == Some(message.channel))
    }
}
