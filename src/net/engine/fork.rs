//! The copy of an engine in a forked process: it must not touch what is the parent's.

use super::Engine;
use crate::proto::node_set::NodeSet;

impl Engine {
    /// Whether this is the process that made the engine. The copy in a forked process can do
    /// nothing: its requests end as [`Error::Closed`](crate::Error::Closed) with
    /// [`ClosedReason::Forked`](crate::ClosedReason::Forked), and neither it nor its drop touches a
    /// socket or a lock of the parent. The copy notices the fork here, in
    /// [`prepare`](Engine::prepare), and in every [`flush`](Engine::flush) that has something to
    /// write. Those are the calls that may write to a socket or set the timer.
    ///
    /// No other call checks for a fork, because each check is a system call. So one check counts
    /// for a whole turn, and a program must not fork inside a turn and go on with it in the child:
    ///
    /// * [`handle_event`](Engine::handle_event) would read answers that belong to the parent.
    /// * [`poll_completion`](Engine::poll_completion) would hand out a lock that was granted
    ///   before the fork. It is the parent's lock, and both processes would believe in it.
    ///
    /// A loop that goes on in the child therefore begins with `prepare` or `check_fork`. From then
    /// on every request that was in flight has ended as an error, and no lock is handed out.
    ///
    /// The engine compares process numbers, so it takes a copy with the same number for the
    /// original. A plain `fork` never makes such a copy. These may: a fork into a new namespace of
    /// process numbers, if parent and child both have the number 1; a checkpoint that is restored
    /// beside the original; and a virtual machine that is cloned. Such a copy writes to the
    /// parent's connections and draws the parent's tokens. In the child of such a fork, become
    /// another program (`exec`) before any part of the engine is used or dropped.
    pub fn check_fork(&mut self) -> bool {
        if std::process::id() == self.owner {
            return true;
        }
        self.coordinator.abandon_after_fork();
        for socket in &mut self.sockets {
            // The child closes its descriptors, and nothing else: a shutdown, or deregistering from
            // the poller, would change the parent's connection.
            socket.stream = None;
        }
        self.alarm.forget();
        self.more = NodeSet::EMPTY;
        false
    }
}
