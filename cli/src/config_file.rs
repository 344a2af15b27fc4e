//! Finds and reads the configuration file. Its values become the defaults of flags.
//!
//! The hazard is a password in an error message. So an error names a line of the file by its
//! number, and never quotes it.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::{ArgMatches, Command};
use redlatch::ConfigFile;

use crate::nodes::without_passwords;
use crate::output::Refusal;

/// The file that is read if none is named. It may be missing.
const USUAL: &str = "/etc/redlatch.toml";

/// The variable that names a file with the password.
const PASSWORD_FILE_VARIABLE: &str = "REDLATCH_PASSWORD_FILE";

/// The variable that names a file with the password for Sentinels.
const SENTINEL_PASSWORD_FILE_VARIABLE: &str = "REDLATCH_SENTINEL_PASSWORD_FILE";

static LOADED: OnceLock<ConfigFile> = OnceLock::new();

/// The contents of the file; empty before [`load`].
pub fn loaded() -> ConfigFile {
    LOADED.get().cloned().unwrap_or_default()
}

/// Reads the file for a verb that takes one. `given` are the arguments on the verb's command line,
/// without those from variables.
pub fn load(given: &ArgMatches) -> Result<ConfigFile, Refusal> {
    let flag = given.try_get_one::<PathBuf>("config").ok().flatten();
    let place = Place::of(flag, env::var_os("REDLATCH_CONFIG"));
    let mut file = place.read()?;
    let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    file.password_file = named(PASSWORD_FILE_VARIABLE).or(file.password_file);
    file.sentinel_password_file =
        named(SENTINEL_PASSWORD_FILE_VARIABLE).or(file.sentinel_password_file);
    Ok(LOADED.get_or_init(|| file).clone())
}

/// Returns the verb with the values of the file as the defaults of its flags.
pub fn with_defaults(mut verb: Command, file: &ConfigFile) -> Command {
    let time = |time: Option<std::time::Duration>| time.map(|time| format!("{time:?}").into());
    let text = |text: &Option<String>| text.as_deref().map(OsString::from);
    let path = |path: &Option<PathBuf>| path.as_deref().map(|path| path.as_os_str().to_owned());
    let defaults: [(&str, Option<OsString>); 13] = [
        ("tls_ca", path(&file.tls.ca)),
        ("certificate", path(&file.tls.cert)),
        ("private_key", path(&file.tls.key)),
        ("sentinel_user", text(&file.sentinel_user)),
        ("key_prefix", text(&file.key_prefix)),
        ("owner", text(&file.owner)),
        ("ttl", time(file.ttl)),
        ("wait", time(file.wait)),
        ("node_timeout", time(file.node_timeout)),
        ("connect_timeout", time(file.connect_timeout)),
        ("max_ttl", time(file.max_ttl)),
        ("replicas", file.replicas.map(|count| count.to_string().into())),
        ("check_members", file.check_members.map(|check| check.to_string().into())),
    ];
    for (id, value) in defaults {
        if let Some(value) = value {
            verb = verb.mut_arg(id, |arg| arg.default_value(value));
        }
    }
    if !file.servers.is_empty() {
        verb = verb.mut_arg("servers", |arg| arg.default_values(&file.servers));
    }
    verb
}

/// Where the file is.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    /// The user named the file, so it has to be there.
    named: bool,
}

impl Place {
    fn of(flag: Option<&PathBuf>, variable: Option<OsString>) -> Place {
        let variable = variable.filter(|value| !value.is_empty()).map(PathBuf::from);
        match flag.cloned().or(variable) {
            Some(path) => Place { path, named: true },
            None => Place { path: USUAL.into(), named: false },
        }
    }

    fn read(&self) -> Result<ConfigFile, Refusal> {
        let text = match std::fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.named => {
                return Ok(ConfigFile::default());
            }
            Err(error) => {
                let way_out = if self.named { "" } else { "; --config /dev/null does without it" };
                let place = self.path.display();
                return Err(Refusal::config(format!("{place}: {error}{way_out}")));
            }
            Ok(text) => text,
        };
        parsed(&self.path, &text)
    }
}

fn parsed(path: &Path, text: &str) -> Result<ConfigFile, Refusal> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count() + 1;
        let message = without_passwords(error.message());
        let message = message.lines().collect::<Vec<_>>().join(" ");
        Refusal::config(format!("{}: line {line}: {message}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_counts_more_than_variable_and_that_more_than_the_usual_place() {
        let (flag, variable) = (PathBuf::from("flag"), Some(OsString::from("variable")));
        let named = |path: &str| Place { path: path.into(), named: true };
        assert_eq!(Place::of(Some(&flag), variable.clone()), named("flag"));
        assert_eq!(Place::of(None, variable), named("variable"));
        let usual = Place { path: USUAL.into(), named: false };
        assert_eq!(Place::of(None, None), usual);
        assert_eq!(Place::of(None, Some(OsString::new())), usual);
    }

    #[test]
    fn only_the_usual_file_may_be_missing() {
        let missing = |named| Place { path: "/no/such/file.toml".into(), named }.read();
        assert_eq!(missing(false).unwrap(), ConfigFile::default());
        assert!(missing(true).unwrap_err().message.contains("No such file"));
    }

    #[test]
    fn errors_name_the_line_and_never_quote_it() {
        let cases = [
            ("# a\n\nservres = []\n", "line 3: unknown field `servres`"),
            ("ttl = \"1s\"\npassword = \"hunter2\"\n", "line 2: unknown field `password`"),
            ("servers = [\n\"a:1\",\n7 ]\n", "line "),
            ("password_file = \"hunter2\n", "line 1: "),
            ("servers = [\"redis://ann:hunter2@h\"\nttl = 1\n", "line "),
            ("owner = 1\nkey_prefix = \"redis://ann:hunter2@h\"\n", "line 1: invalid type"),
            ("[tls]\nca = \"x\"\nkeys = \"hunter2\"\n", "line 3: unknown field `keys`"),
        ];
        for (text, expected) in cases {
            let told = parsed(Path::new("/etc/redlatch.toml"), text).unwrap_err().message;
            assert!(told.starts_with(&format!("/etc/redlatch.toml: {expected}")), "{text}: {told}");
            assert!(!told.contains("hunter2") && !told.contains('\n'), "{told}");
        }
    }
}
