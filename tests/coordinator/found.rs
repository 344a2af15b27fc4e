//! What the simulation found, each as the shortest way to it.

use super::*;
use redlatch::{Keep, NodeId};

#[test]
fn names_of_kept_locks_leave_the_room_for_releases() {
    let keep = Some(Keep::extensions(1));
    let mut bench = Bench::with(1, |settings| settings.limits.asks = 4);
    bench.acquire();
    bench.core.acquire_and_keep(b"b", TTL, Duration::ZERO, keep, 2, bench.now).unwrap();
    assert_eq!(
        bench.names(0),
        ["SET", "SET"],
        "and nothing that names the key, in the room for releases"
    );
    bench.core.close(bench.now);
    assert_eq!(bench.names(0), ["EVAL", "EVAL"]);
}

#[test]
fn an_inspection_does_not_wait_for_a_node_that_it_did_not_ask() {
    let mut bench = Bench::new(3);
    bench.lose(2);
    bench.pass(Duration::from_secs(1));
    bench.core.inspect(b"k", 1, bench.now).unwrap();
    for node in 0..2 {
        assert_eq!(bench.names(node), ["GET", "PTTL"]);
    }
    bench.pass(millis(40));
    // Its greeting is written long after the others were asked.
    bench.core.handle_connected(NodeId::new(2), bench.now);
    assert_eq!(bench.names(2)[0], "HELLO");
    bench.pass(millis(10));
    let done = bench.completion().expect("the time is over");
    let Ok(Outcome::Inspected(seen)) = done.result else { panic!() };
    assert_eq!(seen.nodes.len(), 3);
}
