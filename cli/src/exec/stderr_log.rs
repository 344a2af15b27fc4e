//! What is told on stderr while CMD runs: lines of text or of JSON, written by a thread of their
//! own.
//!
//! The hazard is a reader who does not read: a full pipe, or a terminal that was stopped with
//! ctrl-S, must not keep the loop from renewing the lock or from stopping CMD. So nobody waits for
//! a line to be written, lines that find no room are dropped, and at the end there is a limit.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::arguments::Output;
use crate::exit;
use crate::output::Refusal;

/// How many lines wait to be written. The pipe itself takes hundreds.
const LINES: usize = 256;

/// How long the last lines may take at the end.
const LAST_LINES: Duration = Duration::from_millis(200);

/// Who wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Those who asked for more.
    Detail,
    /// Those who did not ask for silence.
    News,
}

/// The voice of one `redlatch exec`.
#[derive(Debug)]
pub struct StderrLog {
    key: String,
    json: bool,
    /// What is at least as heavy is told.
    least: Option<Weight>,
    pen: Option<Pen>,
}

#[derive(Debug)]
struct Pen {
    lines: SyncSender<String>,
    /// Nothing comes here: it is closed when the last line was written.
    done: Receiver<()>,
}

impl StderrLog {
    pub fn new(key: &str, output: &Output) -> StderrLog {
        let least = match (output.quiet, output.verbose || output.json) {
            (true, _) => None,
            (false, true) => Some(Weight::Detail),
            (false, false) => Some(Weight::News),
        };
        StderrLog { key: key.to_string(), json: output.json, least, pen: None }
    }

    /// Tells what happened, in the one form or the other.
    pub fn event(&mut self, weight: Weight, event: &str, fields: Value, text: &str) {
        if self.least.is_none_or(|least| weight < least) {
            return;
        }
        if !self.json {
            self.say(format!("redlatch: {text}"));
            return;
        }
        let mut object = Map::new();
        object.insert("event".into(), event.into());
        object.insert("key".into(), self.key.as_str().into());
        if let Value::Object(fields) = fields {
            object.extend(fields);
        }
        self.say(Value::Object(object).to_string());
    }

    /// What an operator should look at, and what nothing depends on.
    pub fn warning(&mut self, text: &str) {
        self.event(Weight::News, "warning", serde_json::json!({ "message": text }), text);
    }

    /// A line for those who asked for more, and read.
    pub fn mention(&mut self, text: &str) {
        if !self.json && self.least == Some(Weight::Detail) {
            self.say(format!("redlatch: {text}"));
        }
    }

    /// Why CMD does not run, and what redlatch ends with. Where nothing is to be said, only what
    /// somebody has to set right is. A refusal that is no failure (`-E 0`) is a detail: cron sends
    /// mail for every line.
    pub fn refusal(&mut self, refusal: &Refusal) -> u8 {
        let to_set_right =
            matches!(refusal.code, exit::INTERNAL | exit::CANNOT_RUN | exit::NOT_FOUND);
        let weight = if refusal.code == exit::DONE { Weight::Detail } else { Weight::News };
        if self.json {
            self.say(refusal.json().to_string());
        } else if self.least.is_some_and(|least| least <= weight) || to_set_right {
            self.say(format!("redlatch: {}", refusal.message));
            refusal.way_out.into_iter().for_each(|line| self.say(line.to_owned()));
        }
        refusal.code
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Waits for the last lines, though not for a reader who does not read.
    pub fn finish(self) {
        if let Some(Pen { lines, done }) = self.pen {
            drop(lines);
            let _ = done.recv_timeout(LAST_LINES);
        }
    }

    fn say(&mut self, line: String) {
        if self.pen.is_none() {
            self.pen = Pen::new();
        }
        if let Some(pen) = &self.pen {
            // Where there is no room nobody reads, and what is new is no better than what is there.
            let _ = pen.lines.try_send(line);
        }
    }
}

impl Pen {
    /// `None` where there is no thread to be had: what would be told is not worth ending for.
    fn new() -> Option<Pen> {
        let (lines, to_write) = sync_channel::<String>(LINES);
        let (written, done) = channel();
        let write = move || {
            for line in to_write {
                // In one write, between those of CMD; where stderr is closed there is nobody.
                let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
            }
            drop::<std::sync::mpsc::Sender<()>>(written);
        };
        std::thread::Builder::new().name("voice".into()).spawn(write).ok()?;
        Some(Pen { lines, done })
    }
}
