//! Takes the examples marked `no_run` out of README and the library's documentation, and writes
//! each as a module that `tests/run.rs` runs. rustdoc only compiles them, because their addresses
//! lead nowhere; here the addresses are those of masters inside the process.
//!
//! The hazard is an example that is left out unnoticed: the test knows the least number of them.

#![forbid(unsafe_code)]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The addresses that are replaced. An example with other addresses is run with those.
const ADDRESSES: &str = r#"["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]"#;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace");
    let mut files = vec![root.join("README.md"), root.join("docs/guide.md")];
    files.push(root.join("docs/operations.md"));
    rust_files(&root.join("src"), &mut files);
    files.sort();
    let (mut modules, mut list) = (String::new(), String::new());
    for path in files {
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).expect("a source file is readable text");
        let place = path.strip_prefix(root).expect("it was found there").display().to_string();
        for (line, example) in examples(&text, place.ends_with(".rs")) {
            let name: String = format!("{place}_{line}")
                .chars()
                .map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' })
                .collect();
            let name = name.to_ascii_lowercase();
            writeln!(modules, "mod {name} {{\n{}}}", module(&example)).expect("a String grows");
            writeln!(list, "    (\"{place}:{line}\", || crate::ended({name}::main())),")
                .expect("a String grows");
        }
    }
    println!("cargo::rerun-if-changed={}", root.join("src").display());
    let all = format!("{modules}pub const ALL: &[(&str, fn() -> crate::Ended)] = &[\n{list}];\n");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("examples.rs"), all).expect("the folder is cargo's for this");
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|it| it == "rs") {
            into.push(path);
        }
    }
}

/// The `no_run` examples of a file, each with the number of its first line.
fn examples(text: &str, is_rust: bool) -> Vec<(usize, String)> {
    let (mut found, mut open): (Vec<(usize, String)>, bool) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let line = match is_rust {
            false => line,
            true => {
                let line = line.trim_start();
                match line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
                    Some(comment) => comment.strip_prefix(' ').unwrap_or(comment),
                    None => {
                        open = false;
                        continue;
                    }
                }
            }
        };
        if let Some(fence) = line.strip_prefix("```") {
            open = !open && fence.split(',').any(|word| word == "no_run");
            if open {
                found.push((index + 1, String::new()));
            }
        } else if let Some((_, example)) = found.last_mut().filter(|_| open) {
            // A line that the pages do not show.
            let shown = if line == "#" { "" } else { line.strip_prefix("# ").unwrap_or(line) };
            example.push_str(shown);
            example.push('\n');
        }
    }
    found
}

/// The example as a module with a public `main`, as rustdoc would make one.
fn module(example: &str) -> String {
    let example = format!("\n{}", example.replace(ADDRESSES, "crate::nodes()"));
    if example.contains("fn main()") {
        let example = example.replace("async fn main()", "pub async fn main()");
        return example.replace("\nfn main()", "\npub fn main()");
    }
    // In a closure, because the names that the example imports exist only inside of it.
    format!(
        "pub fn main() -> crate::Ended {{\nlet it = (|| {{{example}}})();\ncrate::ended(it)\n}}\n"
    )
}
