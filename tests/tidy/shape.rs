//! How long lines and files may be, and how a file begins. Clippy checks the length of functions,
//! by the threshold in clippy.toml.

use super::source::Source;

const COLUMNS: usize = 100;
const FILE_LINES: usize = 500;

/// The first line of a file is `//!` and says what the file is.
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

/// A file has at most 500 lines of code. Blank lines and comments do not count, and in the library
/// and the tool tests do not either.
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
    fn line_length_counts_characters() {
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
}
