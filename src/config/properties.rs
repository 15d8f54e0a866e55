//! Whatever stands in a settings file or in the environment.

use std::ffi::OsString;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{Settings, SettingsError, rows};

/// What must never be shown.
const SECRET: &str = "hunter22hunter22";

fn read(text: &str, variables: &[(String, String)]) -> Result<Settings, SettingsError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mandate.toml");
    std::fs::write(&file, text).unwrap();
    Settings::read(Some(&file), variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
}

/// The names of all settings.
fn names() -> Vec<&'static str> {
    rows().into_iter().map(|row| row.name).collect()
}

/// The settings that hold secrets.
fn secrets() -> Vec<&'static str> {
    vec![
        "database.url",
        "auth.signing_key",
        "auth.issuers",
        "log.store_url",
        "log.stream_url",
        "artifacts.s3_secret_access_key",
    ]
}

/// A value as TOML.
fn values() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<bool>().prop_map(|flag| flag.to_string()),
        "\"[ -!#-\\[\\]-~]{0,20}\"",
        "\\[(\"[a-z*]{0,8}\",){0,3}\\]",
        "[1-9][0-9]{0,4}\\.[0-9]{1,3}",
        "\\{ ?[a-z_]{1,8} = \"[a-z]{0,5}\" ?\\}",
        "\\[\\{(issuer|audience|algorithms|roles_map|key_file) = (\"[a-z]{0,8}\"|\\[\"RS256\"\\]|7)\\}\\]",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_file_is_read_or_refused(text in prop_oneof!["[a-z_.= \\[\\]\"'{}#0-9\n,-]{0,80}", any::<String>()]) {
        match read(&text, &[]) {
            Ok(settings) => drop(settings.validate()),
            Err(fault) => prop_assert!(!fault.to_string().is_empty()),
        }
    }

    #[test]
    fn any_value_of_any_setting_is_taken_or_refused_by_its_name(name in select(names()), value in values()) {
        let (part, setting) = name.split_once('.').unwrap();
        match read(&format!("[{part}]\n{setting} = {value}\n"), &[]).and_then(|settings| settings.validate()) {
            Ok(()) => {}
            Err(SettingsError::Faults(faults)) => {
                // The one that must be set, those whose rules name it, and the setting itself.
                prop_assert!(faults.iter().all(|fault| !fault.setting.is_empty()));
            }
            Err(SettingsError::Read(fault)) => prop_assert!(fault.to_string().contains(name), "{} {}", name, fault),
            Err(other) => prop_assert!(false, "{} = {}: {}", name, value, other),
        }
    }

    #[test]
    fn any_variable_is_taken_or_refused(
        name in prop_oneof!["MANDATE_[A-Z_0-9]{0,20}", "MANDATE_[A-Z]{1,8}__[A-Z_.\\[\\]0-9-]{0,20}"],
        value in prop_oneof!["\\[[a-z=\", {}\\[\\]]{0,20}", "[a-z0-9,:/]{0,20}"],
    ) {
        match read("", &[(name.clone(), value)]) {
            Ok(settings) => drop(settings.validate()),
            Err(fault) => {
                let key = name["MANDATE_".len()..].to_ascii_lowercase();
                let told = fault.to_string().to_ascii_lowercase();
                let names = key.split("__").filter(|part| !part.is_empty()).any(|part| told.contains(part));
                prop_assert!(names || told.contains(&name.to_ascii_lowercase()), "{}: {}", name, told);
            }
        }
    }

    #[test]
    fn no_secret_is_told_whatever_else_is_wrong(
        name in select(secrets()),
        before in "[a-z]{0,4}",
        wrong in vec("[a-z]{1,6} = [a-z0-9\"]{0,6}", 0..3),
        spoil in 0..4_u8,
    ) {
        let (part, setting) = name.split_once('.').unwrap();
        let value = match spoil {
            0 => format!("\"{before}{SECRET}\""),
            1 => format!("\"{before}{SECRET}"),
            2 => SECRET.to_owned(),
            _ => format!("[\"{SECRET}\"]"),
        };
        let text = format!("[{part}]\n{setting} = {value}\n{}\n", wrong.join("\n"));
        let told = match read(&text, &[]) {
            Ok(settings) => format!("{settings:?} {:?}", settings.validate().map_err(|fault| fault.to_string())),
            Err(fault) => format!("{fault} {fault:?}"),
        };
        prop_assert!(!told.contains(SECRET), "{}", told);
        let variable = format!("MANDATE_{}", name.to_ascii_uppercase().replace('.', "__"));
        let told = match read("", &[(variable, format!("{before}{SECRET}"))]) {
            Ok(settings) => format!("{settings:?} {:?}", settings.validate().map_err(|fault| fault.to_string())),
            Err(fault) => format!("{fault} {fault:?}"),
        };
        prop_assert!(!told.contains(SECRET), "{}", told);
    }
}
