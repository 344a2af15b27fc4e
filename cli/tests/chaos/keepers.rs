//! The workers whose locks or requests show what a change of the list of masters costs: holders
//! that renew one lock for as long as they live, or for seconds, and clients that ask for a lock
//! that no other worker wants.
//!
//! The hazard is a lock that is lost and at once acquired again, which no checker sees. So a holder
//! that lost its lock counts that on its sheet.

use std::time::Duration;

use redlatch::{Client, LockOptions, SharedClient};

use super::sheet::Sheet;
use super::support::{Dice, SECOND, millis};
use super::worker::{Errand, Manner, Plan, hold, refused};
use super::{MAX_TTL, key_name};

/// How long a keeper holds its lock: longer than a test lasts. It is bounded because the CMD of a
/// wrapper outlives a test that is killed.
pub const FOR_EVER: Duration = Duration::from_secs(900);

/// How long a request waits: much longer than a change should keep a free lock from it.
const WAIT: Duration = Duration::from_secs(60);

/// The key and the plan of a worker that renews its lock; `None` for any other worker.
pub fn plan(errand: &Errand, dice: &mut Dice) -> Option<(u64, Plan)> {
    let length = match errand.kind.as_str() {
        "renewer" => millis(dice.between(1000, 5000)),
        "keeper" | "shared-keeper" | "exec-keeper" => FOR_EVER,
        _ => return None,
    };
    Some((errand.keys[0], Plan { ttl: MAX_TTL, manner: Manner::AutoExtending, length }))
}

/// Holds the lock with a blocking client, which renews it.
pub fn keep(errand: &Errand) -> ! {
    let sheet = Sheet::create(&errand.sheet);
    let mut dice = Dice::new(errand.seed);
    let client = Client::connect(errand.config()).expect("the configuration is good");
    loop {
        let (key, plan) = plan(errand, &mut dice).expect("a worker that renews");
        match client.lock(key_name(key), LockOptions::new(plan.ttl).wait(WAIT)) {
            Ok(guard) => report_loss(key, hold(&sheet, key, plan, guard)),
            Err(error) => refused(&sheet, &error),
        }
        client.drive(millis(dice.below(60))).expect("the poller works");
    }
}

/// Holds the lock with a shared client, which renews it.
pub fn keep_shared(errand: &Errand) -> ! {
    let sheet = Sheet::create(&errand.sheet);
    let mut dice = Dice::new(errand.seed);
    let client =
        SharedClient::connect_blocking(errand.config()).expect("the configuration is good");
    loop {
        let (key, plan) = plan(errand, &mut dice).expect("a worker that renews");
        match client.lock(key_name(key), LockOptions::new(plan.ttl).wait(WAIT)).wait() {
            Ok(guard) => report_loss(key, hold(&sheet, key, plan, guard)),
            Err(error) => refused(&sheet, &error),
        }
    }
}

/// Writes to the output of the test why a lock was lost.
fn report_loss(key: u64, why: Option<String>) {
    if let Some(why) = why {
        eprintln!("{}: lost: {why}", key_name(key));
    }
}

/// Acquires and releases a lock that no other worker wants, again and again: an asker makes one
/// attempt at a time, a waiter waits.
pub fn ask(errand: &Errand) -> ! {
    let sheet = Sheet::create(&errand.sheet);
    let client = Client::connect(errand.config()).expect("the configuration is good");
    let (key, is_asker) = (errand.keys[0], errand.kind == "asker");
    let plan = Plan { ttl: SECOND, manner: Manner::Plain, length: Duration::ZERO };
    loop {
        let options = match is_asker {
            true => LockOptions::once(plan.ttl),
            false => LockOptions::new(plan.ttl).wait(WAIT),
        };
        match client.lock(key_name(key), options) {
            Ok(guard) => {
                hold(&sheet, key, plan, guard);
            }
            Err(error) => refused(&sheet, &error),
        }
        client.drive(millis(10)).expect("the poller works");
    }
}
