//! The engine on a `mio::Poll` of your own, together with sockets of your own.
//!
//! `cargo run --features testing --example mio [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::time::Duration;

use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};
use redlatch::testing::tcp::Masters;
use redlatch::{Config, Engine, Outcome, RestartGuard};

const TTL: Duration = Duration::from_secs(10);

/// Yours.
const SOCKET: Token = Token(0);

/// The engine uses this token, one more for each node, and one beyond these.
const LOCKS: Token = Token(1000);

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

    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(64));
    let mut socket = UdpSocket::bind("127.0.0.1:0".parse()?)?;
    poll.registry().register(&mut socket, SOCKET, Interest::READABLE)?;

    let mut locks = Engine::new(config, poll.registry(), LOCKS)?;
    // A request that comes before the nodes are connected is held until a quorum of them is.
    locks.acquire("invoice:42", TTL, ACQUIRE)?;
    loop {
        // Before every sleep. If you have timers of your own, take the shorter timeout.
        let timeout = locks.prepare();
        match poll.poll(&mut events, timeout) {
            // A signal.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            if locks.handle_event(event) {
                continue;
            }
            match event.token() {
                SOCKET => println!("{} bytes for you", socket.recv(&mut [0; 1500])?),
                other => println!("{other:?} belongs to no request"),
            }
        }
        while let Some(done) = locks.poll_completion() {
            match (done.data, done.result?) {
                (ACQUIRE, Outcome::Acquired(lock)) => {
                    println!("held for {:.1?} more", locks.remaining(&lock));
                    socket.send_to(b"the lock is mine", socket.local_addr()?)?;
                    locks.release(lock, RELEASE);
                }
                (RELEASE, Outcome::Released(released)) => {
                    println!("given back: {released:?}");
                    return Ok(());
                }
                (data, other) => println!("{data}: {other:?}"),
            }
        }
    }
}
