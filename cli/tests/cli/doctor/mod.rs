//! `redlatch doctor` on real servers, each brought into the state that doctor has to find.
//!
//! A run takes a second, because of the clocks. So one run covers several conditions if they do not
//! affect each other. The tests assert every finding of a node that is not ok.

mod access;
mod clocks;
mod marker;
mod network;
mod no_lua;
mod rights;
mod servers;

use super::*;

/// The result of a run of doctor.
struct Diagnosis {
    code: i32,
    json: Value,
    took: Duration,
}

/// An expected finding: its name, its level, and a part of its text.
type Bad<'a> = (&'a str, &'a str, &'a str);

/// Runs doctor on these nodes, and reads its JSON.
#[track_caller]
fn ask(urls: &[String], arguments: &[&str]) -> Diagnosis {
    let ended = run(tool_at(urls, &["--json"], &["doctor"]).args(arguments));
    assert_eq!(ended.errors, "", "{ended:?}");
    Diagnosis { code: ended.code(), json: ended.json(), took: ended.took }
}

/// A node timeout that no healthy node exceeds here, and no restart guard, because the servers have
/// just been started.
const PLAINLY: [&str; 3] = ["--no-restart-guard", "--node-timeout", "5s"];

#[track_caller]
fn ask_plainly(urls: &[String]) -> Diagnosis {
    ask(urls, &PLAINLY)
}

/// Whether a finding may come from a busy machine, on which some answers are late.
fn is_of_a_busy_machine(detail: &str) -> bool {
    ["unknown: answers take too long", "some of its answers come too late"]
        .iter()
        .any(|words| detail.contains(words))
}

impl Diagnosis {
    fn checks(&self) -> &Vec<Value> {
        self.json["checks"].as_array().expect("a list")
    }

    /// The findings about one node (or with `None` about all nodes together) that are not `ok`,
    /// without the checks of these names.
    fn bad(&self, node: Option<&str>, but: &[&str]) -> Vec<(String, String, String)> {
        let text = |check: &Value, field: &str| check[field].as_str().unwrap_or("").to_owned();
        let of_it = self.checks().iter().filter(|check| check["node"].as_str() == node);
        let bad = of_it.map(|it| (text(it, "name"), text(it, "level"), text(it, "detail")));
        bad.filter(|it| it.1 != "ok" && !but.contains(&it.0.as_str())).collect()
    }

    /// Asserts that these are the only findings of a node that are not `ok`. Leaves out those about
    /// the age and the persistence of the servers, which other tests cover.
    #[track_caller]
    fn is(&self, node: &str, expected: &[Bad<'_>]) {
        let mut bad = self.bad(Some(node), &["age", "persistence"]);
        let looked_for = |name: &str| expected.iter().any(|it| it.0 == name);
        bad.retain(|(name, _, detail)| looked_for(name) || !is_of_a_busy_machine(detail));
        assert_alike(&bad, expected);
    }

    #[track_caller]
    fn is_together(&self, expected: &[Bad<'_>]) {
        assert_alike(&self.bad(None, &[]), expected);
    }

    /// The level and the text of the one finding of that name.
    #[track_caller]
    fn words(&self, node: Option<&str>, name: &str) -> (String, String) {
        let is_it = |it: &&Value| it["name"] == name && it["node"].as_str() == node;
        let found: Vec<&Value> = self.checks().iter().filter(is_it).collect();
        let [check] = found.as_slice() else { panic!("{name}: {found:?}") };
        let text = |field: &str| check[field].as_str().expect("a text").to_owned();
        (text("level"), text("detail"))
    }
}

#[track_caller]
fn assert_alike(bad: &[(String, String, String)], expected: &[Bad<'_>]) {
    let alike = |(it, expected): (&(String, String, String), &Bad<'_>)| {
        it.0 == expected.0 && it.1 == expected.1 && it.2.contains(expected.2)
    };
    let all = bad.len() == expected.len() && bad.iter().zip(expected).all(alike);
    assert!(all, "found {bad:#?}, expected {expected:#?}");
}

/// Whether the servers are of Redis 6 or before.
fn is_old() -> bool {
    let server = support::Server::get();
    !server.valkey && server.version < (7, 0)
}

/// Starts servers that keep their keys over any restart.
fn lasting(count: usize) -> Fleet {
    Fleet::each(count, |_, folder| {
        let mut arguments = vec!["--unixsocket".to_owned(), folder.join("s").display().to_string()];
        arguments.extend(["--appendonly", "yes", "--appendfsync", "always"].map(str::to_owned));
        arguments
    })
}

/// Waits until the servers are old enough for the guard with a max-ttl of 100 ms.
#[track_caller]
fn wait_until_trusted(fleet: &Fleet) {
    eventually(10 * SECOND, "they have been up for two seconds", || {
        let up = |node: &Node| node.info("uptime_in_seconds").parse::<u64>().is_ok_and(|up| up > 1);
        fleet.iter().all(up)
    });
}

const TRUSTING: [&str; 4] = ["--max-ttl", "100ms", "--node-timeout", "5s"];

#[test]
fn healthy_nodes_are_called_healthy_and_nothing_is_left_on_them() {
    let fleet = lasting(3);
    let socket = format!("redis+unix://{}/s", fleet[2].directory().display());
    let urls = [fleet[0].url(), format!("{}/3", fleet[1].url()), socket];
    let mut init = tool(&["init", "--yes", "--node-timeout", "5s"]);
    run(init.env("REDLATCH_SERVERS", urls.join(","))).with_code(0);
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    wait_until_trusted(&fleet);
    let diagnosis = ask(&urls, &TRUSTING);
    assert_eq!(diagnosis.code, 0, "{}", diagnosis.json);
    assert_eq!(diagnosis.json["ok"], true);
    assert_eq!(fields(&diagnosis.json), ["ok", "checks"]);
    for check in diagnosis.checks() {
        assert_eq!(fields(check), ["name", "level", "node", "detail"]);
        let busy = is_of_a_busy_machine(check["detail"].as_str().expect("a text"));
        assert!(check["level"] == "ok" || busy, "{check}");
    }
    let own = fleet[0].command(&["COMMAND", "INFO", "DELIFEQ", "DELEX"]);
    let support::Value::Array(own) = own else { panic!("{own:?}") };
    let has_its_own = own.iter().any(|it| matches!(it, support::Value::Array(_)));
    let (_, release) = diagnosis.words(Some(&label(&fleet[0])), "release");
    assert_eq!(release.starts_with("DEL"), has_its_own, "{release}");
    // There are twenty checks of each node, and four of all together.
    assert_eq!(diagnosis.checks().len(), 3 * 20 + 4);
    let (level, words) = diagnosis.words(Some(&label(&fleet[0])), "marker");
    assert_eq!(level, "ok");
    assert!(words.contains(" s ago, when an operator vouched for it"), "{words}");
    // Only the node marker is left on the nodes, in the database of the URL.
    fleet.wait_empty();
    let keyspace = fleet[1].command(&["INFO", "keyspace"]);
    assert!(keyspace.text().trim().starts_with("# Keyspace\r\ndb3:keys=1,expires=0"));
    for monitor in monitors {
        let asked = monitor.lines();
        let wrote = asked.iter().any(|line| line.contains("\"SET\" \"redlatch-doctor:"));
        assert!(wrote, "it was tried: {asked:?}");
    }
}

#[test]
fn one_node_that_keeps_its_keys_is_healthy_and_its_note_is_printed() {
    let fleet = lasting(1);
    let on = |arguments: &[&str]| {
        let mut command = tool(arguments);
        run(command.env("REDLATCH_SERVERS", fleet[0].url())).with_code(0)
    };
    on(&["init", "--yes", "--node-timeout", "5s"]);
    wait_until_trusted(&fleet);
    let table = on(&[&["doctor"][..], &TRUSTING].concat()).out;
    assert!(table.contains("\nnode-count     note\n"), "{table}");
    let note = "note  all     node-count     1 node: while it is away no lock is granted, and for";
    assert!(table.contains(note), "{table}");
    let healthy = table.ends_with("\n\nhealthy\n") || is_of_a_busy_machine(&table);
    assert!(healthy, "{table}");
}

#[test]
fn doctor_prints_a_table_for_people_and_returns_a_code_for_scripts() {
    let fleet = lasting(3);
    let text = |arguments: &[&str]| {
        let mut command = tool(&["doctor"]);
        command.args(PLAINLY).args(arguments);
        run(command.env("REDLATCH_SERVERS", fleet.urls().join(",")))
    };
    let table = text(&["-v"]).with_code(0);
    println!("{}", table.out);
    assert!(table.out.contains("\nok    node 1  role           a master without replicas\n"));
    assert!(table.out.contains("check          all   1     2     3\n"), "{}", table.out);
    assert!(table.out.contains("\nrole                 ok    ok    ok\n"), "{}", table.out);
    assert!(table.out.contains("\n\nhealthy, with "), "they are young: {}", table.out);
    assert!(!table.out.contains('\x1b'), "colours in a pipe");
    assert!(table.out.contains(&format!("node 3  127.0.0.1:{}\n", fleet[2].port())));
    fleet[1].kill();
    let failed = text(&[]).with_code(1);
    assert!(failed.out.contains("\nreachable            ok    fail  ok\n"), "{}", failed.out);
    assert!(failed.out.contains("\nfail  node 2  reachable      not connected"), "{}", failed.out);
    assert!(!failed.out.contains("a master without replicas"), "{}", failed.out);
    assert_eq!(text(&["-q"]).with_code(1).out, "");
}

#[test]
fn doctor_refuses_bad_arguments_before_it_connects() {
    let cases: [&[&str]; 3] = [
        &["doctor", "-s", "redis://h:1,redis://h:1"],
        &["doctor", "-s", "nonsense"],
        &["doctor", "--node-timeout", "0", "-s", "redis://127.0.0.1:1"],
    ];
    for arguments in cases {
        let ended = run(&mut tool(arguments)).with_code(125);
        assert_eq!(ended.out, "");
        assert!(ended.errors.starts_with("redlatch: "), "{ended:?}");
    }
}
