//! Artifacts in a folder or in a bucket.

use std::fs::DirBuilder;
use std::io;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig, WriteMultipart,
};
use url::Url;

use super::{ArtifactStore, ArtifactStoreError, BlobName, BlobWriter, Chunks};

/// What is sent to a bucket at once; what is no larger takes one request. Buckets take no parts below 5 MiB.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Parts of one artifact that are on their way at once: what bounds the memory that an upload takes.
const PARTS_AT_ONCE: usize = 2;
/// How long a bucket may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a bucket may be silent within an answer. The whole may take as long as its reader does.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a request to a bucket is sent again, and until when: a caller waits for it.
const RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(15);

/// The rights of a folder that is made for artifacts.
const FOLDER_MODE: u32 = 0o700;

/// How to reach a bucket.
#[derive(Clone, Default)]
pub struct BucketAccess {
    /// The URL of a service that is not Amazon's.
    pub endpoint: Option<String>,
    /// The region.
    pub region: String,
    /// Key id and key; absent: what the machine or the environment grants.
    pub keys: Option<(String, String)>,
    /// Whether the bucket's name stands in the host rather than in the path.
    pub virtual_hosted: bool,
}

/// Artifacts in a folder or in a bucket.
pub struct ObjectArtifacts {
    objects: Arc<dyn ObjectStore>,
    /// The folder, if it is one.
    folder: Option<PathBuf>,
}

impl ObjectArtifacts {
    /// Opens what `url` names: `file:///folder`, which is made if it is missing, or `s3://bucket/prefix`, which is not
    /// connected before it is needed.
    pub fn open(url: &str, access: &BucketAccess) -> Result<Self, ArtifactStoreError> {
        let setting = |fault: String| ArtifactStoreError::Setting(fault);
        let parsed = Url::parse(url).map_err(|fault| setting(fault.to_string()))?;
        match parsed.scheme() {
            "file" => {
                let folder =
                    parsed.to_file_path().map_err(|()| setting("names no folder of this machine".to_owned()))?;
                Self::folder(&folder)
            }
            "s3" => {
                let bucket = parsed.host_str().ok_or_else(|| setting("names no bucket".to_owned()))?;
                let prefix = Path::from_url_path(parsed.path()).map_err(|fault| setting(fault.to_string()))?;
                Self::bucket(bucket, prefix, access)
            }
            _ => Err(setting("must begin with file:// or s3://".to_owned())),
        }
    }

    fn folder(folder: &FilePath) -> Result<Self, ArtifactStoreError> {
        let setting = |fault: String| ArtifactStoreError::Setting(format!("{}: {fault}", folder.display()));
        // What is in it is for nobody else on the machine; a folder that is there keeps the rights that it was given.
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(folder)
            .map_err(|fault| setting(fault.to_string()))?;
        // The library's root is the real path too.
        let folder = folder.canonicalize().map_err(|fault| setting(fault.to_string()))?;
        let local = LocalFileSystem::new_with_prefix(&folder).map_err(|fault| setting(fault.to_string()))?;
        // A commit that refers to bytes is not to outlive them.
        Ok(Self { objects: Arc::new(local.with_fsync(true)), folder: Some(folder) })
    }

    fn bucket(bucket: &str, prefix: Path, access: &BucketAccess) -> Result<Self, ArtifactStoreError> {
        let client = ClientOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_read_timeout(READ_TIMEOUT)
            .with_timeout_disabled()
            .with_allow_http(access.endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://")));
        let builder = match &access.keys {
            Some((id, key)) => AmazonS3Builder::new().with_access_key_id(id).with_secret_access_key(key),
            None => AmazonS3Builder::from_env(),
        };
        let mut builder = builder
            .with_bucket_name(bucket)
            .with_region(&access.region)
            .with_virtual_hosted_style_request(access.virtual_hosted)
            .with_client_options(client)
            .with_retry(RetryConfig { max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() });
        if let Some(endpoint) = &access.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        let bucket = builder.build().map_err(|fault| ArtifactStoreError::Setting(fault.to_string()))?;
        let objects: Arc<dyn ObjectStore> =
            if prefix.as_ref().is_empty() { Arc::new(bucket) } else { Arc::new(PrefixStore::new(bucket, prefix)) };
        Ok(Self { objects, folder: None })
    }
}

/// Two digits of the digest make folders that stay small.
fn place(name: BlobName) -> Path {
    let digest = hex::encode(name.digest.0);
    let (first, rest) = digest.split_at(2);
    Path::from(format!("{}/{first}/{rest}-{}", name.organization.0.simple(), name.upload.simple()))
}

fn fault(fault: object_store::Error) -> ArtifactStoreError {
    match fault {
        object_store::Error::NotFound { path, .. } => ArtifactStoreError::Missing(path),
        other => ArtifactStoreError::Unavailable(other.to_string()),
    }
}

impl ArtifactStore for ObjectArtifacts {
    fn writer(&self, name: BlobName) -> Box<dyn BlobWriter> {
        Box::new(Writer { objects: Arc::clone(&self.objects), place: place(name), whole: Vec::new(), parts: None })
    }

    fn read(&self, name: BlobName, range: Range<u64>) -> BoxFuture<'_, Result<Chunks, ArtifactStoreError>> {
        async move {
            if range.is_empty() {
                // A store takes no empty range.
                return Ok(futures::stream::empty().boxed());
            }
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            let found = self.objects.get_opts(&place(name), options).await.map_err(fault)?;
            Ok(found.into_stream().map_err(fault).boxed())
        }
        .boxed()
    }

    fn remove(&self, name: BlobName) -> BoxFuture<'_, Result<(), ArtifactStoreError>> {
        async move {
            let place = place(name);
            match self.objects.delete(&place).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(other) => return Err(fault(other)),
            }
            // What a process that was killed had begun to write. A bucket's own rules end what was begun there.
            let Some(folder) = &self.folder else { return Ok(()) };
            let begun = folder.join(format!("{place}#1"));
            match tokio::fs::remove_file(&begun).await {
                Err(missing) if missing.kind() != io::ErrorKind::NotFound => {
                    Err(ArtifactStoreError::Unavailable(format!("{}: {missing}", begun.display())))
                }
                Ok(()) | Err(_) => Ok(()),
            }
        }
        .boxed()
    }
}

struct Writer {
    objects: Arc<dyn ObjectStore>,
    place: Path,
    /// What came, as long as it is no more than a part.
    whole: Vec<Bytes>,
    /// The way for more than that.
    parts: Option<WriteMultipart>,
}

impl Writer {
    async fn take(&mut self, chunk: Bytes) -> Result<(), ArtifactStoreError> {
        if let Some(parts) = &mut self.parts {
            parts.wait_for_capacity(PARTS_AT_ONCE).await.map_err(fault)?;
            parts.put(chunk);
            return Ok(());
        }
        self.whole.push(chunk);
        if self.whole.iter().map(Bytes::len).sum::<usize>() <= PART_BYTES {
            return Ok(());
        }
        let upload = self.objects.put_multipart(&self.place).await.map_err(fault)?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        for chunk in self.whole.drain(..) {
            parts.put(chunk);
        }
        self.parts = Some(parts);
        Ok(())
    }
}

impl BlobWriter for Writer {
    fn write(&mut self, chunk: Bytes) -> BoxFuture<'_, Result<(), ArtifactStoreError>> {
        self.take(chunk).boxed()
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), ArtifactStoreError>> {
        async move {
            if let Some(parts) = self.parts {
                return parts.finish().await.map(drop).map_err(fault);
            }
            let payload = PutPayload::from_iter(self.whole);
            self.objects.put(&self.place, payload).await.map(drop).map_err(fault)
        }
        .boxed()
    }

    fn abort(self: Box<Self>) -> BoxFuture<'static, Result<(), ArtifactStoreError>> {
        async move {
            match self.parts {
                Some(parts) => parts.abort().await.map_err(fault),
                None => Ok(()),
            }
        }
        .boxed()
    }
}
