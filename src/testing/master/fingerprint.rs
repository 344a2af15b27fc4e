//! Adds the state of a master that can matter for its future to a fingerprint: see
//! [`crate::proto::fingerprint`].

use std::time::Duration;

use super::keys::{Content, Entry};
use super::request::integer;
use super::session::Connection;
use super::{ConnectionId, MILLISECOND, Master};
use crate::proto::fingerprint::{Fingerprint, hash_of, mix};
use crate::proto::node_set::NodeId;
use crate::proto::wire::line::SCORE_OF_A_PLACE;
use crate::proto::wire::marker::Marker;

impl Master {
    /// The open connection with this `CLIENT ID`.
    pub fn connection_of(&self, client_id: i64) -> Option<ConnectionId> {
        let id = self.connection(u64::try_from(client_id).ok()?)?;
        self.connections.contains_key(&id).then_some(id)
    }

    /// Adds this master to a fingerprint, as `node`. Its output must have been taken out before.
    /// `label` returns a name for each connection that is still used. The others are left out.
    ///
    /// A key whose ttl is over counts as absent. All ages of a node marker above `quarantine` count
    /// as equal.
    ///
    /// # Panics
    /// If the master has state that the fingerprint does not cover: output that was not taken out,
    /// an incomplete request, troubles, or keys in a database other than 0.
    pub fn add_to(
        &self,
        node: NodeId,
        quarantine: Duration,
        label: &dyn Fn(ConnectionId) -> Option<u64>,
        fingerprint: &mut Fingerprint<'_>,
    ) {
        let Master {
            seed: _,
            starts,
            wall_offset: _,
            // The search sets the uptime with `set_info`, so the start does not matter.
            started: _,
            databases,
            scripts,
            connections,
            // The search names connections and processes itself, so these counters do not matter.
            last_connection: _,
            before_start: _,
            registrations,
            speakers,
            flavor: _,
            password: _,
            troubles,
            info: _,
            promotions,
            second_offset,
            whole_milliseconds: _,
        } = self;
        assert!(speakers.is_empty(), "output is taken out first");
        assert!(troubles.is_empty(), "a fingerprint does not cover troubles");
        let (first, others) = databases.split_first().expect("there is a database 0");
        // Another database has at most one key: the node marker that `set_uptime` writes.
        assert!(others.iter().all(|other| other.counts().0 <= 1), "nor other databases");
        let numbers = [*starts, *promotions];
        numbers.into_iter().for_each(|number| fingerprint.add_at(node, number));
        fingerprint.add_at(node, hash_of(&(scripts, second_offset)));
        let wall = self.wall(fingerprint.now());
        for (key, entry) in first.live(wall) {
            let word = mix(hash_of(key), word_of(entry, wall, quarantine, fingerprint));
            fingerprint.add_at(node, word);
        }
        for (&id, connection) in connections {
            if let Some(label) = label(id) {
                fingerprint.add_at(node, mix(label, connection_word(connection, fingerprint)));
            }
        }
        for (key, readers) in registrations {
            let mut labels: Vec<u64> = readers.iter().filter_map(|&id| label(id)).collect();
            labels.sort_unstable();
            fingerprint.add_at(node, hash_of(&(key, labels)));
        }
    }
}

fn word_of(entry: &Entry, wall: i128, quarantine: Duration, fingerprint: &Fingerprint<'_>) -> u64 {
    let text = match &entry.content {
        Content::Text(text) => text,
        Content::Sorted(members) => {
            let expires = entry.expires.map_or(0, |at| (at - wall) as u64);
            return mix(line_word(members, wall, fingerprint), expires);
        }
        Content::List(_) => panic!("a fingerprint does not cover lists"),
    };
    let word = match Marker::parse(text) {
        Some(Marker { identity, since_micros, vouched }) => {
            let name = |id: Option<[u8; 40]>| id.map_or(0, |id| 1 + fingerprint.name(&id));
            let micros = u64::try_from(wall / 1000).unwrap_or(0);
            let age = Duration::from_micros(micros.saturating_sub(since_micros));
            let age = if fingerprint.time_matters() { age } else { age.min(quarantine) };
            let identity = mix(name(identity.run_id), name(identity.replid));
            mix(mix(identity, age.as_nanos() as u64), u64::from(vouched))
        }
        None => fingerprint.name(text),
    };
    mix(word, entry.expires.map_or(0, |at| (at - wall) as u64))
}

/// The members of a line in their order. All times since a member joined count as equal if they are
/// above a quarter of its short ttl, which is its second word.
fn line_word(members: &[(i64, Vec<u8>)], wall: i128, fingerprint: &Fingerprint<'_>) -> u64 {
    let millis = i64::try_from(wall / MILLISECOND).expect("a date of this age");
    let word = |&(score, ref member): &(i64, Vec<u8>)| {
        let short = member.split(|&byte| byte == b' ').nth(1).and_then(integer).unwrap_or(0);
        let age = (millis - score).rem_euclid(SCORE_OF_A_PLACE).min(short / 4 + 1);
        mix(fingerprint.said(member), age as u64)
    };
    members.iter().map(word).fold(members.len() as u64, mix)
}

fn connection_word(connection: &Connection, fingerprint: &Fingerprint<'_>) -> u64 {
    let Connection {
        input,
        output,
        speaks,
        closing,
        closing_after_reply: _,
        own_pushes,
        authenticated,
        resp3,
        database: _,
        tracking,
        caching,
        queue,
        channels,
        name: _,
    } = connection;
    assert!(input.is_empty() && output.is_empty() && own_pushes.is_empty(), "all is taken out");
    assert!(queue.is_none(), "a transaction arrives whole");
    let tracks = tracking.is_some();
    let flags = hash_of(&[*speaks, *closing, *authenticated, *resp3, tracks, *caching]);
    channels.iter().map(|channel| fingerprint.said(channel)).fold(flags, mix)
}
