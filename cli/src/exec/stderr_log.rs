//! What is printed on stderr while CMD runs: lines of text or of JSON, written by a thread of their
//! own.
//!
//! The hazard is a reader that does not read. A full pipe, or a terminal that was stopped with
//! ctrl-S, must not keep the loop from renewing the lock or from stopping CMD. So the loop never
//! waits for a line to be written, lines that find no room are dropped, and the wait at the end is
//! bounded.

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

/// Which readers want a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Readers that asked for more (`-v`).
    Detail,
    /// Readers that did not ask for silence.
    Normal,
}

/// The log of one `redlatch exec`.
#[derive(Debug)]
pub struct StderrLog {
    key: String,
    json: bool,
    /// Lines of at least this weight are written.
    least: Option<Weight>,
    pen: Option<Pen>,
}

#[derive(Debug)]
struct Pen {
    lines: SyncSender<String>,
    /// Never carries a value: the channel is closed when the last line was written.
    done: Receiver<()>,
}

impl StderrLog {
    pub fn new(key: &str, output: &Output) -> StderrLog {
        let least = match (output.quiet, output.verbose || output.json) {
            (true, _) => None,
            (false, true) => Some(Weight::Detail),
            (false, false) => Some(Weight::Normal),
        };
        StderrLog { key: key.to_string(), json: output.json, least, pen: None }
    }

    /// Reports an event, as text or as JSON.
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

    /// A warning for the operator; nothing depends on it.
    pub fn warning(&mut self, text: &str) {
        self.event(Weight::Normal, "warning", serde_json::json!({ "message": text }), text);
    }

    /// A line of text for readers that asked for more.
    pub fn mention(&mut self, text: &str) {
        if !self.json && self.least == Some(Weight::Detail) {
            self.say(format!("redlatch: {text}"));
        }
    }

    /// Reports why CMD does not run, and returns redlatch's exit code. With `--quiet` only what an
    /// operator has to set right is reported. A refusal that is no failure (`-E 0`) is a detail:
    /// cron sends mail for every line.
    pub fn refusal(&mut self, refusal: &Refusal) -> u8 {
        let to_set_right =
            matches!(refusal.code, exit::INTERNAL | exit::CANNOT_RUN | exit::NOT_FOUND);
        let weight = if refusal.code == exit::DONE { Weight::Detail } else { Weight::Normal };
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

    /// Waits for the last lines to be written, for a bounded time.
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
            // No room means that no reader reads. The new line is dropped: it is no better than the
            // old ones.
            let _ = pen.lines.try_send(line);
        }
    }
}

impl Pen {
    /// `None` if no thread can be started: that is no reason to end.
    fn new() -> Option<Pen> {
        let (lines, to_write) = sync_channel::<String>(LINES);
        let (written, done) = channel();
        let write = move || {
            for line in to_write {
                // In one write, so that CMD's lines do not cut it. If stderr is closed there is no
                // reader.
                let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
            }
            drop::<std::sync::mpsc::Sender<()>>(written);
        };
        std::thread::Builder::new().name("voice".into()).spawn(write).ok()?;
        Some(Pen { lines, done })
    }
}
