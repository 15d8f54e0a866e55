//! The artifact store: bytes under a name that is given once and never again, written whole or not at all.
//!
//! [`objects`] is the one that keeps them, over `object_store`: in a folder, or in a bucket that speaks S3.

pub mod objects;
#[cfg(test)]
mod tests;

use std::ops::Range;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use uuid::Uuid;

use crate::domain::digest::Digest;
use crate::domain::ids::OrganizationId;

/// A fault of the artifact store.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactStoreError {
    /// It cannot be reached, or does not answer as it should: try again.
    #[error("the artifact store is unavailable: {0}")]
    Unavailable(String),
    /// It has no such bytes.
    #[error("the artifact store has no {0}")]
    Missing(String),
    /// The setting that names it is wrong.
    #[error("{0}")]
    Setting(String),
}

/// What bytes are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobName {
    /// The tenant: what the name begins with, so that tenants are apart by name.
    pub organization: OrganizationId,
    /// What they are.
    pub digest: Digest,
    /// Never used twice, so that bytes that are removed late are never those that came later.
    pub upload: Uuid,
}

/// Bytes as they come.
pub type Chunks = BoxStream<'static, Result<Bytes, ArtifactStoreError>>;

/// Keeps bytes.
pub trait ArtifactStore: Send + Sync {
    /// Begins to write. Nothing can be read under the name before [`BlobWriter::finish`].
    fn writer(&self, name: BlobName) -> Box<dyn BlobWriter>;

    /// Reads a part.
    fn read(&self, name: BlobName, range: Range<u64>) -> BoxFuture<'_, Result<Chunks, ArtifactStoreError>>;

    /// Removes what is under the name, and what a writer that died has left; nothing there is no fault.
    fn remove(&self, name: BlobName) -> BoxFuture<'_, Result<(), ArtifactStoreError>>;
}

/// Writes bytes, one chunk after the other. Dropped before its end, it leaves nothing that can be read.
pub trait BlobWriter: Send {
    /// Takes the next chunk.
    fn write(&mut self, chunk: Bytes) -> BoxFuture<'_, Result<(), ArtifactStoreError>>;

    /// Makes what was written readable; it is on disk then.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), ArtifactStoreError>>;

    /// Drops what was written.
    fn abort(self: Box<Self>) -> BoxFuture<'static, Result<(), ArtifactStoreError>>;
}
