//! `redlatch acquire`: takes the lock, prints its token, and leaves it held.
//!
//! The hazard is a lock whose token no process knows, because it would block all other clients for
//! its ttl. So if the tool ends before it could write the token, it releases the lock.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use mio::Token;
use redlatch::{Lock, LockOptions, clock, clock::Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use signal_hook_mio::v1_0::Signals;

use crate::arguments::{Common, Fencing, Keys};
use crate::event_loop::{EventLoop, Patience};
use crate::exit;
use crate::holder::Holder;
use crate::key_names::KeyNames;
use crate::lock_wait::{QuorumPatience, for_lock};
use crate::look::time;
use crate::node_events;
use crate::nodes;
use crate::output::{self, Refusal};
use crate::signals;
use crate::wall_clock::{self, micros, millis};

const EXAMPLES: &str = "\
Examples:
  token=$(redlatch acquire -t 60s deploy) || exit
  ./step-1
  redlatch extend -t 60s deploy \"$token\" || exit
  ./step-2
  redlatch release deploy \"$token\"
  token=$(redlatch acquire account:7 account:9)      both, or wait for both

With --fenced, the fencing number follows the token on the same line; of several KEYs that of \
each, in their order.

No program renews the lock in between: unless it is extended in time, it is over after its ttl. To \
run one command, exec is the better way: it renews the lock, and stops the command when it is \
lost.

Exit codes: 0 the lock is yours, 75 another client holds it and the wait ran out, 69 no quorum of \
nodes could answer, 125 usage or configuration, 128+n ended by signal n while it waited.";

/// After a majority has granted the lock, the tool waits for the other nodes for this part of the
/// ttl. Their grants only make the reported number of nodes right.
const LATE_ANSWERS_PART: u32 = 20;

/// The longest time to wait for these other nodes.
const LONGEST_LATE_ANSWERS: Duration = Duration::from_millis(10);

/// How many bytes a pipe surely takes without blocking when poll reports it as writable.
const PIECE: usize = 4096;

const SIGNALS: Token = Token(0);

/// Take the lock, print its token, exit: for scripts
///
/// Takes the lock on KEY, waiting for it for as long as --wait says, and prints its token on
/// stdout. Several KEYs are one lock with one token: all of them are taken, or none. The lock is
/// held after the tool has ended, for its ttl: any process that has the token can extend and
/// release it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    pub keys: Keys,
    #[command(flatten)]
    pub fencing: Fencing,
    #[command(flatten)]
    pub common: Common,
}

/// Why the verb ends without a lock.
enum Stop {
    Signal(i32),
    Refused(Refusal),
}

impl<E: Into<Refusal>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Refused(error.into())
    }
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    match take(options) {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(Stop::Signal(signal)) => ExitCode::from(exit::by_signal(signal)),
        Err(Stop::Refused(refusal)) => refusal.report(&options.common.output),
    }
}

fn take(options: &Options) -> Result<(), Stop> {
    let start = clock::now();
    let config = nodes::config(&options.common.nodes, &options.common.timing)?;
    let event_loop = EventLoop::new(config)?;
    let signals = signals::listen(event_loop.registry(), SIGNALS, &signals::ENDING)?;
    let mut taking = Taking { event_loop, signals, options, start };
    let taken = taking
        .gather()
        .and_then(|()| taking.acquire())
        .and_then(|lock| taking.print_or_release(lock));
    if taken.is_err() {
        // Sends the releases of a failed attempt, also to a node that has to be connected first.
        taking.event_loop.settle(options.common.timing.node_timeout)?;
    }
    taken
}

struct Taking<'a> {
    event_loop: EventLoop,
    signals: Signals,
    options: &'a Options,
    start: Instant,
}

impl Taking<'_> {
    fn gather(&mut self) -> Result<(), Stop> {
        let signals = &mut self.signals;
        let mut signal = None;
        self.event_loop.gather(Patience::Prompt, |_| {
            signal = signals.pending().next();
            signal.is_some()
        })?;
        signal.map_or(Ok(()), |signal| Err(Stop::Signal(signal)))
    }

    fn turn(&mut self, until: Option<Instant>) -> Result<(), Stop> {
        self.event_loop.turn(until)?;
        node_events::mention(&mut self.event_loop, &self.options.common.output);
        self.signals.pending().next().map_or(Ok(()), |signal| Err(Stop::Signal(signal)))
    }

    /// Waits for the lock for what is left of `--wait`.
    fn acquire(&mut self) -> Result<Lock, Stop> {
        let timing = &self.options.common.timing;
        let give_up_at = timing.longest_wait().map(|wait| self.start.saturating_add(wait));
        let once = self.options.fencing.of(LockOptions::once(timing.ttl));
        let mut patience = QuorumPatience::new(timing.no_quorum_wait);
        let keys = self.keys()?;
        let (signals, output) = (&mut self.signals, &self.options.common.output);
        let each_turn = |event_loop: &mut EventLoop| {
            node_events::mention(event_loop, output);
            signals.pending().next().map_or(Ok(None), |signal| Err(Stop::Signal(signal)))
        };
        let taken =
            for_lock(&mut self.event_loop, keys.set(), once, give_up_at, &mut patience, each_turn);
        match taken {
            Ok(lock) => lock,
            Err(error) => {
                let holder = Holder::of(&mut self.event_loop, &error);
                Err(Refusal::of_acquire(error).held_by(holder).into())
            }
        }
    }

    fn keys(&self) -> Result<KeyNames, redlatch::Error> {
        self.options.keys.named()
    }

    /// Prints the token and leaves the lock held. If that fails, releases the lock.
    fn print_or_release(&mut self, lock: Lock) -> Result<(), Stop> {
        let handed = self.print(&lock);
        match handed {
            Ok(()) => {
                self.event_loop.engine.into_token(lock);
            }
            Err(_) => self.event_loop.engine.release_nowait(&lock),
        }
        handed
    }

    fn print(&mut self, lock: &Lock) -> Result<(), Stop> {
        if output::stdout_was_closed() {
            return Err(not_taken("it was closed from the start"));
        }
        let timing = &self.options.common.timing;
        let patience = LONGEST_LATE_ANSWERS.min(timing.ttl / LATE_ANSWERS_PART);
        let end = clock::now().saturating_add(patience);
        while self.event_loop.awaits_answers() && clock::now() < end {
            self.turn(Some(end))?;
        }
        let text = self.shown(lock);
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            self.wait_for_reader(lock)?;
            let piece = &rest[..rest.len().min(PIECE)];
            match rustix::io::write(rustix::stdio::stdout(), piece).map_err(io::Error::from) {
                Ok(written) => rest = &rest[written..],
                Err(error) if is_transient(error.kind()) => {}
                Err(error) => return Err(not_taken(&error.to_string())),
            }
        }
        Ok(())
    }

    /// The text that is printed for the lock.
    fn shown(&self, lock: &Lock) -> String {
        let core = self.event_loop.engine.coordinator();
        let (granted, nodes) = (core.holders(lock).len(), core.settings().nodes.len());
        let remaining = self.event_loop.engine.remaining(lock);
        let elapsed = clock::now().saturating_since(self.start);
        let keys = self.keys().expect("the lock has them");
        let name = keys.in_words();
        let said = format!(
            "{name} is held: {granted} of {nodes} nodes granted it, in {}; {} left",
            time(elapsed),
            time(remaining)
        );
        output::mention(&self.options.common.output, &said);
        if !self.options.common.output.json {
            return format!("{}\n", keys.token_line(lock));
        }
        let mut object = json!({
            "key": keys.first(),
            "token": lock.token().to_string(),
            "deadline_unix_ms": wall_clock::unix_ms(remaining),
            "remaining_ms": millis(remaining),
            "granted": granted,
            "nodes": nodes,
            "elapsed_us": micros(elapsed),
        });
        keys.add_to(&mut object, lock);
        format!("{object}\n")
    }

    /// Waits until stdout is writable, or its reader has closed it. If the reader reads nothing, a
    /// signal or the lock's deadline still ends the wait.
    fn wait_for_reader(&mut self, lock: &Lock) -> Result<(), Stop> {
        loop {
            self.turn(Some(clock::now()))?;
            let left = self.event_loop.engine.remaining(lock);
            if left.is_zero() {
                return Err(not_taken("the lock ended before the token was read"));
            }
            let stdout = rustix::stdio::stdout();
            let mut both = [
                PollFd::from_borrowed_fd(stdout, PollFlags::OUT),
                PollFd::from_borrowed_fd(self.event_loop.registry().as_fd(), PollFlags::IN),
            ];
            let limit = Timespec::try_from(left).ok();
            match poll(&mut both, limit.as_ref()).map_err(io::Error::from) {
                Err(error) if !is_transient(error.kind()) => {
                    return Err(not_taken(&error.to_string()));
                }
                _ if !both[0].revents().is_empty() => return Ok(()),
                _ => {}
            }
        }
    }
}

/// Whether the call may succeed if it is repeated.
fn is_transient(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn not_taken(why: &str) -> Stop {
    Refusal::internal(format!("the standard output: {why}; the lock is released")).into()
}
