//! `bench`: its figures are consistent and show what happened to the nodes, and it leaves no key.

use support::{drawing, free_port};

use super::pipes::broken_pipe;
use super::status::{printed, terminal};
use super::*;

const PREFIX: &str = "redlatch-bench:";

/// A file of percentiles, read as a plotter does.
struct Percentiles {
    /// For each line: a latency in milliseconds, and the part and the number of pairs that were not
    /// slower.
    lines: Vec<(f64, f64, u64)>,
    total: u64,
}

impl Percentiles {
    #[track_caller]
    fn read(text: &str) -> Percentiles {
        let heads = text.lines().next().expect("a first line").split_whitespace();
        let expected = ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"];
        assert_eq!(heads.collect::<Vec<_>>(), expected);
        let mut lines = Vec::new();
        for line in text.lines().skip(1).filter(|it| !it.is_empty() && !it.starts_with('#')) {
            let numbers: Vec<f64> =
                line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
            // Plotters read the fourth column, 1/(1-percentile), which is missing in the last line.
            match numbers[..] {
                [value, part, count, inverse] => {
                    assert!((1.0 / (1.0 - part) - inverse).abs() <= 0.006, "{line}");
                    lines.push((value, part, count as u64));
                }
                [value, 1.0, count] => lines.push((value, 1.0, count as u64)),
                _ => panic!("{line:?}"),
            }
        }
        assert!(lines.is_sorted_by(|one, other| one.0 <= other.0 && one.2 <= other.2), "{text}");
        let (_, total) = text.split_once("Total count    =").expect("the total");
        let total = total.split(']').next().and_then(|it| it.trim().parse().ok());
        Percentiles { lines, total: total.expect("a number") }
    }

    /// How many pairs took longer than this, as exactly as the file shows it.
    fn slower_than(&self, millis: f64) -> u64 {
        let faster = self.lines.iter().rfind(|line| line.0 <= millis);
        self.total - faster.map_or(0, |line| line.2)
    }
}

/// Waits until the tool acquires locks on this fleet, and then for `longer`.
#[track_caller]
fn until_it_measures(fleet: &Fleet, longer: Duration) {
    // Counts only SETs, because this inspection itself is a command, too.
    let taken = || {
        let stats = fleet[0].command(&["INFO", "commandstats"]).text();
        let calls = stats.split("cmdstat_set:calls=").nth(1);
        let calls = calls.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
        calls.unwrap_or(0)
    };
    let before = taken();
    eventually(LIMIT, "locks are taken", || taken() >= before + 10);
    pause(longer);
}

/// Waits for this time. For tests of durations.
fn pause(length: Duration) {
    let start = Instant::now();
    eventually(LIMIT, "time passes", || start.elapsed() > length);
}

#[test]
fn a_sweep_counts_every_pair_and_leaves_nothing() {
    let fleet = Fleet::start(3);
    let files = Folder::new();
    let (svg, hgrm) = (files.path("it.svg"), files.path("it.hgrm"));
    let arguments = ["bench", "--in-flight", "1,4", "--keys", "6", "--duration", "300ms"];
    let monitor = fleet[0].monitor();
    let outputs = ["--json", "--svg", &svg, "--hgrm", &hgrm];
    let ended = run_on(&fleet, &[&arguments[..], &outputs].concat()).with_code(0);
    let asked = monitor.lines();
    fleet.wait_empty();
    let sets = asked.iter().filter_map(|line| line.split("\"SET\" \"").nth(1));
    let mut keys: Vec<_> = sets.filter_map(|rest| rest.split('"').next()).collect();
    let taken = keys.len() as u64;
    assert!(keys.iter().all(|key| key.starts_with(PREFIX)), "{keys:?}");
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 7, "six, and that of the rehearsal: {keys:?}");

    assert_eq!(ended.errors, "", "no progress but on a terminal");
    let json = ended.json();
    let rows = json.as_array().expect("a sweep is several");
    for (row, in_flight) in rows.iter().zip([1, 4]) {
        let expected = ["nodes", "in_flight", "seconds", "pairs", "pairs_per_s"];
        let mut names = fields(row);
        names.sort_unstable();
        let mut all = [&expected[..], &["acquire_us", "release_us", "errors"]].concat();
        all.sort_unstable();
        assert_eq!(names, all);
        assert_eq!((&row["nodes"], &row["in_flight"]), (&3.into(), &in_flight.into()));
        assert_eq!(row["errors"], serde_json::json!({}));
        let pairs = row["pairs"].as_u64().expect("a count");
        let number = |value: &Value| value.as_f64().expect("a number");
        let (seconds, per_second) = (number(&row["seconds"]), number(&row["pairs_per_s"]));
        assert!(pairs > 10 && seconds >= 0.3, "{row}");
        assert!((per_second * seconds / pairs as f64 - 1.0).abs() < 0.01, "{row}");
        for (what, name) in [("acquire_us", ""), ("release_us", "-release")] {
            let text = files.read(&format!("it-{in_flight}{name}.hgrm"));
            let percentiles = Percentiles::read(&text);
            let last = percentiles.lines.last().expect("a line");
            assert_eq!((percentiles.total, last.1, last.2), (pairs, 1.0, pairs));
            let told = ["p50", "p90", "p99", "p999", "max"].map(|it| number(&row[what][it]));
            assert!(told.is_sorted() && told[0] > 0.0, "{row}");
            assert!((told[4] / 1e3 / last.0 - 1.0).abs() < 0.01, "{row} {text}");
        }
    }
    assert_eq!(rows.len(), 2);
    let counted = rows.iter().filter_map(|row| row["pairs"].as_u64()).sum::<u64>();
    assert!(taken > counted + 4, "{counted} of {taken}: the warm-up does not count");
    let drawn = drawing::texts(&files.read("it.svg"));
    let labels = ["percentile", "latency", "pairs a second", "in flight", "50%", "99%"];
    let lines = ["acquire, 1 in flight", "acquire, 4 in flight", "redlatch bench on 3 nodes"];
    for label in labels.iter().chain(&lines) {
        assert!(drawn.iter().any(|text| text == label), "{label}: {drawn:?}");
    }
    assert_eq!(files.names().len(), 5, "{:?}", files.names());
}

/// Runs the bench, and stops two nodes for 300 ms meanwhile. Returns how many pairs took longer
/// than half of that.
fn slow_pairs(fleet: &Fleet, arguments: &[&str]) -> u64 {
    let files = Folder::new();
    let hgrm = files.path("it.hgrm");
    let always = ["bench", "--duration", "1500ms", "--json", "--hgrm", &hgrm];
    let tool = Running::start(&mut tool_on(fleet, &[&always[..], arguments].concat()));
    // By now the warm-up of 300 ms is over, and the end of the measurement is not near.
    until_it_measures(fleet, Duration::from_millis(500));
    [1, 2].iter().for_each(|&node| fleet[node].stop());
    pause(Duration::from_millis(300));
    [1, 2].iter().for_each(|&node| fleet[node].cont());
    tool.end(LIMIT).with_code(0);
    fleet.wait_empty();
    let slow = |name| Percentiles::read(&files.read(name)).slower_than(150.0);
    slow("it.hgrm") + slow("it-release.hgrm")
}

#[test]
fn bench_counts_a_stall_once_in_a_closed_loop_and_for_every_arrival_in_an_open_loop() {
    despite_stalls(Duration::from_millis(100), |_| stall_is_met());
}

fn stall_is_met() {
    let fleet = Fleet::start(3);
    let closed = slow_pairs(&fleet, &[]);
    assert!((1..=4).contains(&closed), "{closed} instead of the one that was under way");
    // About 60 pairs should begin during the stall. The 30 that begin in its first half wait for
    // longer than half of the stall. The limit of pairs in flight is high enough for all.
    let open = slow_pairs(&fleet, &["--rate", "200"]);
    assert!(open >= 15, "{open} of about 30");
    // With only one place in flight the pairs wait for it, and that time is part of their latency.
    let one_place = slow_pairs(&fleet, &["--rate", "200", "--in-flight", "1"]);
    assert!(one_place >= 15, "{one_place} of about 30");
}

#[test]
fn clients_that_contend_wait_for_each_other() {
    let fleet = Fleet::start(3);
    let monitor = fleet[0].monitor();
    let arguments = ["bench", "--contended", "--in-flight", "3", "--duration", "300ms", "--json"];
    let ended = run_on(&fleet, &arguments).with_code(0);
    fleet.wait_empty();
    let asks = |line: &String| line.contains("\"SET\"") || line.contains("redlatch:line:");
    // Leaves out commands inside a script.
    let is_of_a_client = |line: &String| line.contains(":0\"") && !line.contains(" lua]");
    let lines = monitor.lines().into_iter().filter(asks);
    let wanted: Vec<String> = lines.filter(is_of_a_client).collect();
    let by = |line: &String| line.split(['[', ']']).nth(1).map(str::to_owned);
    let mut clients: Vec<_> = wanted.iter().filter_map(by).collect();
    clients.sort();
    clients.dedup();
    assert_eq!(clients.len(), 3, "each has a connection of its own: {clients:?}");
    let json = ended.json();
    assert_eq!((&json["in_flight"], &json["errors"]), (&3.into(), &serde_json::json!({})));
    let pairs = json["pairs"].as_u64().expect("a count");
    assert!(pairs > 3 && wanted.len() as u64 > pairs, "{} asked for {json}", wanted.len());
    // A client that waits for the lock waits at least for the release of another client.
    let micros = |what: &str, part: &str| json[what][part].as_f64().expect("a number");
    assert!(micros("acquire_us", "max") > micros("release_us", "p50"), "{json}");
}

#[test]
fn bench_that_is_interrupted_prints_what_it_measured() {
    let fleet = Fleet::start(3);
    let files = Folder::new();
    let arguments = ["bench", "--duration", "60s", "--in-flight", "2,4"];
    let written = ["--svg", &files.path("it.svg"), "--hgrm", &files.path("it.hgrm")];
    let tool = Running::start(&mut tool_on(&fleet, &[&arguments[..], &written].concat()));
    // The warm-up takes a second.
    until_it_measures(&fleet, 2 * SECOND);
    tool.signal(Signal::INT);
    let ended = tool.end(LIMIT).with_code(130);
    assert!(ended.took < 10 * SECOND, "{ended:?}");
    assert!(ended.out.contains("ended early"), "{ended:?}");
    let row = ended.out.lines().find(|line| line.trim_start().starts_with("2 ")).expect("a row");
    let words = row.split_whitespace().map(|word| word.replace(',', "").parse::<f64>());
    let words: Vec<_> = words.take(3).map(|word| word.expect("a number")).collect();
    let [_, per_second, pairs] = words[..] else { panic!("{row}") };
    assert!(pairs > 10.0 && pairs / per_second < 20.0, "not by the time it was to take: {row}");
    assert!(!ended.out.contains('\x1b') && !ended.errors.contains('\x1b'), "{ended:?}");
    assert_eq!(files.names(), ["it-2-release.hgrm", "it-2.hgrm", "it.svg"]);
    let drawn = drawing::texts(&files.read("it.svg"));
    assert!(drawn.iter().any(|text| text == "acquire, 2 in flight"), "{drawn:?}");
    fleet.wait_empty();
}

#[test]
fn bench_ends_at_once_at_a_second_interrupt_and_leaves_nothing() {
    let fleet = Fleet::start(3);
    let tool = Running::start(&mut tool_on(&fleet, &["bench", "--in-flight", "16"]));
    until_it_measures(&fleet, Duration::ZERO);
    [1, 2].iter().for_each(|&node| fleet[node].stop());
    // After the first signal the tool waits for the pairs in flight, after the second it does not.
    for _ in 0..2 {
        tool.signal(Signal::INT);
        pause(Duration::from_millis(100));
    }
    [1, 2].iter().for_each(|&node| fleet[node].cont());
    let ended = tool.end(LIMIT).with_code(130);
    assert!(ended.out.contains("ended early"), "{ended:?}");
    nothing_is_left(&fleet);
}

#[test]
fn bench_counts_errors_by_their_kind() {
    despite_stalls(Duration::from_millis(200), |_| troubles_are_counted());
}

fn troubles_are_counted() {
    let fleet = Fleet::start(3);
    let arguments = ["bench", "-w", "0", "--duration", "1s", "--json", "--in-flight", "2"];
    let tool = Running::start(&mut tool_on(&fleet, &arguments));
    until_it_measures(&fleet, Duration::from_millis(400));
    [1, 2].iter().for_each(|&node| fleet[node].kill());
    let json = tool.end(LIMIT).with_code(0).json();
    assert!(json["pairs"].as_u64() > Some(0), "{json}");
    let refused = json["errors"]["no_quorum"].as_u64();
    // After a failure the bench pauses, so it does not repeat failures as fast as possible.
    assert!(refused > Some(1) && refused < Some(1000), "{json}");
    fleet.wait_empty();
}

#[test]
fn bench_without_one_pair_exits_69() {
    despite_stalls(Duration::from_millis(300), |_| no_pair_exits_69());
}

fn no_pair_exits_69() {
    let fleet = Fleet::start(3);
    let monitor = fleet[0].monitor();
    // Also without a warm-up the tool runs one pair as a rehearsal. The measured pair begins a
    // second later.
    let arguments = ["bench", "--rate", "1", "-w", "0", "--duration", "1s", "--json"];
    let tool = Running::start(&mut tool_on(&fleet, &arguments));
    let sets = || monitor.lines().iter().filter(|line| line.contains("\"SET\"")).count();
    eventually(LIMIT, "the rehearsal and the first one are over", || sets() >= 2);
    [1, 2].iter().for_each(|&node| fleet[node].kill());
    let json = tool.end(LIMIT).with_code(69).json();
    assert_eq!((&json["pairs"], &json["errors"]["no_quorum"]), (&0.into(), &1.into()), "{json}");
}

#[test]
fn bench_counts_and_releases_what_is_in_flight_at_the_end() {
    despite_stalls(Duration::from_millis(200), |_| in_flight_is_counted());
}

fn in_flight_is_counted() {
    let fleet = Fleet::start(3);
    let arguments = ["bench", "--duration", "800ms", "--json", "--in-flight", "2"];
    let tool = Running::start(&mut tool_on(&fleet, &arguments));
    until_it_measures(&fleet, Duration::from_millis(300));
    [1, 2].iter().for_each(|&node| fleet[node].stop());
    let ended = tool.end(LIMIT).with_code(0);
    // An acquire in flight counts as unfinished, and a release in flight as unconfirmed.
    let errors = ended.json()["errors"].clone();
    let count = |name: &str| errors[name].as_u64().unwrap_or(0);
    assert_eq!(count("unfinished") + count("release_unconfirmed"), 2, "{ended:?}");
    eventually(SOON, "the node that answers holds nothing", || fleet[0].keys().is_empty());
    // The tool warns that keys may stay on the stopped nodes, because a node may drop the requests
    // of a closed connection.
    assert!(ended.errors.contains("may stay until their ttl is over"), "{ended:?}");
}

#[test]
fn bench_exits_69_without_a_quorum_and_125_for_bad_options() {
    let urls = [0; 3].map(|_| format!("redis://127.0.0.1:{}", free_port())).join(",");
    let refusal = run(&mut tool(&["bench", "-s", &urls, "--json"])).with_code(69).json();
    assert_eq!(refusal["error"], "no_quorum");
    assert_eq!(refusal["nodes"].as_array().map(Vec::len), Some(3));
    let nowhere = std::env::temp_dir().join("redlatch-no-such-directory").join("it.svg");
    let nowhere = nowhere.to_str().expect("a path of letters");
    let cases: [&[&str]; 11] = [
        &["--in-flight", "0"],
        &["--in-flight", "1,0"],
        &["--in-flight", "100000"],
        &["--in-flight", "8", "--keys", "4"],
        &["--contended", "--in-flight", "1"],
        &["--contended", "--rate", "5"],
        &["--keys", "0"],
        &["--rate", "0"],
        &["--duration", "0"],
        &["--duration", "for ever"],
        &["--svg", nowhere],
    ];
    for arguments in cases {
        let all = [&["bench", "-s", &urls], arguments].concat();
        let ended = run(&mut tool(&all)).with_code(125);
        assert!(ended.out.is_empty() && ended.errors.lines().count() > 0, "{ended:?}");
        assert!(ended.took < SECOND * 10, "no node is waited for: {ended:?}");
    }
}

#[test]
fn bench_progress_is_shown_on_terminals_only_and_not_with_quiet() {
    let fleet = Fleet::start(1);
    let on_a_terminal = |arguments: &[&str]| {
        let (master, terminal) = terminal();
        let mut command = tool_on(&fleet, &[&["bench", "--duration", "200ms"], arguments].concat());
        command.stderr(terminal).env("TERM", "xterm").env("NO_COLOR", "1");
        let ended = run(&mut command).with_code(0);
        assert!(ended.out.contains("pairs/s") && !ended.out.contains('\r'), "{ended:?}");
        // Closes the test's copy of the tool's end of the terminal, which `command` holds.
        drop(command);
        printed(master)
    };
    let screen = on_a_terminal(&[]);
    assert!(screen.starts_with("\r1 in flight: warming up"), "{screen:?}");
    // The progress line is erased at the end, without escape codes, which only some terminals know.
    let last = screen.trim_end_matches('\r').rsplit('\r').next();
    assert!(last.is_some_and(|line| line.trim().is_empty()), "{screen:?}");
    assert!(!screen.contains('\x1b'), "{screen:?}");
    assert_eq!(on_a_terminal(&["-q"]), "");
}

#[test]
fn bench_works_with_closed_outputs() {
    let fleet = Fleet::start(1);
    let files = Folder::new();
    let hgrm = files.path("it.hgrm");
    let command = &mut tool_on(&fleet, &["bench", "--duration", "100ms", "--hgrm", &hgrm]);
    assert_eq!(run(command.stdout(broken_pipe())).with_code(0).errors, "");
    run(command.stdout(broken_pipe()).stderr(broken_pipe())).with_code(0);
    assert!(Percentiles::read(&files.read("it.hgrm")).total > 0);
    fleet.wait_empty();
}

/// Counted replicas need the restart guard, which is off in every other bench.
#[test]
fn bench_measures_grants_that_replicas_confirm() {
    let fleet = Fleet::with(2, &["--repl-diskless-sync-delay", "0"]);
    let port = fleet[0].port().to_string();
    assert!(fleet[1].command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    eventually(LIMIT, "it follows", || fleet[1].info("master_link_status") == "up");
    let on_master = |words: &[&str]| {
        let mut command = tool(words);
        run(command.args(["--node-timeout", NODE_TIMEOUT]).env("REDLATCH_SERVERS", fleet[0].url()))
    };
    eventually(LIMIT, "the server is vouched for", || {
        let ended = on_master(&["init", "--yes", "--json"]).with_code(0);
        ended.json()["vouched"].as_array().is_some_and(|nodes| nodes.len() == 1)
    });
    let flags = ["bench", "--replicas", "1", "--duration", "200ms"];
    let ended = on_master(&flags).with_code(0);
    assert!(ended.out.contains("pairs/s"), "{ended:?}");
    let calls = fleet[0].command(&["INFO", "commandstats"]).text();
    assert!(calls.contains("cmdstat_wait:"), "{calls}");
}
