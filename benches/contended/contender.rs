//! A contender: this program once more, in a process of its own. Hidden arguments say what it is.
//!
//! The contender connects, reports that it is connected, and gets the times to begin and to stop.
//! It keeps its figures in memory and prints them at the end, so that only the lock is at work
//! while the bench measures. The hazard is a parent that is gone: the contender ends when its input
//! ends, or after the end of its round.

use std::io::{BufRead, Write, stdin, stdout};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use kit::clap::ValueEnum;
use kit::process_cpu;
use rustix::time::{ClockId, clock_gettime};

use super::bare::Bare;
use super::inside;
use super::options::{Kind, name};
use super::ours::Ours;

/// The first argument of a contender.
const MARK: &str = "--contender";

/// Room for the holds of a round, so that no list grows meanwhile.
const ROOM: usize = 1 << 17;

/// What a contender is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    pub kind: Kind,
    /// Its number among the contenders.
    pub number: usize,
    pub hold: Duration,
    /// The pause between a release and the next request, plus or minus a half.
    pub rest: Duration,
    /// How many requests it keeps in flight inside one engine; 0: none, it takes locks one by one.
    pub inside: usize,
    /// The sockets of two contenders that take turns: its own, and the other's.
    pub turns: Option<(PathBuf, PathBuf)>,
    /// One key, or the keys of a set.
    pub keys: Vec<String>,
    pub urls: Vec<String>,
}

/// One hold, or one wait without a grant. Times are nanoseconds on the monotonic clock of the
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hold {
    /// The number of the contender, if one process has several.
    pub slot: u64,
    pub asked: u64,
    /// The moment of the grant; 0: the wait was not over at the end.
    pub have: u64,
    /// The moment before the first byte of the release.
    pub gave_back: u64,
}

/// What a contender did.
#[derive(Debug, Default)]
pub struct Diary {
    pub holds: Vec<Hold>,
    pub cpu: Duration,
}

/// Acquires and releases locks.
pub trait Contender {
    /// Waits for the lock for at most this long. If it is granted, runs `held` and releases it.
    /// Returns whether it was granted.
    fn hold(&mut self, wait: Duration, held: &mut dyn FnMut()) -> bool;
}

impl Role {
    /// What the command line says that the process is; `None` if it is no contender.
    pub fn read(arguments: &[String]) -> Option<Role> {
        let [mark, kind, number, hold, rest, inside, own, other, keys, urls @ ..] = arguments
        else {
            return None;
        };
        let turns = (!own.is_empty()).then(|| (own.into(), other.into()));
        let role = Role {
            kind: Kind::from_str(kind, false).ok()?,
            number: number.parse().ok()?,
            hold: Duration::from_nanos(hold.parse().ok()?),
            rest: Duration::from_nanos(rest.parse().ok()?),
            inside: inside.parse().ok()?,
            turns,
            keys: keys.split(',').map(str::to_owned).collect(),
            urls: urls.to_vec(),
        };
        (mark == MARK).then_some(role)
    }

    /// The command line of such a contender.
    pub fn arguments(&self) -> Vec<String> {
        let path = |path: &PathBuf| path.display().to_string();
        let (own, other) =
            self.turns.as_ref().map_or_else(Default::default, |(a, b)| (path(a), path(b)));
        let mut arguments = vec![
            MARK.to_owned(),
            name(self.kind),
            self.number.to_string(),
            self.hold.as_nanos().to_string(),
            self.rest.as_nanos().to_string(),
            self.inside.to_string(),
            own,
            other,
            self.keys.join(","),
        ];
        arguments.extend(self.urls.iter().cloned());
        arguments
    }
}

/// Runs a contender from its start to its end.
pub fn main(role: &Role) {
    let mut diary = Diary { holds: Vec::with_capacity(ROOM), cpu: Duration::ZERO };
    if role.inside > 0 {
        let mut engine = inside::Inside::connect(role);
        let Some(end) = wait_for_begin() else { return };
        let cpu = process_cpu();
        engine.run(end, &mut diary.holds);
        diary.cpu = process_cpu().saturating_sub(cpu);
        return hand_over(&diary);
    }
    let turns = role.turns.as_ref().map(Turns::open);
    let mut contender: Box<dyn Contender> = match role.kind {
        Kind::Bare | Kind::BareSets => Box::new(Bare::connect(role, Duration::from_millis(5))),
        Kind::Slow => Box::new(Bare::connect(role, Duration::from_millis(200))),
        _ => Box::new(Ours::connect(role)),
    };
    let Some(end) = wait_for_begin() else { return };
    let cpu = process_cpu();
    if role.turns.is_some() && role.number > 0 {
        // Contender 0 starts at once, so that it has the key first.
        std::thread::sleep(role.hold / 2);
    }
    contend(contender.as_mut(), role, turns.as_ref(), end, &mut diary.holds);
    diary.cpu = process_cpu().saturating_sub(cpu);
    drop(contender);
    hand_over(&diary);
}

fn contend(
    contender: &mut dyn Contender,
    role: &Role,
    turns: Option<&Turns>,
    end: u64,
    holds: &mut Vec<Hold>,
) {
    let mut dice = Dice::new(role.number as u64);
    loop {
        let asked = now();
        if asked >= end {
            return;
        }
        let (mut have, mut gave_back) = (0, 0);
        let held = &mut || {
            have = now();
            let mut hold = role.hold;
            if let Some(turns) = turns {
                turns.forget();
                turns.tell();
                // The hold grows by a random part, so that a release meets a poller at any moment
                // between two polls.
                hold += hold.mul_f64(dice.below_one());
            }
            if hold > Duration::ZERO {
                std::thread::sleep(hold);
            }
            gave_back = now();
        };
        let got = contender.hold(Duration::from_nanos(end - asked), held);
        holds.push(Hold { slot: 0, asked, have, gave_back });
        if !got || turns.is_some_and(|turns| !turns.wait(end)) {
            return;
        }
        if role.rest > Duration::ZERO {
            std::thread::sleep(role.rest.mul_f64(0.5 + dice.below_one()));
        }
    }
}

/// Reports that the connections are open, and waits for the start of the round. Returns the end of
/// the round, or `None` if the parent wants no round.
fn wait_for_begin() -> Option<u64> {
    let told = (|| {
        writeln!(stdout(), "ready")?;
        stdout().flush()?;
        let mut line = String::new();
        stdin().lock().read_line(&mut line).map(|_| line)
    })();
    let line = told.ok()?;
    let (begin, end) = line.trim().split_once(' ')?;
    let (begin, end): (u64, u64) = (begin.parse().ok()?, end.parse().ok()?);
    // All contenders begin at one moment, however long the parent takes to write to each of them.
    std::thread::sleep(Duration::from_nanos(begin.saturating_sub(now())));
    Some(end)
}

/// Prints the holds of the round for the parent.
fn hand_over(diary: &Diary) {
    let mut bytes = Vec::with_capacity(32 * diary.holds.len() + 8);
    bytes.extend((diary.cpu.as_nanos() as u64).to_le_bytes());
    for hold in &diary.holds {
        for number in [hold.slot, hold.asked, hold.have, hold.gave_back] {
            bytes.extend(number.to_le_bytes());
        }
    }
    stdout().write_all(&bytes).expect("the parent reads until the end");
}

impl Diary {
    /// Reads the holds that a contender printed.
    pub fn read(bytes: &[u8]) -> Diary {
        let mut numbers = bytes
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        let cpu = Duration::from_nanos(numbers.next().expect("a contender ends with its diary"));
        let mut holds = Vec::new();
        while let (Some(slot), Some(asked), Some(have), Some(gave_back)) =
            (numbers.next(), numbers.next(), numbers.next(), numbers.next())
        {
            holds.push(Hold { slot, asked, have, gave_back });
        }
        Diary { holds, cpu }
    }
}

/// Two contenders that take turns: each gets a message when the other has the lock.
struct Turns {
    own: UnixDatagram,
    other: PathBuf,
}

impl Turns {
    fn open((own, other): &(PathBuf, PathBuf)) -> Turns {
        let own = UnixDatagram::bind(own).expect("the parent's directory can be written");
        Turns { own, other: other.clone() }
    }

    /// Drops what the other contender has sent: a contender that has the lock knows that the other
    /// has not.
    fn forget(&self) {
        self.own.set_nonblocking(true).expect("an option of every socket");
        while self.own.recv(&mut [0]).is_ok() {}
        self.own.set_nonblocking(false).expect("an option of every socket");
    }

    /// Sends the other contender the message that this one has the lock.
    fn tell(&self) {
        // The other contender may have ended.
        let _ = self.own.send_to(&[1], &self.other);
    }

    /// Waits until the other contender has the lock; `false` at the end of the round.
    fn wait(&self, end: u64) -> bool {
        let left = Duration::from_nanos(end.saturating_sub(now()).max(1));
        self.own.set_read_timeout(Some(left)).expect("it is not zero");
        self.own.recv(&mut [0]).is_ok()
    }
}

/// Enough randomness for pauses.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice((now() ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    pub fn below_one(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// One clock for all processes of the machine.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
