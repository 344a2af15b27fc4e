//! Leader election: two candidates campaign for one name, the leader resigns, and the other one
//! leads.
//!
//! `cargo run --features testing --example leader [redis://10.0.0.1 redis://10.0.0.2 ...]`

#![forbid(unsafe_code)]

use std::error::Error;
use std::thread;
use std::time::Duration;

use redlatch::shared::{Campaign, Election, Standing, Term};
use redlatch::testing::tcp::Masters;
use redlatch::{Candidate, Config, SharedClient};

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    // Without addresses there are three masters inside this process.
    let masters = Masters::start(if urls.is_empty() { 3 } else { 0 })?;
    // An election needs the restart guard, and these masters have run for a day, as they say.
    masters.iter().for_each(|master| master.set_uptime(24 * 3600));
    let config = Config::new(if urls.is_empty() { masters.urls() } else { urls })?;

    let locks = SharedClient::connect_blocking(config)?;
    let election = Election::of(&locks, "scheduler").ttl(Duration::from_secs(10));
    let candidates: Vec<_> = ["web-1", "web-2"]
        .into_iter()
        .map(|name| {
            let candidate = Candidate::named(name).address(format!("{name}:8080"));
            let campaign = election.campaign(candidate)?;
            Ok(thread::spawn(move || take_part(name, campaign)))
        })
        .collect::<Result<_, redlatch::Error>>()?;
    for candidate in candidates {
        candidate.join().expect("it does not panic")?;
    }
    println!("{:?} leads at the end", election.observe().leader().wait()?.leader());
    locks.close(Duration::from_secs(5)).wait();
    Ok(())
}

/// Leads once, and then withdraws.
fn take_part(name: &str, mut me: Campaign) -> Result<(), redlatch::Error> {
    loop {
        match me.changed().wait()? {
            Standing::Leading(term) => {
                lead(name, &term)?;
                // The other one is next in line. Without a pause this one would stand behind it.
                me.resign(Duration::from_secs(30)).wait()?;
                return Ok(());
            }
            Standing::Following(Some(leader)) => println!("{name} follows {leader}"),
            Standing::Following(None) => println!("{name}: nobody leads"),
        }
    }
}

/// What only the leader does.
fn lead(name: &str, term: &Term) -> Result<(), redlatch::Error> {
    println!("{name} leads in term {}", term.number());
    for step in 1..=3 {
        term.check()?; // before each side effect
        println!("{name}: step {step}");
    }
    Ok(())
}
