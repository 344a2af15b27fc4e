//! The engine without the feature `io-uring`: every socket is served by the poller.

use super::Engine;
use crate::proto::node_set::NodeId;

/// No sockets.
#[derive(Debug, Default)]
pub(super) struct RingSockets {}

impl RingSockets {
    #[inline]
    pub(super) fn holds(&self, _: NodeId) -> bool {
        false
    }

    #[inline]
    pub(super) fn has_rest(&self) -> bool {
        false
    }

    #[inline]
    pub(super) fn take(&mut self, _: NodeId, _: &[u8]) -> Option<bool> {
        None
    }

    #[inline]
    pub(super) fn resume(&mut self, _: NodeId) {}

    pub(super) fn forget(&mut self, _: NodeId) {}

    pub(super) fn abandon(&mut self) {}
}

impl Engine {
    pub(super) fn move_to_ring(&mut self, _: NodeId) {}

    #[inline]
    pub(super) fn read_ring(&mut self) {}

    #[inline]
    pub(super) fn submit_to_ring(&mut self) {}
}
