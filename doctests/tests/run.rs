//! Runs every example of README and of the library's documentation, against masters inside this
//! process. `build.rs` takes the examples from the files that a reader sees.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use redlatch::testing::tcp::Masters;
use redlatch::{Client, Config, clock};

/// The least number of examples: fewer means that some are not found any more.
const LEAST: usize = 10;

/// How long an example may take. The slowest works for 1 s.
const LONGEST: Duration = Duration::from_secs(20);

/// What the keys begin with that stay when a lock is released: the node marker, fencing counters,
/// and the note of a leader, which expires.
const STAY: [&[u8]; 3] = [b"redlatch:node", b"redlatch:fence:{", b"redlatch:leader:{"];

/// The result of an example.
pub type Ended = Result<(), Box<dyn Error>>;

#[allow(warnings, clippy::all, clippy::pedantic)]
mod examples {
    include!(concat!(env!("OUT_DIR"), "/examples.rs"));
}

thread_local! {
    /// The addresses for the example that this thread runs.
    static NODES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The addresses that replace those in the example.
fn nodes() -> Vec<String> {
    NODES.with_borrow(Clone::clone)
}

/// What an example's `main` returned.
trait Main {
    fn ended(self) -> Ended;
}

impl Main for () {
    fn ended(self) -> Ended {
        Ok(())
    }
}

impl<E: Into<Box<dyn Error>>> Main for Result<(), E> {
    fn ended(self) -> Ended {
        self.map_err(Into::into)
    }
}

fn ended(main: impl Main) -> Ended {
    main.ended()
}

/// So many examples run at a time. Each has three masters with their threads: all examples at once
/// are more threads than a busy machine can run before a client gives its nodes up.
const AT_A_TIME: usize = 6;

/// Runs one example with masters of its own, and returns what went wrong.
fn run(main: fn() -> Ended) -> Result<(), String> {
    let masters = Masters::start(3).expect("there are ports");
    // The masters are new, and no client has a lock there.
    let config = Config::new(masters.urls()).expect("good addresses");
    let client = Client::connect(config).expect("they can be used");
    client.vouch().expect("they take it");
    drop(client);
    let (urls, (done, ended)) = (masters.urls(), mpsc::channel());
    let thread = thread::spawn(move || {
        NODES.set(urls);
        let result = main().map_err(|error| error.to_string());
        // An example that took too long is not waited for.
        let _ = done.send(result);
    });
    match ended.recv_timeout(LONGEST) {
        Ok(result) => result?,
        Err(mpsc::RecvTimeoutError::Timeout) => return Err(format!("not over in {LONGEST:?}")),
        Err(mpsc::RecvTimeoutError::Disconnected) => return Err(format!("{:?}", thread.join())),
    }
    let stays = |key: &Vec<u8>| STAY.iter().any(|start| key.starts_with(start));
    let left = || masters.iter().flat_map(|it| it.keys()).any(|key| !stays(&key));
    // A release that the example did not wait for may be in flight.
    let since = clock::now();
    while left() && clock::now().saturating_since(since) < Duration::from_secs(1) {
        thread::yield_now();
    }
    if left() { Err("it left a key on a master".into()) } else { Ok(()) }
}

#[test]
fn every_example_runs() {
    assert!(examples::ALL.len() >= LEAST, "only {} were found", examples::ALL.len());
    let results = examples::ALL.chunks(AT_A_TIME).flat_map(|batch| {
        let start = |&(place, main): &(_, _)| (place, thread::spawn(move || run(main)));
        let runs: Vec<_> = batch.iter().map(start).collect();
        runs.into_iter().map(|(place, thread)| (place, thread.join()))
    });
    let wrong: Vec<String> = results
        .filter_map(|(place, result)| match result {
            Ok(Ok(())) => None,
            Ok(Err(what)) => Some(format!("{place}: {what}")),
            Err(_) => Some(format!("{place}: the test itself panicked")),
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
