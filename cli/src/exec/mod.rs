//! `redlatch exec`: runs a command while the lock is held. This file has the order of the steps:
//! find the command, acquire the lock, run the command, release the lock.
//!
//! The hazard is a command that runs without the lock. So whatever ends redlatch also ends a
//! command that still runs.

mod child;
mod command;
pub mod events;
pub mod holding;
pub mod log;
mod process_tree;
pub mod reports;
pub mod signals;
pub mod stop_schedule;
pub mod terminal;
pub mod waiting;
pub mod watch;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use redlatch::{AutoExtend, Lock, LockOptions, LostReason, clock};

use crate::arguments::{Also, Common, Fencing, Key, duration};
use crate::event_loop::EventLoop;
use crate::holder::Holder;
use crate::key_names::KeyNames;
use crate::output::Refusal;
use crate::{die_with_parent, exit, nodes, presence, wall_clock};
use child::Child;
use holding::{LAST_WAIT, release_and_report};
use log::Stream;
use reports::Reports;
use signals::Signals;
use stop_schedule::{OnLost, StopSchedule};
use terminal::Place;
use waiting::{Waited, wait_for_lock};
use watch::{Bound, Over, Watch};

/// The shell of `exec -c`: the one that cron and system(3) use, and not the user's own.
const SHELL: &str = "/bin/sh";

const EXAMPLES: &str = "\
Examples:
  redlatch exec nightly-report /usr/local/bin/report --all
  redlatch exec backup -c 'pg_dump app | gzip > /backup/app.gz'
  redlatch exec -n deploy -- ./deploy.sh          do not wait: 75 if another client holds it
  redlatch exec --also account:9 account:7 -- ./transfer 7 9   both, or wait for both
  redlatch exec -w 5m -t 1m migrate -- ./migrate  wait for 5 minutes at most

The lock is renewed at a third of its ttl while CMD runs, and released after it; redlatch ends \
with CMD's exit code, or 128+n where signal n ended it. What CMD leaves running after its end \
runs without the lock. TERM, INT, HUP, QUIT, USR1, USR2, WINCH and CONT are passed on to CMD. \
Where the lock cannot be renewed, CMD gets SIGTERM and is dead before others can have the \
lock: 124. So it is where the lock turns out to be lost when CMD has ended.

CMD gets REDLATCH_KEY, REDLATCH_TOKEN, REDLATCH_TTL_MS, REDLATCH_DEADLINE_UNIX_MS and \
REDLATCH_GRANTED in its environment, with --fenced REDLATCH_FENCE, the number of KEY (with --also \
also REDLATCH_FENCES, a JSON object with the number of each key), and no password.";

/// Run a command while holding the lock
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Options {
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

    /// The exit code if another client holds the lock and the wait ran out
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::CONTENDED)]
    pub conflict_exit_code: u8,

    /// How long before the deadline CMD is asked to stop [default: 5s, at most a third of the ttl]
    ///
    /// If --max-hold is shorter than the ttl, the default is at most a third of that.
    ///
    /// When so little is left of the lock, because it could not be renewed, CMD gets SIGTERM. It
    /// has the time up to the deadline to end, and is killed just before it. SIGTERM is not taken
    /// back: CMD ends, also if the lock could be renewed after all. At most half of the ttl.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub grace: Option<Duration>,

    /// What happens to CMD when the lock is lost
    #[arg(long, value_name = "HOW", value_enum, default_value_t = OnLost::Term)]
    pub on_lost: OnLost,

    /// Do not renew the lock: CMD has one ttl
    #[arg(long)]
    pub no_renew: bool,

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
    pub also: Also,

    #[command(flatten)]
    pub fencing: Fencing,
    #[command(flatten)]
    pub presence: presence::Flags,
    #[command(flatten)]
    pub common: Common,
}

impl Options {
    /// The command and its arguments.
    fn words(&self) -> Vec<OsString> {
        match &self.shell_line {
            Some(line) => vec![SHELL.into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }
}

/// The longest time that the lock is held; `None`: no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxHold(pub Option<Duration>);

pub fn max_hold(text: &str) -> Result<MaxHold, String> {
    if text == "none" { Ok(MaxHold(None)) } else { duration(text).map(|read| MaxHold(Some(read))) }
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    let about = (options.key.key.as_str(), &options.common.output, Stream::Errors);
    ExitCode::from(Reports::around(about, &options.presence, |it| run_under_lock(options, it)))
}

fn run_under_lock(options: &Options, reports: &mut Reports) -> Result<u8, Refusal> {
    let begun = clock::now();
    let words = options.words();
    let name = words.first().expect("the parser insists on CMD or a line");
    let program = command::find(name)?;
    let grace = grace(options)?;
    let mut event_loop =
        EventLoop::new(nodes::config(&options.common.nodes, &options.common.timing)?)?;
    event_loop.count_suspend();
    let mut signals = Signals::listen(event_loop.registry())
        .map_err(|error| Refusal::internal(format!("signals: they cannot be caught: {error}")))?;
    let once = LockOptions::once(options.common.timing.ttl).auto_extend(keep(options, grace));
    let once = options.fencing.of(once);
    let keys = options.also.with(&options.key)?;
    let wanted = (keys.set(), &options.common.timing, once);
    let mut stop = || signals.ending();
    let waited = wait_for_lock(&mut event_loop, &mut stop, wanted, reports);
    let lock = match waited {
        Err(error) => {
            let holder = Holder::of(&mut event_loop, &error);
            return Err(refusal(error, options.conflict_exit_code).held_by(holder));
        }
        Ok(Waited::Held(lock)) => lock,
        Ok(Waited::Stopped(signal)) => return Ok(exit::by_signal(signal.as_raw())),
    };
    holding::report(&mut event_loop, (&lock, &keys), begun, &mut reports.log)?;
    let both = (&mut event_loop, &mut signals);
    run_cmd(both, (&program, &words), (lock, &keys, grace), options, reports)
}

/// Runs CMD under the lock, and releases the lock.
fn run_cmd(
    (event_loop, signals): (&mut EventLoop, &mut Signals),
    (program, words): (&Path, &[OsString]),
    (lock, keys, grace): (Lock, &KeyNames, Duration),
    options: &Options,
    reports: &mut Reports,
) -> Result<u8, Refusal> {
    let until = options.max_hold.0.map(|most| clock::now().saturating_add(most));
    let bound = Bound { ttl: options.common.timing.ttl, no_renew: options.no_renew, until };
    if event_loop.engine.remaining(&lock) <= stop_schedule::kill_lead(lasts(options)) {
        // The process did not run for a while, or the ttl is tiny: too little time is left for CMD.
        return over_before_start(event_loop, lock, options, reports);
    }
    // The engine returns no deadline if the lock expired just now.
    let deadline = event_loop.engine.deadline(&lock).unwrap_or_default();
    if let Err(refusal) = reports.presence.held(event_loop, deadline) {
        release_and_report(event_loop, lock, reports)?;
        return Err(refusal);
    }
    let place = Place::of_command(options.foreground);
    let mut command = die_with_parent::command(program, words);
    give_environment(&mut command, options, event_loop, (&lock, keys));
    let over = match Child::start(command, place, event_loop.registry()) {
        Ok(mut child) => {
            reports.presence.ready();
            let stop_schedule = StopSchedule::new(options.on_lost, lasts(options), grace, deadline);
            let times = (stop_schedule, bound, deadline);
            Watch::new((event_loop, signals), (&mut child, place), &lock, times, reports)
                .until_it_ends()?
        }
        Err(error) => {
            release_and_report(event_loop, lock, reports)?;
            return Err(Refusal::internal(format!("CMD cannot be started: {error}")));
        }
    };
    end(over, event_loop, lock, options.on_lost, reports)
}

/// Releases a lock that has too little time left to run CMD and to stop it, and starts nothing.
fn over_before_start(
    event_loop: &mut EventLoop,
    lock: Lock,
    options: &Options,
    reports: &mut Reports,
) -> Result<u8, Refusal> {
    let mut report = event_loop.engine.coordinator().report_node_states(clock::now());
    report.key = options.key.key.as_bytes().into();
    release_and_report(event_loop, lock, reports)?;
    let mut refusal = Refusal::from(redlatch::Error::Lost { reason: LostReason::Expired, report });
    refusal.message = format!("CMD was not started: {}", refusal.message);
    refusal.code = exit::LOST;
    Err(refusal)
}

/// After CMD's end: reports it, releases the lock if that is still allowed, and returns redlatch's
/// exit code.
fn end(
    over: Over,
    event_loop: &mut EventLoop,
    lock: Lock,
    on_lost: OnLost,
    reports: &mut Reports,
) -> Result<u8, Refusal> {
    let Over { ended, stopped, lost } = over;
    // If CMD ended by itself before the loss was noticed, another holder may have run beside it: so
    // the loss decides the exit code.
    let code = |lost: bool| match on_lost {
        _ if stopped => exit::LOST,
        OnLost::Term | OnLost::Kill if lost => exit::LOST,
        _ => ended.code(),
    };
    events::child_exit(&mut reports.log, ended, code(lost));
    if lost {
        // Sends the releases that are still pending.
        event_loop.settle(LAST_WAIT)?;
        reports.presence.count(event_loop);
        return Ok(code(true));
    }
    let released = release_and_report(event_loop, lock, reports)?;
    Ok(code(holding::was_lost(released)))
}

/// Puts the lock into CMD's environment, and takes out what may have a password in it.
fn give_environment(
    command: &mut Command,
    options: &Options,
    event_loop: &EventLoop,
    (lock, keys): (&Lock, &KeyNames),
) {
    let core = event_loop.engine.coordinator();
    let (granted, nodes) = (core.holders(lock).len(), core.settings().nodes.len());
    let remaining = event_loop.engine.remaining(lock);
    command
        .env("REDLATCH_KEY", &options.key.key)
        .env("REDLATCH_TOKEN", lock.token().to_string())
        .env("REDLATCH_TTL_MS", options.common.timing.ttl.as_millis().to_string())
        .env("REDLATCH_DEADLINE_UNIX_MS", wall_clock::unix_ms(remaining).to_string())
        .env("REDLATCH_GRANTED", format!("{granted}/{nodes}"))
        // If another exec started this one, its fencing numbers belong to another lock.
        .env_remove("REDLATCH_FENCE")
        .env_remove("REDLATCH_FENCES")
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

/// How long the lock lasts if it is not renewed.
fn lasts(options: &Options) -> Duration {
    options.max_hold.0.map_or(options.common.timing.ttl, |most| most.min(options.common.timing.ttl))
}

fn grace(options: &Options) -> Result<Duration, Refusal> {
    let ttl = options.common.timing.ttl;
    let grace = options.grace.unwrap_or_else(|| stop_schedule::default_grace(lasts(options)));
    if grace > ttl / 2 {
        let message = format!("--grace {grace:?}: it is too long; half of --ttl {ttl:?} at most");
        return Err(Refusal::config(message));
    }
    Ok(grace)
}

/// How the lock is renewed. The library requires a bound, so "none" becomes the longest duration:
/// then the renewals go on until CMD or this process ends.
fn keep(options: &Options, grace: Duration) -> AutoExtend {
    let keep = AutoExtend::at_most(options.max_hold.0.unwrap_or(Duration::MAX)).warn_before(grace);
    if options.no_renew { keep.with_extensions(0) } else { keep }
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
