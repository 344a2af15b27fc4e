//! The network between us and a node: whether the address leads to one server, how long an answer
//! takes, and whether connections last.

use std::time::Duration;

use super::super::name::Place;
use super::{Finding, Subject, Use};
use crate::look::time;

/// All checks of the network.
pub fn checks(subject: &Subject, how: &Use) -> Vec<Finding> {
    let mut found = vec![proxy(subject)];
    if !subject.is_loading() {
        found.extend(round_trip(subject, how));
    }
    found.extend(connections(subject, how));
    found
}

/// Whether an address always leads to one server, for every client and every command.
fn proxy(subject: &Subject) -> Finding {
    const NAME: &str = "proxy";
    let seen = &subject.seen;
    let ask_it = "a proxy or a load balancer is in between. Give the addresses of the servers";
    if let Some(finding) = check_addresses_of_name(&seen.places) {
        return finding;
    }
    match (seen.identities.as_slice(), &seen.elsewhere) {
        ([], _) => Finding::unknown(NAME, "INFO"),
        ([one, other, ..], _) => Finding::fail(
            NAME,
            format!(
                "one connection is answered by several servers (run_id {}, then {}): {ask_it}",
                shortened(one),
                shortened(other)
            ),
        ),
        ([one], Some(other)) if one != other => Finding::fail(
            NAME,
            format!(
                "two connections lead to two servers (run_id {} and {}): {ask_it}, unless it was \
                 restarted this second",
                shortened(one),
                shortened(other)
            ),
        ),
        ([one], _) => Finding::ok(NAME, format!("it is one server (run_id {})", shortened(one))),
    }
}

/// What is wrong with the addresses of a name that has several.
fn check_addresses_of_name(places: &[Place]) -> Option<Finding> {
    const NAME: &str = "proxy";
    let (mut servers, mut unknown) = (Vec::<(&str, String)>::new(), Vec::new());
    for Place { address, run_id } in places {
        match run_id {
            Ok(Some(run_id)) if servers.iter().all(|(known, _)| known != run_id) => {
                servers.push((run_id, format!("{address} is {}", shortened(run_id))));
            }
            Ok(Some(_)) => {}
            Ok(None) => unknown.push(format!("{address} does not report it")),
            // No server listens there, so no client can count another server's vote.
            Err(trouble) if trouble.words.contains("refused") => {}
            Err(trouble) => unknown.push(format!("{address}: {}", trouble.words)),
        }
    }
    let apart = "two clients may take different servers for this one node. Give each server a name \
                 or an address of its own";
    if servers.len() > 1 {
        let servers: Vec<String> = servers.into_iter().map(|(_, words)| words).collect();
        let finding = format!("its name leads to several servers (run_id: {})", servers.join(", "));
        return Some(Finding::fail(
            NAME,
            format!("{finding}: {apart}, unless it was restarted this second"),
        ));
    }
    let finding = "its name has several addresses, and whether they lead to one server is unknown";
    (!unknown.is_empty()).then(|| {
        Finding::warn(NAME, format!("{finding} ({}): if not, {apart}", unknown.join(", ")))
    })
}

/// The beginning of a `run_id`, which is enough for a person to compare.
fn shortened(run_id: &str) -> &str {
    run_id.get(..8).unwrap_or(run_id)
}

fn round_trip(subject: &Subject, how: &Use) -> Option<Finding> {
    const NAME: &str = "round-trip";
    let mut times = subject.seen.round_trips.clone();
    times.sort_unstable();
    let (median, slowest) = (*times.get(times.len() / 2)?, *times.last()?);
    let count = times.len();
    let shown = format!("median {}, slowest {} of {count}", time(median), time(slowest));
    let limit = how.node_timeout;
    let limit_shown = time(limit);
    Some(if median >= limit {
        let better = round_up(slowest * 2).as_millis();
        let advice = format!("it never answers in time. Try --node-timeout {better}ms");
        Finding::fail(NAME, format!("{shown}; the node timeout is {limit_shown}: {advice}"))
    } else if slowest * 2 > limit {
        let often = "some of its answers come too late, or nearly";
        Finding::warn(NAME, format!("{shown}; the node timeout is {limit_shown}: {often}"))
    } else {
        Finding::ok(NAME, format!("{shown}; the node timeout is {limit_shown}"))
    })
}

/// Rounded up to ten milliseconds.
fn round_up(length: Duration) -> Duration {
    let tens = length.as_millis().div_ceil(10);
    Duration::from_millis(u64::try_from(tens).unwrap_or(u64::MAX).saturating_mul(10))
}

/// Whether the node closes idle connections, or is near its limit of connections.
fn connections(subject: &Subject, how: &Use) -> Vec<Finding> {
    const NAME: &str = "connections";
    let seen = &subject.seen;
    let mut found = Vec::new();
    let setting = |name| seen.settings.get(name)?.parse::<u64>().ok();
    // A client asks each node for its time once per probe interval, and may be late by another
    // interval. So a node that closes connections later than this never closes a client's.
    let idle = 2 * how.probe_interval;
    match setting("timeout") {
        Some(seconds @ 1..) if Duration::from_secs(seconds) <= idle => found.push(Finding::warn(
            NAME,
            format!(
                "it ends connections that are idle for {seconds} s (timeout): locks begin with \
                 connecting. Set timeout 0, or more than {} s",
                idle.as_secs()
            ),
        )),
        Some(_) => {}
        None => found.push(Finding::unknown(NAME, "CONFIG (timeout)")),
    }
    let most = seen.number("maxclients").or_else(|| setting("maxclients")?.try_into().ok());
    if let (Some(most @ 1..), Some(open)) = (most, seen.number("connected_clients")) {
        if open.saturating_mul(10) >= most.saturating_mul(9) {
            let near = format!("{open} of {most} connections are taken (maxclients)");
            found.push(Finding::warn(NAME, format!("{near}: at the limit it refuses new clients")));
        } else if found.is_empty() {
            found.push(Finding::ok(
                NAME,
                format!("{open} of {most} connections are taken (maxclients)"),
            ));
        }
    } else if found.is_empty() {
        found.push(Finding::unknown(NAME, "INFO (connected_clients)"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::examples::{node, using, worst_of};
    use super::*;
    use crate::connection::Trouble;
    use redlatch::NodeError;

    #[test]
    fn an_address_that_is_no_one_server_is_found() {
        let mut subject = node("a");
        subject.seen.identities = vec!["aaaaaaaaaa".into(), "bbbbbbbbbb".into()];
        let (level, detail) = worst_of(&checks(&subject, &using()), "proxy");
        assert_eq!(level, Level::Fail);
        assert!(detail.contains("aaaaaaaa, then bbbbbbbb)"), "{detail}");
        subject.seen.identities.truncate(1);
        subject.seen.elsewhere = Some("cccccccccc".into());
        assert_eq!(worst_of(&checks(&subject, &using()), "proxy").0, Level::Fail);
        subject.seen.elsewhere = None;
        assert_eq!(worst_of(&checks(&subject, &using()), "proxy").0, Level::Ok);
        subject.seen.identities.clear();
        assert_eq!(worst_of(&checks(&subject, &using()), "proxy").0, Level::Warn);
    }

    #[test]
    fn a_name_that_leads_to_several_servers_is_a_failure() {
        let place = |last: u8, run_id: Result<Option<&str>, &str>| {
            let trouble =
                |words: &str| Trouble { cause: NodeError::Unreachable, words: words.to_owned() };
            let run_id = run_id.map(|it| it.map(str::to_owned)).map_err(trouble);
            Place { address: ([10, 0, 0, last], 6379).into(), run_id }
        };
        let judged = |places: &[Place]| {
            let mut subject = node("a");
            subject.seen.places = places.to_vec();
            worst_of(&checks(&subject, &using()), "proxy")
        };
        let (one, other) = (place(1, Ok(Some("aaaaaaaaaa"))), place(2, Ok(Some("bbbbbbbbbb"))));
        let (level, detail) = judged(&[one.clone(), other]);
        assert_eq!(level, Level::Fail);
        let finding = "(run_id: 10.0.0.1:6379 is aaaaaaaa, 10.0.0.2:6379 is bbbbbbbb): two clients";
        assert!(detail.contains(finding), "{detail}");
        let same = place(2, Ok(Some("aaaaaaaaaa")));
        assert_eq!(judged(&[one.clone(), same]).0, Level::Ok);
        let unreachable = place(2, Err("Connection refused"));
        assert_eq!(judged(&[one.clone(), unreachable]).0, Level::Ok);
        // An address that could not be examined is reported as a warning, not as ok.
        for unknown in [Ok(None), Err("connection timed out")] {
            let (level, detail) = judged(&[one.clone(), place(3, unknown)]);
            assert_eq!(level, Level::Warn);
            assert!(detail.contains("10.0.0.3:6379"), "{detail}");
        }
    }

    #[test]
    fn doctor_compares_round_trips_with_the_node_timeout() {
        let millis = Duration::from_millis;
        let cases = [
            (vec![1, 2, 25], Level::Ok),
            (vec![1, 2, 26], Level::Warn),
            (vec![1, 49, 80], Level::Warn),
            (vec![1, 50, 80], Level::Fail),
        ];
        for (times, level) in cases {
            let mut subject = node("a");
            subject.seen.round_trips = times.iter().copied().map(millis).collect();
            let (found, detail) = worst_of(&checks(&subject, &using()), "round-trip");
            assert_eq!(found, level, "{times:?}: {detail}");
            assert_eq!(level == Level::Fail, detail.contains("--node-timeout 160ms"));
        }
    }

    #[test]
    fn connections_that_do_not_last_or_run_out_are_reported() {
        let cases = [
            ("0", "3", Level::Ok),
            ("10", "3", Level::Warn),
            ("11", "3", Level::Ok),
            ("", "3", Level::Warn),
            ("0", "9000", Level::Warn),
            ("0", "8999", Level::Ok),
        ];
        for (timeout, open, level) in cases {
            let mut subject = node("a");
            subject.seen.settings.remove("timeout");
            if !timeout.is_empty() {
                subject.seen.settings.insert("timeout", timeout.into());
            }
            subject.seen.info.insert("connected_clients".into(), open.into());
            let (found, detail) = worst_of(&checks(&subject, &using()), "connections");
            assert_eq!(found, level, "{timeout} {open}: {detail}");
        }
    }
}
