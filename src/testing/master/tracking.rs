//! The table of `CLIENT TRACKING`: which connections to notify when a key changes.
//!
//! A registration holds for the key's name in every database, and the first write removes it. It
//! also stays after `CLIENT TRACKING OFF`: if the connection tracks again when the key is written,
//! it is notified.

use std::collections::{BTreeMap, BTreeSet};

use super::{Call, ConnectionId, Master};

/// For each key, the connections that have read it since it was last written.
pub(super) type Registrations = BTreeMap<Vec<u8>, BTreeSet<ConnectionId>>;

/// How a connection tracks the keys that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) opt: Opt,
    /// `NOLOOP`: the connection is not notified of its own writes.
    pub(super) silent_on_own: bool,
}

/// What `CLIENT CACHING` means for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opt {
    /// Every read registers.
    All,
    /// A read registers only after `CLIENT CACHING YES`.
    In,
    /// A read registers, but not after `CLIENT CACHING NO`.
    Out,
}

impl Master {
    /// Registers the caller for these keys, which it has read, if it tracks them.
    pub(super) fn register(&mut self, call: &Call, keys: &[Vec<u8>]) {
        let connection = self.own(call);
        let registers = match connection.tracking.map(|mode| mode.opt) {
            None => false,
            Some(Opt::All) => true,
            Some(Opt::In) => connection.caching,
            Some(Opt::Out) => !connection.caching,
        };
        if registers {
            for key in keys {
                self.registrations.entry(key.clone()).or_default().insert(call.connection);
            }
        }
    }

    /// Notifies the readers of a key that this call has written, deleted or found expired.
    pub(super) fn invalidate(&mut self, call: &Call, key: &[u8]) {
        for reader in self.registrations.remove(key).unwrap_or_default() {
            let Some(connection) = self.open(reader) else { continue };
            let Some(mode) = connection.tracking else { continue };
            if reader != call.connection {
                self.push(reader, Some(key.to_vec()));
            } else if !mode.silent_on_own {
                // Pushed after the reply.
                connection.own_pushes.push(Some(key.to_vec()));
            }
        }
    }

    /// Notifies every tracking connection, also the caller, that a database was flushed. The push
    /// does not say which database.
    pub(super) fn invalidate_all(&mut self, call: &Call) {
        self.registrations.clear();
        for reader in self.connections.keys().copied().collect::<Vec<_>>() {
            let Some(connection) = self.open(reader) else { continue };
            if connection.tracking.is_none() {
                continue;
            }
            if reader == call.connection {
                connection.own_pushes.push(None);
            } else {
                self.push(reader, None);
            }
        }
    }
}
