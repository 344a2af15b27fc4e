//! Faults that a test plants, to show that the search for faults finds them (`tests/model`).
//!
//! The hazard is a fault in a program that is used. So they are compiled in only with
//! `RUSTFLAGS="--cfg redlatch_planted_faults"`; without it [`is_planted`] is the constant `false`,
//! and the compiler removes each fault. No feature switches them on.

/// A fault that can be planted. Each breaks one of the safety rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Half of the nodes are a quorum.
    QuorumOfHalf,
    /// The deadline counts from the reply instead of from before the question.
    DeadlineFromReply,
    /// The grant of a node in quarantine counts in an attempt.
    QuarantinedGrantCounts,
    /// The yes of a node in quarantine to an extend of a doubtful key counts.
    QuarantinedExtendCounts,
    /// A lost extend heals the nodes that lost the key.
    HealInLostRound,
    /// A pending release is sent while the lock is held.
    ReleaseWhileHeld,
    /// An adopt writes no new token.
    AdoptKeepsToken,
    /// An extend that a node had no script for is repeated after the release.
    RepeatAfterRelease,
    /// A question that a lost connection left unanswered has no pending release.
    CutWithoutRelease,
    /// The deadline of a fair lock counts from when a hand-over was read.
    DeadlineFromPush,
    /// The hand-over of a node in quarantine counts.
    QuarantinedPushCounts,
    /// The latest base of any node counts for all.
    OneBaseForAll,
    /// A split is judged from answers to several polls.
    SplitOfMixedRounds,
    /// A token stands in a line twice.
    JoinsTwice,
    /// A token joins again after its withdrawal.
    JoinAfterWithdrawal,
    /// A fencing number counts before it is stored at a majority.
    NoWriteBack,
    /// A node raises its counter in the write-back whatever token its key has.
    #[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "planted in a test master"))]
    WriteBackWithoutToken,
    /// A node that forgot its counter counts from zero.
    #[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "planted in a test master"))]
    LostCounterFromZero,
    /// A node in quarantine votes for fencing numbers.
    QuarantinedCounterCounts,
    /// A counter counts that was started when its node was in quarantine.
    CounterWithoutFloor,
}

/// Every fault.
#[cfg(redlatch_planted_faults)]
pub const FAULTS: [Fault; 14] = [
    Fault::QuorumOfHalf,
    Fault::DeadlineFromReply,
    Fault::QuarantinedGrantCounts,
    Fault::QuarantinedExtendCounts,
    Fault::HealInLostRound,
    Fault::ReleaseWhileHeld,
    Fault::AdoptKeepsToken,
    Fault::RepeatAfterRelease,
    Fault::CutWithoutRelease,
    Fault::NoWriteBack,
    Fault::WriteBackWithoutToken,
    Fault::LostCounterFromZero,
    Fault::QuarantinedCounterCounts,
    Fault::CounterWithoutFloor,
];

/// The faults of fair locks, which the simulation finds (`tests/sim/planted.rs`).
#[cfg(redlatch_planted_faults)]
pub const FAIR_FAULTS: [Fault; 6] = [
    Fault::DeadlineFromPush,
    Fault::QuarantinedPushCounts,
    Fault::OneBaseForAll,
    Fault::SplitOfMixedRounds,
    Fault::JoinsTwice,
    Fault::JoinAfterWithdrawal,
];

/// Whether this fault is planted.
#[cfg(not(redlatch_planted_faults))]
pub const fn is_planted(_: Fault) -> bool {
    false
}

/// Whether this fault is planted, in this thread.
#[cfg(redlatch_planted_faults)]
pub fn is_planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Plants a fault in this thread, or none.
#[cfg(redlatch_planted_faults)]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

#[cfg(redlatch_planted_faults)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}
