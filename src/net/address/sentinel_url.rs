//! The part of a URL after `redis+sentinel://`: `[user:password@]host[:port],.../name[/db]`.
//!
//! Sentinels are sorted, so that two addresses with the same ones are equal. The hazard is a
//! forgotten `@`, because the text in its place may be a password. So an address that is not valid
//! is shown only up to its first bad part.

use super::{Address, Parsed, cut, database, digits_only, host_and_port, host_text, shown_host};
use super::{split_credentials, user_and_password};

/// The port of a Sentinel if the address names none.
const SENTINEL_PORT: u16 = 26379;

/// The most Sentinels of an address: each is asked for its share of the time for a look-up. Large
/// deployments have seven.
const MOST_SENTINELS: usize = 16;

pub(super) fn parse(rest: &str, tls: bool) -> Result<Parsed, &'static str> {
    if rest.contains(['?', '#']) {
        return Err("it has a query or a fragment; remove it");
    }
    let (credentials, place) = split_credentials(rest);
    let credentials = credentials.map(user_and_password).transpose()?.unwrap_or_default();
    let missing = "it names no master; write redis+sentinel://host,host/name";
    let (hosts, path) = place.split_once('/').ok_or(missing)?;
    let (master, db) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return Err(missing);
    }
    if !is_name(master) {
        return Err("the name of its master has other characters than letters, digits and .-_");
    }
    let mut sentinels = Vec::new();
    for host in hosts.split(',') {
        let (host, port) = host_and_port(host, SENTINEL_PORT)?;
        sentinels.push((host.into(), port));
    }
    sentinels.sort_unstable();
    sentinels.dedup();
    if sentinels.len() > MOST_SENTINELS {
        return Err("it names more than 16 Sentinels");
    }
    let db = if db.is_empty() { 0 } else { database(db)? };
    let sentinels = sentinels.into();
    Ok((Address::Sentinel { sentinels, master: master.into(), tls }, credentials, db))
}

/// `sentinel://host:port,host:port/name`
pub(super) fn label(sentinels: &[(Box<str>, u16)], master: &str) -> String {
    let hosts: Vec<String> = sentinels.iter().map(|(host, port)| host_text(host, *port)).collect();
    format!("sentinel://{}/{master}", hosts.join(","))
}

/// Shows hosts, name and database, and `***` in place of everything from the first part that is
/// none of these.
pub(super) fn shown(place: &str) -> String {
    let hosts = place.find('/').unwrap_or(place.len());
    let mut shown = String::new();
    for host in place[..hosts].split(',') {
        let separator = if shown.is_empty() { "" } else { "," };
        shown += separator;
        let part = shown_host(host);
        shown += &part;
        if part != host || host.is_empty() {
            return if part.ends_with("***") { shown } else { shown + "***" };
        }
    }
    let mut path = place[hosts..].splitn(3, '/').skip(1);
    let is_name = path.next().is_none_or(is_name);
    let is_db = path.next().is_none_or(digits_only);
    let whole = if is_name && is_db { place.len() } else { place.len().min(hosts + 1) };
    shown + &cut(&place[hosts..], whole - hosts)
}

/// The characters that Sentinel allows in the name of a master.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}
