//! Reads the node marker over doctor's own connection, after the library's client had time to write
//! it, and finds out whether the user may read and write the marker.
//!
//! This changes nothing on the node: `SET` with `NX` on a key that exists needs the permission, but
//! writes nothing; `SET` with `IFEQ`, where the node runs no scripts, writes what is there.

use redlatch::NodeError;
use redlatch::proto::{ID_DIGITS, Marker};

use super::examination::Examination;
use crate::connection::{Answer, Connection, Trouble};

/// Runs every command of the library's script on the marker, without changing it.
const TRY: &str = "local v = redis.call('GET', KEYS[1]) redis.call('TIME') \
    if v then redis.call('SET', KEYS[1], v, 'NX') end return v";

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seen {
    /// Doctor did not try to read the marker.
    #[default]
    Nothing,
    /// The node does not let the user read or write the marker; the error line of the node.
    Refused(String),
    /// There is no marker.
    Absent,
    /// Another program uses its key.
    Foreign,
    /// A later version of redlatch wrote it.
    OfLaterVersion,
    /// The marker names another identity of the node.
    OfAnother,
    /// The marker names the node's identity.
    Fits(Marker),
}

/// Reads the marker under this key.
pub fn read_marker(
    connection: &mut Connection,
    key: &str,
    seen: &Examination,
) -> Result<Seen, Trouble> {
    let key = key.as_bytes();
    let mut answer = connection.ask(&[b"EVAL", TRY.as_bytes(), b"1", key])?;
    if answer.refuses_scripts() {
        answer = connection.ask(&[b"GET", key])?;
        if let Answer::Text(text) = &answer {
            let text = text.as_bytes();
            let written = connection.ask(&[b"SET", key, text, b"IFEQ", text])?;
            if let Answer::Error(_) = written {
                answer = written;
            }
        }
    }
    Ok(read(answer, seen))
}

fn read(answer: Answer, seen: &Examination) -> Seen {
    let text = match answer {
        Answer::Text(text) => text,
        Answer::Nothing => return Seen::Absent,
        Answer::Error(line) if NodeError::of_error(line.as_bytes()) == NodeError::WrongType => {
            return Seen::Foreign;
        }
        // Some servers put other words before the error of a command inside a script.
        Answer::Error(line) if line.contains("WRONGTYPE") => return Seen::Foreign,
        Answer::Error(line) => return Seen::Refused(line),
        Answer::Number(_) | Answer::Many(_) => return Seen::Foreign,
    };
    let Some(marker) = Marker::parse(text.as_bytes()) else {
        let later = Marker::is_of_later_version(text.as_bytes());
        return if later { Seen::OfLaterVersion } else { Seen::Foreign };
    };
    let is = |id: Option<[u8; ID_DIGITS]>, field: &str| {
        seen.info(field).map(str::as_bytes) == id.as_ref().map(|id| &id[..])
    };
    let replid = marker.identity.replid;
    let fits = is(marker.identity.run_id, "run_id") && is(replid, "master_replid");
    if fits { Seen::Fits(marker) } else { Seen::OfAnother }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_key_states_are_distinguished() {
        let ids = ["a", "b"].map(|digit| digit.repeat(40));
        let names = ["run_id", "master_replid"].map(str::to_owned);
        let info = names.into_iter().zip(ids.clone()).collect();
        let mut seen = Examination { info, ..Examination::default() };
        let marker = format!("1 {} {} 17", ids[0], ids[1]);
        let text = || Answer::Text(marker.clone());
        let error = |line: &str| Answer::Error(line.to_owned());
        assert!(matches!(read(text(), &seen), Seen::Fits(marker) if marker.since_micros == 17));
        assert_eq!(read(Answer::Nothing, &seen), Seen::Absent);
        assert_eq!(read(Answer::Text("mine".into()), &seen), Seen::Foreign);
        let later = Answer::Text(format!("2 {} mine", ids[0]));
        assert_eq!(read(later, &seen), Seen::OfLaterVersion);
        assert_eq!(read(error("WRONGTYPE Operation"), &seen), Seen::Foreign);
        assert_eq!(read(error("ERR Error running script: WRONGTYPE"), &seen), Seen::Foreign);
        assert_eq!(read(error("NOPERM no"), &seen), Seen::Refused("NOPERM no".into()));
        seen.info.insert("run_id".into(), "c".repeat(40));
        assert_eq!(read(text(), &seen), Seen::OfAnother);
    }
}
