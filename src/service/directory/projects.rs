//! Projects.

use super::Editor;
use crate::directory::records::{Key, Naming, Project};
use crate::domain::ids::ProjectId;
use crate::service::{Service, ServiceError};
use crate::store::Put;

impl Service {
    /// Makes a project, or changes it.
    pub async fn put_project(&self, editor: &Editor, key: &Key, draft: &Naming) -> Result<Put<Project>, ServiceError> {
        Ok(self.store.put_project(self.edit(editor), key, draft).await?)
    }

    /// Removes a project. Tasks keep its id and slug.
    pub async fn delete_project(&self, editor: &Editor, id: ProjectId) -> Result<(), ServiceError> {
        Ok(self.store.delete_project(self.edit(editor), id).await?)
    }
}
