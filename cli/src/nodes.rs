//! Makes a `redlatch::Config` from the arguments: URLs, passwords, certificates, times.
//!
//! The hazard is a password that is printed. So every text that quotes an address, or an argument
//! that may be one, goes through `shown` or `without_passwords`.

use std::time::Duration;

use redlatch::{Address, Config, ConfigError, LONGEST_OWNER, RestartGuard, Secret};

use crate::arguments::{Nodes, Timing};
use crate::output::Refusal;

/// The variable with the password for URLs that have none.
pub const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";
/// The variable with the password for Sentinels.
pub const SENTINEL_PASSWORD_VARIABLE: &str = "REDLATCH_SENTINEL_AUTH";
/// The variable with the nodes, if the command line does not name them.
pub const SERVERS_VARIABLE: &str = "REDLATCH_SERVERS";

/// The shortest `--ttl`. On a busy machine, connecting and starting a command may take longer than
/// a shorter ttl: see `kill_lead`.
const SHORTEST_TTL: Duration = Duration::from_millis(100);

/// The configuration of a client of these nodes.
pub fn config(nodes: &Nodes, timing: &Timing) -> Result<Config, Refusal> {
    if timing.ttl < SHORTEST_TTL {
        let (ttl, least) = (timing.ttl, SHORTEST_TTL);
        let message = format!(
            "--ttl {ttl:?}: it is over before a command has started; give {least:?} at least \
             (a bare number is seconds)"
        );
        return Err(Refusal::config(message));
    }
    let password = match secret_in(PASSWORD_VARIABLE)? {
        Some(password) => Some(password),
        None => nodes.file.find_password()?,
    };
    let mut urls = Vec::new();
    for given in &nodes.servers {
        for url in Address::split_list(given) {
            let url = Address::with_password(url, password.as_ref());
            Address::parse(&url).map_err(|error| bad_address(error, &url, given))?;
            urls.push(url);
        }
    }
    if urls.is_empty() {
        let message = format!(
            "nodes: none are given; name them with -s URL, in {SERVERS_VARIABLE}, or as \
             servers in the configuration file"
        );
        return Err(Refusal::config(message));
    }
    let mut file = nodes.file.clone();
    file.sentinel_user = nodes.sentinel_user.clone().filter(|user| !user.is_empty());
    file.sentinel_password = secret_in(SENTINEL_PASSWORD_VARIABLE)?;
    let sentinels = file.find_sentinel_credentials()?;
    // Applies the settings of the file that have no flag. The others are the defaults of flags.
    let config = nodes.file.apply_to(Config::new(&urls)?.client_name("redlatch-cli"));
    let mut config = config
        .sentinel_credentials(sentinels)
        .key_prefix(nodes.key_prefix.as_str())
        .owner(owner(nodes))
        .node_timeout(timing.node_timeout)
        .connect_timeout(timing.connect_timeout)
        .max_ttl(timing.max_ttl)
        .replicas(timing.replicas)
        .check_members(timing.check_members);
    if timing.no_restart_guard {
        config = config.restart_guard(RestartGuard::Off);
    }
    if timing.persistent_nodes {
        config = config.restart_guard(RestartGuard::Persistent);
    }
    config.get_settings().validate()?;
    encrypted(config, nodes)
}

/// The owner that the tokens of our locks have, for people to read.
pub fn owner(nodes: &Nodes) -> String {
    nodes.owner.clone().unwrap_or_else(host_and_process)
}

/// The owner if none is given: `host:pid`. Characters that a token cannot have are replaced.
fn host_and_process() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    named(&host, std::process::id())
}

fn named(host: &str, process: u32) -> String {
    let graphic = |c: char| if c.is_ascii_graphic() { c } else { '-' };
    let process = format!(":{process}");
    let host = host.chars().map(graphic).take(LONGEST_OWNER - process.len());
    host.collect::<String>() + &process
}

/// An address without its password, as it may be printed: `redis://user:***@host`.
pub fn shown(url: &str) -> String {
    let shown = Address::without_credentials(url);
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    // Without a colon, the text before the `@` may be a password, so it is not shown as a user.
    let user = rest.rsplit_once('@').and_then(|(credentials, _)| credentials.split_once(':'));
    match user {
        Some((user, _)) => shown.replacen("***@", &format!("{user}:***@"), 1),
        None => shown,
    }
}

/// A text that quotes arguments, without the parts that may be a password.
pub fn without_passwords(text: &str) -> String {
    text.split_inclusive('\n').map(line_without_passwords).collect()
}

/// Hides everything from the first `://` up to the last `@`. Without a `://`, hides the part of the
/// word before the `@`. The text after that, up to the last quotation mark, is taken for a list of
/// addresses. It is shown up to and including the first address in which something is hidden.
fn line_without_passwords(line: &str) -> String {
    let at = line.rfind('@');
    let Some(before) = at.or_else(|| line.find("://")) else { return line.to_string() };
    let word = |end: usize| line[..end].rfind([' ', '\'', '"', '=']).map_or(0, |at| at + 1);
    let (head, list) = match at {
        None => (line[..word(before)].to_owned(), word(before)),
        Some(end) => {
            let scheme = line[..end].find("://").map(|at| at + "://".len());
            (format!("{}***@", &line[..scheme.unwrap_or(word(end))]), end + 1)
        }
    };
    let text = line.trim_end_matches('\n');
    let end = text[list..].rfind(['\'', '"']).map_or(text.len(), |quote| list + quote);
    format!("{head}{}{}", shown_list(&line[list..end]), &line[end..])
}

fn shown_list(list: &str) -> String {
    let mut shown = Vec::new();
    for address in list.split(',') {
        shown.push(Address::without_credentials(address));
        // What follows may be the rest of a password that has a comma in it.
        if shown.last().is_some_and(|shown| shown != address) {
            break;
        }
    }
    shown.join(",")
}

/// The password in a variable of the environment.
fn secret_in(variable: &str) -> Result<Option<Secret>, Refusal> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    let value = value.into_string();
    let value = value.map_err(|_| {
        let way_out = match variable {
            PASSWORD_VARIABLE => "percent-encode it in the URL",
            _ => "choose another",
        };
        Refusal::config(format!("password in {variable}: it is not UTF-8; {way_out}"))
    })?;
    Ok(Some(value).filter(|value| !value.is_empty()).map(Secret::new))
}

/// The refusal of a bad address, without any part of a password. A comma in a password splits the
/// URL; then `url` is only a part of `given`, and the whole of `given` is quoted.
fn bad_address(error: ConfigError, url: &str, given: &str) -> Refusal {
    let ConfigError::Address { problem, .. } = error else { return error.into() };
    let whole = url.contains("://") || url.contains('@') || !given.contains('@');
    let given = if whole { shown(url) } else { line_without_passwords(given) };
    ConfigError::Address { given: given.into(), problem }.into()
}

#[cfg(feature = "tls")]
fn encrypted(config: Config, nodes: &Nodes) -> Result<Config, Refusal> {
    let files = redlatch::TlsFiles {
        ca: nodes.tls_ca.clone(),
        cert: nodes.certificate.clone(),
        key: nodes.private_key.clone(),
    };
    // Without a node that uses TLS, the system's CAs need not be read.
    if files == redlatch::TlsFiles::default()
        && !config.get_addresses().iter().any(Address::is_encrypted)
    {
        return Ok(config);
    }
    let tls = files
        .load()
        .map_err(|error| Refusal::config(format!("{error} (--tls-ca, --tls-cert, --tls-key)")))?;
    Ok(config.tls(tls))
}

#[cfg(not(feature = "tls"))]
fn encrypted(config: Config, nodes: &Nodes) -> Result<Config, Refusal> {
    let flags: [&Option<std::path::PathBuf>; 3] =
        [&nodes.tls_ca, &nodes.certificate, &nodes.private_key];
    if flags.iter().any(|flag| flag.is_some()) {
        let message = "--tls-ca, --tls-cert, --tls-key: TLS is not built in; build redlatch with \
            the feature `tls`";
        return Err(Refusal::config(message));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_with_its_user_and_without_its_password() {
        let cases = [
            ("redis://h:7/1", "redis://h:7/1"),
            ("redis://ann:hunter2@h", "redis://ann:***@h"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("redis://hunter2@h", "redis://***@h"),
            ("redis://ann:hunt@er2@h", "redis://ann:***@h"),
            ("redis+unix://ann:hunter2@/run/s", "redis+unix://ann:***@/run/s"),
            ("ann:hunter2@h", "ann:***@h"),
            ("redis://:hunter2", "redis://***"),
            ("redis://ann:hunter2", "redis://ann:***"),
        ];
        for (url, expected) in cases {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn errors_quote_arguments_without_control_characters() {
        let cases = [
            ("unexpected 'redis://a:hunter2@h' found", "unexpected 'redis://***@h' found"),
            ("x 'redis://a:hun ter2@h,redis://b:y@i'", "x 'redis://***@i'"),
            ("x 'a:hunter2@h' found\nno at here\n", "x '***@h' found\nno at here\n"),
            ("--json=a:hunter2@h", "--json=***@h"),
            ("x 'redis://:hunter2' found\n", "x 'redis://***' found\n"),
            ("--json=redis://ann:hunter2", "--json=redis://ann:***"),
            ("x 'redis://:hun ter2' is 'redis://:hun ter2' y", "x 'redis://***' y"),
            ("x 'redis://h:7,redis://:hun,ter2' y", "x 'redis://h:7,redis://***' y"),
            ("x 'redis://a:b@h,redis://:hunter2' y", "x 'redis://***@h,redis://***' y"),
            ("x 'redis://a:b@h:hunter2,redis://i' y", "x 'redis://***@h:***' y"),
            ("x 'redis://h:7000/1,redis://i' y", "x 'redis://h:7000/1,redis://i' y"),
        ];
        for (text, expected) in cases {
            assert_eq!(without_passwords(text), expected);
        }
    }

    #[test]
    fn owner_is_the_host_and_the_process() {
        assert_eq!(named("web-1.example", 4711), "web-1.example:4711");
        assert_eq!(named("wéb 1", 7), "w-b-1:7");
        let long = named(&"h".repeat(200), 4_194_304);
        assert!(long.len() == LONGEST_OWNER && long.ends_with("h:4194304"), "{long}");
        assert!(redlatch::proto::check_owner(&host_and_process()).is_ok());
    }

    #[test]
    fn part_of_a_password_is_not_shown_either() {
        let cases = [
            ("redis://a:hun,ter2@h", "redis://a:hun"),
            ("a:hun,ter2@h", "ter2@h"),
            ("redis://a:1,hun,ter2@h", "hun"),
            ("redis://a@h,redis://:hunter2", "redis://:hunter2"),
            ("redis://a@h,:hunter2", ":hunter2"),
        ];
        for (given, url) in cases {
            let error = Address::parse(url).unwrap_err();
            let message = bad_address(error, url, given).message;
            assert!(!message.contains("hun") && !message.contains("ter2"), "{message}");
        }
    }
}
