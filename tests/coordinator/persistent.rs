//! Nodes with `RestartGuard::Persistent`. A node that restarts kept its locks if it has the marker
//! of the process that the client knew there. With any other marker it may have the data of another
//! node, so it is quarantined.

use super::bench::INFO_REPLID;
use super::marker::{MEMORY, MICROS, MINUTE, NOW, marker, meet, quarantine_of, settings};
use super::*;
use redlatch::RestartGuard;
use redlatch::proto::QuarantineReason;

const GUARD: RestartGuard = RestartGuard::Persistent;

/// The `INFO` of the node a second after its restart.
fn restarted() -> String {
    INFO_REPLID.replace("RRR", "SSS").replace("HHH", "III").replace("86400", "1")
}

/// The marker, with the run id of another process instead of node 0's.
fn with_run_id(process: &str, marker: Option<String>) -> Option<String> {
    marker.map(|marker| marker.replace("RRR", process))
}

/// The client loses its connection to the node, and connects again. The node has this marker and
/// this `INFO` then.
fn reconnect(bench: &mut Bench, marker: Option<String>, info: &str) {
    bench.markers[0] = marker;
    bench.set_info(0, info);
    bench.reconnect(0);
}

/// A client that knows the node since before its restart. The node has this marker.
fn known(found: Option<String>) -> Bench {
    let mut bench = meet(GUARD, found, INFO_REPLID);
    quarantine_of(&mut bench);
    bench
}

#[test]
fn persistent_node_that_comes_back_with_the_marker_of_the_known_process_is_trusted_at_once() {
    let mut bench = known(marker(2 * MINUTE, ""));
    reconnect(&mut bench, marker(2 * MINUTE, ""), &restarted());
    assert_eq!(quarantine_of(&mut bench), None);
    let written = bench.markers[0].clone().unwrap();
    assert!(written.contains("SSS"), "{written}");
    assert!(written.ends_with(&(MICROS - 2 * MINUTE).to_string()), "its time is kept: {written}");
    // A process that starts now, and another client that knew the node, also trust it.
    let mut next = meet(GUARD, Some(written.clone()), &restarted());
    assert_eq!(quarantine_of(&mut next), None);
    let mut second = known(marker(2 * MINUTE, ""));
    reconnect(&mut second, Some(written.clone()), &restarted());
    assert_eq!(quarantine_of(&mut second), None);
    // A client with `RestartGuard::On` does not trust the node.
    let mut strict = meet(RestartGuard::On, Some(written), &restarted());
    assert_eq!(quarantine_of(&mut strict), Some((MEMORY, QuarantineReason::Young)));
}

#[test]
fn persistent_node_goes_on_with_the_quarantine_that_its_restart_interrupted() {
    let mut bench = known(marker(MINUTE / 2, ""));
    reconnect(&mut bench, marker(MINUTE / 2, ""), &restarted());
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    let mut next = meet(GUARD, bench.markers[0].clone(), &restarted());
    let left = MEMORY - millis(30_000);
    assert_eq!(quarantine_of(&mut next), Some((left, QuarantineReason::MarkedLately)));
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
        assert_eq!(quarantine_of(&mut bench), whole(why), "{info}");
    }
    // The same for a client that knew the node before.
    let mut bench = known(found);
    reconnect(&mut bench, unmarked(), &restarted());
    assert_eq!(quarantine_of(&mut bench), whole(QuarantineReason::Unmarked));
}

/// Node 0 restarts with the data of another node.
#[test]
fn persistent_node_with_the_marker_of_another_process_than_the_known_one_is_quarantined() {
    for ago in [2 * MINUTE, 7 * MINUTE] {
        let mut bench = known(marker(2 * MINUTE, ""));
        reconnect(&mut bench, with_run_id("XXX", marker(ago, "")), &restarted());
        let (left, why) = quarantine_of(&mut bench).expect("it is another's");
        assert_eq!((left, why), (MEMORY, QuarantineReason::Restarted), "{ago}");
        let written = bench.markers[0].clone().unwrap();
        assert!(written.contains("SSS"), "{written}");
        assert!(!written.ends_with(&(MICROS - ago).to_string()), "the time is the present one");
    }
}

/// A client that first meets the node after its restart cannot know whether the marker in its data
/// is that of this node. So it goes by the uptime, and writes a marker only if that is enough.
#[test]
fn persistent_node_that_is_met_first_after_its_restart_is_judged_by_its_uptime() {
    for marker in [marker(2 * MINUTE, ""), with_run_id("XXX", marker(7 * MINUTE, ""))] {
        let mut bench = meet(GUARD, marker.clone(), &restarted());
        assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Young)));
        assert_eq!(bench.markers[0], marker, "a client that knew the node may carry it over");
    }
    let half = restarted().replace("seconds:1\r", "seconds:31\r");
    let mut bench = meet(GUARD, marker(2 * MINUTE, ""), &half);
    let left = MEMORY - millis(30_000);
    assert_eq!(quarantine_of(&mut bench), Some((left, QuarantineReason::Young)));
    // A process can only have forgotten locks at its start. This one started a day ago, so the
    // client trusts it, and writes the time of the start into the marker.
    let old = restarted().replace("seconds:1\r", "seconds:86400\r");
    let mut bench = meet(GUARD, marker(2 * MINUTE, ""), &old);
    assert_eq!(quarantine_of(&mut bench), None);
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
    // Now the client knows this process, so the next restart begins no quarantine.
    assert!(marker_probes::probe(&mut bench).is_empty());
    let again = restarted().replace("SSS", "TTT");
    reconnect(&mut bench, Some(written), &again);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    assert!(bench.markers[0].clone().unwrap().contains("TTT"));
}

#[test]
fn persistent_node_that_is_flushed_in_its_quarantine_is_marked_at_once() {
    let mut bench = meet(GUARD, marker(2 * MINUTE, ""), &restarted());
    bench.markers[0] = Some(String::new());
    assert_eq!(marker_probes::probe(&mut bench), [""]);
}

/// A client that first met the node after its restart does not know whose data the node has. This
/// does not change when the client connects to the same process again.
#[test]
fn persistent_node_whose_marker_is_of_another_process_is_not_known_by_a_second_connection() {
    let found = marker(2 * MINUTE, "");
    let mut bench = meet(GUARD, found.clone(), &restarted());
    reconnect(&mut bench, found.clone(), &restarted());
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    assert_eq!(bench.markers[0], found);
    // Another client, which knew the node, writes the new run id into the marker. This client's
    // quarantine stays as it is.
    bench.markers[0] = found.map(|marker| marker.replace("RRR", "SSS").replace("HHH", "III"));
    assert!(marker_probes::probe(&mut bench).is_empty());
    quarantine_of(&mut bench);
    let carried = bench.markers[0].clone();
    bench.pass(MEMORY);
    marker_probes::settle(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    assert_eq!(bench.markers[0], carried, "it is not marked with its start");
}

/// The address now leads to a spare server, which has an old marker of its own.
#[test]
fn persistent_spare_server_with_its_own_marker_is_quarantined_by_a_client_that_knew_the_node() {
    let mut bench = known(marker(2 * MINUTE, ""));
    reconnect(
        &mut bench,
        with_run_id("SSS", marker(7 * MINUTE, "")),
        &INFO_REPLID.replace("RRR", "SSS"),
    );
    let (left, _) = quarantine_of(&mut bench).expect("it is another server");
    assert_eq!(left, MEMORY);
}

#[test]
fn restart_while_a_client_runs_is_judged_by_its_guard() {
    for (guard, expected) in
        [(RestartGuard::On, Some((MEMORY, QuarantineReason::Restarted))), (GUARD, None)]
    {
        let mut bench = Bench::of_settings(settings(guard), &[marker(2 * MINUTE, "")], NOW);
        bench.connect(0);
        reconnect(&mut bench, marker(2 * MINUTE, ""), &restarted());
        assert_eq!(quarantine_of(&mut bench), expected, "{guard:?}");
    }
}
