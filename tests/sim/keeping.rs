//! Locks that are kept: how users want them kept, what is reported to users, and what the
//! coordinator says at each moment of every lock that a user has.

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

/// The shortest ttl of a lock that is kept, in milliseconds.
const SHORTEST_KEPT: u64 = 10;

/// How a lock is kept.
#[derive(Debug)]
pub struct Keeping {
    /// The number under which its events are reported.
    pub serial: u64,
    /// When it began to be kept in this way.
    since: u64,
    /// The moment beyond which it is not kept.
    bound: u64,
    /// The ttl of each renewal, in milliseconds.
    ttl: u64,
}

/// The parts of a [`AutoExtend`], which keeps them to itself.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub keep: AutoExtend,
    max_hold: Option<u64>,
    warn_before: u64,
}

impl World {
    /// How a lock of that ttl is to be kept; one that is shorter than that cannot be.
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

    /// A lock in a user's hands is kept from now on.
    pub fn begin_to_keep(&mut self, client: usize, held: &mut Held, bounds: Bounds, serial: u64) {
        let now = self.agenda.now();
        self.tally.kept += 1;
        let it = &mut self.clients[client];
        self.checker.keep(serial, held.belief, bounds.warn_before, now, it.kept_waiting);
        let bound = bounds.max_hold.map_or(u64::MAX, |length| now + length);
        let deadline = it.coordinator.deadline(&held.lock).map_or(0, |d| d.as_nanos());
        if deadline > bound {
            self.checker.violate(format!("{serial} is kept up to {bound}, and has {deadline}"));
        }
        held.keep = Some(Keeping { serial, since: now, bound, ttl: held.ttl });
    }

    /// A holder has the lock kept, in this way and no other.
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
                let kept_waiting = it.kept_waiting;
                if let Some(before) = held.keep.take() {
                    self.checker.unkeep(before.serial, now, kept_waiting);
                }
                self.begin_to_keep(client, held, bounds, serial);
                self.checker.shorten(now, held.belief, told, kept_waiting);
            }
            Err(Error::Lost { .. }) if until <= now => {}
            Err(error) => self.checker.violate(format!("a keeping was refused: {error}")),
        }
    }

    /// A client takes what is reported of the locks that its users keep.
    pub fn take_updates(&mut self, client: usize) {
        while let Some(update) = self.clients[client].coordinator.poll_lock_update() {
            let it = &self.clients[client];
            let keeper = it.users.iter().enumerate().find_map(|(user, it)| match &it.state {
                State::Holding(held) if held.lock.token() == update.token => Some((user, held)),
                _ => None,
            });
            let keeper = keeper.and_then(|(user, held)| Some((user, held, held.keep.as_ref()?)));
            let Some((user, held, keep)) = keeper else {
                self.checker.violate(format!("no user keeps the lock of {update:?}"));
                continue;
            };
            let told = (it.coordinator.deadline(&held.lock), keep.serial);
            self.told_of_keeping(client, user, told, update);
        }
    }

    fn told_of_keeping(
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
                    self.checker.violate(format!("{serial} ends at {told:?}, not {deadline:?}"));
                }
            }
            LockUpdateKind::Expiring { deadline, .. } => {
                self.tally.warnings += 1;
                self.checker.warned(serial, deadline.as_nanos());
                if self.dice.chance(300) {
                    self.clients[client].users[user].at = now;
                }
            }
            LockUpdateKind::Lost(Error::Lost { reason, .. }) => {
                self.tally.kept_lost += 1;
                let kept_waiting = self.clients[client].kept_waiting;
                let end = if reason == LostReason::Gone { End::Gone } else { End::Deadline };
                self.checker.lost(serial, end, now, kept_waiting);
                self.on_loss(client, user, serial, reason);
            }
            other => self.checker.violate(format!("{serial} is kept, and told {other:?}")),
        }
    }

    /// The keeper of a lock gets the report that it is lost, and stops.
    fn on_loss(&mut self, client: usize, user: usize, serial: u64, reason: LostReason) {
        let state = std::mem::replace(&mut self.clients[client].users[user].state, State::Resting);
        let State::Holding(held) = state else {
            return self.checker.violate(format!("the loss {serial} of a lock without an owner"));
        };
        let keep = held.keep.as_ref().filter(|keep| keep.serial == serial);
        let Some(keep) = keep else {
            return self.checker.violate(format!("the loss {serial} of another lock"));
        };
        if self.clients[client].coordinator.deadline(&held.lock).is_some() {
            self.checker.violate(format!("{serial} is lost, and has a deadline"));
        }
        // Three tries fit between the time of a renewal and the deadline.
        let timeout = self.plan.node_timeout() + self.plan.pace;
        // A renewal that was asked for only near the deadline may have come too late.
        let in_time = self.agenda.now() - keep.since > timeout;
        let tries = keep.ttl * MILLI / 6 > timeout && in_time;
        if reason == LostReason::Expired
            && self.plan.is_untroubled()
            && tries
            && held.extend.is_none()
        {
            self.checker.violate(format!("{serial} was not renewed, and nothing went wrong"));
        }
        if self.dice.chance(300) {
            let at = self.agenda.now() + self.dice.below(100 * MILLI);
            self.clients[client].relics.push(Relic { at, lock: held.lock, belief: held.belief });
        }
        self.rest(client, user);
    }

    /// What the coordinator says of the locks that its users hold.
    pub fn look_at_beliefs(&mut self, client: usize) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        let kept_waiting = it.kept_waiting;
        let mut prolonged = Vec::new();
        for (user, state) in it.users.iter().map(|user| &user.state).enumerate() {
            let State::Holding(held) = state else { continue };
            let (number, who) = (held.belief, (client, user));
            let belief = self.checker.belief(number);
            let (until, disturbed) = (belief.until, belief.touched);
            let bound = held.keep.as_ref().map_or(u64::MAX, |keep| keep.bound);
            match it.coordinator.deadline(&held.lock).map(|deadline| deadline.as_nanos()) {
                Some(told) if told > until => {
                    self.checker.prolong(now, number, told, kept_waiting);
                    prolonged.push(number);
                    self.agenda.put(told - 1, Event::Probe { belief: number });
                    self.tally.prolonged += u64::from(held.extend.is_none());
                    if told > bound {
                        let words = format!("{who:?} has a lock beyond its bound: {told} {bound}");
                        self.checker.violate(words);
                    }
                }
                Some(told) if told < until => {
                    self.checker.violate(format!("the deadline of {who:?} came nearer"));
                }
                None if now < until => {
                    self.checker.lose(now, number, kept_waiting);
                    let early = until - now;
                    let may_be = if held.keep.is_some() { LOSS_BEFORE } else { 0 };
                    if self.plan.memory == Memory::Kept && !disturbed && early > may_be {
                        let words = format!("{who:?} lost its lock {early} ns before its deadline");
                        self.checker.violate(words);
                    }
                }
                _ => {}
            }
        }
        prolonged.into_iter().for_each(|belief| self.probe(belief));
    }

    /// A key that was lost is set again for what is left of its lock, not for longer: the bytes
    /// that are about to be written to a node show it. If no client is ever late, the time is known
    /// exactly.
    pub fn look_at_heals(&mut self, client: usize, wire: usize, output: &[u8]) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        if it.kept_waiting > 0 || self.plan.pace > 0 {
            return;
        }
        for user in &it.users {
            let State::Holding(held) = &user.state else { continue };
            let token = held.lock.token();
            let Some(ttl) = set_ttl(output, token.digits()) else { continue };
            let belief = self.checker.belief(held.belief);
            if belief.from <= self.network.wires[wire].full_until {
                // The socket was full when the lock was won: this may be the acquire's own `SET`.
                continue;
            }
            let left = belief.until.saturating_sub(now);
            if ttl * MILLI > left + MILLI + 500 * MICRO {
                let words = format!("client {client} heals for {ttl} ms, and has {left} ns left");
                self.checker.violate(words);
            }
        }
    }
}

/// The ttl in milliseconds of the `SET` with this token, if the output has one.
fn set_ttl(output: &[u8], token: &[u8]) -> Option<u64> {
    const OPTIONS: &[u8] = b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n";
    let at = output.windows(token.len()).position(|part| part == token)?;
    let after = output[at + token.len()..].strip_prefix(OPTIONS)?;
    let digits = after.split(|byte| *byte == b'\n').nth(1)?.strip_suffix(b"\r")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
