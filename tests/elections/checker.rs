//! What must hold in each run, by a record of what the masters held and of what was reported to
//! callers. No arithmetic of the product is used.
//!
//! The hazard is a record that is too coarse: it is made between two steps of the simulated time,
//! so each time span that it names is longer by a step at both ends than it was.

use std::collections::{BTreeMap, BTreeSet};

use redlatch::{Leader, Leadership};

use super::*;

/// How long the record goes back.
const KEPT: Duration = secs(60);

/// A time in which a master held one value at the election's key; an empty value: no key.
#[derive(Debug)]
struct Span {
    value: Vec<u8>,
    from: Instant,
    to: Instant,
}

/// What a candidate is called, and how others reach it.
#[derive(Debug, Default)]
struct Known {
    name: String,
    addresses: Vec<String>,
}

/// The record of one run.
#[derive(Debug)]
pub struct Checker {
    /// The spans of each master, the latest one last.
    held: Vec<Vec<Span>>,
    seen_at: Instant,
    /// The number of the latest term.
    latest: u64,
    /// The number of each term, by the token of its lock.
    numbers: BTreeMap<String, u64>,
    /// What was reported of terms before their leaders took them.
    reported: BTreeMap<String, u64>,
    /// The tokens of leaders that somebody asked to resign.
    asked: BTreeSet<String>,
    candidates: Vec<Known>,
    /// Reports of a leader or of nobody.
    pub reports: usize,
}

/// More than half of them.
fn is_majority(some: usize, of: usize) -> bool {
    2 * some > of
}

impl Checker {
    pub fn new(masters: usize, now: Instant) -> Checker {
        let nothing = || vec![Span { value: Vec::new(), from: now, to: now }];
        Checker {
            held: (0..masters).map(|_| nothing()).collect(),
            seen_at: now,
            latest: 0,
            numbers: BTreeMap::new(),
            reported: BTreeMap::new(),
            asked: BTreeSet::new(),
            candidates: Vec::new(),
            reports: 0,
        }
    }

    /// Records what the masters hold now.
    pub fn look_at_masters(&mut self, net: &Net<Client>) {
        let (now, before) = (net.now(), self.seen_at);
        self.seen_at = now;
        for (master, spans) in self.held.iter_mut().enumerate() {
            let value = net.master(master).get(now, 0, KEY).unwrap_or_default();
            let last = spans.last_mut().expect("there is always one");
            last.to = now;
            if last.value != value {
                // Between two values the master may have held none.
                if !last.value.is_empty() && !value.is_empty() {
                    spans.push(Span { value: Vec::new(), from: before, to: now });
                }
                spans.push(Span { value: value.to_vec(), from: before, to: now });
                let oldest = now.saturating_sub(KEPT);
                spans.retain(|span| span.to >= oldest);
            }
        }
    }

    /// A candidate of this name campaigns, or has a new address.
    pub fn note_candidate(&mut self, name: &str, address: &str) {
        let known = match self.candidates.iter_mut().find(|it| it.name == name) {
            Some(known) => known,
            None => {
                self.candidates.push(Known { name: name.to_owned(), addresses: Vec::new() });
                self.candidates.last_mut().expect("it was just added")
            }
        };
        known.addresses.push(address.to_owned());
    }

    pub fn note_request(&mut self, leader: &Leader) {
        self.asked.insert(leader.token().to_string());
    }

    pub fn was_asked_to_resign(&self, token: &str) -> bool {
        self.asked.contains(token)
    }

    /// A candidate begins to lead.
    pub fn on_term(&mut self, token: String, number: u64) -> Result<(), String> {
        if number <= self.latest {
            return Err(format!("term {number} follows term {}", self.latest));
        }
        if self.reported.get(&token).is_some_and(|&it| it != number) {
            return Err(format!("term {number} was reported as {}", self.reported[&token]));
        }
        self.latest = number;
        self.numbers.insert(token, number);
        Ok(())
    }

    /// A campaign reports who leads, by a look that began no sooner than `begun`.
    pub fn on_report(&mut self, seen: &Leadership, begun: Instant) -> Result<(), String> {
        match seen {
            Leadership::Leader(leader) => self.on_leader(leader, begun),
            Leadership::Nobody => self.on_nobody(begun),
            _ => Ok(()),
        }
    }

    fn on_leader(&mut self, leader: &Leader, begun: Instant) -> Result<(), String> {
        self.reports += 1;
        let token = leader.token().to_string();
        let known = self.candidates.iter().find(|it| it.name == leader.name());
        let Some(known) = known else { return Err(format!("{leader:?} is no candidate")) };
        let is_known = |address| known.addresses.iter().any(|it| it == address);
        if !leader.address().is_some_and(is_known) {
            return Err(format!("{leader:?} is not reached there, but at {:?}", known.addresses));
        }
        if let Some(number) = leader.term() {
            match self.numbers.get(&token) {
                Some(&own) if own != number => {
                    return Err(format!("{leader:?} was reported, and leads in term {own}"));
                }
                Some(_) => {}
                None => drop(self.reported.insert(token.clone(), number)),
            }
        }
        let ended = leader.seen_at();
        let names_it =
            |span: &&Span| span.value == token.as_bytes() && span.to >= begun && span.from <= ended;
        let spans: Vec<&Span> = self.held.iter().flatten().filter(names_it).collect();
        let held_at = |at: Instant| {
            let on = self.held.iter().filter(|spans| {
                spans.iter().any(|it| names_it(&it) && it.from <= at && at <= it.to)
            });
            on.count()
        };
        let masters = self.held.len();
        let moments = spans.iter().map(|span| span.from.max(begun));
        let most = moments.map(held_at).max().unwrap_or(0);
        if is_majority(most, masters) {
            return Ok(());
        }
        Err(format!("{leader:?}, {token}, was reported, and at most {most} of {masters} held it"))
    }

    fn on_nobody(&mut self, begun: Instant) -> Result<(), String> {
        self.reports += 1;
        let lacks_it = |span: &Span| span.value.is_empty() && span.to >= begun;
        let without = self.held.iter().filter(|spans| spans.iter().any(lacks_it)).count();
        if is_majority(without, self.held.len()) {
            return Ok(());
        }
        Err(format!("nobody was reported, and only {without} lacked a key"))
    }
}
