//! Settings: a TOML file, overlaid by `MANDATE_<PART>__<SETTING>` variables, checked as a whole before anything starts.
//!
//! To add a setting, add its line to its part in `parts.rs`; default, range and reference row come with it. To add a
//! part, also name it in [`Settings`], [`Settings::validate`] and `rows`.

mod issuers;
mod part;
mod parts;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ::config::{Config, ConfigError, File, FileFormat, Value, ValueKind};

pub use issuers::{ALGORITHMS, IssuerSettings};
pub use part::{Fault, Secret, SecretUrl};
use part::{Faults, Row};
pub use parts::{
    ArchiveSettings, ArtifactSettings, AuthSettings, DatabaseSettings, LimitSettings, LogFormat, LogSettings,
    RequestSettings, Role, ServerSettings, SessionSettings, TelemetrySettings, WaitingSettings, WorkerSettings,
};

/// The variable that names the settings file when no argument does.
pub const FILE_VARIABLE: &str = "MANDATE_CONFIG";
/// The settings file that is read from the working folder when it is there and none is named.
pub const DEFAULT_FILE: &str = "mandate.toml";

/// Settings that are lists: a variable gives them separated by commas, or as a TOML array.
const LISTS: &[&str] = &["server.cors_origins", "workers.roles", "auth.retired_keys", "auth.issuers"];

/// Settings that are lists of tables, in which keys may stand.
const TABLES: &[&str] = &["auth.issuers"];

/// Every setting.
#[derive(Debug, Clone, PartialEq, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The HTTP server.
    pub server: ServerSettings,
    /// The database.
    pub database: DatabaseSettings,
    /// Tokens, keys and issuers.
    pub auth: AuthSettings,
    /// Sessions of harnesses.
    pub sessions: SessionSettings,
    /// Questions to people.
    pub requests: RequestSettings,
    /// The move to the permanent log.
    pub archive: ArchiveSettings,
    /// Limits of what clients may send.
    pub limits: LimitSettings,
    /// The background workers.
    pub workers: WorkerSettings,
    /// Reads that wait for events.
    pub waiting: WaitingSettings,
    /// Logging.
    pub telemetry: TelemetrySettings,
    /// The permanent log.
    pub log: LogSettings,
    /// Artifacts.
    pub artifacts: ArtifactSettings,
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The settings file that was named cannot be read.
    #[error("cannot read the settings file {}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The settings file is not TOML.
    #[error("the settings file {} is not TOML: {reason}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// Where and why; never quotes the file, in which a password may stand.
        reason: String,
    },
    /// A value has the wrong type, or a variable's name is no setting's; the message names the setting.
    #[error("settings: {0}")]
    Read(#[from] ConfigError),
    /// A variable's name cannot be a setting's.
    #[error("settings: the variable {0} must be named MANDATE_<PART>__<SETTING>, in letters, digits and single _")]
    NoName(String),
    /// A variable's value is not UTF-8.
    #[error("settings: the value of {0} is not UTF-8")]
    NotUnicode(String),
    /// Settings that do not exist, or have values that cannot be.
    #[error("{} wrong:{}", count(.0.len()), list(.0))]
    Faults(Vec<Fault>),
}

fn count(faults: usize) -> String {
    if faults == 1 { "1 setting is".to_owned() } else { format!("{faults} settings are") }
}

fn list(faults: &[Fault]) -> String {
    faults.iter().fold(String::new(), |mut text, fault| {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {fault}");
        text
    })
}

impl Settings {
    /// Reads the settings of this process: from `file`, else the file that `MANDATE_CONFIG` names, else
    /// `./mandate.toml` if there is one; then from the environment. Does not [`validate`](Self::validate), so that a
    /// caller can fill in what it decides itself.
    ///
    /// # Errors
    /// A named file that cannot be read, bad TOML, an unknown key, a value of the wrong type.
    pub fn load(file: Option<&Path>) -> Result<Self, SettingsError> {
        let named = file
            .map(Path::to_path_buf)
            .or_else(|| std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from));
        let default = PathBuf::from(DEFAULT_FILE);
        let file = named.or_else(|| default.is_file().then_some(default));
        Self::read(file.as_deref(), std::env::vars_os())
    }

    /// Reads the settings from `file`, if any, and from `variables`, of which those named `MANDATE_<PART>__<SETTING>`
    /// count. An empty value counts as absent.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(
        file: Option<&Path>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, SettingsError> {
        let mut builder = Config::builder();
        if let Some(file) = file {
            let text = std::fs::read_to_string(file)
                .map_err(|reason| SettingsError::File { file: file.to_path_buf(), reason })?;
            let parsed = Config::builder().add_source(File::from_str(&text, FileFormat::Toml)).build();
            let reason =
                |error: ConfigError| SettingsError::Syntax { file: file.to_path_buf(), reason: unquoted(&error) };
            builder = builder.add_source(parsed.map_err(reason)?);
        }
        for (name, value) in variables {
            // Without a `__` it belongs to clients: MANDATE_URL, MANDATE_TOKEN.
            let Some(name) = name.to_str().filter(|name| name.starts_with("MANDATE_") && name.contains("__")) else {
                continue;
            };
            let value = value.to_str().ok_or_else(|| SettingsError::NotUnicode(name.to_owned()))?;
            if value.is_empty() {
                continue;
            }
            let key = name["MANDATE_".len()..].to_ascii_lowercase().replace("__", ".");
            let is_word = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if !key.split('.').all(|part| !part.is_empty() && is_word(part)) {
                return Err(SettingsError::NoName(name.to_owned()));
            }
            builder = builder.set_override(&key, variable_value(name, &key, value)?)?;
        }
        let config = builder.build()?;
        refuse_unknown(&config)?;
        Ok(config.try_deserialize()?)
    }

    /// Checks every setting and the rules between them.
    ///
    /// # Errors
    /// [`SettingsError::Faults`] with every fault, each naming its setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let mut faults = Faults::default();
        self.server.check(&mut faults);
        self.database.check(&mut faults);
        self.auth.check(&mut faults);
        self.sessions.check(&mut faults);
        self.requests.check_ranges(&mut faults);
        self.archive.check_ranges(&mut faults);
        self.limits.check_ranges(&mut faults);
        self.workers.check_ranges(&mut faults);
        self.waiting.check_ranges(&mut faults);
        self.telemetry.check(&mut faults);
        self.log.check(&mut faults);
        self.artifacts.check(&mut faults);
        faults.require(
            self.server.body_limit_bytes >= self.limits.payload_bytes_max,
            "server.body_limit_bytes",
            "must be at least limits.payload_bytes_max",
        );
        // Twice nothing is nothing: whatever is on its way through the stream would be sent again in every round.
        faults.require(
            self.archive.patience_seconds > 0 || self.log.stream_url.expose() == "direct:",
            "archive.patience_seconds",
            "must be at least 1 with a stream",
        );
        let own = self.auth.own_issuer(self.server.public_base());
        for (index, issuer) in self.auth.issuers.iter().enumerate() {
            let problem = "must differ from the issuer of this server's own tokens";
            faults.require(issuer.issuer != own, format!("auth.issuers[{index}].issuer"), problem);
        }
        if faults.0.is_empty() { Ok(()) } else { Err(SettingsError::Faults(faults.0)) }
    }

    /// Every setting with default, range and meaning, as a Markdown table.
    pub fn reference() -> String {
        let mut table = String::from("| setting | default | range | meaning |\n| --- | --- | --- | --- |\n");
        for row in rows() {
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{row}");
        }
        table
    }
}

fn rows() -> Vec<Row> {
    [
        ServerSettings::rows(),
        DatabaseSettings::rows(),
        AuthSettings::rows(),
        SessionSettings::rows(),
        RequestSettings::rows(),
        ArchiveSettings::rows(),
        LimitSettings::rows(),
        WorkerSettings::rows(),
        WaitingSettings::rows(),
        TelemetrySettings::rows(),
        LogSettings::rows(),
        ArtifactSettings::rows(),
    ]
    .concat()
}

/// Refuses every key that is no setting, by its full name; serde would stop at the first and tell half of it. And what
/// stands in place of tables, which serde would quote.
fn refuse_unknown(config: &Config) -> Result<(), SettingsError> {
    let rows = rows();
    let mut faults = Faults::default();
    let parts = if let ValueKind::Table(parts) = &config.cache.kind { Some(parts) } else { None };
    for (part, value) in parts.into_iter().flatten() {
        if !rows.iter().any(|row| row.name.split('.').next() == Some(part)) {
            faults.add(part.as_str(), "there is no such part of the settings");
        } else if let ValueKind::Table(settings) = &value.kind {
            for (key, value) in settings {
                let name = format!("{part}.{key}");
                if !rows.iter().any(|row| row.name == name) {
                    let origin = value.origin().map(|origin| format!(" (from {origin})")).unwrap_or_default();
                    faults.add(name, format!("there is no such setting{origin}"));
                } else if TABLES.contains(&name.as_str()) && !is_tables(value) {
                    faults.add(name, "must be a list of tables");
                }
            }
        }
    }
    faults.0.sort_by(|a, b| a.setting.cmp(&b.setting));
    if faults.0.is_empty() { Ok(()) } else { Err(SettingsError::Faults(faults.0)) }
}

fn is_tables(value: &Value) -> bool {
    let is_table = |item: &Value| matches!(item.kind, ValueKind::Table(_));
    matches!(&value.kind, ValueKind::Array(items) if items.iter().all(is_table))
}

/// A parser's message without the lines that quote the text.
fn unquoted(error: &ConfigError) -> String {
    let text = error.to_string();
    text.lines().filter(|line| !line.contains('|')).map(str::trim).collect::<Vec<_>>().join(": ")
}

/// The value of one variable, which keeps the variable's name for error messages.
fn variable_value(name: &str, key: &str, text: &str) -> Result<Value, SettingsError> {
    let origin = name.to_owned();
    if !LISTS.contains(&key) {
        return Ok(Value::new(Some(&origin), ValueKind::String(text.to_owned())));
    }
    if text.trim_start().starts_with('[') {
        let source = File::from_str(&format!("list = {text}"), FileFormat::Toml);
        let parsed = Config::builder().add_source(source).build();
        let list = parsed.and_then(|config| config.get_array("list"));
        // The parser's own message would quote the text, in which a key may stand.
        let list = list.map_err(|_| ConfigError::Message(format!("{name} is no TOML array")))?;
        return Ok(Value::new(Some(&origin), ValueKind::Array(list)));
    }
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let items = items.map(|item| Value::new(Some(&origin), ValueKind::String(item.to_owned())));
    Ok(Value::new(Some(&origin), ValueKind::Array(items.collect())))
}
