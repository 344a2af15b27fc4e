//! Listeners on loopback that are no servers: one that follows a script, one that only counts.
//!
//! Each connection has a thread. Dropping the listener shuts every connection down and waits for
//! the threads. The one hazard: a script that waits for anything but its socket delays that drop.

use std::io::Read;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use super::process::loopback;

/// Accepts connections and runs a closure for each, on a thread of its own.
#[derive(Debug)]
pub struct Scripted {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    ending: AtomicBool,
    accepted: AtomicUsize,
    open: Mutex<Vec<(Weak<TcpStream>, JoinHandle<()>)>>,
}

impl Scripted {
    /// `script` gets each connection and its number, from 0; the socket is closed when it returns.
    pub fn start(script: impl Fn(&TcpStream, usize) + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback can be bound");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accept(&listener, &own, &Arc::new(script)));
        Scripted { port, shared, acceptor: Some(acceptor) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        // One more connection wakes the acceptor, which looks at `ending` after each connection.
        let _ = TcpStream::connect(self.address());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let open = std::mem::take(&mut *self.shared.open());
        for (stream, script) in open {
            if let Some(stream) = stream.upgrade() {
                let _ = stream.shutdown(Shutdown::Both);
            }
            let _ = script.join();
        }
    }
}

/// Accepts everything, answers nothing, and counts the bytes that it receives.
#[derive(Debug)]
pub struct CountingListener {
    listener: Scripted,
    bytes: Arc<AtomicU64>,
}

impl CountingListener {
    pub fn start() -> CountingListener {
        let bytes = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&bytes);
        let listener = Scripted::start(move |mut stream, _| {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                count.fetch_add(length as u64, Ordering::SeqCst);
            }
        });
        CountingListener { listener, bytes }
    }

    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        self.listener.url()
    }

    pub fn connections(&self) -> usize {
        self.listener.connections()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Vec<(Weak<TcpStream>, JoinHandle<()>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept<S>(listener: &TcpListener, shared: &Shared, script: &Arc<S>)
where
    S: Fn(&TcpStream, usize) + Send + Sync + 'static,
{
    while let Ok((stream, _)) = listener.accept() {
        if shared.ending.load(Ordering::SeqCst) {
            return;
        }
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let stream = Arc::new(stream);
        // The reference is weak, so that the socket is closed when the script ends, with an RST if
        // the script asked for one.
        let other_end = Arc::downgrade(&stream);
        let script = Arc::clone(script);
        let thread = std::thread::spawn(move || script(&stream, number));
        shared.open().push((other_end, thread));
    }
}
