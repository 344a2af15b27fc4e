//! Runs CMD and keeps the lock: one loop over the nodes, the signals and CMD's end.
//!
//! Correctness depends on the order within a turn. The nodes' answers are handled before what is
//! due, so that a renewal which is already in a socket counts. CMD's end is handled before SIGTERM
//! is sent, so that a finished CMD is not counted as stopped. What is due is done before signals
//! are passed on, so that a CMD which was stopped together with us is not continued after its
//! deadline.

use std::io;
use std::time::Duration;

use redlatch::{Error, Lock, LockUpdateKind, LostReason, clock, clock::Instant};
use rustix::process::Signal;

use super::child::{Change, Child, DYING, Ended};
use super::events;
use super::reports::Reports;
use super::signals::Signals;
use super::stop_schedule::{StopSchedule, StopSignal};
use super::terminal::{Place, stop_ourselves};
use crate::event_loop::EventLoop;

/// How often we check whether what CMD started is gone: no event reports all of that.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A look reads all of /proc. Until CMD is killed, the pause after a look is so many times as long
/// as the look took, up to a limit. A process that uses much of a processor runs late on a busy
/// machine, and we have to be in time with SIGKILL.
const PAUSE_FOR_A_LOOK: u32 = 20;
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// CMD, and the lock that it runs under.
pub struct Watch<'a> {
    event_loop: &'a mut EventLoop,
    signals: &'a mut Signals,
    child: &'a mut Child,
    place: Place,
    lock: &'a Lock,
    reports: &'a mut Reports,
    stop_schedule: StopSchedule,
    bound: Bound,
    deadline: Instant,
    /// The lock is lost.
    lost: bool,
    /// A signal asked us to stop, and CMD got it.
    stop_asked: bool,
    /// All of CMD's processes were stopped together with us.
    all_stopped: bool,
    killed_at: Option<Instant>,
    /// When we look again whether all of CMD is gone.
    look_at: Instant,
}

/// The user's bounds on the lock, apart from its ttl: they explain why it ends.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    pub ttl: Duration,
    /// The lock is not renewed.
    pub no_renew: bool,
    /// The lock's deadline is never later than this.
    pub until: Option<Instant>,
}

impl Bound {
    /// Why a lock ends at that deadline.
    pub fn reason(&self, deadline: Instant) -> LostReason {
        // The last renewal comes as near to the bound as whole milliseconds and drift allow.
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
    /// CMD was stopped because of its lock.
    pub stopped: bool,
    /// There is nothing to release, or the lock must not be released.
    pub lost: bool,
}

impl<'a> Watch<'a> {
    pub fn new(
        (event_loop, signals): (&'a mut EventLoop, &'a mut Signals),
        (child, place): (&'a mut Child, Place),
        lock: &'a Lock,
        (stop_schedule, bound, deadline): (StopSchedule, Bound, Instant),
        reports: &'a mut Reports,
    ) -> Watch<'a> {
        let (lost, stop_asked, all_stopped, killed_at) = (false, false, false, None);
        let look_at = clock::now();
        Watch {
            event_loop,
            signals,
            child,
            place,
            lock,
            reports,
            stop_schedule,
            bound,
            deadline,
            lost,
            stop_asked,
            all_stopped,
            killed_at,
            look_at,
        }
    }

    /// Runs until CMD is gone. On a system error CMD is killed, because nothing would watch it.
    pub fn until_it_ends(mut self) -> Result<Over, Error> {
        loop {
            self.hear_of_the_lock();
            self.look_at_cmd();
            self.do_what_is_due();
            self.pass_signals_on();
            if let Some((ended, left)) = self.child.ended().zip(self.look_for_the_end()) {
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

    fn hear_of_the_lock(&mut self) {
        while let Some(update) = self.event_loop.engine.poll_lock_update() {
            match update.kind {
                // If CMD gets SIGTERM, the event of that signal is reported instead.
                LockUpdateKind::Expiring { deadline, .. } if !self.stop_schedule.warns_cmd() => {
                    let remaining = deadline.saturating_since(clock::now());
                    let core = self.event_loop.engine.coordinator();
                    events::expiring(&mut self.reports.log, core, remaining, None);
                }
                LockUpdateKind::Lost(error) => {
                    self.lost = true;
                    if matches!(error, Error::Lost { reason: LostReason::Gone, .. }) {
                        self.stop_schedule.on_lock_gone(clock::now());
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

    fn look_at_cmd(&mut self) {
        while let Some(change) = self.child.next_change() {
            let Change::Stopped(by) = change else { continue };
            let reads_terminal = matches!(by, Signal::TTIN | Signal::TTOU);
            if self.place == Place::OwnGroup && reads_terminal {
                self.reports
                    .log
                    .warning("CMD was stopped because it reads the terminal; try --foreground");
            }
            if std::mem::take(&mut self.stop_asked) || self.place.stops_with(by) {
                // Nothing watches the lock while redlatch is stopped, so no process of CMD may run
                // on.
                self.all_stopped = true;
                let sent = self.child.send_to_all(Signal::STOP);
                self.complain_of(sent, "SIGSTOP");
                stop_ourselves();
            }
        }
    }

    fn do_what_is_due(&mut self) {
        let now = clock::now();
        // CMD ended by itself, while it still had its lock.
        let in_time = self.child.ended().is_some() && now < self.deadline;
        if in_time && !self.stop_schedule.was_stopped() {
            return;
        }
        let Some(blow) = self.stop_schedule.next_blow(now) else { return };
        let to_all = |signal| self.child.send_to_all(signal);
        let sent = match blow {
            // A stopped CMD handles SIGTERM only when it is continued.
            StopSignal::Term => to_all(Signal::TERM).and(to_all(Signal::CONT)),
            StopSignal::Kill => {
                (self.killed_at, self.look_at) = (Some(now), now);
                to_all(Signal::KILL)
            }
        };
        let name = if blow == StopSignal::Term { "SIGTERM" } else { "SIGKILL" };
        if !self.lost {
            let remaining = self.deadline.saturating_since(now);
            let core = self.event_loop.engine.coordinator();
            events::expiring(&mut self.reports.log, core, remaining, Some(name));
        }
        self.complain_of(sent, name);
    }

    fn pass_signals_on(&mut self) {
        for caught in self.signals.caught() {
            let signal = caught.signal;
            if signal == Signal::CHILD || self.child.ended().is_some() {
                continue;
            }
            if self.place.passes_on(&caught) {
                self.stop_asked = signal == Signal::TSTP;
                let goes_on = signal == Signal::CONT && std::mem::take(&mut self.all_stopped);
                let sent =
                    if goes_on { self.child.send_to_all(signal) } else { self.child.send(signal) };
                self.complain_of(sent, "a signal");
            }
        }
    }

    fn complain_of(&mut self, sent: io::Result<()>, what: &str) {
        if let Err(error) = sent {
            self.reports.log.warning(&format!("{what} cannot be sent to all of CMD: {error}"));
        }
    }

    /// `None` while there is more to wait for after CMD ended. Otherwise, whether something of CMD
    /// may be left. If CMD was stopped, what it started must be gone, too.
    fn look_for_the_end(&mut self) -> Option<bool> {
        let gave_up = |at: Instant| clock::now() >= at.saturating_add(DYING);
        if !self.stop_schedule.was_stopped() || self.see_all_gone() {
            Some(false)
        } else {
            self.killed_at.is_some_and(gave_up).then_some(true)
        }
    }

    /// Whether nothing is left of CMD, as far as a look is due. The end of our last child is an
    /// event, and is seen without a look.
    fn see_all_gone(&mut self) -> bool {
        let begun = clock::now();
        if self.child.is_last_gone() {
            return true;
        }
        if begun < self.look_at {
            return false;
        }
        let is_killed = self.killed_at.is_some();
        // A process may have been started after the last look at CMD's processes.
        let is_gone =
            if is_killed { self.child.kill_what_is_left() } else { self.child.is_all_gone() };
        let now = clock::now();
        let took = now.saturating_since(begun);
        let rest = (PAUSE_FOR_A_LOOK * took).clamp(LOOK_AGAIN, LONGEST_PAUSE);
        let pause = if is_killed { LOOK_AGAIN } else { rest };
        self.look_at = now.saturating_add(pause);
        is_gone
    }

    fn wakes_at(&self) -> Option<Instant> {
        let due = self.stop_schedule.next_due();
        let looks = self.child.ended().is_some() || self.killed_at.is_some();
        let look = looks.then_some(self.look_at);
        due.into_iter().chain(look).min()
    }

    fn over(self, ended: Ended, left: bool) -> Over {
        let stopped = self.stop_schedule.was_stopped();
        // The lock is not released but expires by its ttl, so that no other holder runs beside it.
        if left {
            self.reports.log.warning("a process that CMD started is still alive after SIGKILL");
        }
        if stopped && !self.lost {
            self.reports.presence.lost(self.event_loop);
            // The library would report the loss a little later. So this report is made here: CMD
            // has to be dead before the deadline.
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
        Over { ended, stopped, lost: self.lost || left }
    }
}
