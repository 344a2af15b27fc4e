//! What our user may do on a node, as the trials showed, and what follows if it may not.

use redlatch::NodeError;

use super::{Finding, Level, Subject};
use crate::connection::Answer;
use crate::doctor::trial::{self, FENCING, Outcome, REPLACE, Trial};

/// A command of the library, and what does not work if the node refuses it.
struct Need {
    command: &'static str,
    /// The ACL rule that permits the command.
    rule: &'static str,
    level: Level,
    effect: &'static str,
}

const fn need(command: &'static str, rule: &'static str, effect: &'static str) -> Need {
    Need { command, rule, level: Level::Fail, effect }
}

const fn wish(command: &'static str, rule: &'static str, effect: &'static str) -> Need {
    Need { command, rule, level: Level::Warn, effect }
}

/// What follows if the node refuses a command for waiting in line.
const LINE: &str = "nobody can wait in line there";

/// The commands that are not needed where the server's own commands take the place of scripts.
const OF_SCRIPTS: [&str; 5] = ["EVAL", "EVALSHA", "SCRIPT LOAD", "PTTL", "PEXPIRE"];

/// The trials that use the key of a line.
const OF_LINE: [&str; 6] = [trial::LINE, "ZADD", "ZRANK", "ZSCORE", "ZRANGE", "ZREM"];

/// The commands of the library, the most important first.
const NEEDS: [Need; 28] = [
    need("SET", "+set", "no lock can be had"),
    need("SELECT", "+select", "the database of the URL cannot be reached, so it is not asked"),
    need("EVAL", "+eval", "nothing can be released, so it is not asked"),
    need("GET", "+get", "no lock can be extended, and releases are unconfirmed"),
    need("PTTL", "+pttl", "no lock can be extended"),
    need("PEXPIRE", "+pexpire", "no lock can be extended"),
    need("WAIT", "+wait", "no grant is confirmed by replicas, so none counts"),
    need("DEL", "+del", "a released key stays for its ttl"),
    wish("EVALSHA", "+evalsha", "scripts are sent by their source each time"),
    wish("SCRIPT LOAD", "+script|load", "scripts are sent by their source at first"),
    wish("INFO", "+info", "each new client ignores its grants for max-ttl"),
    wish(
        "TIME",
        "+time",
        "a jump of its clock goes unnoticed, and it gives no vote for a fencing number",
    ),
    wish("EXISTS", "+exists", "a release cannot distinguish a missing key from another client's"),
    wish("GETRANGE", "+getrange", "status does not see who holds a lock there"),
    wish("COMMAND INFO", "+command|info", "its own compare-and-delete is not found"),
    wish("DELIFEQ", "+delifeq", "the script releases instead"),
    wish("DELEX", "+delex", "the script releases instead"),
    wish("CLIENT KILL", "+client|kill", "a pending release of a lost connection is sent twice"),
    wish("ZADD", "+zadd", LINE),
    wish("ZRANK", "+zrank", LINE),
    wish("ZSCORE", "+zscore", LINE),
    wish("ZRANGE", "+zrange", LINE),
    wish("ZREM", "+zrem", LINE),
    wish("SUBSCRIBE", "+subscribe &redlatch:*", "a waiter in line polls, and is slower"),
    wish("PUBLISH", "+publish &redlatch:*", "a waiter in line polls, and is slower"),
    wish(
        "PUBSUB NUMSUB",
        "+pubsub|numsub",
        "a dead waiter in line is not skipped while a program listens to all channels",
    ),
    wish("CLIENT SETNAME", "+client|setname", "the client has no name in CLIENT LIST"),
    wish("CLIENT SETINFO", "+client|setinfo", "CLIENT LIST does not show the client's version"),
];

/// All checks of rights; none if nothing was tried.
pub fn checks(subject: &Subject) -> Vec<Finding> {
    let trials = &subject.seen.trials;
    if trials.is_empty() {
        return Vec::new();
    }
    let mut rights = permissions(trials);
    let complete = rights.iter().all(|finding| finding.level == Level::Ok);
    let complete = complete && without_scripts(trials).is_none();
    rights.extend(writes(trials, complete));
    rights.extend(tracking(subject));
    rights.push(release(trials));
    rights.extend(scripts(trials));
    rights.extend(fencing(trials));
    rights
}

fn permissions(trials: &[Trial]) -> Vec<Finding> {
    const NAME: &str = "permissions";
    let refused_key_of = |commands: &[&str]| {
        trials.iter().filter(|it| commands.contains(&it.command)).find_map(refused_key)
    };
    if let Some(line) = refused_key_of(&["SET"]) {
        return vec![Finding::fail(
            NAME,
            format!(
                "the user may not touch the key that was tried ({line}): try --key-prefix with \
                 what the names of your locks begin with"
            ),
        )];
    }
    let mut missing: Vec<Finding> = NEEDS
        .iter()
        .filter_map(|need| {
            let trial = trials.iter().find(|trial| trial.command == need.command)?;
            if OF_SCRIPTS.contains(&need.command) && without_scripts(trials).is_some() {
                return None;
            }
            if OF_LINE.contains(&need.command) && refused_key(trial).is_some() {
                return None;
            }
            let line = refusal(trial, trials)?;
            let (command, rule) = (need.command, need.rule);
            let (level, effect) = severity(need, trials);
            Some(Finding::new(
                NAME,
                level,
                format!("{command} is refused ({line}): {effect}. ACL rule: {rule}"),
            ))
        })
        .collect();
    missing.extend(refused_key_of(&OF_LINE).map(|line| {
        Finding::warn(
            NAME,
            format!(
                "the key of a line is refused ({line}): {LINE}. ACL rule: a pattern for \
                 redlatch:line:{{KEY}}, such as ~redlatch:line:{{lock:*"
            ),
        )
    }));
    if missing.is_empty() {
        let tried = trials.len();
        return vec![Finding::ok(NAME, format!("all {tried} commands of the library were tried"))];
    }
    missing
}

/// How bad it is that a command is refused. If the server has its own compare-and-delete, a client
/// needs no DEL to release.
fn severity(need: &Need, trials: &[Trial]) -> (Level, String) {
    match own_compare_and_delete(trials) {
        Some(own) if need.command == "DEL" => {
            (Level::Warn, format!("{own} releases, but no lock can be released by force"))
        }
        _ => (need.level, need.effect.to_owned()),
    }
}

/// Why a command is forbidden, if the command itself is refused and not one inside it.
fn refusal<'a>(trial: &'a Trial, trials: &[Trial]) -> Option<&'a str> {
    let Outcome::Refused(cause, line) = &trial.outcome else { return None };
    // A server knows one of these two commands or none, by its version.
    let optional = matches!(trial.command, "DELIFEQ" | "DELEX");
    if !trial.is_forbidden() || (optional && *cause == NodeError::UnknownCommand) {
        return None;
    }
    // A script that is refused without NOPERM may have failed at a command inside it.
    let from_inside = trial.command.starts_with("EVAL") && !line.starts_with("NOPERM");
    let inside = |trial: &Trial| {
        matches!(trial.command, "SET" | "GET" | "DEL" | "PTTL" | "PEXPIRE") && trial.is_forbidden()
    };
    let blamed = from_inside && *cause != NodeError::UnknownCommand && trials.iter().any(inside);
    (!blamed).then_some(line)
}

/// The error line, if the key is refused and not the command.
fn refused_key(trial: &Trial) -> Option<&str> {
    let Outcome::Refused(NodeError::NoPermission, line) = &trial.outcome else { return None };
    (names_a_key(line) && !line.contains("run the")).then_some(line)
}

/// Whether an error line speaks of a key. The blank keeps "Valkey" from matching.
fn names_a_key(line: &str) -> bool {
    line.contains(" key")
}

/// Whether the node sets a key, and deletes it when asked. A missing permission is reported by
/// `permissions` instead.
fn writes(trials: &[Trial], complete: bool) -> Option<Finding> {
    const NAME: &str = "writes";
    let set = trials.iter().find(|trial| trial.command == "SET")?;
    match &set.outcome {
        Outcome::Refused(..) if set.is_forbidden() => None,
        Outcome::Refused(cause, line) => {
            Some(Finding::fail(NAME, format!("it {}: {line}", as_predicate(*cause))))
        }
        _ if complete && trials.iter().any(|it| it.outcome == Outcome::Odd) => Some(Finding::fail(
            NAME,
            "a script of ours did not find the key that was set just before it: is a proxy in \
             between, or no Redis?",
        )),
        _ => Some(Finding::ok(NAME, "it granted, extended and released a key")),
    }
}

/// The error as the rest of a sentence that begins with "it".
fn as_predicate(cause: NodeError) -> String {
    match cause {
        NodeError::OutOfMemory => "is out of memory, and refuses locks".to_owned(),
        NodeError::Misconf | NodeError::NoReplicas => cause.to_string(),
        other => format!("refuses to set a key, {other}"),
    }
}

/// The server's own compare-and-delete, if it has one.
fn own_compare_and_delete(trials: &[Trial]) -> Option<&'static str> {
    let done = |trial: &Trial| trial.outcome == Outcome::Done;
    let own = ["DELIFEQ", "DELEX"];
    own.into_iter().find(|own| trials.iter().any(|it| it.command == *own && done(it)))
}

/// Why the server runs no scripts, if its own commands take their place.
fn without_scripts(trials: &[Trial]) -> Option<&str> {
    let done = |it: &Trial| it.command == REPLACE && it.outcome == Outcome::Done;
    own_compare_and_delete(trials).filter(|_| trials.iter().any(done))?;
    let eval = trials.iter().find(|trial| trial.command == "EVAL")?;
    refusal(eval, trials)
}

/// Whether the server runs scripts. `None` if `permissions` says that it does not, because it has
/// nothing in their place.
fn scripts(trials: &[Trial]) -> Option<Finding> {
    const NAME: &str = "scripts";
    if let Some(line) = without_scripts(trials) {
        let rights = "; ACL rules: +eval +evalsha +script|load";
        let rights = if line.starts_with("NOPERM") { rights } else { "" };
        return Some(Finding::warn(
            NAME,
            format!(
                "it runs no Lua scripts ({line}): its own commands serve plain locks on one key. \
                 While its memory is full (maxmemory), they extend no lock. It has no vote for \
                 --fenced and several keys, nor for the verb extend, and waiters poll{rights}"
            ),
        ));
    }
    let eval = trials.iter().find(|trial| trial.command == "EVAL")?;
    refusal(eval, trials).is_none().then(|| Finding::ok(NAME, "it runs Lua scripts"))
}

fn tracking(subject: &Subject) -> Option<Finding> {
    const NAME: &str = "tracking";
    let because = "a waiter has to poll, because the node does not notify it";
    if let Some(Answer::Error(_)) = &subject.seen.hello {
        return Some(Finding::warn(NAME, format!("it refuses HELLO and pushes: {because}")));
    }
    let tracking = ["CLIENT TRACKING", "CLIENT CACHING"];
    let trials = || subject.seen.trials.iter().filter(|it| tracking.contains(&it.command));
    trials().next()?;
    let refused = trials().find_map(|trial| match &trial.outcome {
        Outcome::Refused(_, line) => Some((trial.command, line)),
        _ => None,
    });
    let Some((command, line)) = refused else {
        return Some(Finding::ok(NAME, "it notifies clients of released locks and of flushes"));
    };
    let rules = "ACL rules: +client|tracking +client|caching";
    Some(Finding::warn(NAME, format!("{command} is refused ({line}): {because}. {rules}")))
}

fn release(trials: &[Trial]) -> Finding {
    const NAME: &str = "release";
    match own_compare_and_delete(trials) {
        Some(command) => Finding::ok(NAME, format!("{command}: its own compare-and-delete")),
        None => Finding::ok(NAME, "by a script: it has no compare-and-delete of its own"),
    }
}

/// Whether the user may touch the counter of a fencing number. `None` if the counter was refused
/// because of a command that `permissions` already reports.
fn fencing(trials: &[Trial]) -> Option<Finding> {
    const NAME: &str = "fencing";
    let trial = trials.iter().find(|trial| trial.command == FENCING)?;
    let is_elsewhere = |other: &Trial| {
        let of_others = other.command != FENCING && !OF_LINE.contains(&other.command);
        of_others && refusal(other, trials).is_some()
    };
    match &trial.outcome {
        Outcome::Refused(..) if trials.iter().any(is_elsewhere) => None,
        Outcome::Refused(_, line) if trial.is_forbidden() || names_a_key(line) => {
            Some(Finding::warn(
                NAME,
                format!(
                    "the counter of a fencing number is refused ({line}): no lock can be had with \
                     --fenced. ACL rule: a pattern for redlatch:fence:{{KEY}}, such as \
                     ~redlatch:fence:{{lock:*"
                ),
            ))
        }
        Outcome::Refused(..) => None,
        _ => Some(Finding::ok(NAME, "it counts for fencing numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{node, worst_of};
    use super::*;

    const NOPERM: &str = "NOPERM this user has no permissions to run the 'x' command";

    /// The findings if these commands are refused with these errors.
    fn refusing(refused: &[(&'static str, &str)]) -> Vec<Finding> {
        let mut subject = node("a");
        for &(command, line) in refused {
            let outcome = Outcome::Refused(NodeError::of_error(line.as_bytes()), line.to_owned());
            subject.seen.trials.retain(|trial| trial.command != command);
            subject.seen.trials.push(Trial { command, outcome });
        }
        checks(&subject)
    }

    #[test]
    fn every_command_that_is_refused_is_named_with_its_effect() {
        for need in &NEEDS {
            let found = refusing(&[(need.command, NOPERM)]);
            let (level, detail) = worst_of(&found, "permissions");
            assert_eq!(level, need.level, "{detail}");
            assert!(detail.starts_with(&format!("{} is refused", need.command)), "{detail}");
            assert!(detail.contains(need.effect) && detail.contains(need.rule), "{detail}");
        }
    }

    #[test]
    fn a_script_is_not_blamed_for_what_is_inside_it() {
        let inside = "ERR The user executing the script can't run this command or subcommand";
        let found = refusing(&[("GET", NOPERM), ("EVAL", inside), ("EVALSHA", inside)]);
        let missing: Vec<&str> = found
            .iter()
            .filter(|it| it.level != Level::Ok)
            .map(|it| it.detail.split(' ').next().unwrap())
            .collect();
        assert_eq!(missing, ["GET"]);
    }

    #[test]
    fn a_key_that_is_refused_is_not_taken_for_a_command() {
        let line = "NOPERM this user has no permissions to access one of the keys used";
        let (level, detail) = worst_of(&refusing(&[("SET", line), ("GET", line)]), "permissions");
        assert_eq!(level, Level::Fail);
        assert!(detail.contains("--key-prefix"), "{detail}");
    }

    #[test]
    fn rights_of_commands_unknown_to_a_version_are_not_missing() {
        let unknown = "ERR unknown command 'DELIFEQ', with args beginning with:";
        let found = refusing(&[("DELIFEQ", unknown), ("DELEX", unknown)]);
        assert_eq!(worst_of(&found, "permissions").0, Level::Ok);
        assert!(worst_of(&found, "release").1.starts_with("by a script"));
        // SET is not optional, so a server that does not know it fails.
        assert_eq!(worst_of(&refusing(&[("SET", unknown)]), "permissions").0, Level::Fail);
    }

    #[test]
    fn a_node_with_compare_and_delete_needs_del_less() {
        let mut subject = node("a");
        let outcome = Outcome::Refused(NodeError::NoPermission, NOPERM.to_owned());
        subject.seen.trials.retain(|trial| trial.command != "DEL");
        subject.seen.trials.push(Trial { command: "DEL", outcome });
        subject.seen.trials.push(Trial { command: "DELIFEQ", outcome: Outcome::Done });
        let found = checks(&subject);
        let (level, detail) = worst_of(&found, "permissions");
        assert_eq!(level, Level::Warn);
        assert!(detail.contains("DELIFEQ releases") && !detail.contains("stays"), "{detail}");
        assert!(worst_of(&found, "release").1.starts_with("DELIFEQ"));
    }

    #[test]
    fn server_without_scripts_is_reported_with_what_does_not_work_there() {
        for line in ["ERR Could not find scripting engine 'lua'", NOPERM] {
            let refused = ["EVAL", "EVALSHA", "SCRIPT LOAD", FENCING].map(|it| (it, line));
            let with_own = |own: &[&'static str]| {
                let mut subject = node("a");
                let outcome = Outcome::Refused(NodeError::of_error(line.as_bytes()), line.into());
                subject
                    .seen
                    .trials
                    .retain(|it| !refused.iter().any(|(name, _)| *name == it.command));
                let trial = |command, outcome| Trial { command, outcome };
                let refused = refused.map(|(command, _)| trial(command, outcome.clone()));
                subject.seen.trials.extend(refused);
                subject.seen.trials.extend(own.iter().map(|it| trial(it, Outcome::Done)));
                checks(&subject)
            };
            let found = with_own(&["DELIFEQ", REPLACE]);
            let not_well: Vec<_> = found.iter().filter(|it| it.level != Level::Ok).collect();
            let [only] = not_well.as_slice() else { panic!("{not_well:?}") };
            assert_eq!((only.name, only.level), ("scripts", Level::Warn));
            assert!(only.detail.contains(line) && only.detail.contains("maxmemory"));
            // Without both commands the server releases, or extends, nothing.
            for own in [&[][..], &["DELIFEQ"], &[REPLACE]] {
                let (level, detail) = worst_of(&with_own(own), "permissions");
                assert_eq!(level, Level::Fail, "{own:?}");
                assert!(detail.starts_with("EVAL is refused"), "{detail}");
            }
        }
    }

    #[test]
    fn refused_writes_are_reported_with_the_reason() {
        for line in ["OOM command not allowed", "MISCONF no disk", "NOREPLICAS too few", "BUSY a"] {
            let (level, detail) = worst_of(&refusing(&[("SET", line)]), "writes");
            assert_eq!(level, Level::Fail);
            assert!(detail.contains(line), "{detail}");
        }
        let mut subject = node("a");
        subject.seen.trials.push(Trial { command: "EVAL", outcome: Outcome::Odd });
        assert_eq!(worst_of(&checks(&subject), "writes").0, Level::Fail);
    }

    #[test]
    fn line_that_is_refused_costs_waiters_alone() {
        let line = "NOPERM this user has no permissions to access one of the keys used";
        let found = refusing(&[(trial::LINE, line), ("ZADD", line), ("ZREM", line)]);
        let not_well: Vec<_> = found.iter().filter(|it| it.level != Level::Ok).collect();
        let [only] = not_well.as_slice() else { panic!("{not_well:?}") };
        assert_eq!((only.name, only.level), ("permissions", Level::Warn));
        assert!(only.detail.contains("~redlatch:line:{lock:*"), "{}", only.detail);
    }

    #[test]
    fn counter_that_is_refused_costs_fencing_numbers_alone() {
        let line = "NOPERM this user has no permissions to access one of the keys used";
        let found = refusing(&[(FENCING, line)]);
        let (level, detail) = worst_of(&found, "fencing");
        assert_eq!(level, Level::Warn);
        assert!(
            detail.contains("--fenced") && detail.contains("~redlatch:fence:{lock:*"),
            "{detail}"
        );
        assert_eq!(worst_of(&found, "permissions").0, Level::Ok);
        // The server has no compare-and-delete, and the line is refused, too.
        let unknown = "ERR unknown command 'DELIFEQ'";
        let found = refusing(&[("DELIFEQ", unknown), (FENCING, line), (trial::LINE, line)]);
        assert_eq!(worst_of(&found, "fencing").0, Level::Warn);
        // A full disk is no refusal of the counter.
        let misconf = "MISCONF Valkey is configured to save RDB snapshots, but it cannot";
        let found = refusing(&[("SET", misconf), (FENCING, misconf)]);
        assert!(found.iter().all(|finding| finding.name != "fencing"), "{found:?}");
        // Where EVAL itself is refused, the finding is about EVAL, and not about fencing.
        let found = refusing(&[(FENCING, NOPERM), ("EVAL", NOPERM)]);
        assert!(found.iter().all(|finding| finding.name != "fencing"), "{found:?}");
    }

    #[test]
    fn without_pushes_the_cost_is_named() {
        let line = "NOPERM User x has no permissions to run the 'client|tracking' command";
        let (level, detail) = worst_of(&refusing(&[("CLIENT TRACKING", line)]), "tracking");
        assert_eq!(level, Level::Warn);
        assert!(detail.contains("+client|tracking"), "{detail}");
        let mut subject = node("a");
        subject.seen.hello = Some(Answer::Error("ERR unknown command".into()));
        assert_eq!(worst_of(&checks(&subject), "tracking").0, Level::Warn);
    }
}
