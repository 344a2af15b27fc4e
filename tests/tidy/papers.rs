//! Rules for what is not Rust: README, docs, Cargo.toml, and traces of one machine in any file.
//!
//! The hazard is that this file is searched as well: so it puts together piece by piece the texts
//! that may not occur.

/// The command of README that needs nothing but a compiler.
pub const DEMO: &str = "cargo run --release -p redlatch-cli -- demo";

/// The command that a contributor types to run all tests.
pub const TEST: &str = "$(command -v sudo) apt-get install -y redis-server && \
    cargo test --workspace --all-features";

/// The file of the safety rules, each with the tests that fail without it.
pub const RULES: &str = "docs/rules.md";

/// How many safety rules there are.
const RULE_COUNT: usize = 38;

/// README and clippy.toml have the Rust version of Cargo.toml.
pub fn msrv(readme: &str, cargo: &str, clippy: &str) -> Vec<String> {
    let wanted = quoted(cargo, "rust-version");
    let mut findings = Vec::new();
    if quoted(clippy, "msrv") != wanted {
        findings.push(format!("clippy.toml: its msrv is not the rust-version {wanted:?}"));
    }
    let mut is_named = false;
    for (i, line) in readme.lines().enumerate() {
        if !line.contains("MSRV") && !line.contains("upported Rust version") {
            continue;
        }
        for version in line.split(|c: char| !c.is_ascii_digit() && c != '.') {
            let version = version.trim_matches('.');
            if version.starts_with("1.") {
                is_named = true;
                if Some(version) != wanted {
                    findings.push(format!("README.md:{}: {version}, not {wanted:?}", i + 1));
                }
            }
        }
    }
    if !is_named {
        findings.push("README.md:1: no line tells the minimum supported Rust version".to_owned());
    }
    findings
}

/// README has the two commands.
pub fn readme_commands(readme: &str) -> Vec<String> {
    let missing = [DEMO, TEST].into_iter().filter(|command| !readme.contains(command));
    missing.map(|command| format!("README.md:1: does not name: {command}")).collect()
}

/// `.ci/run` runs the test command that a contributor types.
pub fn ci_test_command(script: &str) -> Vec<String> {
    let wanted = TEST.rsplit(" && ").next().unwrap_or(TEST);
    let command = |line: &str| line.trim_end_matches(" --no-fail-fast").ends_with(wanted);
    let runs = |line: &str| !line.starts_with('#') && command(line);
    if script.lines().any(|line| runs(line.trim())) {
        return Vec::new();
    }
    vec![format!(".ci/run:1: does not run: {wanted}")]
}

/// Every dependency in a manifest has a comment above it.
pub fn dependencies(path: &str, cargo: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut inside = false;
    let mut above = "";
    for (i, line) in cargo.lines().enumerate() {
        let header = line.trim().strip_prefix('[').map(|rest| rest.trim_end_matches(']'));
        let mut named = false;
        if let Some(header) = header {
            inside = header.ends_with("dependencies");
            named = header.contains("dependencies.");
        } else if inside {
            let first = line.bytes().next();
            named = first.is_some_and(|byte| byte.is_ascii_alphabetic()) && line.contains('=');
        }
        if named && !above.starts_with('#') {
            findings.push(format!("{path}:{}: a dependency without a comment: {line}", i + 1));
        }
        above = line;
    }
    findings
}

/// The safety rules are numbered in order, each names a test or says that it has none, and every
/// named test exists. A test is named as `file: function`, and further tests of that file, also on
/// indented lines below, as `function`. `source` reads a file of the tree, if it exists.
pub fn rules(text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut rules = 0;
    let mut has_test = true;
    let mut file = "";
    for (i, line) in text.lines().enumerate() {
        if !line.starts_with("  ") {
            file = "";
        }
        let mut finding = |what: &str| findings.push(format!("{RULES}:{}: {what}", i + 1));
        if line.starts_with('#') {
            if !has_test {
                finding("the rule above names no test and does not say \"No test yet: ...\"");
            }
            has_test = true;
        }
        if let Some(heading) = line.strip_prefix("### ") {
            rules += 1;
            has_test = false;
            if !heading.starts_with(&format!("{rules}. ")) {
                finding(&format!("rule {rules} is expected here"));
            }
        } else if line.starts_with("No test yet: ") {
            has_test = true;
        } else if line.starts_with("- `") || !file.is_empty() && line.starts_with("  `") {
            has_test = true;
            // Only what is in backticks is a name: a remark may follow it.
            for named in line.split('`').skip(1).step_by(2) {
                let (path, name) = named.split_once(": ").unwrap_or((file, named));
                file = path;
                match source(file) {
                    None if file.is_empty() => finding("a test is named as `file: function`"),
                    None => finding(&format!("there is no file {file}")),
                    Some(text) if !has_test_named(&text, name) => {
                        finding(&format!("there is no test {name} in {file}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    if rules != RULE_COUNT {
        findings.push(format!("{RULES}:1: {rules} rules, not {RULE_COUNT}"));
    }
    findings
}

/// The states of each diagram are the variants of the enum that the text above it names: "`Enum` in
/// `file`". `source` reads a file of the tree.
pub fn diagrams(path: &str, text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut findings = Vec::new();
    let (mut named, mut count) = (None, 0);
    let mut lines = text.lines().enumerate();
    while let Some((i, line)) = lines.next() {
        if let [_, name, " in ", file, ..] = line.split('`').collect::<Vec<_>>()[..] {
            named = Some((name, file));
        }
        if line != "stateDiagram-v2" {
            continue;
        }
        count += 1;
        let drawn = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let mut states: Vec<&str> = drawn.flat_map(ends_of_an_arrow).collect();
        states.sort_unstable();
        states.dedup();
        let Some((name, file)) = named.take() else {
            findings.push(format!("{path}:{}: no line above names its enum", i + 1));
            continue;
        };
        let mut variants = source(file).map(|text| variants(&text, name)).unwrap_or_default();
        variants.sort_unstable();
        if states != variants {
            let what = format!("the diagram has {states:?}, and {name} in {file} {variants:?}");
            findings.push(format!("{path}:{}: {what}", i + 1));
        }
    }
    if count == 0 {
        findings.push(format!("{path}:1: it has no diagram"));
    }
    findings
}

/// The states in a line `A --> B: why` of a diagram.
fn ends_of_an_arrow(line: &str) -> Vec<&str> {
    let Some((from, to)) = line.split_once(" --> ") else { return Vec::new() };
    let ends = [from.trim(), to.split(':').next().unwrap_or(to).trim()];
    ends.into_iter().filter(|state| *state != "[*]").collect()
}

/// The names of the variants of an enum: the first words of the lines in its block.
fn variants(text: &str, name: &str) -> Vec<String> {
    let head = format!("enum {name} {{");
    let lines = text.lines().skip_while(|line| !line.ends_with(&head)).skip(1);
    let lines = lines.take_while(|line| *line != "}").filter_map(|line| line.strip_prefix("    "));
    let is_variant = |line: &&str| line.starts_with(|c: char| c.is_ascii_uppercase());
    let word = |line: &str| line.chars().take_while(char::is_ascii_alphanumeric).collect();
    lines.filter(is_variant).map(word).collect()
}

/// Every file or folder that a Markdown file names in backticks exists. A Rust file that is named
/// without a folder has to be in the folder of the last path before it.
pub fn paths(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let folders = ["src/", "cli/", "tests/", "benches/", "fuzz/", "examples/", "docs/"];
    let mut findings = Vec::new();
    let mut last_folder = "";
    for (i, line) in text.lines().enumerate() {
        for named in line.split('`').skip(1).step_by(2) {
            // A test is named as `file: function`.
            let named = named.split(": ").next().unwrap_or(named);
            let is_path = folders.iter().any(|folder| named.starts_with(folder));
            let is_file = named.ends_with(".rs") && !named.contains('/');
            if !(is_path || is_file) || named.contains([' ', '*']) {
                continue;
            }
            if is_path {
                last_folder = named.rfind('/').map_or("", |slash| &named[..=slash]);
            }
            let named = if is_path { named.to_owned() } else { format!("{last_folder}{named}") };
            if !exists(&named) {
                findings.push(format!("{path}:{}: there is no {named}", i + 1));
            }
        }
    }
    findings
}

/// Every test that a Markdown file names as `file: function` exists. `source` reads a file of the
/// tree.
pub fn named_tests(path: &str, text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for named in line.split('`').skip(1).step_by(2) {
            let Some((file, name)) = named.split_once(".rs: ") else { continue };
            // `file.rs: function` may also be a placeholder, which names no file.
            let Some(text) = source(&format!("{file}.rs")) else { continue };
            if !has_test_named(&text, name) {
                findings.push(format!("{path}:{}: there is no test {name} in {file}.rs", i + 1));
            }
        }
    }
    findings
}

/// Whether the file has a function of this name with `#[test]` right above it.
fn has_test_named(text: &str, name: &str) -> bool {
    let mut test = false;
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            test = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            if test && rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('(')) {
                return true;
            }
            test = false;
        }
    }
    false
}

/// Finds absolute paths of one machine, and hosts from which its packages came.
pub fn machine_traces(path: &str, bytes: &[u8]) -> Vec<String> {
    let needles = needles();
    let text = String::from_utf8_lossy(bytes);
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        // A lock file has to name the registry, but only in this form.
        if path.ends_with("Cargo.lock") && line == lock_source() {
            continue;
        }
        for needle in &needles {
            let starts = line.match_indices(needle.as_str()).map(|(at, _)| at);
            let is_path = needle.starts_with('/');
            // Only a path that begins at the root is a trace of a machine: not `target/tmp/`.
            let mut own = starts.filter(|&at| !(is_path && at > 0 && goes_on(line, at - 1)));
            if own.next().is_some() {
                findings.push(format!("{path}:{}: {needle}", i + 1));
            }
        }
    }
    findings
}

/// Whether the byte at `at` is part of the path that follows it.
fn goes_on(line: &str, at: usize) -> bool {
    matches!(line.as_bytes()[at], b'_' | b'-' | b'.' | b'~' | b'}' | b')' | b'*')
        || line.as_bytes()[at].is_ascii_alphanumeric()
}

/// The texts that are traces of a machine.
fn needles() -> Vec<String> {
    let folders = ["home", "work", "root", "tmp"].map(|name| format!("/{name}/"));
    let hosts = [("crates", ".io"), ("artifact", "ory"), ("jf", "rog"), ("pypi", ".org")];
    let hosts = hosts.map(|(one, two)| format!("{one}{two}"));
    let sources = [("://regis", "try."), ("replace", "-with ="), ("rs", "proxy")];
    let sources = sources.map(|(one, two)| format!("{one}{two}"));
    folders.into_iter().chain(hosts).chain(sources).collect()
}

/// The line of a lock file that names the registry.
fn lock_source() -> String {
    let host = format!("crates{}", ".io-index");
    format!("source = \"registry+https://github.com/rust-lang/{host}\"")
}

/// The value of `name = "value"`.
fn quoted<'a>(toml: &'a str, name: &str) -> Option<&'a str> {
    toml.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.trim_start().strip_prefix('=')?;
        Some(value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARGO: &str = "[package]\nrust-version = \"1.85\"\n";

    #[test]
    fn versions_have_to_agree() {
        let clippy = "msrv = \"1.85\"";
        let readme = "Since 1.60.\nMinimum supported Rust version (MSRV): 1.85.\n";
        assert_eq!(msrv(readme, CARGO, clippy), [""; 0]);
        assert_eq!(msrv(readme, CARGO, "msrv = \"1.84\"").len(), 1);
        assert_eq!(msrv("MSRV 1.86", CARGO, clippy), ["README.md:1: 1.86, not Some(\"1.85\")"]);
        assert_eq!(msrv("MSRV 1.85.1, or 1.85", CARGO, clippy).len(), 1);
        assert_eq!(msrv("Rust 1.85", CARGO, clippy).len(), 1);
    }

    #[test]
    fn diagrams_are_compared_with_their_enums() {
        let code = "pub enum Mode {\n    /// Waits.\n    Waiting,\n    Asking {\n        id: u8,\n";
        let code = format!("{code}    }},\n}}\n");
        let source = |file: &str| (file == "src/mode.rs").then(|| code.clone());
        let paper = |states: &str| {
            format!("`Mode` in `src/mode.rs`.\n\n```mermaid\nstateDiagram-v2\n{states}```\n")
        };
        let good = paper("    [*] --> Waiting: denied\n    Waiting --> Asking: its turn\n");
        assert_eq!(diagrams("A.md", &good, source), [""; 0]);
        let lacks = paper("    [*] --> Waiting: denied\n");
        let what =
            "the diagram has [\"Waiting\"], and Mode in src/mode.rs [\"Asking\", \"Waiting\"]";
        assert_eq!(diagrams("A.md", &lacks, source), [format!("A.md:4: {what}")]);
        let other = good.replace("Waiting", "Pausing");
        assert_eq!(diagrams("A.md", &other, source).len(), 1);
        let unnamed = good.replace("`Mode`", "Mode");
        assert_eq!(diagrams("A.md", &unnamed, source), ["A.md:4: no line above names its enum"]);
        assert_eq!(diagrams("A.md", "", source), ["A.md:1: it has no diagram"]);
    }

    #[test]
    fn readme_names_both_commands() {
        assert_eq!(readme_commands(&format!("{DEMO}\n{TEST}\n")), [""; 0]);
        assert_eq!(readme_commands(DEMO).len(), 1);
        assert_eq!(readme_commands("").len(), 2);
    }

    #[test]
    fn ci_without_the_test_command_is_found() {
        assert_eq!(
            ci_test_command("set -e\n  step tests cargo test --workspace --all-features\n"),
            [""; 0]
        );
        assert_eq!(ci_test_command("cargo test --workspace --all-features -- --ignored").len(), 1);
        assert_eq!(ci_test_command("# cargo test --workspace --all-features").len(), 1);
    }

    #[test]
    fn a_dependency_says_why() {
        let good = "[package]\nname = \"x\"\n[dependencies]\n# Why.\na = \"1\"\n# Why.\n\
                    b = { version = \"1\", features = [\n    \"c\",\n] }\n[profile.x]\nd = 1\n";
        assert_eq!(dependencies("Cargo.toml", good), [""; 0]);
        let bad = "[dependencies]\na = \"1\"\n[dev-dependencies]\n# Why.\nb = \"1\"\nc = \"1\"\n\n\
                   [target.'cfg(unix)'.dependencies]\nd = \"1\"\n[dependencies.e]\n";
        let found = dependencies("Cargo.toml", bad);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("Cargo.toml:2: "));
    }

    #[test]
    fn named_tests_have_to_exist() {
        let source = |path: &str| (path == "a.rs").then(|| "#[test]\nfn x() {}\n".to_owned());
        assert_eq!(named_tests("p.md", "see `a.rs: x`, `file: function` and `b`", source), [""; 0]);
        let found = named_tests("p.md", "\n`a.rs: x` `a.rs: y`", source);
        assert_eq!(found, ["p.md:2: there is no test y in a.rs"]);
    }

    #[test]
    fn traces_of_a_machine_are_found() {
        for folder in ["home", "work", "root", "tmp"] {
            let bad = format!("x\n\"/{folder}/x\"");
            assert_eq!(machine_traces("a.rs", bad.as_bytes()), [format!("a.rs:2: /{folder}/")]);
            assert_eq!(machine_traces("a.rs", format!("unix:///{folder}/x").as_bytes()).len(), 1);
            assert_eq!(machine_traces("a.rs", format!("target/{folder}/x").as_bytes()), [""; 0]);
        }
        let registry = format!("https://{}{}/x", "static.crates", ".io");
        assert_eq!(machine_traces("README.md", registry.as_bytes()).len(), 1);
        assert_eq!(machine_traces("seed", &[0xff, b'/', b't', b'm', b'p', b'/']).len(), 1);
        assert_eq!(machine_traces("Cargo.lock", lock_source().as_bytes()), [""; 0]);
        assert_eq!(machine_traces("Cargo.lock", format!("{}x", lock_source()).as_bytes()).len(), 1);
        assert_eq!(machine_traces("a.toml", lock_source().as_bytes()).len(), 1);
    }

    #[test]
    fn docs_name_files_that_exist() {
        let exists = |path: &str| ["src/a.rs", "tests/"].contains(&path);
        let good = "`src/a.rs` and `tests/`, `src/a.rs: it_holds`, `redlatch -s`, `cli/src/*.rs`";
        assert_eq!(paths("A.md", good, exists), [""; 0]);
        let found = paths("A.md", "\n`src/a.rs` `src/b.rs`", exists);
        assert_eq!(found, ["A.md:2: there is no src/b.rs"]);
        // A name without a folder is in the folder of the path before it.
        let exists = |path: &str| ["src/x.rs", "src/y.rs", "src/a/", "src/a/b.rs"].contains(&path);
        assert_eq!(paths("A.md", "`src/x.rs`,\n`y.rs`; `src/a/`: `b.rs`", exists), [""; 0]);
        let found = paths("A.md", "`src/a/`: `b.rs`, `y.rs`", exists);
        assert_eq!(found, ["A.md:1: there is no src/a/y.rs"]);
        assert_eq!(paths("A.md", "`y.rs`", exists), ["A.md:1: there is no y.rs"]);
    }

    #[test]
    fn rules_name_tests_that_exist() {
        let rule = |n: usize| format!("### {n}. A rule\n\n- `a.rs: it_holds`\n");
        let text: String = (1..=RULE_COUNT).map(rule).collect();
        let file = "#[test]\nfn it_holds() {}\nfn it_holds_too() {}\n";
        let source = |path: &str| (path == "a.rs").then(|| file.to_owned());
        assert_eq!(rules(&text, source), [""; 0]);
        let text_with = |test: &str| text.replacen("a.rs: it_holds", test, 1);
        let found = |what: &str| [format!("docs/rules.md:3: {what}")];
        let wrong = text_with("b.rs: it_holds");
        assert_eq!(rules(&wrong, source), found("there is no file b.rs"));
        for name in ["it_hold", "it_holds_too", "it_holds_not"] {
            let wrong = text_with(&format!("a.rs: {name}"));
            let what = format!("there is no test {name} in a.rs");
            assert_eq!(rules(&wrong, source), found(&what));
        }
        let more = text_with("a.rs: it_holds`, `it_holds`,\n  `it_holds");
        assert_eq!(rules(&more, source), [""; 0]);
        let more = text_with("a.rs: it_holds`, `it_hold");
        assert_eq!(rules(&more, source), found("there is no test it_hold in a.rs"));
        let more = text_with("a.rs: it_holds`,\n  `it_hold");
        let what = "docs/rules.md:4: there is no test it_hold in a.rs";
        assert_eq!(rules(&more, source), [what]);
        let wrong = text_with("it_holds");
        assert_eq!(rules(&wrong, source), found("a test is named as `file: function`"));
        let none = text.replacen("- `a.rs: it_holds`", "No test yet: it is hard.", 1);
        assert_eq!(rules(&none, source), [""; 0]);
        assert_eq!(rules(&text.replacen("- `a.rs: it_holds`\n", "", 1), source).len(), 1);
        assert_eq!(rules(&text.replacen("### 7.", "### 8.", 1), source).len(), 1);
        assert_eq!(rules("", source).len(), 1);
    }
}
