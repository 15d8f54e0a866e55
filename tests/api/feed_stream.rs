//! The organization's feed as server-sent events.

use reqwest::{Method, Response};
use serde_json::Value;

use crate::feed::{PATIENCE, archive, names, read};
use crate::support::{Client, World};

/// The stream of the feed.
async fn stream(client: &Client, query: &str, last: Option<&str>) -> Response {
    let request = client.request(Method::GET, &format!("/agent-events{query}")).header("accept", "text/event-stream");
    let request = match last {
        Some(last) => request.header("last-event-id", last),
        None => request,
    };
    request.send().await.unwrap()
}

/// The text of a stream up to where it has `count` events.
async fn until(response: &mut Response, count: usize) -> String {
    let mut text = String::new();
    while text.matches("\nevent: ").count() < count {
        let chunk = tokio::time::timeout(PATIENCE, response.chunk()).await.unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    text
}

#[tokio::test]
async fn a_stream_goes_on_behind_the_last_id() {
    let world = World::with(|settings| settings.waiting.comment_ms = 200).await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let entries = read(&vera, "/agent-events", 3).await;
    let mut response = stream(&vera, "", None).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let text = until(&mut response, 3).await;
    let of = |text: &str, field: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix(field)).map(str::to_owned).collect()
    };
    let data: Vec<Value> = of(&text, "data: ").iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    assert_eq!(names(&data), names(&entries));
    let ids = of(&text, "id: ");
    assert_eq!(ids.len(), 3);
    assert_eq!(ids, data.iter().map(|entry| entry["cursor"].as_str().unwrap().to_owned()).collect::<Vec<_>>());
    agent.say(&task, &session, "Here.").await.expect(201);
    let text = until(&mut response, 1).await;
    assert_eq!(of(&text, "event: "), ["turn"]);
    drop(response);
    // Behind the first, whatever the query says; each comment moves a reader on who is shown nothing.
    let mut response = stream(&vera, "?after=now", Some(&ids[0])).await;
    let text = until(&mut response, 3).await;
    assert_eq!(of(&text, "event: ").len(), 3);
    let mut idle = stream(&world.trigger().await, "?after=now", None).await;
    let mut text = String::new();
    while of(&text, "id: ").len() < 3 {
        let chunk = idle.chunk().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.starts_with(":\nid: ") && !text.contains("data"), "{text}");
    assert_eq!(stream(&vera, "", Some("x")).await.status(), 400);
    assert_eq!(stream(&world.person("stranger"), "", None).await.status(), 403);
    agent.finish(&task).await.expect(200);
    archive(&world, &task).await;
    assert_eq!(stream(&vera, "", Some(&ids[0])).await.status(), 410);
}
