//! What a request does between two attempts for a key that others hold: it stands in line, or asks
//! again after a pause.

use crate::proto::error::{Error, NodeReply, Report};
use crate::proto::ids::{Op, RecordId};
use crate::proto::locks::Locks;
use crate::proto::time::Instant;
use crate::proto::waiting::Waiting;
use crate::proto::waits::Waits;

impl Waits {
    /// Lets a request wait after a lost attempt; `id` is the record of the next one. The request
    /// stands in line if the nodes allow it. If they do not, or if too few of them can be asked, it
    /// asks again after a pause.
    pub(super) fn begin_wait(
        &mut self,
        locks: &mut Locks,
        op: Op,
        id: RecordId,
        last: Error,
        now: Instant,
    ) {
        let nodes = locks.cluster().size();
        let in_line = locks.ops().joins(op) && !matches!(last, Error::NoQuorum(_));
        let bounds = locks.cluster().settings().retry;
        let begin = || Waiting::new(nodes, now);
        let Some(waiting) = locks.ops_mut().begin_waiting(op, begin) else { return };
        waiting.forget_free_at();
        waiting.is_in_line = in_line;
        if in_line {
            locks.stand_in_line(op, id, last, now);
            return;
        }
        let (shortest, longest) = waiting.pauses.after(may_have_met_another(&last), bounds);
        let at = now.saturating_add(locks.random_mut().pause(shortest, longest));
        locks.ops_mut().pause(op, id, at, last);
    }

    /// Lets a waiter whose timer came due ask the nodes again.
    pub(super) fn on_waiter_due(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        if locks.ops_mut().waiting_mut(op).is_some_and(|waiting| waiting.is_in_line) {
            locks.on_poll_due(op, now);
        } else {
            locks.attempt_again(op, now);
        }
    }
}

/// Whether another attempt at the same time may have made this one fail: a node granted it, or
/// nodes failed. If no node granted it and the majority denied, the key most likely has one holder.
fn may_have_met_another(error: &Error) -> bool {
    let granted =
        |report: &Report| report.nodes.iter().any(|node| node.reply == NodeReply::Granted);
    !error.is_contended() || error.report().is_some_and(granted)
}
