//! A server that was promoted in the place of the known one, as in a failover: how the client names
//! its quarantine, and when that begins.

use super::bench::INFO_REPLID;
use super::marker::{MEMORY, MICROS, MINUTE, NOW, marker, meet, quarantine_of, settings};
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

/// The marker that names the promoted server, from a client that met it so long before `NOW`, or
/// after it if that is negative.
fn marker_of_promoted(ago: i64) -> String {
    let marker = marker(0, "").expect("it is one").replace("RRR", "SSS").replace("HHH", "III");
    marker.replace(&MICROS.to_string(), &MICROS.saturating_add_signed(-ago).to_string())
}

/// A client that has known a node for some time, and whose connection was just lost.
fn disconnected(replicas: u32) -> Bench {
    let mut settings = settings(RestartGuard::On);
    settings.replicas = replicas;
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
        let mut bench = disconnected(0);
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

/// The client meets the promoted server after a second client has met it and written the marker, at
/// `met_at` seconds after NOW.
#[test]
fn quarantine_of_a_promoted_server_begins_once_if_replicas_confirm_locks() {
    // The client saw the former master last at 5 s after NOW, and meets the promoted server at 8 s.
    let second = 1_000_000;
    for (met_at, replicas, expected) in [
        (1, 0, Some(MEMORY)),
        (7, 0, Some(MEMORY)),
        (1, 1, Some(MEMORY - millis(7_000))),
        (7, 1, Some(MEMORY - millis(1_000))),
        (-60, 1, None),
    ] {
        let mut bench = disconnected(replicas);
        bench.pass(millis(3_000));
        bench.set_info(0, &promoted(86_400));
        let written = marker_of_promoted(-met_at * second);
        bench.markers[0] = Some(written.clone());
        bench.connect(0);
        let length = quarantine_of(&mut bench).map(|(length, _)| length);
        assert_eq!(length, expected, "{met_at} {replicas}");
        // If no replica has to confirm a lock, the former master may have granted locks after the
        // second client wrote its marker at 1 s. So the client writes the marker anew, and all
        // clients wait for a whole quarantine.
        let stays = replicas > 0 || met_at == 7;
        assert_eq!(bench.markers[0] == Some(written), stays, "{met_at} {replicas}");
    }
}

/// Nothing shows that a client met the server after its promotion: the marker names another
/// replication history or another process, the server was not promoted, or it reports no history.
#[test]
fn quarantine_of_another_server_begins_anew_unless_a_client_met_it_after_its_promotion() {
    let own = marker_of_promoted(60_000_000);
    let history = format!("{}H", "I".repeat(39));
    let (none, without_history) =
        (own.replace(&history, &"0".repeat(40)), promoted(86_400).replace(&history, ""));
    assert_ne!((&none, &without_history), (&own, &promoted(86_400)));
    for (info, found) in [
        (promoted(86_400), own.replace("III", "JJJ")),
        (promoted(86_400), own.replace("SSS", "RRR")),
        (promoted(86_400).replace("second_repl_offset:88", "second_repl_offset:-1"), own.clone()),
        (without_history, none),
    ] {
        let mut bench = disconnected(1);
        bench.pass(millis(3_000));
        bench.set_info(0, &info);
        bench.markers[0] = Some(found.clone());
        bench.connect(0);
        let length = quarantine_of(&mut bench).map(|(length, _)| length);
        assert_eq!(length, Some(MEMORY), "{info} {found}");
    }
}
