//! Threads that begin together and are measured together.

use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use kit::{Meter, Round, Samples};

/// Runs each worker on a new thread until the moment that it is given. The threads are started
/// before the round begins.
pub fn run_threads<W>(workers: impl ExactSizeIterator<Item = W>, length: Duration) -> Round
where
    W: FnOnce(Instant) -> Samples + Send,
{
    let (begin, end) = (Barrier::new(workers.len() + 1), OnceLock::new());
    let mut samples = Samples::default();
    let meter = std::thread::scope(|scope| {
        let (begin, end) = (&begin, &end);
        let started = |worker: W| {
            scope.spawn(move || {
                begin.wait();
                worker(*end.get().expect("it is set before they begin"))
            })
        };
        let threads: Vec<_> = workers.map(started).collect();
        let meter = Meter::start();
        end.set(meter.until(length)).expect("it is set once");
        begin.wait();
        for thread in threads {
            samples.append(thread.join().expect("it found its key free"));
        }
        meter
    });
    meter.stop(samples)
}
