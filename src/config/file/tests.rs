//! Variables and files, and which of them counts more.

use super::*;

/// Variables as the environment has them.
fn variables(set: &[(&str, &str)]) -> Result<ConfigFile, ConfigError> {
    ConfigFile::from_variables(|name| {
        set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value))
    })
}

fn labels(config: &Config) -> Vec<&str> {
    config.get_settings().nodes.iter().map(|node| &*node.label).collect()
}

fn password(config: &Config, index: usize) -> Option<&str> {
    config.get_settings().nodes[index].password.as_ref().map(Secret::reveal)
}

#[test]
fn variables_make_a_configuration() {
    let file = variables(&[
        ("REDLATCH_SERVERS", " 10.0.0.1:7000, redis://ann@b ,redis://x:own@c,"),
        ("REDISCLI_AUTH", "p/w"),
        ("REDLATCH_KEY_PREFIX", "app:"),
        ("REDLATCH_OWNER", "web-1"),
        ("REDLATCH_TTL", "1m30s"),
        ("REDLATCH_WAIT", "5"),
        ("REDLATCH_NODE_TIMEOUT", "20ms"),
        ("REDLATCH_CONNECT_TIMEOUT", "2"),
        ("REDLATCH_MAX_TTL", "2m"),
        ("REDLATCH_PERSISTENT_NODES", "true"),
        ("REDLATCH_CHECK_MEMBERS", "true"),
    ])
    .unwrap();
    let times = (file.ttl, file.wait);
    assert_eq!(times, (Some(Duration::from_secs(90)), Some(Duration::from_secs(5))));
    let config = Config::try_from(file).unwrap();
    assert_eq!(labels(&config), ["10.0.0.1:7000", "b:6379", "c:6379"]);
    let passwords: Vec<_> = (0..3).map(|index| password(&config, index)).collect();
    assert_eq!(passwords, [Some("p/w"), Some("p/w"), Some("own")]);
    let settings = config.get_settings();
    assert_eq!((&*settings.key_prefix, settings.owner.as_deref()), ("app:", Some("web-1")));
    assert_eq!(settings.node_timeout, Duration::from_millis(20));
    assert_eq!(settings.connect_timeout, Duration::from_secs(2));
    assert_eq!(settings.max_ttl, Duration::from_secs(120));
    assert_eq!(settings.restart_guard, RestartGuard::Persistent);
    assert!(settings.check_members);
    // A setting without a variable has the library's default.
    let plain = Config::try_from(variables(&[("REDLATCH_SERVERS", "h:1")]).unwrap()).unwrap();
    let same = Config::new(["redis://h:1"]).unwrap();
    assert_eq!(plain.get_settings(), same.get_settings());
    assert_eq!(plain.get_addresses(), same.get_addresses());
}

#[test]
fn number_of_replicas_is_read_from_a_variable_and_a_file() {
    let file = ConfigFile { replicas: Some(3), ..ConfigFile::default() };
    for (set, expected) in [(&[][..], 3), (&[("REDLATCH_REPLICAS", "2")][..], 2)] {
        let set = [&[("REDLATCH_SERVERS", "h:1")], set].concat();
        let config = Config::try_from(variables(&set).unwrap().or(file.clone())).unwrap();
        assert_eq!(config.get_settings().replicas, expected);
    }
    let error = variables(&[("REDLATCH_REPLICAS", "two")]).unwrap_err().to_string();
    assert_eq!(error, "REDLATCH_REPLICAS: it is not a whole number");
}

#[test]
fn empty_variable_counts_as_unset() {
    let names = ["REDLATCH_SERVERS", "REDLATCH_OWNER", "REDLATCH_NODE_TIMEOUT", "REDISCLI_AUTH"];
    let empty: Vec<_> = names.iter().map(|name| (*name, "")).collect();
    assert_eq!(variables(&empty), Ok(ConfigFile::default()));
    assert_eq!(Config::try_from(ConfigFile::default()).unwrap_err(), ConfigError::NoNodes);
}

#[test]
fn variable_that_cannot_be_read_is_named_and_not_quoted() {
    let cases = [
        ("REDLATCH_NODE_TIMEOUT", "hunter2"),
        ("REDLATCH_NO_RESTART_GUARD", "hunter2"),
        ("REDLATCH_SERVERS", "redis://ann:hun,ter2@h"),
        ("REDLATCH_SERVERS", "redis://h,redis://ann:pw,hunter2@h"),
    ];
    for (name, value) in cases {
        let error = variables(&[(name, value)]).unwrap_err().to_string();
        assert!(error.starts_with(name) && !error.contains("hun"), "{error}");
    }
    let both = [("REDLATCH_NO_RESTART_GUARD", "1"), ("REDLATCH_PERSISTENT_NODES", "yes")];
    assert!(variables(&both).unwrap_err().to_string().contains("set one of them"));
    let off = [("REDLATCH_NO_RESTART_GUARD", "on"), ("REDLATCH_PERSISTENT_NODES", "off")];
    assert_eq!(variables(&off).unwrap().restart_guard, Some(RestartGuard::Off));
}

#[test]
fn variables_count_more_than_a_file() {
    let file = ConfigFile {
        servers: vec!["file:1".into()],
        owner: Some("file".into()),
        key_prefix: Some("file:".into()),
        max_ttl: Some(Duration::from_secs(1)),
        restart_guard: Some(RestartGuard::Off),
        check_members: Some(true),
        allow_eviction: Some(true),
        client_name: Some("file".into()),
        node_marker: Some("file:node".into()),
        tls: TlsFiles { ca: Some("file-ca".into()), cert: Some("file-cert".into()), key: None },
        ..ConfigFile::default()
    };
    let set = [("REDLATCH_SERVERS", "env:1"), ("REDLATCH_OWNER", "env"), ("REDLATCH_TLS_CA", "ca")];
    let merged = variables(&set).unwrap().or(file);
    assert_eq!(merged.tls.ca.as_deref(), Some(Path::new("ca")));
    assert_eq!(merged.tls.cert.as_deref(), Some(Path::new("file-cert")));
    let config = Config::try_from(ConfigFile { tls: TlsFiles::default(), ..merged }).unwrap();
    assert_eq!(labels(&config), ["env:1"]);
    let settings = config.get_settings();
    assert_eq!((&*settings.key_prefix, settings.owner.as_deref()), ("file:", Some("env")));
    assert_eq!((settings.max_ttl, settings.allow_eviction), (Duration::from_secs(1), true));
    assert_eq!((&*settings.client_name, &*settings.node_marker), ("file", "file:node"));
    assert_eq!((settings.restart_guard, settings.check_members), (RestartGuard::Off, true));
}

#[test]
fn password_is_read_from_its_file_and_never_shown() {
    let folder = env::temp_dir().join(format!("redlatch-password-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("password");
    let of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let file = ConfigFile {
            servers: vec!["redis://app@h".into(), "h:2".into()],
            password_file: Some(path.clone()),
            ..ConfigFile::default()
        };
        let shown = format!("{file:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        Config::try_from(file)
    };
    for bytes in [&b"hunter2 #"[..], b"hunter2 #\n", b"hunter2 #\r\n"] {
        let config = of(bytes).unwrap();
        assert_eq!(password(&config, 0), Some("hunter2 #"));
        assert_eq!(password(&config, 1), Some("hunter2 #"));
        assert_eq!(config.get_settings().nodes[0].user.as_deref(), Some("app"));
    }
    for (bytes, problem) in [(&b""[..], "empty"), (b"\n", "empty"), (b"\xff", "not UTF-8")] {
        let error = of(bytes).unwrap_err().to_string();
        assert!(error.starts_with("password_file ") && error.contains(problem), "{error}");
    }
    assert!(of(&vec![b'x'; LONGEST_PASSWORD_FILE + 1]).unwrap_err().to_string().contains("64 KiB"));
    // The variable counts more than the file.
    let set = [("REDISCLI_AUTH", "own"), ("REDLATCH_SERVERS", "h:1")];
    let file = ConfigFile { password_file: Some(path.clone()), ..variables(&set).unwrap() };
    assert_eq!(password(&Config::try_from(file).unwrap(), 0), Some("own"));
    std::fs::remove_dir_all(&folder).unwrap();
    let gone = of_missing(&path).to_string();
    assert!(gone.contains("No such file"), "{gone}");
}

#[test]
fn credentials_for_sentinels_come_from_their_own_variables_and_file() {
    let path = env::temp_dir().join(format!("redlatch-sentinel-{}", std::process::id()));
    std::fs::write(&path, "of-the-file\n").unwrap();
    let servers = ("REDLATCH_SERVERS", "redis+sentinel://u:of-the-url@s1,s2/m, h:2");
    let place = ("REDLATCH_SENTINEL_PASSWORD_FILE", path.to_str().unwrap());
    let of = |set: &[(&str, &str)]| {
        let file = variables(&[&[servers, ("REDISCLI_AUTH", "of-the-nodes")], set].concat());
        let config = Config::try_from(file.unwrap())?;
        assert_eq!(labels(&config), ["sentinel://s1:26379,s2:26379/m", "h:2"]);
        let passwords = (password(&config, 0), password(&config, 1));
        assert_eq!(passwords, (Some("of-the-url"), Some("of-the-nodes")));
        Ok(config.sentinel_credentials)
    };
    assert_eq!(of(&[]), Ok(Credentials::default()));
    assert_eq!(of(&[place]), Ok(Credentials::password("of-the-file")));
    let (user, auth) = (("REDLATCH_SENTINEL_USER", "ann"), ("REDLATCH_SENTINEL_AUTH", "hunter2"));
    assert_eq!(of(&[place, auth]), Ok(Credentials::password("hunter2")));
    assert_eq!(of(&[place, user]), Ok(Credentials::of("ann", "of-the-file")));
    assert_eq!(of(&[user, auth]), Ok(Credentials::of("ann", "hunter2")));
    let shown = format!("{:?}", variables(&[servers, auth]));
    assert!(!shown.contains("hunter2") && !shown.contains("of-the-url"), "{shown}");
    let error: ConfigError = of(&[user]).unwrap_err();
    assert!(error.to_string().starts_with("sentinel_user: it needs a password; "), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = of(&[place]).unwrap_err().to_string();
    assert!(error.starts_with("sentinel_password_file "), "{error}");
    // A file counts less than variables.
    let file = ConfigFile { sentinel_user: Some("file".into()), ..ConfigFile::default() };
    let merged = variables(&[user]).unwrap().or(file.clone());
    assert_eq!(merged.sentinel_user.as_deref(), Some("ann"));
    assert_eq!(variables(&[]).unwrap().or(file).sentinel_user.as_deref(), Some("file"));
}

fn of_missing(path: &Path) -> ConfigError {
    let file = ConfigFile { password_file: Some(path.into()), ..ConfigFile::default() };
    Config::try_from(file).unwrap_err()
}

#[cfg(feature = "serde")]
mod toml_files {
    use super::*;

    #[test]
    fn file_has_the_shape_that_the_docs_show() {
        let docs = include_str!("../file.rs");
        let example = docs.split("```toml").nth(1).unwrap().split("```").next().unwrap();
        let text: String =
            example.lines().map(|line| format!("{}\n", line.trim_start_matches("///"))).collect();
        let file: ConfigFile = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(file.servers.len(), 3);
        assert_eq!(file.password_file.as_deref(), Some(Path::new("redis-password")));
        assert_eq!(
            (file.ttl, file.wait),
            (Some(Duration::from_secs(30)), Some(Duration::from_secs(300)))
        );
        assert_eq!(file.connect_timeout, Some(Duration::from_secs(1)));
        assert_eq!(file.restart_guard, Some(RestartGuard::On));
        assert_eq!((file.allow_eviction, file.check_members), (Some(false), Some(true)));
        assert_eq!(file.tls.key.as_deref(), Some(Path::new("/etc/ssl/client.key")));
    }

    #[test]
    fn servers_are_a_list_or_one_text() {
        for text in ["servers = [\"a:1\", \"b:1\"]", "servers = \"a:1, b:1\""] {
            assert_eq!(toml::from_str::<ConfigFile>(text).unwrap().servers, ["a:1", "b:1"]);
        }
        let error =
            toml::from_str::<ConfigFile>("servers = \"redis://ann:hun,ter2@h\"").unwrap_err();
        assert!(!error.message().contains("hun"), "{}", error.message());
    }

    #[test]
    fn unknown_key_and_bad_value_are_errors_that_name_the_line() {
        let cases = [
            ("servers = []\nsevers = []\n", "line 2", "unknown field `severs`"),
            ("\n\n[tls]\nca_file = \"x\"\n", "line 4", "unknown field `ca_file`"),
            ("password = \"hunter2\"\n", "line 1", "unknown field `password`"),
            ("ttl = \"soon\"\n", "line 1", "not a duration"),
            ("ttl = -1\n", "line 1", ""),
            ("restart_guard = \"maybe\"\n", "line 1", "persistent"),
        ];
        for (text, line, problem) in cases {
            let error = toml::from_str::<ConfigFile>(text).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn configuration_is_a_part_of_a_programs_own() {
        #[derive(serde::Deserialize)]
        struct Program {
            name: String,
            locks: Config,
        }
        let text = "name = \"x\"\n[locks]\nservers = [\"h:1\", \"h:2\"]\nnode_timeout = 0.25\n";
        let program: Program = toml::from_str(text).unwrap();
        assert_eq!((program.name.as_str(), labels(&program.locks).len()), ("x", 2));
        assert_eq!(program.locks.get_settings().node_timeout, Duration::from_millis(250));
        let bad = "name = \"x\"\n[locks]\nservers = [\"h:1\", \"h:1\"]\n";
        let error = toml::from_str::<Program>(bad).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("in the list twice"), "{error}");
    }
}
