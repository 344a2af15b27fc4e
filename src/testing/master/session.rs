//! The state of one connection, and the commands that change it: handshake, password, database,
//! name, tracking, end.

use std::collections::BTreeSet;

use bytes::BytesMut;

use super::reply::Reply;
use super::request::integer;
use super::tracking::{Mode, Opt};
use super::transactions::Queue;
use super::{Call, ConnectionId, DATABASES, Flavor, Master};

const SYNTAX: &str = "ERR syntax error";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// The state of one connection.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) input: BytesMut,
    pub(super) output: Vec<u8>,
    /// Whether the connection is in the list of connections with output.
    pub(super) speaks: bool,
    /// The connection closes after its output: nothing more is read from it or added to the output.
    pub(super) closing: bool,
    /// The command that runs now ends the connection.
    pub(super) closing_after_reply: bool,
    /// Invalidations by the command that runs now, which are pushed after its reply.
    pub(super) own_pushes: Vec<Option<Vec<u8>>>,
    pub(super) authenticated: bool,
    pub(super) resp3: bool,
    pub(super) database: usize,
    pub(super) tracking: Option<Mode>,
    /// `CLIENT CACHING` was sent for the next command.
    pub(super) caching: bool,
    /// The connection is in a transaction.
    pub(super) queue: Option<Queue>,
    /// The channels to which the connection is subscribed.
    pub(super) channels: BTreeSet<Vec<u8>>,
    pub(super) name: Vec<u8>,
}

impl Connection {
    pub(super) fn new(authenticated: bool) -> Connection {
        Connection {
            input: BytesMut::new(),
            output: Vec::new(),
            speaks: false,
            closing: false,
            closing_after_reply: false,
            own_pushes: Vec::new(),
            authenticated,
            resp3: false,
            database: 0,
            tracking: None,
            caching: false,
            queue: None,
            channels: BTreeSet::new(),
            name: Vec::new(),
        }
    }
}

impl Master {
    fn accepts(&self, user: &[u8], password: &[u8]) -> bool {
        user == b"default" && self.password.as_ref().is_none_or(|own| own == password)
    }

    fn set_client_name(&mut self, call: &Call, name: &[u8]) -> Result<(), Reply> {
        if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
            return Err(Reply::error(BAD_NAME));
        }
        self.own(call).name = name.to_vec();
        Ok(())
    }
}

pub(super) fn hello(master: &mut Master, call: &Call) -> Reply {
    match begin_handshake(master, call) {
        Ok(reply) | Err(reply) => reply,
    }
}

fn begin_handshake(master: &mut Master, call: &Call) -> Result<Reply, Reply> {
    let mut words = &call.words[1..];
    let mut version = None;
    if let Some((first, rest)) = words.split_first() {
        let Some(number) = integer(first) else {
            return Err(Reply::error("ERR Protocol version is not an integer or out of range"));
        };
        if !(2..=3).contains(&number) {
            return Err(Reply::error("NOPROTO unsupported protocol version"));
        }
        (version, words) = (Some(number), rest);
    }
    while let Some((option, rest)) = words.split_first() {
        words = match (option.to_ascii_lowercase().as_slice(), rest) {
            (b"auth", [user, password, rest @ ..]) => {
                if !master.accepts(user, password) {
                    return Err(Reply::error(WRONG_PASSWORD));
                }
                master.own(call).authenticated = true;
                rest
            }
            (b"setname", [name, rest @ ..]) => {
                master.set_client_name(call, name)?;
                rest
            }
            _ => {
                let what = "ERR Syntax error in HELLO option '";
                return Err(Reply::error_about(what, option, "'"));
            }
        };
    }
    if !master.own(call).authenticated {
        return Err(Reply::error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO AUTH <user> <pass> option can be used to authenticate the client and select \
             the RESP protocol version at the same time",
        ));
    }
    if let Some(version) = version {
        master.own(call).resp3 = version == 3;
    }
    Ok(who_i_am(master, call))
}

fn who_i_am(master: &mut Master, call: &Call) -> Reply {
    let (server, version) = match master.flavor {
        Flavor::Redis70 => ("redis", "7.0.15"),
        Flavor::Redis84 => ("redis", "8.4.0"),
        Flavor::Valkey90 => ("valkey", "9.0.0"),
    };
    let role = if master.info_field(call, "role") == "master" { "master" } else { "replica" };
    let protocol = if master.own(call).resp3 { 3 } else { 2 };
    Reply::Map(vec![
        ("server", Reply::bulk(server)),
        ("version", Reply::bulk(version)),
        ("proto", Reply::Integer(protocol)),
        ("id", client_id(master, call.connection)),
        ("mode", Reply::bulk(master.info_field(call, "redis_mode"))),
        ("role", Reply::bulk(role)),
        ("modules", Reply::Array(Vec::new())),
    ])
}

fn client_id(master: &Master, connection: ConnectionId) -> Reply {
    Reply::Integer(i64::try_from(master.client_id(connection)).unwrap_or(i64::MAX))
}

pub(super) fn auth(master: &mut Master, call: &Call) -> Reply {
    let (user, password) = match &call.words[1..] {
        [_] if master.password.is_none() => {
            return Reply::error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            );
        }
        [password] => (&b"default"[..], password),
        [user, password] => (&user[..], password),
        _ => return Reply::error(SYNTAX),
    };
    if !master.accepts(user, password) {
        return Reply::error(WRONG_PASSWORD);
    }
    master.own(call).authenticated = true;
    Reply::OK
}

pub(super) fn select(master: &mut Master, call: &Call) -> Reply {
    let Some(number) = integer(&call.words[1]) else {
        return Reply::error("ERR value is not an integer or out of range");
    };
    if i32::try_from(number).is_err() {
        return Reply::error(
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        );
    }
    match usize::try_from(number) {
        Ok(database @ 0..DATABASES) => {
            master.own(call).database = database;
            Reply::OK
        }
        _ => Reply::error("ERR DB index is out of range"),
    }
}

/// `RESET`: makes the connection like a new one, except for its id and its tracking registrations.
pub(super) fn reset(master: &mut Master, call: &Call) -> Reply {
    let authenticated = master.password.is_none();
    let connection = master.own(call);
    connection.authenticated = authenticated;
    connection.resp3 = false;
    connection.database = 0;
    connection.tracking = None;
    connection.caching = false;
    connection.queue = None;
    connection.channels.clear();
    connection.name.clear();
    Reply::Status("RESET")
}

pub(super) fn quit(master: &mut Master, call: &Call) -> Reply {
    master.own(call).closing_after_reply = true;
    Reply::OK
}

pub(super) fn id(master: &mut Master, call: &Call) -> Reply {
    client_id(master, call.connection)
}

pub(super) fn get_name(master: &mut Master, call: &Call) -> Reply {
    match &master.own(call).name[..] {
        [] => Reply::Null,
        name => Reply::bulk(name),
    }
}

pub(super) fn set_name(master: &mut Master, call: &Call) -> Reply {
    match master.set_client_name(call, &call.words[2]) {
        Ok(()) => Reply::OK,
        Err(error) => error,
    }
}

/// `CLIENT SETINFO`: checks the name, but stores nothing, because no command returns it.
pub(super) fn set_info(_: &mut Master, call: &Call) -> Reply {
    let attribute = call.words[2].to_ascii_lowercase();
    if matches!(attribute.as_slice(), b"lib-name" | b"lib-ver") {
        Reply::OK
    } else {
        Reply::error_about("ERR Unrecognized option '", &call.words[2], "'")
    }
}

/// `CLIENT KILL` by `ID`, `TYPE` and `SKIPME`. A kill by address finds no client, because
/// connections to this master have no address.
pub(super) fn kill(master: &mut Master, call: &Call) -> Reply {
    let words = &call.words[2..];
    if words.len() == 1 {
        return Reply::error("ERR No such client");
    }
    let (mut by_id, mut skip_me, mut of_other_type) = (None, true, false);
    for pair in words.chunks(2) {
        let [option, argument] = pair else { return Reply::error(SYNTAX) };
        match (option.to_ascii_lowercase().as_slice(), argument.to_ascii_lowercase().as_slice()) {
            (b"id", number) => match integer(number).and_then(|id| u64::try_from(id).ok()) {
                Some(id @ 1..) => by_id = Some(id),
                _ => return Reply::error("ERR client-id should be greater than 0"),
            },
            (b"type", b"normal") => of_other_type = false,
            (b"type", b"master" | b"replica" | b"slave" | b"pubsub") => of_other_type = true,
            (b"type", _) => {
                return Reply::error_about("ERR Unknown client type '", argument, "'");
            }
            (b"skipme", b"yes") => skip_me = true,
            (b"skipme", b"no") => skip_me = false,
            _ => return Reply::error(SYNTAX),
        }
    }
    let chosen: Vec<ConnectionId> = match by_id {
        Some(id) => master.connection(id).into_iter().collect(),
        None => master.connections.keys().copied().collect(),
    };
    let mut killed = 0;
    for id in chosen {
        let me = id == call.connection;
        if of_other_type || me && skip_me || master.open(id).is_none() {
            continue;
        }
        killed += 1;
        if me {
            master.own(call).closing_after_reply = true;
        } else {
            master.hang_up(id);
        }
    }
    Reply::Integer(killed)
}

/// `CLIENT TRACKING`. Refuses `REDIRECT`, `BCAST` and `PREFIX`.
pub(super) fn tracking(master: &mut Master, call: &Call) -> Reply {
    let (mut opt_in, mut opt_out, mut silent_on_own) = (false, false, false);
    for word in &call.words[3..] {
        match word.to_ascii_lowercase().as_slice() {
            b"optin" => opt_in = true,
            b"optout" => opt_out = true,
            b"noloop" => silent_on_own = true,
            b"redirect" | b"bcast" | b"prefix" => {
                return Reply::error("ERR this master does not redirect or broadcast");
            }
            _ => return Reply::error(SYNTAX),
        }
    }
    let connection = master.own(call);
    match call.words[2].to_ascii_lowercase().as_slice() {
        b"on" => {
            let opt = match (opt_in, opt_out) {
                (true, true) => {
                    let what = "ERR You can't specify both OPTIN mode and OPTOUT mode";
                    return Reply::error(what);
                }
                (true, false) => Opt::In,
                (false, true) => Opt::Out,
                (false, false) => Opt::All,
            };
            let before = connection.tracking.map_or(opt, |mode| mode.opt);
            if matches!((before, opt), (Opt::In, Opt::Out) | (Opt::Out, Opt::In)) {
                return Reply::error(
                    "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this \
                     client, and then re-enabling it with a different mode.",
                );
            }
            connection.tracking = Some(Mode { opt, silent_on_own });
        }
        b"off" => {
            connection.tracking = None;
            connection.caching = false;
        }
        _ => return Reply::error(SYNTAX),
    }
    Reply::OK
}

/// `CLIENT CACHING`.
pub(super) fn caching(master: &mut Master, call: &Call) -> Reply {
    let connection = master.own(call);
    let Some(Mode { opt, .. }) = connection.tracking else {
        return Reply::error(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN \
             or OPTOUT mode enabled",
        );
    };
    match (call.words[2].to_ascii_lowercase().as_slice(), opt) {
        (b"yes", Opt::In) | (b"no", Opt::Out) => {
            connection.caching = true;
            Reply::OK
        }
        (b"yes", _) => Reply::error(
            "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
        ),
        (b"no", _) => Reply::error(
            "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
        ),
        _ => Reply::error(SYNTAX),
    }
}
