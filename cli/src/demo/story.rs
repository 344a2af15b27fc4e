//! The story, act by act. An act does something to the lock or to the nodes, measures it, and
//! explains it.
//!
//! What an act prints about a node was read from that node just before. Its prose is fixed text
//! that has to be true in every run: if it were not true, the act fails and the demo ends.

use std::time::Duration;

use redlatch::{
    Client, Config, Error, Guard, LockToken, NodeState, ReleaseOutcome, RestartGuard, Ttl, clock,
    clock::Instant, majority,
};

use super::bob::{Bob, Report};
use super::chronicle::{Chronicle, Done};
use super::masters::{COUNT, Masters, Seen};
use super::screen::{Look, Screen, time};
use super::{KEY, POLL_INTERVAL, Stop, TTL};

/// A key that no client holds when it is asked for.
const FREE_KEY: &str = "invoice:43";

/// How long a client is left waiting, so that the wait can be seen.
const A_WHILE: Duration = Duration::from_millis(800);

/// How long the demo pauses between two acts.
const A_MOMENT: Duration = Duration::from_millis(400);

/// How long the demo waits for a state of the nodes before it fails.
const PATIENCE: Duration = Duration::from_secs(5);

// Nodes by their place in the list: the first that freezes, the one that is killed, and the one
// whose freeze ends the majority.
const FIRST_FROZEN: usize = 3;
const KILLED: usize = 4;
const FROZEN_LATER: usize = 2;

/// What a node holds at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Frozen,
    Dead,
    Nothing,
    TokenOf(&'static str),
    /// A token that belongs to no lock: an attempt wrote it that failed, or has not ended.
    Stray,
}

impl Holds {
    const fn shown(self) -> (&'static str, Look) {
        match self {
            Holds::Frozen => ("frozen", Look::Odd),
            Holds::Dead => ("dead", Look::Bad),
            Holds::Nothing => ("free", Look::Faint),
            Holds::TokenOf(owner) => (owner, Look::Good),
            Holds::Stray => ("stray", Look::Bad),
        }
    }
}

/// What all acts use.
struct Story<'a> {
    screen: &'a mut Screen,
    masters: &'a mut dyn Masters,
    config: Config,
    chronicle: &'a mut Chronicle,
}

/// Plays all acts on these masters, whose start took `started`, and records the facts.
pub fn play(
    screen: &mut Screen,
    masters: &mut dyn Masters,
    started: Duration,
    chronicle: &mut Chronicle,
) -> Result<(), Stop> {
    // These masters have just been started and never granted a lock, so they cannot have forgotten
    // one: the restart guard would only delay the demo.
    let config = Config::new(masters.urls())
        .map_err(|error| failed("alice", &error.into()))?
        .restart_guard(RestartGuard::Off);
    chronicle.node_timeout = config.get_settings().node_timeout;
    let mut story = Story { screen, masters, config, chronicle };
    let alice = &story.introduce(started)?;
    let mut lock = story.take(alice)?;
    let bob = story.want(alice)?;
    story.lose_a_minority(alice, &mut lock)?;
    story.release_nowait(alice, lock, &bob)?;
    story.lose_the_majority(alice, &bob)?;
    story.heal(alice, &bob)?;
    story.end(alice, &bob)
}

impl Story<'_> {
    fn introduce(&mut self, started: Duration) -> Result<Client, Stop> {
        self.screen.heading("One lock on five independent Redis masters: Redlock")?;
        self.prose(&format!("{} Ready after {}.", self.masters.describe(), time(started)))?;
        let start = clock::now();
        let alice = Client::connect(self.config.clone()).map_err(|e| failed("alice", &e))?;
        until_ready(&alice)?;
        let (took, quorum) = (time(since(start)), majority(COUNT));
        self.prose(&format!(
            "They know nothing of each other. To take a lock, a client sets a key to a random \
             token of its own on all of them, and has the lock when a majority said yes: the \
             quorum, {quorum} of {COUNT}. alice and bob are two clients. alice connected to all \
             five in {took}. A line that begins with a key shows whose token each node holds, \
             read from the node itself."
        ))?;
        Ok(alice)
    }

    fn take<'c>(&mut self, alice: &'c Client) -> Result<Guard<'c>, Stop> {
        self.step("Take it")?;
        let start = clock::now();
        let lock = alice.lock(KEY, TTL).map_err(|error| failed("alice", &error))?;
        let (took, left) = (since(start), lock.remaining());
        self.has(clock::now(), lock.token(), "alice");
        let granted = format!("granted in {}, hers for {}", time(took), time(left));
        self.quoted("alice", &call("lock", KEY), &granted)?;
        let hers = |&holds: &Holds| holds == Holds::TokenOf("alice");
        self.drive_until(alice, |story| Ok(story.holds(KEY)?.iter().all(hers)))?;
        self.show(KEY)?;
        let ttl = Ttl::new(TTL, self.config.get_settings().max_ttl);
        let drift = time(TTL - ttl.map_err(|error| failed("alice", &error.into()))?.usable());
        self.prose(&format!(
            "All five were asked at once to set the key if it is not there. The third yes decided, \
             and the others came after it. If alice dies, the key expires after {TTL:?}. She \
             counts those {TTL:?} from before her first byte left, and takes {drift} off for \
             clocks that drift. So her lock ends for her before it ends on the nodes."
        ))?;
        drive(alice, A_MOMENT)?;
        Ok(lock)
    }

    fn want(&mut self, alice: &Client) -> Result<Bob, Stop> {
        self.step("Another client wants it")?;
        let bob = Bob::start(self.config.clone())?;
        let Report::Refused { took, error } = bob.next_report()? else {
            return Err(Stop::Failed("bob got a lock that alice has".into()));
        };
        let refused = format!("refused in {}", time(took));
        self.quoted("bob", &call("try_lock", KEY), &refused)?;
        self.screen.quote(&error.to_string())?;
        self.prose(
            "Three no decide as three yes do, and bob does not wait for the other two. Any two \
             majorities have a node in common, so alice and bob cannot both have one.",
        )?;
        self.event("bob", &call("lock", KEY), "waits, and tries again by himself")?;
        drive(alice, A_WHILE)?;
        bob.check_still_busy()?;
        Ok(bob)
    }

    fn lose_a_minority(&mut self, alice: &Client, lock: &mut Guard<'_>) -> Result<(), Stop> {
        self.step("One node freezes, one dies")?;
        self.freeze(FIRST_FROZEN)?;
        let killed = self.masters.kill(KILLED)?;
        self.done(KILLED, Done::Killed);
        self.node(KILLED, "killed", &killed)?;
        let left = time(lock.remaining());
        self.event("alice", "remaining()", &format!("{left}: a look at her own clock"))?;
        let start = clock::now();
        lock.extend(TTL).map_err(|error| failed("alice", &error))?;
        let (took, left) = (since(start), lock.remaining());
        let done = format!("done in {}, hers for {}", time(took), time(left));
        self.quoted("alice", &extend(), &done)?;
        self.show(KEY)?;
        let timeout = self.config.get_settings().node_timeout;
        self.prose(&format!(
            "Three answered, and three decide. The frozen node took her request and does not \
             answer. A client that asks one node after the other would now wait for a timeout \
             ({timeout:?} here). A minority that is frozen or dead costs no safety, and no client \
             waits for it."
        ))?;
        drive(alice, A_MOMENT)
    }

    fn release_nowait(&mut self, alice: &Client, lock: Guard<'_>, bob: &Bob) -> Result<(), Stop> {
        self.step("Release it")?;
        let start = clock::now();
        // The lock stops being alice's when she requests the release: bob may get it before her
        // call returns.
        self.chronicle.holders.push((start, None));
        let how = lock.release().map_err(|error| failed("alice", &error))?;
        let took = time(since(start));
        self.event("alice", "release()", &format!("{} in {took}", released(how)))?;
        let Report::Has { at, waited, token, left } = bob.next_report()? else {
            return Err(Stop::Failed("bob did not get the lock".into()));
        };
        if at < start {
            return Err(Stop::Failed("bob had the lock while it was alice's".into()));
        }
        self.has(at, token, "bob");
        let wait = format!("waits {}", time(waited));
        self.chronicle.ask("bob", at.saturating_sub(waited), at, wait);
        let (later, waited) = (time(at.saturating_since(start)), time(waited));
        let granted = format!("granted {later} later, his for {}", time(left));
        self.quoted("bob", &call("lock", KEY), &granted)?;
        self.show(KEY)?;
        let (frozen, killed) = (FIRST_FROZEN + 1, KILLED + 1);
        self.prose(&format!(
            "He waited {waited} for it. alice's release went to every node that may hold her key, \
             not just to a quorum: a key that stays on one node is in the way of other clients \
             until its ttl is over. Node {frozen} froze with her key: it executes the release when \
             it goes on. The release for node {killed} is pending, and is the first command that \
             it gets when it comes back."
        ))?;
        drive(alice, A_MOMENT)
    }

    fn lose_the_majority(&mut self, alice: &Client, bob: &Bob) -> Result<(), Stop> {
        self.step("A third freezes: no majority")?;
        self.freeze(FROZEN_LATER)?;
        let error = self.try_in_vain(alice)?;
        self.screen.quote(&error.to_string())?;
        until(alice, |nodes| count_ready(nodes) < majority(COUNT))?;
        self.try_in_vain(alice)?;
        let left = |&holds: &Holds| holds == Holds::Stray;
        self.drive_until(alice, |story| Ok(!story.holds(FREE_KEY)?.iter().any(left)))?;
        self.show(FREE_KEY)?;
        let timeout = self.config.get_settings().node_timeout;
        self.prose(&format!(
            "No client has that key, and still alice does not get it: two of five is no quorum, \
             because the other three could grant it to another client. Her first attempt took the \
             node timeout ({timeout:?}), because node {} did not answer. Then she knew that, and \
             the second attempt failed without a request. What two nodes had granted was released \
             at once.",
            FROZEN_LATER + 1
        ))?;
        let start = clock::now();
        bob.extend();
        drive(alice, A_WHILE)?;
        bob.check_still_busy()?;
        let waiting = format!("no quorum yet, after {}", time(since(start)));
        self.quoted("bob", &extend(), &waiting)?;
        self.prose("He asks again until his deadline. Until then the lock is his as before.")
    }

    /// alice asks for a key that is free, and is refused.
    fn try_in_vain(&mut self, alice: &Client) -> Result<Error, Stop> {
        let start = clock::now();
        let error = match alice.try_lock(FREE_KEY, TTL) {
            Err(error @ Error::NoQuorum(_)) => error,
            Err(error) => return Err(failed("alice", &error)),
            Ok(_) => return Err(Stop::Failed("alice got a lock without a quorum".into())),
        };
        let refused = format!("refused in {}", time(since(start)));
        self.chronicle.ask("alice", start, clock::now(), format!("{FREE_KEY} {refused}"));
        self.quoted("alice", &call("try_lock", FREE_KEY), &refused)?;
        Ok(error)
    }

    fn heal(&mut self, alice: &Client, bob: &Bob) -> Result<(), Stop> {
        self.step("They come back")?;
        let back = clock::now();
        self.thaw(FROZEN_LATER)?;
        let Report::Extended { at, took, left } = bob.next_report()? else {
            return Err(Stop::Failed("bob did not extend his lock".into()));
        };
        let later = time(at.saturating_since(back));
        let done = format!("done {later} later, his for {}", time(left));
        self.quoted("bob", &extend(), &done)?;
        let hung = format!("extend hangs {}", time(took));
        self.chronicle.ask("bob", at.saturating_sub(took), at, hung);
        self.thaw(FIRST_FROZEN)?;
        let restarted = self.masters.restart(KILLED)?;
        self.done(KILLED, Done::Restarted);
        self.node(KILLED, "back, empty", &restarted)?;
        let start = clock::now();
        until_ready(alice)?;
        let ready = format!("all five ready after {}", time(since(start)));
        self.event("alice", "connects by herself", &ready)?;
        self.drive_until(alice, |story| story.find_no_stray())?;
        self.show(KEY)?;
        self.show(FREE_KEY)?;
        let (third, first, killed) = (FROZEN_LATER + 1, FIRST_FROZEN + 1, KILLED + 1);
        self.prose(&format!(
            "bob's extend took {} in all, and he had his lock all the time: the old deadline was \
             in force until a quorum agreed to a new one. When a frozen node goes on, it executes \
             everything that was sent to it meanwhile. So node {third} set \"{FREE_KEY}\" for \
             alice after all, and then executed the release that she had sent after it. Node \
             {first} did the same with her release of \"{KEY}\". Node {killed} has forgotten what \
             it granted. With the restart guard, the yes of a node that has just started counts \
             only when every lock that it may have forgotten is over. The guard is off here, \
             because all five are new.",
            time(took)
        ))?;
        drive(alice, A_MOMENT)
    }

    fn end(&mut self, alice: &Client, bob: &Bob) -> Result<(), Stop> {
        self.step("Nothing is left")?;
        let start = clock::now();
        let lock = alice.lock(FREE_KEY, TTL).map_err(|error| failed("alice", &error))?;
        let granted = format!("granted in {}", time(since(start)));
        self.event("alice", &call("lock", FREE_KEY), &granted)?;
        let start = clock::now();
        let how = lock.release().map_err(|error| failed("alice", &error))?;
        let done = format!("{} in {}", released(how), time(since(start)));
        self.event("alice", "release()", &done)?;
        self.chronicle.holders.push((clock::now(), None));
        bob.release();
        let Report::Released { took, how } = bob.next_report()? else {
            return Err(Stop::Failed("bob did not release his lock".into()));
        };
        self.quoted("bob", "release()", &format!("{} in {}", released(how), time(took)))?;
        self.drive_until(alice, |story| Ok(story.keys()?.iter().all(Vec::is_empty)))?;
        let keys = self.keys()?.into_iter().map(|names| {
            if names.is_empty() {
                ("none".to_string(), Look::Good)
            } else {
                (names.join(" "), Look::Bad)
            }
        });
        let keys: Vec<_> = keys.collect();
        self.screen.states("keys", &keys)?;
        drive(alice, A_MOMENT)
    }

    /// Begins a step of the story.
    fn step(&mut self, title: &'static str) -> Result<(), Stop> {
        let number = self.chronicle.step(clock::now(), title);
        self.screen.heading(&format!("{number}  {title}"))
    }

    fn freeze(&mut self, node: usize) -> Result<(), Stop> {
        let how = self.masters.freeze(node)?;
        self.done(node, Done::Frozen);
        self.node(node, "frozen", &how)
    }

    fn thaw(&mut self, node: usize) -> Result<(), Stop> {
        let how = self.masters.thaw(node)?;
        self.done(node, Done::Thawed);
        self.node(node, "goes on", &how)
    }

    /// Records what was done to a node just now.
    fn done(&mut self, node: usize, done: Done) {
        self.chronicle.done.push((clock::now(), node, done));
    }

    /// Records which client has the lock, and its token.
    fn has(&mut self, at: Instant, token: LockToken, who: &'static str) {
        self.chronicle.owners.push((token.to_string(), who));
        self.chronicle.holders.push((at, Some(who)));
    }

    /// Prints an actor's action and its outcome.
    fn event(&mut self, who: &str, what: &str, outcome: &str) -> Result<(), Stop> {
        self.screen.event(who, what, outcome)
    }

    /// Prints a client's call and its outcome, and records them for the picture.
    fn quoted(&mut self, who: &str, what: &str, outcome: &str) -> Result<(), Stop> {
        self.chronicle.call(who, what, outcome);
        self.event(who, what, outcome)
    }

    fn node(&mut self, node: usize, what: &str, how: &str) -> Result<(), Stop> {
        self.event(&format!("node {}", node + 1), what, how)
    }

    fn prose(&mut self, text: &str) -> Result<(), Stop> {
        self.screen.prose(text)
    }

    /// Prints whose token each node holds at `key`.
    fn show(&mut self, key: &str) -> Result<(), Stop> {
        let holds = self.holds(key)?;
        let words = holds.iter().map(|holds| holds.shown());
        let words: Vec<_> = words.map(|(word, look)| (word.to_string(), look)).collect();
        self.screen.states(key, &words)
    }

    fn holds(&mut self, key: &str) -> Result<Vec<Holds>, Stop> {
        let mut all = Vec::with_capacity(COUNT);
        for node in 0..COUNT {
            all.push(match self.masters.inspect(node)? {
                Seen::Frozen => Holds::Frozen,
                Seen::Dead => Holds::Dead,
                Seen::Keys(keys) => {
                    let held = keys.iter().find(|(name, _)| name == key);
                    held.map_or(Holds::Nothing, |(_, token)| self.owner_of(token))
                }
            });
        }
        Ok(all)
    }

    fn owner_of(&self, token: &str) -> Holds {
        self.chronicle.owner_of(token).map_or(Holds::Stray, Holds::TokenOf)
    }

    /// Whether no node holds a token that is not bob's, so that all pending releases are done.
    fn find_no_stray(&mut self) -> Result<bool, Stop> {
        let fine = |holds: &Holds| matches!(holds, Holds::Nothing | Holds::TokenOf("bob"));
        Ok(self.holds(KEY)?.iter().all(fine) && self.holds(FREE_KEY)?.iter().all(fine))
    }

    /// The keys on each node; for a node that cannot be inspected, its state.
    fn keys(&mut self) -> Result<Vec<Vec<String>>, Stop> {
        let names = |seen| match seen {
            Seen::Frozen => vec!["frozen".to_string()],
            Seen::Dead => vec!["dead".to_string()],
            Seen::Keys(keys) => keys.into_iter().map(|(name, _)| name).collect(),
        };
        (0..COUNT).map(|node| self.masters.inspect(node).map(names)).collect()
    }

    /// Drives alice's client, which sends its pending releases, until `holds` is true of the nodes.
    fn drive_until(
        &mut self,
        alice: &Client,
        mut holds: impl FnMut(&mut Self) -> Result<bool, Stop>,
    ) -> Result<(), Stop> {
        let start = clock::now();
        while !holds(self)? {
            if since(start) > PATIENCE {
                let left = format!("after {PATIENCE:?} the nodes still hold {:?}", self.keys()?);
                return Err(Stop::Failed(left));
            }
            drive(alice, POLL_INTERVAL)?;
        }
        Ok(())
    }
}

fn until_ready(client: &Client) -> Result<(), Stop> {
    until(client, |nodes| count_ready(nodes) == COUNT)
}

fn count_ready(nodes: &[NodeState]) -> usize {
    nodes.iter().filter(|&&state| state == NodeState::Ready).count()
}

/// Drives a client until `holds` is true of its nodes' states.
fn until(client: &Client, holds: impl Fn(&[NodeState]) -> bool) -> Result<(), Stop> {
    let start = clock::now();
    while !holds(&client.nodes()) {
        if since(start) > PATIENCE {
            let nodes = client.nodes();
            return Err(Stop::Failed(format!("after {PATIENCE:?} the nodes are {nodes:?}")));
        }
        drive(client, POLL_INTERVAL)?;
    }
    Ok(())
}

fn drive(client: &Client, limit: Duration) -> Result<(), Stop> {
    client.drive(limit).map_err(|error| Stop::Failed(format!("alice: {error}")))
}

fn failed(who: &str, error: &Error) -> Stop {
    Stop::Failed(format!("{who}: {error}"))
}

fn call(verb: &str, key: &str) -> String {
    format!("{verb}(\"{key}\", {TTL:?})")
}

fn extend() -> String {
    format!("extend({TTL:?})")
}

fn released(how: ReleaseOutcome) -> &'static str {
    match how {
        ReleaseOutcome::Released => "released",
        ReleaseOutcome::AlreadyExpired => "had expired",
        ReleaseOutcome::TakenByOther => "another had it",
        ReleaseOutcome::Unconfirmed { .. } => "not confirmed",
    }
}

fn since(start: Instant) -> Duration {
    clock::now().saturating_since(start)
}
