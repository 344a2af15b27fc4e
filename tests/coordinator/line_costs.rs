//! What the line costs: the commands that a client sends to each node, and those that it spares.

use redlatch::proto::LockOptions;

use super::line::{LONG, MS, TTL};
use super::line_world::World;

/// The first words of the commands that the client is about to write to a node.
fn commands(world: &World, client: usize, node: usize) -> Vec<String> {
    let bytes = world.unexecuted(client, node);
    let text = String::from_utf8(bytes).unwrap();
    let starts = text.split("\r\n*").filter(|command| !command.is_empty());
    starts.filter_map(|command| command.split("\r\n").nth(2)).map(str::to_owned).collect()
}

/// The same for every node.
fn commands_on_all_nodes(world: &World, client: usize) -> Vec<Vec<String>> {
    (0..world.nodes()).map(|node| commands(world, client, node)).collect()
}

#[test]
fn a_hand_over_costs_each_node_a_join_and_a_release() {
    let (mut world, all, lock) = World::with_line(3, 3, TTL);
    world.pass(2 * MS);
    world.release(all[0], lock);
    assert_eq!(commands_on_all_nodes(&world, all[0]), [["EVALSHA"]; 3]);
    world.settle();
    world.win_and_release(all[1]);
    world.ask(all[1], TTL);
    assert_eq!(commands_on_all_nodes(&world, all[1]), [["EVALSHA"]; 3], "it joins at once");
}

#[test]
fn client_that_stands_alone_in_line_asks_by_a_set_from_the_next_lock_on() {
    let (mut world, all, lock) = World::with_line(3, 2, LONG);
    world.pass(2 * MS);
    world.release_and_settle(all[0], lock);
    world.win_and_release(all[1]);
    for first_word in ["EVALSHA", "SET", "SET"] {
        world.ask(all[1], LONG);
        assert_eq!(commands_on_all_nodes(&world, all[1]), [[first_word]; 3]);
        world.settle();
        world.win_and_release(all[1]);
    }
    world.assert_clean();
}

#[test]
fn a_late_message_of_a_hand_over_causes_no_second_release() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    world.release(all[0], lock);
    world.deliver(all[0], 0..2, all[1]);
    let done = world.call(all[1], |core, now| core.poll_completion(now)).unwrap();
    world.done[all[1]].push(done);
    let lock = world.won(all[1]);
    world.release(all[1], lock);
    // Node 2 hands the key over, and then executes the release. The message of the hand-over, which
    // the client reads last, must not cause a second release.
    world.deliver_to_node(all[0], 2);
    for node in 0..3 {
        world.deliver_to_node(all[1], node);
        world.deliver_to_client(all[1], node);
        assert_eq!(commands(&world, all[1], node), [""; 0], "node {node}");
    }
    world.settle();
    world.assert_clean();
}

#[test]
fn a_client_that_may_not_read_the_answer_names_the_script_that_the_node_knows() {
    let mut world = World::new(3);
    let client = world.client_with(|settings| settings.attended = false);
    for first_word in ["EVAL", "EVALSHA", "EVALSHA"] {
        let lock = world.won_in_line(client, LONG);
        world.release(client, lock);
        assert_eq!(commands_on_all_nodes(&world, client), [[first_word]; 3]);
        world.settle();
        world.assert_clean();
    }
    world.run_on(0..3, &[b"SCRIPT", b"FLUSH"]);
    // The nodes have forgotten the script. The client reads their answer and repeats the release by
    // its source, so later releases may name the SHA1 again.
    for first_word in ["EVALSHA", "EVALSHA", "EVALSHA"] {
        let lock = world.won_in_line(client, LONG);
        world.release(client, lock);
        assert_eq!(commands_on_all_nodes(&world, client), [[first_word]; 3]);
        world.settle();
        world.assert_clean();
    }
    let lock = world.won_in_line(client, LONG);
    world.call(client, |core, now| core.release_nowait(&lock, now));
    assert_eq!(commands_on_all_nodes(&world, client), [["EVAL"]; 3], "no answer is read");
    world.settle();
    world.assert_clean();
}

#[test]
fn only_the_poll_of_a_waiter_in_line_may_come_late() {
    let (mut world, all, _lock) = World::with_line(3, 2, LONG);
    // After 55 ms the timer that looks for silent nodes has expired, and is not the next one.
    world.pass(55 * MS);
    let may_be_late = |world: &World, client: usize| {
        let core = world.core(client);
        core.may_be_late(core.next_timeout().unwrap())
    };
    assert!(may_be_late(&world, all[1]));
    assert!(!may_be_late(&world, all[0]), "it holds the lock");
    let now = world.now();
    let core = world.client_mut(all[1]);
    core.acquire(b"other", LockOptions::new(TTL / 50).wait(LONG), 2, now).unwrap();
    assert!(!may_be_late(&world, all[1]), "a round is over sooner");
}
