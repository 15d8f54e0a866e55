//! Connections that were given back clean.
//!
//! sqlx asks every connection that is given back whether it still answers, which is a round trip per statement. One
//! whose last statement was answered in full needs no question, so it waits here for the next call. Whatever else
//! happens to a connection (an error, a call that is dropped half-way, an open transaction), it goes back to sqlx.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long a connection may stay out of sqlx's hands, which looks after its health and its age.
const KEPT_MAX: Duration = Duration::from_mins(1);

/// A connection and when sqlx gave it out.
#[derive(Debug)]
pub(super) struct Kept {
    pub connection: PoolConnection<Postgres>,
    since: Instant,
}

/// The shelf of one pool.
#[derive(Debug)]
pub(super) struct Shelf {
    pool: PgPool,
    acquire_timeout: Duration,
    /// As many as the pool has connections: who has a place finds one on the shelf, or sqlx can give one.
    places: Arc<Semaphore>,
    /// The last one given back is the first to go; `None` once closed.
    kept: Mutex<Option<Vec<Kept>>>,
}

impl Shelf {
    pub fn new(pool: PgPool, places: u32, acquire_timeout: Duration) -> Self {
        let places = Arc::new(Semaphore::new(places as usize));
        Self { pool, acquire_timeout, places, kept: Mutex::new(Some(Vec::new())) }
    }

    /// A connection, and the place that it takes.
    pub async fn take(&self) -> Result<(Kept, OwnedSemaphorePermit), sqlx::Error> {
        let place = self.place().await?;
        if let Some(kept) = self.pop().filter(|kept| kept.since.elapsed() < KEPT_MAX) {
            return Ok((kept, place));
        }
        Ok((Kept { connection: self.pool.acquire().await?, since: Instant::now() }, place))
    }

    /// A place for a connection that sqlx itself gives out.
    pub async fn place(&self) -> Result<OwnedSemaphorePermit, sqlx::Error> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(place);
        }
        match timeout(self.acquire_timeout, Arc::clone(&self.places).acquire_owned()).await {
            Ok(place) => place.map_err(|_| sqlx::Error::PoolClosed),
            Err(_) => Err(sqlx::Error::PoolTimedOut),
        }
    }

    /// Lets go of a connection, so that sqlx has one to give out.
    pub fn spare(&self) {
        drop(self.pop());
    }

    /// Takes back a connection whose last statement was answered in full.
    pub fn give(&self, kept: Kept) {
        if let Some(shelf) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            shelf.push(kept);
        }
    }

    /// Keeps nothing any more: the pool can close.
    pub fn close(&self) {
        drop(self.kept.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn pop(&self) -> Option<Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.pop()
    }
}
