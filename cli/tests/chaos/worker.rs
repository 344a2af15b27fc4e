//! A worker, which is a client process: acquires locks, uses them, and writes its holds on its
//! sheet.
//!
//! A worker runs until it is killed. If the library returns an error that no fault explains, the
//! worker panics, and the test notices that. The kernel kills a worker when the test dies.

use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redlatch::clock::{self, Instant};
use redlatch::{
    Client, Config, Error, Guard, LockOptions, ReleaseOutcome, RestartGuard, SharedClient,
    SharedGuard,
};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::keepers;
use super::plain::{self, Plain};
use super::sheet::{Count, Sheet};
use super::support::{Dice, millis};
use super::{MAX_TTL, NODE_TIMEOUT, key_name};

/// How many threads use one shared client.
const THREADS: usize = 3;

/// The test's order to a worker, which is passed in the environment of the process.
#[derive(Debug, Clone)]
pub struct Errand {
    pub kind: String,
    pub urls: Vec<String>,
    pub sheet: PathBuf,
    pub seed: u64,
    /// The numbers of the keys that the worker uses.
    pub keys: Vec<u64>,
    /// The connections go through proxies, which may delay them.
    pub proxied: bool,
    /// The nodes keep what they acknowledged, also over a restart.
    pub durable: bool,
    /// The client checks the list of masters, which changes.
    pub listed: bool,
    pub parent: u32,
}

impl Errand {
    const NAMES: [&str; 9] =
        ["KIND", "URLS", "SHEET", "SEED", "KEYS", "PROXIED", "DURABLE", "LISTED", "PARENT"];

    /// An order to a worker of this kind. Its sheet and its seed are chosen at its start.
    pub fn new(kind: &str, urls: Vec<String>, keys: Vec<u64>) -> Errand {
        Errand {
            kind: kind.to_owned(),
            urls,
            sheet: PathBuf::new(),
            seed: 0,
            keys,
            proxied: false,
            durable: false,
            listed: false,
            parent: std::process::id(),
        }
    }

    pub fn environment(&self) -> Vec<(String, String)> {
        let keys: Vec<String> = self.keys.iter().map(u64::to_string).collect();
        let values = [
            self.kind.clone(),
            self.urls.join(" "),
            self.sheet.display().to_string(),
            self.seed.to_string(),
            keys.join(" "),
            self.proxied.to_string(),
            self.durable.to_string(),
            self.listed.to_string(),
            self.parent.to_string(),
        ];
        let name = |name: &&str| format!("CHAOS_WORKER_{name}");
        Self::NAMES.iter().map(name).zip(values).collect()
    }

    /// Reads the order from the environment; `None` in the test itself.
    pub fn of_this_process() -> Option<Errand> {
        let read = |name| std::env::var(format!("CHAOS_WORKER_{name}")).ok();
        let number = |text: &str| text.parse::<u64>().expect("the test wrote a number");
        Some(Errand {
            kind: read("KIND")?,
            urls: read("URLS")?.split(' ').map(str::to_owned).collect(),
            sheet: read("SHEET")?.into(),
            seed: number(&read("SEED")?),
            keys: read("KEYS")?.split(' ').map(number).collect(),
            proxied: read("PROXIED")? == "true",
            durable: read("DURABLE")? == "true",
            listed: read("LISTED")? == "true",
            parent: u32::try_from(number(&read("PARENT")?)).expect("a process id"),
        })
    }

    pub fn config(&self) -> Config {
        let guard = match self.durable {
            true => RestartGuard::Persistent,
            false if !self.listed && super::without_guard() => RestartGuard::Off,
            false => RestartGuard::On,
        };
        let config = Config::new(&self.urls).expect("the test wrote good URLs");
        let config = config.max_ttl(MAX_TTL).node_timeout(self.node_timeout());
        config.restart_guard(guard).check_members(self.listed)
    }

    /// With proxies it is long, so that an answer that is delayed by half a ttl still counts as a
    /// vote; with a list, so that a busy machine is not taken for a refusal.
    pub fn node_timeout(&self) -> Duration {
        if self.proxied || self.listed { 8 * NODE_TIMEOUT } else { NODE_TIMEOUT }
    }

    /// Runs the worker until the process is killed.
    pub fn run(self) -> ! {
        self.die_with_the_test();
        match self.kind.as_str() {
            "client" => client(&self),
            "shared" => shared(&self),
            "plain" => plain_client(&self),
            "exec" | "exec-keeper" => super::wrapper::run(&self),
            "keeper" | "renewer" => keepers::keep(&self),
            "shared-keeper" => keepers::keep_shared(&self),
            "asker" | "waiter" => keepers::ask(&self),
            other => panic!("there is no worker {other}"),
        }
    }

    fn die_with_the_test(&self) {
        set_parent_process_death_signal(Some(Signal::KILL)).expect("the kernel takes a signal");
        // The test may have ended before the kernel was asked to send a signal at its end.
        assert_eq!(parent_id(), self.parent, "the test is gone");
    }
}

/// The plan of one hold.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub ttl: Duration,
    pub manner: Manner,
    /// How long the worker uses the lock if it is not lost.
    pub length: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// The worker ends the hold when its work is done.
    Plain,
    /// The worker extends the lock every third of the ttl.
    Extending,
    /// The library renews the lock.
    AutoExtending,
    /// The worker goes on until its check fails.
    Overstaying,
    /// The worker drops the guard, which releases the lock, and does not call `release`.
    Dropped,
}

impl Plan {
    /// Draws a key, and the plan of its hold.
    pub fn draw(dice: &mut Dice, keys: &[u64]) -> (u64, Plan) {
        let (&long, short) = keys.split_last().expect("a worker has keys");
        if dice.chance(50) {
            return (long, Plan::draw_long(dice));
        }
        let ttl = millis(dice.one_of(&[300, 500, 1000, 2000]));
        let manner = dice.weighted(&[
            (900, Manner::Plain),
            (20, Manner::Extending),
            (20, Manner::AutoExtending),
            (10, Manner::Overstaying),
            (50, Manner::Dropped),
        ]);
        let (ttl, length) = match manner {
            Manner::Plain | Manner::Dropped => (ttl, Duration::from_micros(dice.below(8000))),
            _ => (millis(300), millis(400)),
        };
        (dice.one_of(short), Plan { ttl, manner, length })
    }

    /// Draws a long hold, so that faults happen during it.
    fn draw_long(dice: &mut Dice) -> Plan {
        let ttl = millis(dice.one_of(&[1000, 2000]));
        let manner = dice.one_of(&[
            Manner::Plain,
            Manner::Extending,
            Manner::AutoExtending,
            Manner::Overstaying,
            Manner::Overstaying,
            Manner::Dropped,
        ]);
        let length = match manner {
            Manner::Overstaying => 2 * ttl,
            _ => millis(dice.between(300, 3000)),
        };
        Plan { ttl, manner, length }
    }
}

/// A lock of any interface.
pub trait Lock: Sized {
    /// The deadline, or why the lock is lost.
    fn check(&self) -> Result<Instant, String>;

    fn extend(&mut self, ttl: Duration) -> bool;

    fn auto_extend(&mut self, most: Duration) -> bool;

    fn release(self) -> bool;
}

impl Lock for Guard<'_> {
    fn check(&self) -> Result<Instant, String> {
        Guard::check(self).map_err(|error| error.to_string())?;
        self.deadline().ok_or_else(|| "it has no deadline".to_owned())
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        expected(Guard::extend(self, ttl)).is_some()
    }

    fn auto_extend(&mut self, most: Duration) -> bool {
        expected(Guard::auto_extend(self, most)).is_some()
    }

    fn release(self) -> bool {
        expected(Guard::release(self)) == Some(ReleaseOutcome::Released)
    }
}

impl Lock for SharedGuard {
    fn check(&self) -> Result<Instant, String> {
        self.watcher().check().map_err(|error| error.to_string())?;
        self.deadline().ok_or_else(|| "it has no deadline".to_owned())
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        expected(SharedGuard::extend(self, ttl).wait()).is_some()
    }

    fn auto_extend(&mut self, most: Duration) -> bool {
        expected(SharedGuard::auto_extend(self, most)).is_some()
    }

    fn release(self) -> bool {
        expected(SharedGuard::release(self).wait()) == Some(ReleaseOutcome::Released)
    }
}

/// A lock of the plain client, which cannot extend or renew locks.
struct PlainLock<'a>(&'a mut Plain, plain::Held);

impl Lock for PlainLock<'_> {
    fn check(&self) -> Result<Instant, String> {
        let deadline = self.1.deadline;
        if clock::now() < deadline { Ok(deadline) } else { Err("it is over".to_owned()) }
    }

    fn extend(&mut self, _: Duration) -> bool {
        false
    }

    fn auto_extend(&mut self, _: Duration) -> bool {
        false
    }

    fn release(self) -> bool {
        self.0.unlock(&self.1)
    }
}

/// The answer; `None` if the error is one that a fault explains. Panics on other errors.
fn expected<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(answer) => Some(answer),
        Err(Error::Lost { .. }) => None,
        Err(error) if error.is_retryable() => None,
        Err(error) => panic!("no fault explains this: {error}"),
    }
}

pub fn refused(sheet: &Sheet, error: &Error) {
    match error {
        Error::Contended(_) => sheet.count(Count::Contended),
        Error::NoQuorum(_) => sheet.count(Count::NoQuorum),
        Error::Expired(_) => sheet.count(Count::Expired),
        other => panic!("no fault explains this: {other}"),
    }
}

/// Uses a lock as the plan says, and releases it. Returns why it was lost, if it was.
pub fn hold(sheet: &Sheet, key: u64, plan: Plan, mut lock: impl Lock) -> Option<String> {
    let Some(mut record) = lock.check().ok().and_then(|deadline| sheet.begin(key, deadline)) else {
        sheet.count(Count::Late);
        return None;
    };
    let start = clock::now();
    let most = plan.length + 4 * MAX_TTL;
    if plan.manner == Manner::AutoExtending && lock.auto_extend(most) {
        sheet.count(Count::AutoExtended);
    }
    let mut extended_at = start;
    let lost = loop {
        let now = clock::now();
        match lock.check() {
            Ok(deadline) => record.lasts_until(deadline),
            Err(why) => break Some(why),
        }
        let used = now.saturating_since(start);
        if used >= plan.length {
            break None;
        }
        let due = now.saturating_since(extended_at) >= plan.ttl / 3;
        if plan.manner == Manner::Extending && due {
            extended_at = now;
            let extended = lock.extend(plan.ttl);
            sheet.count(if extended { Count::Extended } else { Count::NotExtended });
            continue;
        }
        std::thread::sleep((plan.length - used).min(millis(2)));
    };
    // Records the end of the use before the release is sent.
    record.ends_now();
    if lost.is_some() && plan.manner == Manner::Overstaying {
        sheet.count(Count::Overstayed);
    } else if lost.is_some() {
        sheet.count(Count::LossNoticed);
    }
    if plan.manner == Manner::Dropped {
        sheet.count(Count::Dropped);
        return lost;
    }
    let released = lock.release();
    if lost.is_none() {
        sheet.count(if released { Count::Released } else { Count::NotReleased });
    }
    lost
}

/// Draws the options of a request.
fn options(dice: &mut Dice, ttl: Duration) -> LockOptions {
    if dice.chance(150) {
        return LockOptions::once(ttl);
    }
    LockOptions::new(ttl).wait(millis(dice.between(50, 2000)))
}

/// The pause before the next lock.
fn pause(dice: &mut Dice) -> Duration {
    millis(dice.below(60))
}

fn client(errand: &Errand) -> ! {
    let sheet = Sheet::create(&errand.sheet);
    let mut dice = Dice::new(errand.seed);
    let client = Client::connect(errand.config()).expect("the configuration is good");
    loop {
        let (key, plan) = Plan::draw(&mut dice, &errand.keys);
        let options = options(&mut dice, plan.ttl);
        match client.lock(key_name(key), options) {
            Ok(guard) => {
                hold(&sheet, key, plan, guard);
            }
            Err(error) => refused(&sheet, &error),
        }
        // The client sends its pending releases inside `drive`. Sometimes the worker does not call
        // it, so that they wait for the next request.
        let pause = pause(&mut dice);
        if dice.chance(900) {
            client.drive(pause).expect("the poller works");
        } else {
            std::thread::sleep(pause);
        }
    }
}

fn shared(errand: &Errand) -> ! {
    let sheet = Arc::new(Sheet::create(&errand.sheet));
    let mut dice = Dice::new(errand.seed);
    let client =
        SharedClient::connect_blocking(errand.config()).expect("the configuration is good");
    let one = |mut dice: Dice| {
        let (client, sheet, keys) = (client.clone(), Arc::clone(&sheet), errand.keys.clone());
        std::thread::spawn(move || {
            loop {
                let (key, plan) = Plan::draw(&mut dice, &keys);
                let options = options(&mut dice, plan.ttl);
                match client.lock(key_name(key), options).wait() {
                    Ok(guard) => {
                        hold(&sheet, key, plan, guard);
                    }
                    Err(error) => refused(&sheet, &error),
                }
                std::thread::sleep(pause(&mut dice));
            }
        })
    };
    let threads: Vec<_> = (0..THREADS).map(|_| one(dice.others())).collect();
    for thread in threads {
        let ended: Result<(), _> = thread.join();
        ended.expect("no fault explains this end of a thread");
    }
    unreachable!("the threads run for ever")
}

fn plain_client(errand: &Errand) -> ! {
    let sheet = Sheet::create(&errand.sheet);
    let mut dice = Dice::new(errand.seed);
    let mut client = Plain::new(&errand.urls, dice.others());
    loop {
        let (key, plan) = Plan::draw(&mut dice, &errand.keys);
        let start = clock::now();
        let held = loop {
            match client.try_lock(&key_name(key), plan.ttl) {
                None if clock::now().saturating_since(start) < millis(1000) => {
                    std::thread::sleep(millis(dice.between(5, 50)));
                }
                held => break held,
            }
        };
        match held {
            Some(held) => {
                hold(&sheet, key, plan, PlainLock(&mut client, held));
            }
            None => sheet.count(Count::Contended),
        }
        std::thread::sleep(pause(&mut dice));
    }
}
