//! `redlatch members change`, `replace`, `resume` and `undo`: asks the servers what a
//! [`Change`] wants to know, writes what it wants to write, and prints how far it is.
//!
//! The tool keeps nothing in memory that a later run needs, so it may be stopped at any moment. The
//! hazard is an answer that is taken for another one: so each request has a connection of its own.

use std::time::Duration;

use mio::{Events, Poll, Token};
use redlatch::clock::Instant;
use redlatch::proto::change::{Change, Event, Goal, Next, Place, Request};
use redlatch::proto::{ID_DIGITS, MEMBERS, MembersState, Membership, command};
use redlatch::{Address, Config, NodeError, NodeId, NodeState, RestartGuard, clock, majority};
use serde_json::json;
use signal_hook_mio::v1_0::Signals;

use super::lists::plain;
use super::{Action, Options, member, words};
use crate::arguments::Nodes;
use crate::connection::{Answer, Connection, Patience, Trouble, tls};
use crate::event_loop::{self, EventLoop};
use crate::exit;
use crate::output::{self, Refusal};
use crate::signals;

/// How long a server may take for one request, besides the longest waits for its answers.
const ONE_REQUEST: Duration = Duration::from_secs(10);

/// For how long the tool may wait for a node before it checks again whether a signal came.
const ONE_LOOK: Duration = Duration::from_millis(200);

/// The poller's token of the signals.
const SIGNALS: Token = Token(0);

/// The answer of the server at a place in the list of URLs.
type Said = Result<Answer, Trouble>;

/// The servers, and what the tool does with them.
struct Tool<'a> {
    options: &'a Options,
    /// The URLs as they were given.
    urls: Vec<String>,
    config: Config,
    change: Change,
    /// The next list is decided, and it is not known yet that all clients count by it.
    has_decided: bool,
    ending: Ending,
}

/// Waits that a signal ends.
struct Ending {
    poll: Poll,
    events: Events,
    signals: Signals,
}

impl Ending {
    fn new() -> Result<Ending, Refusal> {
        let failed = |error| Refusal::internal(format!("poller: {error}"));
        let poll = Poll::new().map_err(failed)?;
        let signals = signals::listen(poll.registry(), SIGNALS, &signals::ENDING)?;
        Ok(Ending { poll, events: Events::with_capacity(4), signals })
    }

    /// Waits until this moment. A signal ends the tool, whose step another run takes up.
    fn wait(&mut self, until: Instant) -> Result<(), Refusal> {
        loop {
            if let Some(signal) = self.signals.pending().next() {
                let message = "members: ended by a signal; run it again, or redlatch members \
                               resume: both take up a step that was begun";
                let code = exit::by_signal(signal);
                return Err(Refusal { word: "signal", code, ..Refusal::config(message) });
            }
            let left = until.saturating_since(clock::now());
            if left.is_zero() {
                return Ok(());
            }
            match self.poll.poll(&mut self.events, Some(left)) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(Refusal::internal(format!("poller: {error}")));
                }
                _ => {}
            }
        }
    }
}

/// Runs the action to its end.
pub fn run(options: &Options, action: Action) -> Result<u8, Refusal> {
    let named = match action {
        Action::Change => urls(&options.to),
        Action::Replace => options.pair.clone(),
        Action::Resume | Action::Undo => Vec::new(),
    };
    check_usage(options, action, &named)?;
    let mut all = urls(&options.common.nodes.servers);
    let known = if all.is_empty() { Vec::new() } else { labels(&config(options, all.clone())?) };
    let named_labels =
        if named.is_empty() { Vec::new() } else { labels(&config(options, named.clone())?) };
    let new = named.iter().zip(&named_labels).filter(|(_, label)| !known.contains(label));
    all.extend(new.map(|(url, _)| url.clone()));
    let config = config(options, all.clone())?;
    let labels = labels(&config);
    let index = |label: &String| {
        labels.iter().position(|it| it == label).expect("all servers are in the union")
    };
    let named: Vec<usize> = named_labels.iter().map(index).collect();
    let goal = match action {
        Action::Change => Goal::To(named),
        Action::Replace => replaced(&config, &labels, named[0], named[1])?,
        Action::Resume => Goal::Resume,
        Action::Undo => Goal::Undo,
    };
    let run_ids = at_each(&config, (0..labels.len()).collect(), run_id);
    let place = |(label, run_id): (&String, Result<_, Trouble>)| Place {
        address: label.as_str().into(),
        run_id: run_id.ok().flatten(),
    };
    let places = labels.iter().zip(run_ids).map(place).collect();
    let wait = Change::wait_of(options.common.timing.max_ttl);
    let change = Change::new(places, goal, wait, random()?);
    let ending = Ending::new()?;
    Tool { options, urls: all, config, change, has_decided: false, ending }.finish(&labels)
}

fn check_usage(options: &Options, action: Action, named: &[String]) -> Result<(), Refusal> {
    let message = match action {
        Action::Change if named.is_empty() => "change: no servers are wanted; give --to URLS",
        Action::Replace if named.len() != 2 => {
            "replace: give two servers, the one that leaves and the one that takes its place"
        }
        Action::Change | Action::Resume | Action::Undo if !options.pair.is_empty() => {
            "only replace takes servers as arguments; give -s URL, or --to URLS"
        }
        Action::Replace | Action::Resume | Action::Undo if !options.to.is_empty() => {
            "only change takes --to"
        }
        _ => return Ok(()),
    };
    Err(Refusal::config(format!("members {message}")))
}

fn urls(given: &[String]) -> Vec<String> {
    let each = given.iter().flat_map(|given| Address::split_list(given));
    each.map(str::to_owned).collect()
}

/// The configuration of a client of just these servers.
fn config(options: &Options, servers: Vec<String>) -> Result<Config, Refusal> {
    let nodes = Nodes { servers, ..options.common.nodes.clone() };
    crate::nodes::config(&nodes, &options.common.timing)
}

fn labels(config: &Config) -> Vec<String> {
    config.get_settings().nodes.iter().map(|node| node.label.to_string()).collect()
}

fn random() -> Result<u64, Refusal> {
    use rand::TryRng;

    let drawn = rand::rngs::SysRng.try_next_u64();
    drawn.map_err(|error| Refusal::internal(format!("random numbers: {error}")))
}

/// The goal of a replacement: the present list, with one server in the place of another.
fn replaced(config: &Config, labels: &[String], old: usize, new: usize) -> Result<Goal, Refusal> {
    let read = at_each(config, (0..labels.len()).collect(), read);
    let states: Vec<Option<MembersState>> = read.iter().map(state).collect();
    let listed = |place: usize| states[place].as_ref().and_then(MembersState::listed);
    let latest = (0..labels.len()).filter_map(listed).max_by_key(|it| it.list.epoch());
    let Some(latest) = latest else {
        return Err(words::refusal(&redlatch::proto::change::Failure::NoList, labels, false));
    };
    let mut wanted = Vec::new();
    for member in latest.list.members() {
        let has_id = |place: &usize| listed(*place).is_some_and(|it| it.id == member.id);
        let has_address = |place: &usize| *labels[*place] == *member.address;
        let places = || 0..labels.len();
        let place = places().find(has_id).or_else(|| places().find(has_address));
        let Some(place) = place else {
            let address = plain(&member.address);
            let message = format!("members: {address} is in the list; name it with -s, too");
            return Err(Refusal::config(message));
        };
        wanted.push(place);
    }
    if wanted.contains(&new) && !wanted.contains(&old) {
        // An earlier run has done it.
        return Ok(Goal::To(wanted));
    }
    match wanted.iter().position(|&place| place == old) {
        Some(_) if wanted.contains(&new) => {
            // An earlier run has added the new server.
            wanted.retain(|&place| place != old);
        }
        Some(at) => wanted[at] = new,
        None => {
            let message = format!("members replace: {} is not in the list", labels[old]);
            return Err(Refusal::config(message));
        }
    }
    Ok(Goal::To(wanted))
}

/// Does something at each of these places at the same time, so that a frozen one delays no other.
fn at_each<T: At + Send, R: Send>(
    config: &Config,
    work: Vec<T>,
    act: impl Fn(&mut Connection, T) -> Result<R, Trouble> + Sync,
) -> Vec<Result<R, Trouble>> {
    let settings = config.get_settings();
    let each = settings.connect_timeout.max(settings.node_timeout);
    let until = clock::now().saturating_add(each + ONE_REQUEST);
    let (tls, patience) = (tls(config), Patience { each, until });
    std::thread::scope(|scope| {
        let start = |work: T| {
            let (tls, act) = (tls.as_ref(), &act);
            scope.spawn(move || {
                let mut connection = Connection::to_node(config, work.place(), tls, patience)?;
                act(&mut connection, work)
            })
        };
        let threads: Vec<_> = work.into_iter().map(start).collect();
        threads.into_iter().map(|it| it.join().expect("a request does not panic")).collect()
    })
}

/// Work at one of the servers, which `place` names by its index in the list of URLs.
trait At {
    fn place(&self) -> usize;
}

impl At for usize {
    fn place(&self) -> usize {
        *self
    }
}

impl At for Request {
    fn place(&self) -> usize {
        self.place
    }
}

fn run_id(connection: &mut Connection, _: usize) -> Result<Option<[u8; ID_DIGITS]>, Trouble> {
    let Answer::Text(info) = connection.ask(&[b"INFO", b"server"])? else { return Ok(None) };
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok(run_id.and_then(|text| text.trim_end().as_bytes().try_into().ok()))
}

fn read(connection: &mut Connection, _: usize) -> Said {
    connection.ask(&[b"GET", MEMBERS.as_bytes()])
}

/// Reads or writes, as the change wants it.
fn ask(connection: &mut Connection, request: Request) -> Said {
    let Some(write) = request.write else {
        return connection.ask(&[b"GET", MEMBERS.as_bytes()]);
    };
    let expected = write.expected.as_ref().map_or(String::new(), Membership::text);
    let (script, key, new) = (command::MEMBERS.as_bytes(), MEMBERS.as_bytes(), write.new.text());
    let (expected, new) = (expected.as_bytes(), new.as_bytes());
    let said = connection.ask(&[b"EVAL", script, b"1", key, expected, new])?;
    if !said.refuses_scripts() {
        return Ok(said);
    }
    let written = match expected {
        b"" => connection.ask(&[b"SET", key, new, b"NX"])?,
        _ => connection.ask(&[b"SET", key, new, b"IFEQ", expected])?,
    };
    match written {
        Answer::Error(_) => Ok(written),
        _ => connection.ask(&[b"GET", key]),
    }
}

/// The list that the answer shows; `None` if the server could not be asked, or could not answer
/// now.
fn state(said: &Said) -> Option<MembersState> {
    match said {
        Ok(Answer::Text(text)) if text.is_empty() => Some(MembersState::Blank),
        Ok(Answer::Text(text)) => Some(MembersState::read(text.as_bytes())),
        Ok(Answer::Nothing) => Some(MembersState::Blank),
        Ok(answer @ Answer::Error(_)) => {
            let lasting = [NodeError::WrongType, NodeError::NoPermission];
            let is_lasting = answer.cause().is_some_and(|cause| lasting.contains(&cause));
            is_lasting.then_some(MembersState::Unavailable)
        }
        _ => None,
    }
}

impl Tool<'_> {
    fn finish(mut self, labels: &[String]) -> Result<u8, Refusal> {
        loop {
            let next = self.change.next(clock::now());
            for event in self.change.take_events() {
                match event {
                    Event::Decided(_) => self.has_decided = true,
                    Event::Agreed(_) => self.has_decided = false,
                    Event::Told { .. } => {}
                }
                let wait = Change::wait_of(self.options.common.timing.max_ttl);
                words::event(&event, labels, wait).map_or(Ok(()), |line| self.print(&line))?;
            }
            match next {
                Next::Ask(requests) => {
                    let places: Vec<usize> = requests.iter().map(At::place).collect();
                    let answers = at_each(&self.config, requests, ask);
                    for (place, said) in places.into_iter().zip(answers) {
                        self.change.answered(place, state(&said));
                    }
                }
                Next::Quarantine(place) => {
                    self.wait_for_trust(place, &labels[place])?;
                    self.change.trusted(place);
                }
                Next::Wait(until) => self.ending.wait(until)?,
                Next::Pause(pause) => self.ending.wait(clock::now().saturating_add(pause))?,
                Next::Done(list) => {
                    let count = list.members().len();
                    let members = list.members().iter().map(member).collect::<Vec<_>>();
                    if self.options.common.output.json {
                        let object =
                            json!({ "outcome": "done", "epoch": list.epoch(), "members": members });
                        output::print(&object.to_string())?;
                    } else {
                        let quorum = majority(count);
                        let list = words::list(&list);
                        self.print(&format!("{list}  done; quorum {quorum} of {count}"))?;
                    }
                    return Ok(exit::DONE);
                }
                Next::Failed(failure) => {
                    return Err(words::refusal(&failure, labels, self.has_decided));
                }
            }
        }
    }

    fn print(&self, line: &str) -> Result<(), Refusal> {
        let how = &self.options.common.output;
        if how.json || how.quiet { Ok(()) } else { output::print(line) }
    }

    /// Waits until the restart guard of a client of just this server trusts it. The client writes
    /// the node marker, if there is none.
    fn wait_for_trust(&mut self, place: usize, label: &str) -> Result<(), Refusal> {
        let mut config = config(self.options, vec![self.urls[place].clone()])?.check_members(false);
        if self.options.common.timing.no_restart_guard {
            config = config.restart_guard(RestartGuard::On);
        }
        let limit = self.options.common.timing.no_quorum_wait;
        let mut event_loop = EventLoop::new(config)?;
        event_loop.gather(event_loop::Patience::Thorough, |_| false)?;
        let (mut seen, mut is_printed) = (clock::now(), false);
        loop {
            match event_loop.engine.coordinator().node_state(NodeId::new(0)) {
                NodeState::Ready => return Ok(()),
                NodeState::Quarantined(until) => {
                    seen = clock::now();
                    if !is_printed {
                        let left = until.saturating_since(seen).as_secs_f64();
                        let learner = format!("learner {}", plain(label));
                        self.print(&format!("{learner}  out of quarantine in {left:.1} s"))?;
                        is_printed = true;
                    }
                }
                _ if clock::now().saturating_since(seen) > limit => {
                    let message = format!("members: {label} could not be used for {limit:?}");
                    let code = exit::NO_QUORUM;
                    return Err(Refusal { word: "no_quorum", code, ..Refusal::config(message) });
                }
                _ => {}
            }
            event_loop.turn(Some(clock::now().saturating_add(ONE_LOOK)))?;
            self.ending.wait(clock::now())?;
        }
    }
}
