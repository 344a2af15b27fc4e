//! `wait`: waits until a key is free, and does not acquire it.

use super::*;

fn set_busy(fleet: &Fleet, millis: &str) {
    fleet.command(&["SET", "key", "other", "PX", millis]);
}

#[test]
fn wait_ends_when_the_key_is_released_and_takes_nothing() {
    let fleet = Fleet::start(3);
    let free = run_on(&fleet, &["wait", "key"]).with_code(0);
    assert!(free.out.is_empty() && free.errors.is_empty(), "{free:?}");
    set_busy(&fleet, "600000");
    let monitor = fleet[0].monitor();
    let start = Instant::now();
    let mut waiting = Running::start(&mut tool_on(&fleet, &["wait", "--json", "key"]));
    let looks = || monitor.lines().iter().filter(|line| line.contains("GETRANGE")).count();
    eventually(LIMIT, "it looks", || looks() > 0);
    let first = Instant::now();
    let some_time = Duration::from_millis(800);
    eventually(LIMIT, "it goes on", || looks() > 2 && first.elapsed() > some_time);
    assert!(!waiting.try_reap(), "the key is held");
    let (looks, took) = (looks(), start.elapsed());
    let most = 15.0 * took.as_secs_f64();
    assert!((looks as f64) < most, "{looks} looks in {took:?}: not at a bounded pace");
    fleet.command(&["DEL", "key"]);
    let ended = waiting.end(LIMIT).with_code(0);
    assert!(ended.took < LIMIT / 2, "{ended:?}");
    let json = ended.json();
    assert_eq!(fields(&json), ["key", "waited_ms"]);
    assert!(json["waited_ms"].as_u64() >= Some(700), "{json}");
    assert_eq!(fleet.keys_everywhere(), []);
    let wrote = monitor.lines().into_iter().any(|line| line.contains("\"SET\""));
    assert!(!wrote, "it asked for the lock");
}

#[test]
fn wait_ends_when_the_ttl_of_the_key_is_over() {
    let fleet = Fleet::start(3);
    set_busy(&fleet, "4000");
    let ended = run_on(&fleet, &["wait", "-w", "20s", "key"]).with_code(0);
    assert!((SECOND..12 * SECOND).contains(&ended.ran), "{ended:?}");
}

#[test]
fn wait_that_runs_out_is_75_and_names_the_holder() {
    let fleet = Fleet::start(3);
    set_busy(&fleet, "600000");
    for flags in [&["-n"][..], &["-w", "300ms"]] {
        let ended = run_on(&fleet, &[&["wait"], flags, &["key"]].concat()).with_code(75);
        assert!(ended.errors.contains("held on 3 of 3 nodes"), "{ended:?}");
        let json = run_on(&fleet, &[&["wait", "--json"], flags, &["key"]].concat()).with_code(75);
        assert_eq!(json.json()["error"], "contended");
        assert_eq!(json.json()["nodes"][0]["detail"], "by other");
    }
    let ended = run_on(&fleet, &["wait", "-w", "300ms", "key"]);
    assert!(ended.ran >= Duration::from_millis(300), "{ended:?}");
}

#[test]
fn wait_without_a_quorum_is_69() {
    let fleet = Fleet::start(3);
    set_busy(&fleet, "600000");
    fleet[0].kill();
    let mut waiting =
        Running::start(&mut tool_on(&fleet, &["wait", "--no-quorum-wait", "300ms", "key"]));
    std::thread::sleep(Duration::from_millis(700));
    assert!(!waiting.try_reap(), "a minority is dead");
    fleet[1].kill();
    let ended = waiting.end(LIMIT).with_code(69);
    assert!(ended.errors.contains("not known"), "{ended:?}");
    for flags in [&["-n"][..], &["-w", "300ms"]] {
        let ended = run_on(&fleet, &[&["wait", "--json"], flags, &["key"]].concat()).with_code(69);
        assert_eq!(ended.json()["error"], "no_quorum");
    }
}
