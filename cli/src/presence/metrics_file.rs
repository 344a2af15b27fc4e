//! The file of metrics, for the textfile collector of node_exporter. It has the state of the lock;
//! until the end of the run, the states of the nodes; and after a minute, the library's counters.
//!
//! A collector that finds a series in two files reports an error at each scrape, and drops one. So
//! every series has the key and the name of its file as labels: jobs may share a key, but no file.
//!
//! The hazard is a disk that hangs, which must not keep the loop from renewing the lock. So a
//! separate thread writes the file, and the loop passes texts to the thread and never waits for it.
//! If the queue is full, a text is dropped, and the wait at the end is bounded. A new file replaces
//! the old one by a rename, so a reader always sees a whole file. Before each write the thread
//! checks the old file, and replaces only an empty file or one with metrics of redlatch.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use redlatch::prometheus::{Kind, Text};
use redlatch::{NodeId, NodeState, Stats, clock::Instant};

use super::{Subject, own_file};
use crate::event_loop::EventLoop;
use crate::output::{Refusal, error_text};
use crate::wall_clock;

/// How often the file is written if nothing changes. Prometheus usually scrapes every 15 s.
const EVERY: Duration = Duration::from_secs(5);
/// A run that is shorter than this writes no counters of the library. A rate needs several scrapes
/// of one run, so the counters of a short run would be two hundred series that no query can use.
const COUNTERS_AFTER: Duration = Duration::from_secs(60);
/// How many texts may wait for the thread.
const TEXTS: usize = 8;
/// How long the loop waits at its end for the last write.
const LAST_WRITE: Duration = Duration::from_millis(200);

/// What happened to a lock and when, for the metrics: a plain value.
#[derive(Debug)]
pub struct Course {
    key: String,
    /// The name of the file.
    file: String,
    begun: Instant,
    /// Since when the lock is wanted.
    wanted: Instant,
    held: Option<Instant>,
    deadline: Option<Instant>,
    ended: Option<Instant>,
    lost: bool,
    exit_code: Option<u8>,
    /// The lock is that of an election.
    is_candidate: bool,
    /// The states of the nodes and the library's counters, as they were read last.
    counters: Text,
    now: Instant,
}

impl Course {
    pub fn new(subject: Subject<'_>, path: Option<&Path>, now: Instant) -> Course {
        let (held, deadline, ended, counters) = (None, None, None, Text::default());
        let (lost, exit_code) = (false, None);
        let name = path.and_then(Path::file_name).unwrap_or_default();
        let (key, file) = (subject.key().to_owned(), name.to_string_lossy().into_owned());
        Course {
            key,
            file,
            begun: now,
            wanted: now,
            held,
            deadline,
            ended,
            lost,
            exit_code,
            is_candidate: matches!(subject, Subject::Election(_)),
            counters,
            now,
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// The lock is over, and another one is wanted.
    pub fn begin_again(&mut self, now: Instant) {
        (self.held, self.deadline, self.ended) = (None, None, None);
        (self.wanted, self.lost) = (now, false);
    }

    pub fn held(&mut self, now: Instant, deadline: Instant) {
        (self.held, self.deadline) = (Some(now), Some(deadline));
    }

    pub fn lasts_until(&mut self, deadline: Instant) {
        self.deadline = self.deadline.map(|_| deadline);
    }

    pub fn lost(&mut self) {
        self.lost = true;
    }

    pub fn not_held(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    pub fn over(&mut self, now: Instant, exit_code: u8) {
        self.not_held(now);
        (self.now, self.exit_code) = (now, Some(exit_code));
    }

    /// Reads the states of the nodes and the counters of the library.
    pub fn count(&mut self, event_loop: &EventLoop) {
        let core = event_loop.engine.coordinator();
        let nodes = core.settings().nodes.iter().enumerate();
        let nodes: Vec<(&str, NodeState)> = nodes
            .map(|(index, node)| (&*node.label, core.node_state(NodeId::new(index))))
            .collect();
        self.note(core.stats(), &nodes, redlatch::clock::now());
    }

    fn note(&mut self, stats: &Stats, nodes: &[(&str, NodeState)], now: Instant) {
        self.now = now;
        self.counters = self.empty_text();
        if now.saturating_since(self.begun) >= COUNTERS_AFTER {
            self.counters.client(stats, nodes);
        } else {
            self.counters.node_states(nodes);
        }
    }

    fn empty_text(&self) -> Text {
        Text::with_labels(&[("key", &self.key), ("file", &self.file)])
    }

    /// The text of the file: metrics of the lock and, until the end of the run, of the nodes. After
    /// the end, an old state of a node could keep an alert firing until the next run.
    fn text(&self) -> String {
        let is_over = self.exit_code.is_some() || self.counters == Text::default();
        let mut text = if is_over { self.empty_text() } else { self.counters.clone() };
        let is_held = self.held.is_some() && self.ended.is_none();
        let waits = self.held.is_none() && self.ended.is_none();
        let end = self.ended.unwrap_or(self.now);
        let waited = self.held.unwrap_or(end).saturating_since(self.wanted);
        let held = self.held.map(|held| end.saturating_since(held));
        // The deadline is on this machine's monotonic clock, so it is converted to Unix time.
        let deadline = self.deadline.filter(|_| is_held);
        let deadline = deadline.map(|deadline| unix_seconds(deadline.saturating_since(self.now)));
        let ended = self.exit_code.map(|_| unix_seconds(Duration::ZERO));
        let seconds = |time: Duration| time.as_secs_f64();
        let gauges = [
            ("lock_held", "Whether the lock is held.", Some(f64::from(is_held))),
            ("lock_waiting", "Whether the lock is waited for.", Some(f64::from(waits))),
            ("lock_lost", "Whether the lock was lost.", Some(f64::from(self.lost))),
            ("lock_wait_seconds", "How long the lock was waited for.", Some(seconds(waited))),
            ("lock_held_seconds", "How long the lock was held.", held.map(seconds)),
            ("lock_deadline_timestamp_seconds", "When the lock ends unless renewed.", deadline),
            ("end_timestamp_seconds", "When this run ended.", ended),
            ("exit_code", "The exit code of this run.", self.exit_code.map(f64::from)),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let name = format!("redlatch_{name}");
            text.family(&name, Kind::Gauge, help);
            text.sample(&name, &[], value);
        }
        if self.is_candidate {
            text.leaders(&[(&self.key, is_held)]);
        }
        text.as_str().to_owned()
    }
}

fn unix_seconds(from_now: Duration) -> f64 {
    Duration::from_millis(wall_clock::unix_ms(from_now)).as_secs_f64()
}

/// The file of `--metrics-file`.
#[derive(Debug)]
pub struct MetricsFile {
    texts: SyncSender<String>,
    /// The errors of writing. The thread closes this channel after the last text.
    troubles: Receiver<String>,
    next: Instant,
}

impl MetricsFile {
    /// Writes the file for the first time, so that a file that cannot be written is reported before
    /// the lock is requested.
    pub fn open(path: &Path, course: &Course) -> Result<MetricsFile, Refusal> {
        let refused = |why: &str| Refusal::config(in_words(path, why));
        let place = Place::of(path).map_err(|why| refused(&why))?;
        place.write(&course.text()).map_err(|why| refused(&why))?;
        let (texts, to_write) = sync_channel::<String>(TEXTS);
        let (troubles_seen, troubles) = channel();
        let write = move || {
            for text in to_write {
                if let Err(why) = place.write(&text) {
                    let _ = troubles_seen.send(in_words(&place.path, &why));
                }
            }
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(write);
        thread.map_err(|error| refused(&error_text(&error)))?;
        Ok(MetricsFile { texts, troubles, next: course.begun.saturating_add(EVERY) })
    }

    /// When the file has to be written again.
    pub fn next_due(&self) -> Instant {
        self.next
    }

    /// Passes a new text to the thread. Never waits.
    pub fn write(&mut self, course: &Course, now: Instant) {
        let _ = self.texts.try_send(course.text());
        self.next = now.saturating_add(EVERY);
    }

    /// The last error of writing since the last call, if any.
    pub fn trouble(&mut self) -> Option<String> {
        self.troubles.try_iter().last()
    }

    /// Passes the last text to the thread, and waits until it is written, for a bounded time.
    pub fn finish(self, course: &Course) {
        let _ = self.texts.try_send(course.text());
        drop(self.texts);
        // Errors are not reported any more. This ends when the thread closes the channel, or after
        // LAST_WRITE without a message.
        while self.troubles.recv_timeout(LAST_WRITE).is_ok() {}
    }
}

fn in_words(path: &Path, why: &str) -> String {
    format!("--metrics-file {}: {why}", path.display())
}

/// The path of the file, and that of the temporary file that is renamed to it. The name of the
/// temporary file does not end in `.prom`, so that no collector reads it.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    temporary: PathBuf,
}

impl Place {
    fn of(path: &Path) -> Result<Place, String> {
        Ok(Place { path: path.to_owned(), temporary: own_file::temporary_path(path)? })
    }

    fn write(&self, text: &str) -> Result<(), String> {
        // The file may be replaced if it is empty, or has metrics of redlatch.
        let is_ours = |head: &[u8]| head.is_empty() || head.starts_with(b"# HELP redlatch_");
        if own_file::find(&self.path)?.is_some_and(|found| !is_ours(&found.head)) {
            return Err("no metrics of redlatch are there; name another file".into());
        }
        own_file::put(&self.path, &self.temporary, text, |_| ()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(course: &Course) -> Vec<String> {
        let text = course.text();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn metrics_file_has_counters_only_in_a_run_that_is_long_enough_for_a_rate() {
        let begun = Instant::from_nanos(1_000_000_000);
        let mut course =
            Course::new(Subject::Lock("a\"b"), Some(Path::new("/var/lib/jobs/x.prom")), begun);
        let nodes = [("n1:6379", NodeState::Ready)];
        let at = |seconds| begun.saturating_add(Duration::from_secs(seconds));
        course.note(&Stats::default(), &nodes, at(59));
        let short = samples(&course);
        assert_eq!(short.len(), 4 + 2, "{short:?}");
        course.note(&Stats::default(), &nodes, at(60));
        let long = samples(&course);
        let has = |name: &str| long.iter().any(|line| line.starts_with(name));
        assert!(
            has("redlatch_attempts_total{") && has("redlatch_wait_seconds_bucket{"),
            "{long:?}"
        );
        let labels = "{key=\"a\\\"b\",file=\"x.prom\"";
        for line in short.iter().chain(&long) {
            assert!(line.contains(labels), "{line}");
        }
        course.over(at(70), 3);
        let last = samples(&course);
        assert!(last.iter().all(|line| !line.contains("node")), "{last:?}");
        assert_eq!(last.len(), 4 + 2, "{last:?}");
    }
}
