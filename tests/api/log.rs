//! A task's log: gapless under writers, read in parts, and proven whole by its digests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use mandate::domain::digest::{Digest, chain};
use mandate::domain::event::{Actor, Event};
use mandate::domain::ids::{EventId, SessionId, TaskId};
use mandate::domain::time::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Client, World};

/// An entry as a reader of the API sees it, the payload as its very text.
#[derive(Deserialize)]
struct Entry<'a> {
    event_id: Uuid,
    seq: i64,
    #[serde(rename = "type")]
    event_type: String,
    schema_version: i32,
    actor_kind: String,
    actor_id: String,
    channel: Option<String>,
    session_id: Option<Uuid>,
    at: String,
    recorded_at: String,
    #[serde(borrow)]
    payload: &'a RawValue,
    redacted: Vec<String>,
    digest: String,
}

impl Entry<'_> {
    fn event(&self) -> Event {
        Event {
            event_id: EventId(self.event_id),
            seq: self.seq,
            event_type: self.event_type.clone().into(),
            schema_version: self.schema_version,
            actor: Actor {
                kind: self.actor_kind.parse().unwrap(),
                id: self.actor_id.clone(),
                channel: self.channel.as_ref().map(|channel| channel.parse().unwrap()),
            },
            session_id: self.session_id.map(SessionId),
            at: Timestamp::parse(&self.at).unwrap(),
            recorded_at: Timestamp::parse(&self.recorded_at).unwrap(),
            payload: self.payload.get().to_owned(),
            redacted: self.redacted.clone(),
            digest: Digest::parse(&self.digest).unwrap(),
        }
    }
}

/// Recomputes every digest of a log from what the API tells and compares the head with the task's; answers its
/// types.
pub async fn assert_chain(reader: &Client, task: &str) -> Vec<String> {
    let read = reader.get(&format!("/agent-tasks/{task}")).await;
    let row = read.expect(200).clone();
    let id = TaskId(row["id"].as_str().unwrap().parse().unwrap());
    let (mut head, mut seq, mut types) = (Digest::ZERO, 0, Vec::new());
    loop {
        let page = reader.get(&format!("/agent-tasks/{task}/events?limit=1000&after_seq={seq}")).await;
        page.expect(200);
        let entries: Vec<Entry<'_>> = serde_json::from_str(&page.text).unwrap();
        for entry in &entries {
            assert_eq!(entry.seq, seq + 1, "a hole");
            seq = entry.seq;
            head = chain(head, id, &entry.event());
            assert_eq!(head.to_string(), entry.digest, "seq {seq}");
            types.push(entry.event_type.clone());
        }
        if page.next().is_none() {
            break;
        }
    }
    assert_eq!(row["last_seq"], seq);
    assert_eq!(row["log_digest"], head.to_string());
    types
}

fn seqs(events: &Value) -> Vec<i64> {
    events.as_array().unwrap().iter().map(|event| event["seq"].as_i64().unwrap()).collect()
}

/// A task with a log of `length` entries: its creation, a session and turns.
async fn long_log(world: &World, agent: &Client, length: usize) -> String {
    let (task, session) = world.working(agent).await;
    let turns: Vec<_> = (3..length).map(|n| json!({"type": "turn", "payload": {"body": format!("{n}")}})).collect();
    for turns in turns.chunks(100) {
        let body = json!({"session_id": session, "events": turns});
        agent.post(&format!("/agent-tasks/{task}/events"), &body).await.expect(201);
    }
    task
}

#[tokio::test]
async fn every_digest_follows_from_what_the_api_tells() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let secret = format!("ghp_{}", "a1B2".repeat(9));
    let body = json!({"agent_slug": "reviewer", "title": "Grüße 🦀", "description": secret, "params": {"z": 1.0, "a": [1e5, -0.0]}, "labels": {"b": "2", "a": "1"}, "budget": "0.5"});
    let slack = world.person_claiming("ada", json!({"channel": "slack"}));
    let created = slack.post("/agent-tasks/", &body).await;
    let task = created.expect(201)["short_id"].as_str().unwrap().to_owned();
    let session = agent.open_session(&task, "s1").await;
    let path = format!("/agent-tasks/{task}");
    let raw = format!(
        r#"{{"session_id":"{session}","events":[
            {{"type":"turn","at":"2026-01-31T15:00:00.123456+05:30","payload":{{ "body" : "é\u00e9\/\n", "n": 1E400 , "k":9007199254740993}} }},
            {{"type":"tool.called","actor_kind":"subagent","actor_id":"helper","payload":{{"tool":"t","mutating":true,"password":"hunter2"}}}},
            {{"type":"phase.changed","payload":{{"phase":"look","furthest_milestone":"m"}}}}]}}"#
    );
    agent.post_raw(&format!("{path}/events"), raw).await.expect(201);
    let request = agent.ask(&task, &["yes", "no"]).await;
    ada.post(&format!("{path}/requests/{request}/resolve"), &json!({"status": "answered", "answer": "Ja"}))
        .await
        .expect(201);
    ada.post(&format!("{path}/reply"), &json!({"body": "Go on", "hold": true})).await.expect(200);
    ada.post_nothing(&format!("{path}/resume")).await.expect(200);
    ada.post(&format!("{path}/reassign"), &json!({"owner": "oscar"})).await.expect(200);
    agent.spend(&task, "u1", 10, 10).await.expect(201);
    agent.ask(&task, &[]).await;
    agent.spend(&task, "u2", 0, 60_000).await.expect(201);
    let types = assert_chain(&ada, &task).await;
    assert_eq!(types.last().map(String::as_str), Some("request.resolved"));
    let distinct: std::collections::BTreeSet<_> = types.iter().collect();
    assert_eq!(distinct.len(), 13, "{distinct:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_beside_sixteen_writers_never_sees_a_hole() {
    const WRITERS: usize = 16;
    const EACH: usize = 20;
    let world = World::new().await;
    let agent = world.agent().await;
    let (task, session) = world.working(&agent).await;
    let done = Arc::new(AtomicBool::new(false));
    let reader = {
        let (reader, task, done) = (world.person("vera"), task.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let (mut reads, mut longest) = (0, 0);
            let mut every = tokio::time::interval(Duration::from_millis(5));
            loop {
                every.tick().await;
                let last = done.load(Ordering::SeqCst);
                let log = reader.get(&format!("/agent-tasks/{task}/events?limit=1000")).await;
                let seen = seqs(log.expect(200));
                let length = i64::try_from(seen.len()).unwrap();
                assert_eq!(seen, (1..=length).collect::<Vec<_>>());
                assert!(length >= longest, "what was seen is gone");
                (reads, longest) = (reads + 1, length);
                if last {
                    return (reads, longest);
                }
            }
        })
    };
    let writers = (0..WRITERS).map(|writer| {
        let (agent, task, session) = (agent.clone(), task.clone(), session.clone());
        tokio::spawn(async move {
            for n in 0..EACH {
                // Batches of one to three, and a report now and then.
                if n % 5 == 4 {
                    agent.spend(&task, &format!("{writer}-{n}"), 1, 1).await.expect(201);
                    continue;
                }
                let turn = json!({"type": "turn", "payload": {"body": format!("{writer}-{n}")}});
                let body = json!({"session_id": session, "events": vec![turn; n % 3 + 1]});
                agent.post(&format!("/agent-tasks/{task}/events"), &body).await.expect(201);
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    let (reads, longest) = reader.await.unwrap();
    let of_one: usize = (0..EACH).map(|n| if n % 5 == 4 { 1 } else { n % 3 + 1 }).sum();
    assert_eq!(usize::try_from(longest).unwrap(), 3 + WRITERS * of_one);
    assert!(reads > 10, "the reader read {reads} times only");
    assert_chain(&world.person("vera"), &task).await;
}

#[tokio::test]
async fn a_log_is_read_in_parts_forwards_and_backwards() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let task = long_log(&world, &agent, 250).await;
    let path = format!("/agent-tasks/{task}/events");
    let read = async |query: &str| {
        let reply = vera.get(&format!("{path}{query}")).await;
        (seqs(reply.expect(200)), reply.next())
    };
    let span = |first: i64, last: i64| (first..=last).collect::<Vec<_>>();
    let (first, next) = read("").await;
    assert_eq!(first, span(1, 100), "100 unless the query says");
    assert!(next.is_some());
    for (query, expected, more) in [
        ("?limit=1000", span(1, 250), false),
        ("?limit=250", span(1, 250), false),
        ("?limit=249", span(1, 249), true),
        ("?after_seq=0&limit=1", span(1, 1), true),
        ("?after_seq=248", span(249, 250), false),
        ("?after_seq=250", vec![], false),
        ("?after_seq=9000", vec![], false),
        ("?before_seq=9000&limit=3", span(248, 250), true),
        ("?before_seq=251&limit=2", span(249, 250), true),
        ("?before_seq=4", span(1, 3), false),
        ("?before_seq=1", vec![], false),
        ("?before_seq=0", vec![], false),
        ("?after_seq=0&before_seq=10&limit=4", span(1, 4), true),
        ("?after_seq=5&before_seq=10", span(6, 9), false),
        ("?after_seq=5&before_seq=10&limit=4", span(6, 9), false),
        ("?after_seq=5&before_seq=6", vec![], false),
        ("?after_seq=10&before_seq=5", vec![], false),
        ("?after_seq=&before_seq=&type=&limit=", span(1, 100), true),
    ] {
        let (seen, next) = read(query).await;
        assert_eq!(seen, expected, "{query}");
        assert_eq!(next.is_some(), more, "{query}");
    }
    for query in
        ["?limit=7", "?after_seq=3&limit=50", "?before_seq=200&limit=33", "?after_seq=20&before_seq=201&limit=9"]
    {
        let pages = vera.pages(&format!("{path}{query}")).await;
        let mut pages: Vec<_> = pages.iter().map(|page| seqs(&json!(page))).collect();
        let backwards = !query.contains("after_seq") && query.contains("before_seq");
        if backwards {
            pages.reverse();
        }
        let seen = pages.concat();
        let expected = match query {
            "?limit=7" => span(1, 250),
            "?after_seq=3&limit=50" => span(4, 250),
            "?before_seq=200&limit=33" => span(1, 199),
            _ => span(21, 200),
        };
        assert_eq!(seen, expected, "{query} followed to the end");
    }
}

#[tokio::test]
async fn a_log_is_read_by_type() {
    let world = World::new().await;
    let (vera, agent) = (world.person("vera"), world.agent().await);
    let task = long_log(&world, &agent, 20).await;
    agent.spend(&task, "u1", 1, 1).await.expect(201);
    agent.spend(&task, "u2", 1, 1).await.expect(201);
    let path = format!("/agent-tasks/{task}/events");
    let read = async |query: &str| seqs(vera.get(&format!("{path}{query}")).await.expect(200));
    assert_eq!(read("?type=usage.reported").await, [21, 22]);
    assert_eq!(read("?type=usage.reported&type=task.created").await, [1, 21, 22]);
    assert_eq!(read("?type=turn&after_seq=18").await, [19, 20]);
    assert_eq!(read("?type=turn&before_seq=20&limit=2").await, [18, 19]);
    assert_eq!(read("?type=nothing.of.the.kind").await, Vec::<i64>::new());
    let pages = vera.pages(&format!("{path}?type=turn&limit=5")).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 5, 2]);
    assert_eq!(seqs(&json!(pages.concat())), (4..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn bounds_of_a_part_of_the_log_are_checked() {
    let world = World::new().await;
    let vera = world.person("vera");
    let task = world.task().await;
    for (query, parameter) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("limit=1.5", "limit"),
        ("after_seq=-1", "after_seq"),
        ("after_seq=x", "after_seq"),
        ("after_seq=9223372036854775808", "after_seq"),
        ("before_seq=-1", "before_seq"),
        ("before_seq=1e3", "before_seq"),
    ] {
        let reply = vera.get(&format!("/agent-tasks/{task}/events?{query}")).await;
        assert_eq!(reply.refused(422, "invalid_body")["errors"][0]["parameter"], parameter, "{query}");
    }
    vera.get(&format!("/agent-tasks/{task}/events?after_seq=9223372036854775807")).await.expect(200);
    vera.get(&format!("/agent-tasks/{task}/events?limit=1000")).await.expect(200);
    vera.get("/agent-tasks/T-99/events").await.refused(404, "task_not_found");
    vera.get("/agent-tasks/T-/events").await.refused(404, "task_not_found");
    vera.get(&format!("/agent-tasks/{}/events", task.to_lowercase())).await.expect(200);
}
