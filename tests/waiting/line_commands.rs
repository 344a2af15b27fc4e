//! How many commands a server executes inside the scripts of a line: each of them delays all
//! waiters. The bounds are those measured on Redis 7.0.15; the hazard is a script that runs a
//! command twice.

use redlatch::testing::inside::{HAND_OVER, JOIN};

use super::line::line_config;
use super::*;
use crate::support::Monitor;

const LINE: &str = "redlatch:line:{a}";

/// The ttls of a waiter in line: with the first two, the ttl of its key depends on its last join.
const TWO_TTLS: &str = "30000 1000";
const ONE_TTL: &str = "1000 1000";

/// One server, and a monitor of the commands that it executes inside scripts.
struct Watched {
    fleet: Fleet,
    monitor: Monitor,
}

impl Watched {
    fn start() -> Watched {
        let fleet = Fleet::start(1);
        let monitor = fleet[0].monitor();
        Watched { fleet, monitor }
    }

    fn node(&self) -> &Node {
        &self.fleet[0]
    }

    fn executed(&self) -> usize {
        self.monitor.lines().iter().filter(|line| line.contains(" lua] ")).count()
    }

    /// How many commands the server executes inside a script with these arguments.
    fn count(&self, script: &str, arguments: &[&str]) -> usize {
        let before = self.executed();
        let command = [&["EVAL", script, "2", "a", LINE], arguments].concat();
        let said = self.node().command(&command);
        assert!(!format!("{said:?}").contains("Error"), "{said:?}");
        self.executed() - before
    }

    /// Joins the line as a waiter that cannot be notified.
    fn join(&self, token: &str, ttls: &str, again: &str) -> usize {
        let member = format!("{ttls} - mark {token}");
        self.count(JOIN.source, &[token, &member, "30000", "10000", again])
    }

    /// Sets the key, and lets `waiters` waiters join its line.
    fn held(&self, waiters: usize, ttls: &str) {
        self.node().command(&["DEL", LINE]);
        self.node().command(&["SET", "a", "holder", "PX", "30000"]);
        for waiter in 0..waiters {
            self.join(&format!("t{waiter}"), ttls, "");
        }
    }

    fn hand_over(&self, arguments: &[&str]) -> usize {
        self.count(HAND_OVER.source, arguments)
    }
}

#[test]
fn join_costs_a_server_seven_commands_at_most() {
    let server = Watched::start();
    server.held(0, TWO_TTLS);
    assert!(server.join("t0", TWO_TTLS, "") <= 6, "into an empty line");
    for behind in ["t1", "t2"] {
        assert!(server.join(behind, TWO_TTLS, "") <= 7, "with others before it");
    }
    for polls in ["t0", "t1", "t2"] {
        assert!(server.join(polls, TWO_TTLS, "1") <= 7, "a poll");
    }
    server.node().command(&["DEL", "a", LINE]);
    assert!(server.join("t0", TWO_TTLS, "") <= 6, "of a free key");
    assert!(server.join("t0", TWO_TTLS, "1") <= 4, "of the own key");
}

#[test]
fn line_always_has_an_end_and_no_join_brings_it_forward() {
    let server = Watched::start();
    server.held(1, TWO_TTLS);
    let member = |mark: &str| format!("{TWO_TTLS} - {mark} t0");
    let left = || server.node().command(&["PTTL", LINE]).int();
    // The only member of the line gets another mark.
    let words = ["t0", &member("other"), "30000", "60000", "1", &member("mark")];
    server.count(JOIN.source, &words);
    assert!(left() > 10_000, "{} ms", left());
    server.count(JOIN.source, &["t0", &member("other"), "30000", "10000", "1"]);
    assert!(left() > 10_000, "{} ms", left());
}

#[test]
fn hand_over_costs_a_server_few_commands() {
    let server = Watched::start();
    // These waiters have no channel. PUBSUB NUMSUB and PUBLISH would be two commands more.
    for (ttls, most) in [(TWO_TTLS, 5), (ONE_TTL, 4)] {
        server.held(2, ttls);
        assert!(server.hand_over(&["holder"]) <= most, "to the first");
        server.held(2, ttls);
        assert!(server.hand_over(&["holder", "t0"]) <= most, "to the first, by its name");
        server.held(2, ttls);
        assert!(server.hand_over(&["holder", "t1"]) <= most + 2, "to another one, by its name");
        server.held(2, ttls);
        assert!(
            server.hand_over(&["holder", "", "none"]) <= most + 1,
            "with a member that is gone"
        );
    }
    server.held(0, TWO_TTLS);
    assert!(server.hand_over(&["holder"]) <= 3, "to nobody");
    server.held(0, TWO_TTLS);
    assert!(server.hand_over(&["holder", "", "none"]) <= 3, "to nobody, with a member");
    server.held(2, TWO_TTLS);
    assert!(server.hand_over(&["never"]) <= 2, "of a token that never joined");
}

#[test]
fn waiter_says_in_its_polls_that_it_stands_in_line() {
    let server = Watched::start();
    let mut holder = Loop::ready(line_config(&server.fleet));
    let op = holder.engine.acquire("a", waiting(), 0).expect("there is room");
    let lock = holder.locked(op);
    let mut waiters = [0; 2].map(|_| Loop::ready(line_config(&server.fleet)));
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.engine.acquire("a", waiting(), 0).expect("there is room");
        let line = || server.node().command(&["ZRANGE", LINE, "0", "-1"]).text_items().len();
        waiter.turn_until("it stands in line", |_| line() > number);
        // The client has also read the answer to its join.
        waiter.turn_for(millis(20));
    }
    let joins = || {
        let lines = server.monitor.lines();
        lines.iter().filter(|line| line.contains("EVAL") && line.contains(LINE)).count()
    };
    let before = (joins(), server.executed());
    let start = Instant::now();
    while joins() < before.0 + 4 && start.elapsed() < POLLED_BY {
        waiters.iter_mut().for_each(|waiter| waiter.turn_for(millis(20)));
    }
    let polls = joins() - before.0;
    assert!(
        polls >= 4 && server.executed() - before.1 <= 7 * polls,
        "{polls} polls: {} commands",
        server.executed() - before.1
    );
    holder.engine.release_nowait(&lock);
    holder.comes_to_rest();
}
