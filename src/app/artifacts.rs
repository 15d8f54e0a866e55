//! The artifact store, put together by the settings.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::artifacts::ArtifactStoreError;
use crate::artifacts::objects::{BucketAccess, ObjectArtifacts};
use crate::config::ArtifactSettings;
use crate::service::artifacts::Artifacts;

/// Opens the store, if one is set.
pub(super) fn open(settings: &ArtifactSettings) -> Result<Option<Artifacts>, ArtifactStoreError> {
    let Some(url) = &settings.store_url else { return Ok(None) };
    let keys = settings.s3_access_key_id.as_ref().zip(settings.s3_secret_access_key.as_ref());
    let access = BucketAccess {
        endpoint: settings.s3_endpoint.clone(),
        region: settings.s3_region.clone(),
        keys: keys.map(|(id, key)| (id.expose().to_owned(), key.expose().to_owned())),
        virtual_hosted: settings.s3_virtual_hosted,
    };
    Ok(Some(Artifacts {
        store: Arc::new(ObjectArtifacts::open(url.expose(), &access)?),
        places: Arc::new(Semaphore::new(settings.uploads_max)),
        size_max: settings.size_bytes_max,
        upload_timeout: Duration::from_secs(settings.upload_timeout_seconds),
        grace: Duration::from_secs(settings.grace_seconds),
    }))
}
