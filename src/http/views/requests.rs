//! Requests as answers.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{TaskState, TaskView, raw};
use crate::domain::request::{Artifact, Request, Resolution};

/// Something the person decides on.
#[derive(Debug, Serialize, ToSchema)]
pub struct ArtifactView {
    /// `sha256:` and 64 lower-case hexadecimal digits.
    pub digest: String,
    /// What it is called.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Its size in bytes.
    pub size: i64,
    /// The first lines, redacted.
    #[schema(required)]
    pub preview: Option<String>,
}

impl From<&Artifact> for ArtifactView {
    fn from(artifact: &Artifact) -> Self {
        Self {
            digest: artifact.digest.to_string(),
            name: artifact.name.clone(),
            media_type: artifact.media_type.clone(),
            size: artifact.size,
            preview: artifact.preview.clone(),
        }
    }
}

/// How a person resolved a request.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResolutionView {
    /// A free answer.
    #[schema(required)]
    pub answer: Option<String>,
    /// The option chosen.
    #[schema(required)]
    pub choice: Option<String>,
    /// Conditions.
    #[schema(required, value_type = Option<serde_json::Value>)]
    pub constraints: Option<Box<RawValue>>,
    /// What it binds to: the request's digests.
    pub artifact_digests: Vec<String>,
    /// The way it came.
    #[schema(required)]
    pub channel: Option<String>,
}

impl From<&Resolution> for ResolutionView {
    fn from(resolution: &Resolution) -> Self {
        Self {
            answer: resolution.answer.clone(),
            choice: resolution.choice.clone(),
            constraints: resolution.constraints.as_ref().and_then(|text| raw(text.as_str())),
            artifact_digests: resolution.artifact_digests.iter().map(ToString::to_string).collect(),
            channel: resolution.channel.map(|channel| channel.to_string()),
        }
    }
}

/// A question to a person.
#[derive(Debug, Serialize, ToSchema)]
pub struct RequestView {
    /// The request.
    pub id: Uuid,
    /// The session that asked.
    #[schema(required)]
    pub session_id: Option<Uuid>,
    /// A decision, or a permitted effect.
    pub kind: String,
    /// Where it stands. Shown as expired from that moment on.
    pub status: String,
    /// The question.
    pub title: String,
    /// Why it is asked.
    #[schema(required)]
    pub why: Option<String>,
    /// The answers to choose from; empty: a free answer.
    pub options: Vec<String>,
    /// What the person decides on.
    pub artifacts: Vec<ArtifactView>,
    /// What an approval binds to.
    pub artifact_digests: Vec<String>,
    /// When it expires.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// When it opened.
    #[schema(format = DateTime)]
    pub opened_at: String,
    /// The harness's key for it.
    #[schema(required)]
    pub request_key: Option<String>,
    /// The person who settled it.
    #[schema(required)]
    pub resolved_by: Option<String>,
    /// When it was settled.
    #[schema(required, format = DateTime)]
    pub resolved_at: Option<String>,
    /// What the person said.
    #[schema(required)]
    pub resolution: Option<ResolutionView>,
    /// The request that took its place.
    #[schema(required)]
    pub superseded_by: Option<Uuid>,
}

impl From<&Request> for RequestView {
    fn from(request: &Request) -> Self {
        Self {
            id: request.id.0,
            session_id: request.session_id.map(|id| id.0),
            kind: request.kind.to_string(),
            status: request.status.to_string(),
            title: request.title.clone(),
            why: request.why.clone(),
            options: request.options.clone(),
            artifacts: request.artifacts.iter().map(ArtifactView::from).collect(),
            artifact_digests: request.artifact_digests.iter().map(ToString::to_string).collect(),
            expires_at: request.expires_at.to_string(),
            opened_at: request.opened_at.to_string(),
            request_key: request.request_key.clone(),
            resolved_by: request.resolved_by.clone(),
            resolved_at: request.resolved_at.map(|at| at.to_string()),
            resolution: request.resolution.as_ref().map(ResolutionView::from),
            superseded_by: request.superseded_by.map(|id| id.0),
        }
    }
}

/// An opened request and the state of its task.
#[derive(Debug, Serialize, ToSchema)]
pub struct RequestAnswer {
    /// The request.
    pub request: RequestView,
    /// The task's state.
    pub task: TaskState,
}

/// A resolved request and its task.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResolveAnswer {
    /// The request.
    pub request: RequestView,
    /// The whole task.
    pub task: TaskView,
}

/// A request of the inbox with its task.
#[derive(Debug, Serialize, ToSchema)]
pub struct InboxView {
    /// The request.
    #[serde(flatten)]
    pub request: RequestView,
    /// Its task.
    pub task: TaskView,
}
