//! The server's own key on disk, and client secrets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Barrier;

use serde_json::json;

use super::super::Refusal;
use super::super::keys::{KeyError, KeyRing, SigningKey};
use super::super::secrets;
use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn kids(ring: &KeyRing) -> Vec<String> {
    ring.jwks()["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_first_key_is_made_for_its_owner_only_and_found_again() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("data/keys");
    let ring = KeyRing::open(&folder).unwrap();
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("current.pem")), 0o600);
    assert_eq!(names(&folder), ["current.pem"]);
    assert_eq!(kids(&KeyRing::open(&folder).unwrap()), kids(&ring));
    assert!(format!("{ring:?}").contains(&ring.current_kid()));
}

#[test]
fn the_key_id_is_the_thumbprint_of_the_key() {
    // The key pair and its thumbprint of RFC 8037, appendix A.
    let seed = hex::decode("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").unwrap();
    let der = [hex::decode("302e020100300506032b657004220420").unwrap(), seed].concat();
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        base64::engine::general_purpose::STANDARD.encode(der)
    );
    let ring = KeyRing::from_pem(&pem, &[]).unwrap();
    assert_eq!(
        ring.jwks(),
        json!({ "keys": [{
            "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA",
            "kid": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
            "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        }] })
    );
    // The published signature of the same appendix, under its own header.
    let signed = ring.sign_jws(b"Example of Ed25519 signing", "test");
    assert_eq!(ring.verify_jws(&signed, "test").unwrap(), b"Example of Ed25519 signing");
    assert_eq!(refusal(ring.verify_jws(&signed, "at+jwt")), Refusal::Kind);
    let published = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.\
        hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let jws = super::super::jws::Jws::parse(published).unwrap();
    let key = jsonwebtoken::DecodingKey::from_ed_components("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap();
    let key = super::super::jws::VerificationKey { algorithm: jsonwebtoken::Algorithm::EdDSA, key };
    key.check(&jws).unwrap();
}

#[test]
fn processes_that_start_at_once_agree_on_one_key() {
    for _ in 0..20 {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("keys");
        let barrier = Barrier::new(8);
        let found: Vec<String> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        KeyRing::open(&folder).unwrap().current_kid()
                    })
                })
                .collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(found.iter().all(|kid| *kid == found[0]), "{found:?}");
        assert_eq!(names(&folder), ["current.pem"]);
    }
}

#[test]
fn what_an_old_key_signed_verifies_after_rotations() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("keys");
    let ring = KeyRing::open(&folder).unwrap();
    let other_process = KeyRing::open(&folder).unwrap();
    let (first, signed) = (ring.current_kid(), ring.sign_jws(b"{}", "test"));
    let second = ring.rotate(&folder).unwrap();
    assert_ne!(first, second);
    assert_eq!(kids(&ring), [second.clone(), first.clone()]);
    assert!(ring.verify_jws(&signed, "test").is_ok());
    let retired = folder.join(format!("retired-{first}.pem"));
    assert!(fs::read_to_string(&retired).unwrap().contains("PUBLIC KEY"));
    assert_eq!(mode(&folder.join("current.pem")), 0o600);

    // Other processes find it when they meet it.
    let fresh = ring.sign_jws(b"{}", "test");
    assert!(other_process.verify_jws(&fresh, "test").is_ok());
    assert_eq!((other_process.current_kid(), kids(&other_process)), (second.clone(), kids(&ring)));
    assert!(KeyRing::open(&folder).unwrap().verify_jws(&signed, "test").is_ok());

    // An operator who deletes a retired key ends what it signed.
    fs::remove_file(retired).unwrap();
    ring.sign_jws(b"{}", "test");
    assert_eq!(refusal(ring.verify_jws(&signed, "test")), Refusal::Signature);
    assert_eq!(kids(&ring), [second]);
}

#[test]
fn every_process_signs_and_publishes_with_the_new_key_at_once() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("keys");
    let rings: Vec<_> = (0..3).map(|_| KeyRing::open(&folder).unwrap()).collect();
    for _ in 0..5 {
        // As the command does it, which ends thereafter.
        let new = KeyRing::open(&folder).unwrap().rotate(&folder).unwrap();
        let signed = rings[0].sign_jws(b"{}", "test");
        assert_eq!(rings[0].current_kid(), new);
        assert!(rings[1].verify_jws(&signed, "test").is_ok());
        assert_eq!(kids(&rings[2])[0], new);
    }
}

#[test]
fn a_folder_that_is_damaged_or_away_leaves_the_keys_as_they_are() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("keys");
    let ring = KeyRing::open(&folder).unwrap();
    let kid = ring.current_kid();
    fs::write(folder.join("current.pem"), "half a k").unwrap();
    let signed = ring.sign_jws(b"{}", "test");
    assert!(ring.verify_jws(&signed, "test").is_ok());
    // What others could read is not taken, and is once only its rights have changed.
    let next = SigningKey::generate().unwrap();
    let path = folder.join("current.pem");
    fs::write(&path, &next).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(kids(&ring), [kid]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let kid = SigningKey::parse(&next).unwrap().public().kid().to_owned();
    assert_eq!(kids(&ring), std::slice::from_ref(&kid));
    fs::rename(&folder, base.path().join("away")).unwrap();
    assert_eq!(kids(&ring), [kid]);
    assert!(!folder.exists(), "a new first key was made");
    // A key of somebody else is none of ours, however often it is looked for.
    let foreign = KeyRing::ephemeral().unwrap().sign_jws(b"{}", "test");
    assert_eq!(refusal(ring.verify_jws(&foreign, "test")), Refusal::Signature);
}

#[test]
fn rotations_at_once_lose_no_key() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("keys");
    let ring = KeyRing::open(&folder).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| ring.rotate(&folder).unwrap());
        }
    });
    assert_eq!(kids(&ring).len(), 9);
}

#[test]
fn a_key_that_others_can_read_or_that_is_none_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("keys");
    KeyRing::open(&folder).unwrap();
    let path = folder.join("current.pem");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(KeyRing::open(&folder).is_ok());
    assert_eq!(mode(&folder), 0o700);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let error = KeyRing::open(&folder).unwrap_err();
    assert!(matches!(error, KeyError::Exposed { mode: 0o640, .. }) && error.to_string().contains("640"), "{error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    for text in ["", "secret text", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        fs::write(&path, text).unwrap();
        let error = KeyRing::open(&folder).unwrap_err();
        assert!(matches!(error, KeyError::NotAKey { .. }) && !error.to_string().contains("secret"), "{error}");
        assert!(KeyRing::open(&folder).unwrap_err().to_string().contains("Ed25519"));
    }
}

#[test]
fn keys_from_settings_may_be_retired_as_private_or_public() {
    let (a, b, c) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let public = SigningKey::parse(&c).unwrap().public().to_pem();
    let ring = KeyRing::from_pem(&a, &[b.clone(), public, a.clone()]).unwrap();
    assert_eq!(kids(&ring).len(), 3);
    for old in [&b, &c] {
        let signed = KeyRing::from_pem(old, &[]).unwrap().sign_jws(b"{}", "test");
        assert!(ring.verify_jws(&signed, "test").is_ok());
    }
    assert!(KeyRing::from_pem(&SigningKey::parse(&a).unwrap().public().to_pem(), &[]).is_err());
    assert!(KeyRing::from_pem(&a, &["nothing".to_owned()]).is_err());
}

#[test]
fn client_secrets_are_recognisable_and_kept_as_a_hash() {
    let (one, other) = (secrets::generate(), secrets::generate());
    assert!(one.expose().starts_with(secrets::PREFIX));
    assert_eq!(one.expose().len(), 47);
    assert_ne!(one.expose(), other.expose());
    assert!(!format!("{one:?}").contains(&one.expose()[4..]));
    assert!(secrets::matches(one.expose(), &one.hash()));
    assert!(!secrets::matches(other.expose(), &one.hash()));
    assert!(!secrets::matches("", &one.hash()));
    assert!(!secrets::matches(&format!("{} ", one.expose()), &one.hash()));
    assert_eq!(hex::encode(secrets::hash("abc"))[..16], *"ba7816bf8f01cfea");
}
