//! `redlatch acquire`: takes the lock, prints its token, and leaves it held.
//!
//! The hazard is a lock whose token no process has: it would block every other client for its ttl.
//! So until a reader took the token from us, the tool releases the lock however it ends.

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

/// The part of the ttl in which the nodes beyond the majority may answer. They are only counted for
/// the output: the lock does not need them.
const FOR_STRAGGLERS: u32 = 20;

/// The longest time for that.
const LONGEST_FOR_STRAGGLERS: Duration = Duration::from_millis(10);

/// How many bytes a pipe takes without blocking, once it is reported as writable.
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

/// Why there is no lock to leave held.
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
    let taken = taking.gather().and_then(|()| taking.acquire()).and_then(|lock| taking.hand(lock));
    if taken.is_err() {
        // `settle` sends the releases of a failed attempt, also if it has to open a connection for
        // that.
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

    /// Waits for the lock, for what is left of the wait.
    fn acquire(&mut self) -> Result<Lock, Stop> {
        let timing = &self.options.common.timing;
        let give_up_at = timing.longest_wait().map(|wait| self.start.saturating_add(wait));
        let once = self.options.fencing.of(LockOptions::once(timing.ttl));
        let mut patience = QuorumPatience::new(timing.no_quorum_wait);
        let keys = self.keys()?;
        let (signals, output) = (&mut self.signals, &self.options.common.output);
        let beside = |event_loop: &mut EventLoop| {
            node_events::mention(event_loop, output);
            signals.pending().next().map_or(Ok(None), |signal| Err(Stop::Signal(signal)))
        };
        let taken =
            for_lock(&mut self.event_loop, keys.set(), once, give_up_at, &mut patience, beside);
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

    /// Hands the lock to the reader of its token, or releases it.
    fn hand(&mut self, lock: Lock) -> Result<(), Stop> {
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
        let patience = LONGEST_FOR_STRAGGLERS.min(timing.ttl / FOR_STRAGGLERS);
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
                Err(error) if passes(error.kind()) => {}
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

    /// Waits until stdout is writable, or its reader has left. A reader that reads nothing keeps us
    /// neither from handling a signal, nor beyond the deadline.
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
                Err(error) if !passes(error.kind()) => return Err(not_taken(&error.to_string())),
                _ if !both[0].revents().is_empty() => return Ok(()),
                _ => {}
            }
        }
    }
}

/// Whether it is worth trying again.
fn passes(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn not_taken(why: &str) -> Stop {
    Refusal::internal(format!("the standard output: {why}; the lock is released")).into()
}
