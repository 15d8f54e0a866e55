use super::*;

/// Makes one thing wrong.
type Spoil<T> = fn(&mut T);

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
}

fn from_toml(text: &str, pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mandate.toml");
    std::fs::write(&file, text).unwrap();
    Settings::read(Some(&file), variables(pairs))
}

fn complete() -> Settings {
    let mut settings = Settings::default();
    settings.database.url = SecretUrl::new("postgres://mandate:hunter2@localhost/mandate");
    settings
}

fn issuer() -> IssuerSettings {
    IssuerSettings {
        issuer: "https://login.example.com".to_owned(),
        jwks_url: Some(SecretUrl::new("https://login.example.com/keys")),
        audience: "mandate".to_owned(),
        algorithms: vec!["RS256".to_owned()],
        ..IssuerSettings::default()
    }
}

#[test]
fn the_defaults_need_only_a_database() {
    let faults = match Settings::default().validate() {
        Err(SettingsError::Faults(faults)) => faults,
        other => panic!("expected a fault, got {other:?}"),
    };
    assert_eq!(faults.iter().map(|fault| fault.setting.as_str()).collect::<Vec<_>>(), ["database.url"]);
    complete().validate().unwrap();
}

#[test]
fn each_fault_names_its_setting() {
    let cases: &[(&str, Spoil<Settings>)] = &[
        ("server.public_url", |s| s.server.public_url = Some("mandate.example.com".to_owned())),
        ("server.public_url", |s| s.server.public_url = Some("https://example.com/?a=1".to_owned())),
        ("server.cors_origins[1]", |s| s.server.cors_origins = vec!["*".to_owned(), "https://a.example/".to_owned()]),
        ("server.body_limit_bytes", |s| s.server.body_limit_bytes = 1 << 30),
        ("server.body_limit_bytes", |s| s.server.body_limit_bytes = 2_048),
        ("server.request_timeout_seconds", |s| s.server.request_timeout_seconds = 0),
        ("server.header_timeout_seconds", |s| s.server.header_timeout_seconds = 0),
        ("server.idle_timeout_seconds", |s| s.server.idle_timeout_seconds = 0),
        ("server.shutdown_grace_seconds", |s| s.server.shutdown_grace_seconds = 601),
        ("server.max_connections", |s| s.server.max_connections = 0),
        ("database.url", |s| s.database.url = SecretUrl::new("mysql://localhost/mandate")),
        ("database.url", |s| s.database.url = SecretUrl::new("postgres://localhost/mandate?sslpassword=hunter2")),
        ("database.max_connections", |s| s.database.max_connections = 0),
        ("database.acquire_timeout_seconds", |s| s.database.acquire_timeout_seconds = 0),
        ("database.statement_timeout_seconds", |s| s.database.statement_timeout_seconds = 0),
        ("database.search_timeout_ms", |s| s.database.search_timeout_ms = 9),
        ("auth.data_folder", |s| s.auth.data_folder = PathBuf::new()),
        ("auth.signing_key", |s| s.auth.signing_key = Some(Secret::new("key"))),
        ("auth.retired_keys[0]", |s| s.auth.retired_keys = vec![Secret::new("key")]),
        ("auth.issuer", |s| s.auth.issuer = Some(String::new())),
        ("auth.audience", |s| s.auth.audience = String::new()),
        ("auth.token_ttl_seconds", |s| s.auth.token_ttl_seconds = 1),
        ("auth.token_rate_per_minute", |s| s.auth.token_rate_per_minute = 0),
        ("auth.jwks_cooldown_seconds", |s| s.auth.jwks_cooldown_seconds = 0),
        ("auth.directory_cache_seconds", |s| s.auth.directory_cache_seconds = 11),
        ("sessions.heartbeat_interval_seconds", |s| s.sessions.heartbeat_interval_seconds = 0),
        ("sessions.timeout_seconds", |s| s.sessions.timeout_seconds = 59),
        ("requests.ttl_seconds", |s| s.requests.ttl_seconds = 91 * 86_400),
        ("archive.grace_seconds", |s| s.archive.grace_seconds = 91 * 86_400),
        ("artifacts.store_url", |s| s.artifacts.store_url = Some(SecretUrl::new("/var/artifacts"))),
        ("artifacts.s3_endpoint", |s| s.artifacts.s3_endpoint = Some("minio:9000".to_owned())),
        ("artifacts.s3_endpoint", |s| s.artifacts.s3_endpoint = Some("https://minio@minio.example.com".to_owned())),
        ("artifacts.s3_endpoint", |s| s.artifacts.s3_endpoint = Some("https://:key@minio.example.com".to_owned())),
        ("artifacts.s3_endpoint", |s| s.artifacts.s3_endpoint = Some("https://minio.example.com/?key=1".to_owned())),
        ("artifacts.s3_secret_access_key", |s| s.artifacts.s3_access_key_id = Some(Secret::new("id"))),
        ("artifacts.size_bytes_max", |s| s.artifacts.size_bytes_max = 1),
        ("artifacts.grace_seconds", |s| s.artifacts.grace_seconds = 300),
        ("artifacts.sweep_interval_seconds", |s| s.artifacts.sweep_interval_seconds = 0),
        ("limits.batch_events_max", |s| s.limits.batch_events_max = 101),
        ("limits.payload_bytes_max", |s| s.limits.payload_bytes_max = 1),
        ("workers.expiry_interval_ms", |s| s.workers.expiry_interval_ms = 0),
        ("workers.expiry_batch", |s| s.workers.expiry_batch = 0),
        ("telemetry.log_filter", |s| s.telemetry.log_filter = "mandate=loud".to_owned()),
        ("log.stream_url", |s| s.log.stream_url = SecretUrl::new("amqp://localhost")),
        ("log.store_url", |s| s.log.store_url = Some(SecretUrl::new("http://localhost"))),
    ];
    for (name, spoil) in cases {
        assert_only_fault(name, spoil);
    }
}

#[test]
fn each_fault_of_an_issuer_names_its_place() {
    let cases: &[(&str, Spoil<IssuerSettings>)] = &[
        ("auth.issuers[0].issuer", |i| i.issuer = String::new()),
        ("auth.issuers[0].audience", |i| i.audience = String::new()),
        ("auth.issuers[0].subject_claim", |i| i.subject_claim = String::new()),
        ("auth.issuers[0].channel_claim", |i| i.channel_claim = String::new()),
        ("auth.issuers[0].jwks_url", |i| i.jwks_url = Some(SecretUrl::new("http://login.example.com/keys"))),
        ("auth.issuers[0].jwks_url", |i| i.jwks_url = None),
        ("auth.issuers[0].jwks_url", |i| i.key_file = Some(PathBuf::from("Cargo.toml"))),
        ("auth.issuers[0].key_file", |i| {
            i.jwks_url = None;
            i.key_file = Some(PathBuf::from("/does/not/exist.pem"));
        }),
        ("auth.issuers[0].algorithms", |i| i.algorithms = vec!["HS256".to_owned()]),
        ("auth.issuers[0].algorithms", |i| i.algorithms = Vec::new()),
        ("auth.issuers[0].roles_claim", |i| {
            i.roles_map.insert("ops".to_owned(), crate::domain::principal::Role::Operator);
        }),
    ];
    for (name, spoil) in cases {
        let mut spoiled = issuer();
        spoil(&mut spoiled);
        assert_only_fault(name, |settings| settings.auth.issuers = vec![spoiled]);
    }
    assert_only_fault("auth.issuers[1].issuer", |settings| settings.auth.issuers = vec![issuer(), issuer()]);
    assert_only_fault("auth.issuers[0].issuer", |settings| {
        settings.auth.issuer = Some(issuer().issuer);
        settings.auth.issuers = vec![issuer()];
    });
    let mut settings = complete();
    settings.auth.issuers = vec![issuer()];
    settings.validate().unwrap();
}

fn assert_only_fault(name: &str, spoil: impl FnOnce(&mut Settings)) {
    let mut settings = complete();
    spoil(&mut settings);
    let text = settings.validate().expect_err(name).to_string();
    assert!(text.starts_with(&format!("1 setting is wrong:\n  {name}: ")), "{name}: {text}");
}

#[test]
fn all_faults_are_told_at_once() {
    let mut settings = complete();
    settings.server.max_connections = 0;
    settings.workers.expiry_batch = 0;
    let text = settings.validate().unwrap_err().to_string();
    assert!(text.starts_with("2 settings are wrong:"), "{text}");
    assert!(text.contains("server.max_connections: ") && text.contains("workers.expiry_batch: "), "{text}");
}

#[test]
fn variables_overlay_the_file() {
    let file = r#"
        [server]
        listen = "127.0.0.1:9000"
        request_timeout_seconds = 7
        [database]
        url = "postgres://localhost/from_file"
        [telemetry]
        log_format = "json"
    "#;
    let pairs = [
        ("MANDATE_SERVER__LISTEN", "[::1]:9001"),
        ("MANDATE_SERVER__CORS_ORIGINS", "https://a.example, https://b.example"),
        ("MANDATE_DATABASE__URL", "postgres://localhost/from_variable"),
        ("MANDATE_DATABASE__TRANSACTION_POOLER", "true"),
        ("MANDATE_AUTH__AUDIENCE", "007"),
        ("MANDATE_AUTH__ISSUER", ""),
        ("MANDATE_URL", "http://localhost:1"),
        ("MANDATE_TOKEN", "a.b.c"),
        ("PATH", "/bin"),
    ];
    let settings = from_toml(file, &pairs).unwrap();
    assert_eq!(settings.server.listen.to_string(), "[::1]:9001");
    assert_eq!(settings.server.request_timeout_seconds, 7);
    assert_eq!(settings.server.cors_origins, ["https://a.example", "https://b.example"]);
    assert_eq!(settings.database.url.expose(), "postgres://localhost/from_variable");
    assert!(settings.database.transaction_pooler);
    assert_eq!(settings.auth.audience, "007", "a text keeps its zeros");
    assert_eq!(settings.auth.issuer, None, "an empty variable counts as absent");
    assert_eq!(settings.telemetry.log_format, LogFormat::Json);
}

#[test]
fn a_variable_whose_name_cannot_be_a_settings_is_named() {
    for name in
        ["MANDATE___", "MANDATE_SERVER__", "MANDATE___LISTEN", "MANDATE_A____B", "MANDATE_A__B[0", "MANDATE_A__B-C"]
    {
        let fault = Settings::read(None, variables(&[(name, "1")])).unwrap_err();
        assert!(fault.to_string().contains(name), "{fault}");
    }
}

#[test]
fn issuers_come_from_the_file_or_a_variable_and_keep_the_case_of_role_names() {
    let table = r#"issuer = "https://a.example", jwks_url = "https://a.example/keys", audience = "m",
        algorithms = ["ES256"], roles_claim = "groups", roles_map = { "Platform-Admins" = "admin" }"#;
    let table = table.replace('\n', " ");
    let from_file = from_toml(&format!("auth.issuers = [{{ {table} }}]"), &[]).unwrap();
    let array = format!("[{{ {table} }}]");
    let from_variable = Settings::read(None, variables(&[("MANDATE_AUTH__ISSUERS", &array)])).unwrap();
    assert_eq!(from_file, from_variable);
    let issuer = &from_file.auth.issuers[0];
    assert_eq!((issuer.subject_claim.as_str(), issuer.channel_claim.as_str()), ("sub", "channel"));
    assert_eq!(issuer.roles_map["Platform-Admins"], crate::domain::principal::Role::Admin);
}

#[test]
fn what_cannot_be_read_is_named() {
    let cases = [
        ("[server]\nlisten_on = \"x\"", "server.listen_on"),
        ("[sever]\nlisten = \"x\"", "sever"),
        ("[server]\nlisten = \"here\"", "server.listen"),
        ("[server]\nmax_connections = \"many\"", "server.max_connections"),
        ("[server]\nmax_connections = -1", "server.max_connections"),
        ("[telemetry]\nlog_format = \"xml\"", "telemetry.log_format"),
        ("[[auth.issuers]]\nisuer = \"a\"", "auth.issuers[0]"),
        (
            "[[auth.issuers]]\nissuer = \"a\"\naudience = \"b\"\nalgorithms = []\nroles_map = { x = \"king\" }",
            "roles_map.x",
        ),
    ];
    for (text, name) in cases {
        let error = from_toml(text, &[]).expect_err(name).to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    let error = Settings::read(None, variables(&[("MANDATE_SERVER__LISTEN", "here")])).unwrap_err().to_string();
    assert!(error.contains("server.listen"), "{error}");
    let pairs = [("MANDATE_SERVER__LISTNE", "here"), ("MANDATE_SEVER__LISTEN", "here")];
    let error = Settings::read(None, variables(&pairs)).unwrap_err().to_string();
    assert!(error.contains("server.listne: ") && error.contains("MANDATE_SERVER__LISTNE"), "{error}");
    assert!(error.contains("sever: "), "{error}");
    let missing = Path::new("/does/not/exist.toml");
    let error = Settings::read(Some(missing), variables(&[])).unwrap_err().to_string();
    assert!(error.contains("/does/not/exist.toml"), "{error}");
}

#[test]
fn secrets_are_not_shown() {
    let mut settings = complete();
    settings.auth.signing_key = Some(Secret::new("-----BEGIN hunter2"));
    settings.auth.retired_keys = vec![Secret::new("hunter2")];
    settings.log.store_url = Some(SecretUrl::new("clickhouse://default:hunter2@localhost/log?password=hunter2"));
    settings.log.stream_url = SecretUrl::new("hunter2");
    settings.database.url = SecretUrl::new("postgres://mandate:hunter2@localhost/mandate?sslpassword=hunter2");
    settings.auth.issuers = vec![IssuerSettings {
        jwks_url: Some(SecretUrl::new("http://login:hunter2@login.example.com/keys?apikey=hunter2")),
        ..issuer()
    }];
    settings.artifacts.s3_endpoint = Some("https://minio.example.com".to_owned());
    settings.artifacts.s3_access_key_id = Some(Secret::new("hunter2"));
    settings.artifacts.s3_secret_access_key = Some(Secret::new("hunter2"));
    let shown = format!("{settings:#?}{}", settings.validate().unwrap_err());
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("postgres://mandate:***@localhost/mandate"), "{shown}");
    assert!(shown.contains("database.url: ") && shown.contains("auth.issuers[0].jwks_url: "), "{shown}");
    let error = Settings::read(None, variables(&[("MANDATE_AUTH__RETIRED_KEYS", "[\"hunter2\"")])).unwrap_err();
    assert!(!error.to_string().contains("hunter2"), "{error}");
    for text in [
        r#"{jwks_url = "https://login.example.com/keys?apikey=hunter2", issuer = "a"}"#,
        r#"["https://login.example.com/keys?apikey=hunter2"]"#,
        "https://login.example.com/keys?apikey=hunter2",
    ] {
        let error = Settings::read(None, variables(&[("MANDATE_AUTH__ISSUERS", text)])).unwrap_err().to_string();
        assert!(!error.contains("hunter2") && error.contains("auth.issuers"), "{error}");
    }
    let error = from_toml("\nauth.retired_keys = [\"hunter2\"", &[]).unwrap_err().to_string();
    assert!(!error.contains("hunter2") && error.contains("line 2"), "{error}");
}

#[test]
fn the_reference_has_every_setting() {
    let table = Settings::reference();
    assert!(table.contains("| `server.listen` | `127.0.0.1:8080` |  | Address and port"), "{table}");
    assert!(table.contains("| `sessions.timeout_seconds` | `300` | `2 … 86400` |"), "{table}");
    assert!(table.contains("| `log.store_url` | unset |"), "{table}");
    assert!(table.contains("| `database.url` | unset |"), "{table}");
    // `Settings` prints its parts and their fields one per line: the table must have a row for each field.
    let fields = format!("{:#?}", Settings::default());
    let fields = fields.lines().filter(|line| line.starts_with("        ") && line.contains(": ")).count();
    assert_eq!(table.lines().count(), fields + 2, "{table}");
}
