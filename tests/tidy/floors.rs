//! Imports only go down: each module of the library has a floor, and its files may name only
//! modules of the same floor or a lower one.
//!
//! The tool is another package, which the library cannot name anyway. The hazard is a name that
//! comes through a re-export, because it hides its floor: so files have to be named by their own
//! paths.

use super::paths::{Named, Place, module_of, paths};
use super::source::Source;

/// The floor of each module. A module and all files below it share a floor and may name each other.
const FLOORS: [(u8, &[&str]); 11] = [
    (0, &["proto::time", "proto::node_set", "proto::settings", "proto::error", "proto::lock"]),
    (0, &["proto::key", "proto::key_set", "proto::keys", "proto::ids"]),
    (
        0,
        &[
            "proto::fingerprint",
            "proto::quorum",
            "proto::own_keys",
            "proto::surplus",
            "proto::fifo",
        ],
    ),
    (
        1,
        &[
            "proto::stats",
            "proto::durations",
            "proto::inspection",
            "proto::timers",
            "proto::waiting",
        ],
    ),
    (2, &["proto::wire", "testing::master"]),
    (3, &["proto::cluster", "proto::change"]),
    (4, &["proto::locks", "proto::lock_options", "proto::prometheus"]),
    (5, &["proto::waits"]),
    (6, &["proto::coordinator", "proto::election", "proto::turn"]),
    (7, &["net", "config", "testing::net", "testing::tcp", "testing::clock"]),
    (8, &["client", "shared"]),
];

/// These files only declare and re-export modules, so they have no floor.
const ROOTS: [&str; 3] = ["src/lib.rs", "src/proto/mod.rs", "src/testing/mod.rs"];

/// What pure files may not name: sockets, clocks and threads.
const IMPURE: [&str; 7] = [
    "std::net",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::thread",
    "mio",
    "rustix",
    "socket2",
];

/// What the shared client takes from `net::sync`, because `tests/schedules` compiles it with locks
/// and threads of another crate.
const SCHEDULED: [&str; 8] = [
    "std::thread",
    "std::sync::atomic",
    "std::sync::mpsc",
    "std::sync::Barrier",
    "std::sync::Condvar",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "mio",
];

/// Finds files that have no floor in the table.
pub fn missing_floors(source: &Source) -> Vec<String> {
    let Some(module) = module_of(&source.path) else { return Vec::new() };
    let root = ROOTS.contains(&source.path.as_str());
    if root || floor_of(&module).is_some() {
        return Vec::new();
    }
    vec![source.finding(0, "has no floor: add it to FLOORS in tests/tidy/floors.rs")]
}

/// Finds names of modules on a higher floor, in `proto` names of modules outside of `proto`, and
/// names of which the floor cannot be seen. Tests may name everything.
pub fn upward_imports(source: &Source) -> Vec<String> {
    let Some(module) = module_of(&source.path) else { return Vec::new() };
    let Some((own, floor)) = floor_of(&module) else { return Vec::new() };
    let room = |unit: &str| unit.split("::").next().map(str::to_owned);
    let mut findings = Vec::new();
    for path in paths(source, &module) {
        let Place::Internal(segments) = &path.place else { continue };
        if source.is_test(path.offset) {
            continue;
        }
        let name = segments.join("::");
        let what = match floor_of(segments) {
            Some((unit, target)) if target > floor => {
                format!("floor {floor} names {unit} on floor {target}")
            }
            Some((unit, _)) if room(own).as_deref() == Some("proto") && room(unit) != room(own) => {
                format!("proto names {unit}, another room")
            }
            Some(_) => continue,
            None => format!("names crate::{name} and no file: its floor is hidden"),
        };
        findings.push(source.finding(path.offset, &what));
    }
    findings
}

/// Finds sockets, clocks and threads in `proto` and `testing/master`, also in their tests.
pub fn impure_names(source: &Source) -> Vec<String> {
    let is_pure = ["src/proto/", "src/testing/master"];
    if !is_pure.iter().any(|start| source.path.starts_with(start)) {
        return Vec::new();
    }
    let Some(module) = module_of(&source.path) else { return Vec::new() };
    let bad = paths(source, &module).into_iter().filter_map(|path| {
        let impure = IMPURE.iter().find(|impure| names(&path, impure))?;
        Some(source.finding(path.offset, &format!("a pure file names {impure}")))
    });
    bad.collect()
}

/// Finds locks and threads in `shared` that do not come from `net::sync`. Tests may have them.
pub fn unscheduled_names(source: &Source) -> Vec<String> {
    if !source.path.starts_with("src/shared/") {
        return Vec::new();
    }
    let Some(module) = module_of(&source.path) else { return Vec::new() };
    let bad = paths(source, &module).into_iter().filter(|path| !source.is_test(path.offset));
    let bad = bad.filter_map(|path| {
        let unscheduled = SCHEDULED.iter().find(|unscheduled| names(&path, unscheduled))?;
        let what = format!("names {unscheduled}: take it from net::sync or net::reactor");
        Some(source.finding(path.offset, &what))
    });
    bad.collect()
}

/// Whether this path is the impure name, a name below it, or the import of a module above it.
fn names(path: &Named, impure: &str) -> bool {
    let Place::External(segments) = &path.place else { return false };
    let name = format!("{}::", segments.join("::"));
    let impure = format!("{impure}::");
    name.starts_with(&impure) || (path.imported && impure.starts_with(&name))
}

/// The entry of the table that a module belongs to, and its floor.
fn floor_of(module: &[String]) -> Option<(&'static str, u8)> {
    (1..=module.len().min(2)).find_map(|length| {
        let name = module[..length].join("::");
        FLOORS.iter().find_map(|(floor, units)| {
            units.iter().find(|unit| **unit == name).map(|unit| (*unit, *floor))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&Source) -> Vec<String>, path: &str, text: &str) -> Vec<String> {
        rule(&Source::new(path, text))
    }

    #[test]
    fn a_file_without_a_floor_is_found() {
        for good in
            ["src/lib.rs", "src/proto/mod.rs", "src/proto/wire/resp/tests.rs", "src/net/x/y.rs"]
        {
            assert_eq!(check(missing_floors, good, ""), [""; 0], "{good}");
        }
        assert_eq!(check(missing_floors, "cli/src/main.rs", ""), [""; 0]);
        assert_eq!(check(missing_floors, "tests/servers.rs", ""), [""; 0]);
        for bad in ["src/extra.rs", "src/proto/extra.rs", "src/testing/extra.rs"] {
            assert_eq!(check(missing_floors, bad, "").len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_name_from_above_is_found_however_it_is_written() {
        for bad in [
            "use super::wire::Connection;",
            "use crate::proto::wire::connection;",
            "use super::{time::Instant, wire::{self, Connection}};",
            "fn f() { super::coordinator::go() }",
            "fn f(x: crate::proto::locks::record::records::Record) {}",
            "mod inner { use super::super::wire::Connection; }",
            "use crate::net::Engine;",
            "use crate::Config;",
            "use super::*;",
            "use crate::proto;",
        ] {
            assert_ne!(check(upward_imports, "src/proto/timers.rs", bad), [""; 0], "{bad}");
        }
        for (path, bad) in [
            ("src/proto/cluster/state.rs", "use super::super::locks::Locks;"),
            ("src/proto/locks/turns.rs", "use super::super::waits::Waits;"),
            ("src/proto/waits/queue.rs", "use super::super::coordinator::Coordinator;"),
        ] {
            assert_eq!(check(upward_imports, path, bad).len(), 1, "{path}: {bad}");
        }
        let found = check(upward_imports, "src/proto/timers.rs", "\nuse super::wire::Connection;");
        assert_eq!(found, ["src/proto/timers.rs:2: floor 1 names proto::wire on floor 2"]);
    }

    #[test]
    fn names_from_the_same_floor_or_below_are_right() {
        let text = "use super::{inspection, time::{self, Ttl}, node_set::*};
            use std::fmt; use bytes::Bytes; pub(super) fn f() {} pub(in crate::proto) fn g() {}
            mod inner { use super::*; use super::super::time::Instant; }
            // use super::wire::Connection;
            #[cfg(test)] mod tests { use super::super::wire::Connection; }";
        assert_eq!(check(upward_imports, "src/proto/timers.rs", text), [""; 0]);
        let text = "use super::*; use super::round::Round; use self::nodes::Node;";
        assert_eq!(check(upward_imports, "src/proto/locks/held/hold.rs", text), [""; 0]);
        let text = "use crate::config::Config; use crate::proto::coordinator::Coordinator;";
        assert_eq!(check(upward_imports, "src/net/engine/mod.rs", text), [""; 0]);
        let text = "use super::keys::K; use crate::proto::wire::command::RELEASE;";
        assert_eq!(check(upward_imports, "src/testing/master/scripts.rs", text), [""; 0]);
    }

    #[test]
    fn proto_that_names_other_layers_is_found() {
        let found = check(
            upward_imports,
            "src/proto/wire/connection.rs",
            "use crate::testing::master::Master;",
        );
        assert_eq!(
            found,
            ["src/proto/wire/connection.rs:1: proto names testing::master, another room"]
        );
    }

    #[test]
    fn sockets_clocks_and_threads_are_found_in_pure_files() {
        for bad in [
            "use std::net::TcpStream;",
            "use std::{fmt, net};",
            "use std::time::{Duration, Instant};",
            "use std::time;",
            "use std::time::*;",
            "fn f() { std::thread::yield_now() }",
            "fn f() { ::std::thread::yield_now() }",
            "use mio;",
            "use ::rustix::time::clock_gettime;",
            "fn f(x: socket2::Socket) {}",
            "#[cfg(test)] mod tests { use std::time::Instant; }",
        ] {
            assert_eq!(check(impure_names, "src/proto/wire/connection.rs", bad).len(), 1, "{bad}");
            assert_eq!(check(impure_names, "src/testing/master/keys.rs", bad).len(), 1, "{bad}");
            assert_eq!(check(impure_names, "src/net/socket.rs", bad), [""; 0], "{bad}");
        }
        let good = "use std::time::Duration; use super::time::Instant; // std::net::TcpStream
            fn f() { std::time::Duration::ZERO; time::Instant::ZERO; \"std::thread\" }";
        assert_eq!(check(impure_names, "src/proto/wire/connection.rs", good), [""; 0]);
    }

    #[test]
    fn locks_and_threads_of_std_are_found_in_the_shared_client() {
        for bad in [
            "use std::sync::{Arc, Mutex};",
            "use std::sync::atomic::AtomicBool;",
            "fn f() { std::thread::yield_now() }",
            "fn f(waker: mio::Waker) {}",
        ] {
            assert_eq!(check(unscheduled_names, "src/shared/park.rs", bad).len(), 1, "{bad}");
            assert_eq!(check(unscheduled_names, "src/net/names.rs", bad), [""; 0], "{bad}");
        }
        let good = "use std::sync::Arc; use crate::net::sync::{Mutex, thread};
            #[cfg(test)] mod tests { use std::sync::Mutex; }";
        assert_eq!(check(unscheduled_names, "src/shared/park.rs", good), [""; 0]);
    }
}
