//! One master with two replicas and three Sentinels, which fail over again and again while clients
//! hold locks: the old master is cut off from the replicas and the Sentinels, stopped, stopped and
//! then cut off, or killed. Nobody but the clients reaches a master that is cut off, so a holder
//! goes on there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::support::sentinels::Sentinels;
use crate::support::{Dice, Value};
use redlatch::LockOptions;

const TTL: Duration = Duration::from_secs(2);
const SERVERS: usize = 3;
/// Replicas and Sentinels have users of their own, so that a test can cut them off.
const OTHERS: [&str; 2] = ["replica", "sentinel"];
const PASSWORD: &str = "secret";

/// What becomes of the present master.
#[derive(Debug, Clone, Copy)]
enum Fault {
    CutOff,
    Stopped,
    StoppedAndCutOff,
    Killed,
}

const FAULTS: [Fault; 4] = [Fault::CutOff, Fault::StoppedAndCutOff, Fault::Stopped, Fault::Killed];

/// When a client began to believe in the lock, and until when, on the clock of this process.
type Belief = (Instant, Instant);

/// What the clients share.
struct Shared {
    url: String,
    replicas: u32,
    ends: AtomicBool,
    beliefs: Mutex<Vec<Belief>>,
}

/// Acquires the lock with a new client each time, as jobs of a crontab do, and holds it for up to
/// seven ttls.
fn take_turns(shared: &Shared, seed: u64) {
    let mut dice = Dice::new(seed);
    while !shared.ends.load(Ordering::Relaxed) {
        let config = Config::new([&shared.url]).expect("a good address").max_ttl(TTL);
        let config = config.node_timeout(millis(1_000)).connect_timeout(millis(3_000));
        let client = Client::connect(config.replicas(shared.replicas)).expect("good settings");
        let options = LockOptions::new(TTL).wait(10 * TTL).auto_extend(900 * SECOND);
        let Ok(guard) = client.lock("a", options) else { continue };
        let start = Instant::now();
        let (mut last, until) = (start, start + TTL * dice.below(7) as u32);
        while guard.check().is_ok() && last < until && !shared.ends.load(Ordering::Relaxed) {
            let before = Instant::now();
            if guard.check().is_err() {
                break;
            }
            last = before;
            client.drive(millis(5)).expect("it can be driven");
        }
        shared.beliefs.lock().expect("no thread panics").push((start, last));
        let _ = guard.release();
    }
}

/// How often two clients believed in the lock at one time.
fn overlaps(beliefs: &mut [Belief]) -> usize {
    beliefs.sort_unstable();
    let (mut count, mut end) = (0, None);
    for &(from, until) in beliefs.iter() {
        count += usize::from(end.is_some_and(|end| from < end));
        end = end.max(Some(until));
    }
    count
}

struct Failovers {
    fleet: Fleet,
    sentinels: Sentinels,
    master: usize,
}

impl Failovers {
    fn start() -> Failovers {
        let mut arguments = vec!["--repl-diskless-sync-delay", "0", "--appendonly", "yes"];
        for user in OTHERS {
            arguments.extend(["--user", user, "on", ">secret", "~*", "&*", "+@all"]);
        }
        arguments.extend(["--masteruser", OTHERS[0], "--masterauth", PASSWORD]);
        let fleet = Fleet::with(SERVERS, &arguments);
        for replica in 1..SERVERS {
            let port = fleet[0].port().to_string();
            assert!(fleet[replica].command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
        }
        let user = |line: &str, text: &str| format!("sentinel {line} orders {text}");
        let sentinels = Sentinels::with(3, fleet[0].port(), None, |_, _| {
            vec![user("auth-user", OTHERS[1]), user("auth-pass", PASSWORD)]
        });
        let mut failovers = Failovers { fleet, sentinels, master: 0 };
        (0..SERVERS).for_each(|server| failovers.limit_the_default_user(server));
        failovers.wait_for_replicas();
        failovers.sentinels.wait_until_they_know(SERVERS - 1);
        failovers.sentinels.watch_closely();
        failovers
    }

    /// Waits until one server is the master of both others. On a busy machine the Sentinels may
    /// have failed over once more.
    fn wait_for_replicas(&mut self) {
        let mut servers = (0..SERVERS).cycle();
        eventually(120 * SECOND, "one server is the master of the others", || {
            self.master = servers.next().expect("there are servers");
            let info = self.fleet[self.master].try_command(&["INFO", "replication"]);
            let Ok(Value::Bulk(info)) = info else { return false };
            String::from_utf8_lossy(&info).matches("state=online").count() == SERVERS - 1
        });
    }

    /// If a Sentinel's user is switched off, the Sentinel goes on as the default user. So this
    /// takes the commands of a Sentinel from the default user.
    fn limit_the_default_user(&self, server: usize) {
        let rule = ["ACL", "SETUSER", "default", "-ping", "-replicaof", "-slaveof"];
        assert!(self.fleet[server].command(&rule).is_ok());
    }

    fn set_users(&self, server: usize, state: &str) {
        for user in OTHERS {
            assert!(self.fleet[server].command(&["ACL", "SETUSER", user, state]).is_ok());
            self.fleet[server].command(&["CLIENT", "KILL", "USER", user]);
        }
    }

    /// Lets something happen to the master, waits until another one has taken its place and a new
    /// lock could have been granted there twice over, and brings the old one back as a replica.
    fn fail_over(&mut self, fault: Fault) {
        let old = self.master;
        match fault {
            Fault::CutOff => self.set_users(old, "off"),
            Fault::Stopped => self.fleet[old].stop(),
            Fault::Killed => self.fleet[old].kill(),
            Fault::StoppedAndCutOff => {
                self.fleet[old].stop();
                std::thread::sleep(millis(300));
                self.fleet[old].cont();
                self.set_users(old, "off");
            }
        }
        let mut others = (0..SERVERS).filter(|&it| it != old).cycle();
        eventually(120 * SECOND, "another server is the master", || {
            self.master = others.next().expect("there are others");
            let role = self.fleet[self.master].try_command(&["ROLE"]);
            let master = Value::Bulk(b"master".into());
            matches!(role, Ok(Value::Array(items)) if items.first() == Some(&master))
        });
        self.sentinels.wait_until_they_name(&self.fleet[self.master]);
        if matches!(fault, Fault::Stopped) {
            std::thread::sleep(TTL / 2);
            self.fleet[old].cont();
        }
        std::thread::sleep(3 * TTL);
        match fault {
            Fault::CutOff | Fault::StoppedAndCutOff => self.set_users(old, "on"),
            Fault::Stopped => {}
            Fault::Killed => {
                self.fleet[old].restart();
                self.limit_the_default_user(old);
            }
        }
        self.wait_for_replicas();
    }
}

/// Fails over until the time is over, or until two clients believed in the lock at one time.
/// Returns how often they did, and how often any client had the lock.
fn play(replicas: u32, length: Duration) -> (usize, usize) {
    let mut servers = Failovers::start();
    let shared = Arc::new(Shared {
        url: servers.sentinels.url(),
        replicas,
        ends: AtomicBool::new(false),
        beliefs: Mutex::new(Vec::new()),
    });
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || take_turns(&shared, seed))
        })
        .collect();
    let (begin, mut longest, mut count) = (Instant::now(), Duration::ZERO, 0);
    for fault in FAULTS.into_iter().cycle() {
        let known = || shared.beliefs.lock().expect("no thread panics").len();
        let before = known();
        let fault_at = Instant::now();
        servers.fail_over(fault);
        let back_at = Instant::now();
        eventually(60 * SECOND, "the lock is had again", || known() > before + 1);
        longest = longest.max(back_at.elapsed());
        count += 1;
        println!("{fault:?}: {:?}, and {:?} more", back_at - fault_at, back_at.elapsed());
        let had_two = overlaps(&mut shared.beliefs.lock().expect("no thread panics")) > 0;
        if had_two || begin.elapsed() > length {
            break;
        }
    }
    shared.ends.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    let mut beliefs = shared.beliefs.lock().expect("no thread panics");
    let overlaps = overlaps(&mut beliefs);
    let had = beliefs.len();
    println!(
        "{count} failovers, {replicas} replicas confirm: had {had} times, {overlaps} times by two; \
         at most {longest:?} from the last replica to the next end of a hold"
    );
    (overlaps, had)
}

fn length(default: u64) -> Duration {
    Duration::from_secs(number("FAILOVER_SECS").unwrap_or(default))
}

#[test]
#[ignore = "needs minutes: cargo test --all-features --test servers failovers -- --ignored"]
fn locks_that_replicas_confirm_have_one_holder_over_failovers() {
    let (overlaps, had) = play(2, length(45));
    assert_eq!(overlaps, 0);
    assert!(had > 4);
}

/// The hazard, so that it is known that the other test would see it.
#[test]
#[ignore = "needs minutes: cargo test --all-features --test servers failovers -- --ignored"]
fn locks_that_no_replica_confirms_have_two_holders_after_some_failover() {
    // In some failovers nobody holds the lock for long enough to be seen beside another holder.
    let (overlaps, _) = play(0, length(200));
    assert!(overlaps > 0);
}
