//! The texts of a change of the list: how far it is, and why it did not reach its goal.

use std::time::Duration;

use redlatch::proto::change::{Event, Failure};
use redlatch::proto::{Member, MemberList};

use super::lists::plain;
use crate::exit;
use crate::output::Refusal;

/// A list on one line: `epoch 8: a b c`.
pub fn list(list: &MemberList) -> String {
    let addresses: Vec<String> = list.members().iter().map(address).collect();
    format!("epoch {}: {}", list.epoch(), addresses.join(" "))
}

fn address(member: &Member) -> String {
    plain(&member.address)
}

/// The line for an event; `None` if another event says more.
pub fn event(event: &Event, labels: &[String], wait: Duration) -> Option<String> {
    match event {
        Event::Decided(next) => Some(format!("{}  decided", list(next))),
        Event::Told { list: told, told: places, left } => {
            let places: Vec<&str> = places.iter().map(|&place| &*labels[place]).collect();
            let (places, wait) = (places.join(" "), wait.as_secs_f64());
            let left = left.iter().map(address).map(|it| format!("; then {it} may be stopped"));
            let left = left.collect::<String>();
            let epoch = told.epoch();
            Some(format!("epoch {epoch}  told {places}; waiting {wait:.1} s{left}"))
        }
        Event::Agreed(_) => None,
    }
}

/// Why the goal was not reached. `has_decided`: a step was decided, and is not finished.
pub fn refusal(failure: &Failure, labels: &[String], has_decided: bool) -> Refusal {
    let (word, code, message) = match failure {
        Failure::NoList => {
            let words = "no server has a list; run any command with --check-members on the servers \
                         that are used now";
            ("config", exit::INTERNAL, words.to_owned())
        }
        Failure::NotAgreed => {
            let words = "the first list is not on all its servers yet; run any command with \
                         --check-members on just these";
            ("config", exit::INTERNAL, words.to_owned())
        }
        Failure::LaterVersion(place) => {
            let words = "a later version of redlatch wrote its list; use that version";
            ("config", exit::INTERNAL, format!("{}: {words}", labels[*place]))
        }
        Failure::OtherList(place) => {
            let words = "it belongs to another list of servers; take it out of that one first";
            ("config", exit::INTERNAL, format!("{}: {words}", labels[*place]))
        }
        Failure::SameServer(one, other) => {
            let (one, other) = (&labels[*one], &labels[*other]);
            let words = "are one server, or one has a copy of the other's data";
            ("config", exit::INTERNAL, format!("{one} and {other} {words}"))
        }
        Failure::NothingKept => {
            let words =
                "no wanted server is in the present list; keep one of them in a first change";
            ("config", exit::INTERNAL, words.to_owned())
        }
        Failure::Unreached(place) => {
            let words =
                "it could not be asked, or does not let its list be written; the list stays";
            ("no_quorum", exit::NO_QUORUM, format!("{}: {words}", labels[*place]))
        }
        Failure::NoQuorum { voters, needed, epoch } => {
            let stays = if has_decided {
                "run redlatch members resume when they answer"
            } else {
                "the old list stays"
            };
            let words = "of its servers could be asked or may vote, and it needs";
            (
                "no_quorum",
                exit::NO_QUORUM,
                format!("epoch {epoch}: {voters} {words} {needed}; {stays}"),
            )
        }
        Failure::PreviousUnknown => {
            let words = "a step was begun, and no server that answers knows the list before it; \
                         run it again when more of them answer";
            ("no_quorum", exit::NO_QUORUM, words.to_owned())
        }
        Failure::OtherToolWon(now) => {
            let words = "another tool changed the list";
            ("other_tool", exit::NO, format!("{words}: {}; look, and run it again", list(now)))
        }
        Failure::OtherToolBusy => {
            let words = "another tool changes the list at the same time; run it again later";
            ("other_tool", exit::NO, words.to_owned())
        }
    };
    Refusal { word, code, ..Refusal::config(format!("members: {message}")) }
}
