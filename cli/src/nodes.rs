//! From arguments to a `redlatch::Config`: URLs, passwords, certificates, times.
//!
//! The hazard is a password in something that is printed: whatever quotes an address, or an
//! argument that might be one, goes through `shown` or `without_passwords`.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use redlatch::net::address::Address;
use redlatch::{Config, ConfigError, RestartGuard};

use crate::arguments::{Nodes, Timing};
use crate::output::Refusal;

/// Where the password is where no URL has one.
pub const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";
/// Where the nodes are where the command line does not say.
pub const SERVERS_VARIABLE: &str = "REDLATCH_SERVERS";

/// What a client of these nodes is made with.
pub fn config(nodes: &Nodes, timing: &Timing) -> Result<Config, Refusal> {
    let password = password()?;
    let mut urls = Vec::new();
    for given in &nodes.servers {
        for url in given.split(',').map(str::trim).filter(|url| !url.is_empty()) {
            let url = with_password(url, password.as_deref());
            Address::parse(&url).map_err(|error| bad_address(error, &url, given))?;
            urls.push(url);
        }
    }
    if urls.is_empty() {
        let message = format!("no nodes: name them with -s URL, or in {SERVERS_VARIABLE}");
        return Err(Refusal::config(message));
    }
    if cfg!(feature = "tls") && nodes.cacert.is_none() {
        if let Some(url) = urls.iter().find(|url| url.starts_with("rediss://")) {
            let message =
                format!("{} is encrypted: say whom to trust, with --cacert FILE", shown(url));
            return Err(Refusal::config(message));
        }
    }
    let mut config = Config::new(&urls)?
        .node_timeout(timing.node_timeout)
        .max_ttl(timing.max_ttl)
        .client_name("redlatch-cli");
    if timing.no_restart_guard {
        config = config.restart_guard(RestartGuard::Off);
    }
    encrypted(config, nodes)
}

/// An address as it may be printed: `redis://user:***@host`.
pub fn shown(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    match rest.rsplit_once('@') {
        // Without a colon it may be a password that stands where a user should.
        Some((credentials, place)) => match credentials.split_once(':') {
            Some((user, _)) => format!("{scheme}{user}:***@{place}"),
            None => format!("{scheme}***@{place}"),
        },
        None => url.to_string(),
    }
}

/// A text that quotes arguments, without what may be a password in one: in each line, from the
/// first `://` up to the last `@`, or, without the one, the word that the other is in.
pub fn without_passwords(text: &str) -> String {
    text.split_inclusive('\n').map(line_without_passwords).collect()
}

fn line_without_passwords(line: &str) -> String {
    let Some(end) = line.rfind('@') else { return line.to_string() };
    let start = match line[..end].find("://") {
        Some(at) => at + "://".len(),
        None => line[..end].rfind([' ', '\'', '"', '=']).map_or(0, |at| at + 1),
    };
    format!("{}***{}", &line[..start], &line[end..])
}

fn password() -> Result<Option<String>, Refusal> {
    let Some(value) = std::env::var_os(PASSWORD_VARIABLE) else { return Ok(None) };
    let value = value.into_string();
    let value = value
        .map_err(|_| Refusal::config(format!("the password in {PASSWORD_VARIABLE} is no UTF-8")))?;
    Ok(Some(value).filter(|value| !value.is_empty()))
}

/// The URL with the password in it, unless it has one.
fn with_password(url: &str, password: Option<&str>) -> String {
    let (Some(password), Some((scheme, rest))) = (password, url.split_once("://")) else {
        return url.to_string();
    };
    let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
    // The path of a socket may have an `@` of its own.
    let place =
        if scheme == "redis+unix" { rest.find('/').unwrap_or(rest.len()) } else { rest.len() };
    match rest[..place].rfind('@') {
        None => format!("{scheme}://:{password}@{rest}"),
        Some(at) if rest[..at].contains(':') => url.to_string(),
        Some(at) => format!("{scheme}://{}:{password}{}", &rest[..at], &rest[at..]),
    }
}

/// An address that is none, without a password, also where a comma in one cut it in two.
fn bad_address(error: ConfigError, url: &str, given: &str) -> Refusal {
    let ConfigError::Address { problem, .. } = error else { return error.into() };
    let whole = url.contains('@') || !given.contains('@');
    let given = if whole { shown(url) } else { line_without_passwords(given) };
    ConfigError::Address { given: given.into(), problem }.into()
}

#[cfg(feature = "tls")]
fn encrypted(config: Config, nodes: &Nodes) -> Result<Config, Refusal> {
    use redlatch::Tls;

    let Some(ca) = &nodes.cacert else { return Ok(config) };
    let ca = read(ca, "--cacert")?;
    let tls = match (&nodes.certificate, &nodes.private_key) {
        (Some(certificate), Some(key)) => {
            Tls::mutual(&ca, &read(certificate, "--cert")?, &read(key, "--key")?)?
        }
        _ => Tls::trusting(&ca)?,
    };
    Ok(config.tls(tls))
}

#[cfg(feature = "tls")]
fn read(path: &std::path::Path, flag: &str) -> Result<Vec<u8>, Refusal> {
    let bad = |error| Refusal::config(format!("{flag} {}: {error}", path.display()));
    std::fs::read(path).map_err(bad)
}

#[cfg(not(feature = "tls"))]
fn encrypted(config: Config, nodes: &Nodes) -> Result<Config, Refusal> {
    let flags: [&Option<std::path::PathBuf>; 3] =
        [&nodes.cacert, &nodes.certificate, &nodes.private_key];
    if flags.iter().any(|flag| flag.is_some()) {
        let message = "--cacert, --cert and --key need a redlatch that was built with TLS, \
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
        ];
        for (url, expected) in cases {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn what_quotes_an_argument_is_cleaned() {
        let cases = [
            ("unexpected 'redis://a:hunter2@h' found", "unexpected 'redis://***@h' found"),
            ("x 'redis://a:hun ter2@h,redis://b:y@i'", "x 'redis://***@i'"),
            ("x 'a:hunter2@h' found\nno at here\n", "x '***@h' found\nno at here\n"),
            ("--json=a:hunter2@h", "--json=***@h"),
        ];
        for (text, expected) in cases {
            assert_eq!(without_passwords(text), expected);
        }
    }

    #[test]
    fn the_password_of_the_environment_goes_where_there_is_none() {
        let cases = [
            ("redis://h", "redis://:p%2Fw%40@h"),
            ("redis://ann@h:7/2", "redis://ann:p%2Fw%40@h:7/2"),
            ("redis://ann:own@h", "redis://ann:own@h"),
            ("redis://:@h", "redis://:@h"),
            ("redis+unix:///run/@.sock", "redis+unix://:p%2Fw%40@/run/@.sock"),
            ("redis+unix://ann@/run/s?db=1", "redis+unix://ann:p%2Fw%40@/run/s?db=1"),
            ("nonsense", "nonsense"),
        ];
        for (url, expected) in cases {
            assert_eq!(with_password(url, Some("p/w@")), expected);
            assert_eq!(with_password(url, None), url);
        }
    }

    #[test]
    fn half_a_password_is_not_shown_either() {
        for (given, url) in [("redis://a:hun,ter2@h", "redis://a:hun"), ("a:hun,ter2@h", "ter2@h")]
        {
            let error = Address::parse(url).unwrap_err();
            let told = bad_address(error, url, given).message;
            assert!(!told.contains("hun") && !told.contains("ter2"), "{told}");
        }
    }
}
