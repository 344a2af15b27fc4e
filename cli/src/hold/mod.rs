//! `redlatch hold`: acquires the lock and renews it until a signal comes or stdin closes. It runs
//! no command: it is for programs that do their own work under a lock.
//!
//! The hazard is a parent that relies on a lost lock. So if the lock cannot be renewed, hold ends
//! with 124 before the deadline, without waiting for any node. And a lock whose token cannot be
//! printed is of no use to the parent, so hold releases it and ends with 125.

mod input;

use std::process::ExitCode;
use std::time::Duration;

use mio::{Token, Waker};
use redlatch::{AutoExtend, Error, Lock, LockOptions, LockUpdateKind, clock, clock::Instant};
use rustix::process::Signal;

use crate::arguments::{Also, Common, Fencing, Key};
use crate::event_loop::EventLoop;
use crate::exec::events;
use crate::exec::holding::{self, release_and_report};
use crate::exec::job::{MaxHold, max_hold, refusal};
use crate::exec::log::Stream;
use crate::exec::reports::Reports;
use crate::exec::signals::Signals;
use crate::exec::stop_schedule::{default_grace, kill_lead};
use crate::exec::waiting::{Waited, wait_for_lock};
use crate::exec::watch::Bound;
use crate::output::{self, Refusal};
use crate::presence::Subject;
use crate::{exit, nodes, presence};
use input::Input;

/// The poller's token of the event that the lock's token could not be printed.
const UNREAD: Token = Token(5);

const EXAMPLES: &str = "\
Examples:
  redlatch hold maintenance                       until ctrl-C
  coproc redlatch hold -w 10s deploy              bash: until its stdin is closed
  read -r token <&${COPROC[0]} || exit            a line comes when the lock is held
  ./deploy.sh; exec {COPROC[1]}>&-

On stdout comes one line, the token, when the lock is held (with --fenced, the token and the \
fencing number of each key); with --json the events of exec. What \
stdin says is ignored; its end releases the lock, where it is a pipe, a socket or a terminal, and \
not where it is a file or /dev/null.

Exit codes: 0 told to end, and released; 75 another client holds it and the wait ran out, or stdin \
closed before; 69 no quorum of nodes could answer; 124 the lock was lost; 125 usage or \
configuration, or the token could not be printed; 128+n ended by signal n while it waited.";

/// Hold the lock until a signal comes or stdin closes
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    pub key: Key,

    /// The exit code if another client holds the lock and the wait ran out
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::CONTENDED)]
    pub conflict_exit_code: u8,

    /// The longest time that the lock is held; or none
    ///
    /// With none, the lock is renewed until a signal comes or stdin closes.
    #[arg(long, value_name = "DUR", value_parser = max_hold, default_value = "none")]
    pub max_hold: MaxHold,

    #[command(flatten)]
    pub also: Also,
    #[command(flatten)]
    pub fencing: Fencing,
    #[command(flatten)]
    pub presence: presence::Flags,
    #[command(flatten)]
    pub common: Common,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    let about = (Subject::Lock(&options.key.key), &options.common.output, Stream::Out);
    ExitCode::from(Reports::around(about, &options.presence, |reports| hold(options, reports)))
}

/// Why hold ends without an error.
#[derive(Debug, Clone, Copy)]
enum Stop {
    By(Signal),
    InputClosed,
}

fn hold(options: &Options, reports: &mut Reports) -> Result<u8, Refusal> {
    let begun = clock::now();
    let mut event_loop =
        EventLoop::new(nodes::config(&options.common.nodes, &options.common.timing)?)?;
    event_loop.count_suspend();
    let mut signals = Signals::listen(event_loop.registry())
        .map_err(|error| Refusal::internal(format!("signals cannot be caught: {error}")))?;
    let waker = Waker::new(event_loop.registry(), UNREAD)
        .map_err(|error| Refusal::internal(format!("poller: {error}")))?;
    if reports.log.prints_token(waker) && output::stdout_was_closed() {
        reports.log.leave_stdout();
        return Err(unread("it was closed from the start; no lock was asked for"));
    }
    let mut input = Input::watch(event_loop.registry());
    let mut stop = || match signals.ending() {
        Some(signal) => Some(Stop::By(signal)),
        None => input.read_to_its_end().then_some(Stop::InputClosed),
    };
    let keep = AutoExtend::at_most(options.max_hold.0.unwrap_or(Duration::MAX));
    let keep = keep.warn_before(default_grace(lasts(options)));
    // When --max-hold is over, hold ends without a release. So auto-extend must not let the keys
    // live longer than that.
    let once = LockOptions::once(lasts(options)).auto_extend(keep);
    let once = options.fencing.of(once);
    let keys = options.also.with(&options.key)?;
    let wanted = (keys.set(), &options.common.timing, once);
    let waited = wait_for_lock(&mut event_loop, &mut stop, wanted, reports);
    let lock = match waited.map_err(|error| refusal(error, options.conflict_exit_code))? {
        Waited::Held(lock) => lock,
        Waited::Stopped(Stop::By(signal)) => return Ok(exit::by_signal(signal.as_raw())),
        Waited::Stopped(Stop::InputClosed) => {
            let message = "stdin was closed before the lock was held";
            let word = "contended";
            return Err(Refusal { word, code: exit::CONTENDED, ..Refusal::config(message) });
        }
    };
    let until = options.max_hold.0.map(|most| clock::now().saturating_add(most));
    let bound = Bound { ttl: options.common.timing.ttl, no_renew: false, until };
    holding::report(&mut event_loop, (&lock, &keys), begun, &mut reports.log)?;
    // The engine returns no deadline if the lock expired just now.
    let deadline = event_loop.engine.deadline(&lock).unwrap_or_default();
    if let Err(refusal) = reports.presence.held(&event_loop, deadline) {
        release_and_report(&mut event_loop, lock, reports)?;
        return Err(refusal);
    }
    reports.presence.ready();
    reports.log.print_token(&keys.token_line(&lock));
    let lead = kill_lead(lasts(options));
    let mut holding =
        Holding { event_loop: &mut event_loop, lock: &lock, deadline, bound, reports };
    match holding.until_it_ends(lead, &mut stop)? {
        End::Lost(error) => {
            events::lost(&mut reports.log, &error, "hold ends");
            reports.presence.lost(&event_loop);
            // Sends the pending releases, and waits for no node.
            event_loop.settle(Duration::ZERO)?;
            Ok(exit::LOST)
        }
        End::Requested => {
            let released = release_and_report(&mut event_loop, lock, reports)?;
            Ok(if holding::was_lost(released) { exit::LOST } else { exit::DONE })
        }
        End::Unread(why) => {
            release_and_report(&mut event_loop, lock, reports)?;
            Err(unread(&format!("{why}; the lock is released")))
        }
    }
}

fn unread(why: &str) -> Refusal {
    Refusal::internal(format!("the standard output: {why}"))
}

/// How long the lock lasts if it is not renewed.
fn lasts(options: &Options) -> Duration {
    options.max_hold.0.map_or(options.common.timing.ttl, |most| most.min(options.common.timing.ttl))
}

/// Why hold stops holding the lock.
enum End {
    /// A signal, or the end of stdin.
    Requested,
    Lost(Error),
    /// The token could not be printed.
    Unread(String),
}

/// A lock that is held, and what is needed to keep it.
struct Holding<'a> {
    event_loop: &'a mut EventLoop,
    lock: &'a Lock,
    deadline: Instant,
    bound: Bound,
    reports: &'a mut Reports,
}

impl Holding<'_> {
    /// Renews the lock until `stop` returns a reason to end, or until the lock is lost. A lock that
    /// could not be renewed counts as lost `lead` before its deadline.
    fn until_it_ends(
        &mut self,
        lead: Duration,
        stop: &mut impl FnMut() -> Option<Stop>,
    ) -> Result<End, Error> {
        loop {
            if let Some(error) = self.handle_lock_updates() {
                return Ok(End::Lost(error));
            }
            if let Some(why) = self.reports.log.token_error() {
                return Ok(End::Unread(why));
            }
            self.record_renewal();
            let now = clock::now();
            if now.saturating_add(lead) >= self.deadline {
                let core = self.event_loop.engine.coordinator();
                let mut report = core.report_node_states(now);
                report.key = self.reports.log.key().as_bytes().into();
                let reason = self.bound.reason(self.deadline);
                return Ok(End::Lost(Error::Lost { reason, report }));
            }
            if stop().is_some() {
                return Ok(End::Requested);
            }
            let give_up_in = self.deadline.saturating_since(now.saturating_add(lead));
            let give_up_at = now.saturating_add(give_up_in);
            let reports = self.reports.turn(self.event_loop);
            self.event_loop.turn(reports.into_iter().chain([give_up_at]).min())?;
        }
    }

    /// Handles the library's updates of the lock, and returns the error if the lock is lost.
    fn handle_lock_updates(&mut self) -> Option<Error> {
        while let Some(update) = self.event_loop.engine.poll_lock_update() {
            match update.kind {
                LockUpdateKind::Expiring { deadline, .. } => {
                    let remaining = deadline.saturating_since(clock::now());
                    let core = self.event_loop.engine.coordinator();
                    events::expiring(&mut self.reports.log, core, remaining, None);
                }
                LockUpdateKind::Lost(error) => return Some(error),
                _ => {}
            }
        }
        None
    }

    fn record_renewal(&mut self) {
        let deadline = self.event_loop.engine.deadline(self.lock);
        if let Some(deadline) = deadline.filter(|&deadline| deadline > self.deadline) {
            self.deadline = deadline;
            self.reports.presence.renewed(deadline);
            let remaining = deadline.saturating_since(clock::now());
            events::renewed(&mut self.reports.log, self.lock, remaining);
        }
    }
}
