//! How long things are, and how a file opens.
//!
//! The one hazard: a function is found by its `fn` and its braces, without a grammar.

use super::source::{Source, closing, is_word};

const COLUMNS: usize = 100;
const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;

/// A file opens with `//!` and says what it is.
pub fn header(source: &Source) -> Vec<String> {
    let first = source.text.lines().next().unwrap_or_default();
    let says = first.strip_prefix("//! ").is_some_and(|text| text.trim().len() >= 10);
    if says { Vec::new() } else { vec![source.finding(0, "does not open with //! and a line")] }
}

pub fn columns(source: &Source) -> Vec<String> {
    let lines = source.text.lines().enumerate();
    let long = lines.filter(|(_, line)| line.chars().count() > COLUMNS);
    long.map(|(i, line)| format!("{}:{}: {} columns", source.path, i + 1, line.chars().count()))
        .collect()
}

/// Lines of code: without blanks, comments, and the tests in a file of library or tool.
pub fn file_size(source: &Source) -> Vec<String> {
    if source.is_shipped() && source.is_test_file() {
        return Vec::new();
    }
    let mut offset = 0;
    let mut lines = 0;
    for line in source.code.split_inclusive('\n') {
        let tested = source.is_shipped() && source.is_test(offset);
        lines += usize::from(!tested && !line.trim().is_empty());
        offset += line.len();
    }
    if lines <= FILE_LINES {
        return Vec::new();
    }
    vec![source.finding(0, &format!("{lines} lines of code; {FILE_LINES} are allowed"))]
}

pub fn function_size(source: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for start in source.words("fn") {
        let Some((name, body)) = body(&source.code, start) else { continue };
        let lines = 1 + source.line(closing(&source.code, body)) - source.line(start);
        if lines > FUNCTION_LINES {
            let what = format!("{name} has {lines} lines; {FUNCTION_LINES} are allowed");
            findings.push(source.finding(start, &what));
        }
    }
    findings
}

/// The name of the function and where its body opens; `None` for a type or a declaration.
fn body(code: &str, start: usize) -> Option<(&str, usize)> {
    let rest = code[start + 2..].trim_start();
    let length = rest.bytes().position(|byte| !is_word(byte))?;
    if length == 0 {
        return None;
    }
    let mut at = code.len() - rest.len() + length;
    while at < code.len() {
        match code.as_bytes()[at] {
            b'(' | b'[' => at = closing(code, at),
            b'{' => return Some((&rest[..length], at)),
            b';' => return None,
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("src/x.rs", text)
    }

    #[test]
    fn a_header_is_a_sentence() {
        assert_eq!(header(&source("//! What this file is.\nx")), [""; 0]);
        for bad in ["", "use x;\n//! What this file is.", "//!\n//! Late.", "// What it is."] {
            assert_eq!(header(&source(bad)).len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn columns_are_characters() {
        assert_eq!(columns(&source(&"é".repeat(100))), [""; 0]);
        let found = columns(&source(&format!("\n{}", "x".repeat(101))));
        assert_eq!(found, ["src/x.rs:2: 101 columns"]);
    }

    #[test]
    fn comments_blanks_and_tests_are_not_code() {
        let code = "let a = 1;\n\n// why\n".repeat(500);
        assert_eq!(file_size(&source(&code)), [""; 0]);
        let found = file_size(&source(&format!("{code}let b = 2;")));
        assert_eq!(found, ["src/x.rs:1: 501 lines of code; 500 are allowed"]);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{code}{code}}}\n");
        assert_eq!(file_size(&source(&tests)), [""; 0]);
        assert_eq!(file_size(&Source::new("tests/x.rs", &tests)).len(), 1);
        assert_eq!(file_size(&Source::new("src/x/tests.rs", &tests)), [""; 0]);
    }

    #[test]
    fn a_function_is_measured_to_its_own_brace() {
        let with = |lines: usize| {
            let body = "    f('}', \"}\"); // }\n".repeat(lines);
            source(&format!("fn g(a: [u8; 2]) -> fn(u8) where X: Y {{\n{body}}}\nfn h() {{}}\n"))
        };
        assert_eq!(function_size(&with(68)), [""; 0]);
        let found = function_size(&with(69));
        assert_eq!(found, ["src/x.rs:1: g has 71 lines; 70 are allowed"]);
        let long = "\n".repeat(80);
        assert_eq!(function_size(&source(&format!("fn f();{long}fn(u8);{long}{{}}"))), [""; 0]);
    }

    #[test]
    fn a_function_inside_another_is_measured_too() {
        let inner = format!("fn inner() {{{}}}", "\n".repeat(75));
        let found = function_size(&source(&format!("impl X {{ {inner} }}")));
        assert_eq!(found, ["src/x.rs:1: inner has 76 lines; 70 are allowed"]);
    }
}
