//! The list of masters as each server has it, and whether all servers have the same: plain values,
//! which `members` prints and doctor judges. It reads, and writes nothing.
//!
//! The hazard is text that another client wrote: an address in a list may have control characters,
//! which must not act on the terminal.

use redlatch::proto::{MEMBERS, Member, MemberList, MembersState, Membership, Stage};
use redlatch::{NodeError, majority};

use crate::connection::{Answer, Connection, Trouble};

/// What a server has as its list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    Listed(Membership),
    /// There is no list.
    Blank,
    /// A later version of redlatch wrote it.
    Later,
    /// Another program uses the key.
    Foreign,
    /// The server does not let the user read the key.
    Refused(Trouble),
    /// The server could not be asked.
    Unreached(Trouble),
}

/// A server, and what it has as its list.
#[derive(Debug, Clone)]
pub struct Server {
    pub label: String,
    pub seen: Seen,
}

/// How the lists of the servers compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All servers have the same list, of just these servers, and it is agreed.
    Same,
    /// No server has a list.
    None,
    /// All have the same list, and on some of them it is not agreed yet.
    Proposed,
    /// Some servers have lost the list. A client that checks it writes it there again.
    Lost,
    /// Some servers could not be asked, or did not let the user read it.
    Unknown,
    /// A server has another list than the others, or is in none.
    Differs,
    /// A server of the list is not among these.
    Missing,
}

/// The result of a comparison.
#[derive(Debug, Clone)]
pub struct Comparison {
    pub verdict: Verdict,
    /// What an operator has to know, on one line.
    pub words: String,
    /// The addresses of members that none of these servers is.
    pub missing: Vec<String>,
}

/// Reads the list of the server at the other end.
pub fn read(connection: &mut Connection) -> Result<Seen, Trouble> {
    connection.ask(&[b"GET", MEMBERS.as_bytes()]).map(seen)
}

fn seen(answer: Answer) -> Seen {
    match (answer.refusal(), answer) {
        (Some(refused), _) if refused.cause == NodeError::WrongType => Seen::Foreign,
        (Some(refused), _) => Seen::Refused(refused),
        (None, Answer::Nothing) => Seen::Blank,
        (None, Answer::Text(text)) => match MembersState::read(text.as_bytes()) {
            MembersState::Listed(listed) => Seen::Listed(listed),
            MembersState::Later => Seen::Later,
            MembersState::Blank => Seen::Blank,
            MembersState::Unavailable => Seen::Foreign,
        },
        (None, _) => Seen::Foreign,
    }
}

impl Seen {
    /// The list, and what the server is in it.
    pub fn listed(&self) -> Option<&Membership> {
        match self {
            Seen::Listed(listed) => Some(listed),
            _ => None,
        }
    }
}

/// Compares the lists of these servers.
pub fn compare(servers: &[Server]) -> Comparison {
    let lists = distinct(servers);
    match lists.as_slice() {
        [] => without_a_list(servers),
        [list] => with_one_list(servers, list),
        several => {
            let of = |list: &&MemberList| {
                let has = |it: &Membership| it.list.is_same_as(list);
                let on = labels(servers, |it| it.listed().is_some_and(has));
                format!("{} (epoch {}) on {on}", addresses(list.members().iter()), list.epoch())
            };
            let lists = several.iter().map(of).collect::<Vec<_>>().join("; ");
            let words = format!("{} different lists: {lists}", several.len());
            Comparison { verdict: Verdict::Differs, words, missing: Vec::new() }
        }
    }
}

/// Whether too few of these servers could be asked to form a quorum.
pub fn no_quorum_answered(servers: &[Server]) -> bool {
    let answered = servers.iter().filter(|it| !matches!(it.seen, Seen::Unreached(_))).count();
    answered < majority(servers.len())
}

/// The lists that differ from each other.
fn distinct(servers: &[Server]) -> Vec<&MemberList> {
    let mut lists: Vec<&MemberList> = Vec::new();
    for listed in servers.iter().filter_map(|server| server.seen.listed()) {
        if !lists.iter().any(|list| list.is_same_as(&listed.list)) {
            lists.push(&listed.list);
        }
    }
    lists
}

fn without_a_list(servers: &[Server]) -> Comparison {
    let missing = Vec::new();
    if servers.iter().any(|server| server.seen == Seen::Later) {
        let on = labels(servers, |it| *it == Seen::Later);
        let words = format!("written by a later version of redlatch on {on}; use that version");
        return Comparison { verdict: Verdict::Differs, words, missing };
    }
    let unknown = labels(servers, |it| *it != Seen::Blank);
    if unknown.is_empty() {
        return Comparison { verdict: Verdict::None, words: "no list".into(), missing };
    }
    let words = format!("no list is known; not read on {unknown}");
    Comparison { verdict: Verdict::Unknown, words, missing }
}

/// All servers that have a list have this one.
fn with_one_list(servers: &[Server], list: &MemberList) -> Comparison {
    let has_id = |member: &&Member| {
        let listed = servers.iter().filter_map(|server| server.seen.listed());
        listed.into_iter().any(|listed| listed.id == member.id)
    };
    let absent: Vec<&Member> = list.members().iter().filter(|it| !has_id(it)).collect();
    let is_absent_one =
        |server: &Server| absent.iter().any(|member| *member.address == *server.label);
    let is_unread = |it: &Seen| matches!(it, Seen::Foreign | Seen::Refused(_) | Seen::Unreached(_));
    // A server that was not read may be any of the absent ones, unless it has an address of its
    // own in the list.
    let is_there = |member: &&&Member| !servers.iter().any(|it| *it.label == *member.address);
    let elsewhere: Vec<&&Member> = absent.iter().filter(is_there).collect();
    let unread = servers.iter().filter(|it| is_unread(&it.seen) && !is_absent_one(it)).count();
    let missing: Vec<String> = match elsewhere.len() > unread {
        true => elsewhere.iter().map(|member| plain(&member.address)).collect(),
        false => Vec::new(),
    };
    // A learner is not in its list yet, and a node that left is not any more.
    let is_outside = |it: &&Server| {
        let is_blank = it.seen == Seen::Blank && !is_absent_one(it);
        is_blank || it.seen.listed().is_some_and(|listed| !list.has(listed.id))
    };
    let strangers = servers.iter().filter(is_outside);
    let strangers: Vec<&str> = strangers.map(|it| &*it.label).collect();
    let (verdict, words) = if !missing.is_empty() {
        (Verdict::Missing, format!("of the list, not among these servers: {}", missing.join(", ")))
    } else if servers.iter().any(|it| it.seen == Seen::Later) {
        let on = labels(servers, |it| *it == Seen::Later);
        (Verdict::Differs, format!("written by a later version of redlatch on {on}"))
    } else if let Some((one, other)) = same_id(servers) {
        (Verdict::Differs, format!("{one} and {other} have one id: one has a copy of the other"))
    } else if !strangers.is_empty() {
        (Verdict::Differs, format!("not in the list: {}", strangers.join(", ")))
    } else if servers.iter().any(|it| is_unread(&it.seen)) {
        (Verdict::Unknown, format!("not read on {}", labels(servers, is_unread)))
    } else if servers.iter().any(|it| it.seen == Seen::Blank) {
        let on = labels(servers, |it| *it == Seen::Blank);
        (Verdict::Lost, format!("lost on {on}, where the next client that checks it writes it"))
    } else if servers.iter().any(|it| has_stage(&it.seen, Stage::Proposed)) {
        let on = labels(servers, |it| has_stage(it, Stage::Proposed));
        (Verdict::Proposed, format!("only proposed on {on}"))
    } else if servers.iter().any(|it| has_stage(&it.seen, Stage::Told)) {
        let on = labels(servers, |it| has_stage(it, Stage::Told));
        (Verdict::Proposed, format!("not agreed yet on {on}"))
    } else {
        (Verdict::Same, "the same on all".into())
    };
    let words = format!("{}; {words}", of_list(list));
    Comparison { verdict, words, missing }
}

fn has_stage(seen: &Seen, stage: Stage) -> bool {
    seen.listed().is_some_and(|listed| listed.stage == stage)
}

/// Whether a step of a change of the list was begun, and is not finished.
pub fn is_being_changed(servers: &[Server]) -> bool {
    let is_begun = |listed: &Membership| {
        let is_told = listed.stage == Stage::Told && listed.is_member();
        is_told || listed.stage == Stage::Learner
    };
    servers.iter().any(|server| server.seen.listed().is_some_and(is_begun))
}

/// The labels of two servers with one id.
fn same_id(servers: &[Server]) -> Option<(&str, &str)> {
    let id = |server: &Server| server.seen.listed().map(|listed| listed.id);
    servers.iter().enumerate().find_map(|(index, server)| {
        let own = id(server)?;
        let before = servers[..index].iter().find(|it| id(it) == Some(own))?;
        Some((&*before.label, &*server.label))
    })
}

fn of_list(list: &MemberList) -> String {
    let count = list.members().len();
    let nodes = if count == 1 { "node" } else { "nodes" };
    format!("{count} {nodes}, epoch {}, quorum {}", list.epoch(), majority(count))
}

fn labels(servers: &[Server], is_wanted: impl Fn(&Seen) -> bool) -> String {
    let wanted = servers.iter().filter(|server| is_wanted(&server.seen));
    wanted.map(|server| &*server.label).collect::<Vec<_>>().join(", ")
}

fn addresses<'a>(members: impl Iterator<Item = &'a Member>) -> String {
    members.map(|member| plain(&member.address)).collect::<Vec<_>>().join(", ")
}

/// The text without control characters.
pub fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
pub mod examples {
    //! Servers and their lists, as a node has them as text.

    use super::*;

    /// The server `label`, which has the id of this digit in a list of the members of `digits`:
    /// the member `b` has the address `b:6379`.
    pub fn listed(label: &str, own: char, stage: &str, digits: &str) -> Server {
        let id = |digit: char| digit.to_string().repeat(16);
        let members = digits.chars().map(|digit| format!("{}={digit}:6379", id(digit)));
        let members = members.collect::<Vec<_>>().join(" ");
        let name = digits.bytes().fold(0, |name, digit| name * 256 + u64::from(digit));
        let text = format!("1 {} {stage} {name:016x} 1 {members}", id(own));
        let label = label.to_owned();
        Server { label, seen: seen(Answer::Text(text)) }
    }

    /// A server without a list.
    pub fn blank(label: &str) -> Server {
        Server { label: label.to_owned(), seen: Seen::Blank }
    }

    /// Three servers that have the same list.
    pub fn same() -> Vec<Server> {
        ['a', 'b', 'c'].map(|it| listed(&format!("{it}:6379"), it, "agreed", "abc")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{blank, listed, same};
    use super::*;

    #[track_caller]
    fn is(servers: &[Server], verdict: Verdict, words: &str) -> Comparison {
        let found = compare(servers);
        assert_eq!(found.verdict, verdict, "{found:?}");
        assert!(found.words.contains(words), "{found:?}");
        found
    }

    fn unreached() -> Seen {
        Seen::Unreached(Trouble { cause: NodeError::Unreachable, words: String::new() })
    }

    #[test]
    fn one_list_of_just_these_servers_is_the_same_by_any_address() {
        is(&same(), Verdict::Same, "3 nodes, epoch 1, quorum 2; the same on all");
        let mut servers = same();
        servers.reverse();
        servers[0].label = "localhost:1".into();
        is(&servers, Verdict::Same, "the same on all");
    }

    #[test]
    fn list_that_is_not_agreed_everywhere_is_not_the_same() {
        is(&[blank("a"), blank("b")], Verdict::None, "no list");
        let mut servers = same();
        servers[1] = listed("b:6379", 'b', "proposed", "abc");
        is(&servers, Verdict::Proposed, "only proposed on b:6379");
        servers = same();
        servers[1] = listed("b:6379", 'b', "told", "abc");
        is(&servers, Verdict::Proposed, "not agreed yet on b:6379");
        assert!(is_being_changed(&servers) && !is_being_changed(&same()));
        servers[2] = blank("c:6379");
        is(&servers, Verdict::Lost, "lost on c:6379");
        servers[2].seen = unreached();
        is(&servers, Verdict::Unknown, "not read on c:6379");
        servers[2].label = "localhost:1".into();
        is(&servers, Verdict::Unknown, "not read on localhost:1");
    }

    #[test]
    fn servers_of_different_lists_are_named() {
        let mut servers = same();
        servers[2] = listed("e:6379", 'e', "agreed", "ade");
        let words = "2 different lists: a:6379, b:6379, c:6379 (epoch 1) on a:6379, b:6379; \
                     a:6379, d:6379, e:6379 (epoch 1) on e:6379";
        is(&servers, Verdict::Differs, words);
        servers[2] = listed("d:6379", 'b', "agreed", "abc");
        is(&servers[1..], Verdict::Missing, "not among these servers: a:6379, c:6379");
        servers.push(same().remove(2));
        is(&servers, Verdict::Differs, "b:6379 and d:6379 have one id");
        servers = same();
        servers.push(blank("d:6379"));
        is(&servers, Verdict::Differs, "not in the list: d:6379");
        for stage in ["learner", "told"] {
            servers[3] = listed("d:6379", 'd', stage, "abc");
            is(&servers, Verdict::Differs, "not in the list: d:6379");
            assert_eq!(is_being_changed(&servers), stage == "learner");
        }
        servers = same();
        servers[2].seen = Seen::Later;
        is(&servers, Verdict::Differs, "later version of redlatch on c:6379");
        is(&servers[2..], Verdict::Differs, "later version of redlatch on c:6379");
    }

    #[test]
    fn member_that_is_not_among_the_servers_is_missing() {
        let found = is(&same()[..2], Verdict::Missing, "not among these servers: c:6379");
        assert_eq!(found.missing, ["c:6379"]);
        let mut servers = same();
        servers[2] = blank("d:6379");
        is(&servers, Verdict::Missing, "not among these servers: c:6379");
        servers.truncate(2);
        servers[1].seen = unreached();
        is(&servers, Verdict::Missing, "not among these servers: c:6379");
    }

    #[test]
    fn quorum_of_servers_has_to_answer() {
        let mut servers = same();
        servers[0].seen = unreached();
        assert!(!no_quorum_answered(&servers));
        servers[1].seen = unreached();
        assert!(no_quorum_answered(&servers));
        servers[1].seen = seen(Answer::Error("NOPERM no permissions".into()));
        assert!(!no_quorum_answered(&servers));
        assert!(
            matches!(&servers[1].seen, Seen::Refused(it) if it.cause == NodeError::NoPermission)
        );
    }

    #[test]
    fn value_of_another_program_is_no_list() {
        for answer in [Answer::Text("apples".into()), Answer::Error("WRONGTYPE x".into())] {
            assert_eq!(seen(answer), Seen::Foreign);
        }
        assert_eq!(seen(Answer::Text("2 any".into())), Seen::Later);
        assert_eq!(seen(Answer::Nothing), Seen::Blank);
        assert_eq!(plain("\x1b[2Ja:1"), " [2Ja:1");
    }
}
