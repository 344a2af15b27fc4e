//! Where a node is: `redis://[user[:password]@]host[:port][/db]`.
//!
//! The hazard is a password in an error: whatever is said of a bad address is said without it.

use std::net::{SocketAddr, ToSocketAddrs};

use percent_encoding::percent_decode_str;

use crate::proto::error::ConfigError;
use crate::proto::settings::{NodeSettings, Secret};

/// The port where the address names none.
pub const DEFAULT_PORT: u16 = 6379;

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name or an IP address; IPv6 without its brackets.
    pub host: Box<str>,
    /// The TCP port.
    pub port: u16,
}

impl Address {
    /// Reads a URL into where the node is and what proto needs to know of it.
    ///
    /// # Errors
    /// What is wrong with it, without its credentials.
    pub fn parse(url: &str) -> Result<(Address, NodeSettings), ConfigError> {
        let bad = |problem: &str| ConfigError::Address {
            given: without_credentials(url).into(),
            problem: problem.into(),
        };
        let (scheme, rest) = url.split_once("://").ok_or(bad("it does not begin with redis://"))?;
        match scheme {
            "redis" => {}
            "rediss" | "redis+unix" => return Err(bad("this scheme is not supported yet")),
            _ => return Err(bad("its scheme is not redis")),
        }
        if rest.contains(['?', '#']) {
            return Err(bad("it has a query or a fragment, which mean nothing here"));
        }
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let (place, db) = rest.split_once('/').unwrap_or((rest, ""));
        let db = match db {
            "" => 0,
            digits => number(digits).ok_or(bad("its database is not a number"))?,
        };
        let (host, port) = host_and_port(place).map_err(bad)?;
        let (user, password) = match credentials {
            Some(credentials) => user_and_password(credentials).map_err(bad)?,
            None => (None, None),
        };
        let address = Address { host: host.into(), port };
        let label = address.label();
        Ok((address, NodeSettings { label, user, password, db }))
    }

    /// What reports call it: `host:port`.
    pub fn label(&self) -> Box<str> {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
            .into()
    }

    /// Looks the name up. It may block for as long as a name server takes: never on the loop.
    ///
    /// # Errors
    /// What the system says of the name.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        Ok((&*self.host, self.port).to_socket_addrs()?.collect())
    }
}

/// The URL as it may be shown.
pub fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://***@{rest}"),
        (None, Some((_, rest))) => format!("***@{rest}"),
        (_, None) => url.to_string(),
    }
}

fn host_and_port(place: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("its bracket is not closed")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("what is in brackets is no IPv6 address");
        }
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err("something other than a port follows the bracket"),
        }
    } else {
        match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        }
    };
    if host.is_empty() {
        return Err("it has no host");
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("its host has a space in it");
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(digits) => match number(digits) {
            Some(0) | None => return Err("its port is not a number from 1 to 65535"),
            Some(port) => port,
        },
    };
    Ok((host, port))
}

/// Digits only: `parse` alone would take a sign.
fn number<N: std::str::FromStr>(digits: &str) -> Option<N> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

type Credentials = (Option<Box<str>>, Option<Secret>);

fn user_and_password(credentials: &str) -> Result<Credentials, &'static str> {
    let decode = |text: &str| -> Result<Box<str>, &'static str> {
        let decoded =
            percent_decode_str(text).decode_utf8().map_err(|_| "its credentials are not UTF-8")?;
        Ok(decoded.into())
    };
    let Some((user, password)) = credentials.split_once(':') else {
        return Err("it has a user and no password: write user:password@, or :password@");
    };
    let user = if user.is_empty() { None } else { Some(decode(user)?) };
    Ok((user, Some(Secret::new(decode(password)?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> (String, u32, Option<String>, Option<String>) {
        let (_, node) = Address::parse(url).unwrap_or_else(|e| panic!("{url}: {e}"));
        let password = node.password.map(|p| p.reveal().to_string());
        (node.label.into(), node.db, node.user.map(Into::into), password)
    }

    #[test]
    fn what_a_url_names() {
        let plain = |label: &str, db| (label.to_string(), db, None, None);
        assert_eq!(parse("redis://10.0.0.1"), plain("10.0.0.1:6379", 0));
        assert_eq!(parse("redis://db.example:7000/3"), plain("db.example:7000", 3));
        assert_eq!(parse("redis://[::1]:7000/"), plain("[::1]:7000", 0));
        assert_eq!(parse("redis://[::1]"), plain("[::1]:6379", 0));
        let (label, _, user, password) = parse("redis://ann:p%40ss:w@h:1");
        assert_eq!((label.as_str(), user.as_deref()), ("h:1", Some("ann")));
        assert_eq!(password.as_deref(), Some("p@ss:w"));
        assert_eq!(parse("redis://:pw@h").3.as_deref(), Some("pw"));
    }

    #[test]
    fn what_is_no_address_is_refused_without_its_password() {
        let bad = [
            "",
            "10.0.0.1",
            "http://h",
            "redis://",
            "redis://:7",
            "redis://h:",
            "redis://h:0",
            "redis://h:65536",
            "redis://h:+7",
            "redis://h/x",
            "redis://h/-1",
            "redis://[::1",
            "redis://[::1]7",
            "redis://[h]",
            "redis://h:7?db=2",
            "redis://a b",
            "redis://u@h",
            "rediss://h",
            "redis+unix:///s",
        ];
        for url in bad {
            assert!(Address::parse(url).is_err(), "{url} was taken");
        }
        for url in
            ["redis://u:hunter2@h:x", "http://u:hunter2@h", "u:hunter2@h", "redis://u:hunter2@"]
        {
            let error = Address::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
