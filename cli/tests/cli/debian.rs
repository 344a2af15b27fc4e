//! The Debian package: what is in it, and that it can be installed and removed.

use std::path::PathBuf;

use super::*;

/// The paths of the package's files. At other paths neither the shell nor `man` would find them.
const FILES: [&str; 8] = [
    "usr/bin/redlatch",
    "usr/share/man/man1/redlatch.1.gz",
    "usr/share/bash-completion/completions/redlatch",
    "usr/share/zsh/vendor-completions/_redlatch",
    "usr/share/fish/vendor_completions.d/redlatch.fish",
    "usr/share/doc/redlatch/copyright",
    "usr/share/doc/redlatch/examples/prometheus/redlatch.rules.yml",
    "usr/share/doc/redlatch/examples/grafana/redlatch.json",
];

/// Installs the package into a separate root directory, and removes it again.
#[test]
#[ignore = "needs cargo-deb: cargo install cargo-deb --locked"]
fn debian_package_can_be_installed_and_removed() {
    let tree = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("debian");
    let _ = std::fs::remove_dir_all(&place);
    let (package, root) = (place.join("redlatch.deb"), place.join("root"));
    std::fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("it is ours");
    std::fs::write(root.join("var/lib/dpkg/status"), "").expect("it is ours");
    let run = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(command).end(LIMIT).with_code(0)
    };
    let mut build = Command::new(tree.join("contrib/debian/build"));
    build.arg(env!("CARGO_BIN_EXE_redlatch")).arg("--output").arg(&package);
    run(&mut build);
    let fields = run(Command::new("dpkg-deb").arg("--field").arg(&package)).out;
    assert!(fields.starts_with("Package: redlatch\n"), "{fields}");
    assert!(fields.contains("\nDepends: libc6 (>= "), "{fields}");
    let version = format!("\nVersion: {}-1\n", env!("CARGO_PKG_VERSION"));
    assert!(fields.contains(&version), "{fields}");

    let dpkg = || {
        let mut command = Command::new("dpkg");
        // The root directory has no libc6, and belongs to the user who runs the tests.
        command.args(["--force-depends", "--force-not-root", "--force-script-chrootless"]);
        command.arg(format!("--root={}", root.display()));
        command
    };
    run(dpkg().arg("--install").arg(&package));
    for file in FILES {
        assert!(root.join(file).is_file(), "{file}");
    }
    let installed = run(Command::new(root.join(FILES[0])).arg("--version")).out;
    assert_eq!(installed, concat!("redlatch ", env!("CARGO_PKG_VERSION"), "\n"));
    run(dpkg().args(["--purge", "redlatch"]));
    for file in FILES {
        assert!(!root.join(file).exists(), "{file} is left");
    }
}
