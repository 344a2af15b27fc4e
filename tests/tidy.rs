//! The house rules that a machine can check: one test for each rule, over the whole tree.
//!
//! Every rule reports all of its findings as `file:line: what`. The rules themselves are tried on
//! small bad examples beside them. The one hazard: a rule that reads no file would pass, so reading
//! the tree insists on finding what is known to be there.

#[path = "support/drawing.rs"]
mod drawing;
#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/papers.rs"]
mod papers;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/pictures.rs"]
mod pictures;
#[path = "tidy/shape.rs"]
mod shape;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/words.rs"]
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

use source::Source;

#[test]
fn every_file_begins_with_a_comment_that_says_what_it_is() {
    every_source(shape::header);
}

#[test]
fn no_line_is_too_long() {
    every_source(shape::columns);
}

#[test]
fn no_file_has_too_much_code() {
    every_source(shape::file_size);
}

#[test]
fn every_module_has_a_layer_in_the_table() {
    every_source(floors::missing_floors);
}

#[test]
fn imports_only_go_down() {
    every_source(floors::upward_imports);
}

#[test]
fn pure_files_name_no_socket_clock_or_thread() {
    every_source(floors::impure_names);
}

#[test]
fn locks_and_threads_of_the_shared_client_can_be_scheduled() {
    every_source(floors::unscheduled_names);
}

#[test]
fn no_file_or_module_has_a_name_that_says_nothing() {
    every_source(words::names);
}

#[test]
fn every_root_forbids_unsafe_code_and_unwrap() {
    every_source(words::forbids_unsafe);
}

#[test]
fn every_expect_has_a_reason() {
    every_source(words::expect_has_a_reason);
}

#[test]
fn no_file_has_let_chains_that_the_oldest_compiler_lacks() {
    every_source(words::no_let_chains);
}

#[test]
fn ignored_tests_say_what_they_need() {
    every_source(words::ignored_says_why);
}

#[test]
fn readme_and_the_manifest_agree_on_rust() {
    report(&papers::msrv(&read("README.md"), &read("Cargo.toml"), &read("clippy.toml")));
}

#[test]
fn readme_names_the_two_commands() {
    report(&papers::readme_commands(&read("README.md")));
}

#[test]
fn ci_runs_the_test_command_of_contributors() {
    report(&papers::ci_test_command(&read(".ci/run")));
}

#[test]
fn every_dependency_says_why() {
    let manifests = tracked().into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let findings = manifests.flat_map(|path| papers::dependencies(&path, &read(&path)));
    report(&findings.collect::<Vec<_>>());
}

#[test]
fn every_safety_rule_names_tests_that_exist() {
    let source = |path: &str| std::fs::read_to_string(root().join(path)).ok();
    report(&papers::rules(&read(papers::RULES), source));
}

#[test]
fn docs_name_files_that_exist() {
    let is_paper = |path: &String| path.ends_with(".md") && path != "CHANGELOG.md";
    let exists = |path: &str| root().join(path).exists();
    let papers = tracked().into_iter().filter(is_paper);
    let findings = papers.flat_map(|path| papers::paths(&path, &read(&path), exists));
    report(&findings.collect::<Vec<_>>());
}

#[test]
fn diagrams_have_the_states_of_the_code() {
    let source = |path: &str| std::fs::read_to_string(root().join(path)).ok();
    let path = "ARCHITECTURE.md";
    report(&papers::diagrams(path, &read(path), source));
}

#[test]
fn pictures_show_the_recorded_figures() {
    let is_order = std::env::var_os("REDLATCH_REDRAW").is_some();
    for (path, drawn) in pictures::drawn(&read(pictures::FIGURES)) {
        drawing::assert_legible(&drawn);
        assert!(!drawing::texts(&drawn).is_empty() && !drawing::metadata(&drawn).is_empty());
        if is_order {
            std::fs::write(root().join(path), &drawn).expect("the tree can be written");
        }
        let redraw = pictures::REDRAW;
        assert!(read(path) == drawn, "{path} is older than what it shows. Redraw it: {redraw}");
    }
    report(&pictures::tables(&read(pictures::FIGURES), &read("benches/README.md")));
}

#[test]
fn docs_name_tests_that_exist() {
    let source = |path: &str| std::fs::read_to_string(root().join(path)).ok();
    let papers = tracked().into_iter().filter(|path| path.ends_with(".md"));
    let findings = papers.flat_map(|path| papers::named_tests(&path, &read(&path), source));
    report(&findings.collect::<Vec<_>>());
}

#[test]
fn the_package_ships_without_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut list = Command::new(env!("CARGO"));
    list.args(["package", "--list", "--allow-dirty", "--offline", "-p", "redlatch"]);
    let output = list.current_dir(root).output().expect("cargo runs this test");
    let files = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(files.contains("src/lib.rs"), "{}", String::from_utf8_lossy(&output.stderr));
    let unwanted = ["tests/", "benches/", "fuzz/", "cli/", "doctests/", "."];
    let known = [".cargo_vcs_info.json", ".gitignore"];
    let wrong = files.lines().filter(|file| !known.contains(file));
    let wrong = wrong.filter(|file| unwanted.iter().any(|start| file.starts_with(start)));
    report(&wrong.map(|file| format!("{file}: is in the package")).collect::<Vec<_>>());
}

#[test]
fn no_file_names_a_path_or_host_of_one_machine() {
    let files = tracked().into_iter();
    let findings = files.flat_map(|path| papers::machine_traces(&path, &read_bytes(&path)));
    report(&findings.collect::<Vec<_>>());
}

/// Runs a rule over all Rust of the library and of the tool.
fn every_source(rule: fn(&Source) -> Vec<String>) {
    let roots = ["src/", "cli/", "doctests/", "tests/", "benches/", "examples/", "fuzz/"];
    let files = tracked();
    let ours = files
        .iter()
        .filter(|path| path.ends_with(".rs") && roots.iter().any(|root| path.starts_with(root)));
    let mut findings = Vec::new();
    for path in ours {
        findings.extend(rule(&Source::new(path, &read(path))));
    }
    report(&findings);
}

#[track_caller]
fn report(findings: &[String]) {
    assert!(findings.is_empty(), "{} findings:\n{}\n", findings.len(), findings.join("\n"));
}

/// Every file that git has or would add; in a copy without git, every file.
fn tracked() -> Vec<String> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(list).current_dir(root()).output();
    let listed = output.ok().filter(|output| output.status.success());
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let mut files: Vec<String> = match text {
        Some(text) => text.split('\0').map(str::to_owned).collect(),
        None => walk(Path::new("")),
    };
    // git still lists a file that was deleted and not committed yet.
    files.retain(|path| root().join(path).is_file());
    files.sort();
    files.dedup();
    let known = ["Cargo.toml", "src/lib.rs", "tests/tidy.rs", "cli/Cargo.toml", "cli/src/main.rs"];
    for known in known {
        assert!(files.iter().any(|path| path == known), "{known} is not among the files");
    }
    files
}

fn walk(folder: &Path) -> Vec<String> {
    let built = [
        "target",
        ".git",
        "fuzz/target",
        "fuzz/corpus",
        "fuzz/artifacts",
        "benches/peers/target",
        "examples/stores/target",
    ];
    let entries = std::fs::read_dir(root().join(folder)).expect("a folder of the package");
    let mut files = Vec::new();
    for entry in entries {
        let path = folder.join(entry.expect("an entry of a folder").file_name());
        let name = path.to_string_lossy().replace('\\', "/");
        if root().join(&path).is_dir() {
            if !built.contains(&name.as_str()) {
                files.extend(walk(&path));
            }
        } else {
            files.push(name);
        }
    }
    files
}

fn read(path: &str) -> String {
    String::from_utf8(read_bytes(path)).unwrap_or_else(|_| panic!("{path} is not UTF-8"))
}

fn read_bytes(path: &str) -> Vec<u8> {
    std::fs::read(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    // The variable is read at run time first: two checkouts that share a target folder share this
    // binary, too.
    let now = std::env::var_os("CARGO_MANIFEST_DIR");
    now.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

#[test]
fn tree_without_git_has_the_same_sources() {
    let folders = ["src/", "cli/src/"];
    let is_source = |path: &String| {
        path.ends_with(".rs") && folders.iter().any(|folder| path.starts_with(folder))
    };
    let mut walked: Vec<String> = walk(Path::new("")).into_iter().filter(is_source).collect();
    walked.sort();
    assert_eq!(tracked().into_iter().filter(is_source).collect::<Vec<_>>(), walked);
}
