//! TLS: a private CA and a client certificate, together with plain nodes; what is refused and why.

use super::papers::{Ca, Paper};
use super::*;
use crate::support::{Server, free_port};
use redlatch::{Error, Tls};

/// A CA, if the server under test can encrypt.
fn ca() -> Option<Ca> {
    Server::get().can_encrypt().then(Ca::new)
}

/// A fleet whose servers also listen with TLS, and the ports for that.
fn fleet(ca: &Ca, papers: &[Paper], clients: &str) -> (Fleet, Vec<u16>) {
    let ports: Vec<u16> = papers.iter().map(|_| free_port()).collect();
    let fleet = Fleet::each(papers.len(), |index, folder| {
        ca.arguments(folder, ports[index], &papers[index], clients)
    });
    (fleet, ports)
}

fn encrypted_urls(ports: &[u16]) -> Vec<String> {
    ports.iter().map(|port| format!("rediss://127.0.0.1:{port}")).collect()
}

fn good_certificates(ca: &Ca, count: usize) -> Vec<Paper> {
    (0..count).map(|_| ca.paper("127.0.0.1")).collect()
}

/// The error of each of these nodes in an attempt, none of which can be used.
#[track_caller]
fn refusals(config: Config) -> Vec<String> {
    let nodes = config.get_settings().nodes.len();
    let client = Client::connect(config).expect("good addresses");
    eventually(SOON, "every node failed", || {
        client.drive(millis(1)).expect("the poller works");
        client.nodes().iter().all(|it| !it.is_usable())
    });
    let error = client.try_lock("a", TTL).unwrap_err();
    let Error::NoQuorum(report) = &error else { panic!("{error}") };
    println!("{error}");
    let details = report.nodes.iter().map(|node| node.detail.clone().unwrap_or_default().into());
    let details: Vec<String> = details.collect();
    assert_eq!(details.len(), nodes);
    details
}

#[test]
fn tls_works_with_a_private_ca_and_a_client_certificate() {
    let Some(ca) = ca() else { return };
    let (fleet, ports) = fleet(&ca, &good_certificates(&ca, 3), "yes");
    let own = ca.paper("client");
    let tls = Tls::mutual(ca.pem.as_bytes(), own.certificate.as_bytes(), own.key.as_bytes());
    let client = ready(config(encrypted_urls(&ports)).tls(tls.unwrap()));
    for _ in 0..20 {
        lock_extend_and_release(&client);
    }
    let guard = client.try_lock("a", TTL).unwrap();
    eventually(SOON, "all three have it", || fleet.keys_everywhere().len() == 3);
    drop(guard);
    eventually(SOON, "none has it", || fleet.keys_everywhere().is_empty());
    assert!(!format!("{client:?}").contains("PRIVATE"));
}

#[test]
fn plain_encrypted_and_local_nodes_make_one_quorum() {
    let Some(ca) = ca() else { return };
    let papers = good_certificates(&ca, 3);
    let port = free_port();
    let fleet = Fleet::each(3, |index, folder| match index {
        0 => ca.arguments(folder, port, &papers[0], "no"),
        1 => vec!["--unixsocket".into(), folder.join("s").to_str().unwrap().into()],
        _ => Vec::new(),
    });
    let local = format!("redis+unix://{}/s", fleet[1].directory().display());
    let urls = [encrypted_urls(&[port]).remove(0), local, fleet[2].url()];
    let client = ready(config(urls).tls(Tls::trusting(ca.pem.as_bytes()).unwrap()));
    for down in 0..3 {
        fleet[down].stop();
        let guard = client.try_lock("a", TTL).expect("two of three kinds");
        assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
        fleet[down].cont();
        eventually(SOON, "it is back", || {
            client.drive(millis(1)).unwrap();
            client.nodes()[down] == NodeState::Ready
        });
    }
    eventually(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn bad_certificate_is_refused_with_the_reason() {
    let Some((ca, other)) = ca().zip(ca()) else { return };
    let papers = [ca.paper("db.example"), ca.expired("127.0.0.1"), other.paper("127.0.0.1")];
    let (fleet, ports) = fleet(&ca, &papers, "no");
    let said =
        refusals(config(encrypted_urls(&ports)).tls(Tls::trusting(ca.pem.as_bytes()).unwrap()));
    assert!(said[0].contains("certificate not valid for name \"127.0.0.1\""), "{said:?}");
    assert!(said[1].contains("certificate expired"), "{said:?}");
    assert_eq!(said[2], "its certificate is signed by an unknown CA");
    drop(fleet);
}

#[test]
fn node_that_demands_a_client_certificate_is_named_in_the_error() {
    let Some((ca, other)) = ca().zip(ca()) else { return };
    let (fleet, ports) = fleet(&ca, &good_certificates(&ca, 3), "yes");
    let said =
        refusals(config(encrypted_urls(&ports)).tls(Tls::trusting(ca.pem.as_bytes()).unwrap()));
    assert_eq!(said, ["it requires a client certificate"; 3]);
    let own = other.paper("client");
    let (ca, own, key) = (ca.pem.as_bytes(), own.certificate.as_bytes(), own.key.as_bytes());
    let said = refusals(config(encrypted_urls(&ports)).tls(Tls::mutual(ca, own, key).unwrap()));
    assert_eq!(said, ["it does not know the CA of the client certificate"; 3]);
    drop(fleet);
}

#[test]
fn encrypted_to_a_plain_port_and_plain_to_an_encrypted_one_end_at_the_deadline() {
    let Some(ca) = ca() else { return };
    let (fleet, ports) = fleet(&ca, &good_certificates(&ca, 1), "no");
    let plain_port = [fleet[0].port()];
    let tls = Tls::trusting(ca.pem.as_bytes()).unwrap();
    for urls in [encrypted_urls(&plain_port), vec![format!("redis://127.0.0.1:{}", ports[0])]] {
        let start = Instant::now();
        let said = refusals(config(urls).tls(tls.clone()).connect_timeout(millis(300)));
        let took = start.elapsed();
        println!("{said:?} after {took:?}");
        assert!(took < 10 * SECOND, "{took:?}");
    }
}

#[test]
fn tls_without_a_ca_trusts_no_server() {
    let error = Client::connect(config(["rediss://10.0.0.1"])).unwrap_err();
    assert!(error.to_string().contains("Config::tls"), "{error}");
}

#[test]
fn encrypted_node_that_restarts_is_ready_again() {
    let Some(ca) = ca() else { return };
    let (fleet, ports) = fleet(&ca, &good_certificates(&ca, 1), "no");
    let tls = Tls::trusting(ca.pem.as_bytes()).unwrap();
    let client = ready(config(encrypted_urls(&ports)).tls(tls));
    for _ in 0..3 {
        let guard = client.lock("a", TTL).expect("it is back");
        assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
        fleet[0].restart();
    }
}
