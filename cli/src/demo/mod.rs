//! The demo: a lock on five masters, a second client that wants it, a freeze, a crash, a majority
//! that is lost and comes back. Every number and every state on the screen is measured while it
//! runs.
//!
//! This file starts the masters, draws the picture and reports the end, also an early one. What
//! happens in between is in `story`.

mod bob;
mod chronicle;
mod in_process;
mod lanes;
mod masters;
mod peek;
mod screen;
mod servers;
mod story;
mod svg;
mod timeline;
mod watch;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use redlatch::clock;

use crate::{exit, writable};
use chronicle::Chronicle;
use in_process::InProcess;
use masters::Masters;
use screen::Screen;
use servers::Servers;
use watch::Watch;

/// The key that alice and bob want.
const KEY: &str = "invoice:42";

/// The lock's ttl. The demo always extends or releases the lock before this time is over.
const TTL: Duration = Duration::from_secs(5);

/// How often the demo checks a state of which no event reports a change.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Five local masters, contention, a freeze, a crash: what Redlock does, in a few seconds.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Start five redis-servers, instead of five masters inside this process
    #[arg(long)]
    real: bool,

    /// Draw what happened: a lane for each node, with whose lock it held and when it was down
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Why the demo ends before its end.
#[derive(Debug)]
pub enum Stop {
    /// The program that read the output has ended.
    ReaderLeft,
    /// Something failed that should not fail, in words.
    Failed(String),
}

/// Runs the demo.
pub fn run(options: &Options) -> ExitCode {
    match play(options, &mut Screen::new()) {
        Ok(()) | Err(Stop::ReaderLeft) => ExitCode::SUCCESS,
        Err(Stop::Failed(why)) => {
            // If stderr has no reader either, only the exit code is left.
            let _ = writeln!(std::io::stderr(), "redlatch demo: {why}");
            ExitCode::from(exit::INTERNAL)
        }
    }
}

fn play(options: &Options, screen: &mut Screen) -> Result<(), Stop> {
    if let Some(path) = &options.svg {
        writable::check_writable(path).map_err(|error| unwritable(path, &error))?;
    }
    let start = clock::now();
    let mut masters = masters(options)?;
    let started = clock::now().saturating_since(start);
    let mut chronicle = Chronicle::new(clock::now());
    let watch = options.svg.as_ref().map(|_| Watch::start(&masters.urls(), KEY)).transpose()?;
    story::play(screen, masters.as_mut(), started, &mut chronicle)?;
    let end = clock::now();
    let states = watch.map(Watch::end);
    drop(masters);
    if let (Some(path), Some(states)) = (&options.svg, states) {
        let picture = timeline::svg(&chronicle, &states, end);
        std::fs::write(path, picture).map_err(|error| unwritable(path, &error))?;
    }
    let took = clock::now().saturating_since(start);
    screen.prose(&format!("The five masters are ended. {} in all.", screen::time(took)))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("{} cannot be written: {error}", path.display()))
}

fn masters(options: &Options) -> Result<Box<dyn Masters>, Stop> {
    if options.real { Ok(Box::new(Servers::start()?)) } else { Ok(Box::new(InProcess::start()?)) }
}
