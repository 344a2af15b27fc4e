//! Nodes that cannot be reached or refuse our credentials, and passwords, which must not be
//! printed.

use super::*;
use crate::support::Scripted;
use std::io::Write;

#[test]
fn doctor_finds_the_access_error_of_each_node_within_one_timeout() {
    let fleet = Fleet::start(7);
    let [good, frozen, dead, locked, guessed, full, garbage] =
        std::array::from_fn(|index| &fleet[index]);
    for node in [locked, guessed] {
        assert!(node.command(&["CONFIG", "SET", "requirepass", "opensesame"]).is_ok());
    }
    assert!(full.command(&["CONFIG", "SET", "maxclients", "1"]).is_ok());
    frozen.stop();
    dead.kill();
    let other = Scripted::start(|mut stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = stream.read(&mut [0; 1024]);
    });
    // A real server gives this answer only to clients on other machines.
    let protected = Scripted::start(|mut stream, _| {
        let _ = stream.write_all(b"-DENIED Redis is running in protected mode\r\n");
        let _ = stream.read(&mut [0; 1024]);
    });
    let mut urls = fleet.urls();
    urls.push(protected.url());
    urls[4] = format!("redis://:guess@{}", label(guessed));
    urls[6] = other.url();
    garbage.kill();
    let diagnosis = ask_plainly(&urls);
    println!("{:#}\nafter {:?}", diagnosis.json, diagnosis.took);
    assert_eq!(diagnosis.code, 1, "five of eight answered");
    diagnosis.is(&label(good), &[]);
    let stuck = "it accepts connections; is it stopped";
    diagnosis.is(&label(frozen), &[("reachable", "fail", stuck)]);
    let refused = "not connected (Connection refused): no server listens there";
    diagnosis.is(&label(dead), &[("reachable", "fail", refused)]);
    diagnosis.is(&label(locked), &[("credentials", "fail", "it requires a password")]);
    diagnosis.is(&label(guessed), &[("credentials", "fail", "it refuses the password")]);
    diagnosis.is(&label(full), &[("reachable", "fail", "has too many clients")]);
    let address = other.address().to_string();
    diagnosis.is(&address, &[("reachable", "fail", "that is not Redis")]);
    let address = protected.address().to_string();
    diagnosis.is(&address, &[("reachable", "fail", "is in protected mode")]);
    // A frozen node delays the run by its timeout of two seconds, once. The limit is longer
    // because the machine may be busy.
    assert!(diagnosis.took < 20 * SECOND, "{:?}", diagnosis.took);
}

#[test]
fn doctor_has_an_exit_code_for_a_quorum_that_does_not_answer() {
    let fleet = Fleet::start(3);
    fleet[0].kill();
    fleet[1].stop();
    let diagnosis = ask_plainly(&fleet.urls());
    assert_eq!(diagnosis.code, 69);
    assert_eq!(diagnosis.json["ok"], false);
    diagnosis.is_together(&[("quorum", "fail", "1 of 3 nodes grant, and 2 are needed: no lock")]);
    diagnosis.is(&label(&fleet[2]), &[]);
}

#[test]
fn a_password_is_used_and_never_shown() {
    const SECRETS: [&str; 3] = ["opensesame", "open%73esame", "hunter2"];
    let fleet = Fleet::start(3);
    fleet.command(&["CONFIG", "SET", "requirepass", "opensesame"]);
    // The server repeats everything that it is sent, as old servers do with an unknown command.
    let parrot = Scripted::start(|mut stream, _| {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let said = String::from_utf8_lossy(&buffer[..count]).replace("\r\n", " ");
            let line = format!("-ERR unknown command, with args beginning with: {said}\r\n");
            let asked = buffer[..count].iter().filter(|&&byte| byte == b'*').count();
            let _ = stream.write_all(line.repeat(asked.max(1)).as_bytes());
        }
    });
    let urls = [
        format!("redis://:open%73esame@{}", label(&fleet[0])),
        format!("redis://default@{}", label(&fleet[1])),
        format!("redis://ann:hunter2@{}", label(&fleet[2])),
        format!("redis://ann:hunter2@{}", parrot.address()),
    ];
    for arguments in [&["--json"][..], &["-v"], &[]] {
        let mut command = tool(&["doctor"]);
        command.args(PLAINLY).args(arguments).env("REDLATCH_SERVERS", urls.join(","));
        let ended = run(command.env("REDISCLI_AUTH", "opensesame"));
        assert_eq!(ended.code(), 1, "{ended:?}");
        assert!(ended.out.contains("it refuses the password of the user"), "{}", ended.out);
        for secret in SECRETS {
            assert!(!ended.out.contains(secret) && !ended.errors.contains(secret), "{ended:?}");
        }
        if arguments == ["--json"] {
            let diagnosis = Diagnosis { code: 1, json: ended.json(), took: ended.took };
            for node in fleet.iter().take(2) {
                diagnosis.is(&label(node), &[]);
            }
        }
    }
}

#[cfg(feature = "tls")]
mod encrypted {
    use super::*;
    use crate::papers::{Ca, Paper};

    #[test]
    fn doctor_examines_an_encrypted_node_like_any_other() {
        let server = support::Server::get();
        let port = support::free_port().to_string();
        let mut attempt = std::process::Command::new(&server.binary);
        let output = attempt.args(["--port", "0", "--tls-port", &port]).output().expect("it runs");
        if !String::from_utf8_lossy(&output.stdout).contains("tls-cert-file") {
            println!("not run: {} was built without TLS", server.binary);
            return;
        }
        let ca = Ca::new();
        let ports = [support::free_port(), support::free_port()];
        let papers: [Paper; 2] = [ca.paper("127.0.0.1"), ca.expired("127.0.0.1")];
        let fleet = Fleet::each(2, |index, folder| {
            ca.arguments(folder, ports[index], &papers[index], "no")
        });
        let file = fleet[0].directory().join("ours.pem");
        std::fs::write(&file, &ca.pem).expect("a new file");
        let urls = ports.map(|port| format!("rediss://127.0.0.1:{port}"));
        let file = file.to_str().expect("a path in UTF-8");
        let flags = ["--no-restart-guard", "--node-timeout", "5s", "--tls-ca", file];
        let diagnosis = ask(&urls, &flags);
        let [good, expired] = ports.map(|port| format!("127.0.0.1:{port}"));
        diagnosis.is(&good, &[]);
        assert_eq!(diagnosis.words(Some(&good), "writes").0, "ok");
        diagnosis.is(&expired, &[("reachable", "fail", "certificate expired")]);
        fleet.wait_empty();
    }
}

#[test]
#[ignore = "needs netns: root and apt-get install iproute2 iptables"]
fn a_server_that_talks_to_its_own_machine_only_is_in_protected_mode() {
    // The server runs in a network namespace of its own, and the client's address is not a loopback
    // address.
    let script = "ip link set lo up && ip addr add 10.231.78.1/32 dev lo && \
        { \"$1\" --port 7001 --save '' --unixsocket \"$2\" > /dev/null & } && \
        until [ -e \"$2\" ]; do sleep 0.01; done && \
        \"$3\" doctor --json --no-restart-guard -s redis://10.231.78.1:7001; \
        code=$?; kill $!; wait; exit $code";
    let folder = Fleet::start(1);
    let socket = folder[0].directory().join("outside");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script, "sh", &support::Server::get().binary]);
    command.arg(socket).arg(env!("CARGO_BIN_EXE_redlatch"));
    command.env_remove("REDLATCH_SERVERS").stdin(Stdio::null()).stdout(Stdio::piped());
    let ended = run(&mut command);
    let (code, json) = (ended.code(), ended.json());
    let diagnosis = Diagnosis { code, json, took: ended.took };
    println!("{:#}", diagnosis.json);
    assert_eq!(diagnosis.code, 1);
    diagnosis.is("10.231.78.1:7001", &[("reachable", "fail", "is in protected mode")]);
}
