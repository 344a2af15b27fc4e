//! How callers fetch completions: as soon as they are there, or some time after the report, as a
//! future does that is woken first and polled later. Between report and fetch the request may be
//! cancelled, and the lock may be over.

use redlatch::Op;
use redlatch::proto::turn;

use crate::user::Purpose;
use crate::world::World;

/// A completion that was reported and is not fetched yet.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    op: Op,
    /// When the caller fetches it.
    pub at: u64,
}

impl World {
    /// A client fetches completions, and updates about its locks.
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
            // The simulation itself waits for these completions, so they are fetched without a
            // pause.
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
