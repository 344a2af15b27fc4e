//! What the simulation found, each as the shortest way to it.

use super::*;
use redlatch::Keep;

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
