//! One campaign: when the candidate asks for the lock of the election, when its term ends, and when
//! it asks the nodes who leads, which is called a look. An observer is a campaign without a
//! candidate.
//!
//! The hazard is a candidate that leads twice at once: in the eyes of its caller, who has not given
//! up a term that is over, and by a new lock. So a new request is made only after the caller has
//! ended the term.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use crate::proto::coordinator::Coordinator;
use crate::proto::election::leader::{Leadership, asked_pause, leader_note};
use crate::proto::election::{Candidate, Standing};
use crate::proto::error::Error;
use crate::proto::ids::Op;
use crate::proto::inspection::Inspection;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::completions::Outcome;
use crate::proto::own_keys::Note;
use crate::proto::time::Instant;

/// The longest time between two looks of a campaign. A candidate looks at least three times a ttl,
/// but see [`SHORTEST_INTERVAL`].
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two looks.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(20);

/// One candidate, or observer, in one election.
#[derive(Debug)]
#[cfg_attr(feature = "testing", derive(Clone))]
pub struct Campaign {
    name: Box<[u8]>,
    pub(super) data: u64,
    candidacy: Option<Candidacy>,
    stage: Stage,
    look: Look,
    /// Who led, by the last report to the caller.
    reported: Option<Leadership>,
    standings: VecDeque<Standing>,
    /// A standing waits that [`announce`](Campaign::announce) has not reported yet.
    has_news: bool,
}

/// The candidate, and the options with which it asks for the lock.
#[derive(Debug, Clone)]
pub struct Candidacy {
    pub candidate: Candidate,
    /// The options of its requests, with its owner.
    pub options: LockOptions,
    /// Counts the addresses that the leader proclaimed in its present term.
    pub version: u32,
}

/// How far the campaign is.
#[derive(Debug)]
enum Stage {
    /// It only observes.
    Observing,
    /// It asks for the lock from this moment on.
    Paused { until: Instant },
    /// The request stands in line.
    InLine { op: Op },
    /// It leads. `taken`: the caller knows. `resign`: a note asked it to step down for this long.
    Leading { lock: Lock, taken: bool, resign: Option<Duration> },
    /// The lock is over, and the caller has not ended the term yet. When it does, the candidate
    /// stays out for this pause.
    Over { pause: Duration },
}

/// A look at the nodes: its open questions, and the answers so far.
#[derive(Debug, Default)]
#[cfg_attr(feature = "testing", derive(Clone))]
struct Look {
    /// When the next look begins.
    next: Instant,
    /// The questions that have no answer yet.
    asked: Vec<(Op, Asked)>,
    key: Option<Box<Inspection>>,
    leader_notes: Option<Box<Inspection>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Key,
    LeaderNotes,
    ResignNotes,
    /// To write the note of the leader.
    ToWrite,
}

impl Campaign {
    /// A campaign that begins at `now`; without a candidacy it only observes.
    pub fn new(name: &[u8], candidacy: Option<Candidacy>, data: u64, now: Instant) -> Campaign {
        let stage = match candidacy {
            Some(_) => Stage::Paused { until: now },
            None => Stage::Observing,
        };
        let look = Look { next: now, ..Look::default() };
        Campaign {
            name: name.into(),
            data,
            candidacy,
            stage,
            look,
            reported: None,
            standings: VecDeque::new(),
            has_news: false,
        }
    }

    /// Whether this request belongs to the campaign.
    pub fn owns(&self, op: Op) -> bool {
        matches!(self.stage, Stage::InLine { op: own } if own == op)
            || self.look.asked.iter().any(|&(own, _)| own == op)
    }

    /// The moment at which something is due.
    pub fn due(&self) -> Instant {
        let look = if self.look.asked.is_empty() { Some(self.look.next) } else { None };
        let begin = match self.stage {
            Stage::Paused { until } => Some(until),
            _ => None,
        };
        look.into_iter().chain(begin).min().unwrap_or(Instant::from_nanos(u64::MAX))
    }

    /// Does what is due.
    pub fn go_on(&mut self, core: &mut Coordinator, now: Instant) {
        self.end_late_term(core, now);
        if matches!(self.stage, Stage::Paused { until } if until <= now) {
            self.stand(core, now);
        }
        if self.look.asked.is_empty() && self.look.next <= now {
            self.begin_look(core, now);
        }
    }

    /// Asks for the lock, and waits for it in line.
    fn stand(&mut self, core: &mut Coordinator, now: Instant) {
        let Some(candidacy) = &mut self.candidacy else { return };
        candidacy.version = 0;
        match core.acquire_in_line(&self.name, candidacy.options, self.data, now) {
            Ok(op) => self.stage = Stage::InLine { op },
            Err(error) => self.failed(error, now),
        }
    }

    fn failed(&mut self, error: Error, now: Instant) {
        self.push(Standing::Failed(error));
        let pause = self.candidacy.as_ref().map_or(Duration::ZERO, |it| it.options.ttl);
        self.stage = Stage::Paused { until: now.saturating_add(pause) };
    }

    /// A request of this campaign has ended.
    pub fn on_ended(&mut self, op: Op, core: &mut Coordinator, now: Instant) {
        // A grant that is older than its ttl is no lock: then the request goes on.
        let Some(done) = core.fetch(op, now) else { return };
        if let Some(place) = self.look.asked.iter().position(|&(asked, _)| asked == op) {
            let (_, asked) = self.look.asked.swap_remove(place);
            if let Ok(Outcome::Inspected(seen)) = done.result {
                self.on_seen(asked, seen, core, now);
            }
            if self.look.asked.is_empty() {
                self.end_look(now);
            }
            return;
        }
        match done.result {
            Ok(Outcome::Acquired(lock)) => {
                self.push(Standing::Leading(lock.alias()));
                self.stage = Stage::Leading { lock, taken: false, resign: None };
                (self.reported, self.look.next) = (None, now);
            }
            Ok(other) => unreachable!("an acquire ended as {other:?}"),
            Err(error) => self.failed(error, now),
        }
    }

    /// The lock with this token is lost.
    pub fn on_loss(&mut self, token: &LockToken, now: Instant) {
        match self.stage {
            Stage::Leading { ref lock, taken, resign } if lock.token == *token => {
                self.term_is_over(taken, resign.unwrap_or_default(), now);
            }
            _ => {}
        }
    }

    /// A term whose lock reached its deadline before the caller took it is over: no term is handed
    /// out at or past its deadline.
    pub fn end_late_term(&mut self, core: &mut Coordinator, now: Instant) {
        if let Stage::Leading { lock, taken: false, resign } = &self.stage {
            if core.remaining(lock, now).is_zero() {
                let pause = resign.unwrap_or_default();
                core.release_nowait(lock, now);
                self.term_is_over(false, pause, now);
            }
        }
    }

    /// The lock is over. If the caller has not taken the term, it need not end it.
    fn term_is_over(&mut self, taken: bool, pause: Duration, now: Instant) {
        self.standings
            .retain(|it| !matches!(it, Standing::Leading(_) | Standing::AskedToResign(_)));
        self.stage = match taken {
            true => Stage::Over { pause },
            false => Stage::Paused { until: now.saturating_add(pause) },
        };
        self.report(Leadership::Nobody);
        self.look.next = now;
    }

    /// The caller has stopped what only a leader may do: the lock is released if it is still held,
    /// and the candidate asks anew, after the pause for which it was asked to resign.
    pub fn end_term(&mut self, core: &mut Coordinator, now: Instant) {
        let pause = match &self.stage {
            Stage::Leading { lock, taken: true, resign } => {
                core.release_nowait(lock, now);
                let pause = resign.unwrap_or_default();
                self.term_is_over(true, pause, now);
                pause
            }
            &Stage::Over { pause } => pause,
            _ => return,
        };
        self.stage = Stage::Paused { until: now.saturating_add(pause) };
    }

    /// The candidate stays out for this long, from now on and after its present term. Returns the
    /// lock of the present term, which the caller has to release.
    pub fn resign(
        &mut self,
        pause: Duration,
        core: &mut Coordinator,
        now: Instant,
    ) -> Option<Lock> {
        let until = now.saturating_add(pause);
        match &mut self.stage {
            Stage::Observing => None,
            Stage::Paused { until: before } => {
                *before = until.max(*before);
                None
            }
            Stage::Over { pause: before } => {
                *before = pause.max(*before);
                None
            }
            &mut Stage::InLine { op } => {
                core.cancel(op, now);
                self.stage = Stage::Paused { until };
                None
            }
            Stage::Leading { lock, taken, resign } => {
                let (lock, taken) = (lock.alias(), *taken);
                let pause = pause.max(resign.unwrap_or_default());
                self.term_is_over(taken, pause, now);
                Some(lock)
            }
        }
    }

    /// The campaign is over: what it asked for is given back. The lock of a term that the caller
    /// has taken is the caller's.
    pub fn withdraw(self, core: &mut Coordinator, now: Instant) {
        self.look.asked.iter().for_each(|&(op, _)| core.cancel(op, now));
        match self.stage {
            Stage::InLine { op } => core.cancel(op, now),
            Stage::Leading { lock, taken: false, .. } => core.release_nowait(&lock, now),
            Stage::Leading { .. } | Stage::Over { .. } => {}
            Stage::Observing | Stage::Paused { .. } => {}
        }
    }

    /// The lock of the present term, if the caller knows that it leads.
    pub fn lock(&self) -> Option<&Lock> {
        match &self.stage {
            Stage::Leading { lock, taken: true, .. } => Some(lock),
            _ => None,
        }
    }

    /// The candidate is reached at this address from now on, as its owner in the next terms says.
    /// A leader writes it into its note.
    pub fn proclaim(&mut self, candidate: Candidate, options: LockOptions, now: Instant) {
        let Some(candidacy) = &mut self.candidacy else { return };
        (candidacy.candidate, candidacy.options) = (candidate, options);
        candidacy.version = candidacy.version.saturating_add(1);
        self.look.next = now;
    }

    /// Whether the caller knows that it leads, and was asked to step down.
    pub fn is_asked_to_resign(&self) -> bool {
        matches!(self.stage, Stage::Leading { taken: true, resign: Some(_), .. })
    }

    /// The name of the election.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The candidacy, if this is no observer.
    pub fn candidacy(&self) -> Option<&Candidacy> {
        self.candidacy.as_ref()
    }

    /// The next standing that was not taken yet.
    pub fn poll_standing(&mut self) -> Option<Standing> {
        let standing = self.standings.pop_front();
        self.has_news = !self.standings.is_empty();
        let standing = standing?;
        if let (Standing::Leading(_), Stage::Leading { taken, .. }) = (&standing, &mut self.stage) {
            *taken = true;
        }
        Some(standing)
    }

    /// Whether a standing waits that `announce` has not reported yet.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Announces the standings: returns whether there is one since the last announcement.
    pub fn announce(&mut self) -> bool {
        mem::take(&mut self.has_news) && !self.standings.is_empty()
    }

    /// Begins a look: a leader writes its note and reads whether it is asked to resign, any other
    /// campaign reads who leads.
    fn begin_look(&mut self, core: &mut Coordinator, now: Instant) {
        if let Stage::Leading { lock, taken, resign } = &self.stage {
            if core.deadline(lock).is_none() {
                // The caller has released the lock by itself.
                let (taken, pause) = (*taken, resign.unwrap_or_default());
                self.term_is_over(taken, pause, now);
            }
        }
        self.look.next = now.saturating_add(self.interval());
        (self.look.key, self.look.leader_notes) = (None, None);
        let (name, data) = (&self.name[..], self.data);
        let asked = match (&self.stage, &self.candidacy) {
            (Stage::Leading { lock, .. }, Some(candidacy)) => {
                let Candidacy { candidate, options, version } = candidacy;
                let term = lock.fence().unwrap_or_default();
                let address = candidate.address.as_deref();
                let text = leader_note(&lock.token, term, *version, address);
                let ttl = options.ttl.saturating_mul(2);
                let write = core.write_note(name, Note::Leader, text.as_bytes(), ttl, data, now);
                let read = core.read_note(name, Note::Resign, data, now);
                [(write, Asked::ToWrite), (read, Asked::ResignNotes)]
            }
            _ => {
                let key = core.inspect(name, data, now);
                let notes = core.read_note(name, Note::Leader, data, now);
                [(key, Asked::Key), (notes, Asked::LeaderNotes)]
            }
        };
        // A question for which there was no room is asked at the next look.
        let asked = asked.into_iter().filter_map(|(op, asked)| Some((op.ok()?, asked)));
        self.look.asked.extend(asked);
    }

    /// How long after a look the next one begins.
    fn interval(&self) -> Duration {
        let ttl = self.candidacy.as_ref().map(|it| it.options.ttl / 3);
        ttl.unwrap_or(LONGEST_INTERVAL).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)
    }

    fn on_seen(
        &mut self,
        asked: Asked,
        seen: Box<Inspection>,
        core: &mut Coordinator,
        now: Instant,
    ) {
        match asked {
            Asked::Key => self.look.key = Some(seen),
            Asked::LeaderNotes => self.look.leader_notes = Some(seen),
            Asked::ResignNotes => self.on_resign_notes(&seen, core, now),
            Asked::ToWrite => {}
        }
    }

    /// Steps down, or reports it to the caller, if a note asks this leader to.
    fn on_resign_notes(&mut self, notes: &Inspection, core: &mut Coordinator, now: Instant) {
        let Stage::Leading { lock, taken, resign: resign @ None } = &mut self.stage else { return };
        let Some(pause) = asked_pause(notes, &lock.token) else { return };
        *resign = Some(pause);
        if *taken {
            self.push(Standing::AskedToResign(pause));
        } else {
            // The caller has not taken this term, so it has nothing to stop.
            core.release_nowait(lock, now);
            self.term_is_over(false, pause, now);
        }
    }

    /// All questions of a look have their answers.
    fn end_look(&mut self, now: Instant) {
        let (key, notes) = (self.look.key.take(), self.look.leader_notes.take());
        let (Some(key), Some(notes)) = (key, notes) else { return };
        // A leader knows that it leads. What was read before its lock was granted is out of date.
        if !matches!(self.stage, Stage::Leading { .. }) {
            self.report(Leadership::of(&key, &notes, now));
        }
    }

    /// Reports who leads, if that changed. That it is unknown is reported to observers only.
    fn report(&mut self, leadership: Leadership) {
        if self.reported.as_ref().is_some_and(|it| it.is_same(&leadership)) {
            return;
        }
        let standing = match (&leadership, &self.candidacy) {
            (_, None) => Standing::Observed(leadership.clone()),
            (Leadership::Unknown, Some(_)) => return,
            (leadership, Some(_)) => Standing::Following(leadership.leader().cloned()),
        };
        self.reported = Some(leadership);
        self.push(standing);
    }

    /// Reports a standing. It replaces one of the same kind that was not taken yet, so that a slow
    /// caller needs no memory.
    fn push(&mut self, standing: Standing) {
        let kind = mem::discriminant(&standing);
        self.standings.retain(|it| mem::discriminant(it) != kind);
        self.standings.push_back(standing);
        self.has_news = true;
    }
}

/// Copies the stage with a second handle of its lock. Only tests do that, and use either the
/// original or the copy afterwards.
#[cfg(feature = "testing")]
impl Clone for Stage {
    fn clone(&self) -> Stage {
        match self {
            Stage::Observing => Stage::Observing,
            &Stage::Paused { until } => Stage::Paused { until },
            &Stage::InLine { op } => Stage::InLine { op },
            Stage::Leading { lock, taken, resign } => {
                Stage::Leading { lock: lock.alias(), taken: *taken, resign: *resign }
            }
            &Stage::Over { pause } => Stage::Over { pause },
        }
    }
}

/// Copies the standing as `Stage` is copied above.
#[cfg(feature = "testing")]
impl Clone for Standing {
    fn clone(&self) -> Standing {
        match self {
            Standing::Leading(lock) => Standing::Leading(lock.alias()),
            Standing::Following(leader) => Standing::Following(leader.clone()),
            &Standing::AskedToResign(pause) => Standing::AskedToResign(pause),
            Standing::Failed(error) => Standing::Failed(error.clone()),
            Standing::Observed(leadership) => Standing::Observed(leadership.clone()),
        }
    }
}
