//! The engine as one file descriptor, in an epoll that the caller owns. The same way leads into
//! libuv, glib, calloop or poll(2): one descriptor to read from, and no timer.
//!
//! `cargo run --features testing --example epoll [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::error::Error;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use redlatch::testing::tcp::Masters;
use redlatch::{Config, FdEngine, Outcome, RestartGuard};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

const TTL: Duration = Duration::from_secs(10);

/// Which descriptor is readable.
const YOURS: u64 = 1;
const LOCKS: u64 = 2;

/// Your own number: it comes back with the end of the request.
const ACQUIRE: u64 = 1;
const RELEASE: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    // Without addresses there are three masters inside this process.
    let masters = Masters::start(if urls.is_empty() { 3 } else { 0 })?;
    let config = match urls.is_empty() {
        // They are a moment old, and nothing was ever locked there.
        true => Config::new(masters.urls())?.restart_guard(RestartGuard::Off),
        false => Config::new(urls)?,
    };

    let mut locks = FdEngine::new(config)?;
    let (yours, mut other_end) = UnixStream::pair()?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &yours, EventData::new_u64(YOURS), EventFlags::IN)?;
    // Level-triggered; `EventFlags::ET` does as well.
    epoll::add(&epoll, &locks, EventData::new_u64(LOCKS), EventFlags::IN)?;

    // A request that comes before the nodes are connected is held until a quorum of them is.
    locks.batch().acquire("invoice:42", TTL, ACQUIRE)?;
    let mut events = [MaybeUninit::uninit(); 8];
    loop {
        // It sleeps for as long as you like: what is due makes the descriptor readable.
        let ready = match epoll::wait(&epoll, &mut events, None) {
            // A signal.
            Err(Errno::INTR) => continue,
            waited => waited?.0,
        };
        for event in ready {
            match event.data.u64() {
                YOURS => {
                    println!("{} bytes for you", std::io::Read::read(&mut &yours, &mut [0; 64])?);
                }
                _ => drop(locks.tick()?),
            }
        }
        while let Some(done) = locks.poll_completion() {
            match (done.data, done.result?) {
                (ACQUIRE, Outcome::Acquired(lock)) => {
                    println!("held for {:.1?} more", locks.engine().remaining(&lock));
                    std::io::Write::write_all(&mut other_end, b"the lock is mine")?;
                    locks.batch().release(lock, RELEASE);
                }
                (RELEASE, Outcome::Released(released)) => {
                    println!("given back: {released:?}");
                    // Out of the epoll before it is dropped.
                    epoll::delete(&epoll, &locks)?;
                    return Ok(());
                }
                (data, other) => println!("{data}: {other:?}"),
            }
        }
    }
}
