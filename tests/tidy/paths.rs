//! The module paths that a Rust file names, as far as they can be found without a compiler.
//!
//! The reader reads `use` trees and paths in code. It resolves `crate`, `self` and `super`, also in
//! inline modules, and leaves every other first word as it is. The hazard is a macro that makes up
//! a path: it is not expanded.

use super::source::{Source, is_word};

/// One path that a file names.
pub struct Named {
    pub offset: usize,
    pub place: Place,
    /// Whether a `use` names it, so that the code can name what is below it by a shorter path.
    pub imported: bool,
}

pub enum Place {
    /// A path below the root of the package.
    Internal(Vec<String>),
    /// The path begins with the name of a crate, or of something imported elsewhere.
    External(Vec<String>),
}

/// The module path of a file; `None` outside of the library.
pub fn module_of(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|name| ["mod", "lib"].contains(&name.as_str())) {
        module.pop();
    }
    Some(module)
}

/// Every path in the code of a file whose module path is `module`.
pub fn paths(source: &Source, module: &[String]) -> Vec<Named> {
    let tokens = tokens(&source.code);
    let mut reader = Reader { tokens: &tokens, at: 0, module: module.to_vec(), found: Vec::new() };
    reader.run();
    reader.found
}

/// A word, `::`, or one other character, with its offset.
type Token<'a> = (usize, &'a str);

fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = code[at..].chars().next() {
        let rest = &code[at..];
        let length = match first {
            ':' if rest.starts_with("::") => 2,
            _ if first.len_utf8() == 1 && !is_word(rest.as_bytes()[0]) => 1,
            _ => rest.bytes().position(|byte| !is_word(byte)).unwrap_or(rest.len()),
        };
        if !first.is_whitespace() {
            tokens.push((at, &rest[..length]));
        }
        at += length;
    }
    tokens
}

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    module: Vec<String>,
    found: Vec<Named>,
}

impl Reader<'_> {
    fn run(&mut self) {
        let depth_of_file = self.module.len();
        // For each open brace, whether it opens a module.
        let mut braces = Vec::new();
        while self.at < self.tokens.len() {
            match self.word(0) {
                "{" => {
                    let module = self.back(2) == "mod" && is_name(self.back(1));
                    if module {
                        self.module.push(self.back(1).to_owned());
                    }
                    braces.push(module);
                    self.at += 1;
                }
                "}" => {
                    if braces.pop() == Some(true) && self.module.len() > depth_of_file {
                        self.module.pop();
                    }
                    self.at += 1;
                }
                // `use<'a>` in a type names no path.
                "use" if self.word(1) != "<" => {
                    self.at += 1;
                    self.tree(&[]);
                }
                word if is_name(word) && self.word(1) == "::" => self.inline(),
                _ => self.at += 1,
            }
        }
    }

    /// One branch of a `use`, from its first word to the `,`, `}` or `;` after it.
    fn tree(&mut self, before: &[String]) {
        let offset = self.offset();
        let mut segments = before.to_vec();
        loop {
            match self.word(0) {
                "{" => {
                    self.at += 1;
                    while !["}", ";", ""].contains(&self.word(0)) {
                        self.tree(&segments);
                        if self.word(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "::" => self.at += 1,
                // A glob or a `self` at the end names the module before it.
                "*" => self.at += 1,
                "as" => self.at += 2,
                "self" if !segments.is_empty() => self.at += 1,
                word if is_name(word) => {
                    segments.push(word.to_owned());
                    self.at += 1;
                }
                _ => break,
            }
        }
        // An unexpected token is skipped: otherwise the caller would read it again and again.
        if self.offset() == offset {
            self.at += 1;
        }
        self.push(offset, segments, true);
    }

    /// A path in code, from its first word.
    fn inline(&mut self) {
        let offset = self.offset();
        // `pub(in crate::proto)` only limits the visibility, and does not count as a name.
        let visibility = self.back(1) == "in" && self.back(2) == "(";
        let mut segments = vec![self.word(0).to_owned()];
        self.at += 1;
        while self.word(0) == "::" && is_name(self.word(1)) {
            segments.push(self.word(1).to_owned());
            self.at += 2;
        }
        // Skip the `::` of a turbofish or of a glob: it does not begin another path.
        if self.word(0) == "::" {
            self.at += 1;
        }
        if !visibility {
            self.push(offset, segments, false);
        }
    }

    fn push(&mut self, offset: usize, segments: Vec<String>, imported: bool) {
        let mut rest = segments.as_slice();
        let mut base = match rest.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.module.clone(),
            Some(_) => {
                self.found.push(Named { offset, place: Place::External(segments), imported });
                return;
            }
            None => return,
        };
        while let Some((first @ ("crate" | "self" | "super"), after)) =
            rest.split_first().map(|(first, after)| (first.as_str(), after))
        {
            if first == "super" {
                base.pop();
            }
            rest = after;
        }
        base.extend_from_slice(rest);
        self.found.push(Named { offset, place: Place::Internal(base), imported });
    }

    fn word(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.1)
    }

    fn back(&self, after: usize) -> &str {
        self.at.checked_sub(after).map_or("", |at| self.tokens[at].1)
    }

    fn offset(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.0)
    }
}

fn is_name(word: &str) -> bool {
    word.bytes().next().is_some_and(|byte| is_word(byte) && !byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str, text: &str) -> Vec<String> {
        let module = module_of(path).expect("a path in src");
        let named = paths(&Source::new(path, text), &module);
        let show = |named: Named| match named.place {
            Place::Internal(segments) => format!("/{}", segments.join("::")),
            Place::External(segments) => segments.join("::"),
        };
        named.into_iter().map(show).collect()
    }

    #[test]
    fn modules_follow_files() {
        let module = |path| module_of(path).map(|module| module.join("::"));
        assert_eq!(module("src/lib.rs").as_deref(), Some(""));
        assert_eq!(module("src/proto/mod.rs").as_deref(), Some("proto"));
        assert_eq!(
            module("src/proto/wire/resp/tests.rs").as_deref(),
            Some("proto::wire::resp::tests")
        );
        assert_eq!(module("tests/servers.rs"), None);
        assert_eq!(module("cli/src/main.rs"), None);
    }

    #[test]
    fn use_trees_are_read_as_single_paths() {
        let text = "use a::{b, c::{self, d as e, f::*}, g}; pub use super::h; use i;";
        let expected = ["a::b", "a::c", "a::c::d", "a::c::f", "a::g", "/proto::h", "i"];
        assert_eq!(read("src/proto/x.rs", text), expected);
        assert_eq!(read("src/x.rs", "use {a::b, crate::c,}; use ::d::e;"), ["a::b", "/c", "d::e"]);
    }

    #[test]
    fn paths_in_code_are_read() {
        let text = "fn f(x: &crate::a::B<c::D>) -> impl X + use<'a> { super::e::g::<h::I>(1..2) }";
        assert_eq!(read("src/proto/x.rs", text), ["/a::B", "c::D", "/proto::e::g", "h::I"]);
        assert_eq!(read("src/x.rs", "m! { $crate::y::z }; \"a::b\" // c::d"), ["/y::z"]);
    }

    #[test]
    fn inline_modules_are_one_deeper() {
        let text = "mod y { use super::a; mod z { use super::super::b; } } use self::c;";
        assert_eq!(read("src/x.rs", text), ["/x::a", "/x::b", "/x::c"]);
    }

    #[test]
    fn parser_ends_at_broken_code() {
        for broken in ["use", "use a::{", "use a::{b", "use ;", "use {,};", "a::", "use =;", "}}}"]
        {
            read("src/x.rs", broken);
        }
    }
}
