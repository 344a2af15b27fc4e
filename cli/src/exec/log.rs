//! What is printed while a lock is held: lines of text or of JSON, written by a thread of their
//! own. `exec` prints all of them on stderr, because stdout is CMD's. `hold` has stdout for itself.
//!
//! The hazard is a reader that does not read. A full pipe, or a terminal that was stopped with
//! ctrl-S, must not keep the loop from renewing the lock or from stopping CMD. So the loop never
//! waits for a line to be written, lines that find no room are dropped, and the wait at the end is
//! bounded.
//!
//! One line has to reach its reader: the token that `hold` prints. If it cannot be written, the
//! thread wakes the loop.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use mio::Waker;
use serde_json::{Map, Value};

use crate::arguments::Output;
use crate::exit;
use crate::output::{Refusal, words};

/// How many lines wait to be written. The pipe itself takes hundreds.
const LINES: usize = 256;

/// How long the last lines may take at the end. They take no time, but on a busy machine the thread
/// that writes them may not run for hundreds of milliseconds, and the reason of a refusal is one.
const LAST_LINES: Duration = Duration::from_secs(1);

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
    /// Wakes the loop if the line with the token cannot be written.
    waker: Option<Waker>,
    /// The line with the token was not even taken.
    token_is_lost: bool,
}

#[derive(Debug)]
struct Pen {
    lines: SyncSender<Line>,
    /// Why the line with the token could not be written. The channel is closed when the last line
    /// was written.
    troubles: Receiver<String>,
}

#[derive(Debug)]
struct Line {
    stream: Stream,
    text: String,
    /// Without this line no process has the token.
    has_token: bool,
}

impl Log {
    pub fn new(key: &str, output: &Output, objects: Stream) -> Log {
        let least = match (output.quiet, output.verbose || output.json) {
            (true, _) => None,
            (false, true) => Some(Weight::Detail),
            (false, false) => Some(Weight::Normal),
        };
        let (key, json) = (key.to_string(), output.json);
        Log { key, json, objects, least, pen: None, waker: None, token_is_lost: false }
    }

    /// Whether the token is printed on stdout: then `waker` wakes the loop if that fails.
    pub fn prints_token(&mut self, waker: Waker) -> bool {
        self.waker = Some(waker);
        self.objects == Stream::Out && self.least.is_some()
    }

    /// Why the token could not be printed. From then on everything is text on stderr.
    pub fn token_trouble(&mut self) -> Option<String> {
        let lost = self.token_is_lost.then(|| "no thread can be started to write to it".into());
        let why = lost.or_else(|| self.pen.as_ref()?.troubles.try_recv().ok())?;
        self.leave_stdout();
        Some(why)
    }

    /// From now on everything is text on stderr. There are no details in place of JSON.
    pub fn leave_stdout(&mut self) {
        if std::mem::take(&mut self.json) {
            self.least = self.least.map(|_| Weight::Normal);
        }
    }

    /// Reports an event, as text or as JSON.
    pub fn event(&mut self, weight: Weight, event: &str, fields: Value, text: &str) {
        self.put(weight, event, fields, text, false);
    }

    /// Reports the event that has the token.
    pub fn event_with_token(&mut self, weight: Weight, event: &str, fields: Value, text: &str) {
        self.put(weight, event, fields, text, self.objects == Stream::Out);
    }

    fn put(&mut self, weight: Weight, event: &str, fields: Value, text: &str, has_token: bool) {
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
        let text = Value::Object(object).to_string();
        self.hand_over(Line { stream: self.objects, text, has_token });
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
            let text = refusal.json().to_string();
            self.hand_over(Line { stream: self.objects, text, has_token: false });
        } else if self.least.is_some_and(|least| least <= weight) || to_set_right {
            self.say(format!("redlatch: {}", refusal.message));
            refusal.way_out.into_iter().for_each(|line| self.say(line.to_owned()));
        }
        refusal.code
    }

    /// The line with the token, on stdout. With `--quiet` nothing is printed, and JSON has it in
    /// an event.
    pub fn token(&mut self, line: &str) {
        if !self.json && self.least.is_some() {
            self.hand_over(Line { stream: Stream::Out, text: line.to_owned(), has_token: true });
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Waits for the last lines to be written, for a bounded time.
    pub fn finish(self) {
        if let Some(Pen { lines, troubles }) = self.pen {
            drop(lines);
            while troubles.recv_timeout(LAST_LINES).is_ok() {}
        }
    }

    fn say(&mut self, text: String) {
        self.hand_over(Line { stream: Stream::Errors, text, has_token: false });
    }

    fn hand_over(&mut self, line: Line) {
        if self.pen.is_none() {
            self.pen = Pen::new(self.waker.take());
        }
        // No room means that no reader reads. The new line is dropped: it is no better than the old
        // ones.
        let has_token = line.has_token;
        let taken = self.pen.as_ref().is_some_and(|pen| pen.lines.try_send(line).is_ok());
        self.token_is_lost |= has_token && !taken;
    }
}

impl Pen {
    /// `None` if no thread can be started: that is no reason to end.
    fn new(waker: Option<Waker>) -> Option<Pen> {
        let (lines, to_write) = sync_channel::<Line>(LINES);
        let (seen, troubles) = channel();
        let write = move || {
            for line in to_write {
                let Err(error) = line.write() else { continue };
                if line.has_token {
                    let _ = seen.send(words(&error));
                    let _ = waker.as_ref().map(Waker::wake);
                }
            }
            drop::<std::sync::mpsc::Sender<String>>(seen);
        };
        std::thread::Builder::new().name("voice".into()).spawn(write).ok()?;
        Some(Pen { lines, troubles })
    }
}

impl Line {
    /// In one write, so that CMD's lines do not cut it. If it has no reader, or is closed, nothing
    /// can be done.
    fn write(&self) -> io::Result<()> {
        let line = format!("{}\n", self.text);
        match self.stream {
            Stream::Errors => io::stderr().write_all(line.as_bytes()),
            Stream::Out => {
                let mut out = io::stdout().lock();
                out.write_all(line.as_bytes()).and_then(|()| out.flush())
            }
        }
    }
}
