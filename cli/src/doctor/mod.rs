//! `redlatch doctor`: do these nodes meet what Redlock assumes of them?
//!
//! The nodes are examined twice at the same time. `meeting` runs a client of the library, which
//! shows which nodes would be asked for locks. `examination` asks each node everything else over a
//! separate connection. Both yield plain values, which `checks` judges; `table` prints the
//! findings.
//!
//! The hazard is to harm the nodes: doctor writes only keys of its own with a short ttl, and sends
//! their deletion in the same write. The library's client writes the node marker, as every client
//! does.

mod checks;
mod examination;
mod marker;
mod meeting;
mod name;
mod table;
mod trial;

use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};
use redlatch::Address;
use redlatch::{Config, LockToken, NodeError, RestartGuard, clock};
use serde_json::json;

use crate::arguments::{Common, Output};
use crate::connection::{Patience, Trouble, server, tls};
use crate::exit;
use crate::output::{self, Refusal};
use checks::{Finding, Level, Subject, Use};
use examination::{Examination, Parameters, examine};
use trial::Keys;

/// How long an examination may take, besides the longest wait for one answer.
const EXAMINATION: Duration = Duration::from_secs(10);

const LONG_ABOUT: &str = "\
Do these nodes meet what Redlock assumes of them?

Looks whether each address leads to an independent master that keeps its keys: one server under \
two addresses, several servers under one name, replicas and what was promoted, clusters, \
eviction, persistence (with --persistent-nodes: that your declaration holds), a start a moment \
ago, the node marker, a proxy in between; round trips against --node-timeout, and the clocks. \
Every command that redlatch uses is tried on a key of its own \
(redlatch-doctor:RANDOM), which is deleted at once; what is refused then stands in the ACL LOG \
of the node. Like any client with the restart guard on, it writes the node marker (the key \
redlatch:node) where there is none; the list of masters (redlatch:members) it only reads. It takes \
about a second, which the clocks need.

Each line says ok, note, warn or fail: a failure is a node of which no lock should be asked, a \
warning is what costs time or safety one day, a note is what a small set-up gives, and what would \
give more. What a managed server does not tell is a warning that says \
so.";

const EXAMPLES: &str = "\
Examples:
  redlatch doctor -s redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  redlatch doctor --json | jq '.checks[] | select(.level != \"ok\")'
  redlatch doctor --key-prefix lock:      for a user who may only touch keys like lock:...

Exit codes: 0 healthy, warnings or not; 1 a failure was found; 69 no quorum of nodes could answer; \
125 usage, configuration or internal error.";

/// Look whether these nodes are fit for locks
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub common: Common,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(run_checks(options), &options.common.output)
}

fn run_checks(options: &Options) -> Result<u8, Refusal> {
    let config = crate::nodes::config(&options.common.nodes, &options.common.timing)?;
    let settings = config.get_settings().clone();
    let patience = patience(&config);
    let examined = start(&config, patience)?;
    let encrypted: Vec<bool> = config.get_addresses().iter().map(Address::is_encrypted).collect();
    // Where no list of masters is, a client that checks lists writes its own, and clients with
    // another list are refused from then on. The list given to doctor may be the wrong one.
    let met = meeting::meet(config.check_members(false))?;
    let seen = gather(&examined, met.len(), patience);
    let how = Use {
        max_ttl: settings.max_ttl,
        node_timeout: settings.node_timeout,
        probe_interval: settings.probe_interval,
        restart_guard: settings.restart_guard != RestartGuard::Off,
        persistent: settings.restart_guard == RestartGuard::Persistent,
        marker: &settings.node_marker,
        replicas: settings.replicas,
        check_members: settings.checks_members(),
        now: clock::now(),
    };
    let nodes = settings.nodes.iter().zip(encrypted).zip(met).zip(seen);
    let subject = |(((node, encrypted), met), seen)| {
        let node: &redlatch::proto::NodeSettings = node;
        let user = node.user.as_deref().map(str::to_owned);
        Subject { label: node.label.to_string(), encrypted, user, met, seen }
    };
    let subjects: Vec<Subject> = nodes.map(subject).collect();
    let findings = checks::all(&subjects, &how);
    show(&subjects, &findings, &options.common.output)?;
    let failed = findings.iter().any(|finding| finding.level == Level::Fail);
    Ok(if checks::no_quorum_answered(&subjects) {
        exit::NO_QUORUM
    } else if failed {
        exit::NO
    } else {
        exit::DONE
    })
}

/// How long doctor waits for an answer: at least the connect timeout, even if the node timeout is
/// shorter. So a slow node is reported as slow, not as silent.
fn patience(config: &Config) -> Patience {
    let settings = config.get_settings();
    let each = settings.connect_timeout.max(settings.node_timeout);
    Patience { each, until: clock::now().saturating_add(each + EXAMINATION) }
}

type Examined = Receiver<(usize, Examination)>;

/// Starts the examination of each node on a thread of its own, so that a frozen node delays no
/// other.
fn start(config: &Config, patience: Patience) -> Result<Examined, Refusal> {
    let rng = StdRng::try_from_rng(&mut SysRng);
    let mut rng = rng.map_err(|error| Refusal::internal(format!("random numbers: {error}")))?;
    let settings = config.get_settings();
    let (prefix, waits) = (&settings.key_prefix, settings.replicas > 0);
    let (sender, receiver) = mpsc::channel();
    for (index, node) in settings.nodes.iter().enumerate() {
        // Each node gets another key, because two addresses may lead to one server.
        let [name, token, other] = [(); 3].map(|()| LockToken::random(&mut rng));
        let keys = Keys { key: format!("{prefix}redlatch-doctor:{name}"), token, other };
        let marker = settings.wanted_marker().map(str::to_owned);
        let parameters = Parameters { tls: tls(config), patience, keys, marker, waits };
        let (config, node, sender) = (config.clone(), node.clone(), sender.clone());
        thread::spawn(move || {
            // If the result comes too late, no receiver is left.
            let _ = sender.send((index, examine(server(&config, index), &node, &parameters)));
        });
    }
    Ok(receiver)
}

/// Waits for the examinations, for a limited time: a lookup of a name has no timeout of its own.
fn gather(examined: &Examined, count: usize, patience: Patience) -> Vec<Examination> {
    let unfinished = || {
        let words = "the examination did not end".to_owned();
        let trouble = Some(Trouble { cause: NodeError::Silent, words });
        Examination { trouble, ..Examination::default() }
    };
    let mut seen: Vec<Examination> = (0..count).map(|_| unfinished()).collect();
    let end = patience.until.saturating_add(patience.each);
    for _ in 0..count {
        match examined.recv_timeout(end.saturating_since(clock::now())) {
            Ok((index, examination)) => seen[index] = examination,
            Err(_) => break,
        }
    }
    seen
}

fn show(subjects: &[Subject], findings: &[Finding], how: &Output) -> Result<(), Refusal> {
    if how.json {
        let checks: Vec<_> = findings
            .iter()
            .map(|it| {
                let level = it.level.name();
                json!({ "name": it.name, "level": level, "node": it.node, "detail": it.detail })
            })
            .collect();
        let ok = findings.iter().all(|finding| finding.level != Level::Fail);
        return output::print(&json!({ "ok": ok, "checks": checks }).to_string());
    }
    if how.quiet {
        return Ok(());
    }
    let labels: Vec<&str> = subjects.iter().map(|subject| subject.label.as_str()).collect();
    output::print(table::text(&labels, findings, how.verbose).trim_end())
}
