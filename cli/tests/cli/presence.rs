//! How other programs see that the lock is held: the ready file, sd_notify, and the metrics file.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use super::exec::{Desk, exec};
use super::*;

/// A service manager, which reads the tool's messages.
struct Manager(UnixDatagram);

impl Manager {
    fn at(socket: UnixDatagram) -> Manager {
        socket.set_read_timeout(Some(LIMIT)).expect("it is ours");
        Manager(socket)
    }

    /// The next message.
    #[track_caller]
    fn next(&self) -> String {
        let mut message = [0; 4096];
        let length = self.0.recv(&mut message).expect("a message");
        String::from_utf8(message[..length].to_vec()).expect("text")
    }

    /// The next message that is not about the watchdog.
    #[track_caller]
    fn next_news(&self) -> String {
        loop {
            let message = self.next();
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }
}

fn set_busy(fleet: &Fleet) {
    fleet.command(&["SET", "key", "another's", "PX", "600000"]);
}

fn set_free(fleet: &Fleet) {
    fleet.command(&["DEL", "key"]);
}

#[test]
fn sd_notify_tells_of_the_wait_the_start_and_the_end() {
    let (fleet, desk) = Desk::with_fleet(3);
    let path = desk.path("notify");
    let manager = Manager::at(UnixDatagram::bind(&path).expect("a socket"));
    let script = "until [ -e go ]; do sleep 0.01; done";
    for verb in ["exec", "hold"] {
        set_busy(&fleet);
        let mut command = match verb {
            "exec" => exec(&fleet, &desk, &[], script),
            _ => tool_on(&fleet, &["hold", "key"]),
        };
        command.env("NOTIFY_SOCKET", &path).stdin(Stdio::piped());
        let mut tool = Running::start(&mut command);
        assert_eq!(manager.next(), "STATUS=waiting for \"key\"", "{verb}");
        set_free(&fleet);
        assert_eq!(manager.next(), "STATUS=holds \"key\"\nREADY=1", "{verb}");
        assert!(values(&fleet, "key").iter().flatten().count() >= 2, "ready without the lock");
        desk.put("go");
        drop(tool.child.stdin.take());
        assert_eq!(manager.next(), "STATUS=done with \"key\"\nSTOPPING=1", "{verb}");
        tool.end(LIMIT).with_code(0);
    }
}

#[test]
fn sd_notify_knows_abstract_sockets_and_feeds_the_watchdog() {
    let fleet = Fleet::start(3);
    let name = format!("redlatch-test-{}-{}", std::process::id(), fleet[0].port());
    let address = SocketAddr::from_abstract_name(&name).expect("Linux has them");
    let manager = Manager::at(UnixDatagram::bind_addr(&address).expect("a socket"));
    set_busy(&fleet);
    let mut command = tool_on(&fleet, &["exec", "key", "sleep", "1"]);
    command.env("NOTIFY_SOCKET", format!("@{name}")).env("WATCHDOG_USEC", "200000");
    let tool = Running::start(&mut command);
    let fed_while = |what: &str| {
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(manager.next(), "WATCHDOG=1", "{what}");
        }
        assert!(start.elapsed() < LIMIT / 2, "{what}: {:?}", start.elapsed());
    };
    assert_eq!(manager.next_news(), "STATUS=waiting for \"key\"");
    fed_while("waiting");
    set_free(&fleet);
    assert_eq!(manager.next_news(), "STATUS=holds \"key\"\nREADY=1");
    fed_while("holding");
    assert_eq!(manager.next_news(), "STATUS=done with \"key\"\nSTOPPING=1");
    tool.end(LIMIT).with_code(0);
    // The tool does not feed the watchdog of another process.
    command.env("WATCHDOG_PID", "1");
    run(&mut command).with_code(0);
    assert_eq!(manager.next(), "STATUS=holds \"key\"\nREADY=1");
    assert_eq!(manager.next(), "STATUS=done with \"key\"\nSTOPPING=1");
}

#[test]
fn sd_notify_without_a_reader_does_not_disturb_the_tool() {
    let (fleet, desk) = Desk::with_fleet(3);
    let full = desk.path("full");
    let unread = UnixDatagram::bind(&full).expect("a socket");
    let sender = UnixDatagram::unbound().expect("a socket");
    sender.set_nonblocking(true).expect("it is ours");
    while sender.send_to(b"full", &full).is_ok() {}
    for socket in [full.as_path(), Path::new("/no/such/socket"), Path::new("nonsense")] {
        let mut command = exec(&fleet, &desk, &[], "exit 3");
        let ended = run(command.env("NOTIFY_SOCKET", socket)).with_code(3);
        assert_eq!(ended.errors, "", "{socket:?}");
    }
    drop(unread);
}

#[test]
fn ready_file_is_there_while_the_lock_is_held_and_not_longer() {
    let (fleet, desk) = Desk::with_fleet(3);
    let ready = desk.path("ready");
    desk.write("ready", "4711\n");
    set_busy(&fleet);
    let flags = ["--ready-file", "ready"];
    let tool =
        Running::start(&mut exec(&fleet, &desk, &flags, "until [ -e go ]; do sleep 0.01; done"));
    eventually(LIMIT, "the old file is removed", || !ready.exists());
    std::thread::sleep(Duration::from_millis(200));
    assert!(!ready.exists(), "it waits");
    set_free(&fleet);
    assert_eq!(desk.process("ready"), tool.id());
    assert!(values(&fleet, "key").iter().flatten().count() >= 2, "ready without the lock");
    desk.put("go");
    tool.end(LIMIT).with_code(0);
    assert!(!ready.exists());

    // The ready file is removed when the loss is known, while CMD still runs: CMD sees it go.
    let script = "trap '' TERM; until [ -e ready ]; do sleep 0.01; done; echo > started; \
                  while [ -e ready ]; do sleep 0.01; done; echo > seen; sleep 60";
    let flags = ["--ready-file", "ready", "-t", "6s"];
    let tool = Running::start(&mut exec(&fleet, &desk, &flags, script));
    desk.wait_for("started");
    fleet.command(&["SET", "key", "another's"]);
    desk.wait_for("seen");
    tool.end(LIMIT).with_code(124);
    assert!(!ready.exists());
}

#[test]
fn ready_file_that_cannot_be_written_is_125_before_anything_is_sent() {
    let (fleet, desk) = Desk::with_fleet(1);
    let monitor = fleet[0].monitor();
    for flag in ["--ready-file", "--metrics-file"] {
        for place in ["no-such-folder/file", "/", "."] {
            let ended = run(&mut exec(&fleet, &desk, &[flag, place], "echo ran")).with_code(125);
            assert!(ended.errors.contains(flag) && ended.out.is_empty(), "{ended:?}");
        }
    }
    let asked = monitor.lines();
    assert!(!asked.iter().any(|line| line.contains("SET")), "{asked:?}");
}

/// The samples of a file of metrics: name with labels, and value. Panics if the format is wrong.
#[track_caller]
fn metrics(desk: &Desk, name: &str) -> Vec<(String, f64)> {
    let samples = desk.lines(name).into_iter().filter(|line| !line.starts_with("# "));
    let samples = samples.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    });
    samples.collect()
}

/// Reads the metric `name` for the lock key `key` from `redlatch.prom`. `labels` are the further
/// labels of the metric, with a comma before each.
fn metric(desk: &Desk, name: &str, labels: &str) -> Option<f64> {
    let wanted = format!("{name}{{key=\"key\",file=\"redlatch.prom\"{labels}}}");
    let all = metrics(desk, "redlatch.prom");
    all.into_iter().find(|(it, _)| *it == wanted).map(|(_, value)| value)
}

#[test]
fn metrics_file_has_the_course_of_the_lock_and_the_states_of_the_nodes() {
    let (fleet, desk) = Desk::with_fleet(3);
    set_busy(&fleet);
    let flags = ["--metrics-file", "redlatch.prom", "-t", "9s"];
    let script = "until [ -e go ]; do sleep 0.01; done; exit 3";
    let tool = Running::start(&mut exec(&fleet, &desk, &flags, script));
    let is = |name: &str, value: f64| {
        let what = format!("{name} is {value}");
        eventually(LIMIT, &what, || metric(&desk, name, "") == Some(value));
    };
    is("redlatch_lock_waiting", 1.0);
    is("redlatch_lock_held", 0.0);
    std::thread::sleep(Duration::from_millis(300));
    set_free(&fleet);
    is("redlatch_lock_held", 1.0);
    is("redlatch_lock_waiting", 0.0);
    let deadline = || metric(&desk, "redlatch_lock_deadline_timestamp_seconds", "");
    let first = deadline();
    assert!(first > Some(1_700_000_000.0), "{first:?}");
    for node in &fleet {
        let label = format!(",node=\"{}\"", node.address());
        let granting = || metric(&desk, "redlatch_node_can_grant", &label) == Some(1.0);
        eventually(LIMIT, "the node can grant", granting);
    }
    eventually(LIMIT, "it is renewed", || deadline() > first);
    desk.put("go");
    tool.end(LIMIT).with_code(3);
    is("redlatch_exit_code", 3.0);
    is("redlatch_lock_held", 0.0);
    is("redlatch_lock_lost", 0.0);
    assert!(metric(&desk, "redlatch_lock_wait_seconds", "") >= Some(0.3));
    assert!(metric(&desk, "redlatch_lock_held_seconds", "") >= Some(1.0));
    assert_eq!(deadline(), None);
    // After the end the state of a node is old, so it is left out.
    let last = metrics(&desk, "redlatch.prom");
    assert!(last.iter().all(|(name, _)| !name.contains("node")), "{last:?}");
    let names: Vec<_> = std::fs::read_dir(desk.path("")).expect("it is there").collect();
    let left =
        names.iter().flatten().filter(|it| it.file_name().to_string_lossy().contains("prom"));
    assert_eq!(left.count(), 1, "a temporary file is left: {names:?}");
}

#[test]
fn metrics_file_is_whole_at_every_moment_and_tells_of_a_refusal() {
    let (fleet, desk) = Desk::with_fleet(3);
    set_busy(&fleet);
    let flags = ["--metrics-file", "redlatch.prom", "-n"];
    run(&mut exec(&fleet, &desk, &flags, "true")).with_code(75);
    assert_eq!(metric(&desk, "redlatch_exit_code", ""), Some(75.0));
    set_free(&fleet);
    let flags = ["--metrics-file", "redlatch.prom"];
    let tool = Running::start(&mut exec(&fleet, &desk, &flags, "sleep 0.3"));
    let (mut tool, mut seen) = (tool, 0);
    while !tool.try_reap() {
        // An incomplete file would lack the last metric, or end in the middle of a line.
        let all = metrics(&desk, "redlatch.prom");
        let first = all.iter().any(|(name, _)| name.starts_with("redlatch_lock_wait_seconds"));
        assert!(first, "{all:?}");
        seen += 1;
    }
    assert!(seen > 10);
    tool.end(LIMIT).with_code(0);
}

/// node_exporter's collector reads all files of a directory together. If a series is there twice,
/// each scrape has an error, and one of the two is dropped.
#[test]
fn metrics_file_of_each_job_has_series_of_its_own_also_if_jobs_share_a_key() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "echo up >> up; until [ -e go ]; do sleep 0.01; done";
    let job = |file: &str, key: &str| {
        let words = ["exec", "--metrics-file", file, key, "--", "sh", "-c", script];
        let mut command = tool_on(&fleet, &words);
        command.current_dir(desk.path(""));
        Running::start(&mut command)
    };
    let files = ["backup.prom", "report.prom", "vacuum.prom"];
    let jobs = [job(files[0], "database"), job(files[1], "report"), job(files[2], "database")];
    eventually(LIMIT, "two jobs run", || desk.lines("up").len() == 2);
    let insist = |least: usize| {
        let mut series: Vec<String> = Vec::new();
        for file in files {
            let of_file: Vec<String> = metrics(&desk, file).into_iter().map(|it| it.0).collect();
            assert!(of_file.len() >= least, "{file}: {of_file:?}");
            series.extend(of_file);
        }
        let all = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), all, "a series is in two files: {series:#?}");
    };
    // A separate thread writes each file, maybe after CMD has started.
    let of_nodes = |file: &&str| metrics(&desk, file).len() > 2 * fleet.len();
    eventually(LIMIT, "each job writes about the nodes", || files.iter().all(of_nodes));
    insist(2 * fleet.len());
    desk.put("go");
    jobs.into_iter().for_each(|job| drop(job.end(LIMIT).with_code(0)));
    insist(5);
    for file in files {
        assert!(desk.lines(file).len() < 30, "{file}: {:?}", desk.lines(file));
    }
}
