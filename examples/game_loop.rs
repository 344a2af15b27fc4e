//! A loop that turns all the time: once a frame it ticks the locks, and it waits for nothing.
//!
//! `cargo run --features testing --example game_loop [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use redlatch::testing::tcp::Masters;
use redlatch::{Config, FdEngine, Lock, LockOptions, LockUpdateKind, Outcome, RestartGuard};

const FRAME: Duration = Duration::from_millis(16);
const FRAMES: u32 = 60;

/// Your own number: it comes back with the end of the request.
const DOOR: u64 = 1;
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
    // A short ttl, renewed by the ticks: a caller that stops to tick loses the lock soon.
    let kept = LockOptions::new(Duration::from_secs(1)).auto_extend(Duration::from_secs(60));
    locks.batch().acquire("door:7", kept, DOOR)?;
    let mut door: Option<Lock> = None;
    for frame in 0.. {
        // Reads, writes and renews; never waits.
        locks.tick()?;
        while let Some(done) = locks.poll_completion() {
            match (done.data, done.result) {
                (DOOR, Ok(Outcome::Acquired(lock))) => {
                    println!("frame {frame}: the door is mine");
                    door = Some(lock);
                }
                (DOOR, Err(error)) => {
                    println!("frame {frame}: the door is not mine: {error}");
                    return Ok(());
                }
                (RELEASE, released) => {
                    println!("frame {frame}: given back: {:?}", released?);
                    return Ok(());
                }
                (data, other) => println!("frame {frame}: {data}: {other:?}"),
            }
        }
        while let Some(update) = locks.poll_lock_update() {
            match update.kind {
                LockUpdateKind::Expiring { .. } => println!("frame {frame}: hurry"),
                LockUpdateKind::Lost(error) => println!("frame {frame}: {error}"),
                _ => {}
            }
        }
        // A local read, as often as you like.
        let open = door.as_ref().is_some_and(|door| !locks.engine().remaining(door).is_zero());
        draw(frame, open);
        if let Some(door) = door.take_if(|_| frame >= FRAMES) {
            locks.batch().release(door, RELEASE);
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a frame takes as long as it takes")]
fn draw(frame: u32, open: bool) {
    if frame % 30 == 0 {
        println!("frame {frame}: the door is {}", if open { "open" } else { "closed" });
    }
    std::thread::sleep(FRAME);
}
