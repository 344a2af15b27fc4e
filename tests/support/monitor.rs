//! The commands that a server executed, in its order: a thread reads them from a connection in
//! MONITOR.
//!
//! The one hazard: the line of a command may arrive after the command's reply. So
//! [`Monitor::lines`] sends the server a marker and waits for the marker's line. A command without
//! a line was then not executed.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::eventually;
use super::resp_client::{RespClient, Value};

const MARKER: &str = "redlatch-monitor-marker";

/// The commands that one server has executed since the monitor was started.
#[derive(Debug)]
pub struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    markers: Mutex<(RespClient, u64)>,
    socket: TcpStream,
    reader: Option<JoinHandle<()>>,
}

impl Monitor {
    /// `connect` opens a connection that is already authenticated.
    pub(super) fn start(connect: impl Fn() -> RespClient) -> Monitor {
        let markers = connect();
        let mut watched = connect();
        let started = watched.command(&["MONITOR"]).expect("the server answers MONITOR");
        assert!(started.is_ok(), "MONITOR: {started:?}");
        let socket = watched.socket().try_clone().expect("a socket can be cloned");
        socket.set_read_timeout(None).expect("a timeout can be taken off");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            while let Ok(Value::Simple(line)) = watched.read() {
                into.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Monitor { lines, markers: Mutex::new((markers, 0)), socket, reader: Some(reader) }
    }

    /// Every command executed before this call. The server has to be running.
    ///
    /// A line reads `1700000000.123456 [0 127.0.0.1:50000] "PTTL" "key"`; bytes are escaped.
    #[track_caller]
    pub fn lines(&self) -> Vec<String> {
        let mut guard = self.markers.lock().unwrap_or_else(PoisonError::into_inner);
        let (client, count) = &mut *guard;
        *count += 1;
        let marker = format!("{MARKER}-{count}.");
        client.command(&["ECHO", &marker]).expect("a monitored server answers; is it stopped?");
        eventually(Duration::from_secs(5), "the marker comes through MONITOR", || {
            self.every_line().iter().rev().any(|line| line.contains(&marker))
        });
        let mut lines = self.every_line();
        lines.truncate(lines.iter().position(|line| line.contains(&marker)).unwrap_or(0));
        lines.retain(|line| !line.contains(MARKER));
        lines
    }

    /// The lines that have arrived so far, for a server that is stopped or gone.
    pub fn arrived(&self) -> Vec<String> {
        let mut lines = self.every_line();
        lines.retain(|line| !line.contains(MARKER));
        lines
    }

    fn every_line(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
