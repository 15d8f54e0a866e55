//! Projects.

use super::edit::{Edit, EditError, Put, new_name};
use crate::directory::records::{Action, Key, Naming, Project};
use crate::domain::ids::ProjectId;
use crate::store::Store;

impl Store {
    /// Makes a project, or changes it.
    pub async fn put_project(&self, edit: Edit, key: &Key, draft: &Naming) -> Result<Put<Project>, EditError> {
        let mut editing = self.edit(edit).await?;
        let before = editing.find::<Project>(key).await?;
        let mut after = match &before {
            Some(before) => before.clone(),
            None => Project {
                id: ProjectId(editing.new_id()),
                slug: new_name::<Project>(key)?,
                name: String::new(),
                external_ref: None,
                created_at: editing.at,
                updated_at: editing.at,
            },
        };
        after.name.clone_from(&draft.name);
        after.external_ref.clone_from(&draft.external_ref);
        if before.as_ref() == Some(&after) {
            return Ok(Put { record: after, created: false });
        }
        after.updated_at = editing.at;
        let query = sqlx::query(
            "INSERT INTO agent_directory.projects
                (organization_id, id, slug, name, external_ref, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $6)
             ON CONFLICT (organization_id, id) DO UPDATE SET name = excluded.name,
                external_ref = excluded.external_ref, updated_at = excluded.updated_at",
        )
        .bind(editing.organization())
        .bind(after.id.0)
        .bind(after.slug.clone())
        .bind(after.name.clone())
        .bind(after.external_ref.clone())
        .bind(editing.instant());
        editing.run(query).await?;
        let action = if before.is_some() { Action::Updated } else { Action::Created };
        editing.audit(action, before.as_ref(), Some(&after)).await?;
        editing.commit().await?;
        Ok(Put { record: after, created: before.is_none() })
    }

    /// Removes a project. Tasks keep its id and slug.
    pub async fn delete_project(&self, edit: Edit, id: ProjectId) -> Result<(), EditError> {
        let mut editing = self.edit(edit).await?;
        let before: Project = editing.existing(&Key::Id(id.0)).await?;
        let query = sqlx::query(
            "UPDATE agent_directory.projects SET deleted_at = $3, updated_at = $3
             WHERE organization_id = $1 AND id = $2",
        )
        .bind(editing.organization())
        .bind(id.0)
        .bind(editing.instant());
        editing.run(query).await?;
        editing.audit(Action::Deleted, Some(&before), None).await?;
        editing.commit().await
    }
}
