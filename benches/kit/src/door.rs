//! A contender that keeps keys in flight, and a round of several of them.

use std::thread::sleep;
use std::time::Duration;

use super::meter::Round;
use super::turns::order;

/// The time before every round in which a contender that was not driven reads what it missed.
const COMING_BACK: Duration = Duration::from_millis(20);

/// The time between two rounds, in which the nodes send the answers that no caller waited for.
const PAUSE: Duration = Duration::from_millis(5);

/// A client for locks, however it is driven.
pub trait Door {
    fn name(&self) -> &'static str;

    /// Whether it can have so many keys in flight.
    fn carries(&self, in_flight: usize) -> bool {
        in_flight > 0
    }

    /// Keeps `in_flight` keys in flight for `length`. Pairs that are open at the end are completed
    /// and counted.
    fn run(&mut self, in_flight: usize, length: Duration) -> Round;
}

/// Runs each contender once. Returns its index and its figures.
pub fn round(
    doors: &mut [Box<dyn Door>],
    in_flight: usize,
    number: usize,
    length: Duration,
) -> Vec<(usize, Round)> {
    let contenders = doors.len();
    let one = |which: usize| {
        let door = &mut doors[which];
        door.run(in_flight, COMING_BACK);
        sleep(PAUSE);
        let round = door.run(in_flight, length);
        sleep(PAUSE);
        (which, round)
    };
    order(number, contenders).map(one).collect()
}
