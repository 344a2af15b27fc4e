//! The command line: the verbs, and the groups of flags that they share.
//!
//! Every verb that talks to nodes takes all flags of `Nodes`, `Timing` and `Output`, also those
//! that have no effect on it (its help hides those). So a script can pass the same flags to every
//! verb. The hazard is a password in a URL. The parser prints any argument that it refuses, so this
//! file takes URLs as plain text, and others parse them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use redlatch::{ConfigFile, LockOptions, LockToken};

use crate::key_names::KeyNames;
use crate::{
    acquire, bench, completions, demo, doctor, elect, exec, extend, force_release, hold, init,
    leader, list, man, members, release, resign, status, top, wait,
};

const LONG_ABOUT: &str = "\
A lock around any program, over N independent Redis masters (Redlock): who gets a majority of the \
masters has the lock, and a minority that is slow, frozen or dead costs nothing.

The masters are given with -s, or in REDLATCH_SERVERS, comma-separated; a password that is not in \
the URL comes from REDISCLI_AUTH, or from a file that REDLATCH_PASSWORD_FILE or the configuration \
names. Every flag has a variable: --node-timeout is REDLATCH_NODE_TIMEOUT. A flag counts more than \
its variable, and that more than the configuration file. The flags that the verbs share (redlatch \
help status) may stand before the verb, too. Every verb has a longer help: redlatch help VERB.";

const EXAMPLES: &str = "\
Examples:
  export REDLATCH_SERVERS=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  redlatch exec nightly-report -- /usr/local/bin/report   run it on one machine at a time
  redlatch exec -n deploy -- ./deploy.sh                  or not at all: 75 if another does
  redlatch status nightly-report                          who has it, and for how long
  redlatch elect scheduler --address \"$IP:80\" ./scheduler   run it where it leads
  redlatch leader scheduler                               who leads
  redlatch list                                           all locks, and who has them
  redlatch doctor                                         are these masters fit for locks?
  redlatch init                                           make the grants of fresh masters count

Exit codes:
  0        done; status: free; doctor: healthy (exec: that of its command)
  1        status: held; extend, release: the token does not hold the key; doctor: failed;
           leader: nobody leads, or not --is; resign: nobody led; members: the lists differ;
           init, force-release: not confirmed, or something else is held
  69       no quorum of nodes could answer; status without a key: too few can grant
  75       someone else holds the lock and the wait ran out; resign: it still leads
  124      the lock was lost: exec stopped its command, or found it lost at the end; hold ended
  125      usage, configuration or internal error
  126/127  exec: the command cannot be run / is not found
  128+n    ended by signal n";

/// Distributed locks over N independent Redis masters.
#[derive(Debug, Parser)]
#[command(name = "redlatch", version, long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
// If a flag is given twice, the last one counts: `redlatch exec $FLAGS -t 5s ...`.
#[command(max_term_width = 100, args_override_self = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    Exec(exec::Options),
    Hold(hold::Options),
    Elect(elect::Options),
    Acquire(acquire::Options),
    Extend(extend::Options),
    Release(release::Options),
    ForceRelease(force_release::Options),
    Wait(wait::Options),
    Status(status::Options),
    Leader(leader::Options),
    Resign(resign::Options),
    List(list::Options),
    Top(top::Options),
    Doctor(doctor::Options),
    Members(members::Options),
    Init(init::Options),
    Bench(bench::Options),
    Demo(demo::Options),
    Completions(completions::Options),
    Man(man::Options),
}

/// Where the nodes are.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Nodes")]
pub struct Nodes {
    /// A Redis master; repeat it, or separate several by commas
    ///
    /// redis://[user[:pass]@]host[:port][/db], rediss://... for TLS, redis+unix:///path[?db=N], or
    /// host:port (an IP address needs no port). redis+sentinel://[user[:pass]@]host[:port],.../name
    /// is the master that these Sentinels have under that name; /db may follow. User, password and
    /// path are percent-encoded. If a URL has no password, the one in REDISCLI_AUTH is used, or
    /// that in the password_file of the configuration: there is no flag for it, because all users
    /// of this machine can read the command line.
    #[arg(short = 's', long = "server", value_name = "URL")]
    pub servers: Vec<String>,

    /// Trust nodes with a certificate of this CA (PEM), at rediss:// URLs [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Who we are to the nodes: a client certificate (PEM)
    #[arg(long = "tls-cert", value_name = "FILE")]
    pub certificate: Option<PathBuf>,

    /// The private key of --tls-cert (PEM)
    #[arg(long = "tls-key", id = "private_key", value_name = "FILE")]
    pub private_key: Option<PathBuf>,

    /// Who we are to the Sentinels of redis+sentinel:// URLs
    ///
    /// Their password is in REDLATCH_SENTINEL_AUTH, or in the file that
    /// REDLATCH_SENTINEL_PASSWORD_FILE or the sentinel_password_file of the configuration names.
    #[arg(long, value_name = "USER")]
    pub sentinel_user: Option<String>,

    /// Read the configuration from this file (TOML) [default: /etc/redlatch.toml, if it is there]
    ///
    /// Its keys are servers, password_file, sentinel_user, sentinel_password_file, key_prefix,
    /// owner, ttl, wait, node_timeout, connect_timeout, max_ttl, restart_guard, replicas,
    /// check_members, node_marker, client_name, allow_eviction, and ca, cert, key in the table tls.
    /// /dev/null is a file without any.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Put this before every key on the nodes: the same on every machine that shares a lock
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub key_prefix: String,

    /// Who we are to people: a part of the lock's token, which status shows [default: host:pid]
    ///
    /// Up to 100 bytes of printable ASCII without spaces; empty: plain tokens.
    #[arg(long, value_name = "TEXT")]
    pub owner: Option<String>,

    /// The configuration file, from which the flags above have their defaults.
    #[arg(skip = crate::config_file::loaded())]
    pub file: ConfigFile,
}

/// How long things may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Timing")]
pub struct Timing {
    /// How long the lock lives on the nodes unless it is renewed
    ///
    /// A holder that dies keeps the others waiting for at most this long; 100ms at least. Durations
    /// read 500ms, 10s, 1m30s; a bare number is seconds.
    #[arg(short, long, value_name = "DUR", value_parser = duration, default_value = "30s")]
    pub ttl: Duration,

    /// Give up after this long [default: wait for ever]; 0 is one attempt
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub wait: Option<Duration>,

    /// Do not wait: --wait 0
    #[arg(short, long, conflicts_with = "wait")]
    pub nonblock: bool,

    /// How long one node may take to answer before the others decide without it
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "250ms")]
    pub node_timeout: Duration,

    /// How long to go on trying while no quorum of nodes can be asked; then the exit code is 69
    ///
    /// So the jobs of a crontab do not pile up while the nodes are down. The time counts from the
    /// moment at which the quorum was lost, and begins anew after each time a quorum answered. A
    /// key that another client holds, and nodes in quarantine, are waited for as --wait says.
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "30s")]
    pub no_quorum_wait: Duration,

    /// How long a connection may take until its node can be asked
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "1s")]
    pub connect_timeout: Duration,

    /// The longest ttl that any client uses on these nodes
    ///
    /// The restart guard relies on it: a node that started, or lost its keys, less than this long
    /// ago does not grant, because it may have forgotten a lock. No --ttl may be longer.
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "60s")]
    pub max_ttl: Duration,

    /// Let nodes grant that were just started
    ///
    /// Only for nodes that are fresh as a whole, and for tests: a node that was restarted without
    /// its keys lets a second holder in.
    #[arg(long)]
    pub no_restart_guard: bool,

    /// Trust nodes at once that restart with their node marker
    ///
    /// You declare that every node runs with appendonly yes and appendfsync always, so that a node
    /// that kept its marker kept its locks: a rolling restart costs no quarantine. One node that
    /// forgets locks all the same is enough for two holders. doctor checks the declaration.
    #[arg(long, conflicts_with = "no_restart_guard")]
    pub persistent_nodes: bool,

    /// Count a grant of a node only if this many replicas have it, too
    ///
    /// For nodes with a failover: without it, a master that is cut off goes on extending a lock
    /// that the promoted replica gives to another holder. Count all replicas that may be promoted.
    /// While one is missing the node grants nothing. The restart guard has to be on.
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
    pub replicas: u32,

    /// Use only the masters of the list that they keep themselves
    ///
    /// The first client that reaches all its servers writes their list to each of them, under
    /// redlatch:members. A client with another list is refused from then on, before it can hold a
    /// lock of the first. The restart guard has to be on. redlatch members shows the lists.
    #[arg(long, conflicts_with = "no_restart_guard")]
    pub check_members: bool,
}

impl Timing {
    /// How long to wait for the lock; `None` means for ever.
    pub fn longest_wait(&self) -> Option<Duration> {
        if self.nonblock { Some(Duration::ZERO) } else { self.wait }
    }
}

/// How the tool reports.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Print nothing that was not asked for: rely on the exit code
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Say more, on stderr
    #[arg(short, long)]
    pub verbose: bool,

    /// Speak JSON
    #[arg(long)]
    pub json: bool,
}

/// What every verb that asks the nodes takes.
#[derive(Debug, Args)]
pub struct Common {
    #[command(flatten)]
    pub nodes: Nodes,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
}

/// The name of a lock.
#[derive(Debug, Args)]
pub struct Key {
    /// The lock's name: the same on every machine that shares it
    #[arg(value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub key: String,
}

/// The names of a lock over one key or several.
#[derive(Debug, Args)]
pub struct Keys {
    /// The lock's name: the same on every machine that shares it. Of several, all are locked, or
    /// none
    #[arg(value_name = "KEY", required = true, num_args = 1..)]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub keys: Vec<String>,
}

impl Keys {
    /// The keys of the command line.
    pub fn named(&self) -> Result<KeyNames, redlatch::Error> {
        KeyNames::new(&self.keys)
    }
}

/// More keys of the same lock.
#[derive(Debug, Args)]
pub struct Also {
    /// Lock this key, too: all of them, or none; repeat it for more
    ///
    /// KEY and these are one lock. Two commands that name the same keys in different orders do not
    /// wait for each other. At most 64 keys.
    #[arg(long, value_name = "KEY")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub also: Vec<String>,
}

impl Also {
    /// KEY, and those of `--also`.
    pub fn with(&self, key: &Key) -> Result<KeyNames, redlatch::Error> {
        KeyNames::new(std::iter::once(&key.key).chain(&self.also))
    }
}

/// Whether the lock gets a fencing number.
#[derive(Debug, Args)]
pub struct Fencing {
    /// Get a fencing number: one that is greater than that of every earlier holder of KEY
    ///
    /// Send it with every write. A store that refuses a smaller number than the greatest one it has
    /// seen then refuses the late write of a holder that was paused. The nodes count in a key of
    /// their own, redlatch:fence:{KEY}. Of several keys each has a number of its own. The restart
    /// guard has to be on.
    #[arg(long)]
    pub fenced: bool,
}

impl Fencing {
    /// The options of the acquire, fenced if the flag was given.
    pub fn of(&self, options: LockOptions) -> LockOptions {
        if self.fenced { options.fenced() } else { options }
    }
}

/// Reads a duration: `500ms`, `10s`, `1m30s`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    redlatch::parse_duration(text).map_err(|error| error.to_string())
}

/// Reads a token.
pub fn token(text: &str) -> Result<LockToken, String> {
    text.parse().map_err(|error| format!("{error}, as `redlatch acquire` prints it"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn timing_defaults_are_those_of_the_library() {
        let read = Arguments::try_parse_from(["redlatch", "status", "-s", "redis://h"]).unwrap();
        let Verb::Status(status) = read.verb else { panic!("{read:?}") };
        let library = redlatch::proto::Settings::new(Vec::new());
        assert_eq!(status.common.timing.node_timeout, library.node_timeout);
        assert_eq!(status.common.timing.max_ttl, library.max_ttl);
    }

    #[test]
    fn max_hold_is_none_unless_it_is_given() {
        let max_hold = |words: &[&str]| {
            let words = [&["redlatch"], words].concat();
            match Arguments::try_parse_from(words).expect("the words are right").verb {
                Verb::Exec(options) => options.job.max_hold.0,
                Verb::Hold(options) => options.max_hold.0,
                verb => panic!("{verb:?}"),
            }
        };
        let an_hour = Some(Duration::from_secs(3600));
        assert_eq!(max_hold(&["exec", "key", "true"]), None);
        assert_eq!(max_hold(&["exec", "--max-hold", "1h", "key", "true"]), an_hour);
        assert_eq!(max_hold(&["exec", "--max-hold", "none", "key", "true"]), None);
        assert_eq!(max_hold(&["hold", "key"]), None);
        assert_eq!(max_hold(&["hold", "--max-hold", "1h", "key"]), an_hour);
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        let millis = |text: &str| duration(text).map(|read| read.as_millis());
        let good = [
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("10", 10_000),
            ("0.5", 500),
            ("0", 0),
        ];
        for (text, read) in good {
            assert_eq!(millis(text), Ok(read), "{text}");
        }
        for bad in ["", "x", "-1", "1e99", "inf", "NaN", "10 parsecs", "5s5"] {
            assert!(duration(bad).is_err(), "{bad} was taken");
        }
    }
}
