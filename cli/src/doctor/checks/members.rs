//! Checks the list of masters that the nodes keep for clients with `--check-members`.

use redlatch::NodeError;

use super::{Finding, Subject, Use};
use crate::connection::Trouble;
use crate::members::lists::{self, Seen, Server, Verdict};

const NAME: &str = "members";

/// Whether the list is the same on all nodes, and is of just these. Without a list, and without
/// `--check-members`, nothing is wrong.
pub fn check(subjects: &[Subject], how: &Use) -> Finding {
    let servers: Vec<Server> = subjects.iter().map(server).collect();
    let found = lists::compare(&servers);
    let has_list = servers.iter().any(|server| server.seen.listed().is_some());
    if !has_list && !how.check_members && found.verdict != Verdict::Differs {
        let hint = "not checked: with --check-members a client with other nodes is refused";
        return Finding::ok(NAME, hint);
    }
    let words = found.words;
    if lists::is_being_changed(&servers) {
        let hint = "its change is not finished: run redlatch members resume, or the change again";
        return Finding::warn(NAME, format!("{words}. {hint}"));
    }
    match found.verdict {
        Verdict::Same if how.check_members => Finding::ok(NAME, words),
        Verdict::Same => Finding::ok(NAME, format!("{words}; not checked without --check-members")),
        Verdict::None => {
            Finding::ok(NAME, "none yet: the first client that uses all nodes writes it")
        }
        Verdict::Lost | Verdict::Proposed => Finding::warn(NAME, words),
        Verdict::Unknown => Finding::warn(
            NAME,
            format!("{words}. ACL rule: ~{} +get +set +eval", redlatch::proto::MEMBERS),
        ),
        Verdict::Differs | Verdict::Missing => {
            Finding::fail(NAME, format!("{words}. Give every client the same nodes"))
        }
    }
}

fn server(subject: &Subject) -> Server {
    let unread = || {
        let other = || Trouble { cause: NodeError::Silent, words: String::new() };
        Seen::Unreached(subject.seen.trouble.clone().unwrap_or_else(other))
    };
    let seen = subject.seen.list.clone().unwrap_or_else(unread);
    Server { label: subject.label.clone(), seen }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::examples::{node, using};
    use super::*;
    use crate::members::lists::examples::{blank, listed, same};

    fn checked(servers: Vec<Server>, how: &Use) -> Finding {
        let subject = |server: Server| {
            let mut subject = node(&server.label);
            subject.seen.list = Some(server.seen);
            subject
        };
        check(&servers.into_iter().map(subject).collect::<Vec<_>>(), how)
    }

    #[track_caller]
    fn is(found: &Finding, level: Level, words: &str) {
        assert_eq!(found.level, level, "{found:?}");
        assert!(found.detail.contains(words), "{found:?}");
    }

    #[test]
    fn nodes_without_a_list_are_no_warning() {
        let checking = Use { check_members: true, ..using() };
        let blanks = || ["a", "b", "c"].map(blank).into();
        is(&checked(blanks(), &using()), Level::Ok, "not checked: with --check-members");
        is(&checked(blanks(), &checking), Level::Ok, "none yet");
        let mut three = ["a", "b", "c"].map(node);
        three[2].seen.list = None;
        is(&check(&three, &using()), Level::Ok, "not checked: with --check-members");
        is(&check(&three, &checking), Level::Warn, "not read on c");
    }

    #[test]
    fn list_is_ok_if_it_is_agreed_everywhere_and_of_just_these_nodes() {
        let checking = Use { check_members: true, ..using() };
        is(&checked(same(), &checking), Level::Ok, "the same on all");
        is(&checked(same(), &using()), Level::Ok, "not checked without --check-members");
        let mut servers = same();
        servers[2] = listed("c:6379", 'c', "proposed", "abc");
        is(&checked(servers.clone(), &using()), Level::Warn, "only proposed on c:6379");
        servers[2] = blank("c:6379");
        is(&checked(servers.clone(), &using()), Level::Warn, "lost on c:6379");
        servers[2] = blank("d:6379");
        is(&checked(servers.clone(), &using()), Level::Fail, "not among these servers: c:6379");
        servers[2] = listed("d:6379", 'd', "agreed", "ade");
        is(&checked(servers, &using()), Level::Fail, "2 different lists");
        let mut servers = same();
        servers[1] = listed("b:6379", 'b', "told", "abc");
        is(&checked(servers, &checking), Level::Warn, "run redlatch members resume");
    }
}
