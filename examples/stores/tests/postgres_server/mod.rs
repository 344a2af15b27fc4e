//! A PostgreSQL server of the test's own: in a folder of its own, on a free port of the loopback
//! interface. PostgreSQL refuses to run as root, so root starts it as the user `postgres`.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, getuid, kill_process};

use super::support::{SECOND, eventually, free_port};

pub struct PostgresServer {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl PostgresServer {
    pub fn start() -> PostgresServer {
        let name = format!("redlatch-postgres-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("the folder is the test's own");
        if let Some(user) = other_user() {
            std::os::unix::fs::chown(&folder, Some(user), None).expect("root may do that");
        }
        let data = folder.join("data");
        let mut initdb = command("initdb", &folder);
        initdb.args(["--auth=trust", "--username=redlatch", "--no-sync", "--pgdata"]).arg(&data);
        let output = initdb.output().expect("PostgreSQL is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let port = free_port();
        let mut postgres = command("postgres", &folder);
        postgres.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "fsync=off"]);
        postgres.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        postgres.stdout(Stdio::null()).stderr(Stdio::null());
        let child = postgres.spawn().expect("it was found before");
        let server = PostgresServer { child, folder, port };
        eventually(20 * SECOND, "PostgreSQL answers", || {
            redlatch_stores::open(&server.url()).is_ok()
        });
        server
    }

    pub fn url(&self) -> String {
        format!("postgresql://redlatch@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // SIGINT: a fast shutdown, which waits for no client.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::INT);
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A program of PostgreSQL: from the path, or where Debian keeps it.
fn command(program: &str, folder: &Path) -> Command {
    let kept = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let kept = kept.map(|version| version.path().join("bin").join(program));
    let found = kept.filter(|path| path.exists()).max();
    let mut command = Command::new(found.unwrap_or_else(|| program.into()));
    command.current_dir(folder);
    if let Some(user) = other_user() {
        command.uid(user);
    }
    command
}

/// The user `postgres`, if the test runs as root.
fn other_user() -> Option<u32> {
    if !getuid().is_root() {
        return None;
    }
    let output = Command::new("id").args(["-u", "postgres"]).output().expect("`id` is installed");
    let text = String::from_utf8(output.stdout).expect("a number is text");
    Some(text.trim().parse().expect("the user postgres exists where PostgreSQL is installed"))
}
