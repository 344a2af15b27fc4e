//! Edge cases of `redlatch exec`: process groups that CMD starts, a CMD that ends while redlatch is
//! stopped, a lock that ends before CMD is started, and suspend.

use super::exec::{Desk, background_job, events, exec, names, started, state_of};
use super::exec_lost::{
    LastWords, RECORD, assert_dead_before_the_deadline, continue_masters, last_moment, now_ms,
    stop_majority,
};
use super::*;
use crate::support::{Proxy, Way};

/// Waits for the event `acquired` in this log, and returns its deadline.
fn first_deadline(desk: &Desk, log: &str) -> u64 {
    let told = || desk.lines(log).into_iter().find(|line| line.contains("\"acquired\""));
    eventually(LIMIT, "the lock is held", || told().is_some());
    let event: Value = serde_json::from_str(&told().expect("it is there")).expect("JSON");
    event["deadline_unix_ms"].as_u64().expect("a moment")
}

/// The process group of a running process.
fn group_of(process: u32) -> i32 {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process number");
    rustix::process::getpgid(Some(process)).expect("it runs").as_raw_pid()
}

#[test]
fn exec_ends_other_process_groups_before_the_deadline() {
    assert_dead_before_the_deadline(lose_under_other_process_groups);
}

fn lose_under_other_process_groups() -> Vec<LastWords> {
    let (fleet, desk) = Desk::with_fleet(3);
    // timeout(1) makes a process group, and so does a shell with job control for background jobs.
    for name in ["timed", "job"] {
        let text = format!("trap '' TERM; echo $$ > {name}; {RECORD} {name}-log; done");
        desk.write(&format!("{name}.sh"), &text);
    }
    let job = background_job("job.sh");
    let script = format!(
        "exec > /dev/null 2>&1; echo $$ > cmd; timeout 60 sh timed.sh & {job}; wait; sleep 60"
    );
    let redlatch = Running::start(&mut exec(&fleet, &desk, &["-t", "3s", "--json"], &script));
    let below = ["timed", "job"].map(|name| (name, desk.process(name)));
    for (name, process) in below {
        desk.wait_for(&format!("{name}-log"));
        assert_ne!(group_of(process), group_of(desk.process("cmd")), "{name}");
    }
    stop_majority(&fleet);
    let ended = redlatch.end(LIMIT).with_code(124);
    let deadline = events(&ended).iter().rev().find_map(|e| e["deadline_unix_ms"].as_u64());
    let deadline = deadline.expect("it is logged");
    let last_words = below.map(|(name, process)| {
        assert_eq!(state_of(process), None, "{name}");
        let log = format!("{name}-log");
        LastWords { last: last_moment(&desk, &log), log, deadline }
    });
    continue_masters(&fleet);
    last_words.into()
}

#[test]
fn exec_sends_sigterm_once_to_each_process() {
    for flags in [&[][..], &["--foreground"]] {
        let (fleet, desk) = Desk::with_fleet(3);
        // Three processes record each SIGTERM: CMD, another process in its group, and one with its
        // own group.
        let told = |who: &str| {
            format!("trap 'echo {who} >> told' TERM; while [ -e cmd ]; do sleep 0.02; done")
        };
        // CMD uses `wait`, which a signal interrupts. During a `sleep` two signals would count as
        // one.
        let itself = "trap 'echo itself >> told' TERM; while [ -e cmd ]; do wait; done";
        desk.write("apart.sh", &told("apart"));
        let (apart, beside) = (background_job("apart.sh"), told("beside"));
        let script = format!("echo up > cmd; {apart}; ({beside}) & {itself}");
        let flags = [&["-t", "2s", "--grace", "1s", "--no-renew"], flags].concat();
        let mut redlatch = exec(&fleet, &desk, &flags, &script);
        run(redlatch.stdout(Stdio::null()).stderr(Stdio::null())).with_code(124);
        let mut told = desk.lines("told");
        told.sort();
        assert_eq!(told, ["apart", "beside", "itself"], "{flags:?}");
    }
}

#[test]
fn a_daemon_that_left_the_session_is_not_stopped() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "setsid sh -c 'echo $$ > daemon; exec sleep 60' > /dev/null 2>&1 & sleep 60";
    let flags = ["-t", "4s", "--no-renew"];
    let mut redlatch = exec(&fleet, &desk, &flags, script);
    run(redlatch.stdout(Stdio::null()).stderr(Stdio::null())).with_code(124);
    let daemon = desk.process("daemon");
    assert!(state_of(daemon).is_some(), "it was killed");
    kill(daemon);
}

#[test]
fn cmd_that_begins_a_session_is_stopped_as_well() {
    let (fleet, desk) = Desk::with_fleet(3);
    // With --foreground CMD does not lead a group, so setsid(1) does not fork, and CMD itself gets
    // a new session.
    let flags = ["-t", "4s", "--no-renew", "--foreground"];
    let mut redlatch = exec(&fleet, &desk, &flags, "exec setsid sleep 60");
    let ended = run(redlatch.stderr(Stdio::null())).with_code(124);
    assert!(ended.took < LIMIT / 2, "{ended:?}");
}

/// A script that runs `before` and then replaces itself by `redlatch exec`, whose CMD outlives its
/// lock.
fn script_that_becomes_redlatch(fleet: &Fleet, desk: &Desk, before: &str) -> Command {
    let inner = exec(fleet, desk, &["-t", "4s", "--no-renew"], "echo up >> up; sleep 60");
    let script = format!("{before}\n exec \"$@\"");
    let mut outer = Command::new("sh");
    outer.args(["-c", &script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    outer.env("REDLATCH_SERVERS", fleet.urls().join(","));
    outer.current_dir(inner.get_current_dir().expect("it was set"));
    outer.stdout(Stdio::null()).stderr(Stdio::null());
    outer
}

/// Ends a background job of the test.
fn kill(process: u32) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process number");
    kill_process(process, Signal::KILL).expect("it sleeps");
}

#[test]
fn background_jobs_of_a_script_that_became_redlatch_survive_the_end_of_cmd() {
    let (fleet, desk) = Desk::with_fleet(3);
    let mut killed = 0;
    for run in 0..6 {
        // The job often has the same start time as CMD, which /proc shows in units of 10 ms.
        let before = format!("sleep 60 & echo $! > job-{run}");
        let mut script = script_that_becomes_redlatch(&fleet, &desk, &before);
        Running::start(&mut script).end(LIMIT).with_code(124);
        let job = desk.process(&format!("job-{run}"));
        if state_of(job).is_some() {
            kill(job);
        } else {
            killed += 1;
        }
    }
    assert_eq!(desk.lines("up").len(), 6, "CMD ran each time");
    assert_eq!(killed, 0, "of 6 background jobs");
}

#[test]
fn exec_leaves_children_of_background_jobs_alive() {
    let (fleet, desk) = Desk::with_fleet(3);
    // One job starts a process, and a shell that waits for another. The second job starts a
    // process and ends, so redlatch becomes the parent of that one, as of CMD's orphans.
    let before = "(until [ -e up ]; do sleep 0.01; done
        sleep 60 & echo $! > left
        sh -c 'sleep 60 & echo $! > below; wait') & (until [ -e up ]; do sleep 0.01; done
        sleep 60 & echo $! > orphan) &";
    let mut script = script_that_becomes_redlatch(&fleet, &desk, before);
    Running::start(&mut script).end(LIMIT).with_code(124);
    let processes = ["left", "below", "orphan"].map(|name| (name, desk.process(name)));
    let alive = processes.map(|(name, process)| (name, state_of(process).is_some()));
    processes.iter().zip(alive).filter(|(_, it)| it.1).for_each(|(it, _)| kill(it.1));
    assert_eq!(alive, [("left", true), ("below", true), ("orphan", true)]);
}

#[test]
fn exec_does_not_wait_for_processes_that_cmd_leaves() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "sleep 60 > /dev/null 2>&1 & echo $! > left; exit 7";
    run(&mut exec(&fleet, &desk, &[], script)).with_code(7);
    fleet.wait_empty();
    let left = desk.process("left");
    assert!(state_of(left).is_some(), "it was killed");
    kill(left);
}

#[test]
fn exec_returns_the_code_of_a_cmd_that_ended_while_redlatch_was_stopped() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "echo $$ > cmd; until [ -e go ]; do sleep 0.01; done; exit 3";
    let flags = ["-t", "9s", "--grace", "4500ms", "--no-renew", "--json"];
    let redlatch = Running::start(exec(&fleet, &desk, &flags, script).stderr(desk.log("events")));
    let cmd = desk.process("cmd");
    let deadline = first_deadline(&desk, "events");
    redlatch.signal(Signal::STOP);
    eventually(LIMIT, "redlatch is stopped", || state_of(redlatch.id()) == Some('T'));
    desk.put("go");
    eventually(LIMIT, "CMD has ended", || state_of(cmd).is_none());
    // By this moment redlatch would have sent SIGTERM to CMD if it had not been stopped.
    eventually(LIMIT, "its grace begins", || now_ms() > deadline - 4_400);
    redlatch.signal(Signal::CONT);
    redlatch.end(LIMIT).with_code(3);
    let told = desk.lines("events").join("\n");
    assert!(!told.contains("SIGTERM") && !told.contains("\"lost\""), "{told}");
    fleet.wait_empty();
}

#[test]
fn a_machine_that_was_suspended_wakes_redlatch_at_once() {
    let (fleet, desk) = Desk::with_fleet(3);
    let script = "echo up > up; until [ -e go ]; do sleep 0.01; done";
    let flags = ["-t", "60s", "--grace", "10s", "--no-renew"];
    let redlatch = started(&fleet, &desk, &flags, script);
    // CLOCK_BOOTTIME goes on during a suspend; the clock of the poller's own timeout does not.
    let about = format!("/proc/{}/fdinfo", redlatch.id());
    let sleeps = |text: String| {
        let of_boot = text.lines().any(|line| line == "clockid: 7");
        let left = text.lines().find_map(|line| line.strip_prefix("it_value: ("))?;
        let left: u64 = left.split(',').next()?.trim().parse().ok()?;
        of_boot.then_some(left)
    };
    let is_set = || {
        let files = std::fs::read_dir(&about).expect("it runs").flatten();
        let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        texts.filter_map(sleeps).any(|left| (1..50).contains(&left))
    };
    eventually(5 * SECOND, "a timer of that clock is set", is_set);
    desk.put("go");
    redlatch.end(LIMIT).with_code(0);
}

#[test]
fn exec_does_not_start_cmd_under_a_lock_that_is_over() {
    let (fleet, desk) = Desk::with_fleet(3);
    // The answers come when 14 ms of the lock are left, but SIGKILL would be due 20 ms before its
    // end.
    let proxies: Vec<Proxy> = fleet.iter().map(|node| Proxy::start(node.address())).collect();
    proxies.iter().for_each(|it| it.delay(Way::ToClient, Duration::from_millis(222)));
    let flags = ["-t", "240ms", "--no-renew", "--json"];
    let mut command = exec(&fleet, &desk, &flags, "touch ran");
    command.env("REDLATCH_SERVERS", proxies.iter().map(Proxy::url).collect::<Vec<_>>().join(","));
    let ended = run(&mut command).with_code(124);
    let events = events(&ended);
    let (last, before) = events.split_last().expect("something is logged");
    assert_eq!(last["error"], "lost", "{ended:?}");
    assert!(!names(before).contains(&"child_exit"), "{ended:?}");
    assert!(!desk.path("ran").exists());
    nothing_is_left(&fleet);
}

#[test]
fn a_bound_that_is_shorter_than_the_ttl_leaves_cmd_time_to_run() {
    let (fleet, desk) = Desk::with_fleet(3);
    // For a ttl of 30 s the default grace is 5 s, which is longer than --max-hold here.
    let script = "trap 'echo told > log; exit' TERM; echo up > up; while :; do sleep 0.01; done";
    let ended = run(&mut exec(&fleet, &desk, &["--max-hold", "4500ms", "--json"], script));
    let ended = ended.with_code(124);
    assert_eq!((desk.lines("up"), desk.lines("log")), (vec!["up".into()], vec!["told".into()]));
    let expiring = events(&ended).into_iter().find(|event| event["event"] == "expiring");
    let left = expiring.and_then(|event| event["remaining_ms"].as_u64());
    assert!(left.is_some_and(|left| left <= 1_500), "a third of it: {left:?}");
}

#[test]
fn a_lock_is_not_given_back_while_something_of_cmd_may_be_alive() {
    let (fleet, desk) = Desk::with_fleet(3);
    // A dead process stays in the group whatever signal it gets, because its parent, which has left
    // the group, does not reap it. This imitates a process that hangs in a disk access.
    let script = "trap 'echo told > told' TERM
        sh -c 'sleep 20 & exec setsid sleep 20' > /dev/null 2>&1 &
        echo up > up; while :; do sleep 0.01; done";
    let flags = ["-t", "6s", "--grace", "3s", "--json"];
    let redlatch = started(&fleet, &desk, &flags, script);
    stop_majority(&fleet);
    desk.wait_for("told");
    // Now the lock could be renewed, but a CMD that got SIGTERM is killed all the same.
    fleet.on([0, 1], Node::cont);
    let ended = redlatch.end(LIMIT).with_code(124);
    assert!(ended.errors.contains("is still alive"), "{ended:?}");
    let held = values(&fleet, "key").iter().flatten().count();
    assert!(held >= 2, "it was given back: {ended:?}");
}
