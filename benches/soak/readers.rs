//! Readers that never stop: one follows the organization's feed, others follow logs as streams.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Failure;
use super::client::{Call, Caller};
use super::dice::Dice;
use super::notes::{Notes, id, text};

/// Between two tries to reach a server.
const AGAIN: Duration = Duration::from_millis(200);
/// Within so long a stream says something.
const SILENT: Duration = Duration::from_secs(40);

/// What came along the feed.
#[derive(Default)]
pub struct Followed {
    pub events: HashSet<Uuid>,
    /// Entries that came again.
    pub repeated: usize,
    /// How often the cursor was too old.
    pub expired: usize,
}

/// Follows the feed until it is told to stop and there is nothing more.
pub async fn follow(caller: Arc<Caller>, stop: CancellationToken) -> Result<Followed, Failure> {
    let (mut followed, mut cursor) = (Followed::default(), None::<String>);
    loop {
        let over = stop.is_cancelled();
        let after = cursor.as_ref().map(|cursor| format!("&after={cursor}")).unwrap_or_default();
        let wait = if over { 1 } else { 20 };
        let call = Call::get("feed", format!("/agent-events?limit=200&wait={wait}{after}")).waiting();
        let Some(reply) = caller.may(&call, &["cursor_expired"]).await? else {
            followed.expired += 1;
            cursor = None;
            continue;
        };
        let page = reply.json();
        let entries = page.as_array().map(Vec::as_slice).unwrap_or_default();
        for entry in entries {
            if !followed.events.insert(id(entry, "/event_id")?) {
                followed.repeated += 1;
            }
            cursor = Some(text(entry, "/cursor")?.to_owned());
        }
        if over && entries.is_empty() {
            return Ok(followed);
        }
    }
}

/// What streams brought.
#[derive(Default)]
pub struct Streamed {
    pub logs: usize,
    pub events: usize,
    /// How often a stream broke and was taken up again.
    pub resumed: usize,
}

/// Follows one recent log after the other to its end.
pub async fn stream(
    caller: Arc<Caller>,
    notes: Arc<Notes>,
    mut dice: Dice,
    stop: CancellationToken,
) -> Result<Streamed, Failure> {
    let mut streamed = Streamed::default();
    while !stop.is_cancelled() {
        let Some(task) = dice.pick(&notes.recent()).cloned() else {
            sleep(AGAIN).await;
            continue;
        };
        let mut last = 0;
        while !stop.is_cancelled() {
            let call = Call::get("stream", format!("/agent-tasks/{task}/events"))
                .header("accept", "text/event-stream")
                .header("last-event-id", last.to_string());
            let response = match caller.open(&call).await? {
                Ok(response) if response.status() == StatusCode::NO_CONTENT => break,
                Ok(response) if response.status().is_success() => response,
                Ok(response) if response.status().is_server_error() => {
                    sleep(AGAIN).await;
                    continue;
                }
                Ok(response) => return Err(format!("a stream of {task}: {}", response.status()).into()),
                Err(_) => {
                    sleep(AGAIN).await;
                    continue;
                }
            };
            let begun = last;
            // A break is as good as an end: one comes again and says what one has.
            tokio::select! {
                read = read(response, &task, &mut last) => read?,
                () = stop.cancelled() => {}
            }
            streamed.events += usize::try_from(last - begun)?;
            streamed.resumed += 1;
        }
        streamed.logs += 1;
    }
    Ok(streamed)
}

async fn read(mut response: reqwest::Response, task: &str, last: &mut i64) -> Result<(), Failure> {
    let mut buffer = Vec::new();
    loop {
        match timeout(SILENT, response.chunk()).await {
            Err(_) => return Err(format!("a stream of {task} said nothing for {SILENT:?}").into()),
            Ok(Ok(Some(chunk))) => buffer.extend_from_slice(&chunk),
            Ok(Ok(None) | Err(_)) => return Ok(()),
        }
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let entry: Vec<u8> = buffer.drain(..end + 2).collect();
            let entry = std::str::from_utf8(&entry)?;
            let field = |name: &str| entry.lines().find_map(|line| line.strip_prefix(name));
            let Some(seq) = field("id: ") else { continue };
            let event: Value = serde_json::from_str(field("data: ").unwrap_or_default())?;
            if seq.parse() != Ok(*last + 1) || event["seq"] != *last + 1 {
                return Err(format!("a stream of {task}: {seq} follows {last}").into());
            }
            *last += 1;
        }
    }
}
