//! `redlatch top`: draws the nodes and the locks again and again. Changes nothing.
//!
//! A thread asks the nodes for their keys (`passes`), because that takes seconds if there are
//! millions. The loop inspects the keys that the thread found, and draws (`screen`).
//!
//! The hazard is the load on the nodes: see `passes`.

mod passes;
mod screen;

use std::process::ExitCode;
use std::time::Duration;

use mio::Token;
use redlatch::{NodeEvent, clock};
use serde_json::json;
use signal_hook_mio::v1_0::Signals;

use crate::arguments::{Common, duration};
use crate::event_loop::{EventLoop, Patience};
use crate::list::{Found, MOST_LOCKS, Pattern, complaints, held, is_quorum_usable, objects, text};
use crate::look::Colours;
use crate::nodes::config;
use crate::output::{self, Refusal};
use crate::signals::{ENDING, listen};
use crate::status::{inspected, of_nodes};
use crate::{exit, status};
use passes::Passes;
use screen::Screen;

/// The poller's token of the signals.
const SIGNALS: Token = Token(0);
/// The shortest time between two pictures. Each picture asks the nodes, and a person does not read
/// faster.
const SHORTEST: Duration = Duration::from_millis(100);

/// How often the loop checks whether the first pass has ended.
const PASS_CHECK: Duration = Duration::from_millis(10);

const EXAMPLES: &str = "\
Examples:
  redlatch top                             all locks, each second, until ctrl-C
  redlatch top --every 5s 'invoice:*'      those whose keys begin with invoice:
  redlatch top --json | jq -c '.locks | length'

Exit codes: 0 ended by ctrl-C, or its reader has left; 125 usage or configuration. Without a \
terminal the pictures follow one another, with an empty line between them.";

/// The nodes and the locks that are held, redrawn each second
///
/// Shows what `redlatch status` says of the nodes, and below it what `redlatch list` says of the
/// locks, until ctrl-C. It changes nothing. The nodes are asked for their keys so seldom that this
/// takes a tenth of the time at most.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub pattern: Pattern,

    /// Draw so often; 100ms at least
    #[arg(long, value_name = "DUR", value_parser = pace, default_value = "1s")]
    pub every: Duration,

    #[command(flatten)]
    pub common: Common,
}

fn pace(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < SHORTEST => Err(format!("give {SHORTEST:?} at least")),
        pace => Ok(pace),
    }
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(show(options), &options.common.output)
}

fn show(options: &Options) -> Result<u8, Refusal> {
    let config = config(&options.common.nodes, &options.common.timing)?;
    let passes = Passes::start(&config, &options.pattern.pattern, options.every)?;
    let mut event_loop = EventLoop::new(config)?;
    let mut signals = listen(event_loop.registry(), SIGNALS, &ENDING)?;
    let is_signal = |others: &[Token]| others.contains(&SIGNALS);
    let mut top = Top { options, passes, found: None, events: Vec::new() };
    if !event_loop.gather(Patience::Thorough, is_signal)? {
        return Ok(exit::DONE);
    }
    // Dropping `screen` restores the terminal, however this ends.
    let mut screen = Screen::new(options.common.output.json);
    loop {
        let next = clock::now().saturating_add(options.every);
        let picture = top.picture(&mut event_loop, screen.lines())?;
        if !screen.draw(&picture)? || has_signal(&mut signals) {
            return Ok(exit::DONE);
        }
        while clock::now() < next {
            event_loop.turn(Some(next))?;
            if has_signal(&mut signals) {
                return Ok(exit::DONE);
            }
        }
    }
}

fn has_signal(signals: &mut Signals) -> bool {
    signals.pending().next().is_some()
}

struct Top<'a> {
    options: &'a Options,
    passes: Passes,
    /// What the last pass found.
    found: Option<Found>,
    /// The last event of each node that says why the node is in quarantine.
    events: Vec<NodeEvent>,
}

impl Top<'_> {
    /// The picture of the present state. If the screen has a number of `lines`, shows no more locks
    /// than that.
    fn picture(
        &mut self,
        event_loop: &mut EventLoop,
        lines: Option<usize>,
    ) -> Result<String, Refusal> {
        let how = &self.options.common.output;
        self.take_found(event_loop)?;
        let nodes = inspected(event_loop, &[status::NO_KEY])?;
        self.keep_quarantine_events(event_loop);
        let nodes = of_nodes(event_loop, &nodes[0], &self.events, Colours::on(&std::io::stdout()));
        let no_keys = Default::default();
        let keys = self.found.as_ref().map_or(&no_keys, |found| &found.keys);
        let most = lines.unwrap_or(MOST_LOCKS);
        let shown: Vec<&Vec<u8>> = keys.iter().take(most).collect();
        let hidden = keys.len() - shown.len();
        let locks = held(inspected(event_loop, &shown)?);
        if how.json {
            let locks = objects(&locks);
            return Ok(json!({ "nodes": nodes.json, "locks": locks }).to_string());
        }
        let mut picture = format!("{}\n\n", nodes.text.trim_end());
        match &self.found {
            None => picture.push_str("the nodes are asked for their keys ...\n"),
            Some(_) if !is_quorum_usable(event_loop) && locks.is_empty() => {
                picture.push_str("no lock is known: too few nodes answer\n");
            }
            Some(_) if locks.is_empty() => picture.push_str("no lock is held\n"),
            Some(_) => picture.push_str(&text(&locks, Colours::on(&std::io::stdout()))),
        }
        if hidden > 0 {
            picture.push_str(&format!("  and {hidden} more\n"));
        }
        for line in self.found.iter().flat_map(complaints) {
            picture.push_str(line.trim_start_matches("redlatch: "));
            picture.push('\n');
        }
        Ok(picture)
    }

    /// Takes the result of the last pass. Waits for the first pass until the next picture is due,
    /// because most nodes need only a few milliseconds for it.
    fn take_found(&mut self, event_loop: &mut EventLoop) -> Result<(), Refusal> {
        let end = clock::now().saturating_add(self.options.every);
        loop {
            self.found = self.passes.last().or(self.found.take());
            let now = clock::now();
            if self.found.is_some() || now >= end {
                return Ok(());
            }
            event_loop.turn(Some(now.saturating_add(PASS_CHECK).min(end)))?;
        }
    }

    /// Keeps the events that say why nodes are in quarantine, one of each node.
    fn keep_quarantine_events(&mut self, event_loop: &mut EventLoop) {
        for event in event_loop.take_events() {
            let NodeEvent::Quarantined { node, .. } = event else { continue };
            self.events.retain(|old| match old {
                NodeEvent::Quarantined { node: of, .. } => *of != node,
                _ => true,
            });
            self.events.push(event);
        }
    }
}
