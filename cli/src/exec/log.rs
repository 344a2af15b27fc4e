//! What is printed while a lock is held: lines of text or of JSON, written by a thread of their
//! own. `exec` prints all of them on stderr, because stdout is CMD's. `hold` has stdout for itself.
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

/// Where a line is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out,
    Errors,
}

/// The log of one `redlatch exec` or `hold`.
#[derive(Debug)]
pub struct Log {
    key: String,
    json: bool,
    /// Where JSON is printed; text about the course of things is printed on stderr.
    objects: Stream,
    /// Lines of at least this weight are written.
    least: Option<Weight>,
    pen: Option<Pen>,
}

#[derive(Debug)]
struct Pen {
    lines: SyncSender<(Stream, String)>,
    /// Never carries a value: the channel is closed when the last line was written.
    done: Receiver<()>,
}

impl Log {
    pub fn new(key: &str, output: &Output, objects: Stream) -> Log {
        let least = match (output.quiet, output.verbose || output.json) {
            (true, _) => None,
            (false, true) => Some(Weight::Detail),
            (false, false) => Some(Weight::Normal),
        };
        Log { key: key.to_string(), json: output.json, objects, least, pen: None }
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
        self.say_on(self.objects, Value::Object(object).to_string());
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
            self.say_on(self.objects, refusal.json().to_string());
        } else if self.least.is_some_and(|least| least <= weight) || to_set_right {
            self.say(format!("redlatch: {}", refusal.message));
            refusal.way_out.into_iter().for_each(|line| self.say(line.to_owned()));
        }
        refusal.code
    }

    /// A line that was asked for, on stdout. With `--quiet` or JSON nothing is printed.
    pub fn result(&mut self, line: &str) {
        if !self.json && self.least.is_some() {
            self.say_on(Stream::Out, line.to_owned());
        }
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
        self.say_on(Stream::Errors, line);
    }

    fn say_on(&mut self, stream: Stream, line: String) {
        if self.pen.is_none() {
            self.pen = Pen::new();
        }
        if let Some(pen) = &self.pen {
            // No room means that no reader reads. The new line is dropped: it is no better than the
            // old ones.
            let _ = pen.lines.try_send((stream, line));
        }
    }
}

impl Pen {
    /// `None` if no thread can be started: that is no reason to end.
    fn new() -> Option<Pen> {
        let (lines, to_write) = sync_channel::<(Stream, String)>(LINES);
        let (written, done) = channel();
        let write = move || {
            for (stream, line) in to_write {
                // In one write, so that CMD's lines do not cut it. If it has no reader, or is
                // closed, nothing can be done.
                let line = format!("{line}\n");
                let _ = match stream {
                    Stream::Errors => io::stderr().write_all(line.as_bytes()),
                    Stream::Out => {
                        let mut out = io::stdout().lock();
                        out.write_all(line.as_bytes()).and_then(|()| out.flush())
                    }
                };
            }
            drop::<std::sync::mpsc::Sender<()>>(written);
        };
        std::thread::Builder::new().name("voice".into()).spawn(write).ok()?;
        Some(Pen { lines, done })
    }
}
