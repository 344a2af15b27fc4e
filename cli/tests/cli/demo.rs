//! The demo as a user runs it: what it prints, how it ends, and that it leaves nothing.
//!
//! Each demo runs in a process group of its own, so that the test can find processes that it
//! leaves. The tests of `--real` need a redis-server, and count as tests on real servers, of which
//! only a few run at a time on a machine.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::support::signals::in_own_group;
use crate::support::{Folder, Server, ServerLock, drawing, eventually};
use rustix::process::{Pid, Signal, kill_process_group};

/// The demo should take ten seconds. The limit is longer because other tests may keep the machine
/// busy.
const LIMIT: Duration = Duration::from_secs(60);

/// What the screen shows with both kinds of masters, in this order.
const MILESTONES: [&str; 22] = [
    "One lock on five independent Redis masters",
    "quorum, 3 of 5",
    "1  Take it",
    "granted in",
    "invoice:42  1 alice     2 alice     3 alice     4 alice     5 alice",
    "takes 52.0 ms off",
    "2  Another client wants it",
    "held by another client: needed 3 of 5 for \"invoice:42\":",
    "3  One node freezes, one dies",
    "extend(5s)",
    "invoice:42  1 alice     2 alice     3 alice     4 frozen    5 dead",
    "4  Release it",
    "release()                    released in",
    "invoice:42  1 bob       2 bob       3 bob       4 frozen    5 dead",
    "5  A third freezes: no majority",
    "no quorum: needed 3 of 5 for \"invoice:43\":",
    "no answer in time",
    "not connected (Connection refused)",
    "invoice:43  1 free      2 free      3 frozen    4 frozen    5 dead",
    "6  They come back",
    "invoice:43  1 free      2 free      3 free      4 free      5 free",
    "keys        1 none      2 none      3 none      4 none      5 none",
];

/// A demo that runs.
struct Demo {
    child: Child,
}

/// A demo that has ended.
struct Ended {
    status: ExitStatus,
    screen: String,
    errors: String,
}

impl Demo {
    fn start(arguments: &[&str]) -> Demo {
        Demo::start_with(arguments, |_| {})
    }

    fn start_with(arguments: &[&str], adjust: impl FnOnce(&mut Command)) -> Demo {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
        in_own_group(command.arg("demo").args(arguments));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        adjust(&mut command);
        Demo { child: command.spawn().expect("the binary was built with this test") }
    }

    /// Starts a demo on real masters, and reads its output up to the first freeze.
    #[track_caller]
    fn with_a_frozen_node() -> Demo {
        let mut demo = Demo::start(&["--real"]);
        let screen = demo.child.stdout.take().expect("it is taken once");
        let mut lines = BufReader::new(screen).lines().map(|line| line.expect("text"));
        lines.find(|line| line.contains("SIGSTOP")).expect("a node is frozen");
        demo
    }

    /// Waits for the demo's end, and returns the signal that ended it. Checks that its servers end,
    /// also the frozen one.
    #[track_caller]
    fn signal_of_its_end(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(LIMIT, "the demo ends", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        eventually(LIMIT, "the servers end", || self.members().is_empty());
        assert_eq!(self.files(), [""; 0]);
        status.and_then(|status| status.signal())
    }

    /// Reads the first line that is not empty, and closes the pipe.
    fn read_one_line_and_leave(&mut self) -> String {
        let screen = self.child.stdout.take().expect("it is taken once");
        let mut lines = BufReader::new(screen).lines().map(|line| line.expect("text"));
        lines.find(|line| !line.is_empty()).expect("a line")
    }

    /// Waits for the demo's end, checks that it left no process, and returns its output (which fits
    /// into a pipe).
    #[track_caller]
    fn end(mut self) -> Ended {
        let mut status = None;
        eventually(LIMIT, "the demo ends", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        let left = self.members();
        assert!(left.is_empty(), "it left the processes {left:?}");
        assert_eq!(self.files(), [""; 0]);
        let mut ended = Ended {
            status: status.expect("the wait ends only with a status"),
            screen: String::new(),
            errors: String::new(),
        };
        if let Some(mut screen) = self.child.stdout.take() {
            screen.read_to_string(&mut ended.screen).expect("text");
        }
        let mut errors = self.child.stderr.take().expect("it is taken once");
        errors.read_to_string(&mut ended.errors).expect("text");
        ended
    }

    /// The demo's files in the directory for temporary files.
    fn files(&self) -> Vec<String> {
        let start = format!("redlatch-demo-{}-", self.child.id());
        let entries = std::fs::read_dir(std::env::temp_dir()).expect("there is such a place");
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(&start)).collect()
    }

    /// The processes in the demo's group: those that it started, and itself while it runs.
    fn members(&self) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").expect("Linux has /proc").flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter(|&number| group_of(number) == Some(self.child.id())).collect()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // The demo may hang, or have left processes. While the group has members, its number is not
        // another group's.
        if !self.members().is_empty() {
            let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            let _ = kill_process_group(group.expect("a child's id is positive"), Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Lets the demo find no program by its name.
fn without_programs(command: &mut Command) {
    command.env("PATH", "");
}

/// The process group of a process; `None` if the process is dead, also if it has not been reaped.
fn group_of(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The state, the parent and the group come after the name, which may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let lives = !matches!(fields.next()?, "Z" | "X");
    fields.nth(1)?.parse().ok().filter(|_| lives)
}

/// The text with a single space in place of each line break and other white space.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn assert_told(ended: &Ended) {
    let Ended { status, screen, errors } = ended;
    assert!(status.success(), "{status}: {errors}\n{screen}");
    assert_eq!(errors, "");
    let text = one_line(screen);
    let mut rest = text.as_str();
    for milestone in MILESTONES {
        let Some((_, after)) = rest.split_once(&one_line(milestone)) else {
            panic!("{milestone:?} is missing, or not in its place:\n{screen}");
        };
        rest = after;
    }
    assert!(!screen.contains('\x1b'), "no colours but on a terminal");
    let too_long = screen.lines().find(|line| line.chars().count() > 84);
    assert_eq!(too_long, None);
}

/// Checks that the picture has a lane for each node, with the tokens that it held, a row for each
/// client, and the steps of the screen with the same numbers and outcomes.
#[track_caller]
fn assert_drawn(folder: &Folder, ended: &Ended) {
    let svg = folder.read("demo.svg");
    let texts = drawing::texts(&svg);
    drawing::assert_legible(&svg);
    let count = |text: &str| texts.iter().filter(|it| *it == text).count();
    let lanes = ["node 1", "node 2", "node 3", "node 4", "node 5"];
    let states = ["alice has the lock", "bob has the lock", "back, empty"];
    for text in lanes.iter().chain(&states) {
        assert_eq!(count(text), 1, "{text}: {texts:?}");
    }
    // Two nodes are frozen and one is dead, and the legend of the colours adds one of each.
    assert_eq!((count("frozen"), count("dead"), count("goes on")), (3, 2, 2), "{texts:?}");
    assert_eq!(count("no majority: 2 of 5 run"), 1, "{texts:?}");
    let has = |start: &str| texts.iter().any(|text| text.starts_with(start));
    for asks in ["waits ", "extend hangs ", "invoice:43 refused in "] {
        assert!(has(asks), "{asks}: {texts:?}");
    }
    // Alice's tokens are in five lanes, and Bob's in three.
    assert!(count("alice") > 5 && count("bob") > 3, "{texts:?}");
    let screen = one_line(&ended.screen);
    let story = shown(&svg)["story"].as_array().cloned().unwrap_or_default();
    assert_eq!(story.len(), 7);
    for step in story {
        let (number, title) = (&step["step"], step["title"].as_str().expect("text"));
        assert!(screen.contains(&format!(" {number} {title} ")), "{title}: {screen}");
        assert!(count(title) == 1 && count(&number.to_string()) == 2, "{title}: {texts:?}");
    }
    let quoted: Vec<&String> = texts.iter().filter(|text| text.contains("): ")).collect();
    assert_eq!(quoted.len(), 9, "{texts:?}");
    for call in quoted {
        let said = call.replacen("): ", ") ", 1);
        assert!(screen.contains(&said), "{said}: {screen}");
    }
}

/// The story and the defaults in the metadata of a picture.
#[track_caller]
fn shown(svg: &str) -> serde_json::Value {
    // Without metadata this is an empty value.
    let metadata: serde_json::Value =
        serde_json::from_str(&drawing::metadata(svg)).unwrap_or_default();
    metadata["shows"].clone()
}

/// The words of a picture, without the figures of its run and without the axis.
#[track_caller]
fn words(svg: &str) -> Vec<String> {
    // Only some runs show a token that was refused or expired.
    let is_rare = |text: &String| ["refused", "expired"].contains(&text.as_str());
    let is_figure = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    let units = ["s", "ms", "\u{b5}s", "s.", "ms."];
    let texts = drawing::texts(svg).into_iter().filter(|text| !is_rare(text)).map(|text| {
        let words = text.split(' ').filter(|word| !is_figure(word) && !units.contains(word));
        words.collect::<Vec<_>>().join(" ")
    });
    let mut words: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    words.sort();
    words.dedup();
    words
}

/// Redraws the picture in docs/.
const REDRAW: &str = "cargo run --release -p redlatch-cli -- demo --svg docs/demo.svg";

#[test]
fn demo_svg_shows_what_happened_and_docs_have_no_older_one() {
    let folder = Folder::new();
    let ended = Demo::start_with(&["--svg", &folder.path("demo.svg")], without_programs).end();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.errors);
    assert_drawn(&folder, &ended);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/demo.svg");
    let old = std::fs::read_to_string(path).expect("README shows it");
    let new = folder.read("demo.svg");
    let why = format!("docs/demo.svg is older than what it shows. Redraw it: {REDRAW}");
    assert_eq!(shown(&old), shown(&new), "{why}");
    assert_eq!(words(&old), words(&new), "{why}");
}

#[test]
fn a_picture_that_cannot_be_written_is_reported_at_once() {
    let nowhere = std::env::temp_dir().join("redlatch-no-such-directory").join("it.svg");
    let ended = Demo::start(&["--svg", nowhere.to_str().expect("a path of letters")]).end();
    assert_eq!((ended.status.code(), ended.screen.as_str()), (Some(125), ""));
    assert!(ended.errors.contains("it.svg cannot be written"), "{}", ended.errors);
}

#[test]
fn demo_on_masters_inside_the_process_needs_nothing_installed() {
    let ended = Demo::start_with(&[], without_programs).end();
    assert_told(&ended);
    assert!(ended.screen.contains("masters inside this process"));
}

#[test]
fn demo_on_masters_inside_the_process_ends_when_its_reader_leaves() {
    let mut demo = Demo::start_with(&[], without_programs);
    assert!(demo.read_one_line_and_leave().contains("One lock"));
    let ended = demo.end();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.errors);
    assert_eq!(ended.errors, "");
}

#[test]
fn demo_on_real_masters_prints_the_same_story_and_leaves_nothing() {
    let _servers = ServerLock::take();
    let server = Server::examine("redis-server");
    let folder = Folder::new();
    let ended = Demo::start(&["--real", "--svg", &folder.path("demo.svg")]).end();
    assert_told(&ended);
    assert_drawn(&folder, &ended);
    let (major, minor) = server.version;
    assert!(ended.screen.contains(&format!("redis-server {major}.{minor}")));
}

#[test]
fn demo_on_real_masters_ends_when_its_reader_leaves() {
    let _servers = ServerLock::take();
    let mut demo = Demo::start(&["--real"]);
    assert!(demo.read_one_line_and_leave().contains("One lock"));
    let ended = demo.end();
    assert!(ended.status.success(), "{}: {}", ended.status, ended.errors);
    assert_eq!(ended.errors, "");
}

#[test]
fn demo_ends_its_real_masters_when_it_is_interrupted() {
    let _servers = ServerLock::take();
    let mut demo = Demo::with_a_frozen_node();
    let group = i32::try_from(demo.child.id()).ok().and_then(Pid::from_raw);
    // The whole group gets the signal, as from a terminal at ctrl-C.
    kill_process_group(group.expect("a child's id is positive"), Signal::INT).expect("it runs");
    assert_eq!(demo.signal_of_its_end(), Some(Signal::INT.as_raw()));
}

#[test]
fn demo_ends_its_real_masters_when_it_is_killed() {
    let _servers = ServerLock::take();
    let mut demo = Demo::with_a_frozen_node();
    // Only the demo itself is killed: no server gets this signal.
    demo.child.kill().expect("it runs");
    assert_eq!(demo.signal_of_its_end(), Some(Signal::KILL.as_raw()));
}

#[test]
fn demo_real_without_a_redis_server_says_how_to_install_one() {
    let ended = Demo::start_with(&["--real"], without_programs).end();
    assert_eq!(ended.status.code(), Some(125));
    assert_eq!(ended.screen, "");
    assert!(ended.errors.contains("apt-get install redis-server"), "{}", ended.errors);
    assert!(ended.errors.contains("leave --real away"), "{}", ended.errors);
    assert_eq!(ended.errors.lines().count(), 1);
}

#[test]
fn demo_usage_errors_exit_125() {
    for arguments in [&["--nonsense"][..], &["--real=no"], &["left", "over"]] {
        let ended = Demo::start(arguments).end();
        assert_eq!(ended.status.code(), Some(125), "{arguments:?}");
        assert!(ended.errors.contains("Usage"), "{}", ended.errors);
        assert_eq!(ended.screen, "");
    }
    let verbless = Command::new(env!("CARGO_BIN_EXE_redlatch")).output().expect("it starts");
    assert_eq!(verbless.status.code(), Some(125));
}

#[test]
fn help_of_the_demo_exits_0_even_with_a_closed_output() {
    let ended = Demo::start(&["--help"]).end();
    assert_eq!(ended.status.code(), Some(0));
    assert!(ended.screen.contains("--real"), "{}", ended.screen);
    let mut unread = Demo::start(&["--help"]);
    drop(unread.child.stdout.take());
    let ended = unread.end();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(ended.errors, "");
}
