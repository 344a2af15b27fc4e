//! Tests of the tests' own tools on real servers: what the live tests rely on has to hold first.
//!
//! Needs a redis-server and takes a place of the machine's for servers, like every live test.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{
    CountingListener, Cut, Fleet, PLACES, PlainTimer, Proxy, RespClient, SOON, Scripted, Server,
    ServerLock, Value, Way, again, despite_stalls, encode, eventually, free_port, is_reserved,
    millis,
};

#[test]
fn ports_of_one_process_are_in_no_block_of_another() {
    if let Some(ports) = again::nodes() {
        let port = ports[0].parse().expect("the parent gives a port");
        assert!(is_reserved(port), "this process could take port {port} of its parent");
        return;
    }
    let test = "ports_of_one_process_are_in_no_block_of_another";
    again::run(module_path!(), test, &[free_port().to_string()]);
}

#[test]
fn five_servers_are_five_processes() {
    let fleet = Fleet::start(5);
    let mut run_ids: Vec<String> = fleet.iter().map(|node| node.info("run_id")).collect();
    for node in &fleet {
        assert_eq!(node.info("process_id"), node.pid().to_string());
        assert_eq!(node.url(), format!("redis://{}", node.address()));
    }
    run_ids.sort();
    run_ids.dedup();
    assert_eq!(run_ids.len(), fleet.len());
    assert_eq!(fleet.urls().len(), 5);
}

#[test]
fn a_stopped_server_is_stopped_and_executes_later() {
    let fleet = Fleet::start(1);
    let node = &fleet[0];
    let mut other = node.client();
    assert_ne!(node.process_state(), Some('T'));
    node.stop();
    assert_eq!(node.process_state(), Some('T'));
    other.send(&["SET", "late", "1"]).expect("the kernel takes what a stopped server does not");
    assert!(TcpStream::connect(node.address()).is_ok(), "the backlog accepts");
    node.cont();
    assert_ne!(node.process_state(), Some('T'));
    assert!(other.read().expect("it answers now").is_ok());
    assert_eq!(node.get("late").as_deref(), Some(b"1".as_slice()));
}

#[test]
fn a_restarted_server_is_empty_and_another_on_the_same_port() {
    let fleet = Fleet::start(2);
    let node = &fleet[0];
    let (port, pid, run_id) = (node.port(), node.pid(), node.info("run_id"));
    assert!(node.command(&["SET", "k", "v"]).is_ok());
    node.restart();
    assert_eq!(node.port(), port);
    assert_ne!(node.pid(), pid);
    assert_ne!(node.info("run_id"), run_id);
    assert_eq!(node.get("k"), None);
}

#[test]
fn a_restart_waits_for_its_port() {
    let fleet = Fleet::start(1);
    let node = &fleet[0];
    node.kill();
    let squatter = TcpListener::bind(node.address()).expect("a killed server's port is free");
    std::thread::scope(|scope| {
        let restarting = scope.spawn(|| node.restart());
        // By now a restart that did not wait for the port would have failed.
        let_pass(millis(150));
        assert!(!restarting.is_finished());
        drop(squatter);
    });
    assert_eq!(node.info("process_id"), node.pid().to_string());
}

#[test]
fn a_killed_server_refuses_and_can_come_back() {
    let fleet = Fleet::start(2);
    let node = &fleet[1];
    node.stop();
    node.kill();
    assert!(!node.is_running());
    assert_eq!(node.process_state(), None);
    let refused = TcpStream::connect(node.address()).expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(node.try_command(&["PING"]).is_err());
    node.kill();
    assert!(fleet[0].command(&["SET", "left", "1"]).is_ok());
    assert_eq!(fleet.keys_everywhere(), [(0, b"left".to_vec())]);
    node.restart();
    assert_eq!(node.command(&["PING"]), Value::Simple("PONG".to_owned()));
}

#[test]
fn keys_and_values_are_bytes() {
    let fleet = Fleet::start(1);
    let node = &fleet[0];
    let key = [0, b'\r', b'\n', 0xff, b' '];
    let set: [&[u8]; 5] = [b"SET", &key, &[0x80, 0], b"PX", b"60000"];
    assert!(node.command(&set).is_ok());
    assert_eq!(node.get(key), Some(vec![0x80, 0]));
    assert!((1..=60_000).contains(&node.pttl(key)));
    assert_eq!(node.pttl("absent"), -2);
    assert_eq!(node.keys(), [key.to_vec()]);
    assert_eq!(fleet.keys_everywhere(), [(0, key.to_vec())]);
}

#[test]
fn replies_of_every_kind_are_read() {
    let fleet = Fleet::start(1);
    let script = "return {1, 'two', false, {3}, redis.status_reply('S'), redis.error_reply('E e')}";
    let reply = fleet[0].command(&["EVAL", script, "0"]);
    let expected = [
        Value::Int(1),
        Value::Bulk(b"two".to_vec()),
        Value::Nil,
        Value::Array(vec![Value::Int(3)]),
        Value::Simple("S".to_owned()),
        Value::Error("E e".to_owned()),
    ];
    assert_eq!(reply, Value::Array(expected.to_vec()));
    assert_eq!(format!("{reply:?}"), "[:1, \"two\", nil, [:3], +S, -E e]");
    assert!(matches!(fleet[0].command(&["NO-SUCH"]), Value::Error(text) if text.contains("ERR")));
}

#[test]
fn a_connection_that_the_server_closed_is_replaced() {
    let fleet = Fleet::start(1);
    let node = &fleet[0];
    node.command(&["PING"]);
    let mut other = node.client();
    // The kept connection ends on the server's side, and the kernel has reported that before PING
    // runs.
    assert_eq!(other.command(&["CLIENT", "KILL", "TYPE", "normal"]).expect("a reply").int(), 1);
    assert_eq!(node.command(&["PING"]), Value::Simple("PONG".to_owned()));
}

#[test]
fn keys_that_are_deleted_are_distinguished_from_keys_that_expire() {
    let fleet = Fleet::start(2);
    fleet.wait_empty();
    for node in &fleet {
        assert!(node.command(&["SET", "a", "v", "PX", "60000"]).is_ok());
    }
    let mut emptied = fleet.emptied();
    assert!(!emptied());
    fleet[0].command(&["DEL", "a"]);
    assert!(!emptied());
    fleet[1].command(&["DEL", "a"]);
    assert!(emptied());
    // The test has to see the key before it expires, so after a stall the ttl is longer.
    despite_stalls(millis(500), |times| {
        let ttl = (1_000 * times).to_string();
        assert!(fleet[1].command(&["SET", "short", "v", "PX", &ttl]).is_ok());
        let ended = std::panic::catch_unwind(|| fleet.wait_empty());
        let why = ended.expect_err("no one deleted it");
        let why = why.downcast_ref::<String>().expect("a text");
        assert_eq!(why, "node 1: short may have gone by its ttl");
    });
}

#[test]
fn plain_timer_is_late_if_the_machine_stalls() {
    let timer = PlainTimer::start();
    let_pass(millis(20));
    let late = timer.latest();
    assert!(!late.is_zero() && late < SOON, "{late:?}");
    assert!(timer.limit(SOON) >= SOON);
    assert_eq!(PlainTimer::limit_of(millis(3), millis(1)), millis(13));
}

#[test]
fn a_failure_is_tried_again_where_the_machine_stalled_and_nowhere_else() {
    let runs = |stall, good| {
        let mut runs = Vec::new();
        let show = |times| {
            runs.push(times);
            assert!(times >= good, "not stretched enough");
        };
        let show = std::panic::AssertUnwindSafe(show);
        let shown = std::panic::catch_unwind(move || despite_stalls(stall, { show }.0));
        (shown.is_ok(), runs)
    };
    // A timer is always late by more than nothing, and never by an hour.
    let (never, ever) = (Duration::from_secs(3600), Duration::ZERO);
    assert_eq!(runs(never, 1), (true, vec![1]));
    assert_eq!(runs(never, 2), (false, vec![1]));
    assert_eq!(runs(ever, 2), (true, vec![1, 2]));
    assert_eq!(runs(ever, 9), (false, vec![1, 2, 4]));
}

#[test]
fn the_list_of_clients_leaves_out_our_own() {
    let fleet = Fleet::start(1);
    let node = &fleet[0];
    assert_eq!(node.client_list(), [""; 0]);
    let mut other = node.client();
    other.command(&["PING"]).expect("a reply, so that the server has accepted it");
    let name = format!("addr={}", other.local_address());
    let list = node.client_list();
    assert_eq!(list.len(), 1, "{list:?}");
    assert!(list[0].contains(&name), "{list:?}");
    drop(other);
    eventually(SOON, "the server notices that it left", || node.client_list().is_empty());
}

#[test]
fn a_monitor_has_seen_everything_before_the_question() {
    let fleet = Fleet::start(1);
    let node = &fleet[0];
    let monitor = node.monitor();
    for i in 0..200 {
        node.command(&["SET", &format!("key-{i}."), "v"]);
        let lines = monitor.lines();
        assert_eq!(lines.len(), i + 1, "no line is missing, none is the monitor's own");
        assert!(lines[i].ends_with(&format!("\"SET\" \"key-{i}.\" \"v\"")), "{}", lines[i]);
    }
    node.stop();
    assert_eq!(monitor.arrived().len(), 200);
}

#[test]
fn arguments_reach_the_server_and_its_password_is_used() {
    let fleet = Fleet::with(2, &["--requirepass", "secret", "--maxclients", "77"]);
    let node = &fleet[1];
    assert_eq!(node.command(&["CONFIG", "GET", "maxclients"]), {
        Value::Array(vec![Value::Bulk(b"maxclients".to_vec()), Value::Bulk(b"77".to_vec())])
    });
    let mut stranger = RespClient::connect(node.address()).expect("it listens");
    let refused = stranger.command(&["PING"]).expect("a reply");
    assert!(matches!(refused, Value::Error(text) if text.starts_with("NOAUTH")));
    node.restart();
    assert_eq!(node.info("maxclients"), "77");
}

#[test]
fn no_more_fleets_run_at_a_time_than_there_are_places() {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..PLACES + 2 {
            scope.spawn(|| {
                let place = ServerLock::take();
                assert!(RUNNING.fetch_add(1, Ordering::SeqCst) < PLACES);
                let_pass(millis(100));
                RUNNING.fetch_sub(1, Ordering::SeqCst);
                drop(place);
            });
        }
    });
}

#[test]
fn a_dropped_fleet_leaves_no_process_and_no_lock() {
    let fleet = Fleet::start(2);
    let pids: Vec<u32> = fleet.iter().map(|node| node.pid()).collect();
    let addresses: Vec<_> = fleet.iter().map(|node| node.address()).collect();
    fleet[0].stop();
    drop(fleet);
    for pid in pids {
        // Another process may have this number by now, but it is no child of the test's.
        let parent = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let ours = format!(" {} ", std::process::id());
        assert!(!parent.is_ok_and(|stat| stat.contains("redis") && stat.contains(&ours)));
    }
    for address in addresses {
        assert!(TcpStream::connect(address).is_err());
    }
    drop(ServerLock::take());
}

#[test]
#[should_panic(expected = "this thread has a fleet already")]
fn a_second_fleet_on_one_thread_panics_instead_of_waiting_for_ever() {
    let _first = Fleet::start(1);
    let _second = Fleet::start(1);
}

#[test]
#[should_panic(expected = "$(command -v sudo) apt-get install -y redis-server")]
fn a_missing_server_is_named_with_the_command_that_installs_it() {
    Server::examine("redis-server-that-nobody-has");
}

#[test]
#[should_panic(expected = "in vain: pigs fly")]
fn eventually_panics_if_its_condition_never_holds() {
    eventually(millis(20), "pigs fly", || false);
}

#[test]
fn a_counting_listener_counts() {
    let listener = CountingListener::start();
    assert_eq!((listener.connections(), listener.bytes()), (0, 0));
    let mut first = TcpStream::connect(listener.address()).expect("it accepts");
    let second = TcpStream::connect(listener.address()).expect("it accepts");
    first.write_all(&[7; 10_000]).expect("it reads");
    eventually(SOON, "both are counted", || {
        listener.connections() == 2 && listener.bytes() == 10_000
    });
    drop(second);
}

#[test]
fn a_script_answers_byte_by_byte_and_hangs_up() {
    let listener = Scripted::start(|mut stream, number| {
        let mut request = [0; 14];
        if stream.read_exact(&mut request).is_err() {
            return;
        }
        for byte in encode(&["no", &number.to_string()]) {
            let _ = stream.write_all(&[byte]);
        }
    });
    for number in 0..2 {
        let mut client = RespClient::connect(listener.address()).expect("it accepts");
        let reply = client.command(&["PING"]).expect("the script answers");
        assert_eq!(reply.text_items(), ["no".to_owned(), number.to_string()]);
        assert!(client.read().is_err(), "the script has ended");
    }
    // Dropping the listener ends a script that waits.
    let _waiting = TcpStream::connect(listener.address()).expect("it accepts");
    eventually(SOON, "the third is accepted", || listener.connections() == 3);
}

/// Sends everything back.
fn echo() -> Scripted {
    Scripted::start(|mut stream, _| {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            let _ = stream.write_all(&buffer[..length]);
        }
    })
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("it accepts");
    stream.set_read_timeout(Some(SOON)).expect("a timeout can be set");
    stream
}

#[test]
fn a_proxy_passes_delays_and_cuts() {
    let echo = echo();
    let proxy = Proxy::start(echo.address());
    let mut buffer = [0; 4];
    for (how, ended) in [(Cut::Fin, None), (Cut::Reset, Some(ErrorKind::ConnectionReset))] {
        let mut stream = connect(&proxy);
        proxy.delay(Way::ToNode, millis(20));
        proxy.delay(Way::ToClient, millis(30));
        let start = Instant::now();
        stream.write_all(b"ping").expect("it reads");
        stream.read_exact(&mut buffer).expect("it comes back");
        assert!(start.elapsed() >= millis(50), "{:?}", start.elapsed());
        assert_eq!(&buffer, b"ping");
        proxy.cut(how);
        let read = stream.read(&mut buffer);
        assert_eq!(read.as_ref().err().map(std::io::Error::kind), ended, "{how:?}: {read:?}");
    }
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn a_proxy_keeps_what_it_holds_and_lets_stragglers_through() {
    let counting = CountingListener::start();
    let proxy = Proxy::start(counting.address());
    let mut first = connect(&proxy);
    first.write_all(&[1; 10]).expect("it reads");
    eventually(SOON, "it arrives", || counting.bytes() == 10);
    proxy.hold();
    first.write_all(&[1; 20]).expect("it reads");
    let mut second = connect(&proxy);
    second.write_all(&[1; 100]).expect("the kernel takes it");
    let_pass(millis(50));
    assert_eq!((counting.bytes(), counting.connections(), proxy.accepted()), (10, 1, 2));
    // The proxy holds two pieces and a reset after them.
    first.write_all(&[1; 1000]).expect("it reads");
    rustix::net::sockopt::set_socket_linger(&first, Some(Duration::ZERO)).expect("an option");
    drop(first);
    let_pass(millis(50));
    proxy.heal_with_stragglers(millis(200));
    eventually(SOON, "the second one arrives", || counting.bytes() == 110);
    eventually(SOON, "and so does the first piece of the first", || counting.bytes() == 130);
    let_pass(millis(50));
    assert_eq!(counting.bytes(), 130, "and no more");
}

#[test]
fn a_proxy_that_vanishes_answers_no_syn() {
    let echo = echo();
    let proxy = Proxy::start(echo.address());
    let mut stream = connect(&proxy);
    proxy.vanish();
    // A process that another test starts at this moment keeps the sockets open until its exec.
    eventually(SOON, "no SYN is under way", || proxy.being_opened() == 0);
    let address = ([127, 0, 0, 1], proxy.port()).into();
    std::thread::scope(|scope| {
        let trying = scope.spawn(|| TcpStream::connect_timeout(&address, SOON / 10));
        eventually(SOON, "a SYN is under way", || proxy.being_opened() == 1);
        let error = trying.join().expect("it does not panic").expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
    stream.write_all(b"ping").expect("the kernel takes it");
    proxy.come_back();
    let mut buffer = [0; 4];
    stream.read_exact(&mut buffer).expect("what was held comes through");
    let mut another = connect(&proxy);
    another.write_all(b"pong").expect("it reads");
    another.read_exact(&mut buffer).expect("it comes back");
    assert_eq!((proxy.accepted(), &buffer), (2, b"pong"));
}

#[test]
fn a_proxy_trickles_whole_replies() {
    let replies = b"+OK\r\n%1\r\n$1\r\na\r\n*2\r\n:1\r\n$3\r\nx\r\n\r\n$-1\r\n:7\r\n";
    let listener = Scripted::start(move |mut stream, _| {
        let _ = stream.write_all(replies);
        let _ = stream.read(&mut [0]);
    });
    let proxy = Proxy::start(listener.address());
    let interval = millis(40);
    proxy.trickle(Some(interval));
    let start = Instant::now();
    let mut stream = connect(&proxy);
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let mut buffer = [0; 100];
    while pieces.concat().len() < replies.len() {
        let length = stream.read(&mut buffer).expect("it goes on");
        pieces.push(buffer[..length].to_vec());
    }
    assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [5, 28, 5, 4]);
    assert!(start.elapsed() >= 3 * interval);
}

#[test]
fn a_proxy_loses_pushes_and_nothing_else() {
    // A push stands between two replies. The second reply contains the first byte of a push.
    let bytes: &[u8] = b"+OK\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n$3\r\n>0\r\r\n";
    let speaker = Scripted::start(move |mut stream, _| {
        for byte in bytes {
            std::thread::yield_now();
            stream.write_all(&[*byte]).expect("the proxy reads");
        }
    });
    let proxy = Proxy::start(speaker.address());
    proxy.lose_pushes();
    let mut said = Vec::new();
    connect(&proxy).read_to_end(&mut said).expect("the speaker ends");
    assert_eq!(said, b"+OK\r\n$3\r\n>0\r\r\n", "{}", said.escape_ascii());
}

fn let_pass(time: Duration) {
    let start = Instant::now();
    eventually(SOON, "time passes", || start.elapsed() > time);
}
