//! The audit trail of the directory.

use axum::extract::State;

use super::views::AuditView;
use crate::domain::principal::Permission;
use crate::http::auth::Authenticated;
use crate::http::query::Query;
use crate::http::respond::{Answer, page};
use crate::http::tasks::PAGE_DEFAULT;
use crate::http::{App, cursor};

/// List the changes of the directory.
#[utoipa::path(get, path = "/organizations/{org}/directory-audit", operation_id = "list_directory_audit",
    tag = "directory", params(("org" = String, Path, description = "The organization's slug"),
        ("limit" = Option<u32>, Query, description = "1 to 100, default 50"),
        ("cursor" = Option<String>, Query, description = "Of the link to the next page")),
    responses((status = 200, description = "A page of changes, the newest first; the Link header leads on",
        body = Vec<AuditView>)))]
pub async fn list(State(app): State<App>, auth: Authenticated, query: Query) -> Answer {
    auth.caller.require(Permission::ManageDirectory)?;
    let mut parameters = query.parameters();
    let limit = parameters.limit(PAGE_DEFAULT, app.settings().page_size_max);
    let cursor = parameters.cursor();
    parameters.finish(())?;
    let fingerprint = query.fingerprint();
    let before = cursor.map(|cursor| cursor::read(&cursor, &fingerprint)).transpose()?.map(|(_, id)| id);
    let (entries, more) = app.service().audit_trail(&auth.caller, before, limit).await?;
    let last = entries.last().filter(|_| more);
    let next = last.map(|entry| query.with(&[("cursor", cursor::write(entry.at, entry.id, &fingerprint))]));
    page(&app, &entries.iter().map(AuditView::from).collect::<Vec<_>>(), next.as_deref())
}
