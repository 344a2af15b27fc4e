//! The parts of the cluster on which its next steps can depend: see [`crate::proto::fingerprint`].

use crate::proto::cluster::node::Node;
use crate::proto::cluster::restart_guard::QuarantineReason;
use crate::proto::cluster::state::NodeState;
use crate::proto::cluster::{Cluster, Due, counting_nodes};
use crate::proto::error::NodeError;
use crate::proto::fingerprint::{Fingerprint, Place, hash_of, mix};
use crate::proto::node_set::NodeId;
use crate::proto::settings::Settings;
use crate::proto::wire::handshake::{Info, Vetted};
use crate::proto::wire::marker::{Identity, MarkerState};

impl Cluster {
    /// Adds the cluster to a fingerprint.
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>, place: Place<'_>) {
        let Cluster {
            settings,
            quorum: _,
            voters: _,
            nodes,
            timers,
            actions,
            changes,
            events: _,
            channel,
            // The clients of the search (`tests/model`) do not check lists of masters.
            list: _,
            lists_until: _,
            awaits_lists: _,
            stats: _,
        } = self;
        assert!(actions.is_empty() && changes.is_empty(), "actions and changes are taken out");
        fingerprint.add(u64::from(channel.is_some()));
        for (node, entry) in self.all_nodes().iter().zip(nodes) {
            entry.add_to(node, fingerprint, settings, place);
        }
        let mut sums = vec![0_u64; nodes.len()];
        for (due, what) in timers.iter() {
            let (kind, node) = match what {
                Due::Reconnect(node) => (1, node),
                Due::Connecting(node) => (2, node),
                Due::Silence(node) => (3, node),
                Due::Reset(node) => (4, node),
                // The search is shorter than the interval between probes.
                Due::Probe(_) => continue,
                Due::Trust(node) => (6, node),
            };
            let word = mix(kind, fingerprint.ahead(due));
            sums[node.index()] = sums[node.index()].wrapping_add(word);
        }
        for (node, sum) in self.all_nodes().iter().zip(sums) {
            fingerprint.add_at(node, sum);
        }
    }
}

impl Node {
    fn add_to(
        &self,
        node: NodeId,
        fingerprint: &mut Fingerprint<'_>,
        settings: &Settings,
        place: Place<'_>,
    ) {
        let Node {
            state,
            connection,
            last_error,
            words: _,
            found_at: _,
            connecting_since: _,
            encrypting,
            failures,
            vetted,
            listening,
            // The masters of the search answer `SUBSCRIBE`.
            drops_confirmations: _,
            known,
            // In the search every marker is written on its own node, or replaced in the handshake
            // that finds it there, because the restart guard is on. So no marker is strange, and no
            // node evicts.
            sighting: _,
            evicted: _,
            members: _,
            member: _,
            list_asked_at: _,
            list_is_old: _,
            list_floor: _,
            is_outside: _,
            joined: _,
            has_other_list: _,
            listing: _,
            awaits_list: _,
            is_past_the_list: _,
            marking,
            wants_marking,
            vouching,
            trusted_from,
            // The clocks of the search do not jump.
            reading: _,
            clock,
            earlier,
            ready_since,
            handshake: _,
            refusal: _,
            // The fingerprint has the timers themselves.
            connecting: _,
            silence: _,
            reset: _,
            probe: _,
            trust: _,
        } = self;
        assert!(*state != NodeState::Handshake, "a fingerprint does not cover a handshake");
        fingerprint.add_at(node, state_word(*state, fingerprint));
        connection.add_to(node, fingerprint, settings.node_timeout, place);
        let connected = state.is_connected();
        let permanent = !connected && last_error.is_permanent();
        // A second failure in a row has the longest pause in the settings of the search.
        let flags = [permanent, *encrypting, *vouching, *failures > 0];
        fingerprint.add_at(node, flags.iter().fold(1, |bits, &flag| 2 * bits + u64::from(flag)));
        if connected {
            add_vetted(node, vetted, fingerprint);
        }
        let known = known.as_ref().map_or(0, |known| info_word(known, fingerprint));
        fingerprint.add_at(node, known);
        fingerprint.add_at(node, hash_of(&(marking, wants_marking)));
        fingerprint.add_at(node, clock.as_ref().map_or(0, counting_nodes::word_of));
        fingerprint.add_at(node, hash_of(listening));
        let trusted = trusted_from.map_or(0, |(from, why): (_, QuarantineReason)| {
            mix(hash_of(&why), fingerprint.ahead(from))
        });
        fingerprint.add_at(node, trusted);
        for &number in earlier {
            let name = fingerprint.connection(node, number);
            fingerprint.add_at(node, 1 + name);
        }
        fingerprint.add_at(node, earlier.len() as u64);
        // The time for which a connection was ready decides about the pause after its loss.
        let (_, longest) = settings.reconnect;
        let ready = ready_since.map_or(0, |since| 1 + fingerprint.ago(since, longest));
        fingerprint.add_at(node, ready);
    }
}

fn state_word(state: NodeState, fingerprint: &Fingerprint<'_>) -> u64 {
    let permanent = |cause: NodeError| u64::from(cause.is_permanent());
    match state {
        NodeState::Down(cause) => 10 + permanent(cause),
        NodeState::Connecting => 20,
        NodeState::Handshake => 30,
        NodeState::Ready => 40,
        NodeState::Quarantined(until) => mix(50, fingerprint.ahead(until)),
        NodeState::Suspect => 60,
        NodeState::Rejected(cause) => 70 + permanent(cause),
    }
}

fn add_vetted(node: NodeId, vetted: &Vetted, fingerprint: &mut Fingerprint<'_>) {
    let Vetted { client_id, info, native, tracks, resp3, micros: _, marker } = vetted;
    let marker = match marker {
        MarkerState::Unavailable => 1,
        MarkerState::Absent => 2,
        MarkerState::Later(text) => mix(4, hash_of(text)),
        // The marker's time counts only in the handshake, and for fencing numbers.
        MarkerState::Present(marker) => {
            let since = if fingerprint.time_matters() { marker.since_micros } else { 0 };
            mix(mix(3, since), identity_word(&marker.identity, fingerprint))
        }
    };
    let words = [
        client_id.map_or(0, |number| 1 + fingerprint.connection(node, number)),
        hash_of(native),
        u64::from(*tracks) + 2 * u64::from(*resp3),
        marker,
    ];
    words.into_iter().for_each(|word| fingerprint.add_at(node, word));
    fingerprint.add_at(node, info_word(info, fingerprint));
}

fn info_word(info: &Info, fingerprint: &Fingerprint<'_>) -> u64 {
    let Info {
        identity,
        // The uptime counts only in the handshake.
        uptime_seconds: _,
        replica,
        promoted,
        reports_promotion,
        loading,
        cluster,
        evicts,
    } = info;
    let flags = [replica, promoted, reports_promotion, loading, cluster, evicts];
    let flags = flags.iter().fold(1, |bits, &&flag| 2 * bits + u64::from(flag));
    mix(identity_word(identity, fingerprint), flags)
}

fn identity_word(identity: &Identity, fingerprint: &Fingerprint<'_>) -> u64 {
    let Identity { run_id, replid } = identity;
    let name = |id: &Option<[u8; 40]>| id.as_ref().map_or(0, |id| 1 + fingerprint.name(id));
    mix(name(run_id), name(replid))
}
