//! The masters, candidates and observers of one run, and the time that passes for them.

use std::collections::VecDeque;

use redlatch::Leadership;
use redlatch::testing::master::Restart;

use super::caller::{Caller, Manner};
use super::checker::Checker;
use super::*;

/// The time between two looks at what the masters hold: no message arrives sooner.
const STEP: Duration = millis(1);

/// How many of the last events a failure shows.
const SHOWN: usize = 60;

/// One that only observes.
#[derive(Debug)]
pub struct Observer {
    pub client: usize,
    campaign: CampaignId,
    pub seen: Leadership,
    pub seen_at: Instant,
}

/// When the process of a client was stopped last, and since when it runs again.
#[derive(Debug, Clone, Copy)]
struct Stop {
    at: Instant,
    until: Instant,
}

pub struct World {
    pub net: Net<Client>,
    pub callers: Vec<Caller>,
    pub observers: Vec<Observer>,
    pub checker: Checker,
    stops: Vec<Option<Stop>>,
    /// Until when each client is cut off from some masters.
    cut_off_until: Vec<Option<Instant>>,
    events: VecDeque<String>,
    seed: u64,
}

impl World {
    pub fn new(masters: usize, seed: u64) -> World {
        let net = net(masters, seed);
        let checker = Checker::new(masters, net.now());
        World {
            net,
            callers: Vec::new(),
            observers: Vec::new(),
            checker,
            stops: Vec::new(),
            cut_off_until: Vec::new(),
            events: VecDeque::new(),
            seed,
        }
    }

    fn add_client(&mut self) -> usize {
        let settings = settings(self.net.nodes());
        let client = add_client(&mut self.net, settings);
        self.stops.push(None);
        self.cut_off_until.push(None);
        client
    }

    /// Adds a candidate, which campaigns at once.
    pub fn add_caller(&mut self, manner: Manner) -> usize {
        let client = self.add_client();
        let mut caller = Caller::new(client, format!("web-{client}"), manner, self.net.now());
        caller.begin(&mut self.net, &mut self.checker);
        self.note(format!("{} campaigns: {manner:?}", caller.name));
        self.callers.push(caller);
        self.callers.len() - 1
    }

    pub fn add_observer(&mut self) {
        let (client, now) = (self.add_client(), self.net.now());
        let core = &mut self.net.client_mut(client).core;
        let campaign = core.observe(KEY, 0, now).expect("the name is good");
        let seen = Leadership::Unknown;
        self.observers.push(Observer { client, campaign, seen, seen_at: now });
    }

    /// Records an event, for the report of a failure.
    pub fn note(&mut self, event: String) {
        if self.events.len() == SHOWN {
            self.events.pop_front();
        }
        let at = self.net.now().as_nanos() / 1_000_000;
        self.events.push_back(format!("{at} ms: {event}"));
    }

    /// Ends the test.
    #[track_caller]
    pub fn fail(&self, words: &str) -> ! {
        for event in &self.events {
            println!("{event}");
        }
        let now = self.net.now();
        for master in 0..self.net.nodes() {
            let value = self.net.master(master).get(now, 0, KEY).unwrap_or_default();
            println!("master {master} holds {:?}", String::from_utf8_lossy(value));
        }
        panic!("seed {}: at {} ms: {words}", self.seed, now.as_nanos() / 1_000_000);
    }

    /// Lets this much time pass.
    #[track_caller]
    pub fn pass(&mut self, by: Duration) {
        let end = self.net.now().saturating_add(by);
        while self.net.now() < end {
            let until = self.net.now().saturating_add(STEP).min(end);
            while let Some(client) = self.net.run(until) {
                self.turn(client);
                self.check();
            }
            self.go_on();
            self.check();
        }
    }

    /// Lets time pass until this holds, but at most this long. Returns how long it took.
    #[track_caller]
    pub fn pass_until(
        &mut self,
        most: Duration,
        what: &str,
        is_it: impl Fn(&World) -> bool,
    ) -> Duration {
        let begun = self.net.now();
        while !is_it(self) {
            let passed = self.net.now().saturating_since(begun);
            if passed >= most {
                self.fail(&format!("after {passed:?} not yet: {what}"));
            }
            self.pass(STEP);
        }
        self.net.now().saturating_since(begun)
    }

    #[track_caller]
    fn turn(&mut self, client: usize) {
        if self.net.is_stopped(client) {
            return;
        }
        if let Some(which) = self.callers.iter().position(|it| it.client == client) {
            return self.of_caller(which, Caller::turn);
        }
        let changes = turn(&mut self.net, client);
        let which = self.observers.iter().position(|it| it.client == client);
        let Some(which) = which else { return };
        for (campaign, standing) in changes {
            let Standing::Observed(seen) = standing else {
                self.fail(&format!("an observer stands as {standing:?}"))
            };
            self.note(format!("an observer sees {seen:?}"));
            let begun = self.look_began(client);
            if let Err(words) = self.checker.on_report(&seen, begun) {
                self.fail(&words);
            }
            let observer = &mut self.observers[which];
            assert_eq!(campaign, observer.campaign);
            (observer.seen, observer.seen_at) = (seen, self.net.now());
        }
    }

    /// The earliest moment at which a look can have begun that this client has just ended.
    fn look_began(&self, client: usize) -> Instant {
        let begun = self.net.now().saturating_sub(NODE_TIMEOUT + 2 * STEP);
        match self.stops[client] {
            Some(stop) if stop.until >= begun => stop.at.saturating_sub(NODE_TIMEOUT + 2 * STEP),
            _ => begun,
        }
    }

    #[track_caller]
    fn of_caller(
        &mut self,
        which: usize,
        act: fn(&mut Caller, &mut Net<Client>, &mut Checker) -> Result<(), String>,
    ) {
        let caller = &mut self.callers[which];
        let before = (caller.terms, caller.term.is_some(), caller.requests);
        let done = act(caller, &mut self.net, &mut self.checker);
        let after = (caller.terms, caller.term.is_some(), caller.requests);
        let name = caller.name.clone();
        if let Err(words) = done {
            self.fail(&format!("{name}: {words}"));
        }
        if before != after {
            let term = self.callers[which].term.as_ref().map(|term| term.number);
            self.note(format!("{name} has term {term:?}, {} requests", after.2));
        }
    }

    /// What is due besides the timers of the clients.
    #[track_caller]
    fn go_on(&mut self) {
        let now = self.net.now();
        for client in 0..self.net.clients() {
            if self.cut_off_until[client].take_if(|until| *until <= now).is_some() {
                self.net.client_mut(client).cut_off.fill(false);
            }
            if self.net.is_stopped(client) && self.stops[client].is_some_and(|it| it.until <= now) {
                self.note(format!("client {client} goes on"));
                self.net.resume(client);
            }
        }
        for which in 0..self.callers.len() {
            if !self.net.is_stopped(self.callers[which].client) {
                self.of_caller(which, Caller::go_on);
            }
        }
    }

    /// At most one candidate believes that it leads.
    #[track_caller]
    fn check(&mut self) {
        self.checker.look_at_masters(&self.net);
        let mut leaders = self.callers.iter().filter(|it| it.believes(&self.net));
        if let (Some(one), Some(other)) = (leaders.next(), leaders.next()) {
            self.fail(&format!("{} and {} lead", one.name, other.name));
        }
    }

    /// The candidate that believes that it leads.
    pub fn leader(&self) -> Option<usize> {
        self.callers.iter().position(|it| it.believes(&self.net))
    }

    /// A process does nothing for this long.
    pub fn stop(&mut self, client: usize, length: Duration) {
        if !self.net.is_stopped(client) {
            let at = self.net.now();
            self.net.stop(client);
            self.stops[client] = Some(Stop { at, until: at.saturating_add(length) });
            self.note(format!("client {client} stops for {length:?}"));
        }
    }

    /// A process ends without a word.
    pub fn kill(&mut self, which: usize) {
        let client = self.callers[which].client;
        self.note(format!("client {client} ends"));
        self.net.stop(client);
        self.stops[client] = None;
        for master in 0..self.net.nodes() {
            // Its system closes the connections.
            self.net.cut(client, master);
        }
    }

    /// What a client writes does not reach these masters for this long.
    pub fn cut_off(&mut self, client: usize, masters: &[bool], length: Duration) {
        self.note(format!("client {client} is cut off from {masters:?} for {length:?}"));
        self.net.client_mut(client).cut_off.copy_from_slice(masters);
        self.cut_off_until[client] = Some(self.net.now().saturating_add(length));
    }

    /// Ends all faults. Processes that have ended stay so.
    pub fn end_faults(&mut self, down: &mut [bool]) {
        self.note("the faults end".to_owned());
        let now = self.net.now();
        for (master, down) in down.iter_mut().enumerate() {
            if std::mem::take(down) {
                self.net.start(master, Restart::WithData);
            }
            self.net.thaw(master);
            self.net.heal(master);
        }
        self.cut_off_until.iter_mut().flatten().for_each(|until| *until = now);
        self.stops.iter_mut().flatten().for_each(|stop| stop.until = stop.until.min(now));
    }

    /// Whether the process of a client has ended.
    pub fn is_dead(&self, which: usize) -> bool {
        let client = self.callers[which].client;
        self.net.is_stopped(client) && self.stops[client].is_none()
    }
}
