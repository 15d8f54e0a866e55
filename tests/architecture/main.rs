//! The house: which room may use which, held by reading the source.

#![allow(clippy::unwrap_used, missing_docs)]

mod source;

use std::collections::BTreeMap;
use std::path::Path;

use source::{Source, names, plain, reached};

/// Each room and the rooms that it may use. The rooms of the composition may use all.
const ROOMS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("artifacts", &["domain"]),
    ("auth", &["domain"]),
    ("directory", &["domain"]),
    ("log", &["domain"]),
    // The store implements the directory's trait too.
    ("store", &["domain", "directory"]),
    ("service", &["domain", "store", "directory", "auth", "log", "artifacts"]),
    // Who calls is looked up at the edge, so it takes the two ports.
    ("http", &["domain", "service", "auth", "directory"]),
    // The sink carries rows from one port to the other and changes nothing of the service's.
    ("workers", &["domain", "service", "log"]),
];

/// Puts the rooms together. No room may use these.
const COMPOSITION: &[&str] = &["app", "cli", "config", "dev", "lib", "main", "shutdown", "telemetry"];

/// What is let through, and why. It may only shrink.
const EXCEPTIONS: &[(&str, &str, &str)] = &[(
    "src/http/server.rs",
    "shutdown",
    "the accept loop takes part in the shutdown, whose handle knows no other room",
)];

/// What may panic, and why. It may only shrink.
const PANICS: &[(&str, usize, &str)] = &[
    ("src/auth/mod.rs", 1, "without random bytes there is no secret, and the system never refuses them"),
    ("src/domain/redaction/mod.rs", 1, "a constant that every test of redaction compiles"),
    ("src/domain/redaction/shapes.rs", 1, "constants that every test of redaction compiles"),
];

/// The longest file.
const LINES_MAX: usize = 500;

fn room(path: &Path) -> String {
    let inside = path.strip_prefix("src").unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// How far the module of a file is below the crate's root.
fn depth(path: &Path) -> usize {
    let parts = path.strip_prefix("src").unwrap().components().count();
    if path.ends_with("mod.rs") { parts - 1 } else { parts }
}

fn broken_arrows(sources: &[Source]) -> Vec<String> {
    let rooms: BTreeMap<_, _> = ROOMS.iter().copied().collect();
    let mut broken = Vec::new();
    for source in sources {
        let own = room(&source.path);
        let Some(allowed) = rooms.get(own.as_str()) else { continue };
        for other in reached(&source.code, depth(&source.path)) {
            let is_room = rooms.contains_key(other.as_str()) || COMPOSITION.contains(&other.as_str());
            let excepted = EXCEPTIONS.iter().any(|(file, to, _)| source.path == Path::new(file) && other == *to);
            if is_room && other != own && !allowed.contains(&other.as_str()) && !excepted {
                broken.push(format!("{} uses {other}", source.path.display()));
            }
        }
    }
    broken
}

fn sample(path: &str, text: &str) -> Source {
    Source { path: path.into(), text: text.to_owned(), code: plain(text) }
}

#[test]
fn every_file_belongs_to_a_room() {
    for source in source::read("src") {
        let own = room(&source.path);
        let known = ROOMS.iter().any(|(room, _)| *room == own) || COMPOSITION.contains(&own.as_str());
        assert!(known, "{} is in no room: name it in ROOMS with what it may use", source.path.display());
    }
}

#[test]
fn rooms_use_only_what_lies_below_them() {
    assert_eq!(broken_arrows(&source::read("src")), Vec::<String>::new());
}

#[test]
fn an_arrow_in_the_wrong_direction_is_seen_however_it_is_written() {
    for text in [
        "use crate::store::Store;",
        "use crate::{\n    domain::{task::Task},\n    store::{Store, Want},\n};",
        "fn f() -> crate :: store::Store { g() }",
        "use super::super::store::Store;",
        "pub(in crate::store) fn f() {}",
    ] {
        let found = broken_arrows(&[sample("src/http/tasks.rs", text)]);
        assert_eq!(found, ["src/http/tasks.rs uses store"], "{text}");
    }
    for text in [
        "// use crate::store::Store;",
        "const S: &str = \"crate::store\"; const R: &str = r#\"a \" crate::store\"#;",
        "use super::store::x; const Q: char = '\"'; /* crate::store */",
        "use crate::service::Sort; use crate::http::problem::Problem;",
    ] {
        assert_eq!(broken_arrows(&[sample("src/http/tasks.rs", text)]), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn every_exception_is_still_needed() {
    let sources = source::read("src");
    for (file, to, _) in EXCEPTIONS {
        let source = sources.iter().find(|source| source.path == Path::new(file));
        let source = source.unwrap_or_else(|| panic!("{file} is gone: drop its exception"));
        assert!(reached(&source.code, depth(&source.path)).contains(*to), "{file} no longer uses {to}");
    }
}

#[test]
fn only_the_stores_and_the_probe_of_the_managed_postgres_know_sqlx() {
    let mut sources = source::read("src");
    // The embedded log store is a store of its own.
    sources.retain(|source| !source.path.starts_with("src/log/postgres") && !source.path.ends_with("log/postgres.rs"));
    let knowing: Vec<_> = sources.iter().filter(|source| names(&source.code, "sqlx")).map(|s| room(&s.path)).collect();
    assert!(knowing.contains(&"store".to_owned()));
    let others: Vec<_> = knowing.iter().filter(|room| !["store", "dev"].contains(&room.as_str())).collect();
    assert_eq!(others, Vec::<&String>::new());
}

#[test]
fn the_pool_is_private_to_the_store() {
    for source in source::read("src/store") {
        let code = source.code.split_whitespace().collect::<Vec<_>>().join(" ");
        for leak in ["pub pool", "pub fn pool", "-> PgPool", "-> &PgPool", "pub use sqlx"] {
            assert!(!code.contains(leak), "{}: {leak}", source.path.display());
        }
    }
}

#[test]
fn the_domain_knows_no_runtime_no_sql_no_http_and_no_clock() {
    for source in source::read("src/domain") {
        for word in ["tokio", "sqlx", "axum", "hyper", "reqwest", "SystemTime", "Instant", "async", "now_utc", "now_v7"]
        {
            assert!(!names(&source.code, word), "{} names {word}", source.path.display());
        }
    }
}

#[test]
fn no_file_is_longer_than_500_lines() {
    for folder in ["src", "tests"] {
        for source in source::read(folder) {
            let lines = source.text.lines().count();
            assert!(lines <= LINES_MAX, "{} has {lines} lines", source.path.display());
        }
    }
}

#[test]
fn nothing_outside_of_tests_may_panic_but_what_is_listed() {
    for source in source::read("src") {
        let panics: usize =
            [".unwrap(", ".expect(", ".unwrap_err(", ".expect_err(", "todo!", "unimplemented!", "panic!"]
                .iter()
                .map(|word| source.code.matches(word).count())
                .sum();
        let listed = PANICS.iter().find(|(file, ..)| source.path == Path::new(file)).map_or(0, |(_, count, _)| *count);
        assert_eq!(panics, listed, "{}", source.path.display());
    }
    for (file, ..) in PANICS {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(file).is_file(), "{file} is gone: drop its line");
    }
}
