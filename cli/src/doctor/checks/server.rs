//! Whether the server is an independent master that keeps its keys, by its `INFO`.

use std::cmp::Ordering;
use std::time::Duration;

use redlatch::{NodeState, QuarantineReason, RestartGuard};

use super::{Finding, Subject, Use, marker, round_up_to_seconds, span};
use crate::doctor::marker::Seen;

/// The checks that need `INFO`.
pub fn checks(subject: &Subject, how: &Use) -> Vec<Finding> {
    if subject.seen.info.is_empty() {
        let names = ["role", "loading", "cluster", "eviction", "persistence"];
        let mut found: Vec<Finding> =
            names.into_iter().map(|name| Finding::unknown(name, "INFO")).collect();
        found.push(age_unknown(how));
        return found;
    }
    let mut found = vec![role(subject, how), loading(subject), cluster(subject)];
    found.extend([eviction(subject), persistence(subject, how), age(subject, how)]);
    found.extend(marker::check(subject, how));
    found
}

fn role(subject: &Subject, how: &Use) -> Finding {
    const NAME: &str = "role";
    let seen = &subject.seen;
    let replicas = seen.number("connected_slaves").unwrap_or(0);
    if seen.info("role") != Some("master") {
        let [host, port] = ["master_host", "master_port"].map(|name| seen.info(name));
        let master = format!("{}:{}", host.unwrap_or("?"), port.unwrap_or("?"));
        return Finding::fail(
            NAME,
            format!("it is a replica of {master}: locks belong on masters that replicate nothing"),
        );
    }
    if seen.info("second_repl_offset").is_some_and(|offset| offset != "-1") {
        if let Some(found) = promoted(subject, how) {
            return found;
        }
    }
    let counted = i64::from(how.replicas);
    if counted > 0 {
        return confirmed_by(replicas, counted, silent_replicas(subject));
    }
    if replicas > 0 {
        return Finding::warn(
            NAME,
            format!(
                "it has {}: one that is promoted lacks the last locks. Let nothing promote it, or \
                 give every client --replicas {replicas}",
                plural(replicas)
            ),
        );
    }
    Finding::ok(NAME, "a master without replicas")
}

fn plural(replicas: i64) -> String {
    format!("{replicas} {}", if replicas == 1 { "replica" } else { "replicas" })
}

/// How many replicas the master has not heard for some seconds; each reports every second.
fn silent_replicas(subject: &Subject) -> usize {
    const LONGEST_LAG: u64 = 3;
    let replica = |number| subject.seen.info(&format!("slave{number}"));
    let lag = |text: &str| text.split(',').find_map(|it| it.strip_prefix("lag=")?.parse().ok());
    let is_silent = |text: &&str| lag(text).is_some_and(|lag: u64| lag > LONGEST_LAG);
    (0..).map_while(replica).filter(is_silent).count()
}

/// Compares how many replicas a master has with how many have to confirm each grant.
fn confirmed_by(replicas: i64, counted: i64, silent: usize) -> Finding {
    const NAME: &str = "role";
    let has = format!("it has {}, and --replicas is {counted}", plural(replicas));
    match replicas.cmp(&counted) {
        Ordering::Less => Finding::fail(
            NAME,
            format!("{has}: it grants nothing until the others follow it. Start them"),
        ),
        Ordering::Equal if silent > 0 => Finding::fail(
            NAME,
            format!(
                "it has not heard {} for some seconds, and grants nothing until each answers: it \
                 may be frozen, or cut off",
                plural(silent as i64)
            ),
        ),
        Ordering::Equal => {
            Finding::ok(NAME, format!("a master whose {} confirm each grant", plural(replicas)))
        }
        Ordering::Greater => Finding::fail(
            NAME,
            format!(
                "{has}: one that has not confirmed the last locks may be promoted. Give every \
                 client --replicas {replicas}"
            ),
        ),
    }
}

/// What to report of a server that was promoted from a replica. `None` if the node marker shows
/// that the promotion is old enough.
fn promoted(subject: &Subject, how: &Use) -> Option<Finding> {
    const NAME: &str = "role";
    let promoted = "it was a replica and was promoted: it may lack locks of its old master";
    if !how.restart_guard {
        return Some(Finding::warn(NAME, format!("{promoted}, and the restart guard is off")));
    }
    if !matches!(subject.seen.marker, Seen::Fits(_)) {
        let each = span(RestartGuard::quarantine(how.max_ttl));
        return Some(Finding::fail(
            NAME,
            format!(
                "{promoted}. It has no node marker of use, so each new client counts none of its \
                 grants for {each}: see the check \"marker\""
            ),
        ));
    }
    let NodeState::Quarantined(until) = subject.met.state else { return None };
    let left = span(round_up_to_seconds(until.saturating_since(how.now)));
    Some(Finding::warn(NAME, format!("{promoted}; its grants count in {left}")))
}

fn loading(subject: &Subject) -> Finding {
    const NAME: &str = "loading";
    let seen = &subject.seen;
    if !subject.is_loading() {
        return Finding::ok(NAME, "its data is loaded");
    }
    let done = seen.info("loading_loaded_perc").unwrap_or("?");
    let left = seen.info("loading_eta_seconds").unwrap_or("?");
    Finding::fail(
        NAME,
        format!(
            "it is loading its data ({done} % done, about {left} s to go): not asked until then"
        ),
    )
}

fn cluster(subject: &Subject) -> Finding {
    const NAME: &str = "cluster";
    if subject.seen.info("cluster_enabled").is_none_or(|value| value == "0") {
        return Finding::ok(NAME, "it is in no cluster");
    }
    Finding::fail(
        NAME,
        "cluster mode: a key lives on one of its nodes, so they are not independent. Run plain \
         masters (cluster-enabled no)",
    )
}

fn eviction(subject: &Subject) -> Finding {
    const NAME: &str = "eviction";
    let seen = &subject.seen;
    let most = seen.number("maxmemory").unwrap_or(0);
    let used = seen.number("used_memory").unwrap_or(0);
    let policy = seen.info("maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" {
        let set = "CONFIG SET maxmemory-policy noeviction";
        return if most > 0 {
            Finding::fail(NAME, format!("{policy}: it may evict a lock. {set}"))
        } else {
            Finding::warn(NAME, format!("{policy}: no maxmemory yet; with one it evicts. {set}"))
        };
    }
    if most > 0 && used.saturating_mul(10) >= most.saturating_mul(9) {
        let percent = used.saturating_mul(100) / most;
        return Finding::warn(
            NAME,
            format!("its memory is {percent} % full: at 100 % it refuses locks. Raise maxmemory"),
        );
    }
    Finding::ok(NAME, "it evicts nothing")
}

/// Whether the node keeps its locks over a restart. A node that lost a lock could grant the key to
/// a second client while the first still relies on the lock.
fn persistence(subject: &Subject, how: &Use) -> Finding {
    const NAME: &str = "persistence";
    let aof = subject.seen.info("aof_enabled").is_some_and(|value| value == "1");
    let fsync = subject.seen.settings.get("appendfsync").map(String::as_str);
    if how.persistent {
        return declared_persistent(aof, fsync);
    }
    match (aof, fsync, how.restart_guard) {
        (false, _, true) => Finding::warn(
            NAME,
            "a restart forgets its locks: only the restart guard helps, and only clients of \
             redlatch have one. Set appendonly yes",
        ),
        (false, _, false) => Finding::fail(
            NAME,
            "a restart forgets its locks, and the restart guard is off: two could hold one. Set \
             appendonly yes, or leave the guard on",
        ),
        (true, Some("always"), _) => Finding::ok(NAME, "appendonly, appendfsync always"),
        (true, Some(fsync), true) => Finding::ok(
            NAME,
            format!("appendonly, appendfsync {fsync}; after a power loss the restart guard helps"),
        ),
        (true, Some(fsync), false) => Finding::warn(
            NAME,
            format!(
                "appendfsync {fsync}: a power loss forgets its last locks, and the restart guard \
                 is off. Set appendfsync always"
            ),
        ),
        (true, None, _) => {
            Finding::warn(NAME, "appendonly; appendfsync is unknown: the node refuses CONFIG")
        }
    }
}

/// Whether the declaration of `--persistent-nodes` is true. The restart guard relies on it.
fn declared_persistent(aof: bool, fsync: Option<&str>) -> Finding {
    const NAME: &str = "persistence";
    let declared = "--persistent-nodes declares appendonly yes and appendfsync always";
    let two = "two clients could hold one lock";
    match (aof, fsync) {
        (false, _) => Finding::fail(
            NAME,
            format!("{declared}, but appendonly is no: a restart forgets locks, and {two}"),
        ),
        (true, Some("always")) => Finding::ok(NAME, "appendonly, appendfsync always, as declared"),
        (true, Some(fsync)) => Finding::fail(
            NAME,
            format!(
                "{declared}, but appendfsync is {fsync}: a power loss forgets locks, and {two}"
            ),
        ),
        (true, None) => Finding::warn(
            NAME,
            format!("{declared}; appendfsync is unknown: the node refuses CONFIG"),
        ),
    }
}

fn age(subject: &Subject, how: &Use) -> Finding {
    const NAME: &str = "age";
    let seconds = subject.seen.number("uptime_in_seconds").unwrap_or(0);
    let age = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let shown = span(age);
    if let (NodeState::Quarantined(until), Some((why, _))) =
        (subject.met.state, subject.met.distrust)
    {
        // The check "role" reports the quarantine of a promoted server.
        if !matches!(why, QuarantineReason::Promoted | QuarantineReason::Replaced) {
            let left = span(round_up_to_seconds(until.saturating_since(how.now)));
            let max = span(how.max_ttl);
            return Finding::warn(
                NAME,
                format!(
                    "{why} (up {shown}), and may have forgotten a lock: its grants count in \
                     {left} (restart guard, --max-ttl {max})"
                ),
            );
        }
    }
    if !how.restart_guard && age < RestartGuard::quarantine(how.max_ttl) {
        return Finding::warn(
            NAME,
            format!(
                "up only {shown}, and the restart guard is off: clients may still hold locks \
                 from before its start"
            ),
        );
    }
    Finding::ok(NAME, format!("up {shown}"))
}

fn age_unknown(how: &Use) -> Finding {
    if !how.restart_guard {
        return Finding::unknown("age", "INFO");
    }
    let each = span(RestartGuard::quarantine(how.max_ttl));
    Finding::warn(
        "age",
        format!(
            "unknown: the node refuses INFO, so each new client counts none of its grants \
             for {each}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::examples::{NOW, node, using, worst_of};
    use super::*;

    fn with(changes: &[(&str, &str)], guard: bool, name: &str) -> (Level, String) {
        let mut subject = node("a");
        for (name, value) in changes {
            subject.seen.info.insert((*name).to_owned(), (*value).to_owned());
        }
        worst_of(&checks(&subject, &Use { restart_guard: guard, ..using() }), name)
    }

    #[test]
    fn server_that_is_no_independent_master_is_named() {
        use Level::{Fail, Ok, Warn};
        let replica = [("role", "slave"), ("master_host", "h"), ("master_port", "7")];
        let (level, detail) = with(&replica, true, "role");
        assert_eq!(level, Fail);
        assert!(detail.contains("replica of h:7"), "{detail}");
        let promoted = [("second_repl_offset", "15")];
        assert_eq!(with(&promoted, true, "role").0, Ok, "its marker is old");
        assert_eq!(with(&promoted, false, "role").0, Warn);
        assert_eq!(with(&[("connected_slaves", "1")], true, "role").0, Warn);
        let confirmed = |connected: &str, frozen: bool| {
            let mut subject = node("a");
            subject.seen.info.insert("connected_slaves".into(), connected.into());
            for (number, lag) in [("slave0", 0), ("slave1", if frozen { 9 } else { 1 })] {
                let text = format!("ip=h,port=7,state=online,offset=70,lag={lag}");
                subject.seen.info.insert(number.into(), text);
            }
            worst_of(&checks(&subject, &Use { replicas: 2, ..using() }), "role")
        };
        assert_eq!(confirmed("2", false).0, Ok);
        let (level, detail) = confirmed("2", true);
        assert!(level == Fail && detail.contains("has not heard 1 replica"), "{detail}");
        let (level, detail) = confirmed("1", false);
        assert!(level == Fail && detail.contains("grants nothing"), "{detail}");
        let (level, detail) = confirmed("3", false);
        assert!(level == Fail && detail.contains("--replicas 3"), "{detail}");
        assert_eq!(with(&[("cluster_enabled", "1")], true, "cluster").0, Fail);
        assert_eq!(with(&[("loading", "1")], true, "loading").0, Fail);
        assert_eq!(with(&[], true, "role").0, Ok);
    }

    #[test]
    fn a_promoted_node_is_judged_by_its_marker() {
        let mut subject = node("a");
        subject.seen.info.insert("second_repl_offset".into(), "15".into());
        let until = NOW.saturating_add(Duration::from_millis(49_600));
        subject.met.state = NodeState::Quarantined(until);
        subject.met.distrust = Some((QuarantineReason::Promoted, until));
        let (level, detail) = worst_of(&checks(&subject, &using()), "role");
        assert_eq!(level, Level::Warn);
        assert!(detail.contains("its grants count in 50 s"), "{detail}");
        subject.seen.marker = Seen::Refused("NOPERM".to_owned());
        let (level, detail) = worst_of(&checks(&subject, &using()), "role");
        assert_eq!(level, Level::Fail);
        assert!(detail.contains("see the check \"marker\""), "{detail}");
    }

    #[test]
    fn a_declaration_of_persistence_is_checked() {
        use Level::{Fail, Ok, Warn};
        let cases = [
            ("0", "always", Fail),
            ("1", "always", Ok),
            ("1", "everysec", Fail),
            ("1", "no", Fail),
            ("1", "", Warn),
        ];
        for (aof, fsync, level) in cases {
            let mut subject = node("a");
            subject.seen.info.insert("aof_enabled".into(), aof.into());
            subject.seen.settings.remove("appendfsync");
            if !fsync.is_empty() {
                subject.seen.settings.insert("appendfsync", fsync.into());
            }
            let found = persistence(&subject, &Use { persistent: true, ..using() });
            assert_eq!(found.level, level, "{aof} {fsync}: {found:?}");
        }
    }

    #[test]
    fn eviction_fails_and_possible_eviction_is_a_warning() {
        let policy = ("maxmemory_policy", "allkeys-lru");
        assert_eq!(with(&[policy, ("maxmemory", "100")], true, "eviction").0, Level::Fail);
        assert_eq!(with(&[policy], true, "eviction").0, Level::Warn);
        let full = [("maxmemory", "100"), ("used_memory", "90")];
        assert_eq!(with(&full, true, "eviction").0, Level::Warn);
        let roomy = [("maxmemory", "100"), ("used_memory", "89")];
        assert_eq!(with(&roomy, true, "eviction").0, Level::Ok);
    }

    #[test]
    fn persistence_is_held_against_the_restart_guard() {
        use Level::{Fail, Ok, Warn};
        let cases = [
            ("0", "always", true, Warn),
            ("0", "always", false, Fail),
            ("1", "always", true, Ok),
            ("1", "always", false, Ok),
            ("1", "everysec", true, Ok),
            ("1", "everysec", false, Warn),
            ("1", "", true, Warn),
        ];
        for (aof, fsync, guard, level) in cases {
            let mut subject = node("a");
            subject.seen.info.insert("aof_enabled".into(), aof.into());
            subject.seen.settings.remove("appendfsync");
            if !fsync.is_empty() {
                subject.seen.settings.insert("appendfsync", fsync.into());
            }
            let found = persistence(&subject, &Use { restart_guard: guard, ..using() });
            assert_eq!(found.level, level, "{aof} {fsync} {guard}: {found:?}");
        }
    }

    #[test]
    fn a_young_node_is_reported_with_the_time_that_is_left() {
        let mut subject = node("a");
        subject.seen.info.insert("uptime_in_seconds".into(), "12".into());
        let until = NOW.saturating_add(Duration::from_millis(49_600));
        subject.met.state = NodeState::Quarantined(until);
        subject.met.distrust = Some((QuarantineReason::Young, until));
        let (level, detail) = worst_of(&checks(&subject, &using()), "age");
        assert_eq!(level, Level::Warn);
        assert!(detail.contains("up 12 s") && detail.contains("count in 50 s"), "{detail}");
        assert_eq!(with(&[("uptime_in_seconds", "12")], false, "age").0, Level::Warn);
        assert_eq!(with(&[("uptime_in_seconds", "62")], false, "age").0, Level::Ok);
    }

    #[test]
    fn unknown_answers_are_not_reported_as_ok() {
        let mut subject = node("a");
        subject.seen.info.clear();
        let found = checks(&subject, &using());
        assert_eq!(found.len(), 6);
        for finding in found {
            assert_eq!(finding.level, Level::Warn, "{finding:?}");
            assert!(finding.detail.contains("unknown"), "{finding:?}");
        }
    }
}
