//! `redlatch members`: shows the list of masters that each server has, and says whether it is the
//! same on all of them. Only an action (`change.rs`) changes a list; `--check-members` does not.
//!
//! The hazard is to take a list for agreed that a server did not confirm: so a server that could
//! not be asked is never counted as one that has the list.

mod change;
pub mod lists;
mod words;

use std::process::ExitCode;
use std::time::Duration;

use redlatch::proto::{Member, Stage};
use redlatch::{Config, NodeError, clock};
use serde_json::{Value, json};

use crate::arguments::Common;
use crate::connection::{Connection, Patience, Trouble, tls};
use crate::exit;
use crate::look::{Colours, Look};
use crate::output::{self, Refusal};
use crate::table::Table;
use lists::{Comparison, Seen, Server, Verdict, plain};

/// How long a server may take for all its answers, besides the longest wait for one of them.
const ALL_ANSWERS: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  redlatch members                          the list on each server, and what differs
  redlatch members -q || echo look here     only the exit code
  redlatch members --json | jq -r '.nodes[] | select(.state != \"agreed\").node'
  redlatch members change --to redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.4
  redlatch members replace redis://10.0.0.3 redis://10.0.0.4
  redlatch members resume                   finish a step that was begun

Exit codes: 0 all servers have the same agreed list, and it is of just these servers; 1 it \
differs, is missing or is not agreed on one of them, one of them could not be asked, or a server \
of the list is not among them; 69 no quorum of servers could be asked; 125 usage or configuration. \
change, replace, resume, undo: 0 done, 1 another tool changed the list, 69 too few servers of the \
list, or a wanted one, could be asked.";

/// The list of masters that the servers keep, for clients with --check-members
///
/// Without an action it reads redlatch:members on each server, and changes nothing. A client with
/// --check-members is refused where its servers are not those of the list.
///
/// change makes the list that of --to, one server at a time, while locks are held: it tells each
/// new list to the servers, and waits until no client counts by the old one (--max-ttl, which has
/// to be that of all clients, and 15 s). It may be stopped at any moment: run it again, or resume.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("check_members", |arg| arg.hide(true)))]
#[command(mut_arg("replicas", |arg| arg.hide(true)))]
pub struct Options {
    /// What to do with the list [default: show it]
    #[arg(value_enum, value_name = "ACTION")]
    pub action: Option<Action>,

    /// replace: the server that leaves, and the one that takes its place
    #[arg(value_name = "URL")]
    pub pair: Vec<String>,

    /// change: the servers of the new list, comma-separated; new ones are added in this order
    #[arg(long, value_name = "URLS")]
    pub to: Vec<String>,

    #[command(flatten)]
    pub common: Common,
}

/// What to do with the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Action {
    /// Make it the list of --to
    Change,
    /// Put one server in the place of another
    Replace,
    /// Finish a step that was begun
    Resume,
    /// Go back to the list before the step that was begun
    Undo,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(members(options), &options.common.output)
}

fn members(options: &Options) -> Result<u8, Refusal> {
    let how = &options.common.output;
    if let Some(action) = options.action {
        return change::run(options, action);
    }
    if !options.to.is_empty() {
        return Err(Refusal::config("members: --to needs an action: redlatch members change --to"));
    }
    let config = crate::nodes::config(&options.common.nodes, &options.common.timing)?;
    let servers = read_all(&config);
    let comparison = lists::compare(&servers);
    if how.json {
        output::print(&object(&servers, &comparison).to_string())?;
    } else if !how.quiet {
        output::print(&text(&servers, &comparison, Colours::on(&std::io::stdout())))?;
    }
    Ok(match comparison.verdict {
        _ if lists::no_quorum_answered(&servers) => exit::NO_QUORUM,
        Verdict::Same => exit::DONE,
        _ => exit::NO,
    })
}

/// Reads the lists of all servers at the same time, so that a frozen server delays no other.
fn read_all(config: &Config) -> Vec<Server> {
    let settings = config.get_settings();
    let each = settings.connect_timeout.max(settings.node_timeout);
    let until = clock::now().saturating_add(each + ALL_ANSWERS);
    let (tls, patience) = (tls(config), Patience { each, until });
    std::thread::scope(|scope| {
        let nodes = settings.nodes.iter().enumerate();
        let threads: Vec<_> = nodes
            .map(|(place, node)| {
                let tls = tls.as_ref();
                let read = move || {
                    let connected = Connection::to_node(config, place, tls, patience);
                    connected.and_then(|mut connection| lists::read(&mut connection))
                };
                (node.label.to_string(), scope.spawn(read))
            })
            .collect();
        let end = |(label, thread): (String, std::thread::ScopedJoinHandle<'_, _>)| {
            let read: Result<Seen, Trouble> = thread.join().expect("reading does not panic");
            Server { label, seen: read.unwrap_or_else(Seen::Unreached) }
        };
        threads.into_iter().map(end).collect()
    })
}

fn text(servers: &[Server], comparison: &Comparison, colours: Colours) -> String {
    let mut table = Table::new(["node", "id", "epoch", "list"]);
    for Server { label, seen } in servers {
        let (id, epoch) = match seen.listed() {
            Some(listed) => (listed.id.to_string(), listed.list.epoch().to_string()),
            None => (String::new(), String::new()),
        };
        let (words, look) = in_words(seen);
        table.row([(label.clone(), None), (id, None), (epoch, None), (words, Some(look))]);
    }
    let look = if comparison.verdict == Verdict::Same { Look::Good } else { Look::Bad };
    let summary = colours.styled(&comparison.words, look);
    format!("{summary}\n{}", table.text(colours).trim_end())
}

fn in_words(seen: &Seen) -> (String, Look) {
    match seen {
        Seen::Listed(listed) => match listed.stage {
            Stage::Agreed => ("agreed".into(), Look::Good),
            stage => (stage.word().into(), Look::Odd),
        },
        Seen::Blank => ("no list".into(), Look::Odd),
        Seen::Later => ("written by a later version of redlatch".into(), Look::Bad),
        Seen::Foreign => ("another program uses redlatch:members".into(), Look::Bad),
        Seen::Refused(trouble) if trouble.cause == NodeError::NoPermission => {
            ("no permission".into(), Look::Bad)
        }
        Seen::Refused(trouble) => (plain(&trouble.in_words()), Look::Bad),
        Seen::Unreached(trouble) => {
            (format!("unreachable: {}", plain(&trouble.in_words())), Look::Bad)
        }
    }
}

fn object(servers: &[Server], comparison: &Comparison) -> Value {
    let node = |server: &Server| {
        let (listed, trouble) = (server.seen.listed(), trouble(&server.seen));
        let members = listed.map(|it| it.list.members().iter().map(member).collect::<Vec<_>>());
        json!({
            "node": server.label,
            "state": state(&server.seen),
            "id": listed.map(|it| it.id.to_string()),
            "epoch": listed.map(|it| it.list.epoch()),
            "members": members,
            "detail": trouble.map(|it| plain(&it.in_words())),
        })
    };
    json!({
        "same": comparison.verdict == Verdict::Same,
        "message": comparison.words,
        "missing": comparison.missing,
        "nodes": servers.iter().map(node).collect::<Vec<_>>(),
    })
}

fn member(member: &Member) -> Value {
    json!({ "id": member.id.to_string(), "address": plain(&member.address) })
}

fn trouble(seen: &Seen) -> Option<&Trouble> {
    match seen {
        Seen::Refused(trouble) | Seen::Unreached(trouble) => Some(trouble),
        _ => None,
    }
}

/// The word for what a server has, for scripts.
fn state(seen: &Seen) -> &'static str {
    match seen {
        Seen::Listed(listed) => listed.stage.word(),
        Seen::Blank => "none",
        Seen::Later => "later_version",
        Seen::Foreign => "other_program",
        Seen::Refused(trouble) | Seen::Unreached(trouble) => output::trouble(trouble.cause),
    }
}
