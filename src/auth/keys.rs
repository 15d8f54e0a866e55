//! The server's own signing key.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::error::{Refusal, TokenError, quoted};
use super::jws::{Jws, VerificationKey, base64url};
use super::key_folder::{self, KeyTexts, Stamp};

/// Why there is no key to work with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file system said no.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Somebody else could have read the private key.
    #[error("others can read {} (mode {mode:03o}): replace the key, or chmod 600 if nobody did", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not what it should be. The text is not repeated, because it may be a private key.
    #[error("{what} is no Ed25519 key as PEM (PKCS#8 or SubjectPublicKeyInfo)")]
    NotAKey {
        /// Which text.
        what: &'static str,
    },
    /// The library could not make a key.
    #[error("no key could be made")]
    Generation,
}

/// The current signing key, and those before it, which still verify what they signed.
///
/// A key is named by its RFC 7638 thumbprint. Old keys are kept until an operator deletes their file, which ends every
/// token and proof that they signed.
///
/// Several processes may share a folder: whether it has changed is looked at before anything is signed, when the keys
/// are published, and when a key is not known. So a rotation needs no restart, and no process refuses what another
/// signs with the new key.
pub struct KeyRing {
    keys: RwLock<Arc<Keys>>,
    epoch: AtomicU64,
    folder: Option<SeenFolder>,
}

/// A folder, and how it was when it was read.
struct SeenFolder {
    path: PathBuf,
    seen: Mutex<Option<Stamp>>,
}

struct Keys {
    current: SigningKey,
    /// The current key first.
    public: Vec<PublicKey>,
    by_kid: HashMap<String, VerificationKey>,
}

/// A private key and its name.
pub(super) struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

/// A public key and its name.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PublicKey {
    kid: String,
    x: String,
    bytes: [u8; PUBLIC_BYTES],
}

const PUBLIC_BYTES: usize = 32;
/// What comes before the 32 bytes in a `SubjectPublicKeyInfo` of Ed25519: RFC 8410 allows one encoding only.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

impl KeyRing {
    /// Loads the keys of `folder`, or makes the folder and a first key. Processes that start at once agree on one key.
    pub fn open(folder: &Path) -> Result<Self, KeyError> {
        let texts = key_folder::load_or_create(folder)?;
        // Unseen, so that the first look reads it once more: it may have changed meanwhile.
        let seen = SeenFolder { path: folder.to_owned(), seen: Mutex::new(None) };
        Keys::read(&texts).map(|keys| Self { folder: Some(seen), ..Self::holding(keys) })
    }

    /// Takes the current key (a private PEM) and retired ones (private or public PEMs) from settings.
    ///
    /// To rotate without an interruption while several processes run: give all of them the new key as a retired one
    /// first, and only then as the current one with the old as retired.
    pub fn from_pem(pem: &str, retired: &[String]) -> Result<Self, KeyError> {
        Keys::read(&KeyTexts { current: pem.to_owned(), retired: retired.to_vec() }).map(Self::holding)
    }

    /// A new key that is kept nowhere.
    pub(super) fn ephemeral() -> Result<Self, KeyError> {
        Self::from_pem(&SigningKey::generate()?, &[])
    }

    /// Makes a new current key in `folder` and keeps the old one for verification. Answers the new key's id.
    ///
    /// All processes on the folder sign with it from now on.
    pub fn rotate(&self, folder: &Path) -> Result<String, KeyError> {
        key_folder::rotate(folder)?;
        self.replace(Keys::read(&key_folder::load(folder)?)?);
        Ok(self.current_kid())
    }

    /// Reads the folder again if it has changed. What cannot be read leaves the keys as they are, and is tried again the
    /// next time: what was in the way, such as a file's rights, need not change the folder.
    fn refresh(&self) {
        let Some(folder) = &self.folder else { return };
        // Taken first: what changes during the reading is a change the next time.
        let Some(stamp) = key_folder::stamp(&folder.path) else { return };
        let mut seen = folder.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == Some(stamp) {
            return;
        }
        match key_folder::load(&folder.path).and_then(|texts| Keys::read(&texts)) {
            Ok(keys) => {
                if keys.public != self.keys().public {
                    self.replace(keys);
                }
                *seen = Some(stamp);
            }
            Err(error) => tracing::error!(%error, "the signing keys have changed and cannot be read"),
        }
    }

    fn replace(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The id of the key that signs.
    pub fn current_kid(&self) -> String {
        self.keys().current.public.kid.clone()
    }

    /// The public keys as a JSON Web Key Set, the current one first.
    pub fn jwks(&self) -> Value {
        self.refresh();
        let keys: Vec<Value> = self.keys().public.iter().map(PublicKey::jwk).collect();
        json!({ "keys": keys })
    }

    /// Signs `payload` with the current key: a compact JWS with `alg`, `kid` and `typ` in its header.
    pub fn sign_jws(&self, payload: &[u8], typ: &str) -> String {
        self.refresh();
        let keys = self.keys();
        let header = json!({ "alg": "EdDSA", "kid": keys.current.public.kid, "typ": typ });
        let message = format!("{}.{}", base64url(header.to_string()), base64url(payload));
        let signature = keys.current.pair.sign(message.as_bytes());
        format!("{message}.{}", base64url(signature.as_ref()))
    }

    /// The payload of a JWS that one of these keys signed under exactly this `typ`.
    pub fn verify_jws(&self, jws: &str, typ: &str) -> Result<Vec<u8>, TokenError> {
        let jws = Jws::parse(jws)?;
        self.check(&jws, typ)?;
        Ok(jws.payload)
    }

    pub(super) fn check(&self, jws: &Jws<'_>, typ: &str) -> Result<(), TokenError> {
        jws.check_kind(&[&typ.to_ascii_lowercase()], false)?;
        let kid = jws.kid.as_deref().unwrap_or_default();
        let mut keys = self.keys();
        if !keys.by_kid.contains_key(kid) {
            self.refresh();
            keys = self.keys();
        }
        let key = keys.by_kid.get(kid).ok_or_else(|| {
            TokenError::refused(Refusal::Signature, format!("kid {} is none of our keys", quoted(kid)))
        })?;
        key.check(jws)
    }

    /// Rises whenever the keys change, so that what was concluded from the old ones can be dropped.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn holding(keys: Keys) -> Self {
        Self { keys: RwLock::new(Arc::new(keys)), epoch: AtomicU64::new(0), folder: None }
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Names the current key and prints nothing else.
impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").field("current", &self.current_kid()).finish_non_exhaustive()
    }
}

impl Keys {
    fn read(texts: &KeyTexts) -> Result<Self, KeyError> {
        let current = SigningKey::parse(&texts.current)?;
        let mut public = vec![current.public.clone()];
        for text in &texts.retired {
            let retired = PublicKey::parse(text)?;
            if public.iter().all(|known| known.kid != retired.kid) {
                public.push(retired);
            }
        }
        let by_kid = public.iter().map(|key| (key.kid.clone(), key.verification())).collect();
        Ok(Self { current, public, by_kid })
    }
}

impl SigningKey {
    /// A new key, as PKCS#8 PEM. Version 1 of PKCS#8, which every tool reads.
    pub(super) fn generate() -> Result<String, KeyError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| KeyError::Generation)?;
        let document = pair.to_pkcs8v1().map_err(|_| KeyError::Generation)?;
        Ok(pem("PRIVATE KEY", document.as_ref()))
    }

    pub(super) fn parse(text: &str) -> Result<Self, KeyError> {
        const WRONG: KeyError = KeyError::NotAKey { what: "the signing key" };
        let document = EncodingKey::from_ed_pem(text.as_bytes()).map_err(|_| WRONG)?;
        let pair = Ed25519KeyPair::from_pkcs8(document.as_bytes()).map_err(|_| WRONG)?;
        let bytes = pair.public_key().as_ref().try_into().map_err(|_| WRONG)?;
        Ok(Self { pair, public: PublicKey::new(bytes) })
    }

    pub(super) fn public(&self) -> &PublicKey {
        &self.public
    }
}

impl PublicKey {
    fn new(bytes: [u8; PUBLIC_BYTES]) -> Self {
        let x = base64url(bytes);
        // RFC 7638: the required members in lexicographic order, no white space.
        let kid = base64url(Sha256::digest(format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#)));
        Self { kid, x, bytes }
    }

    /// Reads a public PEM, or the public half of a private one.
    fn parse(text: &str) -> Result<Self, KeyError> {
        const WRONG: KeyError = KeyError::NotAKey { what: "a retired key" };
        if let Ok(private) = SigningKey::parse(text) {
            return Ok(private.public);
        }
        let key = DecodingKey::from_ed_pem(text.as_bytes()).map_err(|_| WRONG)?;
        let bytes = key.try_get_as_bytes().map_err(|_| WRONG)?;
        bytes.try_into().map(Self::new).map_err(|_| WRONG)
    }

    pub(super) fn kid(&self) -> &str {
        &self.kid
    }

    pub(super) fn to_pem(&self) -> String {
        pem("PUBLIC KEY", &[&SPKI_PREFIX[..], &self.bytes].concat())
    }

    fn verification(&self) -> VerificationKey {
        VerificationKey { algorithm: Algorithm::EdDSA, key: DecodingKey::from_ed_der(&self.bytes) }
    }

    fn jwk(&self) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "x": self.x, "kid": self.kid, "use": "sig", "alg": "EdDSA" })
    }
}

/// PEM of at most 48 bytes, so that the base64 fits the one line of 64 characters that it may have.
fn pem(tag: &str, der: &[u8]) -> String {
    format!("-----BEGIN {tag}-----\n{}\n-----END {tag}-----\n", STANDARD.encode(der))
}
