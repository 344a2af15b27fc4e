//! What exec and hold report to users and other programs while they wait for the lock and hold it:
//! the lines on stderr, and the files and messages of `presence`.

use redlatch::clock::Instant;

use super::log::{Log, Stream};
use crate::arguments::Output;
use crate::event_loop::EventLoop;
use crate::node_events;
use crate::output::Refusal;
use crate::presence::{self, Presence, Subject};

/// The log and the presence files of one lock.
pub struct Reports {
    pub log: Log,
    pub presence: Presence,
}

impl Reports {
    /// Runs a verb with its reports to the end, and returns redlatch's exit code.
    pub fn around(
        (subject, output, objects): (Subject<'_>, &Output, Stream),
        options: &presence::Flags,
        run: impl FnOnce(&mut Reports) -> Result<u8, Refusal>,
    ) -> u8 {
        let mut log = Log::new(subject.key(), output, objects);
        let code = match Presence::open(subject, options) {
            Err(refusal) => log.refusal(&refusal),
            Ok(presence) => {
                let mut reports = Reports { log, presence };
                let result = run(&mut reports);
                let code = result.unwrap_or_else(|refusal| reports.log.refusal(&refusal));
                reports.presence.over(code);
                log = reports.log;
                code
            }
        };
        log.finish();
        code
    }

    /// Prints what is new. The loop calls this in every turn, and sleeps until the returned moment
    /// at most.
    pub fn turn(&mut self, event_loop: &mut EventLoop) -> Option<Instant> {
        node_events::lines(event_loop).iter().for_each(|line| self.log.detail(line));
        let (next, trouble) = self.presence.turn(event_loop);
        trouble.into_iter().for_each(|trouble| self.log.warning(&trouble));
        next
    }
}
