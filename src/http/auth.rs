//! Who calls: the bearer token, the organization of the route, and what the directory says of both.

use axum::extract::{FromRequestParts, RawPathParams};
use http::header::AUTHORIZATION;
use http::request::Parts;

use super::App;
use super::problem::Problem;
use crate::auth::TokenError;
use crate::directory::{AccountKind, Directory};
use crate::domain::principal::Identity;
use crate::domain::refusal::Refusal;
use crate::domain::time::Timestamp;
use crate::service::caller::Located;
use crate::service::{Caller, Principal, ServiceError};

/// The caller of a route under `/organizations/{org}`, with the parameters of its path.
pub struct Authenticated {
    /// Who calls.
    pub caller: Caller,
    identity: Identity,
    params: Vec<(String, String)>,
}

impl Authenticated {
    /// A parameter of the path; empty when the route has none of that name.
    pub fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }

    /// When the token ends.
    pub fn expires_at(&self) -> Timestamp {
        match &self.identity {
            Identity::Person { expires_at, .. } | Identity::Service { expires_at, .. } => *expires_at,
        }
    }

    /// Whether the caller may read the task still. Roles, memberships and credentials may have gone while a read waited.
    pub async fn still_reads(&self, app: &App, located: &Located) -> Result<(), Problem> {
        let caller = resolve(self.identity.clone(), self.param("org").to_owned(), app.directory());
        let caller = Box::pin(caller).await?;
        Ok(caller.may_read(&located.task)?)
    }

    /// Whether the caller may follow the same feed still.
    pub async fn still_follows(&self, app: &App) -> Result<(), Problem> {
        let caller = resolve(self.identity.clone(), self.param("org").to_owned(), app.directory());
        let caller = Box::pin(caller).await?;
        caller.feed_scope()?;
        Ok(())
    }
}

impl FromRequestParts<App> for Authenticated {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        // Boxed, so that a request that waits does not keep room for what it did before.
        let identity = Box::pin(identity(parts, app)).await?;
        let Ok(raw) = RawPathParams::from_request_parts(parts, app).await else {
            return Err(Problem::no_route());
        };
        let params: Vec<_> = raw.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let slug = params.iter().find(|(key, _)| key == "org").map(|(_, value)| value.clone()).unwrap_or_default();
        // Postgres takes no text with U+0000, and nothing has it in its name.
        if slug.contains('\0') {
            return Err(Refusal::OrganizationForbidden.into());
        }
        let caller = Box::pin(resolve(identity.clone(), slug, app.directory())).await?;
        if params.iter().any(|(_, value)| value.contains('\0')) {
            return Err(Problem::no_route());
        }
        Ok(Self { caller, identity, params })
    }
}

async fn identity(parts: &Parts, app: &App) -> Result<Identity, Problem> {
    let refused = |detail: &str| Problem::from(Refusal::Unauthenticated(detail.to_owned()));
    let mut headers = parts.headers.get_all(AUTHORIZATION).iter();
    let header = headers.next().ok_or_else(|| refused("a bearer token is required"))?;
    // A proxy before us may have looked at the other one.
    if headers.next().is_some() {
        return Err(refused("there is more than one Authorization header"));
    }
    let header = header.to_str().map_err(|_| refused("the Authorization header is not text"))?;
    let (scheme, token) = header.split_once(' ').ok_or_else(|| refused("a bearer token is required"))?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refused("a bearer token is required"));
    }
    let now = app.service().clock().now();
    app.verifier().verify(token.trim(), now).await.map_err(|fault| match &fault {
        TokenError::Refused { .. } => {
            let mut problem = refused(&fault.to_string());
            problem.log = Some(fault.detail().to_owned());
            problem
        }
        TokenError::Unavailable { retry_after, .. } => {
            let mut problem = Problem::unavailable(fault.detail());
            problem.retry_after = Some(retry_after.as_secs().max(1));
            problem
        }
    })
}

/// Resolves an identity in the organization of the route. An unknown and a foreign organization answer alike.
async fn resolve(identity: Identity, slug: String, directory: &dyn Directory) -> Result<Caller, Problem> {
    let found = directory.organization(slug).await.map_err(ServiceError::from)?;
    let principal = match identity {
        Identity::Person { id, mapped_roles, channel, .. } => {
            let organization = found.ok_or(Refusal::OrganizationForbidden)?;
            let roles = directory.member(organization, id.clone()).await.map_err(ServiceError::from)?;
            let mut roles = roles.ok_or(Refusal::OrganizationForbidden)?;
            roles.extend(mapped_roles);
            Principal::Person { id, roles, channel }
        }
        Identity::Service { organization_id, account_id, credential_id, .. } => {
            let kind = directory.account(organization_id, account_id, credential_id).await;
            let kind = kind.map_err(ServiceError::from)?;
            let kind = kind.ok_or_else(|| Refusal::Unauthenticated("the credential was revoked".to_owned()))?;
            if found != Some(organization_id) {
                return Err(Refusal::OrganizationForbidden.into());
            }
            match kind {
                AccountKind::Agent(agent) => Principal::Agent { account: account_id, agent },
                AccountKind::Trigger => Principal::Trigger { account: account_id },
            }
        }
    };
    let organization = found.ok_or(Refusal::OrganizationForbidden)?;
    Ok(Caller { organization, principal })
}
