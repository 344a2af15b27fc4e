//! What is printed while a lock is held: lines of text or JSON, which a separate thread writes.
//! `exec` prints all of them on stderr, because stdout is CMD's. `hold` prints on stdout, too.
//!
//! The hazard is a reader that does not read. A full pipe, or a terminal that was stopped with
//! ctrl-S, must not keep the loop from renewing the lock or from stopping CMD. So the loop never
//! waits for a line to be written, lines that find no room are dropped, and the wait at the end is
//! bounded.
//!
//! One line has to reach its reader: the token that `hold` prints. If the thread cannot write that
//! line, it wakes the loop.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use mio::Waker;
use serde_json::{Map, Value};

use crate::arguments::Output;
use crate::exit;
use crate::output::{Refusal, error_text};

/// How many lines may wait for the thread. The pipe holds hundreds more.
const LINES: usize = 256;

/// How long redlatch waits at its end for the last lines, which may give the reason of a refusal.
/// On a busy machine the thread that writes them may not run for hundreds of milliseconds.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How important a line is: which readers want it.
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
    /// Where JSON is printed. Text about events always goes to stderr.
    json_stream: Stream,
    /// Lines of at least this weight are written.
    least_weight: Option<Weight>,
    writer: Option<Writer>,
    /// Wakes the loop if the line with the token cannot be written.
    waker: Option<Waker>,
    /// The line with the token could not be passed to the thread.
    token_is_lost: bool,
}

#[derive(Debug)]
struct Writer {
    lines: SyncSender<Line>,
    /// The error of writing the line with the token. The thread closes this channel after the last
    /// line.
    errors: Receiver<String>,
}

#[derive(Debug)]
struct Line {
    stream: Stream,
    text: String,
    /// The line has the token that `hold` prints: if it is lost, no process knows the token.
    has_token: bool,
}

impl Log {
    pub fn new(key: &str, output: &Output, json_stream: Stream) -> Log {
        let least_weight = match (output.quiet, output.verbose || output.json) {
            (true, _) => None,
            (false, true) => Some(Weight::Detail),
            (false, false) => Some(Weight::Normal),
        };
        let (key, json) = (key.to_string(), output.json);
        Log {
            key,
            json,
            json_stream,
            least_weight,
            writer: None,
            waker: None,
            token_is_lost: false,
        }
    }

    /// Returns whether the token is printed on stdout. If that write fails, `waker` wakes the loop.
    pub fn prints_token(&mut self, waker: Waker) -> bool {
        self.waker = Some(waker);
        self.json_stream == Stream::Out && self.least_weight.is_some()
    }

    /// Why the token could not be printed, if it could not. In that case the log prints only text
    /// on stderr from now on.
    pub fn token_error(&mut self) -> Option<String> {
        let lost = self.token_is_lost.then(|| "no thread can be started to write to it".into());
        let why = lost.or_else(|| self.writer.as_ref()?.errors.try_recv().ok())?;
        self.leave_stdout();
        Some(why)
    }

    /// From now on the log prints only text on stderr, without the details that JSON included.
    pub fn leave_stdout(&mut self) {
        if std::mem::take(&mut self.json) {
            self.least_weight = self.least_weight.map(|_| Weight::Normal);
        }
    }

    /// Reports an event, as text or as JSON.
    pub fn event(&mut self, weight: Weight, event: &str, fields: Value, text: &str) {
        self.write_event(weight, event, fields, text, false);
    }

    /// Reports the event that has the token.
    pub fn event_with_token(&mut self, weight: Weight, event: &str, fields: Value, text: &str) {
        self.write_event(weight, event, fields, text, self.json_stream == Stream::Out);
    }

    fn write_event(
        &mut self,
        weight: Weight,
        event: &str,
        fields: Value,
        text: &str,
        has_token: bool,
    ) {
        if self.least_weight.is_none_or(|least_weight| weight < least_weight) {
            return;
        }
        if !self.json {
            self.print_text(format!("redlatch: {text}"));
            return;
        }
        let mut object = Map::new();
        object.insert("event".into(), event.into());
        object.insert("key".into(), self.key.as_str().into());
        if let Value::Object(fields) = fields {
            object.extend(fields);
        }
        let text = Value::Object(object).to_string();
        self.pass_to_writer(Line { stream: self.json_stream, text, has_token });
    }

    /// A warning for the operator; nothing depends on it.
    pub fn warning(&mut self, text: &str) {
        self.event(Weight::Normal, "warning", serde_json::json!({ "message": text }), text);
    }

    /// A line of text for readers that asked for more.
    pub fn detail(&mut self, text: &str) {
        if !self.json && self.least_weight == Some(Weight::Detail) {
            self.print_text(format!("redlatch: {text}"));
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
            self.pass_to_writer(Line { stream: self.json_stream, text, has_token: false });
        } else if self.least_weight.is_some_and(|least_weight| least_weight <= weight)
            || to_set_right
        {
            self.print_text(format!("redlatch: {}", refusal.message));
            refusal.way_out.into_iter().for_each(|line| self.print_text(line.to_owned()));
        }
        refusal.code
    }

    /// Prints the line with the token on stdout. With `--quiet` nothing is printed, and JSON has it
    /// in an event.
    pub fn print_token(&mut self, line: &str) {
        if !self.json && self.least_weight.is_some() {
            self.pass_to_writer(Line {
                stream: Stream::Out,
                text: line.to_owned(),
                has_token: true,
            });
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Waits for the last lines to be written, for a bounded time.
    pub fn finish(self) {
        if let Some(Writer { lines, errors }) = self.writer {
            drop(lines);
            while errors.recv_timeout(LAST_LINES).is_ok() {}
        }
    }

    fn print_text(&mut self, text: String) {
        self.pass_to_writer(Line { stream: Stream::Errors, text, has_token: false });
    }

    fn pass_to_writer(&mut self, line: Line) {
        if self.writer.is_none() {
            self.writer = Writer::new(self.waker.take());
        }
        // If the queue is full, nothing reads the output. Then the new line is dropped, because it
        // is not more useful than the old ones.
        let has_token = line.has_token;
        let taken = self.writer.as_ref().is_some_and(|writer| writer.lines.try_send(line).is_ok());
        self.token_is_lost |= has_token && !taken;
    }
}

impl Writer {
    /// `None` if no thread can be started: then redlatch works on without output.
    fn new(waker: Option<Waker>) -> Option<Writer> {
        let (lines, to_write) = sync_channel::<Line>(LINES);
        let (seen, errors) = channel();
        let write = move || {
            for line in to_write {
                let Err(error) = line.write() else { continue };
                if line.has_token {
                    let _ = seen.send(error_text(&error));
                    let _ = waker.as_ref().map(Waker::wake);
                }
            }
            drop::<std::sync::mpsc::Sender<String>>(seen);
        };
        std::thread::Builder::new().name("voice".into()).spawn(write).ok()?;
        Some(Writer { lines, errors })
    }
}

impl Line {
    /// Writes the line in one system call, so that lines of CMD cannot get into it.
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
