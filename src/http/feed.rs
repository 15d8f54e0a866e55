//! The organization's feed.

use std::time::Duration;

use axum::extract::State;
use http::header::VARY;
use http::{HeaderMap, HeaderValue};

use super::App;
use super::auth::Authenticated;
use super::cursor;
use super::events::EVENTS_DEFAULT;
use super::feed_stream;
use super::query::Query;
use super::respond::{Answer, page};
use super::stream;
use super::views::{FeedEntryView, FeedTaskView};
use super::waiting::{self, Wait};
use crate::domain::feed::{FeedCursor, FeedEntry, FeedPosition, FeedScope, FeedStart};
use crate::domain::ids::{OrganizationId, TaskId};
use crate::domain::refusal::Refusal;
use crate::service::Caller;

/// What `after` says to begin at what comes from now on.
const NOW: &str = "now";

/// What cursors are bound to: the organization and the tasks that the caller may read, which all its people share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding(String);

impl Binding {
    /// That of a caller.
    pub fn of(caller: &Caller) -> Result<Self, Refusal> {
        Ok(Self::new(caller.organization, &caller.feed_scope()?))
    }

    fn new(organization: OrganizationId, scope: &FeedScope) -> Self {
        let scope = match scope {
            FeedScope::All => "all".to_owned(),
            FeedScope::Agent { account, .. } => format!("agent {account}"),
            FeedScope::CreatedBy(account) => format!("trigger {account}"),
        };
        Self(format!("feed of {organization}: {scope}"))
    }

    /// Writes a cursor.
    pub fn write(&self, cursor: &FeedCursor) -> String {
        let FeedCursor { home, archives, position: FeedPosition { tx, task, seq } } = cursor;
        cursor::write_name(&format!("{home:x}.{archives:x}.{tx:x}.{}.{seq:x}", task.0.simple()), &self.0)
    }

    fn read(&self, cursor: &str) -> Result<FeedCursor, Refusal> {
        let name = cursor::read_name(cursor, &self.0)?;
        let read = || {
            let mut parts = name.split('.');
            let cursor = FeedCursor {
                home: u64::from_str_radix(parts.next()?, 16).ok()?,
                archives: i64::from_str_radix(parts.next()?, 16).ok()?,
                position: FeedPosition {
                    tx: u64::from_str_radix(parts.next()?, 16).ok()?,
                    task: parts.next()?.parse::<TaskId>().ok()?,
                    seq: i64::from_str_radix(parts.next()?, 16).ok()?,
                },
            };
            parts.next().is_none().then_some(cursor)
        };
        read().ok_or(Refusal::InvalidCursor)
    }

    /// Reads where a follower begins.
    pub fn start(&self, after: Option<&str>) -> Result<FeedStart, Refusal> {
        match after {
            None => Ok(FeedStart::Oldest),
            Some(NOW) => Ok(FeedStart::Now),
            Some(cursor) => self.read(cursor).map(FeedStart::After),
        }
    }

    /// An entry as it is answered.
    pub fn view(&self, entry: &FeedEntry) -> FeedEntryView {
        FeedEntryView {
            cursor: self.write(&entry.cursor),
            task: FeedTaskView::from(&entry.task),
            event: (&entry.event).into(),
        }
    }
}

/// Follow the organization's events.
///
/// The events of all tasks that the caller may read: an agent's account, those of its own agent's tasks and of what
/// these delegated; a trigger, those of the tasks that it created. Each comes once; those of one task in the order of
/// its log. Without `after` it begins at the oldest event that is still there, with `after=now` at what is committed
/// from now on.
///
/// The feed never ends: the Link header always leads on, also behind an empty page, which may come before the end where
/// many events of others were passed over. Each entry has a `cursor` too, so that a follower can note how far it is
/// after each one. An event shows when every older write of the database has ended, so a transaction that is held open
/// holds the feed up; nothing is lost. Events leave the feed when their task is archived: a follower who had not read
/// them, and only such a one, is told 410 `cursor_expired` and begins again without a cursor; the logs tell the rest.
///
/// With `wait` the answer is held until there is an event or the time is up (then it is empty). As `text/event-stream`
/// the feed is followed for as long as the token is valid: `id` is the cursor, `event` the type, `data` the entry.
#[utoipa::path(get, path = "/organizations/{org}/agent-events", operation_id = "follow_events", tag = "events",
    params(("org" = String, Path, description = "The organization's slug"),
        ("after" = Option<String>, Query, description = "Strictly after this cursor, or `now`"),
        ("limit" = Option<u32>, Query, description = "1 to 1000, default 100"),
        ("wait" = Option<u32>, Query, minimum = 0, maximum = 55,
            description = "Hold the answer for up to so many seconds, until there is an event"),
        ("Prefer" = Option<String>, Header, description = "`wait=20` asks for the same, at most for 55 seconds"),
        ("Last-Event-ID" = Option<String>, Header,
            description = "Of a stream: strictly after this cursor, whatever after says")),
    responses((status = 200, description = "Events; the Link header always leads on",
        content((Vec<FeedEntryView> = "application/json"), (String = "text/event-stream")))))]
pub async fn follow(State(app): State<App>, auth: Authenticated, headers: HeaderMap, query: Query) -> Answer {
    let binding = Binding::of(&auth.caller)?;
    let mut parameters = query.parameters();
    let limit = parameters.limit(EVENTS_DEFAULT, app.settings().events_page_max);
    let wait = waiting::asked(&query, &headers).unwrap_or_else(|detail| {
        parameters.fault("wait", detail);
        None
    });
    parameters.finish(())?;
    let after = query.values("after").next();
    if stream::is_wanted(&headers) {
        let last = headers.get("last-event-id").filter(|value| !value.is_empty());
        let start = match last {
            Some(value) => binding.start(Some(value.to_str().map_err(|_| Refusal::InvalidCursor)?.trim()))?,
            None => binding.start(after)?,
        };
        return Box::pin(feed_stream::follow(app, auth, binding, start, limit)).await;
    }
    let start = binding.start(after)?;
    let found = match wait {
        Some(wait) => {
            let wait = Duration::from_secs(wait.seconds);
            let found = app.service().await_feed(&auth.caller, start, limit, wait).await?;
            Box::pin(auth.still_follows(&app)).await?;
            found
        }
        None => Box::pin(app.service().feed(&auth.caller, start, limit)).await?,
    };
    let next = query.with(&[("after", binding.write(&found.next))]);
    let views: Vec<_> = found.entries.iter().map(|entry| binding.view(entry)).collect();
    let mut response = page(&app, &views, Some(&next))?;
    if let Some(Wait { seconds, preferred: true }) = wait
        && let Ok(applied) = HeaderValue::from_str(&format!("wait={seconds}"))
    {
        response.headers_mut().insert("preference-applied", applied);
    }
    response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::domain::ids::{AccountId, AgentId};

    fn binding(organization: u128, scope: &FeedScope) -> Binding {
        Binding::new(OrganizationId(Uuid::from_u128(organization)), scope)
    }

    proptest! {
        #[test]
        fn a_cursor_goes_round_and_belongs_to_its_organization_and_scope(
            home: u64, archives in 0..i64::MAX, tx: u64, task: u128, seq in 0..=i64::MAX,
        ) {
            let position = FeedPosition { tx, task: TaskId(Uuid::from_u128(task)), seq };
            let cursor = FeedCursor { home, archives, position };
            let (account, agent) = (AccountId(Uuid::from_u128(2)), AgentId(Uuid::from_u128(3)));
            let scopes = [FeedScope::All, FeedScope::Agent { account, agent }, FeedScope::CreatedBy(account)];
            let text = binding(1, &scopes[0]).write(&cursor);
            prop_assert_eq!(binding(1, &scopes[0]).read(&text), Ok(cursor));
            prop_assert!(binding(2, &scopes[0]).read(&text).is_err());
            prop_assert!(binding(1, &scopes[1]).read(&text).is_err());
            prop_assert!(binding(1, &scopes[2]).read(&text).is_err());
        }

        #[test]
        fn anything_else_is_refused(text in ".*", byte: usize) {
            let binding = binding(1, &FeedScope::All);
            prop_assert!(text == NOW || binding.start(Some(&text)).is_err());
            let cursor = FeedCursor { home: 1, archives: 2, position: FeedPosition::START };
            let mut cursor = binding.write(&cursor).into_bytes();
            let byte = byte % cursor.len();
            cursor[byte] = if cursor[byte] == b'A' { b'B' } else { b'A' };
            prop_assert!(binding.start(Some(std::str::from_utf8(&cursor).unwrap())).is_err());
        }
    }
}
