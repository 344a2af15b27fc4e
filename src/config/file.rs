//! A configuration as an operator writes it: in a file, or in variables of the environment.
//!
//! Everything is optional here. What is missing has the default of [`Config`]. The hazard is a
//! password in what is printed: neither `Debug` nor an error shows one.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Config;
use super::duration::parse_duration;
use crate::net::address::Address;
#[cfg(feature = "tls")]
use crate::net::tls::Tls;
use crate::proto::error::ConfigError;
use crate::proto::settings::{Credentials, RestartGuard, Secret};

/// The most bytes of a file with a password. A longer file was named by mistake.
const LONGEST_PASSWORD_FILE: usize = 64 * 1024;

/// The directory with the credentials that systemd hands to a service.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// A configuration as an operator writes it. With the feature `serde` it can be read from a file,
/// in which every key is optional and an unknown key is an error:
///
/// ```toml
/// servers = ["10.0.0.1:6379", "redis://app@10.0.0.2", "rediss://10.0.0.3"]
/// password_file = "redis-password"   # in $CREDENTIALS_DIRECTORY, or an absolute path
/// sentinel_user = "app"              # at the Sentinels of redis+sentinel:// URLs
/// sentinel_password_file = "sentinel-password"
/// key_prefix = "app:"
/// owner = "web-1"
/// ttl = "30s"                        # of the tool; Config ignores ttl and wait
/// wait = "5m"
/// node_timeout = "50ms"
/// connect_timeout = 1                # a bare number is seconds
/// max_ttl = "60s"
/// restart_guard = "on"               # or "persistent", or "off"
/// replicas = 0                       # that have to confirm each grant
/// check_members = true
/// node_marker = "redlatch:node"
/// client_name = "redlatch"
/// allow_eviction = false
///
/// [tls]                              # for rediss://
/// ca = "/etc/ssl/redis-ca.pem"
/// cert = "/etc/ssl/client.pem"
/// key = "/etc/ssl/client.key"
/// ```
///
/// `Config::try_from(file)` makes a [`Config`] of it. [`Config`] itself can be deserialized from
/// the same shape.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ConfigFile {
    /// The nodes: URLs as of [`Config::new`], or `host:port`. A URL may name a user without a
    /// password if the password comes from elsewhere. In a file: a list, or one text with commas.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "read::servers"))]
    pub servers: Vec<String>,
    /// A file with the password for every URL that has none. The name is absolute, or the name of
    /// a file in `$CREDENTIALS_DIRECTORY`, which systemd sets (`LoadCredential=`). A line break at
    /// its end is not a part of the password.
    pub password_file: Option<PathBuf>,
    /// The user of [`Config::sentinel_credentials`].
    pub sentinel_user: Option<String>,
    /// A file with the password of [`Config::sentinel_credentials`], named as
    /// [`password_file`](ConfigFile::password_file) is.
    pub sentinel_password_file: Option<PathBuf>,
    /// [`Config::key_prefix`].
    pub key_prefix: Option<String>,
    /// [`Config::owner`].
    pub owner: Option<String>,
    /// [`Config::client_name`].
    pub client_name: Option<String>,
    /// [`Config::node_marker`].
    pub node_marker: Option<String>,
    /// The ttl of locks. [`Config`] has no ttl and ignores it: a program may use it for its
    /// [`LockOptions`](crate::LockOptions), as the command-line tool does.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "read::duration"))]
    pub ttl: Option<Duration>,
    /// How long to wait for a lock. [`Config`] ignores it, as it does the ttl.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "read::duration"))]
    pub wait: Option<Duration>,
    /// [`Config::node_timeout`].
    #[cfg_attr(feature = "serde", serde(deserialize_with = "read::duration"))]
    pub node_timeout: Option<Duration>,
    /// [`Config::connect_timeout`].
    #[cfg_attr(feature = "serde", serde(deserialize_with = "read::duration"))]
    pub connect_timeout: Option<Duration>,
    /// [`Config::max_ttl`].
    #[cfg_attr(feature = "serde", serde(deserialize_with = "read::duration"))]
    pub max_ttl: Option<Duration>,
    /// [`Config::restart_guard`].
    #[cfg_attr(feature = "serde", serde(deserialize_with = "read::restart_guard"))]
    pub restart_guard: Option<RestartGuard>,
    /// [`Config::replicas`].
    pub replicas: Option<u32>,
    /// [`Config::check_members`].
    pub check_members: Option<bool>,
    /// [`Config::allow_eviction`].
    pub allow_eviction: Option<bool>,
    /// What `rediss://` URLs need.
    pub tls: TlsFiles,
    /// The password of `REDISCLI_AUTH`. It cannot be written in a file of this shape.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub password: Option<Secret>,
    /// The password of `REDLATCH_SENTINEL_AUTH`. It cannot be written in a file of this shape.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub sentinel_password: Option<Secret>,
}

/// The files that `rediss://` URLs need, all in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct TlsFiles {
    /// The CA to trust. Without it: the CAs of the system, with the feature `system-ca`.
    pub ca: Option<PathBuf>,
    /// The client's certificate, for nodes that require one.
    pub cert: Option<PathBuf>,
    /// The key of the certificate.
    pub key: Option<PathBuf>,
}

impl ConfigFile {
    /// Reads the variables of the environment that the command-line tool reads, too. An empty one
    /// counts as unset.
    ///
    /// | variable | |
    /// |---|---|
    /// | `REDLATCH_SERVERS` | the nodes, separated by commas |
    /// | `REDISCLI_AUTH` | the password for every URL that has none; it counts more than a file |
    /// | `REDLATCH_PASSWORD_FILE` | [`password_file`](ConfigFile::password_file) |
    /// | `REDLATCH_SENTINEL_USER` | [`sentinel_user`](ConfigFile::sentinel_user) |
    /// | `REDLATCH_SENTINEL_AUTH` | the password at Sentinels; it counts more than a file |
    /// | `REDLATCH_SENTINEL_PASSWORD_FILE` | a file with it |
    /// | `REDLATCH_TLS_CA`, `REDLATCH_TLS_CERT`, `REDLATCH_TLS_KEY` | [`tls`](ConfigFile::tls) |
    /// | `REDLATCH_KEY_PREFIX`, `REDLATCH_OWNER` | texts |
    /// | `REDLATCH_TTL`, `REDLATCH_WAIT`, `REDLATCH_MAX_TTL` | durations, such as `500ms` |
    /// | `REDLATCH_NODE_TIMEOUT`, `REDLATCH_CONNECT_TIMEOUT` | the same |
    /// | `REDLATCH_NO_RESTART_GUARD`, `REDLATCH_PERSISTENT_NODES` | `true` or `false` |
    /// | `REDLATCH_REPLICAS` | a whole number |
    /// | `REDLATCH_CHECK_MEMBERS` | `true` or `false` |
    ///
    /// # Errors
    /// A variable that cannot be read, by its name.
    pub fn from_env() -> Result<ConfigFile, ConfigError> {
        ConfigFile::from_variables(|name| env::var_os(name))
    }

    /// As [`from_env`](ConfigFile::from_env), with the variables that `look_up` returns.
    ///
    /// # Errors
    /// A variable that cannot be read, by its name.
    pub fn from_variables(
        look_up: impl Fn(&str) -> Option<OsString>,
    ) -> Result<ConfigFile, ConfigError> {
        let raw = |name: &str| look_up(name).filter(|value| !value.is_empty());
        let text = |name: &str| match raw(name).map(OsString::into_string) {
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(invalid(name, "it is not UTF-8")),
            None => Ok(None),
        };
        let time = |name: &str| match text(name)?.as_deref().map(parse_duration) {
            Some(Ok(time)) => Ok(Some(time)),
            Some(Err(error)) => Err(invalid(name, &error.to_string())),
            None => Ok(None),
        };
        let switch = |name: &str| match text(name)?.as_deref() {
            None => Ok(None),
            Some("true" | "1" | "yes" | "on") => Ok(Some(true)),
            Some("false" | "0" | "no" | "off") => Ok(Some(false)),
            Some(_) => Err(invalid(name, "it is neither true nor false")),
        };
        let count = |name: &str| match text(name)?.map(|text| text.parse()) {
            Some(Ok(count)) => Ok(Some(count)),
            Some(Err(_)) => Err(invalid(name, "it is not a whole number")),
            None => Ok(None),
        };
        let path = |name: &str| raw(name).map(PathBuf::from);
        let servers = text("REDLATCH_SERVERS")?.map(|list| split(&list)).transpose();
        let servers = servers.map_err(|problem| invalid("REDLATCH_SERVERS", problem))?;
        let off = switch("REDLATCH_NO_RESTART_GUARD")?;
        let persistent = switch("REDLATCH_PERSISTENT_NODES")?;
        let restart_guard = match (off, persistent) {
            (Some(true), Some(true)) => {
                let problem = "REDLATCH_PERSISTENT_NODES is set, too; set one of them";
                return Err(invalid("REDLATCH_NO_RESTART_GUARD", problem));
            }
            (Some(true), _) => Some(RestartGuard::Off),
            (_, Some(true)) => Some(RestartGuard::Persistent),
            (None, None) => None,
            _ => Some(RestartGuard::On),
        };
        Ok(ConfigFile {
            servers: servers.unwrap_or_default(),
            password_file: path("REDLATCH_PASSWORD_FILE"),
            sentinel_user: text("REDLATCH_SENTINEL_USER")?,
            sentinel_password_file: path("REDLATCH_SENTINEL_PASSWORD_FILE"),
            key_prefix: text("REDLATCH_KEY_PREFIX")?,
            owner: text("REDLATCH_OWNER")?,
            ttl: time("REDLATCH_TTL")?,
            wait: time("REDLATCH_WAIT")?,
            node_timeout: time("REDLATCH_NODE_TIMEOUT")?,
            connect_timeout: time("REDLATCH_CONNECT_TIMEOUT")?,
            max_ttl: time("REDLATCH_MAX_TTL")?,
            restart_guard,
            replicas: count("REDLATCH_REPLICAS")?,
            check_members: switch("REDLATCH_CHECK_MEMBERS")?,
            tls: TlsFiles {
                ca: path("REDLATCH_TLS_CA"),
                cert: path("REDLATCH_TLS_CERT"),
                key: path("REDLATCH_TLS_KEY"),
            },
            password: text("REDISCLI_AUTH")?.map(Secret::new),
            sentinel_password: text("REDLATCH_SENTINEL_AUTH")?.map(Secret::new),
            client_name: None,
            node_marker: None,
            allow_eviction: None,
        })
    }

    /// What is written here, and what is missing here from `other`: variables before a file, say.
    ///
    /// A password of `REDISCLI_AUTH` or `REDLATCH_SENTINEL_AUTH` counts more than any file, and the
    /// three files of TLS are taken one by one.
    #[must_use]
    pub fn or(self, other: ConfigFile) -> ConfigFile {
        ConfigFile {
            servers: if self.servers.is_empty() { other.servers } else { self.servers },
            password_file: self.password_file.or(other.password_file),
            sentinel_user: self.sentinel_user.or(other.sentinel_user),
            sentinel_password_file: self.sentinel_password_file.or(other.sentinel_password_file),
            key_prefix: self.key_prefix.or(other.key_prefix),
            owner: self.owner.or(other.owner),
            client_name: self.client_name.or(other.client_name),
            node_marker: self.node_marker.or(other.node_marker),
            ttl: self.ttl.or(other.ttl),
            wait: self.wait.or(other.wait),
            node_timeout: self.node_timeout.or(other.node_timeout),
            connect_timeout: self.connect_timeout.or(other.connect_timeout),
            max_ttl: self.max_ttl.or(other.max_ttl),
            restart_guard: self.restart_guard.or(other.restart_guard),
            replicas: self.replicas.or(other.replicas),
            check_members: self.check_members.or(other.check_members),
            allow_eviction: self.allow_eviction.or(other.allow_eviction),
            tls: TlsFiles {
                ca: self.tls.ca.or(other.tls.ca),
                cert: self.tls.cert.or(other.tls.cert),
                key: self.tls.key.or(other.tls.key),
            },
            password: self.password.or(other.password),
            sentinel_password: self.sentinel_password.or(other.sentinel_password),
        }
    }

    /// The password for URLs that have none: that of `REDISCLI_AUTH`, else the one in
    /// [`password_file`](ConfigFile::password_file).
    ///
    /// # Errors
    /// A file that cannot be read, or has no password in it.
    pub fn find_password(&self) -> Result<Option<Secret>, ConfigError> {
        if self.password.is_some() {
            return Ok(self.password.clone());
        }
        read_password("password_file", self.password_file.as_deref())
    }

    /// What is written here for [`Config::sentinel_credentials`]: the user, and the password of
    /// `REDLATCH_SENTINEL_AUTH`, else the one in the file.
    ///
    /// # Errors
    /// A file that cannot be read, or has no password in it; a user without a password.
    pub fn find_sentinel_credentials(&self) -> Result<Credentials, ConfigError> {
        let password = match &self.sentinel_password {
            Some(password) => Some(password.clone()),
            None => {
                read_password("sentinel_password_file", self.sentinel_password_file.as_deref())?
            }
        };
        let user = self.sentinel_user.as_deref().map(Into::into);
        if user.is_some() && password.is_none() {
            let problem = "it needs a password; give one in REDLATCH_SENTINEL_AUTH or in the file \
                that sentinel_password_file names";
            return Err(invalid("sentinel_user", problem));
        }
        Ok(Credentials { user, password })
    }

    /// Applies to `config` what is written here, except the nodes, the password and the files of
    /// TLS.
    pub fn apply_to(&self, mut config: Config) -> Config {
        let settings = &mut config.settings;
        let times = [
            (&mut settings.node_timeout, self.node_timeout),
            (&mut settings.connect_timeout, self.connect_timeout),
            (&mut settings.max_ttl, self.max_ttl),
        ];
        for (setting, written) in times {
            *setting = written.unwrap_or(*setting);
        }
        settings.restart_guard = self.restart_guard.unwrap_or(settings.restart_guard);
        settings.replicas = self.replicas.unwrap_or(settings.replicas);
        settings.check_members = self.check_members.unwrap_or(settings.check_members);
        settings.allow_eviction = self.allow_eviction.unwrap_or(settings.allow_eviction);
        let texts = [
            (&mut settings.key_prefix, &self.key_prefix),
            (&mut settings.client_name, &self.client_name),
            (&mut settings.node_marker, &self.node_marker),
        ];
        for (setting, written) in texts {
            if let Some(written) = written {
                *setting = written.as_str().into();
            }
        }
        match self.owner.as_deref() {
            Some(owner) => config.owner(owner),
            None => config,
        }
    }
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be used, or is missing.
    #[cfg(feature = "tls")]
    pub fn load(&self) -> Result<Tls, ConfigError> {
        let read = |path: &Path| {
            let problem =
                |error| ConfigError::Tls { problem: format!("{}: {error}", path.display()).into() };
            std::fs::read(path).map_err(problem)
        };
        let own = match (&self.cert, &self.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            (None, None) => None,
            _ => {
                let problem = "a client certificate needs its key, and a key its certificate; name \
                    both files";
                return Err(ConfigError::Tls { problem: problem.into() });
            }
        };
        let own = own.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
        match (&self.ca, own) {
            (Some(ca), None) => Tls::trusting(&read(ca)?),
            (Some(ca), Some((certificate, key))) => Tls::mutual(&read(ca)?, certificate, key),
            #[cfg(feature = "system-ca")]
            (None, None) => Tls::system(),
            #[cfg(feature = "system-ca")]
            (None, Some((certificate, key))) => Tls::system_mutual(certificate, key),
            #[cfg(not(feature = "system-ca"))]
            (None, _) => {
                let problem = "nothing says whom to trust; name the file of a CA, or build with \
                    the feature `system-ca`";
                Err(ConfigError::Tls { problem: problem.into() })
            }
        }
    }
}

impl TryFrom<ConfigFile> for Config {
    type Error = ConfigError;

    /// # Errors
    /// As of [`Config::new`], and a file that cannot be used.
    fn try_from(file: ConfigFile) -> Result<Config, ConfigError> {
        let password = file.find_password()?;
        let urls = file.servers.iter();
        let config = Config::new(urls.map(|url| Address::with_password(url, password.as_ref())))?;
        let config = config.sentinel_credentials(file.find_sentinel_credentials()?);
        let config = file.apply_to(config);
        config.settings.validate()?;
        if file.tls == TlsFiles::default()
            && !config.get_addresses().iter().any(Address::is_encrypted)
        {
            return Ok(config);
        }
        #[cfg(feature = "tls")]
        return Ok(config.tls(file.tls.load()?));
        #[cfg(not(feature = "tls"))]
        Err(ConfigError::Tls { problem: "files of TLS need the feature `tls` of redlatch".into() })
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Config {
    /// Reads the shape of [`ConfigFile`], and the files that it names.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        let file = ConfigFile::deserialize(deserializer)?;
        Config::try_from(file).map_err(serde::de::Error::custom)
    }
}

/// Addresses are shown without credentials, and the password not at all.
impl fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> =
            self.servers.iter().map(|url| Address::without_credentials(url)).collect();
        f.debug_struct("ConfigFile")
            .field("servers", &servers)
            .field("password_file", &self.password_file)
            .field("sentinel_password_file", &self.sentinel_password_file)
            .field("key_prefix", &self.key_prefix)
            .field("owner", &self.owner)
            .field("ttl", &self.ttl)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

fn invalid(name: &str, problem: &str) -> ConfigError {
    ConfigError::Source { name: name.into(), problem: problem.into() }
}

/// The addresses of a list. A comma in a password cuts an address in two: no part of such an
/// address is shown.
fn split(list: &str) -> Result<Vec<String>, &'static str> {
    let urls: Vec<String> = Address::split_list(list).into_iter().map(str::to_string).collect();
    let is_cut = |url: &String| !url.contains("://") && Address::parse(url).is_err();
    if list.contains('@') && urls.iter().any(is_cut) {
        return Err("an address cannot be read; in a password, write a comma as %2C");
    }
    Ok(urls)
}

/// Reads the password file that is the value of `key`, if there is one.
fn read_password(key: &str, name: Option<&Path>) -> Result<Option<Secret>, ConfigError> {
    let Some(name) = name else { return Ok(None) };
    let bad = |problem: &str| invalid(&format!("{key} {}", name.display()), problem);
    let path = if name.is_absolute() {
        name.to_path_buf()
    } else {
        let directory = env::var_os(CREDENTIALS_DIRECTORY).filter(|value| !value.is_empty());
        let missing = "a relative name is one in $CREDENTIALS_DIRECTORY, which is not set; give an \
            absolute path, or LoadCredential= in the systemd unit";
        PathBuf::from(directory.ok_or_else(|| bad(missing))?).join(name)
    };
    let bytes = std::fs::read(&path).map_err(|error| bad(&error.to_string()))?;
    if bytes.len() > LONGEST_PASSWORD_FILE {
        return Err(bad("it has more than 64 KiB, so it is no password"));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| bad("it is not UTF-8"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(bad("it is empty"));
    }
    Ok(Some(Secret::new(text)))
}

/// How values are read that are not plain texts.
#[cfg(feature = "serde")]
mod read {
    use std::time::Duration;

    use serde::de::{Deserializer, Error, SeqAccess, Visitor};

    use super::{RestartGuard, fmt, parse_duration, split};

    struct Servers;

    impl<'de> Visitor<'de> for Servers {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of addresses")
        }

        fn visit_str<E: Error>(self, list: &str) -> Result<Vec<String>, E> {
            split(list).map_err(E::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
            let mut servers = Vec::new();
            while let Some(server) = list.next_element()? {
                servers.push(server);
            }
            Ok(servers)
        }
    }

    pub fn servers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
        from.deserialize_any(Servers)
    }

    struct Seconds;

    impl Visitor<'_> for Seconds {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration: \"500ms\", \"1m30s\", or a number of seconds")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            parse_duration(text).map_err(E::custom)
        }

        fn visit_u64<E: Error>(self, seconds: u64) -> Result<Duration, E> {
            Ok(Duration::from_secs(seconds))
        }

        fn visit_i64<E: Error>(self, seconds: i64) -> Result<Duration, E> {
            u64::try_from(seconds).map(Duration::from_secs).map_err(E::custom)
        }

        fn visit_f64<E: Error>(self, seconds: f64) -> Result<Duration, E> {
            Duration::try_from_secs_f64(seconds).map_err(E::custom)
        }
    }

    pub fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        from.deserialize_any(Seconds).map(Some)
    }

    pub fn restart_guard<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<RestartGuard>, D::Error> {
        let text: String = serde::Deserialize::deserialize(from)?;
        match text.as_str() {
            "on" => Ok(Some(RestartGuard::On)),
            "persistent" => Ok(Some(RestartGuard::Persistent)),
            "off" => Ok(Some(RestartGuard::Off)),
            _ => Err(D::Error::unknown_variant(&text, &["on", "persistent", "off"])),
        }
    }
}

#[cfg(test)]
mod tests;
