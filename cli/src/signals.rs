//! Signals as events of the loop. A signal that was ignored when redlatch was started (by nohup, or
//! by a shell for its background jobs) stays ignored.

use std::io;

use mio::{Interest, Registry, Token};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_mio::v1_0::Signals;

use crate::output::Refusal;

/// The signals that end a verb while it waits.
pub const ENDING: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];

/// Makes these signals events of `registry` under `token`.
pub fn listen(registry: &Registry, token: Token, wanted: &[i32]) -> Result<Signals, Refusal> {
    let ignored = ignored();
    let heard = wanted.iter().filter(|&&signal| ignored >> (signal - 1) & 1 == 0);
    let listen = || -> io::Result<Signals> {
        let mut signals = Signals::new(heard)?;
        registry.register(&mut signals, token, Interest::READABLE)?;
        Ok(signals)
    };
    listen()
        .map_err(|error| Refusal::internal(format!("signals: they cannot be received: {error}")))
}

/// A bit for each signal that this process ignores; the lowest bit is signal 1. Zero if the system
/// does not report them.
pub fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
