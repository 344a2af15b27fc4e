//! Whether a node can be reached, and accepts our credentials. If the library's own connection
//! failed, its error decides; the error of doctor's connection is reported only otherwise.

use redlatch::NodeError;

use super::{Finding, Level, Subject};

/// Whether anything answers at the address.
pub fn reachable(subject: &Subject) -> Vec<Finding> {
    const NAME: &str = "reachable";
    let words = subject.met.words.as_deref();
    if let Some(cause) = subject.met.trouble().filter(|&cause| is_about_connection(cause)) {
        // For the library, a connection that was never accepted and one without an answer are the
        // same. Doctor's connection shows which of the two it is.
        let silent = subject.seen.trouble.as_ref().is_some_and(|it| it.cause == NodeError::Silent);
        let stuck = cause == NodeError::Unreachable && silent && !subject.encrypted;
        let (cause, words) = if stuck { (NodeError::Silent, None) } else { (cause, words) };
        return vec![Finding::fail(NAME, advice(cause, words, subject.encrypted))];
    }
    match &subject.seen.trouble {
        Some(trouble) if subject.seen.handshake_answered || !subject.seen.answered => {
            let (what, words) = (trouble.cause, &trouble.words);
            let looked = "it answered the library, but doctor could not examine all of it";
            vec![Finding::warn(NAME, format!("{looked}: {what} ({words})"))]
        }
        _ => {
            let found = subject.seen.found_at.as_deref().map(|place| format!(" at {place}"));
            vec![Finding::ok(NAME, version(subject) + &found.unwrap_or_default())]
        }
    }
}

/// Whether the node accepts our credentials.
pub fn credentials(subject: &Subject) -> Option<Finding> {
    const NAME: &str = "credentials";
    let user = subject.user.as_deref().unwrap_or("default");
    match subject.trouble() {
        Some(NodeError::NoAuth) => Some(Finding::fail(
            NAME,
            "it requires a password: put one into the URL (redis://user:password@host), or into \
             REDISCLI_AUTH",
        )),
        Some(NodeError::WrongPassword) => Some(Finding::fail(
            NAME,
            format!("it refuses the password of the user {user:?}, or does not know the user"),
        )),
        _ if subject.seen.handshake_answered => {
            Some(Finding::ok(NAME, format!("it accepts the user {user:?}")))
        }
        _ => None,
    }
}

/// Reports a node that the library does not use for a reason that no other finding gives. Two
/// addresses of one server are reported elsewhere.
pub fn unexplained(subject: &Subject, found: &[Finding]) -> Option<Finding> {
    let cause = subject.met.trouble().filter(|&cause| cause != NodeError::SameServer)?;
    let failed = found.iter().any(|finding| finding.level == Level::Fail);
    let words = subject.met.words.as_deref().map_or(String::new(), |it| format!(" ({it})"));
    (!failed).then(|| Finding::fail("reachable", format!("it is not used: {cause}{words}")))
}

/// Whether the error is about the connection, and not about the server at its end.
fn is_about_connection(cause: NodeError) -> bool {
    use NodeError::{Full, Garbage, Lost, Protected, Silent, TooManyClients, Unreachable};
    matches!(cause, Unreachable | Silent | Lost | Garbage | Full | TooManyClients | Protected)
}

fn advice(cause: NodeError, words: Option<&str>, encrypted: bool) -> String {
    let words = words.map(|words| format!(" ({words})")).unwrap_or_default();
    let refused = words.contains("refused");
    let what_to_do = match cause {
        NodeError::Unreachable if words.contains("no Sentinel names") => {
            "look at the addresses of the Sentinels, the name that they have for the master, and \
             the credentials for Sentinels"
        }
        NodeError::Unreachable if refused => {
            "no server listens there: start it, or correct the address"
        }
        NodeError::Unreachable | NodeError::Lost if encrypted => {
            "look at --tls-ca, --tls-cert, --tls-key, and whether that port speaks TLS"
        }
        NodeError::Silent => {
            "it accepts connections; is it stopped, or stuck in a script or on a disk?"
        }
        NodeError::Unreachable => "look at the address, the network, and the server's bind",
        NodeError::Garbage => "that is not Redis, or it is its TLS port: then write rediss://",
        NodeError::TooManyClients => "raise its maxclients, or find who holds the connections",
        NodeError::Protected => {
            "give the server a password (requirepass), or bind it to a private address"
        }
        _ => "read the server's log, and check the network in between",
    };
    format!("{cause}{words}: {what_to_do}")
}

fn version(subject: &Subject) -> String {
    let seen = &subject.seen;
    match (seen.info("valkey_version"), seen.info("redis_version")) {
        (Some(version), _) => format!("valkey {version}"),
        (None, Some(version)) => format!("redis {version}"),
        (None, None) => "it answers".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use redlatch::NodeState;

    use super::super::examples::{node, worst_of};
    use super::*;
    use crate::connection::Trouble;

    fn down(cause: NodeError, words: &str, encrypted: bool) -> Subject {
        let mut subject = node("a");
        subject.met.state = NodeState::Down(cause);
        subject.met.words = Some(words.to_owned());
        subject.seen.answered = false;
        subject.seen.handshake_answered = false;
        subject.encrypted = encrypted;
        subject
    }

    #[test]
    fn access_error_is_named_with_its_remedy() {
        let cases = [
            (NodeError::Unreachable, "Connection refused", false, "no server listens there"),
            (
                NodeError::Unreachable,
                "its certificate is signed by an unknown CA",
                true,
                "--tls-ca",
            ),
            (NodeError::Unreachable, "No route to host", false, "the network"),
            (NodeError::Silent, "", false, "is it stopped"),
            (NodeError::Garbage, "", false, "rediss://"),
            (NodeError::TooManyClients, "", false, "maxclients"),
            (NodeError::Protected, "", false, "requirepass"),
        ];
        for (cause, words, encrypted, advice) in cases {
            let subject = down(cause, words, encrypted);
            let (level, detail) = worst_of(&reachable(&subject), "reachable");
            assert_eq!(level, Level::Fail);
            assert!(detail.contains(advice) && detail.contains(words), "{detail}");
            assert_eq!(credentials(&subject), None);
        }
    }

    #[test]
    fn a_password_is_asked_for_or_refused() {
        for (cause, said) in
            [(NodeError::NoAuth, "requires a password"), (NodeError::WrongPassword, "refuses")]
        {
            let mut subject = node("a");
            subject.met.state = NodeState::Rejected(cause);
            subject.seen.trouble = Some(Trouble { cause, words: String::new() });
            subject.seen.handshake_answered = false;
            let found = credentials(&subject).unwrap();
            assert_eq!(found.level, Level::Fail);
            assert!(found.detail.contains(said), "{found:?}");
            assert_eq!(worst_of(&reachable(&subject), "reachable").0, Level::Ok);
        }
    }

    #[test]
    fn access_error_of_doctor_alone_is_a_warning() {
        let mut subject = node("a");
        subject.seen.trouble = Some(Trouble { cause: NodeError::Lost, words: "closed".into() });
        assert_eq!(worst_of(&reachable(&subject), "reachable").0, Level::Warn);
    }
}
