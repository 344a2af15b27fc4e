//! The errors, and the report of what every node said.
//!
//! A node's failure is data in a [`Report`], never an error of the event loop.

mod config;
mod ends;
mod node;
mod report;

use std::fmt;

use crate::proto::time::InvalidTtl;

pub use config::ConfigError;
pub use ends::{Busy, ClosedReason, LostReason};
pub use node::{NodeError, NodeReply};
pub use report::{HeldFor, NodeReport, Quarantine, Report, ReportedSet};

/// Why there is no lock, or no longer one. `Debug` prints the same line as `Display`, because Rust
/// prints the `Debug` form of an error that `main` returns.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Another client holds the key, as enough nodes said; or another call of this client does, and
    /// no node was asked.
    Contended(Box<Report>),
    /// Not enough nodes gave a vote that counts.
    NoQuorum(Box<Report>),
    /// A majority granted, but the ttl had run out when the client knew it.
    Expired(Box<Report>),
    /// The lock is not held any more.
    Lost {
        /// Why.
        reason: LostReason,
        /// What every node said to the last question about the lock.
        report: Box<Report>,
    },
    /// A limit of the client is reached: nothing was sent.
    Busy(Busy),
    /// The request, or the configuration of the client, cannot work. Retrying does not help.
    Config(ConfigError),
    /// The client has ended: nothing was sent, or what the request may have left is released.
    Closed(ClosedReason),
}

impl Error {
    /// What every node said; `None` if no node was asked.
    pub fn report(&self) -> Option<&Report> {
        match self {
            Error::Contended(report)
            | Error::NoQuorum(report)
            | Error::Expired(report)
            | Error::Lost { report, .. }
            | Error::Config(ConfigError::Nodes(report)) => Some(report),
            Error::Busy(_) | Error::Config(_) | Error::Closed(_) => None,
        }
    }

    /// Whether the key is held, by another client or by another call of this one.
    pub const fn is_contended(&self) -> bool {
        matches!(self, Error::Contended(_))
    }

    /// Whether the same request may succeed later, with nothing changed but the time:
    /// [`Contended`](Error::Contended), [`NoQuorum`](Error::NoQuorum),
    /// [`Expired`](Error::Expired) and [`Busy`](Error::Busy).
    ///
    /// [`Lost`](Error::Lost) is none of them: the lock is over, and whatever it protected has to
    /// be looked at before it is taken again. [`Config`](Error::Config) needs an operator, and
    /// [`Closed`](Error::Closed) another client.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Error::Contended(_) | Error::NoQuorum(_) | Error::Expired(_) | Error::Busy(_) => true,
            Error::Lost { .. } | Error::Config(_) | Error::Closed(_) => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Contended(report) => {
                HeldFor::describe(report.held, report.nodes.len(), f)?;
                write!(f, ": {report}")
            }
            Error::NoQuorum(report) => write!(f, "no quorum: {report}{}", report.hint()),
            Error::Expired(report) => {
                let advice = "raise the ttl or check the latency";
                write!(f, "granted after its ttl had passed; {advice}: {report}")
            }
            Error::Lost { reason: LostReason::Gone, report } => {
                f.write_str("the lock is lost (")?;
                report.write_gone(f)?;
                write!(f, "): {report}")
            }
            Error::Lost { reason, report } => write!(f, "the lock is lost ({reason}): {report}"),
            Error::Busy(busy) => busy.fmt(f),
            Error::Config(error) => error.fmt(f),
            Error::Closed(closed) => closed.fmt(f),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// No `source()`: `Display` already contains the text of a [`ConfigError`] inside, so a chain would
/// repeat it.
impl std::error::Error for Error {}

impl From<InvalidTtl> for Error {
    fn from(bad: InvalidTtl) -> Error {
        Error::Config(ConfigError::Ttl(bad))
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A report about one key, in which no node says anything.
    fn report() -> Report {
        let (key, nodes) = (b"k"[..].into(), Vec::new());
        Report { key, set: None, needed: 1, nodes, held: None, by_token: false }
    }

    #[test]
    fn a_report_is_one_line_for_an_operator() {
        let node = |label: &str, reply, detail: Option<&str>| NodeReport {
            label: label.into(),
            reply,
            detail: detail.map(Into::into),
            quarantine: None,
        };
        let report = Report {
            key: b"invoice:\r\n42"[..].into(),
            set: None,
            needed: 2,
            nodes: vec![
                node("10.0.0.1:6379", NodeReply::Granted, None),
                node("10.0.0.2:6379", NodeReply::Held, None),
                node("10.0.0.3:6379", NodeReply::Failed(NodeError::Unreachable), Some("refused")),
            ],
            held: None,
            by_token: false,
        };
        assert_eq!(
            Error::NoQuorum(Box::new(report)).to_string(),
            "no quorum: needed 2 of 3 for \"invoice:\\r\\n42\": 10.0.0.1:6379 granted, \
             10.0.0.2:6379 held, 10.0.0.3:6379 not connected (refused)"
        );
    }

    #[test]
    fn lost_lock_whose_key_is_gone_says_on_how_many_nodes_and_by_what() {
        use NodeReply::{Absent, Granted, Held, Nothing};
        let text = |replies: [NodeReply; 3], by_token| {
            let node =
                |reply| NodeReport { label: "n".into(), reply, detail: None, quarantine: None };
            let (key, nodes) = (b"k"[..].into(), replies.map(node).into());
            let report = Report { key, set: None, needed: 2, nodes, held: None, by_token };
            let report = Box::new(report);
            Error::Lost { reason: LostReason::Gone, report }.to_string()
        };
        let deleted = "by DEL, FLUSHALL, force-release or a restart without its data";
        let cases = [
            ([Absent, Absent, Granted], format!("its key was deleted on 2 of 3 nodes, {deleted}")),
            (
                [Absent, Held, Nothing],
                format!(
                    "its key was deleted on 1 of 3 nodes, {deleted}, and is another client's on 1"
                ),
            ),
            ([Held, Nothing, Held], "its key is another client's on 2 of 3 nodes".to_owned()),
            ([Nothing; 3], "its key is gone on too many nodes".to_owned()),
        ];
        for (replies, why) in cases {
            let text = text(replies, false);
            assert!(
                text.starts_with(&format!("the lock is lost ({why}): needed 2 of 3")),
                "{text}"
            );
        }
        let by_token = text([Absent, Absent, Granted], true);
        let why = format!(
            "its key is gone on 2 of 3 nodes: its ttl was over, or it was deleted {deleted}"
        );
        assert!(by_token.starts_with(&format!("the lock is lost ({why}): needed")), "{by_token}");
    }

    #[test]
    fn report_about_several_keys_names_the_one_that_is_in_the_way() {
        let text = |keys, named| {
            let set = Some(ReportedSet { keys, named });
            let key = b"b"[..].into();
            Report { key, set, ..report() }.to_string()
        };
        assert_eq!(text(3, true), "needed 1 of 0 for \"b\", one of 3 keys: ");
        assert_eq!(text(3, false), "needed 1 of 0 for \"b\" and 2 more keys: ");
        assert_eq!(text(2, false), "needed 1 of 0 for \"b\" and 1 more key: ");
    }

    #[test]
    fn error_says_whether_it_is_worth_another_try() {
        let report = || Box::new(report());
        let lost = Error::Lost { reason: LostReason::Gone, report: report() };
        let cases = [
            (Error::Contended(report()), true, true),
            (Error::NoQuorum(report()), false, true),
            (Error::Expired(report()), false, true),
            (Error::Busy(Busy::Nodes), false, true),
            (lost, false, false),
            (Error::Config(ConfigError::Nodes(report())), false, false),
            (Error::Closed(ClosedReason::Asked), false, false),
        ];
        for (error, contended, retryable) in cases {
            assert_eq!(
                (error.is_contended(), error.is_retryable()),
                (contended, retryable),
                "{error}"
            );
        }
    }

    #[test]
    fn a_contended_error_says_for_how_long() {
        let millis = Duration::from_millis;
        let cases = [
            (None, "held by another client: needed 1 of 0"),
            (Some(HeldFor::Left(millis(12_300))), "held by another client for 12.3s more: needed"),
            (
                Some(HeldFor::Ever { nodes: 0 }),
                "held for ever by another client, no ttl on 0 of 0 nodes:",
            ),
            (
                Some(HeldFor::Ours { left: millis(5), auto_extended: true }),
                "held by this client, which renews it; release it first: needed",
            ),
        ];
        for (held, start) in cases {
            let report = Report { held, ..report() };
            let text = Error::Contended(Box::new(report)).to_string();
            assert!(text.starts_with(start), "{text}");
        }
    }

    #[test]
    fn a_failed_main_prints_one_line_and_a_chain_says_it_once() {
        let error = Error::Config(ConfigError::NoNodes);
        assert_eq!(format!("{error:?}"), error.to_string(), "main prints Debug");
        assert!(std::error::Error::source(&error).is_none(), "its text would be said twice");
        let config = ConfigError::TooManyNodes { given: 99 };
        assert_eq!(format!("{config:?}"), config.to_string());
        let report = report();
        assert_eq!(format!("{report:?}"), report.to_string());
        let error = Error::Contended(Box::new(report));
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}
