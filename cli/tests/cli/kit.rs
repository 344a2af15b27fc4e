//! `init --files`: the files with which masters are started, and that servers started from them are
//! fit for locks.
//!
//! Containers are not started here: the servers of this machine run with the same configuration and
//! the same ACL file. The hazard is a word in an ACL file that this server does not know, because
//! it then refuses the whole file: the test takes those words out, and no others.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::*;

/// What starts the masters, with the file that only this kit has.
const KITS: [(&str, &str); 3] = [
    ("systemd", "redlatch-redis.service"),
    ("compose", "compose.yaml"),
    ("kubernetes", "redis.yaml"),
];

/// The words of the ACL rule that not every server knows, from Redis 7.0 on.
const NOT_EVERYWHERE: [&str; 3] = ["+delifeq", "+delex", "+client|setinfo"];

/// What the tool needs besides the rule: `status`, `list` and `doctor`.
const OF_THE_TOOL: [&str; 3] = ["+getrange", "+scan", "+config|get"];

fn kit(folder: &Path, starter: &str, more: &[&str]) -> Ended {
    let folder = folder.to_str().expect("a plain path");
    run(tool(&["init", "--files", folder, "--for", starter]).args(more))
}

/// Makes a kit in a new folder of the test.
#[track_caller]
fn made(place: &Folder, starter: &str, more: &[&str]) -> PathBuf {
    let folder = place.join(starter);
    kit(&folder, starter, more).with_code(0);
    folder
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    entries.map(|it| it.expect("an entry").file_name().into_string().expect("a name")).collect()
}

/// The words of the rule for the user of an ACL file, without its name and its password.
fn words_of(acl: &str) -> Vec<&str> {
    let line = acl.lines().find_map(|line| line.strip_prefix("user locks on >"));
    line.expect("it has the user").split(' ').skip(1).collect()
}

#[test]
fn kit_has_its_files_and_only_the_owner_may_read_the_password() {
    let place = Folder::new();
    let mut passwords = BTreeSet::new();
    for (starter, own) in KITS {
        let folder = place.join(starter);
        let ended = kit(&folder, starter, &["--json"]).with_code(0);
        let names = ["README", "redis.conf", "users.acl", own, "redlatch.toml", "password"];
        let paths: Vec<_> = names.iter().map(|name| folder.join(name)).collect();
        assert_eq!(ended.json(), serde_json::json!({ "files": paths }), "{ended:?}");
        assert_eq!(names_in(&folder).len(), names.len());
        let explained = read(&folder.join("README")) + &read(&folder.join(own));
        assert!(names[1..].iter().all(|name| explained.contains(name)), "{explained}");
        let password = read(&folder.join("password"));
        assert_eq!((password.len(), password.ends_with('\n')), (41, true), "{password:?}");
        for (name, path) in names.iter().zip(&paths) {
            let mode = path.metadata().expect("it is there").permissions().mode() & 0o777;
            let is_secret = ["users.acl", "password"].contains(name);
            assert_eq!(mode & 0o077 == 0, is_secret, "{name}: {mode:o}");
            assert_eq!(read(path).contains(password.trim_end()), is_secret, "{name}");
        }
        passwords.insert(password);
    }
    assert_eq!(passwords.len(), KITS.len(), "each kit has a password of its own");
}

#[test]
fn kit_has_as_many_masters_as_were_asked_for() {
    let place = Folder::new();
    for (starter, own) in KITS {
        for masters in [1, 3, 5] {
            let folder = place.join(format!("{starter}-{masters}"));
            let ended = kit(&folder, starter, &["--nodes", &masters.to_string()]).with_code(0);
            assert_eq!(ended.out.lines().count(), 6, "{ended:?}");
            let toml = read(&folder.join("redlatch.toml"));
            assert_eq!(toml.matches("\"redis://locks@").count(), masters, "{toml}");
            let count = |text: &str| read(&folder.join(own)).matches(text).count();
            match starter {
                "compose" => assert_eq!(count("<<: *master"), masters),
                "kubernetes" => assert_eq!(count("kind: StatefulSet"), masters),
                _ => assert_eq!(count("[Service]"), 1, "each machine has the same unit"),
            }
        }
    }
}

#[test]
fn kit_writes_nothing_if_one_of_its_files_is_there() {
    let place = Folder::new();
    for (starter, own) in KITS {
        for name in ["password", own] {
            let folder = place.join(format!("{starter}-{name}"));
            std::fs::create_dir(&folder).expect("the place is ours");
            std::fs::write(folder.join(name), "mine").expect("the folder is ours");
            let ended = kit(&folder, starter, &[]).with_code(1);
            let there = format!(
                "{}: it is there already; nothing was written",
                folder.join(name).display()
            );
            assert!(ended.errors.contains(&there), "{ended:?}");
            assert_eq!(read(&folder.join(name)), "mine");
            assert_eq!(names_in(&folder).len(), 1);
        }
    }
    let folder = made(&place, "systemd", &["-q"]);
    let before = read(&folder.join("users.acl"));
    let again = kit(&folder, "systemd", &["--json"]).with_code(1).json();
    assert_eq!(again["error"], "exists", "{again}");
    assert_eq!(read(&folder.join("users.acl")), before);
    // A link that leads nowhere is not followed.
    let folder = place.join("link");
    std::fs::create_dir(&folder).expect("the place is ours");
    symlink(place.join("elsewhere"), folder.join("users.acl")).expect("the folder is ours");
    kit(&folder, "compose", &[]).with_code(1);
    assert_eq!(names_in(&folder).len(), 1);
    assert!(!place.join("elsewhere").exists());
}

#[test]
fn kit_needs_a_starter_and_an_odd_number_and_no_servers() {
    let place = Folder::new();
    let folder = place.join("kit");
    let folder = folder.to_str().expect("a plain path");
    let wrong: [&[&str]; 5] = [
        &["init", "--files", folder],
        &["init", "--for", "systemd"],
        &["init", "--files", folder, "--for", "docker"],
        &["init", "--files", folder, "--for", "systemd", "--nodes", "4"],
        &["init", "--files", folder, "--for", "systemd", "--yes"],
    ];
    for words in wrong {
        let ended = run(&mut tool(words)).with_code(125);
        assert!(ended.errors.starts_with("error: "), "{ended:?}");
    }
    // A file stands where the folder should be made.
    std::fs::write(folder, "mine").expect("the place is ours");
    let ended = run(&mut tool(&["init", "--files", folder, "--for", "systemd"])).with_code(125);
    assert!(ended.errors.contains("nothing was written"), "{ended:?}");
}

/// The words after `ACL SETUSER worker` in every rule of the page, and the further rights that its
/// text adds, without the password and what `resetkeys` repeats.
fn rule_of_the_docs() -> BTreeSet<String> {
    let page = include_str!("../../../docs/operations.md");
    // The last rule is the one for servers without scripts.
    let page = page.split("**Without scripts**").next().unwrap();
    let blocks = page.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let rules: Vec<_> = blocks.filter_map(|it| it.strip_prefix("ACL SETUSER worker ")).collect();
    assert_eq!(rules.len(), 3, "{rules:?}");
    let transaction = "+multi +incr +exec";
    assert!(page.contains(&format!("`{transaction}`")), "the page names {transaction}");
    let words = rules.iter().flat_map(|rule| rule.split_ascii_whitespace());
    let words = words.chain(transaction.split(' '));
    let other = |word: &&str| !["on", ">password", "resetkeys"].contains(word);
    words.filter(other).map(str::to_owned).collect()
}

#[test]
fn kit_acl_file_is_the_rule_of_the_docs() {
    let place = Folder::new();
    let rule = rule_of_the_docs();
    for (starter, left_out) in
        [("systemd", &NOT_EVERYWHERE[..]), ("compose", &["+delex"]), ("kubernetes", &["+delex"])]
    {
        let acl = read(&made(&place, starter, &[]).join("users.acl"));
        assert!(acl.starts_with("user default off\nuser locks on >"), "{acl}");
        let words: BTreeSet<String> = words_of(&acl).into_iter().map(str::to_owned).collect();
        let with_tool = rule.iter().cloned().chain(OF_THE_TOOL.map(str::to_owned));
        let expected: BTreeSet<String> =
            with_tool.filter(|word| !left_out.contains(&word.as_str())).collect();
        assert_eq!(words, expected, "{starter}");
        // The order counts for these: they take away what stands before them.
        let place = |word: &str| words_of(&acl).iter().position(|it| *it == word);
        assert!(place("-@all") < place("+set") && place("resetchannels") < place("&redlatch:*"));
    }
}

/// The ACL file without the words that the servers of this machine do not know.
fn acl_for_this_server(folder: &Path) -> PathBuf {
    let server = support::Server::get();
    let knows = |word: &str| match word {
        "+client|setinfo" => server.version >= (7, 2),
        "+delifeq" => server.valkey && server.version >= (9, 0),
        "+delex" => !server.valkey && server.version >= (8, 4),
        _ => true,
    };
    let acl = read(&folder.join("users.acl"));
    let unknown: Vec<&str> = NOT_EVERYWHERE.into_iter().filter(|word| !knows(word)).collect();
    let lines = acl.lines().map(|line| {
        let words: Vec<_> = line.split(' ').filter(|word| !unknown.contains(word)).collect();
        words.join(" ") + "\n"
    });
    let path = folder.join("known.acl");
    std::fs::write(&path, lines.collect::<String>()).expect("the folder is ours");
    path
}

/// Servers of the kit, a tool with its redlatch.toml, locks of every kind: `doctor` finds nothing.
#[test]
fn doctor_finds_nothing_on_servers_of_each_kit() {
    if support::Server::get().version < (7, 0) {
        return; // The files are for Redis 7.0 and later, as they say.
    }
    let place = Folder::new();
    for (starter, _) in KITS {
        let folder = made(&place, starter, &[]);
        let path = |name: &str| folder.join(name).display().to_string();
        let acl = acl_for_this_server(&folder).display().to_string();
        let arguments =
            || ["--include", &path("redis.conf"), "--aclfile", &acl].map(str::to_owned).into();
        let fleet = Fleet::each(3, |_, _| arguments());
        let urls: Vec<_> =
            fleet.iter().map(|it| format!("redis://locks@{}", it.address())).collect();
        let on = |words: &[&str]| {
            let (verb, rest) = words.split_first().expect("a verb");
            let mut command = tool(&[verb, "--node-timeout", "5s"]);
            command.args(rest).env("REDLATCH_CONFIG", path("redlatch.toml"));
            command.env("REDLATCH_SERVERS", urls.join(","));
            run(command.env("REDLATCH_PASSWORD_FILE", path("password")))
        };
        on(&["init", "--yes"]).with_code(0);
        let token = on(&["acquire", "-n", "--fenced", "first"]).with_code(0).out;
        let token = token.split(' ').next().expect("a token");
        on(&["exec", "-n", "--also", "other", "second", "true"]).with_code(0);
        assert!(on(&["list"]).with_code(0).out.contains("first"));
        on(&["status", "first"]).with_code(1);
        on(&["release", "first", token]).with_code(0);
        // They have to be as old as the quarantine of this max-ttl.
        std::thread::sleep(2 * SECOND);
        let short = ["doctor", "--json", "--max-ttl", "100ms"];
        let diagnosis = on(&short).with_code(0).json();
        for check in diagnosis["checks"].as_array().expect("a list") {
            let detail = check["detail"].as_str().expect("a text");
            let is_of_newer = NOT_EVERYWHERE.iter().any(|word| detail.ends_with(word));
            let is_busy =
                detail.contains("answers take too long") || detail.contains("come too late");
            assert!(check["level"] == "ok" || is_of_newer || is_busy, "{starter}: {check}");
        }
        // Nobody gets in without the password, and the user touches no other key.
        let mut stranger = fleet[0].client();
        let refused = format!("{:?}", stranger.command(&["GET", "lock:first"]).expect("an answer"));
        assert!(refused.contains("NOAUTH"), "{refused}");
        let password = read(&folder.join("password"));
        let known = stranger.command(&["AUTH", "locks", password.trim_end()]).expect("an answer");
        assert!(known.is_ok(), "{known:?}");
        for command in [&["SET", "other", "1"][..], &["FLUSHALL"], &["CONFIG", "SET", "save", ""]] {
            let refused = format!("{:?}", stranger.command(command).expect("an answer"));
            assert!(refused.contains("NOPERM"), "{command:?}: {refused}");
        }
    }
}

/// Runs a checker on a file of a kit.
#[track_caller]
fn checked(program: &str, arguments: &[&str], file: &Path) -> Ended {
    let mut command = Command::new(program);
    command.args(arguments).arg(file).stdin(Stdio::null());
    run(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

#[test]
#[ignore = "needs systemd-analyze: apt-get install systemd"]
fn kit_unit_is_valid_for_systemd() {
    let place = Folder::new();
    let unit = made(&place, "systemd", &[]).join("redlatch-redis.service");
    let ended = checked("systemd-analyze", &["verify"], &unit).with_code(0);
    assert!(!ended.errors.contains("redlatch-redis"), "{ended:?}");
}

#[test]
#[ignore = "needs docker-compose: apt-get install docker-compose"]
fn kit_compose_file_is_valid_for_docker_compose() {
    let place = Folder::new();
    for masters in ["1", "3"] {
        let folder = place.join(masters);
        kit(&folder, "compose", &["--nodes", masters]).with_code(0);
        let file = folder.join("compose.yaml").display().to_string();
        let ended = checked("docker-compose", &["-f", &file], Path::new("config")).with_code(0);
        let services = ended.out.matches("image: valkey/valkey:9").count();
        assert_eq!(services.to_string(), masters, "{ended:?}");
    }
}

#[test]
#[ignore = "needs kubernetes-validate: pip install kubernetes-validate"]
fn kit_manifest_is_valid_for_kubernetes() {
    let place = Folder::new();
    for masters in ["1", "3"] {
        let folder = place.join(masters);
        kit(&folder, "kubernetes", &["--nodes", masters]).with_code(0);
        let ended = checked("kubernetes-validate", &["--strict"], &folder.join("redis.yaml"));
        let said = ended.with_code(0);
        let passed = format!("{}{}", said.out, said.errors).matches(" passed ").count();
        assert_eq!(passed, 1 + 2 * masters.parse::<usize>().expect("a number"), "{said:?}");
    }
}
