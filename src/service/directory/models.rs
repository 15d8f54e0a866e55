//! Models and their prices.

use super::Editor;
use crate::directory::records::{Key, Model, ModelDraft};
use crate::domain::ids::ModelId;
use crate::service::{Service, ServiceError};
use crate::store::Put;

impl Service {
    /// Makes a model, or changes it.
    pub async fn put_model(&self, editor: &Editor, key: &Key, draft: &ModelDraft) -> Result<Put<Model>, ServiceError> {
        Ok(self.store.put_model(self.edit(editor), key, draft).await?)
    }

    /// Removes a model and frees its names.
    pub async fn delete_model(&self, editor: &Editor, id: ModelId) -> Result<(), ServiceError> {
        Ok(self.store.delete_model(self.edit(editor), id).await?)
    }
}
