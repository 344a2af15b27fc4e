//! Runs CMD and keeps the lock: one loop over the nodes, the signals and CMD's end.
//!
//! Correctness depends on the order within a turn. The nodes' answers are handled before a due
//! signal is sent, so that a renewal which is already in a socket counts. CMD's end is handled
//! before SIGTERM is sent, so that a CMD that ended by itself is not taken for a stopped one. A due
//! SIGKILL is sent before signals are passed on, so that a SIGCONT cannot continue CMD after its
//! deadline.

use std::io;
use std::time::Duration;

use redlatch::{Error, Lock, LockUpdateKind, LostReason, clock, clock::Instant};
use rustix::process::Signal;

use super::child::{Change, Child, DYING, Ended};
use super::events;
use super::log::Log;
use super::reports::Reports;
use super::signals::Signals;
use super::stop_schedule::{StopSchedule, StopSignal};
use super::terminal::{Place, stop_ourselves};
use crate::event_loop::EventLoop;

/// How often redlatch checks whether the processes that CMD started are gone. No event reports the
/// end of those that are not redlatch's children.
const SCAN_INTERVAL: Duration = Duration::from_millis(5);

/// Until CMD is killed, the pause after a scan of /proc is this many times as long as the scan
/// took, up to [`LONGEST_PAUSE`]. Otherwise redlatch would use so much processor time that, on a
/// busy machine, the system may let it wait and SIGKILL would be late.
const PAUSE_PER_SCAN: u32 = 20;
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What a verb does while its CMD runs.
pub trait Beside {
    /// Does what is due. Never waits.
    fn turn(&mut self, event_loop: &mut EventLoop, log: &mut Log);

    /// Whether the verb gives up the lock, so that CMD has to end.
    fn gives_up(&self) -> bool;

    /// A further variable of CMD's environment.
    fn variable(&self) -> Option<(&'static str, String)>;
}

/// `exec` does nothing beside CMD.
impl Beside for () {
    fn turn(&mut self, _: &mut EventLoop, _: &mut Log) {}

    fn gives_up(&self) -> bool {
        false
    }

    fn variable(&self) -> Option<(&'static str, String)> {
        None
    }
}

/// CMD, and the lock that it runs under.
pub struct Watch<'a> {
    event_loop: &'a mut EventLoop,
    signals: &'a mut Signals,
    child: &'a mut Child,
    place: Place,
    lock: &'a Lock,
    beside: &'a mut dyn Beside,
    reports: &'a mut Reports,
    stop_schedule: StopSchedule,
    bound: Bound,
    deadline: Instant,
    /// The lock is lost.
    lost: bool,
    /// CMD has to end because the verb gives up the lock.
    given_up: bool,
    /// A signal came that asks redlatch to end.
    asked_to_end: bool,
    /// redlatch got a SIGTSTP and passed it on: when CMD stops, redlatch stops too.
    stop_asked: bool,
    /// All of CMD's processes were stopped together with redlatch, so SIGCONT goes to all of them.
    all_stopped: bool,
    killed_at: Option<Instant>,
    /// When to scan again whether all of CMD is gone.
    next_scan: Instant,
}

/// The ttl, and the user's other bounds on the lock: they explain why it ended.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    pub ttl: Duration,
    /// The lock is not renewed.
    pub no_renew: bool,
    /// The lock's deadline is never after this moment (`--max-hold`).
    pub until: Option<Instant>,
}

impl Bound {
    /// Why a lock ends at that deadline.
    pub fn reason(&self, deadline: Instant) -> LostReason {
        // The last renewal ends a little before the bound, because of whole milliseconds and drift.
        let near = self.ttl / 50 + Duration::from_millis(10);
        if self.no_renew {
            LostReason::Extensions
        } else if self.until.is_some_and(|until| until.saturating_since(deadline) <= near) {
            LostReason::MaxHold
        } else {
            LostReason::Expired
        }
    }
}

/// How CMD and its lock ended.
#[derive(Debug, Clone, Copy)]
pub struct Over {
    pub ended: Ended,
    /// redlatch stopped CMD, because the lock ended or the verb gave it up.
    pub stopped: bool,
    /// The verb gave up the lock.
    pub given_up: bool,
    /// A process that CMD started is alive after SIGKILL.
    pub survived: bool,
    /// A signal came that asks redlatch to end: TERM, INT or QUIT.
    pub asked_to_end: bool,
    /// There is nothing to release, or the lock must not be released.
    pub lost: bool,
}

impl<'a> Watch<'a> {
    pub fn new(
        (event_loop, signals): (&'a mut EventLoop, &'a mut Signals),
        (child, place): (&'a mut Child, Place),
        lock: &'a Lock,
        (stop_schedule, bound, deadline): (StopSchedule, Bound, Instant),
        (beside, reports): (&'a mut dyn Beside, &'a mut Reports),
    ) -> Watch<'a> {
        let (given_up, asked_to_end) = (false, false);
        let (lost, stop_asked, all_stopped, killed_at) = (false, false, false, None);
        let next_scan = clock::now();
        Watch {
            event_loop,
            signals,
            child,
            place,
            lock,
            beside,
            reports,
            stop_schedule,
            bound,
            deadline,
            lost,
            given_up,
            asked_to_end,
            stop_asked,
            all_stopped,
            killed_at,
            next_scan,
        }
    }

    /// Runs until CMD is gone. On a system error kills CMD, because nothing would watch it then.
    pub fn until_it_ends(mut self) -> Result<Over, Error> {
        loop {
            self.handle_lock_updates();
            self.handle_changes_of_cmd();
            self.turn_beside();
            self.send_what_is_due();
            self.pass_signals_on();
            if let Some((ended, left)) = self.child.ended().zip(self.survivor_after_end()) {
                return Ok(self.over(ended, left));
            }
            let reports = self.reports.turn(self.event_loop);
            let until = self.wakes_at().into_iter().chain(reports).min();
            if let Err(error) = self.event_loop.turn(until) {
                let _ = self.child.send_to_all(Signal::KILL);
                return Err(error);
            }
        }
    }

    fn handle_lock_updates(&mut self) {
        while let Some(update) = self.event_loop.engine.poll_lock_update() {
            match update.kind {
                // If CMD gets SIGTERM at that moment, `send_what_is_due` reports the event.
                LockUpdateKind::Expiring { deadline, .. } if !self.stop_schedule.warns_cmd() => {
                    let remaining = deadline.saturating_since(clock::now());
                    let core = self.event_loop.engine.coordinator();
                    events::expiring(&mut self.reports.log, core, remaining, None);
                }
                LockUpdateKind::Lost(error) => {
                    self.lost = true;
                    if matches!(error, Error::Lost { reason: LostReason::Gone, .. }) {
                        self.stop_schedule.stop_now(clock::now());
                    }
                    let then = match self.child.ended() {
                        Some(_) => "CMD had ended",
                        None => self.stop_schedule.in_words(),
                    };
                    events::lost(&mut self.reports.log, &error, then);
                    self.reports.presence.lost(self.event_loop);
                }
                _ => {}
            }
        }
        let deadline = self.event_loop.engine.deadline(self.lock);
        if let Some(deadline) = deadline.filter(|&deadline| deadline > self.deadline) {
            self.deadline = deadline;
            self.stop_schedule.lasts_until(deadline);
            self.reports.presence.renewed(deadline);
            events::renewed(
                &mut self.reports.log,
                self.lock,
                deadline.saturating_since(clock::now()),
            );
        }
    }

    /// Lets the verb do what it does beside CMD, and stops CMD if the verb gives up the lock.
    fn turn_beside(&mut self) {
        self.beside.turn(self.event_loop, &mut self.reports.log);
        if self.beside.gives_up() && !self.given_up && self.child.ended().is_none() {
            self.given_up = true;
            self.stop_schedule.stop_now(clock::now());
        }
    }

    fn handle_changes_of_cmd(&mut self) {
        while let Some(change) = self.child.next_change() {
            let Change::Stopped(by) = change else { continue };
            let reads_terminal = matches!(by, Signal::TTIN | Signal::TTOU);
            if self.place == Place::OwnGroup && reads_terminal {
                self.reports
                    .log
                    .warning("CMD was stopped because it reads the terminal; try --foreground");
            }
            if std::mem::take(&mut self.stop_asked) || self.place.stops_with(by) {
                // While redlatch is stopped, it cannot renew the lock or kill CMD, so every
                // process of CMD is stopped before.
                self.all_stopped = true;
                let sent = self.child.send_to_all(Signal::STOP);
                self.warn_if_unsent(sent, "SIGSTOP");
                stop_ourselves();
            }
        }
    }

    fn send_what_is_due(&mut self) {
        let now = clock::now();
        // If CMD ended by itself before the deadline, no signal is sent to what it left running.
        let in_time = self.child.ended().is_some() && now < self.deadline;
        if in_time && !self.stop_schedule.was_stopped() {
            return;
        }
        let Some(due) = self.stop_schedule.next_signal(now) else { return };
        let to_all = |signal| self.child.send_to_all(signal);
        let sent = match due {
            // A stopped CMD handles SIGTERM only when it is continued.
            StopSignal::Term => to_all(Signal::TERM).and(to_all(Signal::CONT)),
            StopSignal::Kill => {
                (self.killed_at, self.next_scan) = (Some(now), now);
                to_all(Signal::KILL)
            }
        };
        let name = if due == StopSignal::Term { "SIGTERM" } else { "SIGKILL" };
        if !self.lost && !self.given_up {
            let remaining = self.deadline.saturating_since(now);
            let core = self.event_loop.engine.coordinator();
            events::expiring(&mut self.reports.log, core, remaining, Some(name));
        }
        self.warn_if_unsent(sent, name);
    }

    fn pass_signals_on(&mut self) {
        for caught in self.signals.caught() {
            let signal = caught.signal;
            self.asked_to_end |= matches!(signal, Signal::TERM | Signal::INT | Signal::QUIT);
            if signal == Signal::CHILD || self.child.ended().is_some() {
                continue;
            }
            if self.place.passes_on(&caught) {
                self.stop_asked = signal == Signal::TSTP;
                let goes_on = signal == Signal::CONT && std::mem::take(&mut self.all_stopped);
                let sent =
                    if goes_on { self.child.send_to_all(signal) } else { self.child.send(signal) };
                self.warn_if_unsent(sent, "a signal");
            }
        }
    }

    fn warn_if_unsent(&mut self, sent: io::Result<()>, what: &str) {
        if let Err(error) = sent {
            self.reports.log.warning(&format!("{what} cannot be sent to all of CMD: {error}"));
        }
    }

    /// After CMD's end: `None` while processes that it started have to be waited for, which is so
    /// only if redlatch stopped CMD. Otherwise, whether such a process may have survived SIGKILL.
    fn survivor_after_end(&mut self) -> Option<bool> {
        let gave_up = |at: Instant| clock::now() >= at.saturating_add(DYING);
        if !self.stop_schedule.was_stopped() || self.check_all_gone() {
            Some(false)
        } else {
            self.killed_at.is_some_and(gave_up).then_some(true)
        }
    }

    /// Returns `true` if it finds that no process of CMD is left. Scans /proc only when that is
    /// due; the end of redlatch's last child is seen without a scan.
    fn check_all_gone(&mut self) -> bool {
        let begun = clock::now();
        if self.child.is_known_gone() {
            return true;
        }
        if begun < self.next_scan {
            return false;
        }
        let is_killed = self.killed_at.is_some();
        // Kills again, because CMD's processes may have started others since the last scan.
        let is_gone =
            if is_killed { self.child.kill_what_is_left() } else { self.child.is_all_gone() };
        let now = clock::now();
        let took = now.saturating_since(begun);
        let rest = (PAUSE_PER_SCAN * took).clamp(SCAN_INTERVAL, LONGEST_PAUSE);
        let pause = if is_killed { SCAN_INTERVAL } else { rest };
        self.next_scan = now.saturating_add(pause);
        is_gone
    }

    fn wakes_at(&self) -> Option<Instant> {
        let due = self.stop_schedule.next_due();
        let scans = self.child.ended().is_some() || self.killed_at.is_some();
        let scan = scans.then_some(self.next_scan);
        due.into_iter().chain(scan).min()
    }

    fn over(self, ended: Ended, left: bool) -> Over {
        let stopped = self.stop_schedule.was_stopped();
        // If a process of CMD survived, the lock is not released but expires by its ttl, so that no
        // other holder runs beside that process before then.
        if left {
            self.reports.log.warning("a process that CMD started is still alive after SIGKILL");
        }
        if stopped && !self.lost && !self.given_up {
            self.reports.presence.lost(self.event_loop);
            // CMD had to be dead before the deadline, but the library reports a loss only after it.
            // So the loss is reported here.
            let mut report = self.event_loop.engine.coordinator().report_node_states(clock::now());
            report.key = self.reports.log.key().as_bytes().into();
            let reason = self.bound.reason(self.deadline);
            let left = self.deadline.saturating_since(clock::now());
            if reason == LostReason::Expired && self.killed_at.is_none() && !left.is_zero() {
                events::not_renewed(&mut self.reports.log, &report, left);
            } else {
                let error = Error::Lost { reason, report };
                events::lost(&mut self.reports.log, &error, "CMD was stopped");
            }
        }
        let (given_up, asked_to_end) = (self.given_up, self.asked_to_end);
        let lost = self.lost || left;
        Over { ended, stopped, given_up, survived: left, asked_to_end, lost }
    }
}
