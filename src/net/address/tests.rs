//! Addresses that are read, written again, refused and shown.

use super::*;

fn parse(url: &str) -> (String, u32, Option<String>, Option<String>) {
    let (_, node) = Address::parse(url).unwrap_or_else(|e| panic!("{url}: {e}"));
    let password = node.password.map(|p| p.reveal().to_string());
    (node.label.into(), node.db, node.user.map(Into::into), password)
}

#[test]
fn address_url_gives_host_port_database_and_user() {
    let plain = |label: &str, db| (label.to_string(), db, None, None);
    assert_eq!(parse("redis://10.0.0.1"), plain("10.0.0.1:6379", 0));
    assert_eq!(parse("10.0.0.1:6379"), plain("10.0.0.1:6379", 0));
    assert_eq!(parse("10.0.0.1"), plain("10.0.0.1:6379", 0));
    assert_eq!(parse("[::1]"), plain("[::1]:6379", 0));
    assert_eq!(parse("db.example:7000"), plain("db.example:7000", 0));
    assert_eq!(parse("[::1]:7000"), plain("[::1]:7000", 0));
    assert_eq!(parse("redis://db.example:7000/3"), plain("db.example:7000", 3));
    assert_eq!(parse("redis://[::1]:7000/"), plain("[::1]:7000", 0));
    assert_eq!(parse("redis://[::1]"), plain("[::1]:6379", 0));
    let (label, _, user, password) = parse("redis://ann:p%40ss:w@h:1");
    assert_eq!((label.as_str(), user.as_deref()), ("h:1", Some("ann")));
    assert_eq!(password.as_deref(), Some("p@ss:w"));
    assert_eq!(parse("redis://:pw@h").3.as_deref(), Some("pw"));
    assert_eq!(parse("redis+unix:///run/a%20b.sock"), plain("unix:/run/a b.sock", 0));
    let (label, db, user, password) = parse("redis+unix://ann:p%2Fw@/run/@.sock?db=4");
    assert_eq!((label.as_str(), db, user.as_deref()), ("unix:/run/@.sock", 4, Some("ann")));
    assert_eq!(password.as_deref(), Some("p/w"));
}

#[test]
fn address_error_shows_no_password_of_another_address_before_it() {
    for url in ["ann:hunter2@a redis://b", "redis:/:hunter2@a,redis://ann@b:x", "hunter2@://"] {
        let error = Address::parse(url).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn address_error_is_one_line() {
    for url in ["\n", "redis://h\ns/x", "redis://a\r:b@h:x", "redis+unix:///a%0Ab"] {
        let error = Address::parse(url).unwrap_err().to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
    }
    let error = Address::parse("a\nb").unwrap_err().to_string();
    assert!(error.starts_with("address a\\nb: it has no scheme; "), "{error}");
}

#[test]
fn address_of_a_directory_is_refused_however_it_is_written() {
    for url in ["redis+unix:///run/", "redis+unix:///run%2F", "redis+unix:///%2f?db=1"] {
        let error = Address::parse(url).unwrap_err().to_string();
        assert!(error.ends_with("its path names a directory; name a socket"), "{error}");
    }
}

#[test]
fn password_goes_into_a_url_that_has_none() {
    let cases = [
        ("redis://h", "redis://:p%2Fw%40@h"),
        ("h:7000", "redis://:p%2Fw%40@h:7000"),
        ("10.0.0.1", "redis://:p%2Fw%40@10.0.0.1"),
        ("[::1]", "redis://:p%2Fw%40@[::1]"),
        ("redis://ann@h:7/2", "redis://ann:p%2Fw%40@h:7/2"),
        ("redis://ann:own@h", "redis://ann:own@h"),
        ("redis://:@h", "redis://:@h"),
        ("redis+unix:///run/@.sock", "redis+unix://:p%2Fw%40@/run/@.sock"),
        ("redis+unix://ann@/run/s?db=1", "redis+unix://ann:p%2Fw%40@/run/s?db=1"),
        ("nonsense", "nonsense"),
    ];
    for (url, expected) in cases {
        assert_eq!(Address::with_password(url, Some(&Secret::new("p/w@"))), expected);
        assert_eq!(Address::with_password(url, None), url);
    }
}

#[test]
fn encryption_is_a_matter_of_the_scheme() {
    let tls = Address::parse("rediss://h").map(|parsed| parsed.0);
    if cfg!(feature = "tls") {
        let address = Address::Tcp { host: "h".into(), port: 6379, tls: true };
        assert_eq!(tls, Ok(address));
    } else {
        assert!(tls.unwrap_err().to_string().contains("feature `tls`"));
    }
}

#[test]
fn only_names_are_looked_up() {
    let lookup = |url: &str| {
        let resolver: Resolver = Callback(std::sync::Arc::new(|host: &str, port| {
            assert_eq!((host, port), ("h", 7));
            Ok(vec![SocketAddr::from(([1, 2, 3, 4], port))])
        }));
        Address::parse(url).unwrap().0.lookup(Some(&resolver))
    };
    for url in ["redis://10.0.0.1", "redis://[::1]", "redis+unix:///s"] {
        assert!(lookup(url).is_none(), "{url}");
    }
    let found = lookup("redis://h:7").unwrap().run().unwrap();
    assert_eq!(found, [SocketAddr::from(([1, 2, 3, 4], 7))]);
}

#[test]
fn address_error_shows_no_password() {
    let bad = [
        "",
        "db.example",
        "10.0.0.1/3",
        "http://h",
        "redis://",
        "redis://:7",
        "redis://h:",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:+7",
        "redis://h/x",
        "redis://h/-1",
        "redis://[::1",
        "redis://[::1]7",
        "redis://[h]",
        "redis://h:7?db=2",
        "redis://a b",
        "redis://u@h",
        "redis+unix://",
        "redis+unix:///",
        "redis+unix://s",
        "redis+unix://h/s",
        "redis+unix:///s?x=1",
        "redis+unix:///s?db=",
        "redis+unix:///s?db=-1",
        "redis+unix:///s#x",
        "redis+unix:///%00",
    ];
    for url in bad {
        assert!(Address::parse(url).is_err(), "{url} was taken");
    }
    for url in [
        "redis://u:hunter2@h:x",
        "http://u:hunter2@h",
        "u:hunter2@h",
        "redis://u:hunter2@",
        "redis+unix://u:hunter2@h/s",
        "redis+unix://u:/hunter2@/s",
        "redis+unix://u:hunter2@/s?x",
        "rediss://u:hunter2@h:x",
    ] {
        let error = Address::parse(url).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[test]
fn address_error_hides_what_may_be_a_password() {
    let cases = [
        ("redis://:hunter2", "redis://***"),
        ("redis://ann:hunter2", "redis://ann:***"),
        ("redis://ann:hun:ter2", "redis://ann:***"),
        ("redis://ann:123456789", "redis://ann:***"),
        ("redis://ann:12/34hunter2", "redis://ann:12/***"),
        ("redis://:7/hunter2", "redis://***"),
        ("redis://h/hunter2", "redis://h/***"),
        ("redis://h:7?password=hunter2", "redis://h:7***"),
        ("redis://h#hunter2", "redis://h***"),
        ("redis://[::1]hunter2", "redis://[::1]***"),
        ("redis://[hunter2", "redis://***"),
        ("redis://host with:hunter2", "redis://host with:***"),
        ("ann:hunter2", "ann:***"),
        (":hunter2", "***"),
        ("http://ann:hunter2", "http://ann:***"),
        ("redis+unix://:hunter2/run/s", "redis+unix://***/run/s"),
        ("redis+unix://hunter2/run/s", "redis+unix://***/run/s"),
        ("redis+unix:///run/s?password=hunter2", "redis+unix:///run/s***"),
        ("redis://:x@h:hunter2", "redis://***@h:***"),
        // Text that can only be a host or a port is shown.
        ("10.0.0.1/x", "10.0.0.1/***"),
        ("http://h:80/1", "http://h:80/1"),
        ("redis://h:65536", "redis://h:65536"),
        ("redis://[::1]:70000/0", "redis://[::1]:70000/0"),
        ("redis+unix:///run/s/", "redis+unix:///run/s/"),
        ("redis+unix://:hunter2@/run/s?x", "redis+unix://***@/run/s***"),
    ];
    for (url, shown) in cases {
        assert_eq!(Address::without_credentials(url), shown);
        let error = Address::parse(url).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        assert!(error.to_string().contains(shown), "{error}");
    }
}

#[test]
fn address_list_is_cut_at_commas_that_are_not_between_sentinels() {
    let cases: [(&str, &[&str]); 11] = [
        ("", &[]),
        (" , ,", &[]),
        (" a:1, b:2 ,redis://c/3,", &["a:1", "b:2", "redis://c/3"]),
        ("redis+sentinel://s1,s2:7,s3/m,b:2", &["redis+sentinel://s1,s2:7,s3/m", "b:2"]),
        ("a:1, rediss+sentinel://s1,s2/m/3 ,b", &["a:1", "rediss+sentinel://s1,s2/m/3", "b"]),
        (
            "redis+sentinel://u:p@s1,s2/m,redis+sentinel://t1,t2/m",
            &["redis+sentinel://u:p@s1,s2/m", "redis+sentinel://t1,t2/m"],
        ),
        // Without a name the address ends before the next scheme, or with the list.
        ("redis+sentinel://s1,s2,redis://b/1", &["redis+sentinel://s1,s2", "redis://b/1"]),
        ("redis+sentinel://s1,s2", &["redis+sentinel://s1,s2"]),
        ("redis+sentinel://,/,", &["redis+sentinel://,/"]),
        // A comma in the password of any other address cuts it.
        ("redis://u:p,w@h", &["redis://u:p", "w@h"]),
        ("x redis+sentinel://s1,s2/m", &["x redis+sentinel://s1", "s2/m"]),
    ];
    for (list, addresses) in cases {
        assert_eq!(Address::split_list(list), addresses, "{list:?}");
    }
}

#[test]
fn sentinel_url_gives_sentinels_name_database_and_the_masters_user() {
    let plain = |label: &str, db| (label.to_string(), db, None, None);
    let cases = [
        ("redis+sentinel://s1,s2:7,[::1]/m", "sentinel://[::1]:26379,s1:26379,s2:7/m", 0),
        ("redis+sentinel://s/my.master_1-a/3", "sentinel://s:26379/my.master_1-a", 3),
        ("redis+sentinel://s:26379,s/m/", "sentinel://s:26379/m", 0),
    ];
    for (url, label, db) in cases {
        assert_eq!(parse(url), plain(label, db), "{url}");
    }
    let (label, _, user, password) = parse("redis+sentinel://ann:p%40s,:w@s1,s2/m/1");
    assert_eq!((&*label, user.as_deref()), ("sentinel://s1:26379,s2:26379/m", Some("ann")));
    assert_eq!(password.as_deref(), Some("p@s,:w"));
    let tls = Address::parse("rediss+sentinel://s/m").map(|(address, _)| address.is_encrypted());
    assert_eq!(tls.ok(), cfg!(feature = "tls").then_some(true));
    let of = |url| Address::parse(url).unwrap().0;
    assert_eq!(of("redis+sentinel://a,b/m"), of("redis+sentinel://b:26379,a/m/1"));
    assert_ne!(of("redis+sentinel://a,b/m"), of("redis+sentinel://a,b/other"));
    assert!(of("redis+sentinel://a/m").lookup(None).is_none(), "the engine asks Sentinels itself");
}

#[test]
fn sentinel_url_that_is_bad_is_refused_without_a_password() {
    let many = format!(
        "redis+sentinel://{}/m",
        (0..17).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
    );
    let cases = [
        ("redis+sentinel://s1,s2", "redis+sentinel://s1,s2: it names no master; write "),
        ("redis+sentinel://s1,s2/", "redis+sentinel://s1,s2/: it names no master; write "),
        ("redis+sentinel:///m", "redis+sentinel://***: it has no host"),
        ("redis+sentinel://s1,,s2/m", "redis+sentinel://s1,***: it has no host"),
        ("redis+sentinel://s1:0/m", "redis+sentinel://s1:0/m: its port is not a number from 1 to"),
        ("redis+sentinel://s/m/x", "redis+sentinel://s/***: its database is not a number"),
        ("redis+sentinel://s/hunter2$", "redis+sentinel://s/***: the name of its master has "),
        ("redis+sentinel://s/m?x=hunter2", "redis+sentinel://s/***: it has a query or a fragment"),
        ("redis+sentinel://ann@s/m", "redis+sentinel://***@s/m: it has a user and no password"),
        ("redis+sentinel://ann:hunter2/m", "redis+sentinel://ann:***: its port is not a number"),
        ("redis+sentinel://ann:hun,ter2/m", "redis+sentinel://ann:***: its port is not a number"),
        ("redis+sentinel://s1,:hunter2/m", "redis+sentinel://s1,***: it has no host"),
        (&many, "redis+sentinel://0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16/m: it names more than"),
    ];
    for (url, expected) in cases {
        let error = Address::parse(url).unwrap_err();
        assert!(error.to_string().starts_with(&format!("address {expected}")), "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("ter2"), "{error}");
    }
    let twice = Address::with_password("redis+sentinel://ann@s1,s2/m", Some(&Secret::new("p,@")));
    assert_eq!(twice, "redis+sentinel://ann:p%2C%40@s1,s2/m");
}
