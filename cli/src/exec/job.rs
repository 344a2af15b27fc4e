//! A CMD that runs under a lock, for the verbs that run one: their flags, and the steps of a run:
//! find the command, acquire the lock, run CMD, release the lock.
//!
//! The hazard is a command that runs without the lock. So whatever ends redlatch also ends a
//! command that still runs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use redlatch::{AutoExtend, Lock, LockOptions, LostReason, clock, clock::Instant};
use rustix::process::Signal;

use super::child::{Child, Ended};
use super::command;
use super::events;
use super::holding::{self, LAST_WAIT, release_and_report};
use super::reports::Reports;
use super::signals::Signals;
use super::stop_schedule::{self, OnLost, StopSchedule};
use super::terminal::Place;
use super::waiting::{Waited, wait_for_lock};
use super::watch::{Beside, Bound, Over, Watch};
use crate::arguments::{Common, Key, duration};
use crate::event_loop::EventLoop;
use crate::holder::Holder;
use crate::key_names::KeyNames;
use crate::output::Refusal;
use crate::{die_with_parent, exit, nodes, presence, wall_clock};

/// The shell of `-c`: the one that cron and system(3) use, and not the user's own.
const SHELL: &str = "/bin/sh";

/// What a verb that runs CMD under a lock takes.
#[derive(Debug, clap::Args)]
pub struct Job {
    #[command(flatten)]
    pub key: Key,

    /// The command, and its arguments; -- may stand before it
    ///
    /// What follows CMD is CMD's, also if it looks like a flag: our own flags stand before it.
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "shell_line")]
    pub command: Vec<OsString>,

    /// Run this line with /bin/sh, in place of CMD
    #[arg(short = 'c', long = "command", value_name = "LINE", conflicts_with = "command")]
    pub shell_line: Option<OsString>,

    /// How long before the deadline CMD is asked to stop [default: 5s, at most a third of the ttl]
    ///
    /// If --max-hold is shorter than the ttl, the default is at most a third of that.
    ///
    /// When so little is left of the lock, because it could not be renewed, CMD gets SIGTERM. It
    /// has the time up to the deadline to end, and is killed just before it. SIGTERM is not taken
    /// back: CMD ends, also if the lock could be renewed after all. At most half of the ttl.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub grace: Option<Duration>,

    /// The longest time that the lock is held, however long CMD runs; or none
    ///
    /// With none, the lock is renewed until CMD ends. Give a time to a job that may hang: it would
    /// keep all other clients out for ever. At that time CMD is stopped as under any lock that
    /// cannot be renewed: see --grace.
    #[arg(long, value_name = "DUR", value_parser = max_hold, default_value = "none")]
    pub max_hold: MaxHold,

    /// Leave CMD in our process group, and signal it alone: for commands that read the terminal
    ///
    /// This is the default if stdin is a terminal. Otherwise CMD has a process group of its own,
    /// and what it starts gets the signals as well. If the lock is lost, what CMD started is
    /// stopped together with it in either case.
    #[arg(long)]
    pub foreground: bool,

    #[command(flatten)]
    pub presence: presence::Flags,
    #[command(flatten)]
    pub common: Common,
}

/// The longest time that the lock is held; `None`: no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxHold(pub Option<Duration>);

pub fn max_hold(text: &str) -> Result<MaxHold, String> {
    if text == "none" { Ok(MaxHold(None)) } else { duration(text).map(|read| MaxHold(Some(read))) }
}

impl Job {
    /// The command and its arguments.
    fn words(&self) -> Vec<OsString> {
        match &self.shell_line {
            Some(line) => vec![SHELL.into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }

    /// How long the lock lasts if it is not renewed.
    fn lasts(&self) -> Duration {
        let ttl = self.common.timing.ttl;
        self.max_hold.0.map_or(ttl, |most| most.min(ttl))
    }

    fn grace(&self) -> Result<Duration, Refusal> {
        let ttl = self.common.timing.ttl;
        let grace = self.grace.unwrap_or_else(|| stop_schedule::default_grace(self.lasts()));
        if grace > ttl / 2 {
            let message =
                format!("--grace {grace:?}: it is too long; half of --ttl {ttl:?} at most");
            return Err(Refusal::config(message));
        }
        Ok(grace)
    }

    /// How the lock is renewed. The library requires a bound, so "none" becomes the longest
    /// duration: then the renewals go on until CMD or this process ends.
    fn keep(&self, grace: Duration) -> AutoExtend {
        AutoExtend::at_most(self.max_hold.0.unwrap_or(Duration::MAX)).warn_before(grace)
    }
}

/// What a verb adds to its [`Job`].
#[derive(Debug)]
pub struct Terms {
    pub keys: KeyNames,
    pub on_lost: OnLost,
    pub no_renew: bool,
    pub fenced: bool,
}

/// A job whose command was found: CMD can run several times, each time under a lock of its own.
pub struct Session<'a> {
    job: &'a Job,
    terms: Terms,
    program: PathBuf,
    words: Vec<OsString>,
    grace: Duration,
    pub event_loop: EventLoop,
    pub signals: Signals,
}

/// How a run ended.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The exit code of a redlatch that runs CMD once.
    pub code: u8,
    pub ended: Ended,
    /// redlatch stopped CMD, because the lock ended or the verb gave it up.
    pub stopped: bool,
    /// A process that CMD started is alive, so the lock is not released.
    pub survived: bool,
    /// A signal came that asks redlatch itself to end, too.
    pub asked_to_end: bool,
}

impl<'a> Session<'a> {
    /// Finds CMD and checks the options. Nothing is sent to any node.
    pub fn open(job: &'a Job, terms: Terms) -> Result<Session<'a>, Refusal> {
        let words = job.words();
        let name = words.first().expect("the parser insists on CMD or a line");
        let program = command::find(name)?;
        let grace = job.grace()?;
        let mut event_loop = EventLoop::new(nodes::config(&job.common.nodes, &job.common.timing)?)?;
        event_loop.count_suspend();
        let signals = Signals::listen(event_loop.registry()).map_err(|error| {
            Refusal::internal(format!("signals: they cannot be caught: {error}"))
        })?;
        Ok(Session { job, terms, program, words, grace, event_loop, signals })
    }

    /// How the lock is acquired, and then renewed.
    pub fn lock_options(&self) -> LockOptions {
        let keep = self.job.keep(self.grace);
        let keep = if self.terms.no_renew { keep.with_extensions(0) } else { keep };
        let once = LockOptions::once(self.job.common.timing.ttl).auto_extend(keep);
        if self.terms.fenced { once.fenced() } else { once }
    }

    /// Acquires the lock, or returns the signal that ended the wait.
    pub fn acquire(
        &mut self,
        begun: Instant,
        conflict_exit_code: u8,
        reports: &mut Reports,
    ) -> Result<Waited<Signal>, Refusal> {
        let wanted = (self.terms.keys.set(), &self.job.common.timing, self.lock_options());
        let mut stop = || self.signals.ending();
        let waited = wait_for_lock(&mut self.event_loop, &mut stop, wanted, reports);
        let waited = waited.map_err(|error| {
            let holder = Holder::of(&mut self.event_loop, &error);
            refusal(error, conflict_exit_code).held_by(holder)
        })?;
        if let Waited::Held(lock) = &waited {
            self.report(lock, begun, reports)?;
        }
        Ok(waited)
    }

    /// Reports the lock that was acquired; `begun` is when the wait for it began.
    pub fn report(
        &mut self,
        lock: &Lock,
        begun: Instant,
        reports: &mut Reports,
    ) -> Result<(), Refusal> {
        let held = (lock, &self.terms.keys);
        holding::report(&mut self.event_loop, held, begun, &mut reports.log)
    }

    /// Runs CMD under the lock, and releases the lock.
    pub fn run_cmd(
        &mut self,
        lock: Lock,
        beside: &mut dyn Beside,
        reports: &mut Reports,
    ) -> Result<Run, Refusal> {
        let (job, event_loop) = (self.job, &mut self.event_loop);
        let until = job.max_hold.0.map(|most| clock::now().saturating_add(most));
        let no_renew = self.terms.no_renew;
        let bound = Bound { ttl: job.common.timing.ttl, no_renew, until };
        if event_loop.engine.remaining(&lock) <= stop_schedule::kill_lead(job.lasts()) {
            // The process did not run for a while, or the ttl is tiny: too little time is left for
            // CMD.
            return Err(self.give_up_before_start(lock, reports)?);
        }
        // The engine returns no deadline if the lock expired just now.
        let deadline = event_loop.engine.deadline(&lock).unwrap_or_default();
        if let Err(refusal) = reports.presence.held(event_loop, deadline) {
            release_and_report(event_loop, lock, reports)?;
            return Err(refusal);
        }
        let place = Place::of_command(job.foreground);
        let mut command = die_with_parent::command(&self.program, &self.words);
        give_environment(&mut command, job, event_loop, (&lock, &self.terms.keys));
        command.envs(beside.variable());
        let over = match Child::start(command, place, event_loop.registry()) {
            Ok(mut child) => {
                reports.presence.ready();
                let on_lost = self.terms.on_lost;
                let stop_schedule = StopSchedule::new(on_lost, job.lasts(), self.grace, deadline);
                let times = (stop_schedule, bound, deadline);
                let both = (event_loop, &mut self.signals);
                Watch::new(both, (&mut child, place), &lock, times, (beside, reports))
                    .until_it_ends()?
            }
            Err(error) => {
                release_and_report(event_loop, lock, reports)?;
                return Err(Refusal::internal(format!("CMD cannot be started: {error}")));
            }
        };
        let code = self.end(over, lock, reports)?;
        let Over { ended, stopped, survived, asked_to_end, .. } = over;
        Ok(Run { code, ended, stopped, survived, asked_to_end })
    }

    /// Releases a lock that has too little time left to run CMD and to stop it, and starts nothing.
    fn give_up_before_start(
        &mut self,
        lock: Lock,
        reports: &mut Reports,
    ) -> Result<Refusal, Refusal> {
        let core = self.event_loop.engine.coordinator();
        let mut report = core.report_node_states(clock::now());
        report.key = self.job.key.key.as_bytes().into();
        release_and_report(&mut self.event_loop, lock, reports)?;
        let lost = redlatch::Error::Lost { reason: LostReason::Expired, report };
        let mut refusal = Refusal::from(lost);
        refusal.message = format!("CMD was not started: {}", refusal.message);
        refusal.code = exit::LOST;
        Ok(refusal)
    }

    /// After CMD's end: reports it, releases the lock if that is still allowed, and returns
    /// redlatch's exit code.
    fn end(&mut self, over: Over, lock: Lock, reports: &mut Reports) -> Result<u8, Refusal> {
        let Over { ended, stopped, given_up, lost, .. } = over;
        // If CMD ended by itself before the loss was noticed, another holder may have run beside
        // it: so the loss decides the exit code.
        let code = |lost: bool| match self.terms.on_lost {
            _ if stopped && !given_up => exit::LOST,
            OnLost::Term | OnLost::Kill if lost => exit::LOST,
            _ => ended.code(),
        };
        events::child_exit(&mut reports.log, ended, code(lost));
        if lost {
            // Sends the releases that are still pending.
            self.event_loop.settle(LAST_WAIT)?;
            reports.presence.count(&self.event_loop);
            return Ok(code(true));
        }
        let released = release_and_report(&mut self.event_loop, lock, reports)?;
        Ok(code(holding::was_lost(released)))
    }
}

/// Puts the lock into CMD's environment, and takes out what may have a password in it.
fn give_environment(
    command: &mut Command,
    job: &Job,
    event_loop: &EventLoop,
    (lock, keys): (&Lock, &KeyNames),
) {
    let core = event_loop.engine.coordinator();
    let (granted, nodes) = (core.holders(lock).len(), core.settings().nodes.len());
    let remaining = event_loop.engine.remaining(lock);
    command
        .env("REDLATCH_KEY", &job.key.key)
        .env("REDLATCH_TOKEN", lock.token().to_string())
        .env("REDLATCH_TTL_MS", job.common.timing.ttl.as_millis().to_string())
        .env("REDLATCH_DEADLINE_UNIX_MS", wall_clock::unix_ms(remaining).to_string())
        .env("REDLATCH_GRANTED", format!("{granted}/{nodes}"))
        // If another redlatch started this one, its fencing numbers belong to another lock.
        .env_remove("REDLATCH_FENCE")
        .env_remove("REDLATCH_FENCES")
        .env_remove("REDLATCH_TERM")
        // The two files belong to this lock: a redlatch that CMD starts would take them for its
        // own.
        .env_remove("REDLATCH_READY_FILE")
        .env_remove("REDLATCH_METRICS_FILE")
        .env_remove(nodes::SERVERS_VARIABLE)
        .env_remove(nodes::PASSWORD_VARIABLE)
        .env_remove(nodes::SENTINEL_PASSWORD_VARIABLE);
    if let Some((_, fence)) = keys.fences(lock).first() {
        command.env("REDLATCH_FENCE", fence.to_string());
    }
    if let Some(fences) = keys.fences_by_key(lock) {
        command.env("REDLATCH_FENCES", fences.to_string());
    }
}

/// The refusal that reports a failed acquire, with the user's exit code if another client holds the
/// lock.
pub fn refusal(error: redlatch::Error, conflict_exit_code: u8) -> Refusal {
    let contended = matches!(error, redlatch::Error::Contended(_));
    let mut refusal = Refusal::of_acquire(error);
    if contended {
        refusal.code = conflict_exit_code;
    }
    refusal
}
