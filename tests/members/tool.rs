//! A tool that changes the list of masters: the product's own [`Change`], which asks the masters of
//! the simulated network. One call is one question, so that others can act in between.
//!
//! The hazard is that it asks or waits for less than the code that runs `Change` in the real tool:
//! then these tests would check something else than the product.

use redlatch::proto::change::{Change, Goal, Next, Place, Replacement};
use redlatch::proto::{MemberList, MembersState};

use super::*;

/// What a tool has done.
pub enum Done {
    Asked,
    /// It waits.
    Idle,
    /// It has ended; with its list, if it has reached its goal.
    Over(Option<MemberList>),
}

/// A tool at work.
pub struct Tool {
    pub change: Change,
    /// It does nothing before this moment.
    idle_until: Instant,
    asks: Vec<(usize, Option<Replacement>)>,
    learns: Option<usize>,
}

impl Tool {
    /// A tool that can ask these first masters of the network.
    pub fn new(net: &Net<Client>, masters: usize, goal: Goal, tool: u64) -> Tool {
        let place = |master: usize| {
            let run_id = net.master(master).identities()[0].as_bytes().try_into().ok();
            Place { address: format!("10.0.0.{master}:6379").into(), run_id }
        };
        let places = (0..masters).map(place).collect();
        let change = Change::new(places, goal, Change::wait_of(TTL), tool);
        Tool { change, idle_until: net.now(), asks: Vec::new(), learns: None }
    }

    pub fn is_idle(&self, now: Instant) -> bool {
        now < self.idle_until
    }

    /// Asks the next question, of a master that it reaches.
    pub fn go_on(&mut self, net: &mut Net<Client>, reaches: impl Fn(usize) -> bool) -> Done {
        let now = net.now();
        if self.is_idle(now) {
            return Done::Idle;
        }
        if let Some(place) = self.learns.take() {
            self.change.trusted(place);
        }
        if let Some((master, write)) = self.asks.pop() {
            let answer = reaches(master).then(|| answer(net, master, write));
            self.change.answered(master, answer);
            return Done::Asked;
        }
        match self.change.next(now) {
            Next::Ask(requests) => {
                let asks = requests.into_iter().rev().map(|ask| (ask.place, ask.write));
                self.asks = asks.collect();
                return Done::Asked;
            }
            Next::Quarantine(place) => {
                self.idle_until = now.saturating_add(2 * TTL);
                self.learns = Some(place);
            }
            Next::Wait(until) => self.idle_until = until,
            Next::Pause(pause) => self.idle_until = now.saturating_add(pause),
            Next::Done(list) => return Done::Over(Some(list)),
            Next::Failed(_) => return Done::Over(None),
        }
        Done::Idle
    }
}

/// What a master has after a question of the tool.
fn answer(net: &mut Net<Client>, master: usize, write: Option<Replacement>) -> MembersState {
    let found = value(net, master);
    if let Some(Replacement { expected, new }) = write {
        if found == expected.map_or(String::new(), |it| it.text()) {
            net.command(master, &[b"SET", MEMBERS, new.text().as_bytes()]);
        }
    }
    match &*value(net, master) {
        "" => MembersState::Blank,
        text => MembersState::read(text.as_bytes()),
    }
}
