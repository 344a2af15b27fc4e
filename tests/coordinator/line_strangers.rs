//! Strangers: other programs that may only read all messages of the nodes and send messages. They
//! can neither make a second holder nor cause a release.

use redlatch::proto::{Lock, LockOptions, NodeId};
use redlatch::testing::inside::HAND_OVER;
use redlatch::testing::master::Trouble;

use super::line::{LONG, MS, TTL};
use super::line_world::{KEY, LINE, World};

/// A member of the line at a node, as words: ttl, short ttl, channel, mark, token.
pub fn words_of_member(world: &World, node: usize, place: usize) -> [String; 5] {
    let member = world.line(node).remove(place);
    let member = String::from_utf8(member).expect("it is text");
    let words: Vec<String> = member.split(' ').map(str::to_owned).collect();
    words.try_into().expect("five words")
}

/// The channel of the same client at another node.
fn channel_at(channel: &str, node: usize) -> String {
    format!("{}{node:02x}", &channel[..channel.len() - 2])
}

pub fn publish(world: &mut World, node: usize, channel: &str, text: &str) {
    world.run(node, &[b"PUBLISH", channel.as_bytes(), text.as_bytes()]);
}

/// The last message of the node to the client on this channel.
pub fn last_message(world: &World, client: usize, node: usize, channel: &str) -> Option<String> {
    let bytes = world.unread(client, node);
    let text = String::from_utf8(bytes).expect("it is text");
    let (_, after) = text.rsplit_once(&format!("{channel}\r\n$"))?;
    let (length, body) = after.split_once("\r\n")?;
    Some(body[..length.parse::<usize>().ok()?].to_owned())
}

/// The holder releases its lock at node 0. Returns the message by which the node hands the key over
/// to the next client.
pub fn message_of_a_hand_over(
    world: &mut World,
    all: &[usize],
    lock: Lock,
    channel: &str,
) -> String {
    world.release(all[0], lock);
    world.deliver_to_node(all[0], 0);
    last_message(world, all[1], 0, channel).expect("node 0 handed the key over")
}

#[test]
fn message_of_one_node_is_no_vote_of_another_node() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let [_, _, channel, ..] = words_of_member(&world, 0, 0);
    let message = message_of_a_hand_over(&mut world, &all, lock, &channel);
    // Another program read the message of node 0, and sends it through the other nodes.
    for node in 0..3 {
        publish(&mut world, node, &channel_at(&channel, node), &message);
        world.deliver_to_client(all[1], node);
    }
    let now = world.now();
    let core = world.client_mut(all[1]);
    assert!(core.poll_completion(now).is_none(), "one node voted three times");
    assert_eq!(core.stats().messages_ignored, 3);
    world.settle();
    world.win_and_release(all[1]);
    world.assert_clean();
}

#[test]
fn message_that_is_sent_again_is_no_vote() {
    let (mut world, all, lock) = World::with_line(1, 2, TTL);
    let [_, _, channel, ..] = words_of_member(&world, 0, 0);
    let message = message_of_a_hand_over(&mut world, &all, lock, &channel);
    // The waiter reads this hand-over too late, and joins the line again.
    world.advance(TTL + TTL);
    world.run(0, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    world.settle();
    world.pass(200 * MS);
    assert_eq!(world.in_line(0), 1);
    publish(&mut world, 0, &channel, &message);
    world.pass(200 * MS);
    assert!(world.lock(all[1]).is_none(), "another client holds the key");
    assert!(world.core(all[1]).stats().messages_ignored > 0);
}

#[test]
fn message_of_an_earlier_connection_is_no_vote() {
    let (mut world, all, lock) = World::with_line(1, 2, TTL);
    let [_, _, channel, ..] = words_of_member(&world, 0, 0);
    let message = message_of_a_hand_over(&mut world, &all, lock, &channel);
    world.cut(all[1], 0);
    world.run(0, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    world.pass(300 * MS);
    assert_eq!(world.in_line(0), 1, "it is connected, and stands in line again");
    publish(&mut world, 0, &channel, &message);
    world.pass(200 * MS);
    assert!(world.lock(all[1]).is_none(), "another client holds the key");
}

#[test]
fn no_message_has_the_token_or_the_mark_of_another_waiter() {
    let (mut world, all, lock) = World::with_line(3, 3, TTL);
    let [_, _, channel, mark, token] = words_of_member(&world, 0, 0);
    let [_, _, _, next_mark, next_token] = words_of_member(&world, 0, 1);
    let message = message_of_a_hand_over(&mut world, &all, lock, &channel);
    assert!(message.contains(&mark) && message.contains(&token), "{message}");
    assert!(!message.contains(&next_mark) && !message.contains(&next_token[12..]), "{message}");
    assert!(message.contains(&next_token[..12]), "the beginning of the token names it");
}

#[test]
fn token_of_another_client_is_never_released() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let holder = lock.token().to_string();
    for node in 0..3 {
        let [_, _, channel, mark, _] = words_of_member(&world, node, 0);
        publish(&mut world, node, &channel, &format!("200\n0\n\n{mark}\n{holder}\nk"));
        publish(&mut world, node, &channel, &format!("200\n0\n\n{}\n{holder}\nk", "0".repeat(20)));
    }
    world.settle();
    assert_eq!([0, 1, 2].map(|node| world.value(node)), [0; 3].map(|_| holder.clone()));
    assert_eq!(world.core(all[1]).stats().messages_ignored, 6);
    assert!(world.remaining(all[0], &lock) > TTL / 2);
}

#[test]
fn waiter_whose_joins_were_lost_with_their_connections_stands_in_line_once() {
    let (mut world, all, lock) = World::with_line(3, 1, LONG);
    let waiter = world.client();
    world.ask_and_settle(waiter, TTL);
    for _ in 0..3 {
        // The node executes a join whose answer is lost, so others may know its mark. The next join
        // has a new mark, and has to replace the old member.
        world.partition(0);
        world.pass(100 * MS);
        world.deliver_to_node(waiter, 0);
        world.cut(waiter, 0);
        world.cut_off(&[]);
        world.pass(300 * MS);
        assert_eq!([0, 1, 2].map(|node| world.in_line(node)), [1, 1, 1]);
    }
    world.release_and_settle(all[0], lock);
    world.win_and_release(waiter);
    world.assert_clean();
}

#[test]
fn messages_that_make_no_sense_or_are_too_long_are_skipped_and_counted() {
    let (mut world, all, lock) = World::with_line(1, 2, TTL);
    let [_, _, channel, mark, token] = words_of_member(&world, 0, 0);
    let long = "x".repeat(3 << 20);
    let senseless = ["", "hello", "200\n0\n\n\n\n", "200\n0\n\nmark\ntoken\nk", &long];
    for text in senseless {
        publish(&mut world, 0, &channel, text);
    }
    world.settle();
    let stats = world.core(all[1]).stats();
    assert_eq!(stats.messages_ignored, senseless.len() as u64);
    assert_eq!(stats.nodes[0].connections, 1, "the node did nothing wrong");
    // The same long message, in pieces, and directly before the message of a hand-over.
    let head = format!(">3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n", channel.len());
    let hand_over = format!("200\n0\n\n{mark}\n{token}\nk");
    let hand_over = format!("{head}${}\r\n{hand_over}\r\n", hand_over.len());
    let bytes = format!("{head}${}\r\n{long}\r\n{hand_over}", long.len());
    let now = world.now();
    for piece in bytes.as_bytes().chunks(1 << 16) {
        world.client_mut(all[1]).handle_bytes(NodeId::new(0), piece, now);
    }
    assert_eq!(world.core(all[1]).stats().messages_ignored, senseless.len() as u64 + 1);
    assert!(world.client_mut(all[1]).poll_completion(now).is_some(), "the hand-over was read");
    drop(lock);
}

#[test]
fn waiter_that_gives_up_leaves_the_line_by_any_of_its_joins() {
    let (mut world, _all, _lock) = World::with_line(3, 1, LONG);
    let waiter = world.client();
    let op = world.ask_and_settle(waiter, LONG);
    world.cut(waiter, 0);
    world.partition(0);
    // The join of the next connection has another mark, and never arrives.
    let joins = |world: &World| {
        let output = world.unexecuted(waiter, 0);
        output.windows(LINE.len()).any(|word| word == LINE)
    };
    while !joins(&world) {
        world.pass(MS);
        world.open(waiter, 0);
        world.deliver_to_client(waiter, 0);
        if !joins(&world) {
            world.deliver_to_node(waiter, 0);
        }
    }
    world.cut(waiter, 0);
    world.call(waiter, |core, now| core.cancel(op, now));
    world.cut_off(&[]);
    assert_eq!(world.in_line(0), 1);
    world.pass(300 * MS);
    assert_eq!([0, 1, 2].map(|node| world.in_line(node)), [0, 0, 0]);
}

/// The node refuses `CLIENT KILL`, so it may execute a join of an earlier connection at any time.
#[test]
fn each_release_takes_a_late_join_out_of_the_line() {
    let reply = b"-NOPERM no\r\n".to_vec();
    // Meanwhile node 0 gives the waiter the key by its join, by a message, or not at all.
    for (by_join, by_message) in [(false, false), (true, false), (false, true)] {
        let mut world = World::new(3);
        let commands = vec!["client|kill".into()];
        world.master_mut(0).suffer(Trouble::Answers { commands, reply: reply.clone() });
        let (_all, _lock) = world.line_up(1, LONG);
        let waiter = world.client();
        let op = world.ask_and_settle(waiter, LONG);
        let late = world.line(0).pop().expect("it stands in line");
        world.partition(0);
        world.pass(100 * MS);
        world.cut(waiter, 0);
        if by_join {
            world.run(0, &[b"DEL", KEY]);
        }
        world.cut_off(&[]);
        world.pass(40 * MS);
        assert_eq!(world.in_line(0), usize::from(!by_join), "its next join was executed");
        if by_message {
            let holder = world.value(0);
            let script = HAND_OVER.source.as_bytes();
            world.run(0, &[b"EVAL", script, b"2", KEY, LINE, holder.as_bytes()]);
            world.settle();
        }
        world.run(0, &[b"ZADD", LINE, b"0", &late]);
        world.call(waiter, |core, now| core.cancel(op, now));
        world.settle();
        assert_eq!(world.in_line(0), 0, "after the first release");
        world.run(0, &[b"SET", KEY, b"other", b"PX", b"60000"]);
        world.run(0, &[b"ZADD", LINE, b"0", &late]);
        world.pass(200 * MS);
        assert_eq!(world.in_line(0), 0, "after the second release");
    }
}

#[test]
fn key_that_is_handed_to_a_waiter_whose_release_is_pending_elsewhere_is_given_back() {
    let (mut world, all, lock) = World::with_line(3, 1, LONG);
    let waiter = world.client();
    let op = world.ask_and_settle(waiter, LONG);
    let member = world.line(0).pop().expect("it stands in line");
    // Node 2 does not answer, so the waiter's record stays open for the release there.
    world.partition(2);
    world.call(waiter, |core, now| core.cancel(op, now));
    world.settle();
    assert_eq!((world.in_line(0), world.core(waiter).open_records()), (0, 1));
    world.run(0, &[b"ZADD", LINE, b"0", &member]);
    world.release_and_settle(all[0], lock);
    assert_eq!(world.value(0), "", "the key was handed to the waiter that is gone, and given back");
}

#[test]
fn message_is_a_reason_to_give_a_key_back_only_once() {
    let (mut world, all, lock) = World::with_line(1, 1, LONG);
    let gone = world.client();
    let op = world.ask_and_settle(gone, LONG);
    let [_, _, channel, mark, token] = words_of_member(&world, 0, 0);
    world.call(gone, |core, now| core.cancel(op, now));
    world.settle();
    assert_eq!(world.core(gone).open_records(), 0);
    let text = format!("200\n0\n\n{mark}\n{token}\nk");
    for number in 0..4 {
        publish(&mut world, 0, &channel, &text);
        world.deliver_to_client(gone, 0);
        let is_silent = world.output(gone, 0).is_empty();
        assert_eq!(is_silent, number > 0, "message {number}");
        world.settle();
    }
    assert_eq!(world.core(gone).stats().messages_ignored, 3);
    assert!(world.remaining(all[0], &lock) > MS);
}

/// A long message of another program looks like a flood of grants. The client reads it while its
/// own request is in flight.
#[test]
fn text_of_a_long_message_gives_no_client_a_lock() {
    for answer in ["+OK\r\n", ":1\r\n"] {
        let (mut world, all, lock) = World::with_line(3, 1, LONG);
        let client = world.client();
        // The client waits for a lock once, and is subscribed to its channels from then on.
        let now = world.now();
        let core = world.client_mut(client);
        let op =
            core.acquire(KEY, LockOptions::new(LONG).wait(LONG), 1, now).expect("there is room");
        world.settle();
        let [_, _, channel, ..] = words_of_member(&world, 0, 0);
        world.client_mut(client).cancel(op, now);
        world.settle();
        let text = answer.repeat((2 << 20) / answer.len());
        let heads = [0, 1, 2].map(|node| {
            let channel = channel_at(&channel, node);
            format!(">3\r\n$7\r\nmessage\r\n$41\r\n{channel}\r\n${}\r\n", text.len())
        });
        for (node, head) in heads.iter().enumerate() {
            world.call(client, |core, now| {
                core.handle_bytes(NodeId::new(node), head.as_bytes(), now)
            });
        }
        let core = world.client_mut(client);
        core.acquire(KEY, LockOptions::once(LONG), 2, now).expect("there is room");
        for (node, _) in heads.iter().enumerate() {
            let core = world.client_mut(client);
            core.handle_bytes(NodeId::new(node), text.as_bytes(), now);
            core.handle_bytes(NodeId::new(node), b"\r\n", now);
        }
        world.settle();
        assert!(world.error(client).is_contended(), "another client holds the key");
        assert!(world.remaining(all[0], &lock) > MS);
    }
}
