use super::*;
use std::collections::BTreeSet;
use std::io::Write as _;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn from_file(text: &str) -> Result<Settings, ConfigError> {
    Settings::load(Some(file(text).path()), [], &[])
}

fn from_env(pairs: &[(&str, &str)]) -> Result<Settings, ConfigError> {
    Settings::load(
        None,
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        &[],
    )
}

fn flag(name: &str, value: &str) -> Result<Settings, ConfigError> {
    Settings::load(None, [], &[(name.to_owned(), value.to_owned())])
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let settings = Settings::defaults();
    for (name, value) in [
        ("lock.session.ttl", "15s"),
        ("lock.heartbeat.interval", "5s"),
        ("lock.client.safety-margin", "1s"),
        ("lock.acquire.backoff-min", "50ms"),
        ("lock.acquire.backoff-max", "1s"),
        ("executor.poll.interval", "1s"),
        ("executor.reconcile.interval", "30s"),
        ("executor.ambiguous-sla", "4h"),
        ("executor.rail-timeout", "10s"),
        ("rail.read-timeout", "8s"),
        ("rail.visibility-horizon", "60s"),
        ("http.request-timeout", "5s"),
        ("lock.tombstone.retention", "24h"),
        ("lock.audit.retention", "30d"),
    ] {
        assert_eq!(
            settings.duration(name),
            humantime::parse_duration(value).unwrap(),
            "{name}"
        );
    }
    assert_eq!(settings.integer("lock.acquire.max-attempts"), 5);
    assert_eq!(settings.integer("executor.concurrency"), 4);
    assert_eq!(settings.text("lock.store"), Some("sqlite"));
    assert_eq!(settings.optional_duration("lock.grant.ttl"), None);
    assert!(settings.boolean("payment.fencing.enabled") && settings.boolean("rail.fencing.enabled"));
    assert!(!settings.boolean("executor.ignore-lock-lost") && !settings.boolean("debug.control"));
}

#[test]
fn names_and_variables_are_unique_and_of_one_shape() {
    let names: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    let variables: BTreeSet<_> = SETTINGS.iter().map(Setting::variable).collect();
    assert_eq!((names.len(), variables.len()), (SETTINGS.len(), SETTINGS.len()));
    for setting in SETTINGS {
        let shape = |c: char| c.is_ascii_lowercase() || c == '.' || c == '-';
        assert!(
            setting.name.chars().all(shape) && setting.name.contains('.'),
            "{}",
            setting.name
        );
        let variable = setting.variable();
        assert!(
            !NOT_CONFIGURATION.contains(&variable.as_str()) && !variable.ends_with("_IMAGE"),
            "{variable}"
        );
        assert!(!setting.doc.is_empty() && !setting.reader.is_empty());
    }
    let fencing = SETTINGS
        .iter()
        .find(|setting| setting.name == "payment.fencing.enabled")
        .unwrap();
    assert_eq!(fencing.variable(), "DLOCK_PAYMENT_FENCING_ENABLED");
}

#[test]
fn the_sources_override_each_other_in_rising_order() {
    let file = file("[lock.session]\nttl = \"20s\"\n[executor]\nconcurrency = 7\n[http]\nworkers = 2\n");
    let env = [
        ("DLOCK_LOCK_SESSION_TTL".to_owned(), "30s".to_owned()),
        ("DLOCK_HTTP_WORKERS".to_owned(), "3".to_owned()),
    ];
    let flags = [("lock.session.ttl".to_owned(), "40s".to_owned())];
    let settings = Settings::load(Some(file.path()), env, &flags).unwrap();
    assert_eq!(settings.duration("lock.session.ttl"), Duration::from_secs(40));
    assert_eq!(settings.integer("http.workers"), 3);
    assert_eq!(settings.integer("executor.concurrency"), 7);
    assert_eq!(settings.source("lock.session.ttl"), "the command line");
    assert_eq!(
        settings.source("http.workers"),
        "the environment variable DLOCK_HTTP_WORKERS"
    );
    assert_eq!(settings.source("http.keep-alive"), "the default");
}

#[test]
fn an_unknown_name_is_an_error_with_a_hint() {
    for error in [
        from_file("[lock.session]\nttll = \"1s\"\n").unwrap_err(),
        flag("lock.session.ttll", "1s").unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(
            text.contains("lock.session.ttll") && text.contains("did you mean lock.session.ttl?"),
            "{text}"
        );
    }
    let text = from_env(&[("DLOCK_LOCK_SESION_TTL", "1s")]).unwrap_err().to_string();
    assert!(text.contains("did you mean DLOCK_LOCK_SESSION_TTL?"), "{text}");
    assert!(from_file("nonsense = 1").is_err());
}

#[test]
fn what_is_no_configuration_is_ignored() {
    let settings = from_env(&[
        ("DLOCK_TOKEN", "7"),
        ("DLOCK_KEY", "a/b"),
        ("DLOCK_LOCK_SERVER", "http://x"),
        ("DLOCK_LOG", "debug"),
        ("DLOCK_POSTGRES_IMAGE", "postgres:16"),
        ("PATH", "/bin"),
    ]);
    assert!(settings.is_ok());
}

#[test]
fn a_value_out_of_kind_or_bounds_is_named_and_not_repeated() {
    for (name, value) in [
        ("lock.session.ttl", "hunter2"),
        ("lock.session.ttl", "15"),
        ("lock.session.ttl", "100ms"),
        ("lock.session.ttl", "-1s"),
        ("lock.session.ttl", "1500us"),
        ("lock.session.ttl", "400d"),
        ("lock.session.ttl", ""),
        ("http.workers", "0"),
        ("http.workers", "1.5"),
        ("http.workers", "-1"),
        ("http.workers", "99999999999999999999"),
        ("executor.role", "sleep"),
        ("debug.endpoints", "yes"),
        ("executor.owner", "a\u{7}b"),
        ("rail.url", "hunter2"),
        ("rail.url", "ftp://x"),
        ("rail.url", "http:"),
        ("lock.store.url", "mysql://x"),
        ("lock.store.url", "sqlite:"),
    ] {
        let text = flag(name, value).unwrap_err().to_string();
        assert!(
            text.contains(name) && text.contains("must be"),
            "{name}={value}: {text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
    for bad in [
        "http.workers = \"2\"",
        "lock.session.ttl = 15",
        "debug.endpoints = \"true\"",
        "executor.owner = [1]",
    ] {
        let text = from_file(bad).unwrap_err().to_string();
        assert!(text.contains(bad.split(' ').next().unwrap()), "{text}");
    }
}

#[test]
fn durations_are_written_as_people_write_them() {
    for (text, ms) in [
        ("15s", 15_000),
        ("500ms", 500),
        ("4h", 14_400_000),
        ("1m 30s", 90_000),
        ("1d", 86_400_000),
    ] {
        let settings = flag("http.drain-timeout", text);
        if ms > 600_000 {
            assert!(settings.is_err());
            continue;
        }
        assert_eq!(
            settings.unwrap().duration("http.drain-timeout"),
            Duration::from_millis(ms)
        );
    }
    for (ms, text) in [
        (0, "0ms"),
        (1_500, "1500ms"),
        (90_000, "90s"),
        (14_400_000, "4h"),
        (86_400_000, "1d"),
    ] {
        assert_eq!(show_ms(ms), text);
    }
}

#[test]
fn two_settings_that_do_not_go_together_are_both_named() {
    for (pairs, first, second) in [
        (
            &[("lock.client.safety-margin", "7500ms")][..],
            "lock.client.safety-margin",
            "lock.session.ttl",
        ),
        (
            &[("lock.session.ttl", "2s"), ("lock.heartbeat.interval", "500ms")],
            "lock.client.safety-margin",
            "lock.session.ttl",
        ),
        (
            &[("lock.heartbeat.interval", "15s")],
            "lock.heartbeat.interval",
            "lock.session.ttl",
        ),
        (
            &[("rail.read-timeout", "10s")],
            "rail.read-timeout",
            "executor.rail-timeout",
        ),
        (
            &[("lock.session.ttl-max", "10s")],
            "lock.session.ttl",
            "lock.session.ttl-max",
        ),
        (
            &[("lock.session.ttl-min", "20s")],
            "lock.session.ttl-min",
            "lock.session.ttl",
        ),
        (&[("lock.grant.ttl", "10m")], "lock.grant.ttl", "lock.session.ttl-max"),
        (&[("lock.grant.ttl", "500ms")], "lock.grant.ttl", "lock.session.ttl-min"),
        (
            &[("lock.acquire.backoff-min", "2s")],
            "lock.acquire.backoff-min",
            "lock.acquire.backoff-max",
        ),
        (&[("lock.store", "pg")], "lock.store", "lock.store.url"),
        (
            &[("lock.store", "pg"), ("lock.store.url", "sqlite:x")],
            "lock.store",
            "lock.store.url",
        ),
    ] {
        let flags: Vec<_> = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        match Settings::load(None, [], &flags).unwrap_err() {
            ConfigError::Conflict {
                first: a, second: b, ..
            } => assert_eq!((a, b), (first, second)),
            other => panic!("{pairs:?}: {other}"),
        }
    }
    assert!(flag("lock.client.safety-margin", "7499ms").is_ok());
    assert!(flag("rail.read-timeout", "9999ms").is_ok());
}

#[test]
fn a_setting_of_another_backend_is_refused_and_not_printed() {
    const PG: &str = "postgres://h/db";
    const ETCD: &str = "etcd://a:1";
    for (name, value, fitting) in [
        ("lock.store.schema", "locks", &[PG][..]),
        ("lock.store.pool-max", "4", &[PG]),
        ("lock.store.password-file", "/run/secrets/db", &[PG, ETCD]),
        ("lock.store.connect-timeout", "1s", &[PG]),
        ("lock.store.pooler", "true", &[PG]),
        ("lock.store.prefix", "a/b", &[ETCD]),
        ("lock.store.user", "root", &[ETCD]),
        ("lock.store.ca-file", "/ca.pem", &[ETCD]),
        ("lock.store.cert-file", "/cert.pem", &[ETCD]),
        ("lock.store.key-file", "/key.pem", &[ETCD]),
    ] {
        let with = |url: &str| {
            let flags =
                [("lock.store.url", url), (name, value)].map(|(name, value)| (name.to_owned(), value.to_owned()));
            Settings::load(None, [], &flags)
        };
        for url in fitting {
            assert!(with(url).unwrap().to_toml().contains(value), "{name} {url}");
        }
        for url in ["sqlite:x", PG, ETCD].iter().filter(|url| !fitting.contains(url)) {
            let said = with(url).unwrap_err().to_string();
            assert!(said.contains(name) && said.contains("lock.store ("), "{said}");
        }
        let key = name.strip_prefix("lock.").unwrap();
        let printed = Settings::defaults().to_toml();
        let (_, lock) = printed.split_once("[lock]").unwrap();
        let (lock, _) = lock.split_once("\n[").unwrap();
        assert!(!lock.contains(&format!("\"{key}\"")), "{name}");
    }
}

#[test]
fn a_schema_that_would_need_quotes_is_refused() {
    for (schema, fits) in [
        ("dlock", true),
        ("locks_2", true),
        ("_x", true),
        ("Locks", false),
        ("2locks", false),
        ("pg_locks", false),
        ("a-b", false),
        ("a\"; DROP SCHEMA b", false),
        (&"a".repeat(41), false),
    ] {
        let flags = [("lock.store.url", "postgres://h/db"), ("lock.store.schema", schema)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        match Settings::load(None, [], &flags) {
            Ok(_) => assert!(fits, "{schema}"),
            Err(error) => assert!(!fits && error.to_string().contains("lock.store.schema"), "{error}"),
        }
    }
}

#[test]
fn the_backend_follows_the_url() {
    for (url, store) in [
        ("postgres://h/db", "pg"),
        ("postgresql://h/db", "pg"),
        ("etcd://a:1,b:2", "etcd"),
        ("sqlite:/tmp/x", "sqlite"),
    ] {
        assert_eq!(flag("lock.store.url", url).unwrap().text("lock.store"), Some(store));
    }
}

#[test]
fn a_setting_given_twice_in_a_file_is_refused() {
    let twice = from_file("[lock]\n\"session.ttl\" = \"20s\"\n[lock.session]\nttl = \"30s\"\n");
    assert!(matches!(
        twice,
        Err(ConfigError::Twice {
            name: "lock.session.ttl",
            ..
        })
    ));
}

#[test]
fn a_file_that_is_not_there_or_no_toml_is_named() {
    let missing = Settings::load(Some(Path::new("/nonexistent/dlock.toml")), [], &[])
        .unwrap_err()
        .to_string();
    assert!(missing.contains("/nonexistent/dlock.toml"), "{missing}");
    assert!(matches!(from_file("[lock"), Err(ConfigError::File { .. })));
}

#[test]
fn what_is_printed_can_be_read_again() {
    let flags: Vec<_> = [
        ("lock.session.ttl", "1m 30s"),
        ("executor.owner", "he said \"hi\" # \\ \u{1f512}"),
        ("lock.store.lineage", "abc"),
        ("lock.store.url", "etcd://a:1"),
        ("http.workers", "3"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    let settings = Settings::load(None, [], &flags).unwrap();
    let printed = settings.to_toml();
    let again = from_file(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    let values = |settings: &Settings| {
        settings
            .entries
            .iter()
            .map(|(name, entry)| (*name, entry.value.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&again), values(&settings));
}

#[test]
fn passwords_are_never_printed() {
    for (url, shown) in [
        (
            "postgres://user:hunter2@host:5432/db",
            "postgres://user:***@host:5432/db",
        ),
        ("postgres://user:hun@ter2@host/db", "postgres://user:***@host/db"),
        (
            "postgres://host/db?user=u&password=hunter2&x=1",
            "postgres://host/db?user=u&password=***&x=1",
        ),
        (
            "postgres://host/db?sslPassword=hunter2",
            "postgres://host/db?sslPassword=***",
        ),
        ("postgres://user@host/db", "postgres://user@host/db"),
        ("sqlite:/var/lib/a@b:c", "sqlite:/var/lib/a@b:c"),
    ] {
        assert_eq!(mask(url), shown);
        if url.starts_with("postgres") {
            let printed = flag("lock.store.url", url).unwrap().to_toml();
            assert!(!printed.contains("hunter2") && !printed.contains("ter2"), "{printed}");
        }
    }
    let flags = [(
        "executor.lock-servers".to_owned(),
        "http://a:s3cret@h1,http://b:s3cret@h2".to_owned(),
    )];
    let printed = Settings::load(None, [], &flags).unwrap().to_toml();
    assert!(
        !printed.contains("s3cret") && printed.contains("h1") && printed.contains("h2"),
        "{printed}"
    );
}

#[cfg(not(feature = "lab"))]
#[test]
fn a_fence_cannot_be_switched_off_where_the_switch_is_not_compiled_in() {
    for name in [
        "payment.fencing.enabled",
        "rail.fencing.enabled",
        "executor.ignore-lock-lost",
        "executor.lock-delay",
        "debug.control",
    ] {
        assert!(
            matches!(flag(name, "false"), Err(ConfigError::Unknown { .. })),
            "{name}"
        );
    }
    assert!(matches!(
        from_env(&[("DLOCK_RAIL_FENCING_ENABLED", "false")]),
        Err(ConfigError::Unknown { .. })
    ));
    assert!(matches!(
        flag("debug.fault-points", "a.b=kill"),
        Err(ConfigError::Unknown { .. })
    ));
    assert!(!Settings::defaults().to_toml().contains("fencing"));
}

#[cfg(feature = "lab")]
#[test]
fn the_lab_can_switch_a_fence_off() {
    assert!(
        !flag("payment.fencing.enabled", "false")
            .unwrap()
            .boolean("payment.fencing.enabled")
    );
    assert!(
        !from_env(&[("DLOCK_RAIL_FENCING_ENABLED", "false")])
            .unwrap()
            .boolean("rail.fencing.enabled")
    );
    assert_eq!(
        flag("debug.fault-points", "a.b=kill")
            .unwrap()
            .text("debug.fault-points"),
        Some("a.b=kill")
    );
    assert!(Settings::defaults().boolean("debug.endpoints"));
}

#[test]
fn the_documented_table_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- settings: begin -->\n", "<!-- settings: end -->");
    let start = page.find(begin).expect("the page marks where the table begins") + begin.len();
    let stop = page.find(end).expect("the page marks where the table ends");
    let table = Settings::to_markdown();
    if page[start..stop] != table && std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{}{table}{}", &page[..start], &page[stop..])).unwrap();
        return;
    }
    assert_eq!(
        &page[start..stop],
        table,
        "run this test with UPDATE_DOCS=1 to write the table anew"
    );
}

/// A setting that nobody reads would promise something to whoever sets it. `lock.store` is what the URL already says.
#[test]
fn every_setting_is_read_by_somebody() {
    fn sources(folder: &Path, into: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("settings") {
                sources(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut text = String::new();
    for row in ["gateway", "actors"] {
        for package in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(row))
            .unwrap()
            .flatten()
        {
            sources(&package.path().join("src"), &mut text);
        }
    }
    let unread: Vec<_> = SETTINGS
        .iter()
        .filter(|setting| setting.name != "lock.store" && !text.contains(&format!("\"{}\"", setting.name)))
        .map(|setting| setting.name)
        .collect();
    assert!(unread.is_empty(), "nobody reads {unread:?}");
}

#[test]
fn the_standard_variable_names_a_collector_where_there_is_an_exporter_and_our_own_comes_first() {
    let standard = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://everywhere:4317");
    let ours = ("DLOCK_OTEL_ENDPOINT", "http://here:4317");
    if cfg!(feature = "otel") {
        for both in [[standard, ours], [ours, standard]] {
            assert_eq!(from_env(&both).unwrap().text("otel.endpoint"), Some("http://here:4317"));
        }
        let settings = from_env(&[standard]).unwrap();
        assert_eq!(settings.text("otel.endpoint"), Some("http://everywhere:4317"));
        assert_eq!(
            from_env(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")])
                .unwrap()
                .text("otel.endpoint"),
            None
        );
        let refused = from_env(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://x")]).unwrap_err();
        assert!(refused.to_string().contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{refused}");
    } else {
        assert_eq!(from_env(&[standard]).unwrap().text("otel.endpoint"), None);
        let refused = from_env(&[ours]).unwrap_err().to_string();
        assert!(
            refused.contains("otel.endpoint") && refused.contains("feature otel"),
            "{refused}"
        );
    }
}

#[test]
fn what_is_named_like_a_secret_is_masked() {
    for (text, masked) in [
        ("http://key@host/a", "http://***@host/a"),
        ("postgres://user@host/db", "postgres://user@host/db"),
        (
            "https://u:p@host?api_key=x&a=1&Token=y",
            "https://u:***@host?api_key=***&a=1&Token=***",
        ),
    ] {
        assert_eq!(mask(text), masked);
    }
}

#[test]
fn an_address_that_wants_tls_is_refused_where_none_is_spoken() {
    for name in [
        "executor.lock-servers",
        "executor.payments",
        "executor.rail-proxy",
        "console.lock-servers",
        "console.payments",
        "console.rail-proxy",
        "console.executors",
        "console.scenario",
        "otel.endpoint",
    ] {
        let said = flag(name, "https://h:1").unwrap_err().to_string();
        let expected = format!("setting {name} (from the command line) must begin with http://: https is spoken to");
        assert!(said.starts_with(&expected), "{said}");
    }
    for name in ["executor.lock-servers", "console.lock-servers", "console.executors"] {
        let said = flag(name, "http://a:1, https://b:2").unwrap_err().to_string();
        assert!(said.contains("https is spoken to the rail alone"), "{said}");
        for wrong in ["a:1", "http://a:1,b", "http://", ",", "ftp://a"] {
            let said = flag(name, wrong).unwrap_err().to_string();
            assert!(
                said.contains("must be URLs of scheme http, separated by commas"),
                "{wrong}: {said}"
            );
        }
        flag(name, "http://a:1, http://b:2,").unwrap();
    }
    // No address on the other side of a setting may slip in with a scheme that nobody speaks.
    let https: Vec<&str> = SETTINGS
        .iter()
        .filter(
            |setting| matches!(setting.kind, Kind::Url(schemes) | Kind::Urls(schemes) if schemes.contains(&"https")),
        )
        .map(|setting| setting.name)
        .collect();
    assert_eq!(https, ["rail.url"]);
}

#[test]
fn what_is_said_of_tls_to_the_rail_goes_together() {
    let with = |url: Option<&str>, names: &[&str]| {
        let mut flags: Vec<_> = names.iter().map(|name| ((*name).to_owned(), "/f".to_owned())).collect();
        flags.extend(url.map(|url| ("rail.url".to_owned(), url.to_owned())));
        Settings::load(None, [], &flags)
    };
    let (ca, cert, key) = ("rail.tls.ca-file", "rail.tls.cert-file", "rail.tls.key-file");
    for names in [&[][..], &[ca], &[cert, key], &[ca, cert, key]] {
        with(Some("https://rail"), names).unwrap();
    }
    for (url, names, part) in [
        (
            "https://rail",
            &[cert][..],
            "rail.tls.cert-file (/f) and rail.tls.key-file (unset)",
        ),
        (
            "https://rail",
            &[ca, key],
            "rail.tls.cert-file (unset) and rail.tls.key-file (/f)",
        ),
        ("http://rail", &[ca], "rail.tls.ca-file (/f) and rail.url (http://rail)"),
        (
            "http://rail",
            &[cert, key],
            "rail.tls.cert-file (/f) and rail.url (http://rail)",
        ),
    ] {
        let said = with(Some(url), names).unwrap_err().to_string();
        assert!(said.contains(part), "{said}");
    }
}

/// What Kubernetes gives each container where a Service is called `dlock`, and another one `dlock-etcd`.
const OF_SERVICES: &[(&str, &str)] = &[
    ("DLOCK_ETCD_PORT_2379_TCP_ADDR", "fd00::1"),
    ("DLOCK_ETCD_SERVICE_HOST", "fd00::1"),
    ("DLOCK_LOCK_SERVER_PORT", "tcp://10.0.0.2:7400"),
    ("DLOCK_PORT", "tcp://10.0.0.1:7400"),
    ("DLOCK_PORT_7400_TCP", "tcp://[fd00::1]:7400"),
    ("DLOCK_PORT_7400_TCP_ADDR", "10.0.0.1"),
    ("DLOCK_PORT_7400_TCP_PORT", "7400"),
    ("DLOCK_PORT_7400_TCP_PROTO", "tcp"),
    ("DLOCK_SERVICE_HOST", "10.0.0.1"),
    ("DLOCK_SERVICE_PORT", "7400"),
    ("DLOCK_SERVICE_PORT_HTTP_API", "7400"),
];

#[test]
fn case_l42_variables_of_a_service_called_dlock_are_passed_over() {
    let settings = from_env(OF_SERVICES).unwrap();
    assert_eq!(settings.differing(&Settings::defaults()), Vec::<&str>::new());
    let names: Vec<_> = OF_SERVICES.iter().map(|(name, _)| *name).collect();
    assert_eq!(settings.of_a_service(), names);
    // Beside them a setting is read, and its own variable is no Service's.
    let settings = from_env(&[OF_SERVICES, &[("DLOCK_HTTP_REQUEST_TIMEOUT", "7s")]].concat()).unwrap();
    assert_eq!(settings.duration("http.request-timeout"), Duration::from_secs(7));
}

#[test]
fn case_l42_a_misspelt_setting_still_is_an_error() {
    for (name, value) in [
        ("DLOCK_PORT", "7400"),
        ("DLOCK_PORT", "http://10.0.0.1:7400"),
        ("DLOCK_HTTP_PORT", "7400"),
        ("DLOCK_SERVICE_HOST", "lock.example"),
        ("DLOCK_SERVICE_PORT", "15s"),
        ("DLOCK_SERVICE_PORTS", "7400"),
        ("DLOCK_PORT_7400_TCP_ADR", "10.0.0.1"),
        ("DLOCK_PORT_0_TCP", "tcp://10.0.0.1:7400"),
        ("DLOCK_LOCK_SESSION_TLL", "15s"),
    ] {
        let refused = from_env(&[OF_SERVICES, &[(name, value)]].concat());
        let found = refused.as_ref().map(Settings::of_a_service);
        assert!(
            matches!(refused, Err(ConfigError::Unknown { .. })),
            "{name}={value}: {found:?}"
        );
    }
}
