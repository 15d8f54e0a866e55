//! An issuer's keys, fetched when they are needed and no more often than that.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use jsonwebtoken::Algorithm;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::sync::Mutex;
use url::Url;

use super::error::{Refusal, TokenError, quoted};
use super::jws::VerificationKey;
use super::key_set::{KeySet, Lookup};
use crate::domain::time::Timestamp;

/// The largest key set that is read, in bytes.
pub const MAX_KEY_SET_BYTES: usize = 1024 * 1024;

/// After this time the keys are fetched again, so that a key that its issuer withdrew is not accepted for long.
pub const KEY_MAX_AGE: Duration = Duration::from_mins(10);

/// After this time keys that could not be renewed are accepted no longer: an issuer that cannot be reached cannot say
/// which of them it withdrew.
pub const KEYS_KEPT: Duration = Duration::from_hours(24);

/// How long a failed first fetch waits for the next attempt (or the cool-down, if that is shorter): until it
/// succeeds nobody of that issuer gets in.
pub const FIRST_FETCH_RETRY: Duration = Duration::from_secs(5);

/// Where keys come from.
pub(super) enum Source {
    Url { client: reqwest::Client, url: Url },
    File(PathBuf),
}

/// The cached keys of one issuer.
pub(super) struct KeyCache {
    issuer: String,
    source: Source,
    allowed: Vec<Algorithm>,
    cooldown: Duration,
    state: RwLock<State>,
    /// Held by the one fetch in flight.
    fetching: Arc<Mutex<()>>,
    /// Rises when the keys of any issuer change.
    epoch: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    loaded: Option<Loaded>,
    /// How many fetches succeeded: who waited for one can tell that it happened.
    fetches: u64,
    /// Before this instant no first or renewing fetch.
    next_renewal: Option<Timestamp>,
    /// Before this instant no fetch for an unknown key. The first fetch does not count, for it asks for no key in
    /// particular: a key that was rotated right after it would stay unknown for a whole cool-down.
    next_search: Option<Timestamp>,
}

struct Loaded {
    keys: Arc<KeySet>,
    digest: [u8; 32],
    /// `None` if they were read before the first instant was known.
    fetched_at: Option<Timestamp>,
}

impl Loaded {
    /// Whether they are to be fetched again.
    fn is_old(&self, now: Timestamp) -> bool {
        self.fetched_at.is_none_or(|at| between(at, now) >= KEY_MAX_AGE)
    }

    /// Whether they may be used no longer.
    fn is_stale(&self, now: Timestamp) -> bool {
        self.fetched_at.is_some_and(|at| between(at, now) >= KEYS_KEPT)
    }
}

/// Why keys are to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// There are none, or none that may still be used.
    First,
    /// They are old.
    Renewal,
    /// A token names a key that is not among them.
    Search,
}

impl KeyCache {
    pub(super) fn new(
        issuer: String,
        source: Source,
        allowed: Vec<Algorithm>,
        cooldown: Duration,
        epoch: Arc<AtomicU64>,
    ) -> Self {
        Self { issuer, source, allowed, cooldown, state: RwLock::default(), fetching: Arc::default(), epoch }
    }

    /// Puts in the keys of a file that was read at the start. They count as old: the first use reads the file again.
    pub(super) fn with_keys(mut self, text: &[u8], keys: KeySet) -> Self {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let digest = Sha256::digest(text).into();
        state.loaded = Some(Loaded { keys: Arc::new(keys), digest, fetched_at: None });
        self
    }

    /// The key that a token's header leads to, after a fetch if there is a reason for one and it may be made.
    pub(super) async fn find(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
        now: Timestamp,
    ) -> Result<Arc<VerificationKey>, TokenError> {
        let (need, seen) = {
            let state = self.read();
            (self.need(&state, kid, algorithm, now), state.fetches)
        };
        if let Some(need) = need {
            self.fetch(need, seen, now).await;
        }
        let state = self.read();
        let Some(loaded) = state.loaded.as_ref().filter(|loaded| !loaded.is_stale(now)) else {
            let due = state.next_renewal.map_or(0, |due| due.micros().saturating_sub(now.micros()).max(0));
            let problem = if state.loaded.is_some() { "renewed for too long" } else { "fetched yet" };
            return Err(TokenError::Unavailable {
                detail: format!("the keys of {} could not be {problem}", self.issuer),
                retry_after: Duration::from_micros(due.unsigned_abs()).max(Duration::from_secs(1)),
            });
        };
        let problem = match loaded.keys.find(kid, algorithm) {
            Lookup::Found(key) => return Ok(key),
            Lookup::Unknown => "no such key",
            Lookup::Unfit(problem) => problem,
        };
        let kid = kid.map_or_else(|| "none".to_owned(), quoted);
        let detail = format!("kid {kid}, alg {algorithm:?} at {}: {problem}", self.issuer);
        Err(TokenError::refused(Refusal::Signature, detail))
    }

    /// Fetches the keys if there are none, so that the first token need not wait for them.
    pub(super) async fn preload(self: &Arc<Self>, now: Timestamp) {
        let seen = {
            let state = self.read();
            if state.loaded.is_some() {
                return;
            }
            state.fetches
        };
        self.fetch(Need::First, seen, now).await;
    }

    /// One fetch at a time; whoever waited for another's uses its result and makes none.
    async fn fetch(self: &Arc<Self>, need: Need, seen: u64, now: Timestamp) {
        let guard = match need {
            // The old keys will do while somebody else renews them.
            Need::Renewal => match Arc::clone(&self.fetching).try_lock_owned() {
                Ok(guard) => guard,
                Err(_) => return,
            },
            Need::First | Need::Search => Arc::clone(&self.fetching).lock_owned().await,
        };
        if !self.claim(need, seen, now) {
            return;
        }
        // A task of its own: a client that hangs up must not end the one fetch that the cool-down allows.
        let this = Arc::clone(self);
        let fetch = tokio::spawn(async move {
            let _guard = guard;
            this.fetch_once(now).await;
        });
        if let Err(error) = fetch.await {
            tracing::error!(issuer = self.issuer, %error, "fetching an issuer's keys broke down");
        }
    }

    fn need(&self, state: &State, kid: Option<&str>, algorithm: Algorithm, now: Timestamp) -> Option<Need> {
        let Some(loaded) = state.loaded.as_ref().filter(|loaded| !loaded.is_stale(now)) else {
            return Some(Need::First);
        };
        let renewable = || loaded.is_old(now) && due(state.next_renewal, self.cooldown, now);
        match loaded.keys.find(kid, algorithm) {
            // Even within the cool-down, because the fetch in flight may bring the key.
            Lookup::Unknown => Some(Need::Search),
            Lookup::Found(_) | Lookup::Unfit(_) => renewable().then_some(Need::Renewal),
        }
    }

    /// Takes the right to fetch, before the fetch, so that one that fails counts too.
    fn claim(&self, need: Need, seen: u64, now: Timestamp) -> bool {
        let mut state = self.write();
        if state.fetches != seen {
            return false;
        }
        if let Some(loaded) = &mut state.loaded {
            // Old from the beginning, and from now on they grow older.
            loaded.fetched_at.get_or_insert(now.minus(KEY_MAX_AGE));
        }
        let (next, wait) = match need {
            Need::First => (&mut state.next_renewal, self.cooldown.min(FIRST_FETCH_RETRY)),
            Need::Renewal => (&mut state.next_renewal, self.cooldown),
            Need::Search => (&mut state.next_search, self.cooldown),
        };
        let free = due(*next, wait, now);
        if free {
            *next = Some(now.plus(wait));
        }
        free
    }

    async fn fetch_once(&self, now: Timestamp) {
        let fetched = match self.source.read().await {
            Ok(text) => self.source.parse(&text, &self.allowed).map(|keys| (text, keys)).map_err(str::to_owned),
            Err(problem) => Err(problem),
        };
        match fetched {
            Ok((text, keys)) => self.store(&text, keys, now),
            Err(problem) => {
                tracing::warn!(issuer = self.issuer, problem, "an issuer's keys could not be fetched");
            }
        }
    }

    fn store(&self, text: &[u8], keys: KeySet, now: Timestamp) {
        if keys.is_empty() {
            tracing::warn!(issuer = self.issuer, "an issuer's key set holds no key that can be used");
        }
        let digest: [u8; 32] = Sha256::digest(text).into();
        let mut state = self.write();
        let changed = state.loaded.as_ref().is_none_or(|old| old.digest != digest);
        state.loaded = Some(Loaded { keys: Arc::new(keys), digest, fetched_at: Some(now) });
        state.fetches += 1;
        drop(state);
        if changed {
            // After the keys: whatever was concluded from the old ones carries the old epoch.
            self.epoch.fetch_add(1, Ordering::AcqRel);
            tracing::info!(issuer = self.issuer, "an issuer's keys were fetched");
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the wait for `next` is over. So is one that lies further ahead than any wait leads: the clock was set back,
/// and would hold up the fetch for as long as it was ahead. Twice the wait, because calls overlap: who read the clock
/// just before the one that fetched is not to fetch again.
fn due(next: Option<Timestamp>, wait: Duration, now: Timestamp) -> bool {
    next.is_none_or(|next| next <= now || next > now.plus(wait.saturating_mul(2)))
}

/// The time between two instants, whichever is the later: keys that were fetched long after now, by a clock that was
/// set back since, are as old as those that were fetched long before.
fn between(one: Timestamp, other: Timestamp) -> Duration {
    Duration::from_micros(one.micros().abs_diff(other.micros()))
}

impl Source {
    async fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::Url { client, url } => download(client, url).await,
            Self::File(path) => {
                let file = tokio::fs::File::open(path).await.map_err(|error| error.to_string())?;
                let mut text = Vec::new();
                // One byte more than is allowed tells a file that is too large.
                let limit = u64::try_from(MAX_KEY_SET_BYTES).unwrap_or(u64::MAX).saturating_add(1);
                file.take(limit).read_to_end(&mut text).await.map_err(|error| error.to_string())?;
                fitting(text)
            }
        }
    }

    fn parse(&self, text: &[u8], allowed: &[Algorithm]) -> Result<KeySet, &'static str> {
        match self {
            Self::Url { .. } => KeySet::from_jwks(text, allowed),
            Self::File(_) => KeySet::from_file(text, allowed),
        }
    }
}

async fn download(client: &reqwest::Client, url: &Url) -> Result<Vec<u8>, String> {
    let request = client.get(url.clone()).header(reqwest::header::ACCEPT, "application/json");
    let mut response = request.send().await.map_err(chain)?;
    // Redirects are not followed: the address that an operator wrote down is the one that is trusted.
    if response.status() != reqwest::StatusCode::OK {
        return Err(format!("the answer was {}", response.status()));
    }
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(chain)? {
        text.extend_from_slice(&chunk);
        if text.len() > MAX_KEY_SET_BYTES {
            break;
        }
    }
    fitting(text)
}

fn fitting(text: Vec<u8>) -> Result<Vec<u8>, String> {
    if text.len() > MAX_KEY_SET_BYTES { Err(format!("more than {MAX_KEY_SET_BYTES} bytes")) } else { Ok(text) }
}

/// An error with its causes: the first alone says "error sending request" and no more. Without the URL, in which a key
/// or a password may stand.
pub(super) fn chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
