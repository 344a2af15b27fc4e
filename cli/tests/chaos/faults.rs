//! The faults, which are drawn from a seed. Several go on at the same time, and each has its own
//! end.
//!
//! The hazard is a fault that never ends. So a list has the moment of each end, and `end_all` ends
//! the faults that are left.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::support::{Cut, Dice, Fleet, Way, millis};
use super::workers::Workers;
use super::{DURABLE, VOLATILE};

/// How many of the last faults are printed if two holders were found.
const LINES: usize = 40;

pub struct Faults<'a> {
    fleet: &'a Fleet,
    pub workers: Workers,
    dice: Dice,
    start: Instant,
    next: Instant,
    /// The present faults, and when they end.
    open: Vec<(Instant, Target, End)>,
    busy: BTreeSet<Target>,
    pub counts: BTreeMap<String, u64>,
    pub longest_quiet: Duration,
    lines: VecDeque<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Node(usize),
    Worker(usize),
    /// The connection between a worker and one of its nodes, by their numbers.
    Link(usize, usize),
}

#[derive(Debug, Clone, Copy)]
enum End {
    ContinueNode,
    StartNode,
    ContinueWorker,
    HealLink,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    StopNode,
    StopMajority,
    RestartNode,
    KillNode,
    RestartMajority,
    StopWorker,
    KillWorker,
    DelayLink,
    DelayClient,
    HoldLink,
    CutLink,
    Partition,
}

const WEIGHTS: [(u64, Fault); 12] = [
    (20, Fault::StopNode),
    (4, Fault::StopMajority),
    (12, Fault::RestartNode),
    (8, Fault::KillNode),
    (5, Fault::RestartMajority),
    (22, Fault::StopWorker),
    (8, Fault::KillWorker),
    (6, Fault::DelayLink),
    (8, Fault::DelayClient),
    (6, Fault::HoldLink),
    (10, Fault::CutLink),
    (3, Fault::Partition),
];

impl<'a> Faults<'a> {
    pub fn new(fleet: &'a Fleet, workers: Workers, dice: Dice) -> Faults<'a> {
        let now = Instant::now();
        Faults {
            fleet,
            workers,
            dice,
            start: now,
            next: now,
            open: Vec::new(),
            busy: BTreeSet::new(),
            counts: BTreeMap::new(),
            longest_quiet: Duration::ZERO,
            lines: VecDeque::new(),
        }
    }

    /// Ends the faults whose time is over, and begins one if it is due.
    pub fn turn(&mut self) {
        let now = Instant::now();
        let (over, open) = self.open.drain(..).partition(|(until, ..)| *until <= now);
        self.open = open;
        self.end(over);
        if now >= self.next {
            self.next = now + millis(self.dice.between(50, 500));
            let fault = self.dice.weighted(&WEIGHTS);
            self.begin(fault);
        }
    }

    /// Ends all present faults.
    pub fn end_all(&mut self) {
        let over = std::mem::take(&mut self.open);
        self.end(over);
    }

    /// The last faults, each with the moment of its beginning.
    pub fn last_lines(&self) -> String {
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        lines.join("\n")
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::StopNode => {
                if let Some(node) = self.free_node() {
                    let length = self.dice.between(20, 1500);
                    self.stop_nodes(&[node], length, "server stopped");
                }
            }
            Fault::StopMajority => {
                let nodes = self.group();
                let most = nodes.len() / 2 + 1;
                let length = self.dice.between(20, 2500);
                if self.are_free(&nodes) {
                    self.stop_nodes(&nodes[..most], length, "majority of servers stopped");
                }
            }
            Fault::RestartNode => {
                if let Some(node) = self.free_node() {
                    self.note(&format!("server restarted {}", kept(node)), node);
                    self.fleet[node].restart();
                }
            }
            Fault::KillNode => {
                if let Some(node) = self.free_node() {
                    self.note(&format!("server away, then restarted {}", kept(node)), node);
                    self.fleet[node].kill();
                    let length = self.dice.between(50, 2500);
                    self.goes_on(Target::Node(node), length, End::StartNode);
                }
            }
            Fault::RestartMajority => {
                let mut nodes = self.group();
                let most = nodes.len() / 2 + 1;
                nodes.retain(|&node| self.are_free(&[node]));
                if nodes.len() >= most {
                    // Restarts a majority, and sometimes more nodes.
                    nodes.truncate(most + self.dice.place(nodes.len() - most + 1));
                    let name = format!("majority of servers restarted {}", kept(nodes[0]));
                    self.note(&name, &nodes);
                    nodes.iter().for_each(|&node| self.fleet[node].kill());
                    nodes.iter().for_each(|&node| self.fleet[node].restart());
                }
            }
            Fault::StopWorker | Fault::KillWorker => self.disturb_worker(fault),
            Fault::DelayLink
            | Fault::DelayClient
            | Fault::HoldLink
            | Fault::CutLink
            | Fault::Partition => {
                self.disturb_link(fault);
            }
        }
    }

    fn disturb_worker(&mut self, fault: Fault) {
        let at = self.dice.place(self.workers.len());
        if self.busy.contains(&Target::Worker(at)) {
            return;
        }
        if matches!(fault, Fault::KillWorker) {
            self.note("client killed and replaced", at);
            self.workers.replace(at);
            return;
        }
        // A third of the stops are longer than the longest ttl.
        let past = self.dice.chance(333);
        let length = if past { self.dice.between(2000, 4000) } else { self.dice.between(20, 2000) };
        self.note(if past { "client stopped past its ttl" } else { "client stopped" }, at);
        self.workers.stop(at);
        self.goes_on(Target::Worker(at), length, End::ContinueWorker);
    }

    fn disturb_link(&mut self, fault: Fault) {
        let links = self.workers.proxies();
        let first = self.dice.one_of(&links);
        let whole_client = matches!(fault, Fault::Partition | Fault::DelayClient);
        let chosen = links.into_iter().filter(|&link| match whole_client {
            // All links of one client.
            true => link.0 == first.0,
            false => link == first,
        });
        let length = self.dice.between(50, 3000);
        let delay = millis(self.dice.between(1, 400));
        let cut = self.dice.one_of(&[Cut::Fin, Cut::Reset]);
        let name = match fault {
            Fault::DelayLink => "link delayed",
            Fault::DelayClient => "all links of a client delayed",
            Fault::HoldLink => "link held",
            Fault::CutLink => "link cut",
            _ => "client parted from all servers",
        };
        self.note(name, first);
        for link in chosen {
            let target = Target::Link(link.0, link.1);
            let proxy = self.workers.proxy(link);
            match fault {
                Fault::CutLink => proxy.cut(cut),
                _ if self.busy.contains(&target) => {}
                Fault::DelayLink | Fault::DelayClient => {
                    proxy.delay(Way::ToNode, delay / 4);
                    proxy.delay(Way::ToClient, delay);
                    self.goes_on(target, length, End::HealLink);
                }
                _ => {
                    proxy.hold();
                    self.goes_on(target, length, End::HealLink);
                }
            }
        }
    }

    fn stop_nodes(&mut self, nodes: &[usize], length: u64, name: &str) {
        self.note(name, nodes);
        for &node in nodes {
            self.fleet[node].stop();
            self.goes_on(Target::Node(node), length, End::ContinueNode);
        }
    }

    fn goes_on(&mut self, target: Target, length: u64, end: End) {
        self.busy.insert(target);
        self.open.push((Instant::now() + millis(length), target, end));
    }

    fn end(&mut self, over: Vec<(Instant, Target, End)>) {
        for (_, target, end) in over {
            self.busy.remove(&target);
            match (target, end) {
                (Target::Node(node), End::ContinueNode) => self.fleet[node].cont(),
                (Target::Node(node), _) => self.fleet[node].restart(),
                (Target::Worker(at), _) => self.workers.cont(at),
                (Target::Link(worker, node), _) => {
                    let proxy = self.workers.proxy((worker, node));
                    proxy.delay(Way::ToNode, Duration::ZERO);
                    proxy.delay(Way::ToClient, Duration::ZERO);
                    proxy.heal();
                }
            }
        }
    }

    /// A random server; `None` if it has a fault now.
    fn free_node(&mut self) -> Option<usize> {
        let node = self.dice.place(DURABLE.end);
        self.are_free(&[node]).then_some(node)
    }

    /// The servers of a random group, in random order.
    fn group(&mut self) -> Vec<usize> {
        let group = if self.dice.chance(500) { VOLATILE } else { DURABLE };
        let mut nodes: Vec<usize> = group.collect();
        self.dice.shuffle(&mut nodes);
        nodes
    }

    fn are_free(&self, nodes: &[usize]) -> bool {
        nodes.iter().all(|&node| !self.busy.contains(&Target::Node(node)))
    }

    fn note(&mut self, name: &str, target: impl std::fmt::Debug) {
        *self.counts.entry(name.to_owned()).or_default() += 1;
        let at = self.start.elapsed().as_secs_f64();
        self.lines.push_back(format!("{at:9.3} s: {name}: {target:?}"));
        if self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }
}

/// In words, whether the server with this number keeps its keys over a restart.
fn kept(node: usize) -> &'static str {
    if DURABLE.contains(&node) { "with its keys" } else { "empty" }
}
