//! Where ClickHouse is: the parts of its URL.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use url::Url;

const PORT: u16 = 8123;
const SECURE_PORT: u16 = 8443;
const DATABASE: &str = "mandate";

/// A server, a database, and whom we are there.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Place {
    /// Scheme, host and port for HTTP.
    pub(super) origin: String,
    pub(super) database: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl Place {
    /// Reads `clickhouse://user:password@host:8123/database?secure=true`. The error never quotes the URL, which has a
    /// password.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("its URL: {error}"))?;
        if url.scheme() != "clickhouse" {
            return Err("its URL must begin with clickhouse://".to_owned());
        }
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or("its URL names no host")?;
        let mut secure = false;
        for (name, value) in url.query_pairs() {
            secure = match (&*name, &*value) {
                ("secure", "true") => true,
                ("secure", "false") => false,
                _ => return Err(format!("its URL has the parameter {name}; it can only have secure=true or false")),
            };
        }
        let (scheme, port) = if secure { ("https", SECURE_PORT) } else { ("http", PORT) };
        let database = decoded(url.path().trim_matches('/')).ok_or("the database's name is not UTF-8")?;
        let user = decoded(url.username()).ok_or("the user's name is not UTF-8")?;
        let password = url.password().map(|text| decoded(text).ok_or("the password is not UTF-8")).transpose()?;
        Ok(Self {
            origin: format!("{scheme}://{host}:{}", url.port().unwrap_or(port)),
            database: if database.is_empty() { DATABASE.to_owned() } else { database },
            user: Some(user).filter(|user| !user.is_empty()),
            password,
        })
    }
}

/// `text` with what its percent signs stand for.
fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    use super::*;

    fn place(origin: &str, database: &str, user: Option<&str>, password: Option<&str>) -> Place {
        Place {
            origin: origin.to_owned(),
            database: database.to_owned(),
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
        }
    }

    #[test]
    fn a_url_says_where_and_who() {
        let parsed = |text| Place::parse(text).unwrap();
        assert_eq!(parsed("clickhouse://store"), place("http://store:8123", "mandate", None, None));
        assert_eq!(
            parsed("clickhouse://u%40x:p%2F%25+%C3%BC@store:9000/log?secure=false"),
            place("http://store:9000", "log", Some("u@x"), Some("p/%+ü"))
        );
        assert_eq!(
            parsed("clickhouse://u@[::1]/a%20b/?secure=true"),
            place("https://[::1]:8443", "a b", Some("u"), None)
        );
    }

    #[test]
    fn what_it_does_not_know_it_refuses_without_quoting_the_url() {
        for text in [
            "http://u:secret@store",
            "clickhouse:///log",
            "clickhouse://u:secret@store?timeout=1",
            "store",
            "clickhouse://u:secret@store?secure=yes",
            "clickhouse://u:%ffsecret@store",
        ] {
            let error = Place::parse(text).unwrap_err();
            assert!(!error.contains("secret"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_url_is_read_or_refused_without_its_password(
            text in prop_oneof![
                "clickhouse://([a-z%0-9]{1,6}(:hunter22[%0-9a-f]{0,4})?@)?[a-z0-9.:\\[\\]-]{0,12}(/[ -~]{0,8})?",
                any::<String>(),
            ],
        ) {
            match Place::parse(&text) {
                Ok(place) => prop_assert!(place.origin.starts_with("http") && !place.database.is_empty()),
                Err(fault) => prop_assert!(!fault.contains("hunter22"), "{}", fault),
            }
        }

        #[test]
        fn whoever_goes_round(user in "(?s).{1,20}", password in "(?s).{1,20}", database in "(?s).{0,9}[a-z]") {
            let escaped = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let url = format!(
                "clickhouse://{}:{}@store:9000/{}", escaped(&user), escaped(&password), escaped(&database)
            );
            let expected = place("http://store:9000", &database, Some(&user), Some(&password));
            prop_assert_eq!(Place::parse(&url), Ok(expected));
        }
    }
}
