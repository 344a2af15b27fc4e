//! One round: contenders are started, begin at one moment, end at another, and report their holds.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kit::median;

use super::Setting;
use super::contender::{Diary, Role, now};
use super::figures::{Figures, Round};
use super::options::{Case, Kind};
use super::support::{Fleet, Node};

/// A user that may not stand in line: the library then has nothing but its own pauses.
const REFUSED: &str = "refused";

/// How many questions the round trip is the median of.
const PINGS: usize = 501;

/// Makes the user on every node that has no right to the lines.
pub fn forbid_lines(fleet: &Fleet) {
    let rules = ["on", ">pw", "~contended:*", "~redlatch:node", "&*", "+@all"];
    for node in fleet {
        let said = node.command(&[&["ACL", "SETUSER", REFUSED], &rules[..]].concat());
        assert!(said.is_ok(), "ACL SETUSER: {said:?}");
    }
}

/// Runs a round and returns its figures. Panics if two contenders had the lock at one time.
pub fn run(fleet: &Fleet, kind: Kind, setting: &Setting, length: Duration) -> Figures {
    let roles = roles(fleet, kind, setting);
    let mut contenders: Vec<Started> = roles.iter().map(Started::spawn).collect();
    contenders.iter_mut().for_each(Started::wait_ready);
    let round_trip = round_trip(&fleet[0]);
    let before = (cpu_of(fleet), commands_of(fleet));
    // 20 ms ahead: by then each contender has read the moment.
    let begin = now() + 20_000_000;
    let end = begin + length.as_nanos() as u64;
    contenders.iter_mut().for_each(|contender| contender.tell(begin, end));
    let diaries: Vec<Diary> = contenders.iter_mut().map(Started::diary).collect();
    let nodes_cpu = cpu_of(fleet).saturating_sub(before.0);
    let commands = (commands_of(fleet) - before.1) / fleet.len() as f64;
    for (own, _) in roles.iter().filter_map(|role| role.turns.as_ref()) {
        let _ = std::fs::remove_file(own);
    }
    let round = Round { begin, end, diaries, nodes_cpu, commands, round_trip };
    round.figures(setting.contenders)
}

fn roles(fleet: &Fleet, kind: Kind, setting: &Setting) -> Vec<Role> {
    static ROUND: AtomicU64 = AtomicU64::new(0);
    let round = ROUND.fetch_add(1, Ordering::Relaxed);
    let urls = fleet.iter().map(|node| match kind {
        Kind::Refused => format!("redis://{REFUSED}:pw@127.0.0.1:{}", node.port()),
        _ => node.url(),
    });
    let role = Role {
        kind,
        number: 0,
        hold: setting.hold,
        rest: setting.rest,
        inside: if setting.case == Case::Inside { setting.contenders } else { 0 },
        turns: None,
        // The round is a part of the key, so keys that a round leaves do not disturb the next one.
        keys: (0..kind.keys()).map(|key| format!("contended:{round}:{key}")).collect(),
        urls: urls.collect(),
    };
    let processes = if role.inside > 0 { 1 } else { setting.contenders };
    let socket =
        |number: usize| -> PathBuf { fleet[0].directory().join(format!("turns-{round}-{number}")) };
    let one = |number: usize| {
        let turns = setting.case == Case::Turns;
        let turns = turns.then(|| (socket(number), socket(1 - number)));
        Role { number, turns, ..role.clone() }
    };
    (0..processes).map(one).collect()
}

/// A contender that runs.
struct Started {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Started {
    fn spawn(role: &Role) -> Started {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(role.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program can be started again");
        let output = child.stdout.take().expect("it was asked for");
        Started { child, output: BufReader::new(output) }
    }

    fn wait_ready(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a pipe can be read");
        assert_eq!(line, "ready\n", "a contender ended early");
    }

    fn tell(&mut self, begin: u64, end: u64) {
        let input = self.child.stdin.as_mut().expect("it was asked for");
        writeln!(input, "{begin} {end}").expect("a contender that is ready listens");
    }

    fn diary(&mut self) -> Diary {
        let mut bytes = Vec::new();
        self.output.read_to_end(&mut bytes).expect("a pipe can be read");
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "a contender ended with {status}");
        Diary::read(&bytes)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The median of the time from a question to its answer, while no other client asks.
fn round_trip(node: &Node) -> Duration {
    let mut client = node.client();
    let took = (0..PINGS).map(|_| {
        let asked = now();
        client.command(&["PING"]).expect("a running server answers");
        (now() - asked) as f64
    });
    Duration::from_nanos(median(took) as u64)
}

/// What the servers have used of the processors until now.
fn cpu_of(fleet: &Fleet) -> Duration {
    let seconds = |node: &Node, name: &str| node.info(name).parse::<f64>().expect("a number");
    let of = |node: &Node| seconds(node, "used_cpu_user") + seconds(node, "used_cpu_sys");
    Duration::from_secs_f64(fleet.iter().map(of).sum())
}

/// How many commands the servers have executed until now.
fn commands_of(fleet: &Fleet) -> f64 {
    let of = |node: &Node| node.info("total_commands_processed").parse::<f64>().expect("a number");
    fleet.iter().map(of).sum()
}
