//! Shows other programs on this machine whether the lock is held: by a file that exists while it is
//! held, by messages to the service manager, and by a file of metrics.
//!
//! The hazard is to show a lock that is not held any more. So the ready file is removed before the
//! lock is released, and as soon as redlatch knows that it is lost. Only `kill -9` leaves the file.

mod metrics_file;
mod own_file;
mod ready_file;
mod service_manager;

use std::path::PathBuf;

use redlatch::{clock, clock::Instant};

use crate::event_loop::EventLoop;
use crate::key_names::shown;
use crate::output::Refusal;
use metrics_file::{Course, MetricsFile};
use ready_file::ReadyFile;
use service_manager::ServiceManager;

/// What the other programs see.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    /// The lock of this key.
    Lock(&'a str),
    /// The election of this name, whose lock is the leader's.
    Election(&'a str),
}

impl<'a> Subject<'a> {
    /// The key of the lock.
    pub fn key(self) -> &'a str {
        match self {
            Subject::Lock(key) | Subject::Election(key) => key,
        }
    }
}

/// How other programs see the lock.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Presence")]
pub struct Flags {
    /// A file that is there while the lock is held: for probes
    ///
    /// It contains our process number. It is written when the lock is held, and removed before the
    /// lock is released, or when it is lost. A file that a killed run left there is removed at the
    /// start, and that of another redlatch that holds a lock is left alone. Whatever else is there
    /// is refused: a file of another program, a link, a FIFO, a device, a directory.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,

    /// Write metrics to this file, for the textfile collector of node_exporter
    ///
    /// The file is replaced as a whole: every 5 s, and when something changes. It stays there after
    /// the end. Give each job a file of its own, whose name ends in .prom: each series has the key
    /// and the name of the file as labels. Counters and histograms are written from one minute on.
    /// Only an empty file, or one with metrics of redlatch, is replaced.
    #[arg(long, value_name = "FILE")]
    pub metrics_file: Option<PathBuf>,
}

/// All that shows other programs the state of one lock.
pub struct Presence {
    ready_file: Option<ReadyFile>,
    manager: Option<ServiceManager>,
    metrics: Option<MetricsFile>,
    course: Course,
}

impl Presence {
    /// Writes the first metrics, and removes a ready file that an earlier run left.
    ///
    /// # Errors
    /// A file cannot be written where it is wanted.
    pub fn open(subject: Subject<'_>, options: &Flags) -> Result<Presence, Refusal> {
        let metrics = options.metrics_file.as_deref();
        let course = Course::new(subject, metrics, clock::now());
        let metrics = metrics.map(|path| MetricsFile::open(path, &course)).transpose()?;
        // The ready file comes second: if both flags name one file, it now has metrics, and so is
        // refused as a ready file.
        let ready_file = options.ready_file.as_deref().map(ReadyFile::prepare).transpose()?;
        Ok(Presence { ready_file, manager: ServiceManager::of_environment(), metrics, course })
    }

    /// Reports that the lock is waited for.
    pub fn waiting(&mut self) {
        self.notify_manager("STATUS=waiting for", "");
    }

    /// Begins anew: the lock that was held is over, and another one is wanted.
    pub fn campaigns_again(&mut self) {
        self.course.begin_again(clock::now());
    }

    /// Reports that the lock is held from now on.
    ///
    /// # Errors
    /// The ready file cannot be written.
    pub fn held(&mut self, event_loop: &EventLoop, deadline: Instant) -> Result<(), Refusal> {
        self.course.held(clock::now(), deadline);
        self.write_metrics(event_loop);
        self.ready_file.as_mut().map_or(Ok(()), ReadyFile::write)
    }

    /// Reports that CMD has been started, or that the caller of `hold` may begin its work.
    pub fn ready(&self) {
        self.notify_manager("STATUS=holds", "\nREADY=1");
    }

    /// Records that the lock now lasts until `deadline`.
    pub fn renewed(&mut self, deadline: Instant) {
        self.course.lasts_until(deadline);
    }

    /// Reports that the lock is lost.
    pub fn lost(&mut self, event_loop: &EventLoop) {
        self.course.lost();
        self.not_held(event_loop);
        self.notify_manager("STATUS=lost", "");
    }

    /// Reports that the lock is not held any more. Call it before the lock is released.
    pub fn not_held(&mut self, event_loop: &EventLoop) {
        self.course.not_held(clock::now());
        if let Some(file) = &mut self.ready_file {
            file.remove();
        }
        self.write_metrics(event_loop);
    }

    /// Writes the metrics and feeds the watchdog if that is due, and returns when it is due next.
    /// Also returns the last error since the last call.
    pub fn turn(&mut self, event_loop: &EventLoop) -> (Option<Instant>, Option<String>) {
        let now = clock::now();
        let watchdog = self.manager.as_mut().and_then(|manager| manager.feed_watchdog(now));
        if self.metrics.as_ref().is_some_and(|file| file.next_due() <= now) {
            self.write_metrics(event_loop);
        }
        let metrics = self.metrics.as_ref().map(MetricsFile::next_due);
        let trouble = self.metrics.as_mut().and_then(MetricsFile::trouble);
        (watchdog.into_iter().chain(metrics).min(), trouble)
    }

    /// Reads the counters, because [`over`](Self::over) writes the last metrics without an event
    /// loop.
    pub fn count(&mut self, event_loop: &EventLoop) {
        self.course.count(event_loop);
    }

    /// Reports the end of the run with this exit code.
    pub fn over(mut self, code: u8) {
        if let Some(file) = &mut self.ready_file {
            file.remove();
        }
        self.notify_manager("STATUS=done with", "\nSTOPPING=1");
        self.course.over(clock::now(), code);
        if let Some(file) = self.metrics {
            file.finish(&self.course);
        }
    }

    fn write_metrics(&mut self, event_loop: &EventLoop) {
        if let Some(file) = &mut self.metrics {
            self.course.count(event_loop);
            file.write(&self.course, clock::now());
        }
    }

    /// Sends the service manager a status about the key, followed by other messages.
    fn notify_manager(&self, status: &str, more: &str) {
        if let Some(manager) = &self.manager {
            // A key may contain line ends, which would begin another message.
            manager.notify(&format!("{status} {}{more}", shown(self.course.key())));
        }
    }
}
