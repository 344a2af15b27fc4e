//! `redlatch elect`: runs a command while this candidate leads an election, and campaigns again
//! when the command has ended or the lock is lost: a loop around the run of `exec`.
//!
//! The hazard is a candidate that stands in the way: its command fails again and again, or an
//! operator asked it to step down. So it stays out for a pause before it campaigns again.

mod events;
mod pauses;
mod term;

use std::process::ExitCode;
use std::time::Duration;

use redlatch::{CampaignId, Candidate, Error, Lock, Standing, clock, clock::Instant};

use crate::event_loop::Patience;
use crate::exec::events::waiting;
use crate::exec::job::{Job, Run, Session, Terms};
use crate::exec::log::Stream;
use crate::exec::reports::Reports;
use crate::exec::stop_schedule::OnLost;
use crate::lock_wait::QuorumPatience;
use crate::output::Refusal;
use crate::presence::Subject;
use crate::{exit, key_names, nodes};
use key_names::KeyNames;
use pauses::Pauses;
use term::Term;

const EXAMPLES: &str = "\
Examples:
  redlatch elect scheduler --address \"$POD_IP:8080\" -- ./scheduler
  redlatch elect -t 10s --name web-1 scheduler -c 'exec ./scheduler --term $REDLATCH_TERM'
  redlatch elect --once scheduler -- ./scheduler    leads once, and ends with CMD's code

CMD runs while this candidate leads, as under exec: it gets SIGTERM, and is dead before another \
can lead. When CMD has ended or the lock is lost, the candidate campaigns again: at once, or if \
CMD failed after 5 s, then 10 s, up to 1 min (5 s again after a CMD that ran for 1 min). If \
redlatch resign asks it to step down, CMD gets SIGTERM, SIGKILL after --grace, and the candidate \
stays out for as long as it was asked to. TERM, INT and QUIT end CMD and then elect; the other \
signals are passed on as by exec.

CMD gets the variables of exec, and REDLATCH_TERM: the fencing number, which is greater than that \
of every earlier leader.

Exit codes: with --once, or after TERM, INT or QUIT, that of CMD; with --once 124, the lock was \
lost; 125 usage or configuration; 126/127 CMD cannot be run / is not found; 128+n ended by signal \
n while there was no CMD.";

/// Run a command while this candidate leads
///
/// Of all candidates for KEY one leads at a time. The others stand in line.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.help(REPORTED_AFTER).long_help(None::<&str>)))]
pub struct Options {
    #[command(flatten)]
    pub job: Job,

    /// Where others reach this candidate while it leads
    ///
    /// Up to 90 bytes of printable ASCII without spaces; together with the name up to 99.
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<String>,

    /// The candidate's name, without an @ [default: --owner, or host:pid]
    #[arg(long, value_name = "NAME", value_parser = crate::leader::name)]
    pub name: Option<String>,

    /// Lead once, and end with CMD's exit code
    #[arg(long)]
    pub once: bool,
}

/// What `--no-quorum-wait` means here.
const REPORTED_AFTER: &str = "How long no quorum of nodes can be asked until that is reported";

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    let job = &options.job;
    let about = (Subject::Election(&job.key.key), &job.common.output, Stream::Errors);
    ExitCode::from(Reports::around(about, &job.presence, |it| elect(options, it)))
}

fn elect(options: &Options, reports: &mut Reports) -> Result<u8, Refusal> {
    let job = &options.job;
    let keys = KeyNames::new([&job.key.key])?;
    let terms = Terms { keys, on_lost: OnLost::Term, no_renew: false, fenced: true };
    let session = Session::open(job, terms)?;
    let (candidate, pauses, survived) = (candidate(options), Pauses::default(), false);
    let mut elect = Elect { options, session, candidate, pauses, survived, reports };
    // This refuses a name or an option that cannot work. No node is connected yet, so nothing is
    // sent.
    let campaign = elect.campaign()?;
    elect.session.event_loop.engine.withdraw(campaign);
    let result = elect.until_it_ends();
    elect.session.event_loop.settle(job.common.timing.node_timeout)?;
    elect.reports.presence.count(&elect.session.event_loop);
    result
}

/// The candidate that the options name.
fn candidate(options: &Options) -> Candidate {
    let name = options.name.clone().unwrap_or_else(|| nodes::owner(&options.job.common.nodes));
    match &options.address {
        Some(address) => Candidate::named(name).address(&**address),
        None => Candidate::named(name),
    }
}

/// A campaign, and the CMD that runs while its candidate leads.
struct Elect<'a> {
    options: &'a Options,
    session: Session<'a>,
    candidate: Candidate,
    pauses: Pauses,
    /// A process of the last CMD is still alive, so its lock has to expire by its ttl.
    survived: bool,
    reports: &'a mut Reports,
}

/// What comes after a wait, or after a term.
enum Next<T> {
    GoOn(T),
    End(u8),
}

impl Elect<'_> {
    fn campaign(&mut self) -> Result<CampaignId, Error> {
        let (name, lock_options) = (&self.options.job.key.key, self.session.lock_options());
        self.session.event_loop.engine.campaign(name, self.candidate.clone(), lock_options, 0)
    }

    fn until_it_ends(&mut self) -> Result<u8, Refusal> {
        let (mut signal, signals) = (None, &mut self.session.signals);
        self.session.event_loop.gather(Patience::Prompt, |_| {
            signal = signals.ending();
            signal.is_some()
        })?;
        if let Some(signal) = signal {
            return Ok(exit::by_signal(signal.as_raw()));
        }
        let campaign = self.campaign()?;
        let result = self.lead_again_and_again(campaign);
        if !self.survived {
            self.session.event_loop.engine.withdraw(campaign);
        }
        result
    }

    fn lead_again_and_again(&mut self, campaign: CampaignId) -> Result<u8, Refusal> {
        loop {
            let begun = clock::now();
            let lock = match self.wait()? {
                Next::GoOn(lock) => lock,
                Next::End(code) => return Ok(code),
            };
            match self.lead(lock, begun)? {
                Next::GoOn(pause) => self.end_term(campaign, pause),
                Next::End(code) => return Ok(code),
            }
        }
    }

    /// Waits until the candidate leads. During a pause the campaign asks for nothing.
    fn wait(&mut self) -> Result<Next<Lock>, Refusal> {
        let no_quorum_wait = self.options.job.common.timing.no_quorum_wait;
        let mut patience = QuorumPatience::new(no_quorum_wait);
        loop {
            let engine = &mut self.session.event_loop.engine;
            while engine.poll_completion().is_some() || engine.poll_lock_update().is_some() {}
            if let Some(lock) = self.handle_standings()? {
                return Ok(Next::GoOn(lock));
            }
            if let Some(signal) = self.session.signals.ending() {
                return Ok(Next::End(exit::by_signal(signal.as_raw())));
            }
            let event_loop = &mut self.session.event_loop;
            let (now, core) = (clock::now(), event_loop.engine.coordinator());
            let mut ends_at = patience.ends_at(core, now);
            if ends_at.is_some_and(|at| at <= now) {
                let error = Error::NoQuorum(core.report_node_states(now));
                waiting(&mut self.reports.log, &error, None);
                patience = QuorumPatience::new(no_quorum_wait);
                ends_at = patience.ends_at(core, now);
            }
            let reports = self.reports.turn(event_loop);
            event_loop.turn(reports.into_iter().chain(ends_at).min())?;
        }
    }

    /// Reports who leads, and returns the lock once that is this candidate.
    fn handle_standings(&mut self) -> Result<Option<Lock>, Refusal> {
        while let Some(change) = self.session.event_loop.engine.poll_standing() {
            match change.standing {
                Standing::Leading(lock) => return Ok(Some(lock)),
                Standing::Following(leader) => {
                    events::following(&mut self.reports.log, leader.as_ref());
                    self.reports.presence.waiting();
                }
                Standing::Failed(error @ Error::Config(_)) => return Err(error.into()),
                Standing::Failed(error) => waiting(&mut self.reports.log, &error, None),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Runs CMD in one term, and returns for how long the candidate stays out after it. `begun` is
    /// when the candidate began to wait for the term.
    fn lead(&mut self, lock: Lock, begun: Instant) -> Result<Next<Duration>, Refusal> {
        let mut term = Term::new(lock.fence().unwrap_or_default());
        events::leading(&mut self.reports.log, &self.candidate, term.number());
        self.session.report(&lock, begun, self.reports)?;
        let started = clock::now();
        let run = match self.session.run_cmd(lock, &mut term, self.reports) {
            // Too little of the lock was left to start CMD.
            Err(refusal) if refusal.code == exit::LOST && !self.options.once => {
                self.reports.log.refusal(&refusal);
                None
            }
            run => Some(run?),
        };
        if let Some(Run { code, survived, asked_to_end, .. }) = run {
            self.survived = survived;
            if survived || asked_to_end || self.options.once {
                return Ok(Next::End(code));
            }
        }
        let failed = run.is_none_or(|run| !run.stopped && run.ended.code() != exit::DONE);
        let asked = term.asked_pause();
        let ran = clock::now().saturating_since(started);
        let pause = asked.unwrap_or_else(|| self.pauses.after(ran, failed));
        if !pause.is_zero() {
            events::pausing(&mut self.reports.log, pause, asked.is_some());
        }
        Ok(Next::GoOn(pause))
    }

    /// Lets the campaign go on after the pause.
    fn end_term(&mut self, campaign: CampaignId, pause: Duration) {
        let engine = &mut self.session.event_loop.engine;
        if !pause.is_zero() {
            // The lock is released already. So only the pause matters here, and not the result of
            // this request.
            let _ = engine.resign(campaign, pause, 0);
        }
        engine.end_term(campaign);
        self.reports.presence.campaigns_again();
    }
}
