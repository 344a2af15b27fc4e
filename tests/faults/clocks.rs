//! Servers whose clocks differ from ours: a small library between the server and the C library
//! moves a server's clock while it runs.

use super::*;
use redlatch::{NodeEvent, ReleaseOutcome};

const DAY: i64 = 24 * 3600;

/// Adds to the wall clock the number of seconds in a file, which it reads for each query.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *offset;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    if (offset) now->tv_sec += *offset;
    return result;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (offset && clock == CLOCK_REALTIME) now->tv_sec += *offset;
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"#;

/// Servers whose clock the test sets.
struct ServersWithClock {
    fleet: Fleet,
    folder: Folder,
}

impl ServersWithClock {
    /// `offset`: how many seconds their clocks are ahead of ours.
    fn start(n: usize, offset: i64) -> ServersWithClock {
        let folder = Folder::new();
        let (library, file) = (folder.compile(SHIM), folder.path("offset"));
        std::fs::write(&file, offset.to_ne_bytes()).expect("a new file");
        let variables = [("LD_PRELOAD", library.as_str()), ("CLOCK_OFFSET", file.as_str())];
        ServersWithClock { fleet: Fleet::with_environment(n, &[], &variables), folder }
    }

    fn set(&self, offset: i64) {
        use std::io::Write;
        let mut file = std::fs::File::options().write(true).open(self.folder.join("offset"));
        let file = file.as_mut().expect("it was made with the servers");
        file.write_all(&offset.to_ne_bytes()).expect("a file can be written");
    }
}

#[test]
#[ignore = "needs gcc: apt-get install gcc"]
fn a_node_that_is_up_for_a_day_counts_at_once() {
    let servers = ServersWithClock::start(3, -DAY);
    servers.set(0);
    eventually(SOON, "they are a day old", || {
        servers.fleet[0].info("uptime_in_seconds").parse::<i64>().is_ok_and(|up| up >= DAY)
    });
    let settings = config(servers.fleet.urls()).restart_guard(RestartGuard::On);
    let settings = settings.max_ttl(600 * SECOND);
    let start = Instant::now();
    // Without a node marker, the uptime decides whether the client trusts the node.
    let client = Client::connect(settings.node_marker("")).unwrap();
    let guard = client.try_lock("a", TTL).unwrap();
    println!("up for a day: connected and held after {:?}", start.elapsed());
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    // A node whose start seems to lie in the future counts as just started.
    servers.set(-2 * DAY);
    eventually(SOON, "they are not born yet", || {
        servers.fleet[0].info("uptime_in_seconds").starts_with('-')
    });
    let settings = config(servers.fleet.urls()).restart_guard(RestartGuard::On);
    let client = Client::connect(settings).unwrap();
    let error = client.try_lock("a", TTL).unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("its grants count in 60."), "{error}");
}

#[test]
#[ignore = "needs gcc: apt-get install gcc"]
fn a_clock_that_jumps_is_reported_and_quarantined() {
    for by in [3600, -3600, 5] {
        let servers = ServersWithClock::start(1, 0);
        let settings = config(servers.fleet.urls()).restart_guard(RestartGuard::On);
        let settings = settings.max_ttl(SECOND).probe_interval(millis(200));
        let mut embedded = Loop::new(settings);
        let node = redlatch::NodeId::new(0);
        embedded.turn_until("it is trusted", |engine| engine.node_state(node) == NodeState::Ready);
        // For a second the test sets no clock, so the client must report no jump.
        let start = Instant::now();
        while start.elapsed() < SECOND {
            embedded.turn();
            assert_eq!(jump(&mut embedded.engine), None);
        }
        let start = Instant::now();
        servers.set(by);
        let mut told = None;
        embedded.turn_until("the jump is reported", |engine| {
            told = jump(engine);
            told.is_some()
        });
        let nanos = told.expect("it was just told");
        println!("a jump of {by} s: told as {nanos} ns after {:?}", start.elapsed());
        assert!((nanos - by * 1_000_000_000).abs() < 1_000_000_000, "{nanos}");
        let state = embedded.engine.node_state(node);
        assert!(matches!(state, NodeState::Quarantined(_)), "{state:?}");
    }
}

/// The last jump among the events that the test has not read yet.
fn jump(engine: &mut Engine) -> Option<i64> {
    let events: Vec<NodeEvent> = std::iter::from_fn(|| engine.poll_node_event()).collect();
    events.iter().rev().find_map(|event| match event {
        NodeEvent::ClockJumped { nanos, .. } => Some(*nanos),
        _ => None,
    })
}
