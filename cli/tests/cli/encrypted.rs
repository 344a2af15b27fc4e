//! Encrypted nodes by the flags of the tool: a CA, a client certificate, and the errors if one of
//! them is wrong.

use std::path::Path;

use super::papers::Ca;
use super::*;
use support::{Server, free_port};

#[test]
fn tls_works_with_a_ca_and_a_client_certificate_in_files() {
    if !Server::get().can_encrypt() {
        return;
    }
    let (ca, other) = (Ca::new(), Ca::new());
    let ports = [free_port(), free_port(), free_port()];
    let fleet = Fleet::each(3, |index, folder| {
        ca.arguments(folder, ports[index], &ca.paper("127.0.0.1"), "yes")
    });
    let folder = fleet[0].directory();
    let file = |name: &str, text: &str| written(folder, name, text);
    let own = ca.paper("client");
    let [trusted, stranger] = [file("a.pem", &ca.pem), file("b.pem", &other.pem)];
    let [paper, key] = [file("c.pem", &own.certificate), file("k.pem", &own.key)];
    let nonsense = file("n.pem", "hunter2");

    let urls = ports.map(|port| format!("rediss://127.0.0.1:{port}")).join(",");
    let with = |flags: &[&str], verb: &[&str], code| {
        let mut command = tool_on(&fleet, verb);
        let ended = run(command.args(flags).env("REDLATCH_SERVERS", &urls)).with_code(code);
        let said = format!("{}{}", ended.out, ended.errors);
        assert!(!said.contains("hunter2") && !said.contains("PRIVATE"), "{said}");
        said
    };
    // Asks the same ports without TLS.
    let plain = ports.map(|port| format!("redis://127.0.0.1:{port}")).join(",");
    let asked = run(tool_on(&fleet, &["status"]).env("REDLATCH_SERVERS", plain)).with_code(69);
    // The output wraps the text of each node.
    for part in [", in place of any answer; a\n", "  port for TLS needs rediss://)\n"] {
        assert_eq!(asked.out.matches(part).count(), 3, "{asked:?}");
    }

    let mutual = ["--tls-ca", &trusted, "--tls-cert", &paper, "--tls-key", &key];
    let token = with(&mutual, &["acquire", "deploy"], 0);
    is_held_everywhere(&fleet, "deploy", token.trim());
    with(&mutual, &["extend", "deploy", token.trim()], 0);
    assert!(with(&mutual, &["list"], 0).contains("\n  deploy  "));
    with(&mutual, &["release", "deploy", token.trim()], 0);
    nothing_is_left(&fleet);

    // The tool uses the CAs of the system; a variable can name others.
    let by_system = |ca: &str, flags: &[&str], code| {
        let mut command = tool_on(&fleet, &["acquire", "-n", "system"]);
        command.args(flags).env("REDLATCH_SERVERS", &urls).env("SSL_CERT_FILE", ca);
        let ended = run(command.env_remove("SSL_CERT_DIR")).with_code(code);
        format!("{}{}", ended.out, ended.errors)
    };
    let told = by_system(&stranger, &mutual[2..], 69);
    assert!(told.contains("unknown CA"), "{told}");
    let token = by_system(&trusted, &mutual[2..], 0);
    with(&mutual, &["release", "system", token.trim()], 0);
    let told = by_system(&nonsense, &mutual[2..], 125);
    assert!(told.contains("the system has no CA") && told.contains("--tls-ca"), "{told}");
    // The files are named by variables, and in a configuration file.
    let config = format!("[tls]\nca = \"{trusted}\"\ncert = \"{paper}\"\n");
    let config = file("tls.toml", &config);
    let mut command = tool_on(&fleet, &["acquire", "-n", "file"]);
    command.env("REDLATCH_SERVERS", &urls).env("REDLATCH_TLS_KEY", &key);
    let token = run(command.env("REDLATCH_CONFIG", &config)).with_code(0).out;
    with(&mutual, &["release", "file", token.trim()], 0);

    let told = with(&["--tls-ca", &nonsense], &["acquire", "deploy"], 125);
    assert!(told.contains("no certificate in PEM"), "{told}");
    with(&["--tls-ca", &trusted, "--tls-cert", &paper, "--tls-key", &nonsense], &["status"], 125);
    with(&["--tls-ca", &trusted, "--tls-cert", &paper], &["status"], 125);
    let told = with(&["--tls-ca", &stranger], &["status"], 69);
    println!("{told}");
    assert!(told.contains("certificate"), "{told}");
}

fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("the server's directory can be written");
    path.to_str().expect("a path in UTF-8").to_string()
}
