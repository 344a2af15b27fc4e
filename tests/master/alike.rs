//! Which replies of the server count as the same as the master's, although their bytes differ.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::testing::inside::JOIN;

use super::server::{Answer, frame_length};

/// Whether the server's reply is that of the master, if the two executed the request at moments
/// that differ by at most `slack`.
pub fn alike(request: Option<&Vec<u8>>, master: &[u8], real: &Answer, slack: Duration) -> bool {
    let Answer::Frame(real) = real else { return false };
    if master == real {
        return true;
    }
    let request = request.map_or(&[][..], Vec::as_slice);
    // The third line, after `*n` and `$n`, is the name of the command.
    let command = request.split(|byte| *byte == b'\n').nth(2).unwrap_or_default();
    if master.starts_with(b"-") || real.starts_with(b"-") || master.first() != real.first() {
        return false;
    }
    match command.to_ascii_uppercase().trim_ascii_end() {
        // Server and master round a ttl when they set it and when they read it: 2 ms together.
        b"PTTL" => near(master, real, 2 + slack.as_millis()),
        b"EVAL" if is_join(request) => joins_alike(master, real, 2 + slack.as_millis()),
        b"TTL" => near(master, real, 1 + slack.as_millis().div_ceil(1000)),
        b"TIME" => near(&master[9..], &real[9..], 1 + slack.as_millis().div_ceil(1000)),
        b"INFO" => info_alike(master, real),
        // `COMMAND` without names lists all commands, of which the master has fewer.
        b"COMMAND" if matches!(request.get(1), Some(b'1' | b'2')) => true,
        b"COMMAND" => commands_alike(master, real),
        _ => false,
    }
}

/// Whether the request runs the script of a join.
fn is_join(request: &[u8]) -> bool {
    let source = JOIN.source.as_bytes();
    request.windows(source.len()).any(|part| part == source)
}

/// Whether two answers to a join differ only in how long the key lives: `mine LEFT ...` or `held
/// PLACE LEFT ...`. Their lengths, which stand before them, may differ by that, too.
fn joins_alike(master: &[u8], real: &[u8], tolerance: u128) -> bool {
    let parts = |frame: &[u8]| -> Option<(Vec<u8>, Vec<u8>, Vec<u8>)> {
        let start = frame.iter().position(|&byte| byte == b'\n')? + 1;
        let words = if frame[start..].starts_with(b"mine ") { 1 } else { 2 };
        let spaces = frame.iter().enumerate().skip(start).filter(|(_, byte)| **byte == b' ');
        let ends: Vec<usize> = spaces.map(|(at, _)| at).take(words + 1).collect();
        let &[.., before, after] = &ends[..] else { return None };
        let left = [b":", &frame[before + 1..after], b"\r"].concat();
        Some((frame[start..before].to_vec(), left, frame[after..].to_vec()))
    };
    let (Some(master), Some(real)) = (parts(master), parts(real)) else { return false };
    let left_alike = master.1 == real.1 || near(&master.1, &real.1, tolerance);
    left_alike && (master.0, master.2) == (real.0, real.2)
}

/// Whether the numbers after the first byte of two lines differ by at most this. Negative numbers
/// are never near, because they have meanings of their own.
fn near(master: &[u8], real: &[u8], tolerance: u128) -> bool {
    let number = |line: &[u8]| -> Option<i128> {
        let digits = line.get(1..)?.split(|byte| *byte == b'\r').next()?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    };
    match (number(master), number(real)) {
        (Some(master), Some(real)) => {
            master >= 0 && real >= 0 && (master - real).unsigned_abs() <= tolerance
        }
        _ => false,
    }
}

/// Whether the server has every field that the master has, in the same section and with the same
/// text. Fields about the process, its time or its history (`OWN`) may have another text.
fn info_alike(master: &[u8], real: &[u8]) -> bool {
    const OWN: [&str; 9] = [
        "process_id",
        "run_id",
        "tcp_port",
        "server_time_usec",
        "uptime_in_seconds",
        "connected_clients",
        "master_replid",
        "master_replid2",
        "second_repl_offset",
    ];
    let real = fields(real);
    fields(master).iter().all(|(name, text)| match real.get(name) {
        Some(same) => text == same || OWN.contains(&name.1.as_str()),
        None => false,
    })
}

/// The fields of `INFO`, by section and name.
fn fields(info: &[u8]) -> BTreeMap<(String, String), String> {
    let mut section = String::new();
    let mut fields = BTreeMap::new();
    for line in String::from_utf8_lossy(info).lines() {
        let line = line.strip_prefix("txt:").unwrap_or(line);
        if let Some(title) = line.strip_prefix("# ") {
            title.clone_into(&mut section);
        } else if let Some((name, text)) = line.split_once(':') {
            fields.insert((section.clone(), name.to_owned()), text.to_owned());
        }
    }
    fields
}

/// Whether two replies to `COMMAND INFO` have the same name, arity, flags that the master knows,
/// and positions of keys.
fn commands_alike(master: &[u8], real: &[u8]) -> bool {
    let (master, real) = (elements(master), elements(real));
    master.len() == real.len()
        && master.iter().zip(&real).all(|(master, real)| {
            let (master, real) = (elements(master), elements(real));
            let flags = |of: &[&[u8]]| {
                let known = [
                    "write",
                    "readonly",
                    "denyoom",
                    "admin",
                    "noscript",
                    "loading",
                    "stale",
                    "fast",
                    "no_auth",
                    "allow_busy",
                ];
                let flags = of.get(2).map(|flags| elements(flags)).unwrap_or_default();
                let mut flags: Vec<String> = flags
                    .iter()
                    .map(|flag| String::from_utf8_lossy(&flag[1..]).trim_end().to_owned())
                    .filter(|flag| known.contains(&flag.as_str()))
                    .collect();
                flags.sort();
                flags
            };
            master.len() == real.len()
                && master.iter().take(2).eq(real.iter().take(2))
                && flags(&master) == flags(&real)
                && master.iter().skip(3).take(3).eq(real.iter().skip(3).take(3))
        })
}

/// The elements of an array or a set; none if the reply is something else.
fn elements(frame: &[u8]) -> Vec<&[u8]> {
    if !matches!(frame.first(), Some(b'*' | b'~')) {
        return Vec::new();
    }
    let mut rest = &frame[frame.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1)..];
    let mut elements = Vec::new();
    while let Some(length) = frame_length(rest).filter(|_| !rest.is_empty()) {
        let (element, after) = rest.split_at(length);
        elements.push(element);
        rest = after;
    }
    elements
}
