//! The worker that runs the tool: one `redlatch exec` (the wrapper) after the other, with a CMD
//! that writes its holds on the worker's sheet.
//!
//! CMD uses the lock while it lives. It writes the end of its use again and again, so the last of
//! these moments is the end of a CMD that was killed. The wrapper reports the deadline: in the
//! environment of CMD, and at every renewal in its events, which the worker reads.
//!
//! The hazard is a wrapper that is stopped, which cannot end its CMD at the deadline. So a hold
//! ends at the deadline that the wrapper reported, whatever CMD does afterwards.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use redlatch::clock::{self, Instant};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::sheet::{self, Count, Sheet, Use};
use super::support::{Dice, millis};
use super::worker::{Errand, Manner, Plan};
use super::{MAX_TTL, keepers, key_name, this_test};

/// The environment variables of CMD.
const PLACE: &str = "CHAOS_CMD_PLACE";
const SHEET: &str = "CHAOS_CMD_SHEET";
const KEY: &str = "CHAOS_CMD_KEY";
const LENGTH: &str = "CHAOS_CMD_LENGTH_US";

/// Runs wrappers until the process is killed.
pub fn run(errand: &Errand) -> ! {
    let sheet = Sheet::create(&errand.sheet);
    let mut dice = Dice::new(errand.seed);
    loop {
        let (key, plan) =
            keepers::plan(errand, &mut dice).unwrap_or_else(|| Plan::draw(&mut dice, &errand.keys));
        let place = sheet.reserve();
        let mut command = wrapper(errand, plan, key);
        command.env(PLACE, place.to_string()).env(SHEET, &errand.sheet);
        command.env(KEY, key.to_string());
        command.env(LENGTH, plan.length.as_micros().to_string());
        let mut child = command.spawn().expect("the tool was built");
        let events = child.stderr.take().expect("it is piped");
        std::thread::scope(|scope| {
            scope.spawn(|| follow(events, &sheet, place));
            disturb(&sheet, &mut child, plan, &mut dice);
        });
        std::thread::sleep(millis(dice.below(60)));
    }
}

fn wrapper(errand: &Errand, plan: Plan, key: u64) -> Command {
    let ms = |duration: Duration| format!("{}ms", duration.as_millis());
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command.args(["exec", "--json", "-v", "-w", "2s", "--no-quorum-wait", "2s"]);
    command.args(["-t", &ms(plan.ttl), "--max-ttl", &ms(MAX_TTL)]);
    command.args(["--node-timeout", &ms(errand.node_timeout())]);
    if errand.listed {
        command.arg("--check-members");
    }
    if errand.durable {
        command.arg("--persistent-nodes");
    } else if !errand.listed && super::without_guard() {
        command.arg("--no-restart-guard");
    }
    // Without renewals CMD outlives its lock, and the wrapper has to end it.
    if plan.manner == Manner::Overstaying {
        command.arg("--no-renew");
    }
    command.arg(key_name(key)).arg("--").args(this_test());
    command.env("REDLATCH_SERVERS", errand.urls.join(",")).env("REDLATCH_CONFIG", "/dev/null");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Stops or kills the wrapper in some runs, and waits for its end.
fn disturb(sheet: &Sheet, child: &mut Child, plan: Plan, dice: &mut Dice) {
    let when = millis(dice.below(200));
    let is_left_alone = plan.length == keepers::FOR_EVER;
    let kill = !is_left_alone && dice.chance(60);
    let stop = !is_left_alone && !kill && dice.chance(60);
    let length = millis(dice.between(20, 3000));
    let signal = |child: &Child, signal| {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // The child has not been reaped, so the number is still its own.
        kill_process(pid.expect("a child's pid is positive"), signal).expect("a child of ours");
    };
    if (kill || stop) && !ends_within(child, when) {
        if kill {
            sheet.count(Count::WrapperKilled);
            signal(child, Signal::KILL);
        } else {
            sheet.count(Count::WrapperStopped);
            signal(child, Signal::STOP);
            std::thread::sleep(length);
            signal(child, Signal::CONT);
        }
    }
    let status = child.wait().expect("a child of ours can be waited for");
    match status.code() {
        Some(0) => sheet.count(Count::Released),
        Some(69) => sheet.count(Count::NoQuorum),
        Some(75) => sheet.count(Count::Contended),
        Some(124) if plan.manner == Manner::Overstaying => sheet.count(Count::Overstayed),
        Some(124) => sheet.count(Count::LossNoticed),
        None if kill => {}
        _ => panic!("no fault explains this end of redlatch exec: {status}"),
    }
}

fn ends_within(child: &mut Child, limit: Duration) -> bool {
    let start = clock::now();
    while clock::now().saturating_since(start) < limit {
        if child.try_wait().expect("a child of ours can be waited for").is_some() {
            return true;
        }
        std::thread::sleep(millis(2));
    }
    false
}

/// Reads the events of a wrapper, and records a later deadline for its CMD after each renewal.
fn follow(events: ChildStderr, sheet: &Sheet, place: u64) {
    let mut others = String::new();
    let mut lines = BufReader::new(events).lines();
    while let Some(Ok(line)) = lines.next() {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        if event["event"] == "renewed" {
            let deadline = event["deadline_unix_ms"].as_u64().expect("a renewal has a deadline");
            sheet.lasts_until(place, from_unix_ms(deadline));
        } else if event.is_null() {
            others.push_str(&line);
            others.push('\n');
        }
    }
    assert!(!others.contains("panicked"), "redlatch exec: {others}");
}

fn from_unix_ms(ms: u64) -> Instant {
    clock::from_wall(UNIX_EPOCH + millis(ms))
}

/// Runs CMD, which uses the lock for as long as it was ordered to. Returns `None` in any other
/// process.
pub fn command_of_this_process() -> Option<()> {
    let read = |name: &str| std::env::var(name).ok();
    let number = |name: &str| read(name).and_then(|text| text.parse::<u64>().ok());
    let place = number(PLACE)?;
    let deadline = number("REDLATCH_DEADLINE_UNIX_MS").expect("the wrapper sets it");
    let key = number(KEY).expect("the worker sets it");
    let length = Duration::from_micros(number(LENGTH).expect("the worker sets it"));
    let file = sheet::open(Path::new(&read(SHEET).expect("the worker sets it")));
    let start = clock::now();
    let record = Use::begin(&file, place, key, from_unix_ms(deadline));
    while let Some(record) = &record {
        record.ends_now();
        let left = length.saturating_sub(clock::now().saturating_since(start));
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(millis(1)));
    }
    Some(())
}
