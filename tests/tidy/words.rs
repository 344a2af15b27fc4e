//! Words that the code may not have, and words that need a reason. Comments and strings may contain
//! any word.

use super::source::{Source, closing, is_word};

const BAD_NAMES: [&str; 8] =
    ["util", "utils", "common", "helper", "helpers", "types", "manager", "managers"];

/// No file and no module has one of the bad names.
pub fn names(source: &Source) -> Vec<String> {
    let parts = source.path.split(['/', '.']);
    let mut findings: Vec<String> = parts
        .filter(|part| BAD_NAMES.contains(part))
        .map(|part| source.finding(0, &format!("a name that says nothing: {part}")))
        .collect();
    for at in source.offsets_of_word("mod") {
        let name = source.code[at + 3..].trim_start();
        let end = name.bytes().position(|byte| !is_word(byte)).unwrap_or(name.len());
        let name = &name[..end];
        if BAD_NAMES.contains(&name) {
            findings.push(source.finding(at, &format!("a name that says nothing: {name}")));
        }
    }
    findings
}

/// The root of the library and of each binary has the attributes that forbid `unsafe` and `unwrap`
/// in all modules below it. Examples, fuzz targets and what the benches share forbid `unsafe`, too.
pub fn forbids_unsafe(source: &Source) -> Vec<String> {
    let path = source.path.as_str();
    let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    // That bench starts the servers of the tests, whose signals need an unsafe call.
    let is_root = is_root && path != "benches/peers/src/main.rs";
    let is_example = path.starts_with("examples/") && path.matches('/').count() == 1;
    let is_root = is_root || is_example || path.starts_with("fuzz/fuzz_targets/");
    let has = |attribute: &str| source.code.contains(attribute);
    let lacks = |attribute| format!("a root without {attribute}");
    let mut findings = Vec::new();
    if is_root && !has("#![forbid(unsafe_code)]") {
        findings.push(source.finding(0, &lacks("#![forbid(unsafe_code)]")));
    }
    if is_root && source.is_shipped() && !has("clippy::unwrap_used") {
        findings.push(source.finding(0, &lacks("clippy::unwrap_used")));
    }
    findings
}

/// No `expect` has an empty text.
pub fn expect_has_a_reason(source: &Source) -> Vec<String> {
    let calls = source.code.match_indices(".expect(").map(|(at, text)| (at, at + text.len()));
    let empty = calls.filter(|&(_, inside)| {
        let reason = source.literal(source.next_visible(inside));
        reason.is_some_and(|reason| reason.trim().is_empty())
    });
    empty.map(|(at, _)| source.finding(at, "expect without a reason")).collect()
}

/// `if a && let Some(b) = c` and `if let Some(b) = c && a` need a newer compiler than Rust 1.85.
pub fn no_let_chains(source: &Source) -> Vec<String> {
    let mut places = Vec::new();
    for at in source.offsets_of_word("let") {
        let before = source.code[..at].trim_end();
        let length = before.bytes().rev().take_while(|&byte| is_word(byte)).count();
        let conditional = ["if", "while"].contains(&&before[before.len() - length..]);
        let chained = conditional && has_operator(&source.code[at..]);
        if chained || before.ends_with("&&") {
            places.push(at);
        }
    }
    found(source, &places, "a let chain, which Rust 1.85 does not have")
}

/// Every ignored test says what it needs and how to get that: `needs X: how to install it`.
pub fn ignored_says_why(source: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for at in source.offsets_of_word("ignore") {
        let Some(open) = source.code[..at].rfind("#[") else { continue };
        if closing(&source.code, open + 1) < at {
            continue;
        }
        let equals = source.next_visible(at + "ignore".len());
        let reason = if source.code[equals..].starts_with('=') {
            source.literal(source.next_visible(equals + 1))
        } else {
            None
        };
        let parts = reason.and_then(|text| text.strip_prefix("needs ")?.split_once(": "));
        if !parts.is_some_and(|(what, how)| !what.trim().is_empty() && !how.trim().is_empty()) {
            findings.push(source.finding(at, "ignored without \"needs X: how to install\""));
        }
    }
    findings
}

fn found(source: &Source, places: &[usize], what: &str) -> Vec<String> {
    places.iter().map(|&at| source.finding(at, what)).collect()
}

/// Whether `&&` or `||` is outside of all brackets between the `=` of a condition and its `{`.
fn has_operator(condition: &str) -> bool {
    let bytes = condition.as_bytes();
    let (mut at, mut assigned) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'(' | b'[' => at = closing(condition, at),
            // Before the `=` a brace belongs to the pattern. After it, a brace opens the block.
            b'{' if assigned => return false,
            b'{' => at = closing(condition, at),
            b';' => return false,
            b'=' if !assigned => {
                assigned = true;
                // `= &&x` is a reference to a reference.
                at += condition[at + 1..].bytes().take_while(|b| b" \n&*".contains(b)).count();
            }
            b'&' | b'|' if assigned && bytes.get(at + 1) == Some(&byte) => {
                // This is no closure `|| x`: those are inside brackets, which were skipped.
                return true;
            }
            _ => {}
        }
        at += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("src/x.rs", text)
    }

    #[test]
    fn empty_names_are_found() {
        assert_eq!(names(&source("mod utility; mod ops {} // mod util\n")), [""; 0]);
        assert_eq!(names(&source("pub mod util;")), ["src/x.rs:1: a name that says nothing: util"]);
        assert_eq!(names(&source("\nmod types {}")).len(), 1);
        assert_eq!(names(&source("mod helpers{}")).len(), 1);
        assert_eq!(names(&Source::new("tests/common/mod.rs", "")).len(), 1);
        assert_eq!(names(&Source::new("src/net/manager.rs", "")).len(), 1);
    }

    #[test]
    fn crate_roots_have_to_forbid_unsafe_code() {
        let root = |path, text| forbids_unsafe(&Source::new(path, text)).len();
        let both = "#![forbid(unsafe_code)]\n#![warn(clippy::unwrap_used)]";
        assert_eq!(root("src/lib.rs", both), 0);
        assert_eq!(root("src/lib.rs", "#![forbid(unsafe_code)]"), 1);
        assert_eq!(root("src/lib.rs", "// #![forbid(unsafe_code)]"), 2);
        assert_eq!(root("cli/src/main.rs", "fn main() {}"), 2);
        assert_eq!(root("benches/kit/src/lib.rs", "pub mod a;"), 1);
        assert_eq!(root("benches/kit/src/lib.rs", "#![forbid(unsafe_code)]"), 0);
        assert_eq!(root("examples/mio.rs", "fn main() {}"), 1);
        assert_eq!(root("fuzz/fuzz_targets/reply.rs", "#![no_main]"), 1);
        assert_eq!(root("examples/stores/tests/paused.rs", ""), 0);
        assert_eq!(root("cli/src/exec.rs", ""), 0);
    }

    #[test]
    fn expect_with_an_empty_reason_is_found() {
        assert_eq!(expect_has_a_reason(&source("x.expect(\"why\"); x.expect(REASON);")), [""; 0]);
        assert_eq!(expect_has_a_reason(&source("x.expect(\"\")")).len(), 1);
        assert_eq!(expect_has_a_reason(&source("x.expect(\n    \" \",\n)")).len(), 1);
        assert_eq!(expect_has_a_reason(&source("x.expect(r\"\")")).len(), 1);
    }

    #[test]
    fn let_chains_are_found() {
        for bad in [
            "if a && let Some(b) = c {",
            " while a\n    && let Some(b) = c {",
            " if let Some(b) = c && d {",
            " if let Some(b) = f(|x| x || y)\n        || d {",
            " } else if let P { x } = c && d {",
            " while let Some(b) = c() && d() {",
        ] {
            assert_eq!(no_let_chains(&source(bad)).len(), 1, "{bad}");
        }
        for good in [
            " if let Some(b) = (c && d) { x && y }",
            " if let Some(b) = c.filter(|x| x.a && x.b) { }",
            " if let Some(&&b) = &&c { e && f }",
            "let a = b && c; if a { let d = e || f; }",
            " if let P { x: true, .. } = c { a && b }",
            "// if a && let Some(b) = c\nlet Some(a) = b else { return c && d };",
        ] {
            assert_eq!(no_let_chains(&source(good)), [""; 0], "{good}");
        }
    }

    #[test]
    fn ignored_test_without_a_reason_is_found() {
        let good = "#[ignore = \"needs valkey: apt-get install valkey\"] fn ignore() { ignore(); }";
        assert_eq!(ignored_says_why(&source(good)), [""; 0]);
        for bad in [
            "#[ignore] fn f() {}",
            "#[ignore = \"slow\"]",
            "#[ignore = \"needs valkey\"]",
            "#[ignore = \"needs : how\"]",
            "#[cfg_attr(miri, ignore)]",
            "#[test]\n#[ignore = \"needs x: \"]",
        ] {
            assert_eq!(ignored_says_why(&source(bad)).len(), 1, "{bad}");
        }
    }
}
