//! The life of a node: connecting, greeting, silence, loss; and the payment of what it is owed.

use rand::RngExt;

use super::super::debts::{self, Debts};
use super::super::greeting::{Fact, Greeting, Progress, Step, Vetted};
use super::super::link::{Fault, Link};
use super::super::standing;
use super::*;

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
    pub(super) debts: Debts,
    pub(super) debts_given_up: u64,
    greeting: Greeting,
    vetted: Vetted,
    /// Ends the pause before the next connection, or the time to become ready.
    connecting: Option<Timer>,
    /// Looks for silence.
    silence: Option<Timer>,
}

impl Default for Node {
    fn default() -> Node {
        Node {
            standing: Standing::Connecting,
            link: Link::default(),
            trouble: Cause::Unreachable,
            words: "".into(),
            failures: 0,
            debts: Debts::default(),
            debts_given_up: 0,
            greeting: Greeting::default(),
            vetted: Vetted::default(),
            connecting: None,
            silence: None,
        }
    }
}

impl Node {
    /// What it said in its own words, where that tells more than `said`.
    pub(super) fn detail(&self, said: Said) -> Option<Box<str>> {
        let Said::Failed(cause) = said else { return None };
        let last_error = self.link.last_error();
        if cause == self.trouble && !self.words.is_empty() {
            Some(self.words.clone())
        } else if !last_error.is_empty() && Cause::of_error(last_error.as_bytes()) == cause {
            Some(last_error.into())
        } else {
            None
        }
    }
}

impl Coordinator {
    /// The connection that was asked for is open.
    pub fn handle_connected(&mut self, node: NodeId, now: Instant) {
        if self.standing(node) == Standing::Connecting {
            self.nodes[node.index()].standing = Standing::Greeting;
            self.greet(node, now);
        }
    }

    /// The connection is gone, or could not be opened; `words` are the system's.
    pub fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        match self.standing(node) {
            Standing::Down(_) => {}
            Standing::Connecting => self.lose_connection(node, Cause::Unreachable, words, now),
            Standing::Greeting => {
                let trouble = self.nodes[node.index()].greeting.trouble();
                self.lose_connection(node, trouble.unwrap_or(Cause::Unreachable), words, now);
            }
            _ => self.lose_connection(node, Cause::Lost, words, now),
        }
    }

    pub(super) fn connect(&mut self, node: NodeId, now: Instant) {
        let timeout = self.settings.connect_timeout;
        let timer = self.timers.set_after(now, timeout, Due::Connecting { node });
        let it = &mut self.nodes[node.index()];
        it.standing = Standing::Connecting;
        it.connecting = Some(timer);
        self.actions.push_back(Action::Connect(node));
    }

    pub(super) fn connecting_took_too_long(&mut self, node: NodeId, now: Instant) {
        self.nodes[node.index()].connecting = None;
        self.actions.push_back(Action::Disconnect(node));
        let words = "no answer within the connect timeout";
        self.lose_connection(node, Cause::Unreachable, words, now);
    }

    /// What came is nothing that can be gone on from.
    pub(super) fn break_off(&mut self, node: NodeId, fault: Fault, now: Instant) {
        let cause = match fault {
            Fault::Unasked(Some(cause)) => cause,
            _ => Cause::Garbage,
        };
        self.actions.push_back(Action::Disconnect(node));
        self.lose_connection(node, cause, &fault.to_string(), now);
    }

    /// Everything undecided on the connection counts against; what the node is owed waits for the
    /// next one.
    fn lose_connection(&mut self, node: NodeId, cause: Cause, words: &str, now: Instant) {
        let random = self.rng.random();
        let it = &mut self.nodes[node.index()];
        it.standing = Standing::Down(cause);
        it.trouble = cause;
        it.words = words.into();
        it.failures = it.failures.saturating_add(1);
        self.timers.clear_in(&mut it.connecting);
        self.timers.clear_in(&mut it.silence);
        self.timers.clear_in(&mut it.debts.payment);
        let pause = standing::backoff(self.settings.reconnect, it.failures, random);
        let at = now.saturating_add(pause);
        it.connecting = Some(self.timers.set_at(at, Due::Reconnect { node }));
        if it.debts.giving_up.is_none() {
            let at = now.saturating_add(self.settings.max_ttl * debts::GIVEN_UP_AFTER);
            it.debts.giving_up = Some(self.timers.set_at(at, Due::GivingUp { node }));
        }
        for ask in it.link.reset() {
            self.ask_is_lost(node, ask, cause, now);
        }
    }

    /// No answer to this question will come any more.
    fn ask_is_lost(&mut self, node: NodeId, ask: Ask, cause: Cause, now: Instant) {
        if let Kind::Greet(_) = ask.kind {
            return;
        }
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        if let Kind::Release(_) = ask.kind {
            record.releasing.remove(node);
            if record.owed.contains(node) {
                self.owe(node, ask.record);
            }
        } else {
            record.asked.take(node);
            record.unproven.insert(node);
        }
        if self.records.get(ask.record).round.number == ask.round {
            self.cast(ask.record, node, Said::Failed(cause), now);
        }
        self.finish(ask.record, generation);
    }

    fn greet(&mut self, node: NodeId, now: Instant) {
        let settings = &self.settings.nodes[node.index()];
        let it = &mut self.nodes[node.index()];
        let link = &mut it.link;
        it.greeting.begin(settings, |step, arguments| {
            let ask = Ask { record: 0, round: 0, kind: Kind::Greet(step), asked_at: now };
            link.ask(ask, |out| command::encode(out, arguments));
        });
    }

    /// The node answered a step of the greeting.
    pub(super) fn greeted(&mut self, node: NodeId, step: Step, fact: Fact, now: Instant) {
        let greeting = &mut self.nodes[node.index()].greeting;
        match greeting.handle(step, fact, self.settings.allow_eviction) {
            Progress::More => {}
            Progress::Again => self.greet(node, now),
            Progress::Rejected(cause) => self.reject(node, cause, now),
            Progress::Vetted(vetted) if self.is_known_server(node, &vetted) => {
                self.reject(node, Cause::SameServer, now);
            }
            Progress::Vetted(vetted) => {
                self.nodes[node.index()].vetted = vetted;
                self.is_ready(node, now);
            }
        }
    }

    /// Whether another node of the list is the same server: two addresses have one vote.
    fn is_known_server(&self, node: NodeId, vetted: &Vetted) -> bool {
        let run_id = vetted.info.run_id;
        run_id.is_some()
            && self.all_nodes().iter().any(|other| {
                let it = &self.nodes[other.index()];
                let asked = matches!(it.standing, Standing::Ready | Standing::Suspect);
                other != node && asked && it.vetted.info.run_id == run_id
            })
    }

    fn reject(&mut self, node: NodeId, cause: Cause, now: Instant) {
        let said = self.nodes[node.index()].link.last_error();
        let says_it = Cause::of_error(said.as_bytes()) == cause;
        let words: Box<str> = if says_it { said } else { "" }.into();
        self.actions.push_back(Action::Disconnect(node));
        self.lose_connection(node, cause, &words, now);
    }

    fn is_ready(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        it.standing = Standing::Ready;
        it.failures = 0;
        it.trouble = Cause::Unreachable;
        it.words = "".into();
        it.debts.refused = 0;
        self.timers.clear_in(&mut it.connecting);
        self.timers.clear_in(&mut it.debts.giving_up);
        self.pay_debts(node, now);
    }

    /// Arms the look for silence.
    pub(super) fn watch_for_silence(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        if it.silence.is_none() {
            let timeout = self.settings.node_timeout;
            it.silence = Some(self.timers.set_after(now, timeout, Due::Silence { node }));
        }
    }

    pub(super) fn look_for_silence(&mut self, node: NodeId, now: Instant) {
        let timeout = self.settings.node_timeout;
        let it = &mut self.nodes[node.index()];
        it.silence = None;
        if it.link.oldest_ask().is_none() {
            return;
        }
        if standing::is_silent(it.link.oldest_ask(), it.link.last_answer(), timeout, now) {
            if it.standing == Standing::Ready {
                it.standing = Standing::Suspect;
            }
        } else {
            self.watch_for_silence(node, now);
        }
    }

    /// Something was read from the node: one that was suspect may have caught up.
    pub(super) fn heard_of(&mut self, node: NodeId, now: Instant) {
        let timeout = self.settings.node_timeout;
        let it = &mut self.nodes[node.index()];
        let silent =
            || standing::is_silent(it.link.oldest_ask(), it.link.last_answer(), timeout, now);
        if it.standing == Standing::Suspect && !silent() {
            it.standing = Standing::Ready;
            if it.link.oldest_ask().is_some() {
                self.watch_for_silence(node, now);
            }
            self.pay_debts(node, now);
        }
    }

    /// Pays what the node is owed, in its order, as far as there is room. By the source: a new
    /// connection may be to a node that forgot the scripts, and nobody may be there to repeat it.
    fn pay_debts(&mut self, node: NodeId, now: Instant) {
        let lined_up = self.nodes[node.index()].debts.len();
        for _ in 0..lined_up {
            let room = self.nodes[node.index()].link.has_room_for_release(&self.settings.limits);
            if !room {
                self.plan_payment(node, now);
                return;
            }
            let Some(debt) = self.nodes[node.index()].debts.pop() else { return };
            if !self.records.is_open(debt.record, debt.generation) {
                continue;
            }
            let record = self.records.get_mut(debt.record);
            if !record.owed.contains(node) || record.releasing.contains(node) {
                continue;
            }
            if record.has_lapsed(node, now) {
                record.owed.remove(node);
                self.finish(debt.record, debt.generation);
            } else {
                self.pay(node, debt.record, Form::Source, now);
            }
        }
    }

    /// Starts the pause before the next payment, unless it runs, or the next connection pays.
    pub(super) fn plan_payment(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        if it.standing == Standing::Ready && it.debts.payment.is_none() {
            let at = now.saturating_add(it.debts.pause());
            it.debts.payment = Some(self.timers.set_at(at, Due::Payment { node }));
        }
    }

    pub(super) fn payment_was_refused(&mut self, node: NodeId, now: Instant) {
        self.plan_payment(node, now);
        let debts = &mut self.nodes[node.index()].debts;
        debts.refused = debts.refused.saturating_add(1);
    }

    pub(super) fn payment_is_due(&mut self, node: NodeId, now: Instant) {
        self.nodes[node.index()].debts.payment = None;
        if self.standing(node) == Standing::Ready {
            self.pay_debts(node, now);
        }
    }

    /// The node was away so long that every key of ours on it is gone by its ttl.
    pub(super) fn give_up_debts(&mut self, node: NodeId, now: Instant) {
        self.nodes[node.index()].debts.giving_up = None;
        while let Some(debt) = self.nodes[node.index()].debts.pop() {
            if !self.records.is_open(debt.record, debt.generation) {
                continue;
            }
            let record = self.records.get_mut(debt.record);
            if record.owed.remove(node) {
                self.nodes[node.index()].debts_given_up += 1;
            }
            self.finish(debt.record, debt.generation);
        }
        let at = now.saturating_add(self.settings.max_ttl * debts::GIVEN_UP_AFTER);
        let timer = self.timers.set_at(at, Due::GivingUp { node });
        self.nodes[node.index()].debts.giving_up = Some(timer);
    }
}
