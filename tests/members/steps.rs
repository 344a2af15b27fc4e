//! Orders in which a change of the list gives two holders if a part of a step is left out, played
//! with the product's own tool. `tests/list_search` found most of them. Chance seldom does.
//!
//! The masters 0, 1 and 2 have the first list, and 0 is replaced by 3. A client of the first list
//! can hold by 0 and 1, and a client that is two steps ahead by 2 and 3.
//!
//! The hazard is an order in which the first client loses its lock earlier than it could.

use redlatch::proto::Lock;
use redlatch::proto::change::{Event, Goal};
use redlatch::testing::master::Restart;

use super::tool::{Done, Tool};
use super::*;

struct World {
    net: Net<Client>,
    tool: Tool,
    /// The masters that the tool does not reach.
    unreached: Vec<usize>,
    /// What the tool has done since it was looked at.
    events: Vec<Event>,
    is_over: bool,
}

impl World {
    fn new() -> World {
        let (mut net, first) = net_with_list(4);
        net.stop(first);
        let mut settings = settings_of(&[3]);
        settings.check_members = false;
        let marker = client_with(&mut net, &[3], settings);
        net.pass(2 * TTL);
        net.stop(marker);
        let tool = Tool::new(&net, 4, Goal::To(vec![1, 2, 3]), 7);
        World { net, tool, unreached: Vec::new(), events: Vec::new(), is_over: false }
    }

    /// Another client of all masters.
    fn client(&mut self) -> usize {
        client(&mut self.net, &[0, 1, 2, 3])
    }

    /// Another tool goes on, with this goal.
    fn start_tool(&mut self, goal: Goal) {
        self.tool = Tool::new(&self.net, 4, goal, 8);
        self.is_over = false;
    }

    /// Lets the tool ask until it waits.
    fn go_on(&mut self) {
        while !self.is_over && self.ask_one() {}
    }

    /// Lets the tool ask one question, and returns whether it does not wait.
    fn ask_one(&mut self) -> bool {
        let unreached = &self.unreached;
        let done = self.tool.go_on(&mut self.net, |master| !unreached.contains(&master));
        self.events.extend(self.tool.change.take_events());
        self.is_over = matches!(done, Done::Over(_));
        matches!(done, Done::Asked)
    }

    fn has_decided(&self, size: usize) -> bool {
        let is_it =
            |event: &Event| matches!(event, Event::Decided(list) if list.members().len() == size);
        self.events.iter().any(is_it)
    }

    /// Lets the tool go on, and this many tenths of a second pass, but not after it has decided on
    /// a list of so many masters.
    fn pass_to_decision(&mut self, size: usize, tenths: usize) {
        for _ in 0..tenths {
            while !self.is_over && self.ask_one() && !self.has_decided(size) {}
            if self.has_decided(size) {
                return;
            }
            self.net.pass(millis(100));
        }
    }

    /// Lets the tool go on until it has decided on a list of so many masters.
    #[track_caller]
    fn pass_until_decided(&mut self, size: usize) {
        self.pass_to_decision(size, 1000);
        assert!(self.has_decided(size), "{:?}", self.events);
    }

    /// Lets time pass, in which the tool goes on and a client extends its lock.
    fn keep(&mut self, holder: usize, lock: &Lock, length: Duration) {
        let end = self.net.now().saturating_add(length);
        while self.net.now() < end {
            self.extend(holder, lock);
            for _ in 0..10 {
                self.go_on();
                self.net.pass(millis(100));
            }
        }
    }

    fn extend(&mut self, holder: usize, lock: &Lock) {
        let now = self.net.now();
        let core = &mut self.net.client_mut(holder).core;
        while core.poll_completion(now).is_some() {}
        // If this is lost, the lock has not become longer.
        drop(core.extend(lock, TTL, 0, now));
    }

    /// Lets time pass, in which the tool goes on and another client asks for the lock. It must not
    /// get it before the lock of the holder has ended.
    #[track_caller]
    fn pass_beside(&mut self, holder: usize, lock: &Lock, other: usize, length: Duration) {
        let end = self.net.now().saturating_add(length);
        while self.net.now() < end {
            self.go_on();
            ask(&mut self.net, other);
            self.net.pass(millis(100));
            let got = holds(&mut self.net, other);
            let now = self.net.now();
            let left = self.net.get_client(holder).core.remaining(lock, now);
            assert!(!got || left.is_zero(), "a second holder, {left:?} before the first one's end");
            if got {
                return;
            }
        }
    }

    /// Asks for the lock, and gets it.
    #[track_caller]
    fn hold(&mut self, client: usize) -> Lock {
        ask(&mut self.net, client);
        self.net.pass(millis(100));
        match result(&mut self.net, client) {
            Some(Ok(Outcome::Acquired(lock))) => lock,
            other => panic!("{other:?}"),
        }
    }

    fn cut_off(&mut self, client: usize, masters: &[usize]) {
        self.net.client_mut(client).cut_off = masters.to_vec();
    }
}

/// A client stands still from before the first step is told on, and then takes a lock by the list
/// that it had read.
#[test]
fn lock_by_an_old_list_ends_before_the_list_is_two_steps_ahead() {
    for seconds in 1..15 {
        let mut world = World::new();
        let (late, other) = (world.client(), world.client());
        world.pass_until_decided(4);
        world.net.stop(late);
        world.cut_off(late, &[2]);
        for _ in 0..seconds * 10 - 4 {
            world.go_on();
            world.net.pass(millis(100));
        }
        ask(&mut world.net, late);
        world.net.resume(late);
        world.net.pass(millis(100));
        let Some(Ok(Outcome::Acquired(lock))) = result(&mut world.net, late) else {
            panic!("after {seconds} s it does not hold");
        };
        world.pass_beside(late, &lock, other, 2 * TTL);
    }
}

/// The tool loses the masters by which the holder keeps its lock, and reaches them again after the
/// wait.
#[test]
fn list_that_one_member_was_told_is_not_changed_again() {
    let mut world = World::new();
    let (holder, other) = (world.client(), world.client());
    world.pass_until_decided(4);
    world.unreached = vec![0, 1];
    world.cut_off(holder, &[2, 3]);
    let lock = world.hold(holder);
    world.keep(holder, &lock, WAIT - millis(500));
    world.unreached = Vec::new();
    if world.is_over {
        world.start_tool(Goal::To(vec![1, 2, 3]));
    }
    world.pass_beside(holder, &lock, other, TTL);
}

/// A member loses its data in the wait, and gets the old list back from a client that reaches no
/// other member which was told.
#[test]
fn member_that_lost_the_list_in_the_wait_is_told_again_and_the_wait_begins_anew() {
    let mut world = World::new();
    let (holder, other) = (world.client(), world.client());
    world.pass_until_decided(4);
    world.unreached = vec![2];
    world.go_on();
    world.net.restart(0, Restart::Empty);
    world.cut_off(holder, &[1, 3]);
    world.cut_off(other, &[0]);
    world.net.pass(WAIT - millis(300));
    assert!(value(&world.net, 0).contains(" returned "), "{}", value(&world.net, 0));
    let lock = world.hold(holder);
    world.pass_beside(holder, &lock, other, TTL);
}

/// A client follows a step, which is undone; then the list is changed in another way.
#[test]
fn lists_after_an_undo_have_later_epochs_than_the_step_that_was_undone() {
    let mut world = World::new();
    let (holder, other) = (world.client(), world.client());
    world.pass_until_decided(4);
    world.go_on();
    world.net.pass(TTL);
    world.cut_off(holder, &[2]);
    let lock = world.hold(holder);
    world.start_tool(Goal::Undo);
    while !world.is_over {
        world.keep(holder, &lock, millis(1000));
    }
    world.start_tool(Goal::To(vec![2]));
    world.events.clear();
    while !world.has_decided(1) {
        world.extend(holder, &lock);
        world.pass_to_decision(1, 10);
    }
    world.unreached = vec![1];
    world.pass_beside(holder, &lock, other, TTL);
}

/// A master loses its data after two steps of which a client that reaches it knows neither.
#[test]
fn master_that_lost_its_data_gets_no_list_back_that_is_two_steps_old() {
    let mut world = World::new();
    let (late, holder) = (world.client(), world.client());
    world.pass_until_decided(4);
    world.unreached = vec![0];
    world.cut_off(late, &[1, 2, 3]);
    while !world.is_over {
        world.go_on();
        world.net.pass(millis(100));
    }
    world.cut_off(holder, &[1]);
    world.net.pass(TTL);
    let lock = world.hold(holder);
    world.net.restart(1, Restart::Empty);
    world.cut_off(late, &[2, 3]);
    for _ in 0..60 {
        world.extend(holder, &lock);
        world.pass_beside(holder, &lock, late, millis(1000));
    }
    let left = world.net.get_client(holder).core.remaining(&lock, world.net.now());
    assert!(!left.is_zero(), "the lock is lost");
}
