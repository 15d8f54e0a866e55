//! Credentials of agents and triggers: listed, rotated, revoked.

use axum::extract::State;
use http::StatusCode;

use super::views::{CredentialView, IssuedCredential};
use super::{gone, unkept};
use crate::directory::records::{AgentRecord, Trigger};
use crate::domain::ids::AccountId;
use crate::domain::refusal::Refusal;
use crate::http::App;
use crate::http::auth::Authenticated;
use crate::http::body::{RawBody, path_id};
use crate::http::respond::{Answer, json, ok};
use crate::service::directory::Editor;

async fn listed(app: &App, auth: &Authenticated, account: AccountId) -> Answer {
    let credentials = app.service().credentials(auth.caller.organization, account).await?;
    ok(&credentials.iter().map(CredentialView::from).collect::<Vec<_>>())
}

async fn rotated(app: &App, editor: &Editor, account: AccountId, body: &RawBody) -> Answer {
    body.optional(&[])?;
    let issued = app.service().issue_credential(editor, account).await?;
    unkept(json(StatusCode::CREATED, &IssuedCredential::from(&issued)))
}

async fn revoked(app: &App, auth: &Authenticated, editor: &Editor, account: AccountId) -> Answer {
    let client = path_id(auth.param("client_id"), Refusal::NotFound("credential"))?;
    app.service().revoke_credential(editor, account, client).await?;
    Ok(gone())
}

/// List an agent's credentials.
#[utoipa::path(get, path = "/organizations/{org}/agents/{agent}/credentials",
    operation_id = "list_agent_credentials", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("agent" = String, Path, description = "The agent's slug or id")),
    responses((status = 200, description = "The credentials, oldest first, without secrets",
        body = Vec<CredentialView>)))]
pub async fn of_agent(State(app): State<App>, auth: Authenticated) -> Answer {
    let agent: AgentRecord = app.service().record(&auth.caller, auth.param("agent")).await?;
    listed(&app, &auth, agent.service_account_id).await
}

/// Give an agent another credential.
///
/// The secret is shown in this answer and never again. The other credentials stay valid until they are revoked.
#[utoipa::path(post, path = "/organizations/{org}/agents/{agent}/credentials",
    operation_id = "rotate_agent_credential", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("agent" = String, Path, description = "The agent's slug or id")),
    responses((status = 201, description = "A new credential with its secret", body = IssuedCredential)))]
pub async fn rotate_of_agent(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let (agent, editor) = app.service().record_to_change::<AgentRecord>(&auth.caller, auth.param("agent")).await?;
    rotated(&app, &editor, agent.service_account_id, &body).await
}

/// Revoke an agent's credential.
///
/// Its tokens end within 10 s everywhere. Revoking it again is fine.
#[utoipa::path(delete, path = "/organizations/{org}/agents/{agent}/credentials/{client_id}",
    operation_id = "revoke_agent_credential", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("agent" = String, Path, description = "The agent's slug or id"),
        ("client_id" = uuid::Uuid, Path, description = "The credential")),
    responses((status = 204, description = "The credential is revoked")))]
pub async fn revoke_of_agent(State(app): State<App>, auth: Authenticated) -> Answer {
    let (agent, editor) = app.service().record_to_change::<AgentRecord>(&auth.caller, auth.param("agent")).await?;
    revoked(&app, &auth, &editor, agent.service_account_id).await
}

/// List a trigger's credentials.
#[utoipa::path(get, path = "/organizations/{org}/triggers/{trigger}/credentials",
    operation_id = "list_trigger_credentials", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("trigger" = String, Path, description = "The trigger's slug or id")),
    responses((status = 200, description = "The credentials, oldest first, without secrets",
        body = Vec<CredentialView>)))]
pub async fn of_trigger(State(app): State<App>, auth: Authenticated) -> Answer {
    let trigger: Trigger = app.service().record(&auth.caller, auth.param("trigger")).await?;
    listed(&app, &auth, trigger.id).await
}

/// Give a trigger another credential.
///
/// The secret is shown in this answer and never again. The other credentials stay valid until they are revoked.
#[utoipa::path(post, path = "/organizations/{org}/triggers/{trigger}/credentials",
    operation_id = "rotate_trigger_credential", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("trigger" = String, Path, description = "The trigger's slug or id")),
    responses((status = 201, description = "A new credential with its secret", body = IssuedCredential)))]
pub async fn rotate_of_trigger(State(app): State<App>, auth: Authenticated, body: RawBody) -> Answer {
    let (trigger, editor) = app.service().record_to_change::<Trigger>(&auth.caller, auth.param("trigger")).await?;
    rotated(&app, &editor, trigger.id, &body).await
}

/// Revoke a trigger's credential.
///
/// Its tokens end within 10 s everywhere. Revoking it again is fine.
#[utoipa::path(delete, path = "/organizations/{org}/triggers/{trigger}/credentials/{client_id}",
    operation_id = "revoke_trigger_credential", tag = "directory",
    params(("org" = String, Path, description = "The organization's slug"),
        ("trigger" = String, Path, description = "The trigger's slug or id"),
        ("client_id" = uuid::Uuid, Path, description = "The credential")),
    responses((status = 204, description = "The credential is revoked")))]
pub async fn revoke_of_trigger(State(app): State<App>, auth: Authenticated) -> Answer {
    let (trigger, editor) = app.service().record_to_change::<Trigger>(&auth.caller, auth.param("trigger")).await?;
    revoked(&app, &auth, &editor, trigger.id).await
}
