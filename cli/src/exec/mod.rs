//! `redlatch exec`: runs a command while the lock is held. `job.rs` has the order of the steps.

mod child;
mod command;
pub mod events;
pub mod holding;
pub mod job;
pub mod log;
mod process_tree;
pub mod reports;
pub mod signals;
pub mod stop_schedule;
pub mod terminal;
pub mod waiting;
pub mod watch;

use std::process::ExitCode;

use redlatch::clock;

use crate::arguments::{Also, Fencing};
use crate::exit;
use crate::output::Refusal;
use crate::presence::Subject;
use job::{Job, Session, Terms};
use log::Stream;
use reports::Reports;
use stop_schedule::OnLost;
use waiting::Waited;

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
    pub job: Job,

    /// The exit code if another client holds the lock and the wait ran out
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::CONTENDED)]
    pub conflict_exit_code: u8,

    /// What happens to CMD when the lock is lost
    #[arg(long, value_name = "HOW", value_enum, default_value_t = OnLost::Term)]
    pub on_lost: OnLost,

    /// Do not renew the lock: CMD has one ttl
    #[arg(long)]
    pub no_renew: bool,

    #[command(flatten)]
    pub also: Also,

    #[command(flatten)]
    pub fencing: Fencing,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    let job = &options.job;
    let about = (Subject::Lock(&job.key.key), &job.common.output, Stream::Errors);
    ExitCode::from(Reports::around(about, &job.presence, |it| run_under_lock(options, it)))
}

fn run_under_lock(options: &Options, reports: &mut Reports) -> Result<u8, Refusal> {
    let begun = clock::now();
    let job = &options.job;
    let terms = Terms {
        keys: options.also.with(&job.key)?,
        on_lost: options.on_lost,
        no_renew: options.no_renew,
        fenced: options.fencing.fenced,
    };
    let mut session = Session::open(job, terms)?;
    match session.acquire(begun, options.conflict_exit_code, reports)? {
        Waited::Held(lock) => Ok(session.run_cmd(lock, &mut (), reports)?.code),
        Waited::Stopped(signal) => Ok(exit::by_signal(signal.as_raw())),
    }
}
