//! Notes beside the key of a lock, on real servers.

use super::*;
use redlatch::proto::Note;
use redlatch::{KeySummary, NodeReply, Op, Outcome};

/// Makes a request, and returns its outcome.
fn ask(embedded: &mut Loop, ask: impl FnOnce(&mut Engine) -> Result<Op, Error>) -> Outcome {
    let op = ask(&mut embedded.engine).expect("it can be asked");
    let done = embedded.completion();
    assert_eq!(done.op, op);
    done.result.expect("it has an outcome")
}

fn write(embedded: &mut Loop, note: Note, text: &str, ttl: Duration) {
    let written = ask(embedded, |it| it.write_note(b"a", note, text.as_bytes(), ttl, 1));
    let Outcome::Noted(report) = written else { panic!("{written:?}") };
    assert!(report.nodes.iter().all(|node| node.reply == NodeReply::Granted), "{report:?}");
}

fn read(embedded: &mut Loop, note: Note) -> KeySummary {
    match ask(embedded, |it| it.read_note(b"a", note, 2)) {
        Outcome::Inspected(seen) => seen.summary(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn note_is_on_every_node_until_its_ttl_is_over_and_replaces_an_earlier_one() {
    let (fleet, mut embedded) = fleet_and_loop(3);
    assert_eq!(read(&mut embedded, Note::Leader), KeySummary::Free);
    write(&mut embedded, Note::Leader, "an earlier one", TTL);
    let text = format!("{} 9007199254740991 99 {}", "f".repeat(40), "x".repeat(99));
    write(&mut embedded, Note::Leader, &text, TTL * 12);
    assert_eq!(fleet.values("redlatch:leader:{a}"), vec![text.as_bytes(); 3]);
    assert!(fleet.iter().all(|node| node.pttl("redlatch:leader:{a}") > 60_000));
    let KeySummary::Held { value, nodes: 3, left: Some(_) } = read(&mut embedded, Note::Leader)
    else {
        panic!("it is not there");
    };
    assert_eq!(value.as_bytes(), text.as_bytes(), "it is read whole");
    write(&mut embedded, Note::Resign, "soon over", millis(50));
    eventually(SOON, "its ttl is over", || fleet.values("redlatch:resign:{a}").is_empty());
    assert_eq!(read(&mut embedded, Note::Resign), KeySummary::Free);
    assert_eq!(fleet.keys_everywhere().len(), 3, "the other one stays");
}
