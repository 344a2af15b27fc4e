//! When CMD gets SIGTERM, and when SIGKILL: a plain value. The caller gives it deadlines and the
//! time, and it says what is due. It sends nothing, and reads no clock.
//!
//! The hazard is a CMD that runs on after the deadline, when another client may have the lock.

use std::time::Duration;

use clap::ValueEnum;
use redlatch::clock::Instant;

/// The longest time before the deadline that is kept for CMD to die: see [`kill_lead`].
const LONGEST_KILL_LEAD: Duration = Duration::from_millis(250);
/// The part of the ttl that is kept for CMD to die.
const KILL_LEAD_PART: u32 = 12;
/// The default of `--grace`: at most this, and at most this part of the ttl.
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
    Told,
    Killed,
}

/// How long before its deadline CMD gets SIGTERM, unless `--grace` says it.
pub fn default_grace(ttl: Duration) -> Duration {
    LONGEST_GRACE.min(ttl / GRACE_PART)
}

/// How long before the deadline SIGKILL is sent.
///
/// A killed process runs nothing of its own any more as soon as its processors were interrupted. It
/// is gone when the kernel has freed what it used. Measured from the signal to the end, on a
/// virtual machine with two cores and ten busy programs: 0.6 ms for a small process (12 ms at the
/// worst), and 100 ms for one with a gigabyte in use. Our own wake-up is late by a millisecond (the
/// poller's), or by tens of milliseconds on a busy machine. So the lead is a quarter of a second if
/// the ttl is long enough. For a short ttl it is a twelfth of it, which is a quarter of the default
/// grace.
pub fn kill_lead(ttl: Duration) -> Duration {
    LONGEST_KILL_LEAD.min(ttl / KILL_LEAD_PART)
}

/// The stages of a CMD that runs under a lock.
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
    /// A CMD whose lock lasts until `deadline`.
    pub fn new(policy: OnLost, ttl: Duration, grace: Duration, deadline: Instant) -> StopSchedule {
        let kill_lead = kill_lead(ttl);
        let grace = grace.max(kill_lead);
        let (term_at, kill_at) = (before(deadline, grace), before(deadline, kill_lead));
        StopSchedule { policy, grace, kill_lead, term_at, kill_at, stage: Stage::Running }
    }

    /// The lock lasts until `deadline`. If CMD got SIGTERM already, nothing changes: SIGTERM cannot
    /// be taken back, and half of CMD's work may be undone by now. CMD has the grace that it was
    /// promised, and no more, though the lock may last longer.
    pub fn lasts_until(&mut self, deadline: Instant) {
        if self.stage == Stage::Running {
            self.term_at = before(deadline, self.grace);
            self.kill_at = before(deadline, self.kill_lead);
        }
    }

    /// The lock is gone on too many nodes, before its deadline. If another client deleted the key,
    /// a third one may hold the lock already. After a restart or a flush, no guarded node grants
    /// the key before the lock's ttl is over. So CMD gets SIGTERM at once, and its grace ends at
    /// the old deadline.
    pub fn on_lock_gone(&mut self, now: Instant) {
        if self.stage == Stage::Running {
            let grace = if self.policy == OnLost::Kill { Duration::ZERO } else { self.grace };
            self.term_at = now;
            self.kill_at = self.kill_at.min(now.saturating_add(grace));
        }
    }

    /// When [`next_blow`](Self::next_blow) returns a signal, unless the deadline moves.
    pub fn next_due(&self) -> Option<Instant> {
        match (self.policy, self.stage) {
            (OnLost::Warn, _) | (_, Stage::Killed) => None,
            (OnLost::Term, Stage::Running) => Some(self.term_at.min(self.kill_at)),
            (OnLost::Kill, Stage::Running) | (_, Stage::Told) => Some(self.kill_at),
        }
    }

    /// The signal that is due now, if any.
    pub fn next_blow(&mut self, now: Instant) -> Option<StopSignal> {
        if self.next_due()? > now {
            return None;
        }
        let too_late = now >= self.kill_at;
        self.stage = if too_late { Stage::Killed } else { Stage::Told };
        Some(if too_late { StopSignal::Kill } else { StopSignal::Term })
    }

    /// What becomes of CMD when its lock is lost.
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

    /// Whether CMD was sent SIGTERM or SIGKILL: then its end is our doing.
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

    /// The signals that are due at these moments, in milliseconds.
    fn sent(stop_schedule: &mut StopSchedule, moments: &[u64]) -> Vec<Option<StopSignal>> {
        moments.iter().map(|&millis| stop_schedule.next_blow(at(millis))).collect()
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
    fn a_renewal_moves_what_was_not_sent_yet_and_nothing_else() {
        let mut stop_schedule = stop_schedule(OnLost::Term);
        stop_schedule.lasts_until(at(16_000));
        assert_eq!(sent(&mut stop_schedule, &[8_000, 12_000]), [None, Some(StopSignal::Term)]);
        assert!(stop_schedule.was_stopped());
        stop_schedule.lasts_until(at(28_000));
        assert_eq!(sent(&mut stop_schedule, &[15_749, 15_750]), [None, Some(StopSignal::Kill)]);
    }

    #[test]
    fn cmd_is_killed_if_it_is_too_late_to_warn() {
        assert_eq!(stop_schedule(OnLost::Term).next_blow(at(11_800)), Some(StopSignal::Kill));
        let mut without_grace = StopSchedule::new(OnLost::Term, TTL, Duration::ZERO, at(12_000));
        assert_eq!(sent(&mut without_grace, &[11_749, 11_750]), [None, Some(StopSignal::Kill)]);
    }

    #[test]
    fn kill_gives_no_warning_and_warn_sends_nothing() {
        let mut kill = stop_schedule(OnLost::Kill);
        assert_eq!(sent(&mut kill, &[8_000, 11_749, 11_750]), [None, None, Some(StopSignal::Kill)]);
        let mut warn = stop_schedule(OnLost::Warn);
        assert_eq!(warn.next_due(), None);
        warn.on_lock_gone(at(9_000));
        assert_eq!(sent(&mut warn, &[8_000, 11_750, 20_000]), [None, None, None]);
        assert!(!warn.was_stopped());
    }

    #[test]
    fn a_lock_that_is_gone_is_stopped_at_once_with_the_grace_up_to_its_deadline() {
        let mut early = stop_schedule(OnLost::Term);
        early.on_lock_gone(at(1_000));
        assert_eq!(sent(&mut early, &[1_000, 4_999]), [Some(StopSignal::Term), None]);
        assert_eq!(early.next_blow(at(5_000)), Some(StopSignal::Kill));
        let mut late = stop_schedule(OnLost::Term);
        late.on_lock_gone(at(11_000));
        assert_eq!(sent(&mut late, &[11_000, 11_749]), [Some(StopSignal::Term), None]);
        assert_eq!(late.next_blow(at(11_750)), Some(StopSignal::Kill));
        let mut too_late = stop_schedule(OnLost::Term);
        too_late.on_lock_gone(at(13_000));
        assert_eq!(too_late.next_blow(at(13_000)), Some(StopSignal::Kill));
        let mut kill = stop_schedule(OnLost::Kill);
        kill.on_lock_gone(at(1_000));
        assert_eq!(kill.next_blow(at(1_000)), Some(StopSignal::Kill));
    }

    #[test]
    fn the_leads_fit_into_each_other() {
        for ttl in [10, 100, 300, 1_000, 5_000, 60_000, 3_600_000].map(Duration::from_millis) {
            let (grace, warn_before) = (default_grace(ttl), kill_lead(ttl));
            assert!(warn_before <= grace / 4, "{ttl:?}");
            assert!(grace <= ttl / 3, "{ttl:?}");
        }
    }
}
