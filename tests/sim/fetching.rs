//! The callers take what ended: at once, or reported first and fetched later, as a future that is
//! woken and polled after that. Between the two it may be taken back, and the lock may be over.

use redlatch::Op;
use redlatch::proto::turn;

use crate::user::Purpose;
use crate::world::World;

/// An end that was reported.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    op: Op,
    /// When it is fetched.
    pub at: u64,
}

impl World {
    /// A client takes what ended, and what happened to its locks.
    pub fn take_ends(&mut self, client: usize) {
        self.take_updates(client);
        let now = self.agenda.now();
        if self.plan.fetched_late == 0 {
            while let Some(done) = turn::hand_out(&mut self.drive(client)) {
                self.answered(client, done);
            }
            return;
        }
        while let Some((op, serial)) = self.clients[client].coordinator.poll_ended() {
            let purpose = self.clients[client].asked.get(&serial);
            // The simulation itself waits for the ends of these requests, so they are fetched
            // without a pause.
            let is_awaited = matches!(purpose, Some(Purpose::Errand) | None);
            let pause = if is_awaited { 0 } else { self.dice.below(self.plan.fetched_late) };
            self.clients[client].told.push(Told { op, at: now + pause });
        }
        while let Some(next) = self.clients[client].told.iter().position(|told| told.at <= now) {
            let told = self.clients[client].told.swap_remove(next);
            if let Some(done) = turn::fetch(&mut self.drive(client), told.op) {
                self.answered(client, done);
            }
        }
    }
}
