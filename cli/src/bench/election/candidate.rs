//! One candidate of `bench --election`, in a process of its own. The bench starts it with the
//! hidden verb, the election's name, the candidate's name, and all arguments of the bench.
//!
//! It prints a line whenever its standing changes, `leading` or `following`. It resigns on
//! SIGUSR1.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::Duration;

use mio::Token;
use redlatch::{AutoExtend, CampaignId, Candidate, Lock, LockOptions, Standing};
use signal_hook::consts::SIGUSR1;
use signal_hook_mio::v1_0::Signals;

use super::super::Options;
use crate::arguments::Verb;
use crate::event_loop::{EventLoop, Patience};
use crate::output::{self, Refusal};
use crate::{exit, leading, nodes, signals, variables};

/// The name of the hidden verb. The parser does not know it, so no help, completion or manual shows
/// it.
const VERB: &str = "__candidate";

const SIGNALS: Token = Token(0);

/// The arguments that make this program a candidate, its name first.
pub fn arguments(election: &str, name: &str) -> Vec<OsString> {
    let own = ["redlatch", VERB, election, name].map(OsString::from);
    own.into_iter().chain(std::env::args_os()).collect()
}

/// If this process was started with the hidden verb, runs the candidate, and returns how it ended.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next().as_deref() != Some(OsStr::new(VERB)) {
        return None;
    }
    let (election, name) = (words.next()?.into_string().ok()?, words.next()?.into_string().ok()?);
    let words = leading::after_verb(words.collect(), variables::command);
    let options = match variables::parse(words) {
        Ok(arguments) => arguments.verb,
        Err(code) => return Some(code),
    };
    let Verb::Bench(options) = options else { return None };
    Some(output::end(run(&options, &election, &name), &options.common.output))
}

fn run(options: &Options, election: &str, name: &str) -> Result<u8, Refusal> {
    let timing = &options.common.timing;
    let mut event_loop = EventLoop::new(nodes::config(&options.common.nodes, timing)?)?;
    let wanted = [&signals::ENDING[..], &[SIGUSR1]].concat();
    let signals = signals::listen(event_loop.registry(), SIGNALS, &wanted)?;
    event_loop.gather(Patience::Prompt, |_| false)?;
    let lock_options = LockOptions::new(timing.ttl).auto_extend(AutoExtend::at_most(Duration::MAX));
    let campaign = event_loop.engine.campaign(election, Candidate::named(name), lock_options, 0)?;
    let mut campaigner = Campaigner { event_loop, signals, campaign, term: None };
    let ended = campaigner.until_it_ends(timing.ttl);
    campaigner.withdraw();
    campaigner.event_loop.settle(timing.node_timeout)?;
    ended
}

struct Campaigner {
    event_loop: EventLoop,
    signals: Signals,
    campaign: CampaignId,
    /// The lock, while this candidate leads.
    term: Option<Lock>,
}

impl Campaigner {
    /// Campaigns until a signal ends it.
    fn until_it_ends(&mut self, pause: Duration) -> Result<u8, Refusal> {
        loop {
            let engine = &mut self.event_loop.engine;
            while engine.poll_completion().is_some() || engine.poll_lock_update().is_some() {}
            self.report_standings()?;
            for signal in self.signals.pending() {
                if signal != SIGUSR1 {
                    return Ok(exit::by_signal(signal));
                }
                // A candidate that does not lead stays out for the pause all the same.
                let _ = self.event_loop.engine.resign(self.campaign, pause, 0);
            }
            self.event_loop.turn(None)?;
        }
    }

    fn report_standings(&mut self) -> Result<(), Refusal> {
        while let Some(change) = self.event_loop.engine.poll_standing() {
            match change.standing {
                Standing::Leading(lock) => {
                    self.term = Some(lock);
                    output::print("leading")?;
                }
                Standing::Following(_) => {
                    self.term = None;
                    self.event_loop.engine.end_term(self.campaign);
                    output::print("following")?;
                }
                Standing::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Leaves the election, and gives back what this candidate holds.
    fn withdraw(&mut self) {
        self.event_loop.engine.withdraw(self.campaign);
        if let Some(lock) = self.term.take() {
            self.event_loop.engine.release(lock, 0);
        }
    }
}
