//! A master with replicas, of which one is promoted while the master still answers its holder. The
//! tests promote by hand, as a Sentinel does. Docs: `Config::replicas`.

use super::*;
use redlatch::{Error, Guard, LockOptions};

const TTL: Duration = Duration::from_secs(4);

/// A master and its replicas, which reach the master through the link.
pub(super) struct Failover {
    // The first field, so that it closes its connections to the servers before these end.
    pub(super) link: Proxy,
    pub(super) fleet: Fleet,
}

impl Failover {
    fn start() -> Failover {
        Failover::with(1, &[])
    }

    /// Starts all servers with these arguments, too, because any of them may become the master.
    pub(super) fn with(replicas: usize, arguments: &[&str]) -> Failover {
        let all = [&["--repl-diskless-sync-delay", "0"], arguments].concat();
        let fleet = Fleet::with(replicas + 1, &all);
        let link = Proxy::start(fleet[0].address());
        let set_up = Failover { link, fleet };
        (1..=replicas).for_each(|server| set_up.follow(server, set_up.link.port()));
        set_up
    }

    /// Makes a server the replica of the one at this port.
    pub(super) fn follow(&self, server: usize, port: u16) {
        let server = &self.fleet[server];
        assert!(server.command(&["REPLICAOF", "127.0.0.1", &port.to_string()]).is_ok());
        eventually(SOON, "it follows", || server.info("master_link_status") == "up");
    }

    /// Cuts the master off from its replicas, and promotes the first one.
    pub(super) fn promote(&self) {
        self.link.hold();
        assert!(self.fleet[1].command(&["REPLICAOF", "NO", "ONE"]).is_ok());
    }

    fn client(&self, server: usize, replicas: u32) -> Client {
        self.client_with(server, replicas, TTL)
    }

    /// A client of this one server.
    pub(super) fn client_with(&self, server: usize, replicas: u32, max_ttl: Duration) -> Client {
        let config = Config::new([self.fleet[server].url()]).expect("a good address");
        let config = config.node_timeout(millis(2_000)).max_ttl(max_ttl).replicas(replicas);
        Client::connect(config).expect("good settings")
    }
}

/// A lock that is renewed for as long as its client is driven.
fn hold(client: &Client) -> Guard<'_> {
    hold_for(client, TTL)
}

/// A lock with this ttl that is renewed for as long as its client is driven. A server that was just
/// started grants it only after its quarantine.
pub(super) fn hold_for(client: &Client, ttl: Duration) -> Guard<'_> {
    let options = LockOptions::new(ttl).wait(6 * SOON).auto_extend(900 * SECOND);
    client.lock("a", options).expect("nobody else has it")
}

/// Lets the holder renew its lock until the other client has the lock, too. Returns whether the
/// holder believes in its lock then.
pub(super) fn believes_beside(
    holder: (&Client, &Guard<'_>),
    other: &Client,
    ttl: Duration,
) -> bool {
    let end = Instant::now() + 6 * SOON;
    while Instant::now() < end {
        holder.0.drive(millis(20)).expect("it can be driven");
        if let Ok(guard) = other.try_lock("a", ttl) {
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
    assert!(believes_beside((&holder, &guard), &other, TTL), "nothing ends its lock");
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
    assert!(!believes_beside((&holder, &guard), &other, TTL));
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
