//! The address of a node, as a URL:
//!
//! * `redis://[user[:password]@]host[:port][/db]`
//! * `rediss://...`: the same over TLS
//! * `redis+unix://[user[:password]@]/path[?db=N]`: a socket in the file system
//! * `redis+sentinel://[user[:password]@]host[:port],.../name[/db]`: the master that Sentinels have
//!   under this name; `rediss+sentinel://...`: the same over TLS
//! * `host:port`: the same as `redis://host:port`; an IP address needs no port
//!
//! User, password and path are percent-encoded. The hazard is a password in an error message. So an
//! error about a bad address shows the address without its credentials.

mod sentinel_url;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::callback::Callback;
use crate::proto::error::ConfigError;
use crate::proto::settings::{Credentials, NodeSettings, Secret};

/// The port if the address names none.
pub const DEFAULT_PORT: u16 = 6379;

/// The schemes of a master that is found through Sentinels, without and with TLS.
const SENTINEL_SCHEMES: [&str; 2] = ["redis+sentinel", "rediss+sentinel"];

/// The largest number of digits that a port can have.
const LONGEST_PORT: usize = 5;

/// The address of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A TCP port on the network.
    Tcp {
        /// A name or an IP address; IPv6 without its brackets.
        host: Box<str>,
        /// The TCP port.
        port: u16,
        /// Whether the connection is encrypted: `rediss://`.
        tls: bool,
    },
    /// A socket in the file system of this machine.
    Unix(PathBuf),
    /// The master that Sentinels have under a name: `redis+sentinel://`.
    Sentinel {
        /// Host and port of each Sentinel, sorted.
        sentinels: Box<[(Box<str>, u16)]>,
        /// The name of the master.
        master: Box<str>,
        /// Whether the connections to the Sentinels and to the master are encrypted:
        /// `rediss+sentinel://`.
        tls: bool,
    },
}

/// The caller's function that looks up names: takes a name and a port, and returns addresses.
pub(crate) type Resolver = Callback<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// A name that has to be looked up, on a thread that may block.
///
/// [`Engine::lookup`](crate::Engine::lookup) returns one, and
/// [`Engine::set_address`](crate::Engine::set_address) takes the addresses that it finds.
#[derive(Debug, Clone)]
pub struct Lookup {
    host: Box<str>,
    port: u16,
    /// The caller's resolver; `None` stands for the system's.
    resolver: Option<Resolver>,
}

impl Address {
    /// Parses a URL into the address of the node, and its settings: label, credentials, database.
    ///
    /// # Errors
    /// The URL is not a valid address. The error shows it without its credentials.
    pub fn parse(url: &str) -> Result<(Address, NodeSettings), ConfigError> {
        let bad = |problem: &str| ConfigError::Address {
            given: Address::without_credentials(url).into(),
            problem: problem.into(),
        };
        let none = "it has no scheme; begin with redis://, or write host:port";
        let plain = is_bare_place(url).then_some(("redis", url));
        let (scheme, rest) = url.split_once("://").or(plain).ok_or(bad(none))?;
        let parsed = match scheme {
            "redis" => on_the_network(rest, false),
            "rediss" if cfg!(feature = "tls") => on_the_network(rest, true),
            "redis+unix" => in_the_file_system(rest),
            "redis+sentinel" => sentinel_url::parse(rest, false),
            "rediss+sentinel" if cfg!(feature = "tls") => sentinel_url::parse(rest, true),
            "rediss" | "rediss+sentinel" => {
                Err("rediss:// is not built in; enable the feature `tls` of redlatch")
            }
            _ => Err("its scheme is unknown; use redis, rediss, redis+unix or redis+sentinel"),
        };
        let (address, credentials, db) = parsed.map_err(bad)?;
        let Credentials { user, password } = credentials;
        let label = address.label();
        Ok((address, NodeSettings { label, user, password, db }))
    }

    /// The addresses in a text that separates them by commas, without empty ones.
    ///
    /// Between Sentinels (`redis+sentinel://s1,s2/name`) a comma belongs to the address: it ends at
    /// the first comma after its `/`.
    pub fn split_list(list: &str) -> Vec<&str> {
        let (mut addresses, mut rest) = (Vec::new(), list);
        while !rest.is_empty() {
            let (address, after) = rest.split_at(end_of_first(rest));
            addresses.push(address.trim());
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        addresses.retain(|address| !address.is_empty());
        addresses
    }

    /// The URL with this password in it, unless it has one already.
    pub fn with_password(url: &str, password: Option<&Secret>) -> String {
        let plain = is_bare_place(url).then_some(("redis", url));
        let (Some(password), Some((scheme, rest))) = (password, url.split_once("://").or(plain))
        else {
            return url.to_string();
        };
        let password = utf8_percent_encode(password.reveal(), NON_ALPHANUMERIC);
        // The path of a socket may contain an `@`.
        let place =
            if scheme == "redis+unix" { rest.find('/').unwrap_or(rest.len()) } else { rest.len() };
        match rest[..place].rfind('@') {
            None => format!("{scheme}://:{password}@{rest}"),
            Some(at) if rest[..at].contains(':') => url.to_string(),
            Some(at) => format!("{scheme}://{}:{password}{}", &rest[..at], &rest[at..]),
        }
    }

    /// The URL as it may be shown: host, port and database, or the path of a socket.
    ///
    /// In a URL that an error quotes, the `@` is often missing (`redis://:password`). So anything
    /// that may be a part of a password is replaced by `***`.
    pub fn without_credentials(url: &str) -> String {
        let (scheme, rest) = match url.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
            // The text after an unknown scheme may be another address, with a password of its own.
            _ => (String::new(), url),
        };
        let (credentials, place) = match rest.rsplit_once('@') {
            Some((_, place)) => ("***@", place),
            None => ("", rest),
        };
        let place = match scheme.strip_suffix("://") {
            Some("redis+unix") => shown_path(place),
            Some(scheme) if SENTINEL_SCHEMES.contains(&scheme) => sentinel_url::shown(place),
            _ => shown_host(place),
        };
        format!("{scheme}{credentials}{place}")
    }

    /// The name of the node in reports: `host:port`, `unix:/path`, or
    /// `sentinel://host:port,host:port/name`.
    pub fn label(&self) -> Box<str> {
        match self {
            Address::Tcp { host, port, .. } => host_text(host, *port),
            Address::Unix(path) => format!("unix:{}", path.display()),
            Address::Sentinel { sentinels, master, .. } => sentinel_url::label(sentinels, master),
        }
        .into()
    }

    /// Whether the connection is encrypted: `rediss://`, `rediss+sentinel://`.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Address::Tcp { tls: true, .. } | Address::Sentinel { tls: true, .. })
    }

    /// The lookup of the node's name; `None` if the URL has an IP address or a path.
    pub(crate) fn lookup(&self, resolver: Option<&Resolver>) -> Option<Lookup> {
        match self {
            Address::Tcp { host, .. } if host.parse::<std::net::IpAddr>().is_ok() => None,
            Address::Tcp { host, port, .. } => {
                Some(Lookup { host: host.clone(), port: *port, resolver: resolver.cloned() })
            }
            Address::Unix(_) | Address::Sentinel { .. } => None,
        }
    }
}

impl Lookup {
    /// The name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Looks up the name. This may block for as long as a name server takes, so never call it on
    /// the thread of the loop.
    ///
    /// # Errors
    /// The error of the system, or of the resolver in the configuration.
    pub fn run(&self) -> io::Result<Vec<SocketAddr>> {
        resolve(self.resolver.as_ref(), &self.host, self.port)
    }
}

/// Looks a name up with the caller's resolver, or else with that of the system.
pub(super) fn resolve(
    resolver: Option<&Resolver>,
    host: &str,
    port: u16,
) -> io::Result<Vec<SocketAddr>> {
    match resolver {
        Some(resolver) => (resolver.0)(host, port),
        None => Ok((host, port).to_socket_addrs()?.collect()),
    }
}

type Parsed = (Address, Credentials, u32);

fn on_the_network(rest: &str, tls: bool) -> Result<Parsed, &'static str> {
    if rest.contains(['?', '#']) {
        return Err("it has a query or a fragment; remove it");
    }
    let (credentials, rest) = split_credentials(rest);
    let credentials = credentials.map(user_and_password).transpose()?.unwrap_or_default();
    let (place, db) = rest.split_once('/').unwrap_or((rest, ""));
    let db = if db.is_empty() { 0 } else { database(db)? };
    let (host, port) = host_and_port(place, DEFAULT_PORT)?;
    Ok((Address::Tcp { host: host.into(), port, tls }, credentials, db))
}

/// The text before the last `@`, if there is one, and the text after it.
fn split_credentials(rest: &str) -> (Option<&str>, &str) {
    match rest.rsplit_once('@') {
        Some((credentials, place)) => (Some(credentials), place),
        None => (None, rest),
    }
}

fn in_the_file_system(rest: &str) -> Result<Parsed, &'static str> {
    let slash = rest.find('/').ok_or("it has no path")?;
    let (before, rest) = rest.split_at(slash);
    let credentials = match before.strip_suffix('@') {
        Some(credentials) => user_and_password(credentials)?,
        None if before.is_empty() => Credentials::default(),
        None => return Err("its path is not absolute; write redis+unix:///path"),
    };
    let (path, db) = match rest.split_once('?') {
        None => (rest, 0),
        Some((path, query)) => {
            let digits =
                query.strip_prefix("db=").ok_or("its query is unknown; only ?db=N is allowed")?;
            (path, database(digits)?)
        }
    };
    if path.contains('#') {
        return Err("it has a fragment; remove it");
    }
    let path = percent_decode_str(path).decode_utf8().map_err(|_| "its path is not UTF-8")?;
    if path.ends_with('/') {
        return Err("its path names a directory; name a socket");
    }
    // The path is a part of reports, which are one line each.
    if path.contains(char::is_control) {
        return Err("its path contains a control character");
    }
    Ok((Address::Unix(path.as_ref().into()), credentials, db))
}

/// Where the first address of a list ends.
fn end_of_first(list: &str) -> usize {
    let scheme = list.find("://").map(|end| (list[..end].trim_start(), end + "://".len()));
    let (mut least, mut most) = (0, list.len());
    if let Some((_, hosts)) = scheme.filter(|(scheme, _)| SENTINEL_SCHEMES.contains(scheme)) {
        // An address without a `/` ends before the next scheme.
        let next = list[hosts..].find("://").map(|end| &list[hosts..hosts + end]);
        let next = next.and_then(|before| before.rfind(','));
        most = next.map_or(list.len(), |comma| hosts + comma);
        least = list[hosts..most].find('/').map_or(most, |slash| hosts + slash);
    }
    list[least..most].find(',').map_or(most, |comma| least + comma)
}

fn database(digits: &str) -> Result<u32, &'static str> {
    number(digits).ok_or("its database is not a number")
}

/// Shows `host[:port][/db]`, and `***` in place of everything after the first part that is none of
/// these.
fn shown_host(place: &str) -> String {
    let host = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((ip, _)) if ip.parse::<std::net::Ipv6Addr>().is_ok() => ip.len() + 2,
        _ if place.starts_with('[') => 0,
        _ => place.find([':', '/', '?', '#']).unwrap_or(place.len()),
    };
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut shown = host;
    if host > 0 && place[shown..].starts_with(':') {
        let end = shown + 1 + digits(&place[shown + 1..]);
        let is_whole = place[end..].is_empty() || place[end..].starts_with(['/', '?', '#']);
        let is_port = is_whole && end - shown <= 1 + LONGEST_PORT;
        shown = if is_port { end } else { shown + 1 };
    }
    if host > 0 && place[shown..].starts_with('/') {
        let is_db = digits(&place[shown + 1..]) == place.len() - shown - 1;
        shown = if is_db { place.len() } else { shown + 1 };
    }
    cut(place, shown)
}

/// Shows `/path[?db=N]`, and `***` in place of text before the path and of any other query.
fn shown_path(place: &str) -> String {
    let Some(slash) = place.find('/') else { return cut(place, 0) };
    let (before, path) = place.split_at(slash);
    let end = path.find(['?', '#']).unwrap_or(path.len());
    let is_db = path[end..].strip_prefix("?db=").is_some_and(|db| number::<u32>(db).is_some());
    cut(before, 0) + &cut(path, if is_db { path.len() } else { end })
}

/// The first `shown` bytes of the text, and `***` if it has more.
fn cut(text: &str, shown: usize) -> String {
    let more = if shown < text.len() { "***" } else { "" };
    format!("{}{more}", &text[..shown])
}

/// Whether the text has only characters that a scheme may have.
fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Whether a text without a scheme is an address: `host:port`, or only an IP address. Only a name
/// is no address, because it may be a password, or a part of one.
fn is_bare_place(text: &str) -> bool {
    let is_place =
        !text.contains(['@', '/', '?', '#']) && host_and_port(text, DEFAULT_PORT).is_ok();
    let is_ip = text.ends_with(']') || text.parse::<std::net::Ipv4Addr>().is_ok();
    is_place && (is_ip || text.contains(':'))
}

fn host_and_port(place: &str, usual_port: u16) -> Result<(&str, u16), &'static str> {
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("its bracket [ is not closed")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("the text in brackets is not an IPv6 address");
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
        return Err("its host contains a space or a control character");
    }
    let port = match port {
        None => usual_port,
        Some(digits) => match number(digits) {
            Some(0) | None => return Err("its port is not a number from 1 to 65535"),
            Some(port) => port,
        },
    };
    Ok((host, port))
}

/// `host:port`, an IPv6 address in brackets.
pub(super) fn host_text(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn digits_only(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses a number that consists of digits only. `parse` would also accept a sign.
fn number<N: std::str::FromStr>(digits: &str) -> Option<N> {
    (!digits.is_empty() && digits_only(digits)).then(|| digits.parse().ok()).flatten()
}

fn user_and_password(credentials: &str) -> Result<Credentials, &'static str> {
    let decode = |text: &str| -> Result<Box<str>, &'static str> {
        let decoded =
            percent_decode_str(text).decode_utf8().map_err(|_| "its credentials are not UTF-8")?;
        Ok(decoded.into())
    };
    let Some((user, password)) = credentials.split_once(':') else {
        return Err("it has a user and no password; write user:password@, or :password@");
    };
    let user = if user.is_empty() { None } else { Some(decode(user)?) };
    Ok(Credentials { user, password: Some(Secret::new(decode(password)?)) })
}

#[cfg(test)]
mod tests;
