//! What must hold in every state.
//!
//! The hazard is a check that shares code with what it checks: a fault would be in both, and no
//! state would show it. So majorities are counted here, and not by the core's `majority`.

use std::time::Duration;

use redlatch::proto::LockToken;

use crate::client::{Client, KEY, LINE, Task};
use crate::names;
use crate::network::Checked;
use crate::world::{Forgotten, World};

impl World {
    /// The token that a node holds, and the client that drew it.
    pub fn holder_at(&self, node: usize) -> Option<(LockToken, usize)> {
        let value = self.nodes[node].get(self.now, 0, KEY)?;
        let text = std::str::from_utf8(value).expect("a token is text");
        let token: LockToken = text.parse().expect("clients write only tokens");
        let client = names::client_of(&token).expect("a client drew it");
        Some((token, client))
    }

    /// Remembers which key a node is about to forget. Until that key would have expired, the node
    /// covers its lock and no other: a key that the node grants meanwhile stands in its place.
    pub fn note_forgot(&mut self, node: usize) {
        let (before, there) = (self.forgotten_at(node), self.holder_at(node));
        let other = |token: &LockToken| before.is_some_and(|it| it.token != *token);
        let Some((token, _)) = there.filter(|(token, _)| !other(token)) else { return };
        let left = self.nodes[node].pttl(self.now, 0, KEY).max(0) as u64;
        let ends = self.now.saturating_add(Duration::from_millis(left));
        let until = before.map_or(ends, |it| it.until.max(ends));
        self.forgot[node] = Some(Forgotten { token, until });
    }

    /// The key that a node forgot, if it would not have expired yet.
    pub fn forgotten_at(&self, node: usize) -> Option<&Forgotten> {
        self.forgot[node].as_ref().filter(|it| self.now < it.until)
    }

    /// Whether the node has the key of this lock, or would still have it if it had not forgotten
    /// it.
    fn covers(&self, node: usize, token: &LockToken) -> bool {
        match self.forgotten_at(node) {
            Some(forgotten) => forgotten.token == *token,
            None => self.holder_at(node).is_some_and(|(there, _)| there == *token),
        }
    }

    /// Remembers which key a flush takes from a node.
    pub fn note_flushed(&mut self, node: usize) {
        self.flushed[node] = self.holder_at(node).map(|(token, _)| token);
    }

    /// Checks that a key that an operator flushed comes back only if its holder has won an extend.
    fn check_flush_is_not_undone(&self, node: usize) -> Checked {
        let Some((token, client)) = self.holder_at(node) else { return Ok(()) };
        if self.flushed[node].as_ref() == Some(&token) && self.clients[client].extended == 0 {
            return Err(format!(
                "client {client} undid the flush of node {node}, extending nothing"
            ));
        }
        Ok(())
    }

    /// Checks the fencing number that a client was given: it is new, and greater than all that were
    /// given before the client asked. If the lock is exclusive, it is greater than all given
    /// numbers.
    pub fn note_fence(&mut self, client: usize) -> Checked {
        let Some(fence) = self.clients[client].fence else { return Ok(()) };
        let before = self.client_mut(client).given_before;
        self.client_mut(client).fence = None;
        if self.fences.contains(&fence) {
            return Err(format!("client {client} is given fence {fence} a second time"));
        }
        let least = if self.is_exclusive { self.fences.iter().max().copied() } else { before };
        if let Some(least) = least.filter(|&least| fence < least) {
            return Err(format!("client {client} is given fence {fence} after {least}"));
        }
        self.fences.push(fence);
        Ok(())
    }

    /// Checks a state.
    pub fn check(&self) -> Checked {
        if self.is_exclusive {
            self.check_one_believes()?;
            for (index, client) in self.clients.iter().enumerate() {
                self.check_belief_is_covered(index, client)?;
            }
        }
        (0..self.nodes.len()).try_for_each(|node| {
            self.check_flush_is_not_undone(node)?;
            self.check_key_is_answered_for(node)?;
            self.check_line_is_answered_for(node)
        })
    }

    /// Checks that at most one caller believes in the lock. A caller uses its lock only while it
    /// believes in it, so the search needs no steps for the use.
    fn check_one_believes(&self) -> Checked {
        let believe = self.clients.iter().filter(|client| client.believes_it_holds(self.now));
        match believe.count() {
            0 | 1 => Ok(()),
            _ => Err("two clients believe in the lock".into()),
        }
    }

    /// Checks that a majority of the nodes covers the lock in which a client believes.
    fn check_belief_is_covered(&self, index: usize, client: &Client) -> Checked {
        let (true, Task::Holding(lock, _)) = (client.believes_it_holds(self.now), &client.task)
        else {
            return Ok(());
        };
        let (nodes, token) = (self.nodes.len(), lock.token());
        let covered = (0..nodes).filter(|&node| self.covers(node, &token)).count();
        if 2 * covered <= nodes {
            return Err(format!(
                "client {index} believes in a lock on {covered} of {nodes} nodes (or forgotten)"
            ));
        }
        Ok(())
    }

    /// Checks that the client whose token is on a node holds or asks for the lock, or has a release
    /// pending there. A lock that was given away may also wait for its ttl to end, and so may a key
    /// that came with the data of another node.
    fn check_key_is_answered_for(&self, node: usize) -> Checked {
        let Some((token, client)) = self.holder_at(node) else { return Ok(()) };
        if self.is_answered_for(node, &token, client) {
            return Ok(());
        }
        Err(format!("node {node} has a key of client {client} that no release is pending for"))
    }

    /// Checks that each client whose token is in the line of a node waits for the lock, or has a
    /// release pending there; and that no token is in a line twice.
    fn check_line_is_answered_for(&self, node: usize) -> Checked {
        let mut found = Vec::new();
        for member in self.nodes[node].line(self.now, LINE) {
            let text = member.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
            let text = std::str::from_utf8(text).expect("a token is text");
            let token: LockToken = text.parse().expect("the last word is a token");
            let client = names::client_of(&token).expect("a client drew it");
            if found.contains(&token) {
                return Err(format!(
                    "a token of client {client} stands in line twice on node {node}"
                ));
            }
            if !self.is_answered_for(node, &token, client) {
                return Err(format!(
                    "node {node} has a place in line of client {client} that is gone"
                ));
            }
            found.push(token);
        }
        Ok(())
    }

    /// Whether a client still deals with this token on a node, or no client has to: the lock was
    /// given away, or the key came with the data of another node.
    fn is_answered_for(&self, node: usize, token: &LockToken, client: usize) -> bool {
        let copied = self.copied[node].as_ref().and_then(Option::as_ref);
        let id = redlatch::NodeId::new(node);
        self.given.as_ref() == Some(token)
            || copied == Some(token)
            || self.clients[client].core.answers_for(token).contains(id)
    }

    /// Checks the end of a quiet future: no client and no node has anything left.
    pub fn check_end(&self) -> Checked {
        for (index, client) in self.clients.iter().enumerate() {
            let (records, ops) = (client.core.open_records(), client.core.open_ops());
            if records > 0 || ops > 0 {
                return Err(format!("client {index} ends with {records} records, {ops} requests"));
            }
            if matches!(client.task, Task::Asking(_) | Task::Releasing(_))
                || matches!(client.task, Task::Holding(_, Some(_)))
            {
                return Err(format!("client {index} waits for an answer for ever"));
            }
            if client.core.ready().len() < self.nodes.len() {
                return Err(format!("client {index} is not connected again"));
            }
        }
        for (node, master) in self.nodes.iter().enumerate() {
            if master.get(self.now, 0, KEY).is_some() {
                return Err(format!("node {node} has a key at the end"));
            }
            if !master.line(self.now, LINE).is_empty() {
                return Err(format!("node {node} has a line at the end"));
            }
        }
        Ok(())
    }
}
