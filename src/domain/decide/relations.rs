//! Dependencies and associated projects. They gate nothing: no status follows from them, and they may change as long as
//! there is a log to write them to.

use super::Life;
use crate::domain::aggregate::Aggregate;
use crate::domain::change::{Context, Decision, Draft};
use crate::domain::ids::{OperationId, ProjectId};
use crate::domain::payload::{self, Payload, Project};
use crate::domain::refusal::{Fault, Refusal};
use crate::domain::relation::{Dependency, DependencyChange, Edit};

/// Associates a project; one that is associated already writes nothing.
pub(super) fn associate(
    base: &Aggregate,
    project: ProjectId,
    slug: String,
    found: Option<&Project>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    if base.task().pinned().project_id == Some(project) {
        return Err(Refusal::PrimaryProject);
    }
    if found.is_some() {
        return Ok(Decision::Unchanged);
    }
    let row = Project {
        project_id: project,
        project_slug: slug,
        added_by_kind: context.actor.kind.as_str().to_owned(),
        added_by: context.actor.id.clone(),
        added_at: context.now,
    };
    let mut draft = Draft::of(base, context);
    draft.project(Edit::Add(row))?;
    Ok(draft.finish())
}

/// Takes an association back; its event keeps the whole row. Without a row nothing is written.
pub(super) fn dissociate(
    base: &Aggregate,
    found: Option<Project>,
    context: &mut Context<'_>,
) -> Result<Decision, Refusal> {
    let Some(row) = found else { return Ok(Decision::Unchanged) };
    let mut draft = Draft::of(base, context);
    draft.project(Edit::Remove(row))?;
    Ok(draft.finish())
}

/// Decides that `dependent` requires `prerequisite` from now on, or, unless it is `wanted`, no longer does. `found` is
/// the row, read after both tasks: each change of it is in the log of one of the two at least, so comparing their
/// `last_seq` finds out whether it is still so. Absent when the row is there, or gone, already.
pub fn dependency(
    dependent: &Aggregate,
    prerequisite: &Aggregate,
    wanted: bool,
    found: Option<Dependency>,
    context: &mut Context<'_>,
) -> Result<Option<DependencyChange>, Refusal> {
    if !writable(dependent) && !writable(prerequisite) {
        return Err(Refusal::TaskArchived);
    }
    let (from, to) = (dependent.task().pinned(), prerequisite.task().pinned());
    if wanted && from.id == to.id {
        return Err(Refusal::Invalid(vec![Fault::path("other", "is the task itself, and no task requires itself")]));
    }
    let edit = match (wanted, found) {
        (true, Some(_)) | (false, None) => return Ok(None),
        (false, Some(row)) => Edit::Remove(row),
        (true, None) => Edit::Add(Dependency {
            dependent: from.id,
            prerequisite: to.id,
            created_by_kind: context.actor.kind.as_str().to_owned(),
            created_by: context.actor.id.clone(),
            created_at: context.now,
        }),
    };
    let row = edit.row();
    let mut written = payload::Dependency {
        operation_id: OperationId((context.new_id)()),
        side: String::new(),
        dependent_task_id: row.dependent,
        dependent_short_id: from.short_id.to_string(),
        prerequisite_task_id: row.prerequisite,
        prerequisite_short_id: to.short_id.to_string(),
        created_by_kind: row.created_by_kind.clone(),
        created_by: row.created_by.clone(),
        created_at: row.created_at,
    };
    let mut changes = Vec::with_capacity(2);
    for (base, side) in [(dependent, "dependent"), (prerequisite, "prerequisite")] {
        if !writable(base) {
            continue;
        }
        side.clone_into(&mut written.side);
        let payload = Box::new(written.clone());
        let payload = if wanted { Payload::DependencyAdded(payload) } else { Payload::DependencyRemoved(payload) };
        let mut draft = Draft::of(base, context);
        draft.write(&payload, None)?;
        if let Decision::Change(change) = draft.finish() {
            changes.push(*change);
        }
    }
    Ok(Some(DependencyChange { organization: from.organization_id, edit, changes }))
}

/// Whether the task's log takes events still.
fn writable(base: &Aggregate) -> bool {
    match base.life() {
        Life::Open | Life::Cancelling | Life::Closed => true,
        Life::Archived => false,
    }
}
