//! What is owed to a node, and its payment: at once where the node can be reached, else first
//! thing on its next connection.
//!
//! The hazard is a `SET` of an earlier connection that the node executes behind the release on the
//! new one. So the earlier connection is ended first, and where that is refused the release is
//! said twice.

use super::super::command::{Form, Native};
use super::super::debts::{self, Debt};
use super::*;

/// How many earlier connections of a node are remembered, to be ended. Each was ready once, and
/// lost with a question unanswered; the oldest is forgotten, and what was asked there is released
/// twice.
const EARLIER_CONNECTIONS: usize = 8;

impl Coordinator {
    /// Writes the release of an ended record to a node, or lines it up.
    pub(super) fn pay(&mut self, node: NodeId, number: u32, form: Form, now: Instant) {
        let record = self.records.get(number);
        let unanswered = record.asked.contains(node);
        let to = &self.nodes[node.index()];
        // A suspect node is told behind a SET that is on its wire, and of nothing else.
        let reachable = to.standing.is_usable() || (to.standing == Standing::Suspect && unanswered);
        if record.releasing.contains(node) {
            return;
        }
        if reachable && to.link.has_room_for_release(&self.settings.limits) {
            // Where an answer is overdue this one may never be read: the source needs none.
            let form = match to.vetted.native {
                Some(native) => Form::Native(native),
                None if unanswered => Form::Source,
                None => form,
            };
            self.ask(node, number, Kind::Release(form), now);
        } else {
            self.owe(node, number, now);
            self.plan_payment(node, now);
        }
    }

    /// Lines a release up, to be paid from `not_before` on.
    pub(super) fn owe(&mut self, node: NodeId, number: u32, not_before: Instant) {
        let generation = self.records.get(number).generation;
        let debt = Debt { record: number, generation, not_before };
        self.nodes[node.index()].debts.push(debt);
    }

    /// A node answered a release.
    pub(super) fn release_answered(
        &mut self,
        node: NodeId,
        ask: Ask,
        form: Form,
        said: Said,
        now: Instant,
    ) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        record.releasing.remove(node);
        match (said, form) {
            (said, Form::Sha) if said.asks_for_the_source() => {
                self.ask(node, ask.record, Kind::Release(Form::Source), now);
                return;
            }
            (Said::Failed(Cause::UnknownCommand | Cause::NoPermission), Form::Native(_)) => {
                self.nodes[node.index()].vetted.native = None;
                self.ask(node, ask.record, Kind::Release(Form::Source), now);
                return;
            }
            (Said::Failed(_), _) if record.owed.contains(node) => {
                self.owe(node, ask.record, now);
                self.payment_was_refused(node, now);
            }
            (Said::Failed(_), _) => {}
            // Gone, or another's, or never there: nothing of ours is left there now.
            _ => {
                if said == Said::Granted {
                    self.we_wrote(node, ask.record, now);
                }
                self.acknowledged(node, ask.record, now);
            }
        }
        let native = matches!(form, Form::Native(Native::Delifeq | Native::Delex));
        // While it is still owed, the second release will tell whose key it is.
        let settled = !self.records.get(ask.record).owed.contains(node);
        if native && said == Said::Absent && settled && self.wants_to_know(ask) {
            self.ask(node, ask.record, Kind::Exists, now);
            return;
        }
        self.cast_release(node, ask, said, now);
        self.finish(ask.record, generation);
    }

    /// A node answered whether the key is there, behind a native release that did nothing.
    pub(super) fn exists_answered(&mut self, node: NodeId, ask: Ask, said: Said, now: Instant) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        record.releasing.remove(node);
        // Whatever came of the question, the release itself was acknowledged.
        let said = if let Said::Failed(_) = said { Said::Absent } else { said };
        self.cast_release(node, ask, said, now);
        self.finish(ask.record, generation);
    }

    /// Whether the caller of a release still waits to hear whose key it is.
    fn wants_to_know(&self, ask: Ask) -> bool {
        let record = self.records.get(ask.record);
        let current = record.round.number == ask.round && record.round.purpose == Purpose::Release;
        current && record.op.is_some()
    }

    pub(super) fn cast_release(&mut self, node: NodeId, ask: Ask, said: Said, now: Instant) {
        let round = &self.records.get(ask.record).round;
        if round.purpose == Purpose::Release && round.number == ask.round {
            self.cast(ask.record, node, said, now);
        }
    }

    fn acknowledged(&mut self, node: NodeId, number: u32, now: Instant) {
        let record = self.records.get_mut(number);
        if record.unproven.remove(node) {
            // An earlier connection's SET may still be executed: it is said once more, later.
            record.note_answer(now);
            let later = now.saturating_add(self.settings.node_timeout);
            self.owe(node, number, later);
            self.plan_payment(node, now);
        } else {
            record.owed.remove(node);
        }
        self.nodes[node.index()].debts.refused = 0;
    }

    /// The first words to a node that is ready: the ends of earlier connections, then the debts.
    pub(super) fn settle_up(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        for &client_id in &it.earlier {
            let kind = Kind::Kill { client_id };
            it.link.ask(Ask::new(0, 0, kind, now), |out| {
                let digits = client_id.to_string();
                command::encode(out, &[b"CLIENT", b"KILL", b"ID", digits.as_bytes()]);
            });
        }
        self.pay_debts(node, now);
    }

    /// A connection that had been ready is gone; `unproven`: with questions unanswered that a node
    /// may yet execute.
    /// Returns whether its end can be proved later, by its number.
    pub(super) fn remember_connection(&mut self, node: NodeId, unproven: bool) -> bool {
        let it = &mut self.nodes[node.index()];
        match it.vetted.client_id.take().filter(|_| unproven) {
            Some(client_id) => {
                if it.earlier.len() == EARLIER_CONNECTIONS {
                    it.earlier.pop();
                    it.unproven.clear();
                }
                it.earlier.insert(0, client_id);
                true
            }
            None => {
                // It cannot be named, so it cannot be ended: nor can what is left of it be proved
                // by the end of another.
                if unproven {
                    it.unproven.clear();
                }
                false
            }
        }
    }

    /// A node answered the end of an earlier connection.
    pub(super) fn kill_answered(&mut self, node: NodeId, client_id: i64, gone: bool, now: Instant) {
        let it = &mut self.nodes[node.index()];
        it.earlier.retain(|&earlier| earlier != client_id);
        if !gone {
            // No proof will come for what was asked there: it is released twice.
            it.unproven.clear();
        }
        if it.earlier.is_empty() {
            self.nothing_comes_late(node, now);
        }
    }

    /// Proof that no earlier connection will execute anything any more.
    pub(super) fn nothing_comes_late(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        it.earlier.clear();
        for debt in std::mem::take(&mut it.unproven) {
            if self.records.is_open(debt.record, debt.generation) {
                let record = self.records.get_mut(debt.record);
                record.unproven.remove(node);
                record.note_answer(now);
            }
        }
    }

    /// Pays what the node is owed, in its order, as far as there is room. By the source: a new
    /// connection may be to a node that forgot the scripts, and nobody may be there to repeat it.
    pub(super) fn pay_debts(&mut self, node: NodeId, now: Instant) {
        let (paid, given_up) = self.pay_as_far_as_there_is_room(node, now);
        if paid > 0 {
            self.stats.node(node).debts_paid += paid;
            self.tell(Event::DebtsPaid { node, count: paid });
        }
        self.debts_are_given_up(node, given_up);
    }

    /// How many debts were paid, and how many lapsed without proof that the node executes nothing
    /// of an earlier connection any more.
    fn pay_as_far_as_there_is_room(&mut self, node: NodeId, now: Instant) -> (u64, u64) {
        let (mut paid, mut given_up) = (0, 0);
        let lined_up = self.nodes[node.index()].debts.len();
        for _ in 0..lined_up {
            let room = self.nodes[node.index()].link.has_room_for_release(&self.settings.limits);
            if !room {
                self.plan_payment(node, now);
                break;
            }
            let Some(debt) = self.nodes[node.index()].debts.pop() else { break };
            if !self.records.is_open(debt.record, debt.generation) {
                continue;
            }
            let record = self.records.get_mut(debt.record);
            if !record.owed.contains(node) || record.releasing.contains(node) {
                continue;
            }
            if now < debt.not_before {
                self.nodes[node.index()].debts.push(debt);
                self.plan_payment(node, now);
                continue;
            }
            if record.has_lapsed(node, now) {
                given_up += u64::from(record.unproven.remove(node));
                record.owed.remove(node);
                self.finish(debt.record, debt.generation);
            } else {
                self.pay(node, debt.record, Form::Source, now);
                paid += 1;
            }
        }
        (paid, given_up)
    }

    /// Starts the pause before the next payment, unless it runs, or the next connection pays.
    pub(super) fn plan_payment(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        if it.standing.is_usable() && it.debts.payment.is_none() {
            let at = now.saturating_add(it.debts.pause());
            it.debts.payment = Some(self.timers.set_at(at, Due::Payment { node }));
        }
    }

    fn payment_was_refused(&mut self, node: NodeId, now: Instant) {
        self.plan_payment(node, now);
        let debts = &mut self.nodes[node.index()].debts;
        debts.refused = debts.refused.saturating_add(1);
    }

    pub(super) fn payment_is_due(&mut self, node: NodeId, now: Instant) {
        self.nodes[node.index()].debts.payment = None;
        if self.standing(node).is_usable() {
            self.pay_debts(node, now);
        }
    }

    /// Starts the time after which a node that is away is owed nothing any more.
    pub(super) fn plan_giving_up(&mut self, node: NodeId, now: Instant) {
        let it = &mut self.nodes[node.index()];
        if it.debts.giving_up.is_none() {
            let away = self.settings.max_ttl.saturating_mul(debts::GIVEN_UP_AFTER);
            let at = now.saturating_add(away);
            it.debts.giving_up = Some(self.timers.set_at(at, Due::GivingUp { node }));
        }
    }

    /// The node was away so long that every key of ours on it is gone by its ttl.
    pub(super) fn give_up_debts(&mut self, node: NodeId, now: Instant) {
        self.nodes[node.index()].debts.giving_up = None;
        let mut count = 0;
        while let Some(debt) = self.nodes[node.index()].debts.pop() {
            if !self.records.is_open(debt.record, debt.generation) {
                continue;
            }
            let record = self.records.get_mut(debt.record);
            record.unproven.remove(node);
            count += u64::from(record.owed.remove(node));
            self.finish(debt.record, debt.generation);
        }
        self.debts_are_given_up(node, count);
        self.plan_giving_up(node, now);
    }

    fn debts_are_given_up(&mut self, node: NodeId, count: u64) {
        if count > 0 {
            self.stats.node(node).debts_given_up += count;
            self.tell(Event::DebtsGivenUp { node, count });
        }
    }
}
