//! The handshake: what is asked on a new connection, and whether the node may be used.
//!
//! The hazard is order: the client admits a node only after it knows what the node may have
//! forgotten. It then sends the commands that end its earlier connections to the node, and the
//! pending releases, before anything else.

use crate::proto::cluster::restart_guard;
use crate::proto::cluster::state::{NodeState, Reading};
use crate::proto::cluster::{Action, Change, Cluster};
use crate::proto::error::NodeError;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;
use crate::proto::wire::handshake::{Fact, Progress, Step, Vetted};
use crate::proto::wire::marker::Marking;

impl Cluster {
    /// Asks the first questions on a connection that is open.
    pub(super) fn begin_handshake(&mut self, node: NodeId, now: Instant) {
        let settings = &self.settings.nodes[node.index()];
        let entry = &mut self.nodes[node.index()];
        entry.clock = None;
        let connection = &mut entry.connection;
        connection.hide(settings.password.clone());
        let (name, marker) = (&self.settings.client_name, self.settings.wanted_marker());
        let members = self.settings.checks_members();
        entry.handshake.begin(settings, name, marker, members, |step, arguments| {
            let ask = Ask::Node(NodeAsk::Handshake(step));
            connection.ask(ask, now, |out| command::encode(out, arguments));
        });
    }

    /// Writes the node marker, which does not match the node, before the node may be asked.
    fn mark_in_handshake(&mut self, node: NodeId, how: Marking, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        let vetted = entry.handshake.vetted();
        let found = (vetted.marker, vetted.info.identity);
        entry.handshake.mark();
        let ask = Ask::Node(NodeAsk::Handshake(Step::Mark));
        self.ask_to_mark(node, ask, found, how, now);
    }

    /// Acts on the answer to a step of the handshake.
    pub(super) fn on_handshake_answer(&mut self, node: NodeId, step: Step, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        let fact = entry.connection.fact();
        if let Fact::Time(micros) = fact {
            let asked_at = entry.connection.asked_at();
            entry.clock = Some(Reading { micros, asked_at, read_at: now });
        }
        if step == Step::Members {
            let found = self.members_answered(node);
            self.note_members(node, found, now);
        }
        let entry = &mut self.nodes[node.index()];
        let good = entry.handshake.error().is_none();
        let progress = entry.handshake.handle(step, fact, self.settings.allow_eviction);
        if let (true, Some(cause)) = (good, entry.handshake.error()) {
            let refused = matches!(fact, Fact::Refused(_));
            entry.refusal = refused.then(|| (cause, refusal(step, entry.connection.last_error())));
        }
        match progress {
            Progress::More => {}
            Progress::Again => self.begin_handshake(node, now),
            Progress::Rejected(cause) => self.reject(node, cause, now),
            Progress::Vetted => self.end_handshake(node, now),
        }
        self.agree_on_members(now);
    }

    /// Ends the handshake of a node that may be asked, or first writes its marker if that is not
    /// what it should be.
    pub(super) fn end_handshake(&mut self, node: NodeId, now: Instant) {
        let entry = &self.nodes[node.index()];
        let (vetted, found) = (*entry.handshake.vetted(), entry.handshake.found());
        let (guard, max_ttl) = (self.settings.restart_guard, self.settings.max_ttl);
        let evicted = entry.evicted;
        let known = self.known_before(node, found.unwrap_or(vetted.marker), &vetted);
        let how = restart_guard::marking(guard, known.as_ref(), &vetted, evicted, max_ttl, now);
        let later = how.filter(|&how| restart_guard::is_for_later(how, &vetted, max_ttl));
        match (found, how) {
            _ if self.is_known_server(node, &vetted) => {
                self.reject(node, NodeError::SameServer, now)
            }
            (None, Some(how)) if later.is_none() => self.mark_in_handshake(node, how, now),
            _ if self.waits_for_the_list(node, now) => {}
            (found, _) => {
                let found = found.unwrap_or(vetted.marker);
                self.judge(node, &vetted, found, later, now);
                self.nodes[node.index()].vetted = vetted;
                self.report(node, Change::Vetted);
            }
        }
    }

    /// Whether another node of the list is the same server: two addresses of one server have one
    /// vote.
    fn is_known_server(&self, node: NodeId, vetted: &Vetted) -> bool {
        let run_id = vetted.info.identity.run_id;
        run_id.is_some()
            && self.all_nodes().iter().any(|other| {
                let entry = &self.nodes[other.index()];
                let asked = entry.state.is_usable() || entry.state == NodeState::Suspect;
                let waits = entry.awaits_list || entry.is_past_the_list && !asked;
                let vetted = if waits { entry.handshake.vetted() } else { &entry.vetted };
                other != node && (asked || waits) && vetted.info.identity.run_id == run_id
            })
    }

    /// Rejects a node that refused a write as a replica: it is no master any more. The client asks
    /// it again only after the handshake of its next connection, which examines its role.
    pub fn on_replica(&mut self, node: NodeId, now: Instant) {
        if self.node_state(node).is_connected() {
            let words = self.nodes[node.index()].connection.last_error().to_string();
            self.nodes[node.index()].refusal = Some((NodeError::Replica, words.into()));
            self.reject(node, NodeError::Replica, now);
        }
    }

    /// Gives up the connection to a node that may not be used, for this reason. The client tries
    /// the node again later.
    pub(super) fn reject(&mut self, node: NodeId, cause: NodeError, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        if cause == NodeError::Evicts {
            let micros = match entry.state {
                NodeState::Handshake => entry.handshake.vetted().micros,
                _ => entry.clock.map(|reading| reading.micros),
            };
            entry.evicted = Some(micros.unwrap_or(u64::MAX));
        }
        let refusal = entry.refusal.take();
        let words = refusal.filter(|&(of, _)| of == cause).map_or("".into(), |(_, words)| words);
        self.actions.push_back(Action::Disconnect(node));
        self.lose_connection(node, NodeState::Rejected(cause), cause, &words, now);
    }

    /// Lets a node that was vetted be asked from now on.
    pub fn admit(&mut self, node: NodeId, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        entry.ready_since = Some(now);
        entry.last_error = NodeError::Unreachable;
        entry.words = "".into();
        self.timers.clear_in(&mut entry.connecting);
        self.stats.node(node).connections += 1;
        self.set_node_state(node, self.usable_state(node, now));
        if self.nodes[node.index()].list_is_old {
            // This process did not run for so long during the handshake that the list is too old.
            self.suspect(node, now);
        }
        self.end_earlier_connections(node, now);
    }

    /// Called after the pending releases are written: asks for the node marker, if one is to be
    /// written, and for the node's clock.
    pub fn start_probing(&mut self, node: NodeId, now: Instant) {
        self.begin_to_listen(node, now);
        self.mark_if_wanted(node, now);
        // The clock is read now, so that the first probe has a reading to compare with. The
        // handshake has asked for everything else.
        self.probe(node, Step::Time, now);
        self.plan_probe(node, now);
    }
}

/// The text that reports a refused step. The connection keeps only the code of an error that
/// answers the credentials, so the text names the command.
fn refusal(step: Step, last_error: &str) -> Box<str> {
    match (step, last_error) {
        (Step::Hello, code) => format!("HELLO: {code}").into(),
        (Step::Auth, code) => format!("AUTH: {code}").into(),
        (_, words) => words.into(),
    }
}
