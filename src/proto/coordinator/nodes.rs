//! The life of a node's connection: connecting, greeting, ready, lost.

use rand::RngExt;

use super::super::debts::{Debt, Debts};
use super::super::greeting::{Fact, Greeting, Info, Progress, Step, Vetted};
use super::super::link::{Fault, Link};
use super::super::marker::{self, MarkerState, Marking};
use super::super::quarantine::{self, Distrust};
use super::super::settings::Credentials;
use super::super::standing::{self, Reading};
use super::flushes::Flushes;
use super::*;

/// How many times longer than others a node waits to be looked at again that may not be used as it
/// is configured.
const PATIENCE: u32 = 10;

/// What the coordinator keeps of one node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) standing: Standing,
    pub(super) link: Link,
    /// Why it could not be asked last: what it votes while it is not ready.
    pub(super) trouble: Cause,
    /// The trouble in the words of the system or of the node.
    pub(super) words: Box<str>,
    /// How often in a row it could not be made ready.
    pub(super) failures: u32,
    /// What the connection was found to be, while it is ready.
    pub(super) vetted: Vetted,
    /// What it reported when it was vetted last.
    pub(super) known: Option<Info>,
    /// Its marker is being written.
    pub(super) marking: bool,
    /// An operator vouches for it, and it has forgotten nothing since that was asked.
    pub(super) vouching: bool,
    /// From when on its grants count, and why not before.
    pub(super) trusted_from: Option<(Instant, Distrust)>,
    /// What its clock said last.
    pub(super) reading: Option<Reading>,
    pub(super) debts: Debts,
    /// What it reported of flushes.
    pub(super) flushes: Flushes,
    /// Earlier connections, youngest first, which may have left something unexecuted there.
    pub(super) earlier: Vec<i64>,
    /// What was asked on them and not answered.
    pub(super) unproven: Vec<Debt>,
    /// When it became ready.
    ready_since: Option<Instant>,
    greeting: Greeting,
    /// Why the first step of the greeting was refused, and in which words.
    refusal: Option<(Cause, Box<str>)>,
    /// Ends the pause before the next connection, or the time to become ready.
    connecting: Option<Timer>,
    /// Looks for silence.
    pub(super) silence: Option<Timer>,
    /// Gives the silent connection up.
    pub(super) reset: Option<Timer>,
    /// Asks for its time.
    pub(super) probe: Option<Timer>,
    /// Ends the quarantine.
    pub(super) trust: Option<Timer>,
}

impl Default for Node {
    fn default() -> Node {
        Node {
            standing: Standing::Connecting,
            link: Link::default(),
            trouble: Cause::Unreachable,
            words: "".into(),
            failures: 0,
            vetted: Vetted::default(),
            known: None,
            marking: false,
            vouching: false,
            trusted_from: None,
            reading: None,
            debts: Debts::default(),
            flushes: Flushes::default(),
            earlier: Vec::new(),
            unproven: Vec::new(),
            ready_since: None,
            greeting: Greeting::default(),
            refusal: None,
            connecting: None,
            silence: None,
            reset: None,
            probe: None,
            trust: None,
        }
    }
}

impl Node {
    /// A node whose connection is not ours to use.
    pub(super) fn of_another_process() -> Node {
        let (standing, trouble) = (Standing::Rejected(Cause::Forked), Cause::Forked);
        Node { standing, trouble, failures: 1, ..Node::default() }
    }

    /// What there is to add to `said`: its own words, or how long its grants do not count.
    pub(super) fn detail(&self, said: Said, now: Instant) -> Option<Box<str>> {
        let Said::Failed(cause) = said else { return None };
        let last_error = self.link.last_error();
        if let (Cause::Quarantined, Some((from, why))) = (cause, self.trusted_from) {
            let left = from.saturating_since(now).as_secs_f64();
            Some(format!("restart guard: {why}; its grants count in {left:.1} s").into())
        } else if cause == self.trouble && !self.words.is_empty() {
            Some(self.words.clone())
        } else if !last_error.is_empty() && Cause::of_error(last_error.as_bytes()) == cause {
            Some(last_error.into())
        } else {
            None
        }
    }

    /// Whether its connection was lost a moment ago, and the next one is being opened without a
    /// pause.
    pub(super) fn is_coming_back(&self) -> bool {
        self.failures == 0 && !self.standing.is_usable() && self.standing != Standing::Suspect
    }
}

impl Coordinator {
    /// Who we are to the node from its next connection on.
    pub fn set_credentials(&mut self, node: NodeId, credentials: Credentials) {
        let it = &mut self.settings.nodes[node.index()];
        (it.user, it.password) = (credentials.user, credentials.password);
    }

    /// The connection that was asked for is open.
    pub fn handle_connected(&mut self, node: NodeId, now: Instant) {
        if self.standing(node) == Standing::Connecting {
            self.set_standing(node, Standing::Greeting);
            self.greet(node, now);
        }
    }

    /// The connection is gone, or could not be opened; `words` are the system's.
    pub fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        let cause = match self.standing(node) {
            Standing::Down(_) | Standing::Rejected(_) => return,
            Standing::Connecting => Cause::Unreachable,
            // A node that ends the connection in mid-greeting may have said why.
            Standing::Greeting => {
                self.nodes[node.index()].greeting.trouble().unwrap_or(Cause::Unreachable)
            }
            _ => Cause::Lost,
        };
        self.lose_connection(node, Standing::Down(cause), cause, words, now);
    }

    pub(super) fn connect(&mut self, node: NodeId, now: Instant) {
        let timeout = self.settings.connect_timeout;
        let timer = self.timers.set_after(now, timeout, Due::Connecting { node });
        self.nodes[node.index()].connecting = Some(timer);
        self.set_standing(node, Standing::Connecting);
        self.actions.push_back(Action::Connect(node));
    }

    /// The connection that was asked for is being opened only now: its time counts from here.
    pub fn handle_connecting(&mut self, node: NodeId, now: Instant) {
        if self.standing(node) == Standing::Connecting {
            let timeout = self.settings.connect_timeout;
            let it = &mut self.nodes[node.index()];
            self.timers.clear_in(&mut it.connecting);
            it.connecting = Some(self.timers.set_after(now, timeout, Due::Connecting { node }));
        }
    }

    pub(super) fn connecting_took_too_long(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        it.connecting = None;
        // A greeting that was written late, because the caller was away, may be answered yet.
        let asked_at = it.link.oldest_ask().filter(|_| it.standing == Standing::Greeting);
        let until = asked_at.map_or(now, |at| at.saturating_add(self.settings.node_timeout));
        if until > now {
            it.connecting = Some(self.timers.set_at(until, Due::Connecting { node }));
            return;
        }
        self.actions.push_back(Action::Disconnect(node));
        let (cause, words) = (Cause::Unreachable, "no answer within the connect timeout");
        self.lose_connection(node, Standing::Down(cause), cause, words, now);
    }

    /// What came is nothing that can be gone on from.
    pub(super) fn break_off(&mut self, node: NodeId, fault: Fault, now: Instant) {
        let cause = match fault {
            Fault::Unasked(Some(cause)) => cause,
            _ => Cause::Garbage,
        };
        self.actions.push_back(Action::Disconnect(node));
        self.lose_connection(node, Standing::Down(cause), cause, &fault.to_string(), now);
    }

    /// Everything undecided on the connection counts against; what the node is owed waits for the
    /// next one.
    pub(super) fn lose_connection(
        &mut self,
        node: NodeId,
        standing: Standing,
        cause: Cause,
        words: &str,
        now: Instant,
    ) {
        self.set_standing(node, standing);
        self.stats.node(node).failures += 1;
        let random = self.rng.random();
        let it = &mut self.nodes[node.index()];
        it.trouble = cause;
        it.words = words.into();
        // One that was good for a while is replaced at once; one that is lost again and again is
        // not worth the haste.
        let (_, longest) = self.settings.reconnect;
        let good =
            it.ready_since.take().is_some_and(|since| now.saturating_since(since) >= longest);
        it.failures = if good { 0 } else { it.failures.saturating_add(1) };
        for timer in [&mut it.connecting, &mut it.silence, &mut it.reset, &mut it.probe] {
            self.timers.clear_in(timer);
        }
        self.timers.clear_in(&mut it.debts.payment);
        let mut range = self.settings.reconnect;
        if matches!(standing, Standing::Rejected(cause) if cause.is_permanent()) {
            // Somebody has to change a configuration first.
            range = (longest, longest.saturating_mul(PATIENCE));
        }
        let pause = standing::backoff(range, it.failures, random);
        let due = Due::Reconnect { node };
        it.connecting = Some(self.timers.set_at(now.saturating_add(pause), due));
        (it.marking, it.vouching) = (false, false);
        let asks = it.link.reset();
        self.plan_giving_up(node, now);
        let creating = |ask: &Ask| ask.kind.may_create();
        let provable = self.remember_connection(node, asks.iter().any(creating));
        for ask in asks {
            if ask.kind.is_about_a_record() {
                self.ask_is_lost(node, ask, cause, provable, now);
            }
        }
        self.first_handshake_ended(now);
    }

    /// No answer to this question will come any more.
    fn ask_is_lost(&mut self, node: NodeId, ask: Ask, cause: Cause, provable: bool, now: Instant) {
        let coming_back = self.nodes[node.index()].is_coming_back();
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        let mut vote = record.round.number == ask.round;
        self.stats.failed(node, cause);
        match ask.kind {
            Kind::Look | Kind::LookLeft => {
                self.look_is_lost(node, ask.record, cause);
                return;
            }
            Kind::Vouch => {
                self.vouch_answered(node, ask, Said::Failed(cause), now);
                return;
            }
            kind if kind.may_create() => {
                record.asked.take(node);
                record.healing.remove(node);
                record.may_be_executed_late(node, now);
                let it = &mut self.nodes[node.index()];
                if provable {
                    it.unproven.push(Debt { record: ask.record, generation, not_before: now });
                }
            }
            _ => {
                record.releasing.remove(node);
                if record.owed.contains(node) {
                    self.owe(node, ask.record, now);
                    // It is said again on the next connection, which may be in time.
                    vote &= !coming_back;
                }
            }
        }
        if vote {
            self.cast(ask.record, node, Said::Failed(cause), now);
        }
        self.finish(ask.record, generation);
    }

    fn greet(&mut self, node: NodeId, now: Instant) {
        let settings = &self.settings.nodes[node.index()];
        let it = &mut self.nodes[node.index()];
        let link = &mut it.link;
        link.hide(settings.password.clone());
        let (name, marker) = (&self.settings.client_name, self.settings.wanted_marker());
        it.greeting.begin(settings, name, marker, |step, arguments| {
            let ask = Ask::new(0, 0, Kind::Greet(step), now);
            link.ask(ask, |out| command::encode(out, arguments));
        });
    }

    /// The marker of the node does not match it: it is written before the node may be asked.
    fn mark_in_greeting(&mut self, node: NodeId, how: Marking, now: Instant) {
        let it = &mut self.nodes[node.index()];
        let identity = it.greeting.vetted().info.identity;
        let ask = Ask::new(0, 0, Kind::Greet(Step::Mark), now);
        it.greeting.mark();
        it.link.ask(ask, |out| marker::mark(out, &self.settings.node_marker, &identity, how));
    }

    /// The node answered a step of the greeting.
    pub(super) fn greeted(&mut self, node: NodeId, step: Step, now: Instant) {
        let it = &mut self.nodes[node.index()];
        let fact = it.link.fact();
        let good = it.greeting.trouble().is_none();
        let progress = it.greeting.handle(step, fact, self.settings.allow_eviction);
        if let (true, Some(cause)) = (good, it.greeting.trouble()) {
            let refused = matches!(fact, Fact::Refused(_));
            it.refusal = refused.then(|| (cause, refusal(step, it.link.last_error())));
        }
        match progress {
            Progress::More => {}
            Progress::Again => self.greet(node, now),
            Progress::Rejected(cause) => self.reject(node, cause, now),
            Progress::Vetted => self.greeting_is_over(node, now),
        }
    }

    /// The node may be asked, once its marker is what it should be.
    fn greeting_is_over(&mut self, node: NodeId, now: Instant) {
        let greeting = &self.nodes[node.index()].greeting;
        let (vetted, found) = (*greeting.vetted(), greeting.found());
        match (found, quarantine::marking(self.settings.restart_guard, &vetted)) {
            _ if self.is_known_server(node, &vetted) => self.reject(node, Cause::SameServer, now),
            (None, Some(how)) => self.mark_in_greeting(node, how, now),
            (found, _) => self.is_vetted(node, vetted, found.unwrap_or(vetted.marker), now),
        }
    }

    /// Whether another node of the list is the same server: two addresses have one vote.
    fn is_known_server(&self, node: NodeId, vetted: &Vetted) -> bool {
        let run_id = vetted.info.identity.run_id;
        run_id.is_some()
            && self.all_nodes().iter().any(|other| {
                let it = &self.nodes[other.index()];
                let asked = it.standing.is_usable() || it.standing == Standing::Suspect;
                other != node && asked && it.vetted.info.identity.run_id == run_id
            })
    }

    fn reject(&mut self, node: NodeId, cause: Cause, now: Instant) {
        let refusal = self.nodes[node.index()].refusal.take();
        let words = refusal.filter(|&(of, _)| of == cause).map_or("".into(), |(_, words)| words);
        self.actions.push_back(Action::Disconnect(node));
        self.lose_connection(node, Standing::Rejected(cause), cause, &words, now);
    }

    fn is_vetted(&mut self, node: NodeId, vetted: Vetted, found: MarkerState, now: Instant) {
        self.judge(node, &vetted, found, now);
        let it = &mut self.nodes[node.index()];
        it.vetted = vetted;
        it.ready_since = Some(now);
        it.trouble = Cause::Unreachable;
        it.words = "".into();
        it.debts.refused = 0;
        self.timers.clear_in(&mut it.connecting);
        self.timers.clear_in(&mut it.debts.giving_up);
        self.stats.node(node).connections += 1;
        self.set_standing(node, self.usable_standing(node, now));
        self.settle_up(node, now);
        if matches!(self.nodes[node.index()].trusted_from, Some((_, Distrust::Flushed))) {
            // The flush may have come after the handshake had read the marker.
            self.mark(node, Marking::IfMissing, now);
        }
        self.first_handshake_ended(now);
        // Asked at once, so that there is something to compare the next one with.
        self.probe_is_due(node, now);
    }
}

/// What is told of a step that was refused. The link keeps only the code of an error that answers
/// the credentials, so their command is named with it.
fn refusal(step: Step, last_error: &str) -> Box<str> {
    match (step, last_error) {
        (Step::Hello, code) => format!("HELLO: {code}").into(),
        (Step::Auth, code) => format!("AUTH: {code}").into(),
        (_, words) => words.into(),
    }
}
