//! Why `min-replicas-to-write` does not keep a master that was replaced from granting: a replica
//! may stay with it, and acknowledgements that piled up while it was stopped look fresh to it.
//! `Config::replicas` with all replicas does. Docs: docs/servers.md.
//!
//! Every server has `min-replicas-to-write 1`, so that a promoted one needs a replica, too.

use super::failover::{Failover, believes_beside, hold_for};
use super::*;
use redlatch::Guard;

/// The ttl of each lock, and the greatest lag in the tests in which no replica is left.
const TTL: Duration = Duration::from_secs(2);
const MAX_LAG: Duration = Duration::from_secs(3);

/// A stall of this length can end a lock, or a master's time to write. Then the test runs once
/// more, with more time.
const STALL: Duration = millis(500);

fn start(replicas: usize, max_lag: Duration) -> Failover {
    let max_lag = max_lag.as_secs().to_string();
    let arguments = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", &max_lag];
    let often = ["--repl-ping-replica-period", "1"];
    Failover::with(replicas, &[arguments.as_slice(), &often].concat())
}

/// How many replicas the master counts for `min-replicas-to-write`.
fn count_good_replicas(servers: &Failover) -> usize {
    let count = servers.fleet[0].info("min_slaves_good_slaves");
    count.parse().expect("it is a number")
}

/// How many connections have sent something that the master has not read.
fn unread(servers: &Failover) -> usize {
    let own = format!("0100007F:{:04X}", servers.fleet[0].port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The connections of the server's own address in the state ESTABLISHED.
    let open = lines.filter(|words| words.get(1) == Some(&own.as_str()) && words[3] == "01");
    open.filter(|words| !words[4].ends_with(":00000000")).count()
}

/// Drives the client until the master has counted its replicas. It does so once a second, after a
/// ping to them.
fn count_again(servers: &Failover, client: &Client) {
    let offset = || servers.fleet[0].info("master_repl_offset");
    let before = offset();
    drive_until(client, SOON, "it has counted its replicas", || offset() != before);
}

/// Tries until the server refuses the lock because it has too few replicas. Calls `meanwhile`
/// before each attempt.
#[track_caller]
fn refused_for_want_of_replicas(client: &Client, ttl: Duration, mut meanwhile: impl FnMut()) {
    eventually(6 * SOON, "too few replicas confirm the grant", || {
        meanwhile();
        client.drive(millis(20)).expect("it can be driven");
        let error = client.try_lock("a", ttl).expect_err("no grant counts without all replicas");
        error.to_string().contains("has too few replicas")
    });
}

/// Has a master keep one of three replicas, while another one is promoted and the third follows
/// that. `goes_on` gets the servers and the holder of a lock.
fn with_one_replica_left(
    counted: u32,
    (ttl, max_lag): (Duration, Duration),
    goes_on: impl FnOnce(&Failover, (&Client, &Guard<'_>)),
) {
    let servers = start(3, max_lag);
    servers.follow(3, servers.fleet[0].port());
    let holder = servers.client_with(0, counted, ttl);
    let guard = hold_for(&holder, ttl);
    servers.promote();
    servers.follow(2, servers.fleet[1].port());
    // From now on the master writes for the sake of the third replica alone.
    drive_until(&holder, 6 * SOON, "two replicas are cut off", || {
        count_good_replicas(&servers) == 1
    });
    goes_on(&servers, (&holder, &guard));
}

#[test]
fn master_with_one_replica_left_has_a_second_holder_in_spite_of_min_replicas_to_write() {
    despite_stalls(STALL, |times| {
        let (ttl, max_lag) = (times * TTL, times * SECOND);
        with_one_replica_left(0, (ttl, max_lag), |servers, holder| {
            let other = servers.client_with(1, 0, ttl);
            assert!(believes_beside(holder, &other, ttl), "the master stopped to write");
        });
    });
}

#[test]
fn master_with_one_replica_left_has_no_second_holder_if_all_replicas_confirm() {
    with_one_replica_left(3, (TTL, SECOND), |servers, holder| {
        let other = servers.client_with(1, 3, TTL);
        refused_for_want_of_replicas(&other, TTL, || {
            holder.0.drive(millis(20)).expect("it can be driven");
        });
        drive_until(holder.0, 3 * TTL, "the lock is lost", || holder.1.check().is_err());
        let port = servers.fleet[1].port();
        [0, 3].into_iter().for_each(|server| servers.follow(server, port));
        assert!(!believes_beside(holder, &other, TTL));
    });
}

/// Stops a master whose replicas go on acknowledging, cuts it off, and promotes one of them. The
/// promoted one begins a quarantine that is as long as the greatest lag and a ttl: after that a
/// master that counts its replicas should write no more. `goes_on` gets the servers, and a client
/// of the former master with the lock that it had there.
fn with_unread_acknowledgements(
    counted: u32,
    (ttl, max_lag): (Duration, Duration),
    goes_on: impl FnOnce(&Failover, (&Client, Guard<'_>)),
) {
    let servers = start(2, max_lag);
    let client = servers.client_with(0, counted, max_lag + ttl);
    let guard = hold_for(&client, ttl);
    servers.fleet[0].stop();
    // The client sends nothing, as no call drives it.
    eventually(6 * SOON, "both replicas have acknowledged", || unread(&servers) == 2);
    servers.promote();
    servers.follow(2, servers.fleet[1].port());
    goes_on(&servers, (&client, guard));
}

#[test]
fn acknowledgements_that_a_stopped_master_finds_make_a_second_holder() {
    despite_stalls(STALL, |times| {
        let (ttl, max_lag) = (times * TTL, times * MAX_LAG);
        with_unread_acknowledgements(0, (ttl, max_lag), |servers, (former, guard)| {
            let other = servers.client_with(1, 0, max_lag + ttl);
            let new = hold_for(&other, ttl);
            guard.check().expect_err("nobody renewed it for longer than the quarantine");
            drop(guard);
            servers.fleet[0].cont();
            count_again(servers, &other);
            assert!(believes_beside((&other, &new), former, ttl), "the other client lost it");
        });
    });
}

#[test]
fn acknowledgements_that_a_stopped_master_finds_confirm_no_grant() {
    despite_stalls(STALL, |times| {
        let (ttl, max_lag) = (times * TTL, times * MAX_LAG);
        with_unread_acknowledgements(2, (ttl, max_lag), |servers, (former, guard)| {
            let other = servers.client_with(1, 2, max_lag + ttl);
            refused_for_want_of_replicas(&other, ttl, || ());
            guard.check().expect_err("nobody renewed it for longer than the quarantine");
            drop(guard);
            servers.fleet[0].cont();
            count_again(servers, &other);
            assert!(servers.fleet[0].command(&["SET", "b", "1"]).is_ok(), "it counts no replica");
            let error = former.try_lock("a", ttl).expect_err("no replica follows it any more");
            assert!(error.to_string().contains("has too few replicas"), "{error}");
            servers.follow(0, servers.fleet[1].port());
            let new = hold_for(&other, ttl);
            former.try_lock("a", ttl).expect_err("it is a replica");
            new.check().expect("it was just granted");
        });
    });
}
