//! A master with replicas, of which one is promoted while the master still answers its holder. The
//! tests promote by hand, as a Sentinel does. Docs: `Config::replicas`.

use super::*;
use redlatch::{Error, Guard, LockOptions};

const TTL: Duration = Duration::from_secs(4);

/// A master and its replica, which reaches the master through the link.
struct Failover {
    fleet: Fleet,
    link: Proxy,
}

impl Failover {
    fn start() -> Failover {
        let fleet = Fleet::with(2, &["--repl-diskless-sync-delay", "0"]);
        let link = Proxy::start(fleet[0].address());
        let set_up = Failover { fleet, link };
        set_up.follow(1, set_up.link.port());
        set_up
    }

    /// Makes a server the replica of the one at this port.
    fn follow(&self, server: usize, port: u16) {
        let server = &self.fleet[server];
        assert!(server.command(&["REPLICAOF", "127.0.0.1", &port.to_string()]).is_ok());
        eventually(SOON, "it follows", || server.info("master_link_status") == "up");
    }

    /// Cuts the master off from its replica, and promotes that.
    fn promote(&self) {
        self.link.hold();
        assert!(self.fleet[1].command(&["REPLICAOF", "NO", "ONE"]).is_ok());
    }

    /// A client of this one server.
    fn client(&self, server: usize, replicas: u32) -> Client {
        let config = Config::new([self.fleet[server].url()]).expect("a good address");
        let config = config.node_timeout(millis(2_000)).max_ttl(TTL).replicas(replicas);
        Client::connect(config).expect("good settings")
    }
}

/// A lock that is renewed for as long as its client is driven.
fn hold(client: &Client) -> Guard<'_> {
    let options = LockOptions::new(TTL).wait(SOON).auto_extend(900 * SECOND);
    client.lock("a", options).expect("nobody else has it")
}

/// Lets the holder renew its lock until the other client has the lock, too. Returns whether the
/// holder believes in its lock then.
fn believes_beside(holder: (&Client, &Guard<'_>), other: &Client) -> bool {
    let end = Instant::now() + SOON;
    while Instant::now() < end {
        holder.0.drive(millis(20)).expect("it can be driven");
        if let Ok(guard) = other.try_lock("a", TTL) {
            let believes = holder.1.check().is_ok();
            guard.check().expect("it has just got the lock");
            return believes;
        }
    }
    panic!("the promoted replica never grants");
}

/// The hazard that `Config::replicas` is for.
#[test]
fn master_that_is_cut_off_from_its_replica_has_a_second_holder_without_confirmation() {
    let servers = Failover::start();
    let holder = servers.client(0, 0);
    let guard = hold(&holder);
    servers.promote();
    let other = servers.client(1, 0);
    assert!(believes_beside((&holder, &guard), &other), "nothing ends its lock");
}

#[test]
fn master_that_is_cut_off_from_its_replica_keeps_no_lock_that_replicas_confirm() {
    let servers = Failover::start();
    let holder = servers.client(0, 1);
    let guard = hold(&holder);
    drive_until(&holder, 3 * TTL, "the lock is renewed", || holder.stats().renewed >= 2);
    guard.check().expect("the replica confirms each extend");
    servers.promote();
    let other = servers.client(1, 1);
    // Without a replica of its own the promoted server grants nothing.
    let error = other.lock("a", LockOptions::new(TTL).wait(3 * TTL)).expect_err("no replica");
    let error = error.to_string();
    assert!(error.contains("has too few replicas"), "{error}");
    assert!(guard.check().is_err(), "the lock was renewed on a master that was replaced");
    // The old master comes back as its replica.
    servers.follow(0, servers.fleet[1].port());
    assert!(!believes_beside((&holder, &guard), &other));
}

/// An extend that asks for less time than the key has writes nothing. Then the replicas have all
/// that the master ever wrote, though they may be cut off.
#[test]
fn extend_that_writes_nothing_is_confirmed_by_no_replica_that_is_cut_off() {
    let servers = Failover::start();
    let config = Config::new([servers.fleet[0].url()]).expect("a good address");
    let config = config.node_timeout(millis(2_000)).max_ttl(3 * TTL).replicas(1);
    let holder = Client::connect(config).expect("good settings");
    let options = LockOptions::new(3 * TTL).wait(4 * TTL);
    let mut guard = holder.lock("a", options).expect("it is free");
    guard.extend(TTL / 2).expect("the replica confirms it");
    eventually(SOON, "the replica has said that it has all", || {
        let offset = servers.fleet[0].info("master_repl_offset");
        servers.fleet[0].info("slave0").contains(&format!(",offset={offset},"))
    });
    servers.link.hold();
    let error = guard.extend(TTL / 2).expect_err("the replica cannot confirm it");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}
