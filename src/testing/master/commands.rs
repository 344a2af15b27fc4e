//! The table of commands, and the checks before a command runs: whether it is known, has the right
//! number of words, is allowed on this connection, and whether a [`Trouble`] answers in its place.

use super::reply::{Reply, c_text};
use super::{Call, Flavor, Master, Trouble};
use super::{about, keys, line, scripts, session, transactions};

/// A command: what `COMMAND INFO` returns for it, and the function that runs it.
pub(super) struct Command {
    /// In lower case; a subcommand as `client|id`.
    pub(super) name: &'static str,
    /// The number of words, including the name. If negative, at least that many.
    pub(super) arity: i64,
    pub(super) flags: u16,
    pub(super) keys: Keys,
    run: fn(&mut Master, &Call) -> Reply,
}

/// Which words of a request are keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    None,
    First,
    /// Every word but the first.
    All,
}

pub(super) const WRITE: u16 = 1;
pub(super) const READONLY: u16 = 1 << 1;
pub(super) const DENYOOM: u16 = 1 << 2;
pub(super) const NOSCRIPT: u16 = 1 << 3;
pub(super) const LOADING: u16 = 1 << 4;
pub(super) const STALE: u16 = 1 << 5;
pub(super) const NO_AUTH: u16 = 1 << 6;
pub(super) const ALLOW_BUSY: u16 = 1 << 7;
pub(super) const ADMIN: u16 = 1 << 8;
pub(super) const FAST: u16 = 1 << 9;

/// The names of the flags in `COMMAND INFO`.
pub(super) const FLAGS: [(u16, &str); 10] = [
    (WRITE, "write"),
    (READONLY, "readonly"),
    (DENYOOM, "denyoom"),
    (ADMIN, "admin"),
    (NOSCRIPT, "noscript"),
    (LOADING, "loading"),
    (STALE, "stale"),
    (FAST, "fast"),
    (NO_AUTH, "no_auth"),
    (ALLOW_BUSY, "allow_busy"),
];

const READS: u16 = READONLY | FAST;
const ASIDE: u16 = LOADING | STALE;
const SESSION: u16 = NOSCRIPT | LOADING | STALE;
const GREETING: u16 = SESSION | FAST | NO_AUTH | ALLOW_BUSY;

const fn command(
    name: &'static str,
    arity: i64,
    flags: u16,
    keys: Keys,
    run: fn(&mut Master, &Call) -> Reply,
) -> Command {
    Command { name, arity, flags, keys, run }
}

/// Sorted by name, so that every simulation lists them in the same order.
pub(super) const COMMANDS: &[Command] = &[
    command("auth", -2, GREETING, Keys::None, session::auth),
    command("client", -2, 0, Keys::None, container),
    command("client|caching", 3, SESSION, Keys::None, session::caching),
    command("client|getname", 2, SESSION, Keys::None, session::get_name),
    command("client|id", 2, SESSION, Keys::None, session::id),
    command("client|kill", -3, ADMIN | SESSION, Keys::None, session::kill),
    command("client|setinfo", 4, SESSION, Keys::None, session::set_info),
    command("client|setname", 3, SESSION, Keys::None, session::set_name),
    command("client|tracking", -3, SESSION, Keys::None, session::tracking),
    command("command", -1, ASIDE, Keys::None, about::command),
    command("command|count", 2, ASIDE, Keys::None, about::count),
    command("command|info", -2, ASIDE, Keys::None, about::command),
    command("dbsize", 1, READS, Keys::None, keys::dbsize),
    command("del", -2, WRITE, Keys::All, keys::del),
    command("delex", -2, WRITE | FAST, Keys::First, keys::delex),
    command("delifeq", 3, WRITE | FAST, Keys::First, keys::delifeq),
    command("discard", 1, SESSION | FAST | ALLOW_BUSY, Keys::None, transactions::discard),
    command("echo", 2, ASIDE | FAST, Keys::None, about::echo),
    command("eval", -3, NOSCRIPT | STALE, Keys::None, scripts::eval),
    command("evalsha", -3, NOSCRIPT | STALE, Keys::None, scripts::evalsha),
    command("exec", 1, SESSION, Keys::None, transactions::exec),
    command("exists", -2, READS, Keys::All, keys::exists),
    command("flushall", -1, WRITE, Keys::None, keys::flushall),
    command("flushdb", -1, WRITE, Keys::None, keys::flushdb),
    command("get", 2, READS, Keys::First, keys::get),
    command("getrange", 4, READONLY, Keys::First, keys::getrange),
    command("hello", -1, GREETING, Keys::None, session::hello),
    command("incr", 2, WRITE | DENYOOM | FAST, Keys::First, keys::incr),
    command("info", -1, ASIDE, Keys::None, about::info),
    command("lpush", -3, WRITE | DENYOOM | FAST, Keys::First, keys::lpush),
    command("multi", 1, SESSION | FAST | ALLOW_BUSY, Keys::None, transactions::multi),
    command("pexpire", -3, WRITE | FAST, Keys::First, keys::pexpire),
    command("ping", -1, FAST, Keys::None, about::ping),
    command("pttl", 2, READS, Keys::First, keys::pttl),
    command("publish", 3, LOADING | STALE | FAST, Keys::None, line::publish),
    command("pubsub", -2, 0, Keys::None, container),
    command("pubsub|numsub", -2, LOADING | STALE, Keys::None, line::numsub),
    command("quit", -1, GREETING, Keys::None, session::quit),
    command("reset", 1, GREETING, Keys::None, session::reset),
    command("script", -2, 0, Keys::None, container),
    command("script|exists", -3, NOSCRIPT, Keys::None, scripts::exists),
    command("script|flush", -2, NOSCRIPT, Keys::None, scripts::flush),
    command("script|load", 3, NOSCRIPT | STALE, Keys::None, scripts::load),
    command("select", 2, ASIDE | FAST, Keys::None, session::select),
    command("set", -3, WRITE | DENYOOM, Keys::First, keys::set),
    command("subscribe", -2, NOSCRIPT | LOADING | STALE, Keys::None, line::subscribe),
    command("swapdb", 3, WRITE | FAST, Keys::None, keys::swapdb),
    command("time", 1, ASIDE | FAST, Keys::None, about::time),
    command("ttl", 2, READS, Keys::First, keys::ttl),
    command("type", 2, READS, Keys::First, keys::kind),
    command("unlink", -2, WRITE | FAST, Keys::All, keys::del),
    command("wait", 3, NOSCRIPT, Keys::None, about::wait),
    command("zadd", -4, WRITE | DENYOOM | FAST, Keys::First, line::zadd),
    command("zrange", -4, READONLY, Keys::First, line::zrange),
    command("zrank", 3, READS, Keys::First, line::zrank),
    command("zrem", -3, WRITE | FAST, Keys::First, line::zrem),
    command("zscore", 3, READS, Keys::First, line::zscore),
];

impl Command {
    /// The keys among the words of a request.
    pub(super) fn keys_of<'a>(&self, words: &'a [Vec<u8>]) -> &'a [Vec<u8>] {
        match self.keys {
            Keys::None => &[],
            Keys::First => &words[1..2],
            Keys::All => &words[1..],
        }
    }

    /// Runs the command. If it is a read, registers the connection for pushes about `keys`: inside
    /// a script these are all keys of the script.
    pub(super) fn execute(&self, master: &mut Master, call: &Call, keys: &[Vec<u8>]) -> Reply {
        let reply = (self.run)(master, call);
        if self.flags & READONLY != 0 {
            master.register(call, keys);
        }
        reply
    }

    fn has_enough(&self, words: usize) -> bool {
        i64::try_from(words)
            .is_ok_and(|words| words == self.arity || self.arity < 0 && words >= -self.arity)
    }
}

/// Answers one request, and also returns the command, if there is such a one.
pub(super) fn run(master: &mut Master, call: &Call) -> (Reply, Option<&'static Command>) {
    let command = match find(master.flavor, call.words) {
        Ok(command) => command,
        Err(error) => return (transactions::refuse(master, call, None, error), None),
    };
    let refusal = if !command.has_enough(call.words.len()) {
        let name = command.name;
        Some(Reply::error(format!("ERR wrong number of arguments for '{name}' command")))
    } else if !master.trusts(call.connection) && command.flags & NO_AUTH == 0 {
        Some(Reply::error("NOAUTH Authentication required."))
    } else {
        master.troubles.iter().find_map(|trouble| trouble.answer(command))
    };
    let reply = match refusal {
        Some(refusal) => transactions::refuse(master, call, Some(command), refusal),
        None if transactions::queues(master, call, command) => Reply::Status("QUEUED"),
        None => command.execute(master, call, command.keys_of(call.words)),
    };
    (reply, Some(command))
}

/// The command that a request names, or the error that there is none.
pub(super) fn find(flavor: Flavor, words: &[Vec<u8>]) -> Result<&'static Command, Reply> {
    let first = words.first().map(Vec::as_slice).unwrap_or_default();
    let base = if first.contains(&b'|') { None } else { named(flavor, first) };
    match (base, words.get(1)) {
        (None, _) => Err(unknown(first, &words[1..])),
        (Some(base), Some(second)) if is_container(base) => {
            let full = [first, b"|", second].concat();
            named(flavor, &full).ok_or_else(|| {
                let help = base.name.to_ascii_uppercase();
                let after = format!("'. Try {help} HELP.");
                Reply::error_about("ERR unknown subcommand '", shown(second, 128), &after)
            })
        }
        (Some(base), _) => Ok(base),
    }
}

/// Looks up a name in the table, in upper or lower case.
pub(super) fn named(flavor: Flavor, name: &[u8]) -> Option<&'static Command> {
    let name = name.to_ascii_lowercase();
    let place = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(&name)).ok()?;
    Some(&COMMANDS[place]).filter(|command| flavor.knows(command.name))
}

/// Whether the command's second word is the name of a subcommand.
pub(super) fn is_container(command: &Command) -> bool {
    matches!(command.name, "client" | "command" | "pubsub" | "script")
}

impl Trouble {
    /// The answer that this trouble gives in place of the command, if it does.
    fn answer(&self, command: &Command) -> Option<Reply> {
        let without = |flag: u16| command.flags & flag == 0;
        let refused = match self {
            Trouble::Loading => without(LOADING),
            Trouble::Busy => without(ALLOW_BUSY),
            Trouble::Misconf if command.name == "ping" => true,
            Trouble::NoLua if command.name == "evalsha" => {
                return Some(Reply::error(scripts::NOSCRIPT));
            }
            Trouble::NoLua => matches!(command.name, "eval" | "script|load"),
            Trouble::MasterDown if without(STALE) && without(WRITE) => {
                return Some(Reply::error(MASTERDOWN));
            }
            Trouble::Answers { commands, reply } => {
                let concerned =
                    commands.is_empty() || commands.iter().any(|name| name == command.name);
                return concerned.then(|| Reply::Raw(reply.clone()));
            }
            _ => return self.refuses_to_write(command, 0),
        };
        refused.then(|| Reply::error(self.line()))
    }

    /// As `answer`, for a command inside a script; and, with no writes before, for any write. As on
    /// a real server, a script that has already written may go on writing although memory is full,
    /// so that it is not left half done.
    pub(super) fn refuses_to_write(&self, command: &Command, writes: usize) -> Option<Reply> {
        let refused = match self {
            Trouble::Misconf | Trouble::NoReplicas | Trouble::Replica | Trouble::MasterDown => {
                command.flags & WRITE != 0
            }
            Trouble::OutOfMemory => command.flags & DENYOOM != 0 && writes == 0,
            Trouble::OutOfMemoryInside { after } => {
                command.flags & DENYOOM != 0 && writes >= *after
            }
            Trouble::Answers { commands, reply } => {
                let concerned = commands.iter().any(|name| name == command.name);
                let line = reply.strip_prefix(b"-").and_then(|it| it.strip_suffix(b"\r\n"));
                return line.filter(|_| concerned).map(|line| Reply::Error(line.into()));
            }
            _ => false,
        };
        refused.then(|| Reply::error(self.line()))
    }

    fn line(&self) -> &'static str {
        match self {
            Trouble::Loading => "LOADING Redis is loading the dataset in memory",
            Trouble::Busy => {
                "BUSY Redis is busy running a script. \
                 You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
            }
            Trouble::Misconf => {
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to \
                 persist to disk. Commands that may modify the data set are disabled, because this \
                 instance is configured to report errors during writes if RDB snapshotting fails \
                 (stop-writes-on-bgsave-error option). Please check the Redis logs for details \
                 about the RDB error."
            }
            Trouble::NoReplicas => "NOREPLICAS Not enough good replicas to write.",
            // Valkey 9.1.2.
            Trouble::NoLua => "ERR Could not find scripting engine 'lua'",
            Trouble::OutOfMemory | Trouble::OutOfMemoryInside { .. } => {
                "OOM command not allowed when used memory > 'maxmemory'."
            }
            Trouble::Replica | Trouble::MasterDown => {
                "READONLY You can't write against a read only replica."
            }
            Trouble::TurnsAway(_) | Trouble::Answers { .. } => "ERR",
        }
    }
}

pub(super) const MASTERDOWN: &str =
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";

impl Flavor {
    fn knows(self, command: &str) -> bool {
        match command {
            "client|setinfo" => self != Flavor::Redis70,
            "delex" => self == Flavor::Redis84,
            "delifeq" => self == Flavor::Valkey90,
            _ => true,
        }
    }
}

/// Never runs, because a container without a subcommand has too few words.
fn container(_: &mut Master, _: &Call) -> Reply {
    Reply::error("ERR syntax error")
}

fn unknown(name: &[u8], arguments: &[Vec<u8>]) -> Reply {
    let mut line = b"ERR unknown command '".to_vec();
    line.extend_from_slice(shown(name, 128));
    line.extend_from_slice(b"', with args beginning with: ");
    let start = line.len();
    for argument in arguments {
        let room = 128_usize.saturating_sub(line.len() - start);
        if room == 0 {
            break;
        }
        line.push(b'\'');
        line.extend_from_slice(shown(argument, room));
        line.extend_from_slice(b"' ");
    }
    Reply::Error(line)
}

/// The part of a word that an error shows.
fn shown(word: &[u8], most: usize) -> &[u8] {
    let text = c_text(word);
    &text[..text.len().min(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
