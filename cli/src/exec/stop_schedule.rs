//! When CMD gets SIGTERM, and when SIGKILL: a plain value. The caller passes in deadlines and the
//! time, and gets the signal that is due. Nothing here sends a signal or reads the clock.
//!
//! The hazard is a CMD that runs on after the deadline, when another client may have the lock.

use std::time::Duration;

use clap::ValueEnum;
use redlatch::clock::Instant;

/// The longest time between SIGKILL and the deadline: see [`kill_lead`].
const LONGEST_KILL_LEAD: Duration = Duration::from_millis(250);
/// For a short ttl, SIGKILL comes this part of the ttl (one twelfth) before the deadline.
const KILL_LEAD_PART: u32 = 12;
/// The default of `--grace` is the smaller of this and of one third of the ttl.
const LONGEST_GRACE: Duration = Duration::from_secs(5);
const GRACE_PART: u32 = 3;

/// What is done to CMD when its lock is about to be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// SIGTERM when what is left falls under --grace, and SIGKILL just before the deadline
    Term,
    /// No warning: SIGKILL just before the deadline
    Kill,
    /// Nothing but a warning on stderr: CMD runs on without the lock
    Warn,
}

/// What is to be sent to CMD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGTERM: CMD may tidy up.
    Term,
    /// SIGKILL: CMD's time is over.
    Kill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// CMD got SIGTERM.
    Terminating,
    Killed,
}

/// How long before the deadline CMD gets SIGTERM if `--grace` is not given.
pub fn default_grace(ttl: Duration) -> Duration {
    LONGEST_GRACE.min(ttl / GRACE_PART)
}

/// How long before the deadline SIGKILL is sent.
///
/// A killed process stops running its own code almost immediately, but is gone only when the kernel
/// has freed its memory. Measured from SIGKILL to the end, on a virtual machine with two cores and
/// ten busy programs: 0.6 ms for a small process (12 ms at worst), and 100 ms for one that uses a
/// gigabyte. redlatch itself may wake up a millisecond late (the poller's rounding), or tens of
/// milliseconds on a busy machine. So SIGKILL is sent 250 ms before the deadline, or for a ttl
/// under 3 s, a twelfth of the ttl before it, which is a quarter of the default grace.
pub fn kill_lead(ttl: Duration) -> Duration {
    LONGEST_KILL_LEAD.min(ttl / KILL_LEAD_PART)
}

/// When the next signal to a CMD that runs under a lock is due.
#[derive(Debug)]
pub struct StopSchedule {
    policy: OnLost,
    /// How long before the deadline CMD gets SIGTERM.
    grace: Duration,
    /// How long before the deadline CMD is killed.
    kill_lead: Duration,
    term_at: Instant,
    kill_at: Instant,
    stage: Stage,
}

impl StopSchedule {
    /// The schedule of a CMD whose lock lasts until `deadline`.
    pub fn new(policy: OnLost, ttl: Duration, grace: Duration, deadline: Instant) -> StopSchedule {
        let kill_lead = kill_lead(ttl);
        let grace = grace.max(kill_lead);
        let (term_at, kill_at) = (before(deadline, grace), before(deadline, kill_lead));
        StopSchedule { policy, grace, kill_lead, term_at, kill_at, stage: Stage::Running }
    }

    /// Moves the signals after a renewal: the lock now lasts until `deadline`. If CMD already got
    /// SIGTERM, nothing moves: CMD may have begun to stop, so it is killed when its grace ends,
    /// although the lock lasts longer.
    pub fn lasts_until(&mut self, deadline: Instant) {
        if self.stage == Stage::Running {
            self.term_at = before(deadline, self.grace);
            self.kill_at = before(deadline, self.kill_lead);
        }
    }

    /// Makes the next signal due now: the verb gives up the lock, or too many nodes have lost the
    /// key before the deadline. If another client deleted the key, a third client may hold the lock
    /// already. If nodes restarted or were flushed, the restart guard keeps other clients from
    /// getting the lock before its ttl is over. So CMD gets its grace, but is killed at the latest
    /// when it would have been killed anyway.
    pub fn stop_now(&mut self, now: Instant) {
        if self.stage == Stage::Running {
            let grace = if self.policy == OnLost::Kill { Duration::ZERO } else { self.grace };
            self.term_at = now;
            self.kill_at = self.kill_at.min(now.saturating_add(grace));
        }
    }

    /// When [`next_signal`](Self::next_signal) returns a signal, unless the deadline moves.
    pub fn next_due(&self) -> Option<Instant> {
        match (self.policy, self.stage) {
            (OnLost::Warn, _) | (_, Stage::Killed) => None,
            (OnLost::Term, Stage::Running) => Some(self.term_at.min(self.kill_at)),
            (OnLost::Kill, Stage::Running) | (_, Stage::Terminating) => Some(self.kill_at),
        }
    }

    /// The signal that is due now, if any.
    pub fn next_signal(&mut self, now: Instant) -> Option<StopSignal> {
        if self.next_due()? > now {
            return None;
        }
        let too_late = now >= self.kill_at;
        self.stage = if too_late { Stage::Killed } else { Stage::Terminating };
        Some(if too_late { StopSignal::Kill } else { StopSignal::Term })
    }

    /// Says in words what happens to CMD when its lock is lost.
    pub fn in_words(&self) -> &'static str {
        match self.policy {
            OnLost::Term | OnLost::Kill => "CMD is stopped",
            OnLost::Warn => "CMD runs on without the lock",
        }
    }

    /// Whether CMD gets SIGTERM before it is killed.
    pub fn warns_cmd(&self) -> bool {
        self.policy == OnLost::Term
    }

    /// Whether redlatch sent CMD SIGTERM or SIGKILL, so that CMD's end counts as redlatch's doing.
    pub fn was_stopped(&self) -> bool {
        self.stage != Stage::Running
    }
}

/// The moment that is `by` before `moment`.
fn before(moment: Instant, by: Duration) -> Instant {
    let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(moment.as_nanos().saturating_sub(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(12);
    const GRACE: Duration = Duration::from_secs(4);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn stop_schedule(policy: OnLost) -> StopSchedule {
        StopSchedule::new(policy, TTL, GRACE, at(12_000))
    }

    /// Asks for the due signal at each of these moments, in milliseconds.
    fn sent(stop_schedule: &mut StopSchedule, moments: &[u64]) -> Vec<Option<StopSignal>> {
        moments.iter().map(|&millis| stop_schedule.next_signal(at(millis))).collect()
    }

    #[test]
    fn cmd_gets_term_a_grace_before_the_deadline_and_is_dead_before_it() {
        let mut stop_schedule = stop_schedule(OnLost::Term);
        assert_eq!(stop_schedule.next_due(), Some(at(8_000)));
        assert_eq!(
            sent(&mut stop_schedule, &[7_999, 8_000, 8_001]),
            [None, Some(StopSignal::Term), None]
        );
        assert_eq!(stop_schedule.next_due(), Some(at(11_750)));
        assert_eq!(
            sent(&mut stop_schedule, &[11_749, 11_750, 12_000]),
            [None, Some(StopSignal::Kill), None]
        );
        assert_eq!(stop_schedule.next_due(), None);
    }

    #[test]
    fn renewal_postpones_only_signals_that_were_not_sent_yet() {
        let mut stop_schedule = stop_schedule(OnLost::Term);
        stop_schedule.lasts_until(at(16_000));
        assert_eq!(sent(&mut stop_schedule, &[8_000, 12_000]), [None, Some(StopSignal::Term)]);
        assert!(stop_schedule.was_stopped());
        stop_schedule.lasts_until(at(28_000));
        assert_eq!(sent(&mut stop_schedule, &[15_749, 15_750]), [None, Some(StopSignal::Kill)]);
    }

    #[test]
    fn cmd_is_killed_if_it_is_too_late_to_warn() {
        assert_eq!(stop_schedule(OnLost::Term).next_signal(at(11_800)), Some(StopSignal::Kill));
        let mut without_grace = StopSchedule::new(OnLost::Term, TTL, Duration::ZERO, at(12_000));
        assert_eq!(sent(&mut without_grace, &[11_749, 11_750]), [None, Some(StopSignal::Kill)]);
    }

    #[test]
    fn kill_gives_no_warning_and_warn_sends_nothing() {
        let mut kill = stop_schedule(OnLost::Kill);
        assert_eq!(sent(&mut kill, &[8_000, 11_749, 11_750]), [None, None, Some(StopSignal::Kill)]);
        let mut warn = stop_schedule(OnLost::Warn);
        assert_eq!(warn.next_due(), None);
        warn.stop_now(at(9_000));
        assert_eq!(sent(&mut warn, &[8_000, 11_750, 20_000]), [None, None, None]);
        assert!(!warn.was_stopped());
    }

    #[test]
    fn a_lock_that_is_gone_is_stopped_at_once_with_the_grace_up_to_its_deadline() {
        let mut early = stop_schedule(OnLost::Term);
        early.stop_now(at(1_000));
        assert_eq!(sent(&mut early, &[1_000, 4_999]), [Some(StopSignal::Term), None]);
        assert_eq!(early.next_signal(at(5_000)), Some(StopSignal::Kill));
        let mut late = stop_schedule(OnLost::Term);
        late.stop_now(at(11_000));
        assert_eq!(sent(&mut late, &[11_000, 11_749]), [Some(StopSignal::Term), None]);
        assert_eq!(late.next_signal(at(11_750)), Some(StopSignal::Kill));
        let mut too_late = stop_schedule(OnLost::Term);
        too_late.stop_now(at(13_000));
        assert_eq!(too_late.next_signal(at(13_000)), Some(StopSignal::Kill));
        let mut kill = stop_schedule(OnLost::Kill);
        kill.stop_now(at(1_000));
        assert_eq!(kill.next_signal(at(1_000)), Some(StopSignal::Kill));
    }

    #[test]
    fn kill_lead_is_shorter_than_the_grace_for_every_ttl() {
        for ttl in [10, 100, 300, 1_000, 5_000, 60_000, 3_600_000].map(Duration::from_millis) {
            let (grace, warn_before) = (default_grace(ttl), kill_lead(ttl));
            assert!(warn_before <= grace / 4, "{ttl:?}");
            assert!(grace <= ttl / 3, "{ttl:?}");
        }
    }
}
