//! `contrib/`: the alert rules and the dashboard use metrics that exist.
//!
//! The tests read the names of the metrics from the output of the tool and the library. The hazard
//! is an expression that Prometheus cannot parse: `promtool` checks that if it is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use redlatch::prometheus::Text;
use redlatch::{Client, Config, RestartGuard};

use super::*;

const RULES: &str = "contrib/prometheus/redlatch.rules.yml";
const RULE_TESTS: &str = "contrib/prometheus/redlatch.test.yml";
const DASHBOARD: &str = "contrib/grafana/redlatch.json";
const OPERATIONS: &str = "docs/operations.md";

/// The labels that a scrape adds to every series.
const OF_A_SCRAPE: [&str; 1] = ["instance"];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn read(name: &str) -> String {
    let path = path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The labels of each series that the library and the tool write, by its name.
fn exported() -> BTreeMap<String, BTreeSet<String>> {
    let masters = redlatch::testing::tcp::Masters::start(3).expect("loopback has ports");
    let config = Config::new(masters.urls()).expect("nodes").restart_guard(RestartGuard::Off);
    let client = Client::connect(config).expect("they run");
    // A series of errors exists only after the first error, so this makes one.
    masters.iter().skip(1).for_each(|master| master.refuse_with("OOM"));
    assert!(client.try_lock("key", Duration::from_secs(10)).is_err());
    masters.iter().for_each(|master| master.serve());
    drop(client.lock("key", Duration::from_secs(10)).expect("it is free"));
    let nodes: Vec<_> = ["a", "b", "c"].into_iter().zip(client.nodes()).collect();
    let mut text = Text::with_labels(&[("key", "key"), ("file", "file")]);
    text.client(&client.stats(), &nodes);
    text.leaders(&[("key", true)]);

    let fleet = Fleet::start(3);
    let desk = crate::exec::Desk::on(&fleet);
    let (file, during) = (desk.path("job.prom"), desk.path("during.prom"));
    let script = format!("cp {} {}", file.display(), during.display());
    let flags = ["exec", "--metrics-file", file.to_str().unwrap(), "job", "-c", &script];
    run_on(&fleet, &flags).with_code(0);
    let mut all = BTreeMap::new();
    for text in [text.as_str().to_owned(), read_at(&file), read_at(&during)] {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, labels) = line.split_once('{').expect("each series has labels");
            let labels = labels.split_once("} ").expect("labels end").0;
            let labels = labels.split(',').map(|it| it.split('=').next().unwrap().to_owned());
            all.entry(name.to_owned()).or_insert_with(BTreeSet::new).extend(labels);
        }
    }
    all
}

fn read_at(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).expect("the run wrote it")
}

/// The words of a text that begin like a metric. Only whole words count, because in prose
/// `redlatch_` may be a part of another word.
fn metrics(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    words.filter(|word| word.starts_with("redlatch_")).map(str::to_owned).collect()
}

/// The expressions of the dashboard, with its variables replaced as Grafana does.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let mut ids = BTreeSet::new();
    let mut all = Vec::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "two panels have one number: {panel}");
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        let targets = panel["targets"].as_array().expect("a panel has targets");
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let text = target["expr"].as_str().expect("a target has an expression");
            all.push(text.replace("$__rate_interval", "1m").replace("$instance", ".*"));
        }
    }
    assert!(all.len() > 20, "{} expressions were read", all.len());
    all
}

#[test]
fn contrib_and_operations_name_metrics_that_exist() {
    let exported = exported();
    let is_there = |name: &String| {
        let of_histogram = || ["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}"));
        exported.contains_key(name) || of_histogram().iter().all(|it| exported.contains_key(it))
    };
    for (file, text) in [
        (RULES, read(RULES)),
        (RULE_TESTS, read(RULE_TESTS)),
        (DASHBOARD, expressions().join("\n")),
        (OPERATIONS, read(OPERATIONS)),
    ] {
        let named = metrics(&text);
        assert!(named.len() > 5, "{file}: {named:?}");
        let wrong: Vec<_> = named.iter().filter(|name| !is_there(name)).collect();
        assert!(wrong.is_empty(), "{file}: {wrong:?} do not exist");
    }
    // And operations.md names every metric that exists.
    let documented = metrics(&read(OPERATIONS));
    let base = |name: &String| {
        let ends = ["_bucket", "_sum", "_count"].iter();
        ends.fold(name.clone(), |name, end| name.strip_suffix(end).unwrap_or(&name).to_owned())
    };
    let missing: BTreeSet<_> =
        exported.keys().map(base).filter(|name| !documented.contains(name)).collect();
    assert!(missing.is_empty(), "{OPERATIONS}: {missing:?} are not there");
}

#[test]
fn contrib_names_labels_that_its_metrics_have() {
    let exported = exported();
    let known: BTreeSet<&str> =
        exported.values().flatten().map(String::as_str).chain(OF_A_SCRAPE).collect();
    let mut named = BTreeSet::new();
    let texts = [read(RULES), expressions().join("\n")];
    for text in &texts {
        for start in ["by (", "without (", "$labels."] {
            for rest in text.split(start).skip(1) {
                let end = rest.find([')', '}']).expect("it ends");
                named.extend(rest[..end].split(',').map(str::trim));
            }
        }
    }
    assert!(named.len() > 5, "{named:?}");
    let wrong: Vec<_> = named.difference(&known).collect();
    assert!(wrong.is_empty(), "{wrong:?} are no labels; there are {known:?}");
}

/// Every alert of the rules has a test in which it fires, and one in which it does not.
#[test]
fn contrib_tests_every_alert() {
    let (rules, tests) = (read(RULES), read(RULE_TESTS));
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 11, "{alerts:?}");
    let operations = read(OPERATIONS);
    for alert in alerts {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels:");
        assert!(tests.contains(&fires), "{RULE_TESTS}: {alert} never fires");
        assert!(operations.contains(&format!("`{alert}`")), "{OPERATIONS}: {alert} is not there");
    }
}

#[test]
#[ignore = "needs promtool: apt-get install prometheus"]
fn contrib_rules_are_valid_for_prometheus() {
    let promtool = |arguments: &[&str]| {
        let mut command = Command::new("promtool");
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        run(&mut command).with_code(0);
    };
    promtool(&["check", "rules", path(RULES).to_str().unwrap()]);
    promtool(&["test", "rules", path(RULE_TESTS).to_str().unwrap()]);
    // Makes rules of the dashboard's expressions, because promtool checks only rules.
    let rules: Vec<String> = expressions()
        .iter()
        .enumerate()
        .map(|(n, text)| {
            format!("  - {{ record: panel:{n}, expr: {} }}", Value::from(text.as_str()))
        })
        .collect();
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("dashboard.yml");
    let text = format!("groups:\n- name: dashboard\n  rules:\n{}\n", rules.join("\n"));
    std::fs::write(&file, text).expect("the folder is that of tests");
    promtool(&["check", "rules", file.to_str().unwrap()]);
}
