//! A server that was promoted in the place of the known one, as in a failover: how the client names
//! its quarantine.

use super::bench::INFO_REPLID;
use super::marker::{MEMORY, MINUTE, NOW, marker, meet, quarantine_of, settings};
use super::marker_probes::probe;
use super::*;
use redlatch::RestartGuard;
use redlatch::proto::QuarantineReason;

/// What another server reports, which was a replica and has been up for so many seconds.
fn promoted(uptime: u64) -> String {
    let other = INFO_REPLID.replace("RRR", "SSS").replace("HHH", "III");
    let info = other.replace("uptime_in_seconds:86400", &format!("uptime_in_seconds:{uptime}"));
    format!("{info}second_repl_offset:88\r\n")
}

/// A client that has known a node for some time, and whose connection was just lost.
fn left() -> Bench {
    let settings = settings(RestartGuard::On);
    let mut bench = Bench::of_settings(settings, &[marker(2 * MINUTE, "")], NOW);
    bench.set_info(0, INFO_REPLID);
    bench.connect(0);
    assert!(probe(&mut bench).is_empty());
    assert_eq!(quarantine_of(&mut bench), None);
    bench.lose(0);
    bench
}

#[test]
fn quarantine_of_a_promoted_server_names_the_promotion_and_not_a_restart() {
    // The client probed the node 3 s before it meets the other server.
    let plain = INFO_REPLID.replace("RRR", "SSS");
    let cases = [
        (promoted(86_400), QuarantineReason::Replaced),
        (promoted(5), QuarantineReason::Replaced),
        (promoted(2), QuarantineReason::Restarted),
        (plain, QuarantineReason::Restarted),
    ];
    for (info, why) in cases {
        let mut bench = left();
        bench.pass(millis(3_000));
        bench.set_info(0, &info);
        bench.connect(0);
        assert_eq!(quarantine_of(&mut bench), Some((MEMORY, why)), "{info}");
        assert!(bench.markers[0].as_ref().is_some_and(|marker| marker.contains("SSS")));
    }
    // A client that begins after the promotion knows the former process by the marker alone.
    for (uptime, why) in [(86_400, QuarantineReason::Replaced), (62, QuarantineReason::Replaced)] {
        let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), &promoted(uptime));
        assert_eq!(quarantine_of(&mut bench), Some((MEMORY, why)), "{uptime}");
    }
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), &promoted(40));
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Restarted)));
    assert_eq!(QuarantineReason::Replaced.to_string(), "another server was promoted in its place");
}
