//! Starts, signals, replaces and ends the client processes.
//!
//! A worker leads a process group, so a signal also reaches the wrappers that it started. The
//! hazard is a process number that the kernel has since given to another process. So a worker is
//! signalled only before it is reaped.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::checker::Source;
use super::support::{Dice, Fleet, Proxy};
use super::worker::Errand;
use super::{DURABLE, DURABLE_KEYS, VOLATILE, VOLATILE_KEYS, this_test};

/// Each worker: its kind, whether it uses the durable group, and whether it connects through
/// proxies.
const CREW: [(&str, bool, bool); 13] = [
    ("client", false, false),
    ("client", false, false),
    ("client", false, true),
    ("shared", false, false),
    ("shared", false, true),
    ("exec", false, false),
    ("exec", false, false),
    ("client", true, false),
    ("client", true, true),
    ("shared", true, false),
    ("plain", true, false),
    ("plain", true, true),
    ("exec", true, false),
];

/// A place in the crew, and the process that has this place now.
#[derive(Debug)]
pub struct Worker {
    name: String,
    kind: &'static str,
    errand: Errand,
    child: Child,
    /// How many processes have had this place before.
    replaced: usize,
    /// A proxy for each of the worker's nodes, if it connects through proxies.
    pub proxies: Vec<Proxy>,
}

/// All workers. Dropping this kills them.
#[derive(Debug)]
pub struct Workers {
    crew: Vec<Worker>,
    sources: Vec<Source>,
    folder: PathBuf,
    dice: Dice,
}

impl Workers {
    pub fn start(fleet: &Fleet, folder: &Path, dice: Dice) -> Workers {
        let mut workers = Workers::none(folder, dice);
        for (number, &(kind, durable, proxied)) in CREW.iter().enumerate() {
            let nodes = if durable { DURABLE } else { VOLATILE };
            let keys = if durable { DURABLE_KEYS } else { VOLATILE_KEYS };
            let proxies: Vec<Proxy> = match proxied {
                true => nodes.clone().map(|node| Proxy::start(fleet[node].address())).collect(),
                false => Vec::new(),
            };
            let urls = match proxied {
                true => proxies.iter().map(Proxy::url).collect(),
                false => nodes.map(|node| fleet[node].url()).collect(),
            };
            let group = if durable { "durable" } else { "volatile" };
            let name = format!("{number}-{kind}-{group}{}", if proxied { "-proxied" } else { "" });
            let errand = Errand { proxied, durable, ..Errand::new(kind, urls, keys.collect()) };
            workers.add(name, kind, errand, proxies);
        }
        workers
    }

    /// No workers yet.
    pub fn none(folder: &Path, dice: Dice) -> Workers {
        Workers { crew: Vec::new(), sources: Vec::new(), folder: folder.to_owned(), dice }
    }

    /// Starts one more worker.
    pub fn add(&mut self, name: String, kind: &'static str, errand: Errand, proxies: Vec<Proxy>) {
        let (child, errand) = self.spawn(&name, kind, 0, errand);
        self.crew.push(Worker { name, kind, errand, child, replaced: 0, proxies });
    }

    pub fn len(&self) -> usize {
        self.crew.len()
    }

    pub fn names(&self) -> Vec<String> {
        self.crew.iter().map(|worker| worker.name.clone()).collect()
    }

    /// The sheets of all processes, also of those that were replaced.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// All proxies, each as the number of its worker and of the node.
    pub fn proxies(&self) -> Vec<(usize, usize)> {
        let crew = self.crew.iter().enumerate();
        crew.flat_map(|(at, worker)| (0..worker.proxies.len()).map(move |node| (at, node)))
            .collect()
    }

    pub fn proxy(&self, (worker, node): (usize, usize)) -> &Proxy {
        &self.crew[worker].proxies[node]
    }

    pub fn stop(&self, at: usize) {
        self.signal(at, Signal::STOP);
    }

    pub fn cont(&self, at: usize) {
        self.signal(at, Signal::CONT);
    }

    /// Kills a worker with all that it started, and starts another one in its place.
    pub fn replace(&mut self, at: usize) {
        end(&mut self.crew[at].child);
        let Worker { name, kind, errand, replaced, .. } = &self.crew[at];
        let (name, kind, errand, replaced) = (name.clone(), *kind, errand.clone(), replaced + 1);
        let (child, errand) = self.spawn(&name, kind, replaced, errand);
        let worker = &mut self.crew[at];
        (worker.child, worker.errand, worker.replaced) = (child, errand, replaced);
    }

    /// Panics if a worker has ended by itself.
    #[track_caller]
    pub fn look_for_ended(&self) {
        for worker in &self.crew {
            // NOWAIT does not reap the process, so its number stays taken until the worker's handle
            // is dropped.
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let status = waitid(WaitId::Pid(group(&worker.child)), look);
            let status = status.expect("a child of ours can be waited for");
            assert!(status.is_none(), "{} ended by itself: {status:?}; see above", worker.name);
        }
    }

    pub fn kill_all(&mut self) {
        self.crew.drain(..).for_each(|mut worker| end(&mut worker.child));
    }

    fn spawn(
        &mut self,
        name: &str,
        kind: &'static str,
        replaced: usize,
        mut errand: Errand,
    ) -> (Child, Errand) {
        errand.sheet = self.folder.join(format!("{name}-{replaced}"));
        errand.seed = self.dice.any();
        let path = errand.sheet.clone();
        self.sources.push(Source { worker: name.to_owned(), kind, path });
        let mut words = this_test().into_iter();
        let mut command = Command::new(words.next().expect("it begins with the program"));
        command.args(words).envs(errand.environment()).process_group(0);
        // A worker writes its errors to the output of the test.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        (command.spawn().expect("a test binary can be started again"), errand)
    }

    fn signal(&self, at: usize, signal: Signal) {
        let group = group(&self.crew[at].child);
        kill_process_group(group, signal).expect("the leader was not waited for");
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn group(child: &Child) -> Pid {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.expect("a child's pid is positive")
}

fn end(child: &mut Child) {
    let _ = kill_process_group(group(child), Signal::KILL);
    let _ = child.wait();
}
