use crate::domain::redaction::tests::{kept, opaque, redacted};

use super::JUDGED_MAX;

fn assert_redacted(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(redacted(text), *expected, "{text}");
    }
}

#[test]
fn a_name_and_its_value_are_joined_by_a_separator() {
    for text in [
        // A variable is no key.
        "sessions[token] = session2user",
        // Comparisons and paths assign nothing.
        "if token==expected1token || token=~pattern2token",
        "use secret::v1beta1;",
        // Only an option's value follows without a separator, and only after a blank.
        "The token oauth2client got is for reading only.",
        "--token/--token-file2 exclude each other",
    ] {
        kept(text);
    }
    // No line break or tab was cut from the name.
    assert_redacted(&[(r"\token=a1b2c3d4e5", r"\token=[redacted]")]);
}

#[test]
fn a_variable_is_no_literal() {
    for text in [
        "login(user, password=entered)",
        "new Login(Password=Entered)",
        "PASSWORD = entered; final String API_KEY:String",
        // A shell hands an empty password to `make`.
        "DB_PASSWORD= make tests",
        // An attribute, even where a shell would read a literal.
        "API_KEY=var.api_key terraform apply",
        "token: settings._token2, secret: _settings.secret2",
        // A type assertion, and a call whose name is as long as what is judged.
        "token := claims2map.(string)",
        &format!("token = {}(request)", "get2".repeat(JUDGED_MAX / 4)),
        // A common word, which other things than secrets follow, and a value that is too short.
        "{\"token\": \"identifier\", \"password\": \"abc\"}",
        "token: a1b2c3d, password: a1b2c, passwd: 1a.",
    ] {
        kept(text);
    }
    assert_redacted(&[
        ("token: \"v1.a2b3c4d5e6\"", "token: \"[redacted]\""),
        ("DB_PASSWORD=a.b1-c2 make", "DB_PASSWORD=[redacted] make"),
        // No name begins with a digit or holds such a sign.
        ("token: 1a2b3c4d.e5f6", "token: [redacted]"),
        ("token: a1b2c3.d4+e5", "token: [redacted]"),
        // The least that is one.
        (
            "password: a1b2c3, token: a1b2c3d4, PASSWORD=abcd",
            "password: [redacted], token: [redacted], PASSWORD=[redacted]",
        ),
    ]);
}

#[test]
fn a_long_value_is_judged_by_its_beginning() {
    let long = opaque(JUDGED_MAX);
    // A variable that far inside makes it no placeholder.
    assert_eq!(redacted(&format!("password: \"{long}${{\"")), "password: \"[redacted]\"");
    assert_eq!(redacted(&format!("Bearer {}1", "abcdefgh".repeat(JUDGED_MAX / 8))), "Bearer [redacted]");
}

#[test]
fn a_scheme_is_a_word_before_credentials() {
    for text in [
        "HTTPBearer securityScheme1 = null; http_bearer securityScheme1",
        "import bearerAuth2Middleware from 'basicAuth2Middleware'",
        // `Hello world`, and a colon with what no password holds.
        "Basic SGVsbG8gd29ybGQ=",
        "Basic YToBAg==",
    ] {
        kept(text);
    }
    assert_redacted(&[
        (r"Accept: */*\nBearer a1b2c3d4e5f6", r"Accept: */*\nBearer [redacted]"),
        // Without a blank it belongs to the value.
        ("Authorization: Bearer:a1b2c3d4e5f6", "Authorization: [redacted]"),
    ]);
}

#[test]
fn what_stands_for_a_secret_is_none() {
    for text in [
        "PASSWORD=%DB_PASSWORD% run.bat",
        "password: '%(password)s', passphrase: '%v-%v'",
        "PASSWORD=$DB_PASSWORD_1 run",
        "password: \"<your password>\", passphrase: \"{passphrase}\", passcode: \"[hidden]\"",
        "PASSWORD=xxxx-xxxx password: '........'",
        "PASSWORD=none password: 'Undefined' PASSWORD=string",
        "password: \"prefix-${SUFFIX}\", passphrase: \"prefix-{{suffix}}\"",
        "AUTH_KEY=a%b[redacted]",
    ] {
        kept(text);
    }
    assert_redacted(&[
        ("PASSWORD=%ab1", "PASSWORD=[redacted]"),
        ("PASSWORD=xyzzy-plugh", "PASSWORD=[redacted]"),
        ("PASSWORD=none-such", "PASSWORD=[redacted]"),
    ]);
}

#[test]
fn a_place_is_no_secret() {
    for text in [
        "TLS_PRIVATE_KEY=/keys/tls.pem SSH_KEY=/root",
        "SSH_KEY=~/id SSH_KEY=./id SSH_KEY=../id",
        "DB_PASSWORD=vault://kv/db",
    ] {
        kept(text);
    }
    // Base64.
    assert_redacted(&[
        ("AZURE_STORAGE_KEY=/dkR1b2c3d4==", "AZURE_STORAGE_KEY=[redacted]"),
        ("AZURE_STORAGE_KEY=/k/9sD1f3a7==", "AZURE_STORAGE_KEY=[redacted]"),
    ]);
}

#[test]
fn a_digest_under_a_common_word_is_no_secret() {
    for text in ["token: sha256:a1b2c3d4", "secret: SHA512:a1b2c3d4", "token: md5:a1b2c3d4"] {
        kept(text);
    }
    let hex = "675399f7a52e88b3".repeat(2);
    let cases = [
        ("token: shadow1234", "token: [redacted]"),
        ("token: user1:a1b2c3", "token: [redacted]"),
        // Not as long as a digest, no hexadecimal digits, and a name that leaves no doubt.
        (&format!("token: {hex}b3"), "token: [redacted]"),
        (&format!("token: {}", opaque(32)), "token: [redacted]"),
        (&format!("api_key: {hex}"), "api_key: [redacted]"),
    ];
    assert_redacted(&cases);
}
