//! The organization's feed as server-sent events.

use axum::body::Bytes;
use axum::response::Response;
use tokio::time::{Instant, Interval};

use super::App;
use super::auth::Authenticated;
use super::feed::Binding;
use super::problem::Problem;
use super::stream::{CHUNK, COMMENT, beat, expiry, push_event, respond};
use super::views::json_text;
use crate::domain::feed::{FeedCursor, FeedPage, FeedStart};
use crate::service::feed::FollowingFeed;

/// A follower.
struct Follower {
    app: App,
    auth: Authenticated,
    binding: Binding,
    following: FollowingFeed,
    /// Behind what was sent and passed over.
    at: FeedCursor,
    expires: Instant,
    beat: Interval,
}

/// Streams the feed from `start` on. The first look comes before the answer, so that a refusal has its status.
pub async fn follow(
    app: App,
    auth: Authenticated,
    binding: Binding,
    start: FeedStart,
    limit: u32,
) -> Result<Response, Problem> {
    let mut following = app.service().follow_feed(&auth.caller, start, limit.min(CHUNK))?;
    let first = app.service().next_of_feed(&mut following).await?;
    let at = first.next;
    let mut begin = place(&binding, &at, first.entries.is_empty());
    begin.extend_from_slice(&chunk(&binding, &first)?);
    let (expires, beat) = (expiry(&app, &auth), beat(&app));
    let follower = Follower { app, auth, binding, following, at, expires, beat };
    Ok(respond(begin.into(), follower, Follower::next))
}

impl Follower {
    /// The next chunk, as soon as there is one; none when the token, the permission or the process ends.
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Problem> {
        loop {
            let news = tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.expires) => false,
                _ = self.beat.tick() => {
                    if !self.may_still_read().await {
                        return Ok(None);
                    }
                    let text = place(&self.binding, &self.at, true);
                    return Ok(Some((text.into(), self)));
                }
                news = self.app.service().news_of_feed(&mut self.following) => news,
            };
            if !news {
                return Ok(None);
            }
            let page = self.app.service().next_of_feed(&mut self.following).await?;
            self.at = page.next;
            if !page.entries.is_empty() {
                if !self.may_still_read().await {
                    return Ok(None);
                }
                let text = chunk(&self.binding, &page)?;
                return Ok(Some((text.into(), self)));
            }
        }
    }

    /// A directory that is away takes nothing from anybody.
    async fn may_still_read(&self) -> bool {
        let still = self.auth.still_follows(&self.app).await;
        still.map_or_else(|problem| problem.status.is_server_error(), |()| true)
    }
}

/// A comment, and where the reader is when nothing follows: an id without data moves a reader on and shows it nothing.
fn place(binding: &Binding, at: &FeedCursor, told: bool) -> Vec<u8> {
    if told { format!(":\nid: {}\n\n", binding.write(at)).into_bytes() } else { COMMENT.to_vec() }
}

fn chunk(binding: &Binding, page: &FeedPage) -> Result<Vec<u8>, Problem> {
    let mut text = Vec::new();
    for entry in &page.entries {
        let view = binding.view(entry);
        push_event(&mut text, &view.cursor, &entry.event.event_type, &json_text(&view)?);
    }
    Ok(text)
}
