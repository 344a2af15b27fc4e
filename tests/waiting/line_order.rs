//! Waiters in line are served in the order in which they came.
//!
//! Sixteen clients call 2 ms apart, round after round, each from its own thread. If the machine
//! runs a thread late, its call is late, and no lock can know that it was meant to be earlier. So a
//! round is judged by what happened:
//!
//! * Every round: two waiters that are in the same order in all lines are served in that order. A
//!   waiter that was seen in all lines before another one called is served before that one.
//! * In a long run: if the calls were at least 1 ms apart, the waiters are served in the order of
//!   the calls in 99 of 100 rounds. That needs a machine with little else to do:
//!
//! ```console
//! REDLATCH_TEST_ORDER_ROUNDS=400 cargo test --all-features --test servers \
//!     waiters_that_come -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use redlatch::Client;

use super::line::line_config;
use super::*;

/// The environment variable with the number of rounds, for a long run.
const ROUNDS: &str = "REDLATCH_TEST_ORDER_ROUNDS";
const ROUNDS_UNLESS_TOLD: usize = 10;

const WAITERS: usize = 16;

/// The intended time from one call to the next.
const APART: Duration = millis(2);
/// Calls that are at least so far apart have to be served in the order of the calls.
const FAR_ENOUGH: Duration = millis(1);

/// One waiter's turn in a round.
#[derive(Debug, Clone)]
struct Turn {
    number: usize,
    /// The moment before the call.
    called: u64,
    token: String,
}

/// For each token, the first moment at which the test had seen it in all lines.
type Seen = BTreeMap<String, u64>;

/// One round: the turns in the order in which they were served, and the tokens in each node's line
/// before that.
#[derive(Debug, Clone)]
struct Round {
    turns: Vec<Turn>,
    lines: Vec<Vec<String>>,
    seen: Seen,
}

impl Round {
    /// All pairs of turns: an earlier one, and one that was served after it.
    fn pairs(&self) -> impl Iterator<Item = (&Turn, &Turn)> {
        let after = |(place, first)| self.turns[place + 1..].iter().map(move |then| (first, then));
        self.turns.iter().enumerate().flat_map(after)
    }

    /// A waiter that is before another one in every line, and was served after it. A waiter that
    /// made another attempt meanwhile, because the machine stalled, is in no line with its last
    /// token.
    fn served_against_the_lines(&self) -> Option<(&Turn, &Turn)> {
        let place =
            |line: &[String], turn: &Turn| line.iter().position(|token| *token == turn.token);
        let stands_after = |first: &Turn, then: &Turn| {
            self.lines.iter().all(|line| match (place(line, first), place(line, then)) {
                (Some(first), Some(then)) => first > then,
                _ => false,
            })
        };
        self.pairs().find(|(first, then)| stands_after(first, then))
    }

    /// A waiter that called after another one had been seen in every line, and was served before
    /// it.
    fn served_before_an_earlier_one(&self) -> Option<(&Turn, &Turn)> {
        let was_seen_before =
            |it: &Turn, call: u64| self.seen.get(&it.token).is_some_and(|seen| *seen < call);
        self.pairs().find(|(first, then)| was_seen_before(then, first.called))
    }

    /// Whether all were served in the order of their calls.
    fn is_in_order_of_calls(&self) -> bool {
        self.pairs().all(|(first, then)| first.called < then.called)
    }

    /// In how many pairs the second waiter called after the first had been seen in every line.
    fn pairs_one_after_the_other(&self) -> usize {
        let after = |(first, then): &(&Turn, &Turn)| {
            self.seen.get(&first.token).is_some_and(|seen| *seen < then.called)
        };
        self.pairs().filter(after).count()
    }

    fn shortest_time_between_calls(&self) -> Duration {
        let mut called: Vec<u64> = self.turns.iter().map(|turn| turn.called).collect();
        called.sort_unstable();
        let least = called.windows(2).map(|pair| pair[1] - pair[0]).min();
        Duration::from_nanos(least.unwrap_or(0))
    }

    fn served(&self) -> Vec<usize> {
        self.turns.iter().map(|turn| turn.number).collect()
    }
}

/// The waiters' tokens on a node, in their order; `holder` is the holder's token. The first waiter
/// may have the key already, on a node that got the holder's request before the last release.
fn line_of(node: &Node, holder: &str) -> Vec<String> {
    let value = node.get("a").and_then(|value| String::from_utf8(value).ok());
    let members = node.command(&["ZRANGE", "redlatch:line:{a}", "0", "-1"]).text_items();
    let token = |member: &String| member.rsplit(' ').next().unwrap_or_default().to_owned();
    value.into_iter().filter(|value| value != holder).chain(members.iter().map(token)).collect()
}

/// The lines of all nodes, once all waiters are in them, and when each token was first seen in all.
fn whole_lines(fleet: &Fleet, holder: &str) -> (Vec<Vec<String>>, Seen) {
    let (mut lines, mut seen) = (Vec::new(), Seen::new());
    eventually(6 * SOON, "the waiters stand in line", || {
        lines = fleet.iter().map(|node| line_of(node, holder)).collect();
        let looked = now();
        let is_in_all = |token: &&String| lines.iter().all(|line| line.contains(token));
        for token in lines[0].iter().filter(is_in_all) {
            seen.entry(token.clone()).or_insert(looked);
        }
        lines.iter().all(|line: &Vec<String>| line.len() == WAITERS)
    });
    (lines, seen)
}

/// One waiter's thread. Each moment that it receives is the beginning of a round.
fn wait_and_release(client: &Client, number: usize, begins: Receiver<u64>, turns: Sender<Turn>) {
    drop(client.lock(format!("warm-{number}"), waiting()).expect("it is free"));
    for begin in begins {
        let due = begin + (APART * number as u32).as_nanos() as u64;
        let_pass(Duration::from_nanos(due.saturating_sub(now())));
        let called = now();
        let guard = client.lock("a", waiting()).expect("it is its turn");
        let turn = Turn { number, called, token: guard.token().to_string() };
        turns.send(turn).expect("the test listens");
        guard.release().expect("it is released");
    }
}

/// Plays the rounds. The ttl of a hand-over is so long that none expires, however late a thread
/// runs.
fn play(fleet: &Fleet, rounds: usize) -> Vec<Round> {
    let connect = || {
        let config = line_config(fleet).hand_over_ttl(10 * SECOND);
        Client::connect(config).expect("a good configuration")
    };
    let holder = connect();
    std::thread::scope(|scope| {
        let (served, turns) = channel();
        let start = |number| {
            let (begin, begins) = channel();
            let (connect, served) = (&connect, served.clone());
            scope.spawn(move || wait_and_release(&connect(), number, begins, served));
            begin
        };
        let waiters: Vec<Sender<u64>> = (0..WAITERS).map(start).collect();
        let play_one = |_| {
            let guard = holder.lock("a", waiting()).expect("it is free");
            let begin = now() + (5 * APART).as_nanos() as u64;
            waiters.iter().for_each(|waiter| waiter.send(begin).expect("it listens"));
            let (lines, seen) = whole_lines(fleet, &guard.token().to_string());
            guard.release().expect("it is released");
            Round { turns: turns.iter().take(WAITERS).collect(), lines, seen }
        };
        (0..rounds).map(play_one).collect()
    })
}

#[test]
fn waiters_that_come_one_after_the_other_are_served_in_that_order() {
    let asked = number(ROUNDS);
    let fleet = Fleet::start(5);
    let rounds = play(&fleet, asked.unwrap_or(ROUNDS_UNLESS_TOLD));
    let mut one_after_the_other = 0;
    for round in &rounds {
        assert_eq!(round.turns.len(), WAITERS);
        let found = round.served_against_the_lines();
        assert!(found.is_none(), "{found:?} in {:?}", round.lines);
        let found = round.served_before_an_earlier_one();
        assert!(found.is_none(), "{found:?} in {round:?}");
        one_after_the_other += round.pairs_one_after_the_other();
        if !round.is_in_order_of_calls() {
            println!("served: {:?}", round.served());
        }
    }
    let apart = rounds.iter().filter(|round| round.shortest_time_between_calls() >= FAR_ENOUGH);
    let apart: Vec<&Round> = apart.collect();
    let in_order = |round: &&&Round| round.is_in_order_of_calls();
    let good = apart.iter().filter(in_order).count();
    let alike = rounds.iter().filter(|round| round.lines.iter().all(|l| *l == round.lines[0]));
    println!("{good} of {} rounds with calls {FAR_ENOUGH:?} apart in order", apart.len());
    println!("of {} rounds, {} with the same line on all nodes", rounds.len(), alike.count());
    println!("{one_after_the_other} pairs of which one called after the other stood in all lines");
    assert!(one_after_the_other > 0, "no order was shown");
    if asked.is_some() {
        assert!(2 * apart.len() > rounds.len(), "the machine is too busy for a long run");
        assert!(good * 100 >= apart.len() * 99, "{good} of {}", apart.len());
    }
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn a_round_that_is_out_of_order_is_found() {
    let turn = |number: usize, called: u64| Turn {
        number,
        called: millis(called).as_nanos() as u64,
        token: number.to_string(),
    };
    let line = |order: &[usize]| order.iter().map(ToString::to_string).collect::<Vec<_>>();
    let turns = vec![turn(0, 10), turn(2, 41), turn(1, 20)];
    let at = |moments: [u64; 3]| -> Seen {
        let nanos = moments.map(|moment| millis(moment).as_nanos() as u64);
        (0..3).map(|number| number.to_string()).zip(nanos).collect()
    };
    // Waiter 2 called before the test had seen waiter 1 in every line.
    let seen = at([15, 42, 50]);
    let bad = Round { turns, lines: vec![line(&[0, 1, 2]), line(&[1, 0, 2])], seen };
    let found = bad.served_against_the_lines().map(|(first, then)| (first.number, then.number));
    assert_eq!(found, Some((2, 1)));
    // A waiter that made another attempt stands in no line with its last token.
    let again = Round { turns: vec![turn(2, 41), turn(3, 42)], ..bad.clone() };
    assert!(again.served_against_the_lines().is_none());
    assert!(!bad.is_in_order_of_calls() && bad.served_before_an_earlier_one().is_none());
    assert_eq!(bad.pairs_one_after_the_other(), 2);
    let worse = Round { seen: at([15, 40, 50]), ..bad.clone() };
    let found =
        worse.served_before_an_earlier_one().map(|(first, then)| (first.number, then.number));
    assert_eq!(found, Some((2, 1)));
    assert_eq!(bad.shortest_time_between_calls(), millis(10));
    let differ = Round { lines: vec![line(&[0, 1, 2]), line(&[0, 2, 1])], ..bad };
    assert!(differ.served_against_the_lines().is_none());
}
