//! What an operator or a program may write: addresses, durations, configuration files, variables,
//! lists of nodes, options. Nothing of it causes a panic. What is accepted can be written again and
//! is then read as the same; anything else is refused by an error of one line, without a secret.
//!
//! The hazard is a file that a configuration names, because the fuzzer must not read it. So such a
//! configuration is parsed, but no client's configuration is made of it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use redlatch::proto::{Coordinator, Instant, NodeSettings, Settings, check_owner};
use redlatch::{
    Address, AutoExtend, Config, ConfigError, ConfigFile, LockOptions, LockToken, RestartGuard,
    TlsFiles, Ttl, parse_duration,
};

/// The rest of a longer input is ignored.
pub const LONGEST: usize = 400;

/// The first byte says what the others are.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input[..input.len().min(LONGEST)].split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    match kind % 6 {
        0 => address(&text),
        1 => duration(&text),
        2 => file(&text),
        3 => variables(&text),
        4 => nodes(&text),
        _ => options(rest, &text),
    }
}

/// Checks that an address is either refused in one line without credentials, or is the same after
/// it was written again.
fn address(url: &str) {
    let shown = Address::without_credentials(url);
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    if let Some((_, place)) = rest.rsplit_once('@') {
        let before = &url[..url.len() - rest.len()];
        let other = format!("{before}another-user:another-password@{place}");
        assert_eq!(shown, Address::without_credentials(&other), "{url:?} shows its credentials");
    }
    match Address::parse(url) {
        Err(error) => {
            refused(&error);
            let problem = error.to_string();
            let escaped = |c: char| match c {
                c if c.is_control() => c.escape_default().to_string(),
                c => c.to_string(),
            };
            let shown: String = shown.chars().map(escaped).collect();
            assert!(problem.starts_with(&format!("address {shown}: ")), "{problem}");
        }
        Ok((address, node)) => {
            assert_eq!(node.label, address.label());
            assert_one_line(&node.label);
            check_parts(url, &node);
            let again = written(&address, &node);
            assert_eq!(Address::parse(&again), Ok((address, node)), "{url:?}, then {again:?}");
        }
    }
}

/// Compares what was read with the parts of the URL.
fn check_parts(url: &str, node: &NodeSettings) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let is_path = scheme == "redis+unix";
    let end_of_place = rest.find('/').filter(|_| is_path).unwrap_or(rest.len());
    let (credentials, place) = match rest[..end_of_place].rfind('@') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => ("", rest),
    };
    let (user, password) = credentials.split_once(':').unwrap_or_default();
    assert_eq!(decoded(user), node.user.as_deref().unwrap_or_default().as_bytes());
    let read = node.password.as_ref().map_or("", |password| password.reveal());
    assert_eq!(decoded(password), read.as_bytes());
    let is_sentinel = scheme.ends_with("+sentinel");
    let (hosts, place) = place.split_once('/').filter(|_| is_sentinel).unwrap_or(("", place));
    let (place, db) = if is_path {
        place.split_once("?db=").unwrap_or((place, "0"))
    } else {
        place.split_once('/').unwrap_or((place, "0"))
    };
    assert_eq!(if db.is_empty() { Ok(0) } else { db.parse() }, Ok(node.db));
    if is_path {
        assert_eq!(node.label.as_bytes(), [b"unix:", &decoded(place)[..]].concat());
        return;
    }
    if is_sentinel {
        let text = |it: (&str, u16)| format!("{}:{}", it.0, it.1);
        let written = hosts.split(',').map(|it| text(host_and_port(it, 26379)));
        let label = node.label.strip_prefix("sentinel://").and_then(|it| it.split_once('/'));
        let (labelled, master) = label.expect("it has Sentinels and a name");
        let set = |hosts: &mut dyn Iterator<Item = String>| hosts.collect::<BTreeSet<_>>();
        assert_eq!(set(&mut labelled.split(',').map(str::to_owned)), set(&mut written.into_iter()));
        assert_eq!(master, place);
        return;
    }
    let (host, port) = host_and_port(place, 6379);
    assert_eq!(*node.label, format!("{host}:{port}"));
}

/// The host, with its brackets, and the port of a place that was accepted.
fn host_and_port(place: &str, usual: u16) -> (&str, u16) {
    match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().expect("it was accepted")),
        _ => (place, usual),
    }
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|two| two.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.filter(|_| first == b'%').and_then(|it| std::str::from_utf8(it).ok());
        match digits.map(|two| u8::from_str_radix(two, 16)) {
            Some(Ok(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

/// Writes an address as a URL, with everything that a URL can have.
fn written(address: &Address, node: &NodeSettings) -> String {
    let user = node.user.as_deref().unwrap_or_default();
    let credentials = match &node.password {
        Some(password) => format!("{}:{}@", encoded(user), encoded(password.reveal())),
        None => String::new(),
    };
    match address {
        Address::Tcp { host, port, tls } => {
            let scheme = if *tls { "rediss" } else { "redis" };
            format!("{scheme}://{credentials}{}/{}", place(host, *port), node.db)
        }
        Address::Unix(path) => {
            let path = path.to_str().expect("it was read from a text");
            assert!(path.starts_with('/') && !path.ends_with('/'), "{path:?} is no socket");
            format!("redis+unix://{credentials}/{}?db={}", encoded(&path[1..]), node.db)
        }
        Address::Sentinel { sentinels, master, tls } => {
            let scheme = if *tls { "rediss" } else { "redis" };
            let hosts: Vec<String> =
                sentinels.iter().map(|(host, port)| place(host, *port)).collect();
            let hosts = hosts.join(",");
            format!("{scheme}+sentinel://{credentials}{hosts}/{master}/{}", node.db)
        }
        _ => panic!("a kind of address that this cannot write"),
    }
}

fn place(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        write!(all, "%{byte:02x}").expect("a String takes everything");
        all
    })
}

/// Checks that a duration is about what floating-point numbers make of it, and is the same after it
/// was written again.
fn duration(text: &str) {
    let Ok(read) = parse_duration(text) else { return };
    let again = [format!("{read:?}"), format!("{}s {}ns", read.as_secs(), read.subsec_nanos())];
    for again in again {
        assert_eq!(parse_duration(&again), Ok(read), "{text:?}, then {again:?}");
    }
    let about = seconds(text).unwrap_or_else(|| panic!("{text:?} is read as {read:?}"));
    let differs = (about - read.as_secs_f64()).abs();
    assert!(differs <= about * 1e-9 + 1e-8, "{text:?} is read as {read:?}, not as {about} s");
}

/// A duration in seconds, roughly.
fn seconds(text: &str) -> Option<f64> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let (mut sum, mut rest) = (0.0, text.as_str());
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit() || c == '.');
        let end = unit.map_or(rest.len(), |length| digits + length);
        let number: f64 = rest[..digits].parse().ok()?;
        sum += number
            * match &rest[digits..end] {
                "ns" | "nsec" => 1e-9,
                "us" | "µs" | "usec" => 1e-6,
                "ms" | "msec" | "millis" => 1e-3,
                s if s.starts_with('s') => 1.0,
                m if m.starts_with('m') => 60.0,
                h if h.starts_with('h') => 3600.0,
                d if d.starts_with('d') => 86400.0,
                _ => return None,
            };
        rest = &rest[end..];
    }
    Some(sum)
}

/// Checks a configuration file.
fn file(text: &str) {
    match toml::from_str::<ConfigFile>(text) {
        // The text of this error comes from the TOML parser and may have several lines, but must
        // not be empty.
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(file) => {
            let again = rendered(&file);
            assert_eq!(toml::from_str(&again), Ok(file.clone()), "{again}");
            if let Some(config) = made(file) {
                let whole = toml::from_str::<Config>(&again).expect("the file made one");
                assert_eq!(parts(&whole), parts(&config), "{again}");
            }
        }
    }
}

/// Writes the file again.
fn rendered(file: &ConfigFile) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text += &format!("{name} = {value}\n");
        }
    };
    let quoted_text = |text: &Option<String>| text.as_deref().map(quoted);
    let path =
        |path: &Option<std::path::PathBuf>| path.as_deref().and_then(Path::to_str).map(quoted);
    let time = |time: Option<Duration>| {
        time.map(|time| quoted(&format!("{}s {}ns", time.as_secs(), time.subsec_nanos())))
    };
    let servers: Vec<String> = file.servers.iter().map(|server| quoted(server)).collect();
    line("servers", Some(format!("[{}]", servers.join(", "))));
    line("password_file", path(&file.password_file));
    line("sentinel_user", quoted_text(&file.sentinel_user));
    line("sentinel_password_file", path(&file.sentinel_password_file));
    line("key_prefix", quoted_text(&file.key_prefix));
    line("owner", quoted_text(&file.owner));
    line("client_name", quoted_text(&file.client_name));
    line("node_marker", quoted_text(&file.node_marker));
    line("ttl", time(file.ttl));
    line("wait", time(file.wait));
    line("node_timeout", time(file.node_timeout));
    line("connect_timeout", time(file.connect_timeout));
    line("max_ttl", time(file.max_ttl));
    let guard = file.restart_guard.map(|guard| match guard {
        RestartGuard::On => "\"on\"",
        RestartGuard::Persistent => "\"persistent\"",
        _ => "\"off\"",
    });
    line("restart_guard", guard.map(str::to_string));
    line("allow_eviction", file.allow_eviction.map(|allow| allow.to_string()));
    line("tls.ca", path(&file.tls.ca));
    line("tls.cert", path(&file.tls.cert));
    line("tls.key", path(&file.tls.key));
    text
}

/// A text as TOML quotes it.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\U{:08x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// The client's configuration that this file makes; `None` if it names another file.
fn made(file: ConfigFile) -> Option<Config> {
    let named = [&file.password_file, &file.sentinel_password_file];
    if named.iter().any(|it| it.is_some()) || file.tls != TlsFiles::default() {
        return None;
    }
    let secret = file.password.clone();
    let debug = format!("{file:?}");
    match Config::try_from(file) {
        Err(error) => {
            refused(&error);
            None
        }
        Ok(config) => {
            assert_eq!(config.get_settings().validate(), Ok(()));
            assert_eq!(config.get_addresses().len(), config.get_settings().nodes.len());
            let debug = debug + &format!("{config:?}");
            if let Some(secret) = secret.filter(|secret| secret.reveal().len() > 12) {
                let hidden = !debug.contains(secret.reveal());
                assert!(hidden || names(&config, secret.reveal()), "{debug}");
            }
            Some(config)
        }
    }
}

/// Whether the configuration also has this text in a place that is no secret.
fn names(config: &Config, text: &str) -> bool {
    let settings = config.get_settings();
    let mut all = vec![&*settings.key_prefix, &settings.client_name, &settings.node_marker];
    all.extend(settings.owner.as_deref());
    all.extend(
        settings.nodes.iter().flat_map(|node| [Some(&*node.label), node.user.as_deref()]).flatten(),
    );
    all.iter().any(|it| it.contains(text) || format!("{it:?}").contains(text))
}

const VARIABLES: [&str; 18] = [
    "REDLATCH_SERVERS",
    "REDISCLI_AUTH",
    "REDLATCH_KEY_PREFIX",
    "REDLATCH_OWNER",
    "REDLATCH_TTL",
    "REDLATCH_WAIT",
    "REDLATCH_MAX_TTL",
    "REDLATCH_NODE_TIMEOUT",
    "REDLATCH_CONNECT_TIMEOUT",
    "REDLATCH_NO_RESTART_GUARD",
    "REDLATCH_PERSISTENT_NODES",
    "REDLATCH_PASSWORD_FILE",
    "REDLATCH_TLS_CA",
    "REDLATCH_TLS_CERT",
    "REDLATCH_TLS_KEY",
    "REDLATCH_SENTINEL_USER",
    "REDLATCH_SENTINEL_AUTH",
    "REDLATCH_SENTINEL_PASSWORD_FILE",
];

/// Checks environment variables: each line is a letter for the variable, and its value. The lines
/// after an empty line are another environment, which yields to the first.
fn variables(text: &str) {
    let read = |part: &str| {
        ConfigFile::from_variables(|name| {
            let mut lines = part.split('\n').filter_map(|line| line.split_at_checked(1));
            let number = VARIABLES.iter().position(|it| *it == name);
            let letter = |it: &str| usize::from(it.as_bytes()[0].wrapping_sub(b'a'));
            lines.find(|(it, _)| Some(letter(it)) == number).map(|(_, value)| OsString::from(value))
        })
    };
    let (first, second) = text.split_once("\n\n").unwrap_or((text, ""));
    match (read(first), read(second)) {
        (Err(error), _) | (_, Err(error)) => refused(&error),
        (Ok(first), Ok(second)) => {
            assert_eq!(first.clone().or(ConfigFile::default()), first);
            assert_eq!(ConfigFile::default().or(second.clone()), second);
            made(first.or(second));
        }
    }
}

/// Checks a list of nodes, one a line.
fn nodes(text: &str) {
    match Config::new(text.split('\n')) {
        Err(error) => refused(&error),
        Ok(config) => {
            let urls: Vec<String> = config
                .get_addresses()
                .iter()
                .zip(&config.get_settings().nodes)
                .map(|(address, node)| written(address, node))
                .collect();
            let again = Config::new(urls).expect("they are the addresses of one");
            assert_eq!(parts(&again), parts(&config));
        }
    }
}

/// The parts of a configuration without TLS.
fn parts(config: &Config) -> (&Settings, &[Address]) {
    (config.get_settings(), config.get_addresses())
}

/// Checks options: numbers as durations and moments of every size. What is accepted works.
fn options(bytes: &[u8], text: &str) {
    if let Ok(token) = text.parse::<LockToken>() {
        assert_eq!(token.to_string(), text);
        assert_eq!(token.owner().map_or(Ok(()), check_owner), Ok(()));
    }
    let mut numbers = bytes.chunks(9).map(|chunk| {
        let (size, rest) = chunk.split_first().expect("a chunk has a byte");
        let mut number = [0; 8];
        number[..rest.len()].copy_from_slice(rest);
        u64::from_le_bytes(number) >> (size % 64)
    });
    let mut number = move || numbers.next().unwrap_or(5_000_000);
    let mut settings = Settings::new(vec![NodeSettings::new("n0"), NodeSettings::new("n1")]);
    // No machine's clock gets to 292 years, and timers without an end are due after that.
    let start = Instant::from_nanos(number() >> 1);
    let ttl = Duration::from_nanos(number());
    let wait = Duration::from_millis(number());
    let auto_extend = AutoExtend::at_most(Duration::from_millis(number()))
        .with_extensions(number() as u32)
        .warn_before(Duration::from_nanos(number()));
    let _ = LockOptions::new(ttl).wait(wait).auto_extend(auto_extend).wait_until(start);
    if let Ok(ttl) = Ttl::new(ttl, Duration::MAX) {
        assert!(ttl.drift() >= Duration::from_millis(2) && ttl.usable() < ttl.duration());
        let deadline = ttl.deadline(start);
        assert!(deadline > start || start.as_nanos() == u64::MAX);
        assert!(deadline.saturating_since(start) <= ttl.usable());
    }
    settings.max_ttl = Duration::from_nanos(number());
    settings.node_timeout = Duration::from_nanos(number());
    settings.connect_timeout = Duration::from_nanos(number());
    settings.retry = (Duration::from_nanos(number()), Duration::from_nanos(number()));
    settings.reconnect = (Duration::from_nanos(number()), Duration::from_nanos(number()));
    settings.reset_after = Duration::from_nanos(number());
    settings.probe_interval = Duration::from_nanos(number());
    let mut core = match Coordinator::new(settings, [3; 32], start) {
        Ok(core) => core,
        Err(error) => return refused(&error),
    };
    let asked =
        core.acquire(b"k", LockOptions::new(ttl).wait(wait).auto_extend(auto_extend), 1, start);
    if let Err(error) = &asked {
        assert_one_line(&error.to_string());
    }
    let mut now = start;
    for _ in 0..8 {
        now = core.next_timeout().unwrap_or(now).max(now);
        core.handle_timeout(now);
        while core.poll_action().is_some() {}
        while let Some(done) = core.poll_completion(now) {
            let Err(error) = done.result else { panic!("no node was there") };
            assert_one_line(&error.to_string());
        }
    }
    core.close(now);
}

/// Checks that an error is one line that an operator can read.
fn refused(error: &ConfigError) {
    assert_one_line(&error.to_string());
}

#[track_caller]
fn assert_one_line(text: &str) {
    assert!(!text.is_empty() && !text.contains(char::is_control), "not one line: {text:?}");
}
