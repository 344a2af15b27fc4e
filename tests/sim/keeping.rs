//! Locks that are kept, by auto-extend: the bounds that users choose, the reports that users get,
//! and what the coordinator says at each moment of every lock that a user has.

use std::time::Duration;

use redlatch::proto::Instant;
use redlatch::{AutoExtend, Error, LockUpdate, LockUpdateKind, LostReason};

use crate::agenda::{Event, MICRO, MILLI};
use crate::checker::{End, LOSS_BEFORE};
use crate::client::instant;
use crate::plan::Memory;
use crate::relic::Relic;
use crate::user::{Held, State};
use crate::world::World;

/// The shortest ttl with which a lock can be kept, in milliseconds.
const SHORTEST_KEPT: u64 = 10;

/// The auto-extend of a lock.
#[derive(Debug)]
pub struct Keeping {
    /// The serial number under which its updates are reported.
    pub serial: u64,
    /// When this auto-extend began.
    since: u64,
    /// The lock must not be renewed beyond this moment.
    bound: u64,
    /// The ttl of each renewal, in milliseconds.
    ttl: u64,
}

/// The parts of an [`AutoExtend`], whose own fields are private.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub keep: AutoExtend,
    max_hold: Option<u64>,
    warn_before: u64,
}

impl World {
    /// Draws how a lock of that ttl is to be kept; `None` if the ttl is too short for that.
    pub fn draw_keep(&mut self, ttl: u64) -> Option<Bounds> {
        if ttl < SHORTEST_KEPT {
            return None;
        }
        let length = ttl.min(300) * MILLI;
        let count = self.dice.below(6) as u32;
        let max_hold = self.dice.chance(500).then(|| 3 * MILLI + self.dice.below(3 * length));
        let mut keep = match max_hold {
            Some(nanos) => AutoExtend::at_most(Duration::from_nanos(nanos)),
            None => AutoExtend::extensions(count),
        };
        if max_hold.is_some() && self.dice.chance(200) {
            keep = keep.with_extensions(count);
        }
        let longest = ttl * MILLI / 2;
        let warn_before = match self.dice.below(4) {
            0 => self.dice.below(longest + 1),
            1 => self.dice.below(longest.min(3 * MILLI) + 1),
            _ => return Some(Bounds { keep, max_hold, warn_before: ttl * MILLI / 3 }),
        };
        Some(Bounds {
            keep: keep.warn_before(Duration::from_nanos(warn_before)),
            max_hold,
            warn_before,
        })
    }

    /// Notes that a lock in a user's hands is kept from now on.
    pub fn begin_to_keep(&mut self, client: usize, held: &mut Held, bounds: Bounds, serial: u64) {
        let now = self.agenda.now();
        self.tally.kept += 1;
        let it = &mut self.clients[client];
        self.checker.keep(serial, held.belief, bounds.warn_before, now, it.stopped_for);
        let bound = bounds.max_hold.map_or(u64::MAX, |length| now + length);
        let deadline = it.coordinator.deadline(&held.lock).map_or(0, |d| d.as_nanos());
        if deadline > bound {
            self.checker.report(format!("{serial} is kept up to {bound}, and has {deadline}"));
        }
        held.keep = Some(Keeping { serial, since: now, bound, ttl: held.ttl });
    }

    /// A holder changes the auto-extend of its lock.
    pub fn change_keeping(&mut self, client: usize, user: usize, mut held: Held) {
        self.keep(client, user, &mut held);
        self.hold(client, user, held);
    }

    fn keep(&mut self, client: usize, user: usize, held: &mut Held) {
        let now = self.agenda.now();
        let serial = self.next_serial();
        let Some(bounds) = self.draw_keep(held.ttl) else { return };
        let until = self.checker.belief(held.belief).until;
        let it = &mut self.clients[client];
        let asked = it.coordinator.auto_extend(&held.lock, bounds.keep, instant(now));
        self.trace.note(now, || {
            let outcome = asked.as_ref().map_err(Error::to_string);
            format!("client {client} user {user} keeps #{serial}: {bounds:?}: {outcome:?}")
        });
        match asked {
            Ok(()) => {
                let told = it.coordinator.deadline(&held.lock).map_or(now, |d| d.as_nanos());
                let stopped_for = it.stopped_for;
                if let Some(before) = held.keep.take() {
                    self.checker.unkeep(before.serial, now, stopped_for);
                }
                self.begin_to_keep(client, held, bounds, serial);
                self.checker.shorten(now, held.belief, told, stopped_for);
            }
            Err(Error::Lost { .. }) if until <= now => {}
            Err(error) => self.checker.report(format!("a keeping was refused: {error}")),
        }
    }

    /// A client takes the updates about the locks that its users keep.
    pub fn take_updates(&mut self, client: usize) {
        while let Some(update) = self.clients[client].coordinator.poll_lock_update() {
            let it = &self.clients[client];
            let keeper = it.users.iter().enumerate().find_map(|(user, it)| match &it.state {
                State::Holding(held) if held.lock.token() == update.token => Some((user, held)),
                _ => None,
            });
            let keeper = keeper.and_then(|(user, held)| Some((user, held, held.keep.as_ref()?)));
            let Some((user, held, keep)) = keeper else {
                self.checker.report(format!("no user keeps the lock of {update:?}"));
                continue;
            };
            let told = (it.coordinator.deadline(&held.lock), keep.serial);
            self.on_keep_update(client, user, told, update);
        }
    }

    fn on_keep_update(
        &mut self,
        client: usize,
        user: usize,
        (told, serial): (Option<Instant>, u64),
        update: LockUpdate,
    ) {
        let now = self.agenda.now();
        self.trace.note(now, || format!("client {client} hears of #{serial}: {update:?}"));
        match update.kind {
            LockUpdateKind::Extended { deadline } => {
                if told != Some(deadline) {
                    self.checker.report(format!("{serial} ends at {told:?}, not {deadline:?}"));
                }
            }
            LockUpdateKind::Expiring { deadline, .. } => {
                self.tally.warnings += 1;
                self.checker.note_warning(serial, deadline.as_nanos());
                if self.dice.chance(300) {
                    self.clients[client].users[user].at = now;
                }
            }
            LockUpdateKind::Lost(Error::Lost { reason, .. }) => {
                self.tally.kept_lost += 1;
                let stopped_for = self.clients[client].stopped_for;
                let end = if reason == LostReason::Gone { End::Gone } else { End::Deadline };
                self.checker.note_loss(serial, end, now, stopped_for);
                self.on_loss(client, user, serial, reason);
            }
            other => self.checker.report(format!("{serial} is kept, and told {other:?}")),
        }
    }

    /// The owner of a lock gets the report that it is lost.
    fn on_loss(&mut self, client: usize, user: usize, serial: u64, reason: LostReason) {
        let state = std::mem::replace(&mut self.clients[client].users[user].state, State::Resting);
        let State::Holding(held) = state else {
            return self.checker.report(format!("the loss {serial} of a lock without an owner"));
        };
        let keep = held.keep.as_ref().filter(|keep| keep.serial == serial);
        let Some(keep) = keep else {
            return self.checker.report(format!("the loss {serial} of another lock"));
        };
        if self.clients[client].coordinator.deadline(&held.lock).is_some() {
            self.checker.report(format!("{serial} is lost, and has a deadline"));
        }
        // At least three tries fit between the first renewal and the deadline.
        let timeout = self.plan.node_timeout() + self.plan.pace;
        // A renewal that was requested only near the deadline may have come too late.
        let in_time = self.agenda.now() - keep.since > timeout;
        let tries = keep.ttl * MILLI / 6 > timeout && in_time;
        if reason == LostReason::Expired
            && self.plan.is_untroubled()
            && tries
            && held.extend.is_none()
        {
            self.checker.report(format!("{serial} was not renewed, and nothing went wrong"));
        }
        if self.dice.chance(300) {
            let at = self.agenda.now() + self.dice.below(100 * MILLI);
            self.clients[client].relics.push(Relic { at, lock: held.lock, belief: held.belief });
        }
        self.rest(client, user);
    }

    /// Compares what the coordinator says of its users' locks with what they believe.
    pub fn check_beliefs(&mut self, client: usize) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        let stopped_for = it.stopped_for;
        let mut prolonged = Vec::new();
        for (user, state) in it.users.iter().map(|user| &user.state).enumerate() {
            let State::Holding(held) = state else { continue };
            let (number, who) = (held.belief, (client, user));
            let belief = self.checker.belief(number);
            let (until, disturbed) = (belief.until, belief.touched);
            let bound = held.keep.as_ref().map_or(u64::MAX, |keep| keep.bound);
            match it.coordinator.deadline(&held.lock).map(|deadline| deadline.as_nanos()) {
                Some(told) if told > until => {
                    self.checker.prolong(now, number, told, stopped_for);
                    prolonged.push(number);
                    self.agenda.put(told - 1, Event::Probe { belief: number });
                    self.tally.prolonged += u64::from(held.extend.is_none());
                    if told > bound {
                        let words = format!("{who:?} has a lock beyond its bound: {told} {bound}");
                        self.checker.report(words);
                    }
                }
                Some(told) if told < until => {
                    self.checker.report(format!("the deadline of {who:?} came nearer"));
                }
                None if now < until => {
                    self.checker.lose(now, number, stopped_for);
                    let early = until - now;
                    let may_be = if held.keep.is_some() { LOSS_BEFORE } else { 0 };
                    if self.plan.memory == Memory::Kept && !disturbed && early > may_be {
                        let words = format!("{who:?} lost its lock {early} ns before its deadline");
                        self.checker.report(words);
                    }
                }
                _ => {}
            }
        }
        prolonged.into_iter().for_each(|belief| self.probe(belief));
    }

    /// Checks in the bytes that are about to be written that a heal sets a lost key for no longer
    /// than what is left of its lock. It needs to know the time exactly, so it checks only clients
    /// that are never late.
    pub fn check_heals(&mut self, client: usize, wire: usize, output: &[u8]) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        if it.stopped_for > 0 || self.plan.pace > 0 {
            return;
        }
        for user in &it.users {
            let State::Holding(held) = &user.state else { continue };
            let token = held.lock.token();
            let Some(ttl) = set_ttl(output, token.digits()) else { continue };
            let belief = self.checker.belief(held.belief);
            if belief.from <= self.network.wires[wire].full_until {
                // The socket was full when the lock was won, so this may be the acquire's own
                // `SET`.
                continue;
            }
            let left = belief.until.saturating_sub(now);
            if ttl * MILLI > left + MILLI + 500 * MICRO {
                let words = format!("client {client} heals for {ttl} ms, and has {left} ns left");
                self.checker.report(words);
            }
        }
    }
}

/// The ttl in milliseconds of the `SET` with this token; `None` if the output has none.
fn set_ttl(output: &[u8], token: &[u8]) -> Option<u64> {
    const OPTIONS: &[u8] = b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n";
    let at = output.windows(token.len()).position(|part| part == token)?;
    let after = output[at + token.len()..].strip_prefix(OPTIONS)?;
    let digits = after.split(|byte| *byte == b'\n').nth(1)?.strip_suffix(b"\r")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
