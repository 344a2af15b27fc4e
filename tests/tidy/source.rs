//! One Rust file as the rules read it: its text, and its text with masked comments and strings.
//!
//! A small lexer masks them: it knows comments, strings, characters and lifetimes, and no grammar.
//! The hazard is an offset: it counts bytes, and has to be the same place in both texts.

use std::ops::Range;
use std::path::Path;

pub struct Source {
    /// The path from the root of the package, with `/`.
    pub path: String,
    pub text: String,
    /// `text` with blanks instead of comments and `_` instead of what is inside quotes. Lines keep
    /// their places.
    pub code: String,
    /// The text between quotes, with the offset at which the literal begins: that of its quote, or
    /// of the prefix before it.
    pub literals: Vec<(usize, String)>,
    /// The ranges of the items under `#[cfg(test)]`. In a file of tests: the whole file.
    tests: Vec<Range<usize>>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let mut masked = Mask { text, code: Vec::new(), literals: Vec::new() };
        masked.run();
        let code = String::from_utf8(masked.code).expect("masking replaces whole characters");
        let file = Path::new(path);
        let named_tests = file.components().any(|part| {
            let part = part.as_os_str();
            part == "tests" || part == "tests.rs"
        });
        let tests = if named_tests || !is_shipped(path) {
            std::iter::once(0..text.len()).collect()
        } else {
            test_items(&code)
        };
        let literals = masked.literals;
        Source { path: path.to_owned(), text: text.to_owned(), code, literals, tests }
    }

    /// A finding of a rule: `file:line: what`.
    pub fn finding(&self, offset: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path, self.line(offset))
    }

    /// The number of the line, counted from 1.
    pub fn line(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
    }

    pub fn is_test(&self, offset: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&offset))
    }

    /// Whether the whole file is tests: it is in a folder `tests`, is called `tests.rs`, or is
    /// outside of the library and the tool.
    pub fn is_test_file(&self) -> bool {
        self.tests.first().is_some_and(|range| *range == (0..self.text.len()))
    }

    /// Whether the file belongs to the library or to the tool, and not to tests, benches or
    /// examples.
    pub fn is_shipped(&self) -> bool {
        is_shipped(&self.path)
    }

    /// The offsets at which the code has this word, and not as a part of a longer word.
    pub fn offsets_of_word(&self, word: &str) -> Vec<usize> {
        let bytes = self.code.as_bytes();
        let ends = |at: usize| !bytes.get(at).is_some_and(|&byte| is_word(byte));
        self.code
            .match_indices(word)
            .map(|(at, _)| at)
            .filter(|&at| (at == 0 || ends(at - 1)) && ends(at + word.len()))
            .collect()
    }

    /// The content of the literal that begins at `offset`.
    pub fn literal(&self, offset: usize) -> Option<&str> {
        let found = self.literals.iter().find(|(start, _)| *start == offset)?;
        Some(&found.1)
    }

    /// The offset of the next character of code that is not blank.
    pub fn next_visible(&self, from: usize) -> usize {
        let rest = &self.code[from..];
        from + (rest.len() - rest.trim_start().len())
    }
}

fn is_shipped(path: &str) -> bool {
    ["src/", "cli/src/"].iter().any(|folder| path.starts_with(folder))
}

pub fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || byte >= 0x80
}

/// The offset at which the bracket that opens at `open` is closed, or the end of the code.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (i, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    code.len()
}

struct Mask<'a> {
    text: &'a str,
    code: Vec<u8>,
    literals: Vec<(usize, String)>,
}

impl Mask<'_> {
    fn run(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.code.len()) {
            let at = self.code.len();
            let rest = &bytes[at..];
            if rest.starts_with(b"//") {
                let end = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
                self.blank(end, b' ');
            } else if rest.starts_with(b"/*") {
                self.blank(block_comment(rest), b' ');
            } else if byte == b'"' {
                self.string(at, 1);
            } else if byte == b'\'' {
                self.quote(rest);
            } else if is_word(byte) {
                self.word(rest);
            } else {
                self.copy(1);
            }
        }
    }

    /// Copies a word, or masks a literal that begins with one: `r"`, `br#"`, `b"`, `c"`, `b'`.
    fn word(&mut self, rest: &[u8]) {
        let at = self.code.len();
        let length = rest.iter().position(|&byte| !is_word(byte)).unwrap_or(rest.len());
        let hashes = rest[length..].iter().take_while(|&&byte| byte == b'#').count();
        let quote = rest.get(length + hashes);
        match &rest[..length] {
            b"r" | b"br" | b"cr" if quote == Some(&b'"') => self.raw_string(at, length, hashes),
            b"b" | b"c" if rest.get(length) == Some(&b'"') => self.string(at, length + 1),
            b"b" if rest.get(length) == Some(&b'\'') => {
                self.copy(length);
                self.quote(&rest[length..]);
            }
            _ => self.copy(length),
        }
    }

    /// Masks a string up to the next quote that is not escaped. `opening` is the length of the
    /// prefix and the quote.
    fn string(&mut self, start: usize, opening: usize) {
        self.copy(opening);
        let rest = &self.text.as_bytes()[self.code.len()..];
        let mut length = 0;
        while length < rest.len() && rest[length] != b'"' {
            length += if rest[length] == b'\\' { 2 } else { 1 };
        }
        self.literal(start, length.min(rest.len()), 1);
    }

    fn raw_string(&mut self, start: usize, prefix: usize, hashes: usize) {
        self.copy(prefix + hashes + 1);
        let end = format!("\"{}", "#".repeat(hashes));
        let rest = &self.text[self.code.len()..];
        self.literal(start, rest.find(&end).unwrap_or(rest.len()), end.len());
    }

    fn literal(&mut self, start: usize, length: usize, closing: usize) {
        let from = self.code.len();
        self.literals.push((start, self.text[from..from + length].to_owned()));
        self.blank(length, b'_');
        self.copy(closing);
    }

    /// Masks a character literal, or copies the quote of a lifetime.
    fn quote(&mut self, rest: &[u8]) {
        let escaped = rest.get(1) == Some(&b'\\');
        let from = self.code.len() + 1;
        let width = self.text[from..].chars().next().map_or(0, char::len_utf8);
        if escaped {
            let end = rest.iter().skip(3).position(|&byte| byte == b'\'').map_or(0, |at| at + 2);
            self.copy(1);
            self.blank(end, b'_');
            self.copy(1);
        } else if rest.get(1 + width) == Some(&b'\'') {
            self.copy(1);
            self.blank(width, b'_');
            self.copy(1);
        } else {
            self.copy(1);
        }
    }

    fn copy(&mut self, length: usize) {
        let from = self.code.len();
        let to = (from + length).min(self.text.len());
        self.code.extend_from_slice(&self.text.as_bytes()[from..to]);
    }

    fn blank(&mut self, length: usize, with: u8) {
        let from = self.code.len();
        let bytes = &self.text.as_bytes()[from..from + length];
        self.code.extend(bytes.iter().map(|&byte| if byte == b'\n' { byte } else { with }));
    }
}

/// The length of the block comment at the start, with the comments nested in it.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The ranges from each `#[cfg(test)]` to the end of the item after it, which is its closing brace
/// or its semicolon.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let attributes = ["#[cfg(test)]", "#[cfg(all(test"];
    let starts = attributes.iter().flat_map(|text| code.match_indices(text)).map(|(at, _)| at);
    let mut ranges = Vec::new();
    for start in starts {
        let mut at = start;
        while at < code.len() {
            match code.as_bytes()[at] {
                b'{' => {
                    at = closing(code, at);
                    break;
                }
                b'[' | b'(' => at = closing(code, at),
                b';' => break,
                _ => {}
            }
            at += 1;
        }
        ranges.push(start..(at + 1).min(code.len()));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let source = Source::new("src/x.rs", text);
        assert_eq!(source.code.len(), text.len());
        source.code
    }

    #[test]
    fn comments_become_blanks() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */ d */ e"), format!("a {} e", " ".repeat(17)));
        assert_eq!(code("/* never ends"), " ".repeat(13));
        // A masked character has as many blanks as bytes: é has two.
        assert_eq!(code("//! é\nx"), "      \nx");
    }

    #[test]
    fn strings_become_underscores() {
        assert_eq!(code(r#"f("a//b")"#), r#"f("____")"#);
        assert_eq!(code(r#"f("a\"b", c)"#), r#"f("____", c)"#);
        assert_eq!(code(r##"r#"a"b"#.x"##), r##"r#"___"#.x"##);
        assert_eq!(code(r#"b"ab" c"d" br"e" "#), r#"b"__" c"_" br"_" "#);
        assert_eq!(code("\"a\nb\""), "\"_\n_\"");
        assert_eq!(code("\"never ends"), "\"__________");
        assert_eq!(code(r#"r#type r"\" x"#), r#"r#type r"_" x"#);
    }

    #[test]
    fn characters_are_not_lifetimes() {
        assert_eq!(code(r"'{' '\'' '\n' '\u{7d}' b'{' b'\\'"), "'_' '__' '__' '______' b'_' b'__'");
        assert_eq!(code("<'a, 'b>(x: &'a str) 'l: loop"), "<'a, 'b>(x: &'a str) 'l: loop");
        assert_eq!(code("'é' '\"' x"), "'__' '_' x");
    }

    #[test]
    fn literals_are_found_by_their_place() {
        let source = Source::new("src/x.rs", "f(\"one\", r#\"two\"#)");
        assert_eq!(source.literal(2), Some("one"));
        assert_eq!(source.literal(9), Some("two"));
        assert_eq!(source.literal(3), None);
    }

    #[test]
    fn words_are_found_only_as_whole_words() {
        let source = Source::new("src/x.rs", "un unsafe_code; unsafe {} // unsafe\n\"unsafe\"");
        assert_eq!(source.offsets_of_word("unsafe"), [16]);
    }

    #[test]
    fn tests_end_with_their_brace() {
        let text = "a\n#[cfg(test)]\n#[allow(x)]\nmod tests { b('{') }\nc";
        let source = Source::new("src/x.rs", text);
        let is_test = |needle| source.is_test(text.find(needle).expect("it is there"));
        assert!(!is_test("a\n") && is_test("b(") && is_test(" }") && !is_test("\nc"));
        let declared = Source::new("src/x.rs", "#[cfg(test)]\nmod tests;\nfn f() {}");
        assert!(declared.is_test(14) && !declared.is_test(26));
        assert!(!source.is_test_file());
        assert!(Source::new("src/x/tests.rs", "x").is_test_file());
        assert!(Source::new("tests/x.rs", "x").is_test_file());
        assert!(Source::new("cli/tests/x.rs", "x").is_test_file());
        assert!(!Source::new("cli/src/x.rs", "x").is_test_file());
        assert!(!Source::new("src/x.rs", "#[cfg(any(test, y))] fn f() {}").is_test(25));
    }

    #[test]
    fn lines_count_from_one() {
        let source = Source::new("src/x.rs", "a\nb\n");
        assert_eq!((source.line(0), source.line(2)), (1, 2));
        assert_eq!(source.finding(2, "bad"), "src/x.rs:2: bad");
    }
}
