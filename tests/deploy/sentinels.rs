//! Nodes that are the masters of Sentinels: the client follows a failover, and what it reports of
//! Sentinels that cannot name a master.

use super::*;
use crate::support::Value;
use crate::support::sentinels::{FakeSentinel, MASTER, Sentinels};
use redlatch::{Credentials, Error, LockOptions, NodeError};

/// A longest ttl that makes the quarantine of a new master short.
const MAX_TTL: Duration = millis(2000);

/// A master and its replica, which has copied it, and two other masters.
fn replicated() -> Fleet {
    let fleet = Fleet::with(4, &["--repl-diskless-sync-delay", "0"]);
    attach(&fleet[1], &fleet[0]);
    fleet
}

/// Makes a server a replica of another one, and waits until it has the data.
#[track_caller]
fn attach(replica: &Node, master: &Node) {
    let port = master.port().to_string();
    assert!(replica.command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    eventually(30 * SECOND, "the replica has a copy", || {
        replica.info("master_link_status") == "up"
    });
}

/// Whether this server is a master. The Sentinels end its connections when they promote it, so the
/// question may have no answer.
fn is_master(node: &Node) -> bool {
    let role = node.try_command(&["ROLE"]);
    matches!(role, Ok(Value::Array(items)) if items.first() == Some(&Value::Bulk(b"master".into())))
}

/// Fake Sentinels of one master.
fn url_of(fakes: &[FakeSentinel]) -> String {
    let hosts: Vec<String> =
        fakes.iter().map(|fake| format!("127.0.0.1:{}", fake.port())).collect();
    format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
}

/// Fake Sentinels in the order in which they are asked, which is that of their ports. Each names
/// the server with this index.
fn naming<const N: usize>(fleet: &Fleet, indices: [usize; N]) -> [FakeSentinel; N] {
    let mut fakes = indices.map(|_| FakeSentinel::naming(&fleet[0]));
    fakes.sort_by_key(FakeSentinel::port);
    fakes.iter().zip(indices).for_each(|(fake, index)| fake.name(&fleet[index]));
    fakes
}

/// A client of one node alone, with the restart guard. It looks at the Sentinels often.
fn guarded(url: &str) -> Config {
    let config = Config::new([url]).expect("a good address");
    config.max_ttl(MAX_TTL).node_timeout(3 * SECOND).probe_interval(millis(200))
}

/// Drives the client until its node can be asked and the key of a new lock is on `master`.
#[track_caller]
fn lock_on(client: &Client, master: &Node) {
    let (start, mut last) = (Instant::now(), String::new());
    eventually(30 * SECOND, "a lock is on the new master, see the output of the test", || {
        client.drive(millis(5)).expect("the poller works");
        let outcome = client.try_lock("after", millis(1500));
        let is_there = outcome.is_ok() && master.get("after").is_some();
        let text = match outcome {
            // A late answer: the lock may have ended before.
            Ok(guard) => format!("a lock, {is_there} on the new master: {:?}", guard.release()),
            Err(error) => error.to_string(),
        };
        if text != last {
            let role = if is_master(master) { "a master" } else { "no master" };
            println!("{:?}: {text}; the promoted server is {role}", start.elapsed());
            last = text;
        }
        is_there
    });
}

/// The text about a node that cannot be asked.
#[track_caller]
fn refusal(config: Config) -> String {
    let client = Client::connect(config.restart_guard(RestartGuard::Off)).expect("good addresses");
    let error = client.try_lock("a", TTL).expect_err("the only node has no master");
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    println!("{error}");
    error.to_string()
}

#[test]
fn sentinel_failover_is_followed_and_the_new_master_grants_after_its_quarantine() {
    let fleet = replicated();
    let sentinels = Sentinels::start(3, &fleet[0], 1);
    let client = ready(guarded(&sentinels.url()));
    let guard = client.try_lock("before", millis(1500)).expect("the master is ready");
    eventually(SOON, "the first master has the key", || fleet[0].get("before").is_some());
    let _ = guard.release();
    // The former master stays a master for some seconds, and keeps its connections.
    sentinels.fail_over(&fleet[1]);
    // No call drove the client since, so it has not seen the promoted server yet.
    let start = Instant::now();
    lock_on(&client, &fleet[1]);
    assert!(start.elapsed() >= MAX_TTL, "it granted after {:?}", start.elapsed());
    assert_eq!(fleet[1].info("role"), "master");
}

#[test]
fn sentinel_url_leads_to_the_new_master_after_the_death_of_the_old_one() {
    let fleet = replicated();
    let sentinels = Sentinels::start(3, &fleet[0], 1);
    // Each of several nodes may be such an address.
    let urls = [sentinels.url(), fleet[2].url(), fleet[3].url()];
    let config = Config::new(&urls).expect("good addresses");
    let client = ready(config.max_ttl(MAX_TTL).node_timeout(3 * SECOND));
    sentinels.watch_closely();
    fleet[0].kill();
    let (start, mut locks) = (Instant::now(), 0);
    eventually(60 * SECOND, "the promoted server has the keys of new locks", || {
        let guard = client.lock("a", LockOptions::new(millis(1500)).wait(20 * SECOND));
        let guard = guard.expect("the two other nodes are there all the time");
        locks += 1;
        let _ = guard.release();
        is_master(&fleet[1])
    });
    println!("a server was promoted after {:?} and {locks} locks", start.elapsed());
    eventually(30 * SECOND, "it has the key of a new lock", || {
        let guard = client.lock("b", LockOptions::new(millis(1500)).wait(20 * SECOND));
        let guard = guard.expect("the two other nodes are there all the time");
        let is_there = fleet[1].get("b").is_some();
        let _ = guard.release();
        is_there
    });
}

#[test]
fn sentinels_with_a_password_get_their_own_and_not_that_of_the_master() {
    let fleet = Fleet::with(1, &["--requirepass", "of-the-master"]);
    let port = fleet[0].port();
    let lines = |_: &Path, _| vec![format!("sentinel auth-pass {MASTER} of-the-master")];
    let sentinels = Sentinels::with(1, port, Some("of-the-sentinels"), lines);
    let url = sentinels.url().replace("://", "://:of-the-master@");
    let config = config([&url]);
    let right = config.clone().sentinel_credentials(Credentials::password("of-the-sentinels"));
    assert!(!format!("{right:?}").contains("of-the-sentinels"));
    lock_extend_and_release(&ready(right));
    let missing = refusal(config.clone());
    assert!(missing.contains("it requires a password; give the credentials for S"), "{missing}");
    let wrong = refusal(config.sentinel_credentials(Credentials::of("ann", "hunter2")));
    assert!(wrong.contains("it refuses the credentials for Sentinels (WRONGPASS)"), "{wrong}");
    assert!(!wrong.contains("hunter2"), "{wrong}");
}

#[test]
fn sentinels_that_name_no_master_are_reported_one_by_one() {
    let fleet = Fleet::start(1);
    let sentinels = Sentinels::with(1, fleet[0].port(), None, |_, _| Vec::new());
    let unknown = refusal(config([sentinels.url().replace(MASTER, "other")]));
    assert!(unknown.contains("no Sentinel names the master other: 127.0.0.1:"), "{unknown}");
    assert!(unknown.contains(": it knows no master of this name"), "{unknown}");
    let none = format!("redis+sentinel://127.0.0.1:{}/{MASTER}", crate::support::free_port());
    let refused = refusal(config([none]));
    assert!(refused.contains(": Connection refused"), "{refused}");
    let not_one = format!("redis+sentinel://127.0.0.1:{}/{MASTER}", fleet[0].port());
    let not_one = refusal(config([not_one]));
    assert!(not_one.contains(": it is no Sentinel"), "{not_one}");
    for (reply, words) in [
        ("", "no answer within "),
        ("+OK\r\n", "its answer is no host and port"),
        ("*2\r\n$1\r\nh\r\n$1\r\n0\r\n", "its answer is no host and port"),
        ("nonsense\r\n", "its answer is no host and port"),
        ("-NOPERM not for you\r\n", "NOPERM not for you"),
    ] {
        let error = refusal(config([url_of(&[FakeSentinel::start(reply)])]));
        assert!(error.contains(words), "{reply:?}: {error}");
    }
}

#[test]
fn sentinel_that_names_a_replica_is_reported_and_the_others_are_believed() {
    let fleet = replicated();
    let error = refusal(config([url_of(&[FakeSentinel::naming(&fleet[1])])]));
    let place = format!("is a replica (at {}, which the Sentinels name)", fleet[1].address());
    assert!(error.contains(&place), "{error}");
    // The first that is asked names the replica. Of three, the two others name the master.
    let client = ready(config([url_of(&naming(&fleet, [1, 0, 0]))]));
    lock_extend_and_release(&client);
    assert_eq!(client.stats().nodes[0].failures, 0, "it connected to the replica");
    // Two differ: the client tries the other after the replica.
    let client = ready(config([url_of(&naming(&fleet, [1, 0]))]));
    lock_extend_and_release(&client);
    assert_eq!(client.stats().nodes[0].failures, 1, "it did not ask in the order of the URL");
}

#[test]
fn connected_client_leaves_a_master_only_for_one_that_most_sentinels_name() {
    let fleet = Fleet::start(2);
    let fakes = naming(&fleet, [0, 0, 0]);
    let client = ready(guarded(&url_of(&fakes)).restart_guard(RestartGuard::Off));
    let turns = |count: u64| {
        let before = client.stats().nodes[0].failures;
        let start = Instant::now();
        while start.elapsed() < millis(200) * count as u32 {
            client.drive(millis(5)).expect("the poller works");
        }
        client.stats().nodes[0].failures - before
    };
    fakes[1].name(&fleet[1]);
    assert_eq!(turns(5), 0, "one of three Sentinels is no majority");
    fakes[2].answer("-ERR not now\r\n");
    fakes[0].answer("-ERR not now\r\n");
    assert_eq!(turns(5), 0, "the one that answers is no majority either");
    fakes[0].name(&fleet[1]);
    eventually(SOON, "the client has left the former master", || {
        client.drive(millis(5)).expect("the poller works");
        client.nodes()[0] == NodeState::Ready && client.stats().nodes[0].failures == 1
    });
    let _guard = client.try_lock("a", MAX_TTL).expect("the other server is ready");
    assert!(fleet[1].get("a").is_some() && fleet[0].get("a").is_none());
}

#[test]
fn same_master_under_two_addresses_is_refused() {
    let twice = Config::new(["redis+sentinel://a,b/m", "redis+sentinel://b,a/m/1"]);
    let error = twice.expect_err("one node twice").to_string();
    assert!(error.contains("sentinel://a:26379,b:26379/m"), "{error}");
    // If different Sentinels name one master, the addresses do not show it; the handshakes do.
    let fleet = Fleet::start(1);
    let fakes = [FakeSentinel::naming(&fleet[0]), FakeSentinel::naming(&fleet[0])];
    let urls = fakes.map(|fake| url_of(&[fake]));
    let error = Client::connect(config(urls)).expect_err("one server").to_string();
    println!("{error}");
    assert!(error.contains(&NodeError::SameServer.to_string()), "{error}");
}

/// Sentinels and their master speak only TLS, with certificates of one CA.
#[cfg(feature = "tls")]
#[test]
fn sentinel_and_master_are_asked_over_tls() {
    use super::papers::Ca;
    use crate::support::{Server, free_port};
    if !Server::get().can_encrypt() {
        return;
    }
    let ca = Ca::new();
    let master = free_port();
    let paper = ca.paper("127.0.0.1");
    let fleet = Fleet::each(1, |_, folder| ca.arguments(folder, master, &paper, "no"));
    let sentinels = Sentinels::with(1, master, None, |folder, port| {
        let arguments = ca.arguments(folder, port, &paper, "no");
        let mut lines: Vec<String> = arguments
            .chunks(2)
            .map(|pair| format!("{} {}", pair[0].trim_start_matches("--"), pair[1]))
            .collect();
        lines.extend(["port 0".to_owned(), "tls-replication yes".to_owned()]);
        lines
    });
    let encrypted = sentinels.url().replace("redis+", "rediss+");
    let tls = redlatch::Tls::trusting(ca.pem.as_bytes()).unwrap();
    lock_extend_and_release(&ready(config([&encrypted]).tls(tls)));
    let stranger = redlatch::Tls::trusting(Ca::new().pem.as_bytes()).unwrap();
    let error = refusal(config([&encrypted]).tls(stranger));
    assert!(error.contains("its certificate is signed by an unknown CA"), "{error}");
    let plain = refusal(config([sentinels.url()]));
    assert!(plain.contains("no Sentinel names the master"), "{plain}");
    assert!(Client::connect(config([encrypted])).is_err(), "nothing says whom to trust");
    drop(fleet);
}
