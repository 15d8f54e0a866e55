//! Artifacts: sending them, reading them, leaving large payloads with them, and removing what nobody refers to.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::{Call, Caller, Clock, Order, Principal, Service, ServiceError};
use crate::artifacts::{ArtifactStore, BlobName, BlobWriter, Chunks};
use crate::domain::artifact::PAYLOAD_MEDIA_TYPE;
use crate::domain::command::{Command, HarnessEvent};
use crate::domain::digest::Digest;
use crate::domain::ids::OrganizationId;
use crate::domain::principal::Permission;
use crate::domain::refusal::Refusal;
use crate::store::{ArtifactReader, Received, Upload};

pub use crate::store::StoredArtifact;

/// How long the remover leaves bytes alone that the store refused to remove.
const REMOVAL_PAUSE: Duration = Duration::from_mins(5);

/// The artifact store and its limits.
#[derive(Clone)]
pub struct Artifacts {
    /// Where they are kept.
    pub store: Arc<dyn ArtifactStore>,
    /// A place for each that may come at once.
    pub places: Arc<Semaphore>,
    /// The largest one, in bytes.
    pub size_max: u64,
    /// How long one may take to come.
    pub upload_timeout: Duration,
    /// How long one is kept that no log refers to.
    pub grace: Duration,
}

impl Artifacts {
    /// Does not wait for ever for a sender or for the store.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, ServiceError> {
        let done = tokio::time::timeout(self.upload_timeout, work).await;
        done.map_err(|_| ServiceError::Unavailable("an artifact took too long to come or to be kept".to_owned()))
    }
}

/// What became of an artifact that was sent.
#[derive(Debug)]
pub struct Sent {
    /// The artifact.
    pub artifact: StoredArtifact,
    /// Whether it was there already.
    pub repeated: bool,
}

/// What one look for artifacts that nobody refers to did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArtifactsSwept {
    /// Artifacts that are none any more.
    pub removed: u64,
    /// Bytes that are gone, of those and of uploads that came to nothing.
    pub cleared: u64,
    /// Bytes that the store refused to remove.
    pub failed: u64,
    /// Whether there may be more to do at once.
    pub more: bool,
}

fn blob(upload: Upload) -> BlobName {
    BlobName { organization: upload.organization, digest: upload.digest, upload: upload.id }
}

impl Caller {
    /// Who may send artifacts: the accounts of agents, and people who may create tasks.
    pub fn may_send_artifacts(&self) -> Result<(), Refusal> {
        match &self.principal {
            Principal::Agent { .. } => Ok(()),
            Principal::Person { .. } | Principal::Trigger { .. } => self.require(Permission::Create),
        }
    }

    /// The caller as the sender of an artifact.
    fn sender(&self) -> String {
        match &self.principal {
            Principal::Person { id, .. } => format!("person:{id}"),
            Principal::Agent { account, .. } | Principal::Trigger { account } => format!("account:{account}"),
        }
    }

    /// The caller as a reader of artifacts: whoever may read a task may read what its log refers to.
    fn artifact_reader(&self) -> Result<ArtifactReader, Refusal> {
        Ok(match &self.principal {
            Principal::Person { .. } => {
                self.require(Permission::Read)?;
                ArtifactReader::EveryTask
            }
            Principal::Agent { account, agent } => ArtifactReader::Agent(*account, *agent),
            Principal::Trigger { account } => ArtifactReader::Trigger(*account),
        })
    }
}

/// Takes bytes as they come, measures and hashes them.
struct Intake<'a> {
    writer: Option<&'a mut Box<dyn BlobWriter>>,
    size_max: u64,
}

impl Intake<'_> {
    /// The size and the digest of all that came.
    async fn take<E>(
        &mut self,
        mut body: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
    ) -> Result<(u64, Digest), ServiceError> {
        let (mut size, mut hash) = (0, Sha256::new());
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|_| Refusal::BodyCut)?;
            size += chunk.len() as u64;
            if size > self.size_max {
                return Err(too_large(self.size_max).into());
            }
            hash.update(&chunk);
            if let Some(writer) = &mut self.writer {
                writer.write(chunk).await?;
            }
        }
        Ok((size, Digest(hash.finalize().into())))
    }
}

fn too_large(size_max: u64) -> Refusal {
    Refusal::PayloadTooLarge { limit: usize::try_from(size_max).unwrap_or(usize::MAX), what: String::new() }
}

impl Service {
    fn artifacts(&self) -> Result<&Artifacts, Refusal> {
        self.artifacts.as_ref().ok_or(Refusal::NoArtifactStore)
    }

    /// Takes an artifact in. Its digest is verified while it comes; what has another one is not kept. One that is there
    /// already is verified too, because who sends an artifact may read it.
    pub async fn send_artifact<E>(
        &self,
        caller: &Caller,
        digest: Digest,
        media_type: &str,
        declared: u64,
        body: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
    ) -> Result<Sent, ServiceError> {
        let artifacts = self.artifacts()?;
        if declared > artifacts.size_max {
            return Err(too_large(artifacts.size_max).into());
        }
        let place = artifacts.places.try_acquire();
        let _place = place.map_err(|_| ServiceError::Unavailable("too many artifacts come at once".to_owned()))?;
        let sender = caller.sender();
        if self.store.has_artifact(caller.organization, digest).await? {
            verify(artifacts, None, digest, body).await?;
            let kept = self.store.keep_artifact(caller.organization, digest, &sender).await?;
            let kept = kept.ok_or_else(|| ServiceError::Unavailable("the artifact was being removed".to_owned()))?;
            return Ok(Sent { artifact: kept, repeated: true });
        }
        let upload = Upload { organization: caller.organization, digest, id: Clock::new_id() };
        self.store.begin_upload(upload, artifacts.grace).await?;
        let mut writer = artifacts.store.writer(blob(upload));
        match verify(artifacts, Some(&mut writer), digest, body).await {
            Ok(size) => {
                let received = Received { size, media_type, sender: &sender };
                self.finish_upload(artifacts, upload, writer, received).await
            }
            Err(error) => {
                // What cannot be tidied up now is by the remover.
                if let Err(fault) = writer.abort().await {
                    tracing::warn!(%fault, "an upload that came to nothing could not be dropped; it is removed later");
                }
                self.store.abandon_upload(upload).await?;
                Err(error)
            }
        }
    }

    async fn finish_upload(
        &self,
        artifacts: &Artifacts,
        upload: Upload,
        writer: Box<dyn BlobWriter>,
        received: Received<'_>,
    ) -> Result<Sent, ServiceError> {
        artifacts.in_time(writer.finish()).await??;
        let kept = self.store.finish_upload(upload, received).await?;
        let ours = kept.as_ref().is_some_and(|kept| kept.upload == upload.id);
        if !ours {
            // Another call with the same content was first, or this one took so long that it was taken for dead.
            artifacts.store.remove(blob(upload)).await?;
            self.store.forget_upload(upload).await?;
        }
        let kept = kept.ok_or_else(|| ServiceError::Unavailable("the upload took too long".to_owned()))?;
        Ok(Sent { artifact: kept, repeated: !ours })
    }

    /// The artifact, for a caller who may read it; all others are told what they are told of one that is not there.
    pub async fn artifact(&self, caller: &Caller, digest: &str) -> Result<StoredArtifact, ServiceError> {
        let reader = caller.artifact_reader()?;
        let missing = Refusal::NotFound("artifact");
        let digest = Digest::parse(digest).ok_or_else(|| missing.clone())?;
        let found = self.store.artifact(caller.organization, digest, &caller.sender(), reader).await?;
        Ok(found.ok_or(missing)?)
    }

    /// A part of an artifact's bytes.
    pub async fn artifact_bytes(
        &self,
        organization: OrganizationId,
        artifact: &StoredArtifact,
        range: Range<u64>,
    ) -> Result<Chunks, ServiceError> {
        let name = BlobName { organization, digest: artifact.digest, upload: artifact.upload };
        Ok(self.artifacts()?.store.read(name, range).await?)
    }

    /// Leaves payloads that are too large for the log with the artifact store, when nothing refuses the batch as it
    /// stands: neither the state nor an id that is there already. The commit decides again, and compares.
    pub(super) async fn leave_payloads(
        &self,
        call: &Call,
        order: &Order<'_>,
        command: &Command,
        events: &[HarnessEvent],
    ) -> Result<(), super::Failed> {
        use super::Failed::{DuplicateEvent, Error};
        let spilled: Vec<_> = events.iter().filter_map(|event| event.spilled.as_ref()).collect();
        if spilled.is_empty() {
            return Ok(());
        }
        let aggregate = self.load(order).await.map_err(Error)?;
        self.decide(order, &aggregate, command.clone()).map_err(|refusal| Error(refusal.into()))?;
        let ids: Vec<_> = events.iter().map(|event| event.event_id).collect();
        let known = self.store.events_by_id(order.organization, order.task, &ids).await;
        if !known.map_err(|fault| Error(fault.into()))?.is_empty() {
            return Err(DuplicateEvent);
        }
        for whole in spilled {
            self.leave(&call.caller, whole.digest, &whole.text).await.map_err(Error)?;
        }
        Ok(())
    }

    async fn leave(&self, caller: &Caller, digest: Digest, text: &str) -> Result<(), ServiceError> {
        let artifacts = self.artifacts()?;
        let sender = caller.sender();
        if self.store.keep_artifact(caller.organization, digest, &sender).await?.is_some() {
            return Ok(());
        }
        let upload = Upload { organization: caller.organization, digest, id: Clock::new_id() };
        self.store.begin_upload(upload, artifacts.grace).await?;
        let mut writer = artifacts.store.writer(blob(upload));
        artifacts.in_time(writer.write(Bytes::copy_from_slice(text.as_bytes()))).await??;
        let received = Received { size: text.len() as u64, media_type: PAYLOAD_MEDIA_TYPE, sender: &sender };
        self.finish_upload(artifacts, upload, writer, received).await.map(drop)
    }

    /// Removes artifacts that no log refers to and nobody sent for `grace`, and bytes that are nobody's; at most `batch`
    /// of each. Any number of processes may do so side by side.
    pub async fn sweep_artifacts(&self, grace: Duration, batch: u32) -> Result<ArtifactsSwept, ServiceError> {
        let mut swept = ArtifactsSwept::default();
        let Some(artifacts) = &self.artifacts else { return Ok(swept) };
        let limit = i64::from(batch);
        let due = self.store.unreferenced_artifacts(grace, limit).await?;
        for (organization, digest) in &due {
            swept.removed += u64::from(self.store.remove_artifact(*organization, *digest, grace).await?);
        }
        let abandoned = self.store.abandoned_uploads(limit).await?;
        for upload in &abandoned {
            match artifacts.store.remove(blob(*upload)).await {
                Ok(()) => {
                    self.store.forget_upload(*upload).await?;
                    swept.cleared += 1;
                }
                Err(fault) => {
                    tracing::warn!(%fault, "bytes that nobody refers to could not be removed; they are tried again");
                    self.store.postpone_removal(*upload, REMOVAL_PAUSE).await?;
                    swept.failed += 1;
                }
            }
        }
        swept.more = [due.len(), abandoned.len()].iter().any(|found| *found as u64 >= u64::from(batch));
        Ok(swept)
    }
}

/// Reads a body to its end within its time, and refuses one that is not what it is called. Answers its size.
async fn verify<E>(
    artifacts: &Artifacts,
    writer: Option<&mut Box<dyn BlobWriter>>,
    digest: Digest,
    body: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
) -> Result<u64, ServiceError> {
    let mut intake = Intake { writer, size_max: artifacts.size_max };
    let (size, found) = artifacts.in_time(intake.take(body)).await??;
    if found == digest { Ok(size) } else { Err(Refusal::ArtifactMismatch(found).into()) }
}
