//! How often a waiter in line polls: the more seldom, the longer nothing has changed. A waiter
//! *rests* while its pauses are longer than at first.
//!
//! The nodes notify a waiter of a hand-over and of writes to its key, so its polls are needed only
//! if such a message is lost. The hazard is a waiter that rests and that no node would notify. So
//! its pauses grow only if each node that it asks reports both.

use std::time::Duration;

use crate::proto::node_set::NodeSet;

/// The shortest and the longest pause between two polls of a waiter near the front that does not
/// rest. If a waiter hangs when it gets the key, the one after it gets the key only by a poll of
/// its own, so a hanging waiter costs the others up to this much more.
pub const POLLS: (Duration, Duration) = (Duration::from_millis(60), Duration::from_millis(90));

/// The pause doubles after each group of so many polls that brought nothing new. So it is about an
/// eighth of the time for which nothing has changed.
const PATIENCE: u32 = 8;
/// How often the pause doubles at most. Then it is 15 to 23 s.
const MOST_DOUBLINGS: u32 = 8;

/// If nodes notify them, all waiters of a client together, up to 65,536, poll no more often than
/// this number of waiters that do not rest. A client may begin to wait for many keys at once.
const POLLERS: usize = 256;

/// A line lives for this many pauses of its waiter, so that the waiter keeps its place if a poll is
/// late or lost.
const OUTLIVED: u32 = 3;

/// The longest time for which a line lives after the last join or poll.
pub const LONGEST_LINE_TTL: Duration = line_ttl(POLLS.1.saturating_mul(1 << MOST_DOUBLINGS));

/// How long a line lives if its waiter polls after this pause.
pub const fn line_ttl(pause: Duration) -> Duration {
    pause.saturating_mul(OUTLIVED)
}

/// For how many polls in a row a waiter has learned nothing new.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rest {
    quiet_polls: u32,
    /// The present poll, or a message since, brought something new.
    news: bool,
    /// The news ended the rest, and the waiter has not acted on that yet.
    is_woken: bool,
    /// The nodes that have not answered the present poll.
    awaited: NodeSet,
    /// How many times as long the pauses are because of the number of waiters.
    by_crowd: u32,
}

impl Rest {
    /// A poll of these nodes is about to be sent. `notified`: each of them notifies the waiter of
    /// hand-overs and of writes. `enough`: they are a quorum. The client has so many `waiters`.
    pub fn begin_poll(&mut self, nodes: NodeSet, notified: bool, enough: bool, waiters: usize) {
        let by_crowd = if notified { waiters / POLLERS } else { 0 };
        self.by_crowd = by_crowd.min(1 << MOST_DOUBLINGS) as u32;
        if self.news || !notified {
            self.quiet_polls = 0;
        } else if self.awaited.is_empty() && enough {
            self.quiet_polls = (self.quiet_polls + 1).min(PATIENCE * MOST_DOUBLINGS);
        }
        (self.news, self.awaited) = (false, nodes);
    }

    /// A node answered the poll, or cannot answer it any more.
    pub fn note_answer(&mut self, node: impl Into<NodeSet>) {
        self.awaited = self.awaited.minus(node.into());
    }

    /// The waiter learned something new: it rests no more.
    pub fn note_news(&mut self) {
        self.is_woken |= self.quiet_polls >= PATIENCE;
        (self.quiet_polls, self.news) = (0, true);
    }

    /// Whether news ended the rest of the waiter since the last call.
    pub fn take_wake_up(&mut self) -> bool {
        std::mem::take(&mut self.is_woken)
    }

    /// Whether the pauses of the waiter are longer than those of one that does not rest.
    pub fn is_resting(self) -> bool {
        self.times() > 1
    }

    /// How many times as long the next pause is as that of a waiter that does not rest.
    pub fn times(self) -> u32 {
        (1 << (self.quiet_polls / PATIENCE)).max(self.by_crowd)
    }

    /// All that the next steps of the waiter can depend on. `is_woken` is left out: the waiter acts
    /// on a wake-up at once.
    #[cfg(feature = "testing")]
    pub fn state(self) -> (u32, bool, NodeSet, u32) {
        (self.quiet_polls, self.news, self.awaited, self.by_crowd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::node_set::NodeId;

    /// A poll that every node answered.
    fn poll(rest: &mut Rest) {
        rest.begin_poll(NodeSet::first(3), true, true, 1);
        rest.note_answer(NodeSet::first(3));
    }

    fn rested() -> Rest {
        let mut rest = Rest::default();
        (0..=PATIENCE).for_each(|_| poll(&mut rest));
        assert!(rest.is_resting());
        rest
    }

    #[test]
    fn pause_doubles_after_every_eighth_quiet_poll_up_to_256_times() {
        let mut rest = Rest::default();
        rest.note_news();
        poll(&mut rest);
        let mut polls_at = [0; 257];
        for _ in 0..100 {
            poll(&mut rest);
            polls_at[rest.times() as usize] += 1;
        }
        assert_eq!([1, 2, 4, 8, 64, 128].map(|times| polls_at[times]), [7, 8, 8, 8, 8, 8]);
        assert_eq!(polls_at[256], 100 - 7 - 7 * 8);
    }

    #[test]
    fn news_ends_the_rest_at_once() {
        let mut rest = rested();
        rest.note_news();
        assert!(!rest.is_resting() && rest.take_wake_up() && !rest.take_wake_up());
        poll(&mut rest);
        assert_eq!(rest.state().0, 0, "this poll ended the one that brought the news");
    }

    #[test]
    fn waiter_that_would_not_be_notified_rests_no_more() {
        let mut rest = rested();
        rest.begin_poll(NodeSet::first(3), false, true, 10_000);
        assert!(!rest.is_resting());
    }

    #[test]
    fn pause_does_not_grow_by_a_poll_that_a_node_left_unanswered_or_that_too_few_were_asked() {
        let mut rest = rested();
        let before = rest.state().0;
        rest.begin_poll(NodeSet::first(3), true, false, 1);
        rest.note_answer(NodeId::new(0));
        rest.begin_poll(NodeSet::first(3), true, true, 1);
        assert_eq!(rest.state().0, before);
        rest.note_answer(NodeSet::first(3));
        rest.begin_poll(NodeSet::first(3), true, true, 1);
        assert_eq!(rest.state().0, before + 1);
    }

    #[test]
    fn pauses_of_many_waiters_are_longer_from_the_first_one_on() {
        let times = |waiters| {
            let mut rest = Rest::default();
            rest.begin_poll(NodeSet::first(3), true, true, waiters);
            rest.note_news();
            assert!(!rest.take_wake_up(), "it polls as often as before");
            rest.times()
        };
        assert_eq!([1, 511, 512, 10_000, 1 << 16, 1 << 20].map(times), [1, 1, 2, 39, 256, 256]);
    }

    #[test]
    fn line_outlives_three_of_the_longest_pauses() {
        assert!((60..=70).contains(&LONGEST_LINE_TTL.as_secs()));
    }
}
