//! The commands that report something of the master: `INFO`, `COMMAND`, `TIME`, `PING`, `ECHO`.
//!
//! `INFO` has the sections of a real server, with the fields that describe what kind of node the
//! master is, but without counters.

use std::fmt::Write;

use super::commands::{self, COMMANDS, Command, FLAGS, Keys};
use super::reply::Reply;
use super::{Call, Flavor, Master, SECOND, Trouble};

/// A section of `INFO`: its title and its fields.
type Section = (&'static str, Vec<(&'static str, String)>);

impl Master {
    /// The value that `INFO` reports for a field.
    pub(super) fn info_field(&self, call: &Call, field: &str) -> String {
        let mut fields = self.sections(call).into_iter().flat_map(|(_, fields)| fields);
        fields.find(|(name, _)| *name == field).map(|(_, text)| text).unwrap_or_default()
    }

    fn sections(&self, call: &Call) -> Vec<Section> {
        let mut sections = vec![
            ("Server", self.server(call)),
            ("Clients", self.clients()),
            ("Memory", self.memory()),
            ("Persistence", self.persistence()),
            ("Replication", self.replication()),
            ("Cluster", vec![("cluster_enabled", "0".into())]),
        ];
        for (field, text) in sections.iter_mut().flat_map(|(_, fields)| fields) {
            if let Some(set) = self.info.get(*field) {
                text.clone_from(set);
            }
        }
        sections
    }

    fn server(&self, call: &Call) -> Vec<(&'static str, String)> {
        let mut fields = vec![];
        match self.flavor {
            Flavor::Redis70 => fields.push(("redis_version", "7.0.15".into())),
            Flavor::Redis84 => fields.push(("redis_version", "8.4.0".into())),
            Flavor::Valkey90 => fields.extend([
                ("redis_version", "7.2.4".into()),
                ("server_name", "valkey".into()),
                ("valkey_version", "9.0.0".into()),
            ]),
        }
        // As on a real server, both times are whole seconds, so the uptime is wrong by up to one
        // second, and negative after the wall clock was set back.
        let uptime = call.wall.div_euclid(SECOND) - self.started.div_euclid(SECOND);
        fields.extend([
            ("redis_mode", "standalone".into()),
            ("process_id", (self.identity("process") % 4_000_000 + 1).to_string()),
            ("run_id", self.hex_identity("run")),
            ("tcp_port", "6379".into()),
            ("server_time_usec", (call.wall / 1000).to_string()),
            ("uptime_in_seconds", uptime.to_string()),
            ("uptime_in_days", (uptime / (24 * 60 * 60)).to_string()),
        ]);
        fields
    }

    fn clients(&self) -> Vec<(&'static str, String)> {
        let connections = self.connections.values().filter(|connection| !connection.closing);
        let tracking = connections.clone().filter(|connection| connection.tracking.is_some());
        vec![
            ("connected_clients", connections.count().to_string()),
            ("maxclients", "10000".into()),
            ("blocked_clients", "0".into()),
            ("tracking_clients", tracking.count().to_string()),
        ]
    }

    fn memory(&self) -> Vec<(&'static str, String)> {
        let full = self.troubles.contains(&Trouble::OutOfMemory);
        vec![("maxmemory", u8::from(full).to_string()), ("maxmemory_policy", "noeviction".into())]
    }

    fn persistence(&self) -> Vec<(&'static str, String)> {
        let loading = self.troubles.contains(&Trouble::Loading);
        let saves = !self.troubles.contains(&Trouble::Misconf);
        vec![
            ("loading", u8::from(loading).to_string()),
            ("async_loading", "0".into()),
            ("rdb_last_bgsave_status", if saves { "ok" } else { "err" }.into()),
            ("aof_enabled", "0".into()),
        ]
    }

    fn replication(&self) -> Vec<(&'static str, String)> {
        let role = if self.is_replica() { "slave" } else { "master" };
        let (before, second_offset) = match (self.second_offset, self.promotions) {
            (Some(offset), promotions @ 1..) => {
                (self.replication_after(promotions - 1), offset.to_string())
            }
            _ => ("0".repeat(40), "-1".into()),
        };
        vec![
            ("role", role.into()),
            ("connected_slaves", "0".into()),
            ("master_replid", self.replication_after(self.promotions)),
            ("master_replid2", before),
            ("master_repl_offset", "0".into()),
            ("second_repl_offset", second_offset),
        ]
    }

    /// The master's `run_id` and `master_replid`.
    pub fn identities(&self) -> [String; 2] {
        [self.hex_identity("run"), self.replication_after(self.promotions)]
    }

    /// The node marker that a client writes if it connects to this master for the first time at
    /// that moment.
    pub(super) fn marker(&self, wall: i128) -> String {
        let (run, replication) =
            (self.hex_identity("run"), self.replication_after(self.promotions));
        format!("1 {run} {replication} {}", wall.max(0) / 1000)
    }

    /// The `master_replid` after this number of promotions.
    fn replication_after(&self, promotions: u64) -> String {
        match promotions {
            0 => self.hex_identity("replication"),
            more => self.hex_identity(&format!("replication {more}")),
        }
    }

    /// A number that differs between masters, and between the starts of one master.
    fn identity(&self, of_what: &str) -> u64 {
        let parts = of_what.bytes().map(u64::from).chain([self.seed, self.starts]);
        parts.fold(0, |sum, part| splitmix(sum ^ part))
    }

    fn hex_identity(&self, of_what: &str) -> String {
        let first = self.identity(of_what);
        let words = [first, splitmix(first), splitmix(splitmix(first))];
        let hex: String = words.iter().map(|word| format!("{word:016x}")).collect();
        hex[..40].to_owned()
    }
}

/// SplitMix64, which maps similar inputs to very different outputs.
fn splitmix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

pub(super) fn info(master: &mut Master, call: &Call) -> Reply {
    let mut sections = master.sections(call);
    let asked: Vec<_> = call.words[1..].iter().map(|word| word.to_ascii_lowercase()).collect();
    let everything = |word: &Vec<u8>| matches!(&word[..], b"all" | b"default" | b"everything");
    if !asked.is_empty() && !asked.iter().any(everything) {
        sections.retain(|(title, _)| asked.contains(&title.to_ascii_lowercase().into_bytes()));
    }
    let mut text = String::new();
    for (title, fields) in sections {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        write!(text, "# {title}\r\n").expect("a String takes everything");
        for (field, said) in fields {
            write!(text, "{field}:{said}\r\n").expect("a String takes everything");
        }
    }
    Reply::Verbatim(text)
}

/// `COMMAND` and `COMMAND INFO`: the commands of this master in the format of a real server, with
/// categories, tips, key specifications and subcommands left empty.
pub(super) fn command(master: &mut Master, call: &Call) -> Reply {
    match call.words.get(2..).unwrap_or_default() {
        [] => Reply::Array(top_level(master).map(describe).collect()),
        names => {
            let of =
                |name: &Vec<u8>| commands::named(master.flavor, name).map_or(Reply::Null, describe);
            Reply::Array(names.iter().map(of).collect())
        }
    }
}

/// `COMMAND COUNT`: the number of this master's commands.
pub(super) fn count(master: &mut Master, _: &Call) -> Reply {
    Reply::Integer(i64::try_from(top_level(master).count()).unwrap_or(i64::MAX))
}

fn top_level(master: &Master) -> impl Iterator<Item = &'static Command> {
    let flavor = master.flavor;
    COMMANDS.iter().filter(move |command| {
        !command.name.contains('|') && commands::named(flavor, command.name.as_bytes()).is_some()
    })
}

fn describe(command: &Command) -> Reply {
    let (first, last, step) = match command.keys {
        Keys::None => (0, 0, 0),
        Keys::First => (1, 1, 1),
        Keys::All => (1, -1, 1),
    };
    let has = FLAGS.iter().filter(|(flag, _)| command.flags & flag != 0);
    Reply::Array(vec![
        Reply::bulk(command.name),
        Reply::Integer(command.arity),
        Reply::Set(has.map(|(_, name)| Reply::Status(name)).collect()),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
        Reply::Array(Vec::new()),
    ])
}

pub(super) fn time(_: &mut Master, call: &Call) -> Reply {
    let microseconds = call.wall.div_euclid(1000);
    Reply::Array(vec![
        Reply::bulk((microseconds / 1_000_000).to_string()),
        Reply::bulk((microseconds % 1_000_000).to_string()),
    ])
}

/// How many replicas have all writes: this master has none.
pub(super) fn wait(_: &mut Master, _: &Call) -> Reply {
    Reply::Integer(0)
}

pub(super) fn ping(_: &mut Master, call: &Call) -> Reply {
    match &call.words[1..] {
        [] => Reply::Status("PONG"),
        [text] => Reply::bulk(&text[..]),
        _ => Reply::error("ERR wrong number of arguments for 'ping' command"),
    }
}

pub(super) fn echo(_: &mut Master, call: &Call) -> Reply {
    Reply::bulk(&call.words[1][..])
}
