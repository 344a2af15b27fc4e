//! The network between us and a node: proxies, round trips, connections that do not last.

use std::io::Write;
use std::net::TcpStream;

use super::*;
use crate::support::{Proxy, RespClient, Scripted, Value as Reply, Way};

#[test]
fn doctor_compares_round_trips_with_the_node_timeout() {
    let fleet = Fleet::start(3);
    let proxies = [&fleet[0], &fleet[1]].map(|node| Proxy::start(node.address()));
    proxies[0].delay(Way::ToClient, Duration::from_millis(260));
    proxies[1].delay(Way::ToNode, Duration::from_millis(120));
    let urls = [proxies[0].url(), proxies[1].url(), fleet[2].url()];
    let diagnosis = ask(&urls, &["--no-restart-guard", "--node-timeout", "230ms"]);
    println!("{:#}\nafter {:?}", diagnosis.json, diagnosis.took);
    assert_eq!(diagnosis.code, 1);
    let [far, near] = [&proxies[0], &proxies[1]].map(|it| format!("127.0.0.1:{}", it.port()));
    let never = "it never answers in time. Try --node-timeout ";
    diagnosis.is(&far, &[("round-trip", "fail", never)]);
    let late = "some of its answers come too late";
    diagnosis.is(&near, &[("round-trip", "warn", late)]);
    diagnosis.is(&label(&fleet[2]), &[]);
}

/// A proxy that passes each command to the next of its servers in turn, as a load balancer for
/// commands does.
fn proxy_to_servers_in_turn(servers: [std::net::SocketAddr; 2]) -> Scripted {
    Scripted::start(move |mut client, _| {
        let mut servers = servers.map(|server| RespClient::connect(server).expect("it runs"));
        let mut reader = std::io::BufReader::new(client);
        for turn in 0.. {
            let Some(command) = next_command(&mut reader) else { return };
            // Refuses HELLO, because the proxy can read only RESP2.
            let reply = if command[0] == b"HELLO" {
                Reply::Error("ERR unknown command".to_owned())
            } else {
                servers[turn % 2].command(&command).expect("a running server answers")
            };
            if client.write_all(&encode_reply(&reply)).is_err() {
                return;
            }
        }
    })
}

fn next_command(reader: &mut std::io::BufReader<&TcpStream>) -> Option<Vec<Vec<u8>>> {
    use std::io::BufRead;
    let mut number = |mut line: String| -> Option<usize> {
        reader.read_line(&mut line).ok()?;
        line.trim_end().get(1..)?.parse().ok()
    };
    let count = number(String::new())?;
    let mut command = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let length: usize = line.trim_end().get(1..)?.parse().ok()?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(length);
        command.push(word);
    }
    Some(command)
}

/// The bytes of a reply.
fn encode_reply(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Simple(text) => format!("+{text}\r\n").into_bytes(),
        Reply::Error(text) => format!("-{text}\r\n").into_bytes(),
        Reply::Int(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Nil => b"$-1\r\n".to_vec(),
        Reply::Bulk(bytes) => {
            let head = format!("${}\r\n", bytes.len()).into_bytes();
            [&head[..], bytes, b"\r\n"].concat()
        }
        Reply::Array(items) => {
            let head = format!("*{}\r\n", items.len()).into_bytes();
            items.iter().fold(head, |all, item| [all, encode_reply(item)].concat())
        }
    }
}

/// A proxy that passes the first two connections to one server, and all later ones to another.
fn proxy_to_two_servers(servers: [std::net::SocketAddr; 2]) -> Scripted {
    Scripted::start(move |client, number| {
        let Ok(server) = TcpStream::connect(servers[usize::from(number >= 2)]) else { return };
        let pass_on = |mut from: &TcpStream, mut to: &TcpStream| {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| pass_on(client, &server));
            pass_on(&server, client);
        });
    })
}

#[test]
fn a_proxy_that_leads_to_several_servers_is_found_and_nothing_is_written_through_it() {
    let fleet = Fleet::start(5);
    let addresses = |range: [usize; 2]| range.map(|index| fleet[index].address());
    let turns = proxy_to_servers_in_turn(addresses([0, 1]));
    let elsewhere = proxy_to_two_servers(addresses([2, 3]));
    let monitors = [0, 1].map(|index| fleet[index].monitor());
    let diagnosis = ask_plainly(&[turns.url(), elsewhere.url(), fleet[4].url()]);
    println!("{:#}", diagnosis.json);
    assert_eq!(diagnosis.code, 1);
    let several = "one connection is answered by several servers (run_id ";
    diagnosis.is(&turns.address().to_string(), &[("proxy", "fail", several)]);
    let two = "two connections lead to two servers (run_id ";
    diagnosis.is(&elsewhere.address().to_string(), &[("proxy", "fail", two)]);
    diagnosis.is(&label(&fleet[4]), &[]);
    for monitor in monitors {
        assert!(monitor.lines().iter().all(|line| !line.contains("redlatch-doctor:")));
    }
    fleet.wait_empty();
}

#[test]
fn connections_that_do_not_last_or_run_out_are_found() {
    let fleet = lasting(3);
    assert!(fleet[0].command(&["CONFIG", "SET", "timeout", "5"]).is_ok());
    // Nineteen of twenty connections are used: these, that of the test, and that of doctor.
    assert!(fleet[1].command(&["CONFIG", "SET", "maxclients", "20"]).is_ok());
    let held: Vec<RespClient> = (0..17).map(|_| fleet[1].client()).collect();
    let diagnosis = ask_plainly(&fleet.urls());
    drop(held);
    assert_eq!(diagnosis.code, 0, "warnings are no failure: {:#}", diagnosis.json);
    diagnosis.is(&label(&fleet[0]), &[("connections", "warn", "idle for 5 s (timeout)")]);
    diagnosis.is(&label(&fleet[1]), &[("connections", "warn", "of 20 connections are taken")]);
    diagnosis.is(&label(&fleet[2]), &[]);
}

/// Forwards connections to the port of `of` at 127.0.0.2 to another server.
fn second_address(of: &Node, leads_to: &Node) {
    let listener = std::net::TcpListener::bind(("127.0.0.2", of.port())).expect("it is free");
    let server = leads_to.address();
    // Both threads end with this process.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(server) else { return };
            let (up, down) = (client.try_clone(), server.try_clone());
            let (Ok(up), Ok(down)) = (up, down) else { return };
            std::thread::spawn(move || std::io::copy(&mut &up, &mut &down));
            std::thread::spawn(move || std::io::copy(&mut &server, &mut &client));
        }
    });
}

#[test]
#[ignore = "needs unshare: root and apt-get install util-linux"]
fn a_name_that_leads_to_several_servers_is_a_failure() {
    let fleet = Fleet::start(4);
    second_address(&fleet[0], &fleet[3]);
    second_address(&fleet[1], &fleet[1]);
    // The tool runs in a separate mount namespace, in which both names have the same two addresses.
    let names = fleet[0].directory().join("names");
    let hosts = "127.0.0.1 two.test one.test\n127.0.0.2 two.test one.test\n";
    std::fs::write(&names, hosts).expect("it can be written");
    let urls = [
        format!("redis://two.test:{}", fleet[0].port()),
        format!("redis://one.test:{}", fleet[1].port()),
        fleet[2].url(),
    ];
    let inner = tool(&["doctor", "--json"]);
    let mut outer = Command::new("unshare");
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    outer.args(["--mount", "sh", "-c", script]).arg(&names);
    outer.arg(inner.get_program()).args(inner.get_args()).args(PLAINLY);
    outer.env("REDLATCH_SERVERS", urls.join(","));
    outer.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = run(&mut outer).with_code(1);
    let diagnosis = Diagnosis { code: ended.code(), json: ended.json(), took: ended.took };
    println!("{:#}", diagnosis.json);
    let told = "its name leads to several servers (run_id: 127.0.0.1:";
    diagnosis.is(&format!("two.test:{}", fleet[0].port()), &[("proxy", "fail", told)]);
    // Two addresses of one server are no failure.
    diagnosis.is(&format!("one.test:{}", fleet[1].port()), &[]);
    fleet.wait_empty();
}
