//! Nodes that are declared persistent: one that restarts with its marker kept its locks, if the
//! marker is that of the process that the client knew there. Any other may have come with the data
//! of another node.

use super::bench::INFO_REPLID;
use super::marker::{MEMORY, MICROS, MINUTE, NOW, distrust, marker, meet, settings};
use super::*;
use redlatch::RestartGuard;
use redlatch::proto::QuarantineReason;

const GUARD: RestartGuard = RestartGuard::Persistent;

/// The `INFO` of the process that the restarted node is, up for a second.
fn restarted() -> String {
    INFO_REPLID.replace("RRR", "SSS").replace("HHH", "III").replace("86400", "1")
}

/// The marker of node 0, which names another process of it, or another node.
fn of(process: &str, marker: Option<String>) -> Option<String> {
    marker.map(|marker| marker.replace("RRR", process))
}

/// The node restarts while the client knows it, and has this marker then.
fn comes_back(bench: &mut Bench, marker: Option<String>, info: &str) {
    bench.lose(0);
    bench.pass(millis(600));
    bench.markers[0] = marker;
    bench.set_info(0, info);
    bench.connect(0);
}

fn known(found: Option<String>) -> Bench {
    let mut bench = meet(GUARD, found, INFO_REPLID);
    distrust(&mut bench);
    bench
}

#[test]
fn persistent_node_that_comes_back_with_the_marker_of_the_known_process_is_trusted_at_once() {
    let mut bench = known(marker(2 * MINUTE, ""));
    comes_back(&mut bench, marker(2 * MINUTE, ""), &restarted());
    assert_eq!(distrust(&mut bench), None);
    let written = bench.markers[0].clone().unwrap();
    assert!(written.contains("SSS"), "{written}");
    assert!(written.ends_with(&(MICROS - 2 * MINUTE).to_string()), "its time is kept: {written}");
    // So a process that begins now, and a second client that knew the node, trust it, too.
    let mut next = meet(GUARD, Some(written.clone()), &restarted());
    assert_eq!(distrust(&mut next), None);
    let mut second = known(marker(2 * MINUTE, ""));
    comes_back(&mut second, Some(written.clone()), &restarted());
    assert_eq!(distrust(&mut second), None);
    // A client without `Persistent` does not trust the node.
    let mut strict = meet(RestartGuard::On, Some(written), &restarted());
    assert_eq!(distrust(&mut strict), Some((MEMORY, QuarantineReason::Young)));
}

#[test]
fn persistent_node_goes_on_with_the_quarantine_that_its_restart_interrupted() {
    let mut bench = known(marker(MINUTE / 2, ""));
    comes_back(&mut bench, marker(MINUTE / 2, ""), &restarted());
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    let mut next = meet(GUARD, bench.markers[0].clone(), &restarted());
    let left = MEMORY - millis(30_000);
    assert_eq!(distrust(&mut next), Some((left, QuarantineReason::MarkedLately)));
}

#[test]
fn persistent_node_without_its_marker_or_promoted_is_quarantined() {
    let whole = |why| Some((MEMORY, why));
    let unmarked = || Some(String::new());
    let promoted = format!("{}second_repl_offset:5\r\n", restarted());
    let found = marker(2 * MINUTE, "");
    for (marker, info, why) in [
        (unmarked(), restarted(), QuarantineReason::Unmarked),
        (found.clone(), promoted, QuarantineReason::Restarted),
        (found.clone(), INFO_REPLID.replace("HHH", "III"), QuarantineReason::Promoted),
    ] {
        let mut bench = meet(GUARD, marker, &info);
        assert_eq!(distrust(&mut bench), whole(why), "{info}");
    }
    // The same for a client that knew the node before.
    let mut bench = known(found);
    comes_back(&mut bench, unmarked(), &restarted());
    assert_eq!(distrust(&mut bench), whole(QuarantineReason::Unmarked));
}

/// Node 0 is restored from a copy of another node, or from one of an address that is unknown.
#[test]
fn persistent_node_with_the_marker_of_another_process_than_the_known_one_is_quarantined() {
    for ago in [2 * MINUTE, 7 * MINUTE] {
        let mut bench = known(marker(2 * MINUTE, ""));
        comes_back(&mut bench, of("XXX", marker(ago, "")), &restarted());
        let (left, why) = distrust(&mut bench).expect("it is another's");
        assert_eq!((left, why), (MEMORY, QuarantineReason::Restarted), "{ago}");
        let written = bench.markers[0].clone().unwrap();
        assert!(written.contains("SSS"), "{written}");
        assert!(!written.ends_with(&(MICROS - ago).to_string()), "the time is the present one");
    }
}

/// A client that knows nothing of the node cannot tell its marker from another node's.
#[test]
fn persistent_node_that_is_met_first_after_its_restart_is_judged_by_its_uptime() {
    for marker in [marker(2 * MINUTE, ""), of("XXX", marker(7 * MINUTE, ""))] {
        let mut bench = meet(GUARD, marker.clone(), &restarted());
        assert_eq!(distrust(&mut bench), Some((MEMORY, QuarantineReason::Young)));
        assert_eq!(bench.markers[0], marker, "a client that knew the node may carry it over");
    }
    let half = restarted().replace("seconds:1\r", "seconds:31\r");
    let mut bench = meet(GUARD, marker(2 * MINUTE, ""), &half);
    let left = MEMORY - millis(30_000);
    assert_eq!(distrust(&mut bench), Some((left, QuarantineReason::Young)));
    // A process forgets only at its start, which was a day ago. From now on the marker says so.
    let old = restarted().replace("seconds:1\r", "seconds:86400\r");
    let mut bench = meet(GUARD, marker(2 * MINUTE, ""), &old);
    assert_eq!(distrust(&mut bench), None);
    let start = MICROS - 86_399_000_000;
    let written = bench.markers[0].clone().unwrap();
    assert!(written.contains("SSS") && written.ends_with(&format!(" {start}")), "{written}");
}

#[test]
fn persistent_node_is_marked_with_its_start_when_its_quarantine_is_over() {
    let mut bench = meet(GUARD, marker(2 * MINUTE, ""), &restarted());
    let start = bench.micros(0);
    for _ in 0..12 {
        assert_eq!(bench.markers[0], marker(2 * MINUTE, ""));
        marker_probes::probe(&mut bench);
    }
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    marker_probes::probe(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    let written = bench.markers[0].clone().unwrap();
    assert!(written.contains("SSS") && written.ends_with(&format!(" {start}")), "{written}");
    // From now on the client knows this process, so the next restart costs no quarantine.
    assert!(marker_probes::probe(&mut bench).is_empty());
    let again = restarted().replace("SSS", "TTT");
    comes_back(&mut bench, Some(written), &again);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    assert!(bench.markers[0].clone().unwrap().contains("TTT"));
}

#[test]
fn persistent_node_that_is_flushed_in_its_quarantine_is_marked_at_once() {
    let mut bench = meet(GUARD, marker(2 * MINUTE, ""), &restarted());
    bench.markers[0] = Some(String::new());
    assert_eq!(marker_probes::probe(&mut bench), [""]);
}

/// A client that met the node first after its restart has no proof of its data, also not when it
/// connects to the same process again.
#[test]
fn persistent_node_whose_marker_is_of_another_process_is_not_known_by_a_second_connection() {
    let found = marker(2 * MINUTE, "");
    let mut bench = meet(GUARD, found.clone(), &restarted());
    comes_back(&mut bench, found.clone(), &restarted());
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    assert_eq!(bench.markers[0], found);
    // Another client, which knew the node, carries the marker over. This client's quarantine stays
    // as it is.
    bench.markers[0] = found.map(|marker| marker.replace("RRR", "SSS").replace("HHH", "III"));
    assert!(marker_probes::probe(&mut bench).is_empty());
    distrust(&mut bench);
    let carried = bench.markers[0].clone();
    bench.pass(MEMORY);
    marker_probes::settle(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    assert_eq!(bench.markers[0], carried, "it is not marked with its start");
}

/// The restart was one of another server: the address leads to a spare, which was met long ago.
#[test]
fn persistent_spare_server_with_its_own_marker_is_quarantined_by_a_client_that_knew_the_node() {
    let mut bench = known(marker(2 * MINUTE, ""));
    comes_back(&mut bench, of("SSS", marker(7 * MINUTE, "")), &INFO_REPLID.replace("RRR", "SSS"));
    let (left, _) = distrust(&mut bench).expect("it is another server");
    assert_eq!(left, MEMORY);
}

#[test]
fn restart_while_a_client_runs_is_judged_by_its_guard() {
    for (guard, expected) in
        [(RestartGuard::On, Some((MEMORY, QuarantineReason::Restarted))), (GUARD, None)]
    {
        let mut bench = Bench::of_settings(settings(guard), &[marker(2 * MINUTE, "")], NOW);
        bench.connect(0);
        comes_back(&mut bench, marker(2 * MINUTE, ""), &restarted());
        assert_eq!(distrust(&mut bench), expected, "{guard:?}");
    }
}
