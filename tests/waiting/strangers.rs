//! Other programs on the same servers, which read all messages and may send any: monitoring tools,
//! and a program that wants the key. And members of a line that no client put there.

use redlatch::Client;
use redlatch::testing::inside::{HAND_OVER, JOIN, SCORE_OF_A_PLACE};

use super::line::{line_config, three, wait_for_line};
use super::*;
use crate::support::{RespClient, Value};

/// A client that receives every message of a server.
struct Listener(RespClient);

impl Listener {
    fn start(node: &Node) -> Listener {
        let mut client = node.client();
        client.command(&["PSUBSCRIBE", "*"]).expect("everyone may listen");
        Listener(client)
    }

    /// Waits for the next message, and returns its channel and its text.
    fn next(&mut self) -> (String, String) {
        loop {
            let push = self.0.read().expect("a message comes").text_items();
            if let [kind, _, channel, text] = &push[..] {
                if kind == "pmessage" && channel.starts_with("redlatch:") {
                    return (channel.clone(), text.clone());
                }
            }
        }
    }
}

/// The channels of the waiters in the line of a node, from first to last.
fn channels(node: &Node) -> Vec<String> {
    let members = node.command(&["ZRANGE", "redlatch:line:{a}", "0", "-1"]).text_items();
    let channel = |member: &String| member.split(' ').nth(2).expect("a channel").to_owned();
    members.iter().map(channel).collect()
}

/// Runs the script of a hand-over for this token.
fn hand_over(node: &Node, token: &str, name: &str) -> Value {
    node.command(&["EVAL", HAND_OVER.source, "2", "a", "redlatch:line:{a}", token, name])
}

/// Another program repeats the message by which the holder got the lock, on the channel of the next
/// waiter.
#[test]
fn holder_keeps_its_lock_while_others_repeat_the_message_by_which_it_got_it() {
    let fleet = Fleet::start(3);
    let mut listeners: Vec<Listener> = fleet.iter().map(Listener::start).collect();
    let [mut first, mut holder, mut next] = three(&fleet, TTL);
    first.release();
    let had = holder.wait_until_locked();
    wait_for_line(&fleet, 1);
    for (node, listener) in fleet.iter().zip(&mut listeners) {
        let (_, text) = listener.next();
        let channel = channels(node).pop().expect("the next waiter stands in line");
        node.command(&["PUBLISH", &channel, &text]);
    }
    // The waiter has time to read the messages before the test asks it for anything.
    let_pass(millis(300));
    let token = fleet[0].get("a").expect("it is held");
    assert!(fleet.iter().all(|node| node.get("a").as_ref() == Some(&token)), "it was released");
    let released = holder.release();
    let had_next = next.wait_until_locked();
    assert!(had.have < released && released < had_next.have, "held by two");
    next.release();
    wait_until_nothing_is_left(&fleet);
}

/// One node hands the key over. A program repeats that node's message on the other nodes, where
/// another program holds the key.
#[test]
fn message_of_one_node_that_others_repeat_is_one_vote() {
    let fleet = Fleet::start(3);
    let mut listener = Listener::start(&fleet[0]);
    fleet.command(&["SET", "a", "other", "PX", "60000"]);
    let mut waiter = Loop::ready(line_config(&fleet));
    let op = waiter.engine.acquire("a", waiting(), 0).expect("there is room");
    waiter.turn_until("it stands in line", |_| {
        fleet.iter().all(|node| node.command(&["ZCARD", "redlatch:line:{a}"]).int() == 1)
    });
    let channels: Vec<String> = fleet.iter().map(|node| channels(node).remove(0)).collect();
    assert_eq!(hand_over(&fleet[0], "other", "").int(), 1);
    let (channel, text) = listener.next();
    assert_eq!(channel, channels[0]);
    for (node, channel) in fleet.iter().zip(&channels) {
        node.command(&["PUBLISH", channel, &text]);
    }
    waiter.turn_for(millis(500));
    assert!(
        waiter.engine.poll_completion().is_none(),
        "the other program holds two of three nodes"
    );
    assert!(waiter.engine.stats().messages_ignored >= 2);
    waiter.engine.cancel(op);
    fleet.command(&["DEL", "a"]);
    waiter.turn_until("nothing is left", |_| fleet.keys_everywhere().is_empty());
}

#[test]
fn monitoring_tools_that_listen_to_everything_make_no_dead_waiter_look_alive() {
    let fleet = Fleet::start(3);
    let _listeners: Vec<Listener> = fleet.iter().map(Listener::start).collect();
    let [mut holder, mut dead, mut next] = three(&fleet, TTL);
    dead.kill();
    // The test waits until the server notices that the dead process's connections have ended.
    let subscribed =
        |node: &Node, channel: &String| match node.command(&["PUBSUB", "NUMSUB", channel]) {
            Value::Array(counts) => counts[1].int() > 0,
            other => panic!("{other:?}"),
        };
    eventually(SOON, "the connections of the dead waiter have ended", || {
        fleet.iter().all(|node| !subscribed(node, &channels(node)[0]))
    });
    let timer = PlainTimer::start();
    let gap = holder.hand_over_to(&mut next);
    println!("the next one has it after {gap:?}");
    // A key that is handed over to a dead waiter would live for four node timeouts: 1 s.
    assert!(gap < timer.limit(millis(300)), "{gap:?}");
    next.release();
    wait_until_nothing_is_left(&fleet);
}

/// Each client lists the nodes in another order, and the lines differ after the first waiter.
#[test]
fn order_in_which_clients_list_the_nodes_does_not_matter() {
    const WAITERS: usize = 5;
    let fleet = Fleet::start(5);
    fleet.command(&["SET", "a", "other"]);
    let wait = |number: usize| {
        let mut urls = fleet.urls();
        urls.rotate_left(number);
        let config = config(urls).hand_over_ttl(10 * SECOND);
        let client = Client::connect(config).expect("a good configuration");
        let guard = client.lock("a", waiting()).expect("it is served");
        guard.release().expect("it is held");
        client.stats().splits
    };
    let splits = std::thread::scope(|scope| {
        let mut waiters = Vec::new();
        for number in 0..WAITERS {
            waiters.push(scope.spawn(move || wait(number)));
            wait_for_line(&fleet, number + 1);
        }
        for (turn, node) in fleet.iter().enumerate() {
            let members = node.command(&["ZRANGE", "redlatch:line:{a}", "1", "-1"]).text_items();
            for (place, member) in members.iter().enumerate() {
                let place = 10 + (place + turn) % members.len();
                let score = (place as i64 * SCORE_OF_A_PLACE).to_string();
                node.command(&["ZADD", "redlatch:line:{a}", "XX", &score, member]);
            }
        }
        fleet.iter().for_each(|node| drop(hand_over(node, "other", "")));
        let splits = waiters.into_iter().map(|waiter| waiter.join().expect("it is served"));
        splits.sum::<u64>()
    });
    assert_eq!(splits, 0, "each holder names one successor to all nodes");
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn script_passes_over_a_bounded_number_of_dead_waiters() {
    let fleet = Fleet::start(1);
    let node = &fleet[0];
    let add = "for i = 1, 10000 do redis.call('ZADD', KEYS[1], i, string.format(\
               '1000 1000 redlatch:%032x %020x %040x', i, i, i)) end";
    node.command(&["EVAL", add, "1", "redlatch:line:{a}"]);
    let left = || node.command(&["ZCARD", "redlatch:line:{a}"]).int();
    node.command(&["SET", "a", "token"]);
    // The successor that the release names is too far back in the line.
    let start = Instant::now();
    assert_eq!(hand_over(node, "token", &format!("{:012x}", 0)).int(), 1);
    println!("one release took {:?}", start.elapsed());
    assert_eq!((left(), node.get("a")), (9_600, None));
    // A live waiter joins. Each of its polls removes some of the dead ones.
    let mut waiter = Loop::ready(line_config(&fleet));
    node.command(&["SET", "a", "other", "PX", "300"]);
    let start = Instant::now();
    let lock = waiter.lock_in_line("a");
    println!("the line was empty after {:?}", start.elapsed());
    waiter.engine.release_nowait(&lock);
    waiter.turn_until("nothing is left", |_| node.keys().is_empty());
}

/// Without the right to `PUBSUB` the script goes by what `PUBLISH` returns, so each dead waiter may
/// have the key for a moment.
#[test]
fn no_dead_waiter_keeps_the_key_where_too_many_are_dead() {
    let fleet = Fleet::start(1);
    let node = &fleet[0];
    let add = "for i = 1, 1000 do redis.call('ZADD', KEYS[1], i, string.format(\
               '1000 1000 redlatch:%032x %020x %040x', i, i, i)) end";
    node.command(&["EVAL", add, "1", "redlatch:line:{a}"]);
    node.command(&["ACL", "SETUSER", "default", "-pubsub"]);
    let member = "1000 1000 - m token";
    let join =
        ["EVAL", JOIN.source, "2", "a", "redlatch:line:{a}", "token", member, "1000", "10000"];
    assert_eq!(node.command(&join).text(), "held 0 -2 ");
    assert_eq!(node.get("a"), None);
    assert_eq!((node.command(&join).text(), node.get("a")), ("held 0 -2 ".into(), None));
    let got = (node.command(&join).text(), node.get("a"));
    assert_eq!(got, ("mine 1000 ".into(), Some(b"token".to_vec())));
}

#[test]
fn malformed_members_of_a_line_are_removed() {
    let fleet = Fleet::start(3);
    for node in fleet.iter() {
        for junk in ["0 5 - m t", "5 0 - m t", "99999999999999999999 5 - m t", "x", "5 - m t", ""] {
            node.command(&["ZADD", "redlatch:line:{a}", "1", junk]);
        }
    }
    let mut waiter = Loop::ready(line_config(&fleet));
    fleet.command(&["SET", "a", "other", "PX", "300"]);
    let lock = waiter.lock_in_line("a");
    let stats = waiter.engine.stats();
    assert_eq!(stats.handed_over, 1, "no node refused the join");
    waiter.engine.release_nowait(&lock);
    waiter.turn_until("nothing is left", |_| fleet.keys_everywhere().is_empty());
}

/// What a test here does with an engine in its loop.
trait InLine {
    fn lock_in_line(&mut self, key: &str) -> Lock;
}

impl InLine for Loop {
    #[track_caller]
    fn lock_in_line(&mut self, key: &str) -> Lock {
        let op = self.engine.acquire(key, waiting(), 0).expect("there is room");
        self.locked(op)
    }
}
