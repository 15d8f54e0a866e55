//! Payloads: kept verbatim, or refused with the place.

use serde_json::{Value, json};

use crate::support::{Client, Reply, World};

/// What a number must survive.
const DIGITS: &str = r#"{"n":10,"big":9007199254740993,"d":0.10,"e":1E400,"z":-0.0e-0,"a":{"y":1.0,"x":2}}"#;

/// A batch of one turn whose payload has these members too, as text.
fn turn(members: &str) -> String {
    format!(r#"{{"events":[{{"type":"turn","payload":{{"body":"x",{members}}}}}]}}"#)
}

async fn append_raw(agent: &Client, task: &str, body: impl Into<reqwest::Body>) -> Reply {
    agent.post_raw(&format!("/agent-tasks/{task}/events"), body).await
}

#[tokio::test]
async fn digits_keys_and_their_order_are_kept() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let create = format!(r#"{{"agent_slug":"reviewer","title":"t","description":"","params": {DIGITS} }}"#);
    let created = ada.post_raw("/agent-tasks/", create).await;
    assert_eq!(created.status, 201, "{}", created.text);
    let params = format!(r#""params":{DIGITS}"#);
    assert!(created.text.contains(&params), "{}", created.text);
    let spaced = DIGITS.replace(',', " ,\n").replace(':', " :\t");
    let appended = append_raw(&agent, "T-1", turn(&format!(r#""kept": {spaced}, "u":"\u00e9\/é""#))).await;
    assert_eq!(appended.status, 201, "{}", appended.text);
    let kept = format!(r#""payload":{{"body":"x","kept":{DIGITS},"u":"\u00e9\/é"}}"#);
    assert!(appended.text.contains(&kept), "{}", appended.text);
    let request = agent.ask("T-1", &[]).await;
    let resolve = format!(r#"{{"status":"answered","answer":"a","constraints":{DIGITS}}}"#);
    let resolved = ada.post_raw(&format!("/agent-tasks/T-1/requests/{request}/resolve"), resolve).await;
    let constraints = format!(r#""constraints":{DIGITS}"#);
    assert_eq!((resolved.status, resolved.text.matches(&constraints).count()), (201, 1), "{}", resolved.text);
    let outcome = format!(r#"{{"outcome":"done_acted","result":{{"summary":"s","more":{DIGITS}}}}}"#);
    assert_eq!(agent.post_raw("/agent-tasks/T-1/outcome", outcome).await.status, 200);
    let log = ada.get("/agent-tasks/T-1/events").await.text;
    let result = format!(r#""result":{{"summary":"s","more":{DIGITS}}}"#);
    for part in [&params, &kept, &constraints, &result] {
        assert!(log.contains(part.as_str()), "{part} is not in {log}");
    }
    let task = ada.get("/agent-tasks/T-1").await.text;
    assert!(task.contains(&params) && task.contains(&result), "{task}");
    // A second process reads the same.
    let other = World::beside(&world).await;
    assert_eq!(other.person("ada").get("/agent-tasks/T-1/events").await.text, log);
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_with_its_place() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let before = world.footprint().await;
    let raw = |members: &[u8]| [br#"{"events":[{"type":"turn","payload":{"body":"x","#, members, b"}}]}"].concat();
    let cases: [(&[u8], &str); 12] = [
        (br#""a":"x\u0000y""#, "/events/0/payload/a"),
        (br#""a":{"b\u0000":1}"#, "/events/0/payload/a/b\u{fffd}"),
        (br#""a":["ok","\ud800"]"#, "/events/0/payload/a/1"),
        (br#""a":"\udc00\ud800""#, "/events/0/payload/a"),
        (br#""\ud83d":1"#, "/events/0/payload/\u{fffd}"),
        (b"\"a\":\"\xff\"", "/events/0/payload/a"),
        (b"\"a\":\"\xc3\"", "/events/0/payload/a"),
        (b"\"a\":\"\xed\xa0\x80\"", "/events/0/payload/a"),
        (b"\"k\xc0\xaf\":1", "/events/0/payload/k\u{fffd}\u{fffd}"),
        (br#""a":1,"b":2,"a":1"#, "/events/0/payload/a"),
        (br#""a":1,"\u0061":1"#, "/events/0/payload/a"),
        (br#""body":"again""#, "/events/0/payload/body"),
    ];
    for (members, place) in cases {
        let reply = append_raw(&agent, &task, raw(members)).await;
        reply.invalid_at(&[place]);
    }
    // In the envelope and in members that nobody reads, too.
    let outside: [(&[u8], &str); 4] = [
        (br#"{"events":[{"type":"turn","type":"turn","payload":{"body":"x"}}]}"#, "/events/0/type"),
        (br#"{"events":[{"type":"turn","payload":{"body":"x"}}],"note":"\u0000"}"#, "/note"),
        (br#"{"events":[{"type":"turn","payload":{"body":"x"},"note":"\ud800"}]}"#, "/events/0/note"),
        (b"{\"\xff\":0,\"events\":[{\"type\":\"turn\",\"payload\":{\"body\":\"x\"}}]}", "/\u{fffd}"),
    ];
    for (body, place) in outside {
        append_raw(&agent, &task, body.to_vec()).await.invalid_at(&[place]);
    }
    assert_eq!(world.footprint().await, before);
    // Two halves that belong together are a character.
    let pair = append_raw(&agent, &task, turn(r#""a":"\ud83d\ude00""#)).await;
    assert_eq!(pair.expect(201)["written"][0]["payload"]["a"], "😀");
}

#[tokio::test]
async fn one_bad_event_of_a_hundred_keeps_all_out() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    let before = world.footprint().await;
    for bad in [r#""a":"\u0000""#, r#""a":"\ud800""#, r#""a":1,"a":2"#] {
        let good = r#"{"type":"turn","payload":{"body":"x"}}"#;
        let mut events = vec![good.to_owned(); 99];
        events.insert(73, format!(r#"{{"type":"turn","payload":{{"body":"x",{bad}}}}}"#));
        let reply = append_raw(&agent, &task, format!(r#"{{"events":[{}]}}"#, events.join(","))).await;
        reply.invalid_at(&["/events/73/payload/a"]);
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn every_route_with_a_body_refuses_what_cannot_be_kept() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let (task, session) = world.working(&agent).await;
    let request = agent.ask(&task, &[]).await;
    let routes = [
        (&ada, String::new(), r#""agent_slug":"reviewer","title":"t","description":"" "#),
        (&ada, format!("{task}/pause"), r#""reason":"r""#),
        (&ada, format!("{task}/resume"), r#""reason":"r""#),
        (&ada, format!("{task}/cancel"), r#""reason":"r""#),
        (&ada, format!("{task}/reassign"), r#""owner":"oscar""#),
        (&ada, format!("{task}/reply"), r#""body":"b""#),
        (&ada, format!("{task}/requests/{request}/resolve"), r#""status":"answered","answer":"a""#),
        (&agent, format!("{task}/sessions"), r#""session_key":"other""#),
        (&agent, format!("{task}/sessions/{session}/close"), r#""reason":"r""#),
        (&agent, format!("{task}/usage"), r#""idempotency_key":"u","model_id":"m""#),
        (&agent, format!("{task}/requests"), r#""kind":"feedback","title":"t""#),
        (&agent, format!("{task}/outcome"), r#""outcome":"done_acted""#),
    ];
    let before = world.footprint().await;
    for (caller, path, members) in routes {
        for bad in [b"\"\\u0000\"".as_slice(), b"\"\\ud800\"", b"\"\xff\"", b"{\"a\":1,\"a\":2}"] {
            let body = [b"{", members.as_bytes(), b",\"extra\":", bad, b"}"].concat();
            let reply = caller.post_raw(&format!("/agent-tasks/{path}"), body).await;
            reply.refused(422, "invalid_body");
            assert!(reply.places()[0].starts_with("/extra"), "{path}: {}", reply.text);
        }
    }
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn the_null_character_in_a_path_or_query_is_no_fault_of_the_server() {
    let world = World::new().await;
    let ada = world.person("ada");
    let task = world.task().await;
    for name in ["q", "subject", "owner", "label", "origin_kind", "status", "agent_id", "sort", "limit"] {
        for value in ["%00", "a%3D%00b"] {
            let reply = ada.get(&format!("/agent-tasks/?{name}={value}")).await;
            assert_eq!((reply.status, reply.places()[0]), (422, name), "{}", reply.text);
        }
    }
    ada.get("/agent-tasks/?cursor=%00").await.refused(400, "invalid_cursor");
    let events = ada.get(&format!("/agent-tasks/{task}/events?type=turn&type=%00")).await;
    events.invalid_at(&["type"]);
    ada.get("/requests?status=%00").await.refused(422, "invalid_body");
    ada.get("/agent-tasks/?unknown=%00").await.expect(200);
    ada.get("/agent-tasks/T-1%00").await.refused(404, "not_found");
    ada.get("/agent-tasks/%FF").await.refused(404, "not_found");
    ada.in_organization("acme%00").get("/agent-tasks/").await.refused(403, "organization_forbidden");
}

#[tokio::test]
async fn a_payload_may_be_nested_128_deep() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    // `levels` arrays within each other; the payload's own object is one more.
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let fits = append_raw(&agent, &task, turn(&format!(r#""a":{}"#, nested(127)))).await;
    assert_eq!(fits.status, 201, "{}", fits.text);
    let kept = format!(r#""payload":{{"body":"x","a":{}}}"#, nested(127));
    let log = ada.get(&format!("/agent-tasks/{task}/events")).await.text;
    assert!(fits.text.contains(&kept) && log.contains(&kept));
    let create = |levels: usize| {
        format!(r#"{{"agent_slug":"reviewer","title":"t","description":"","params":{}}}"#, nested(levels))
    };
    let created = ada.post_raw("/agent-tasks/", create(128)).await;
    assert_eq!(created.status, 201, "{}", created.text);
    let read = ada.get("/agent-tasks/T-2").await.text;
    assert!(read.contains(&format!(r#""params":{}"#, nested(128))));
    ada.post_nothing("/agent-tasks/T-2/pause").await;
    let before = world.footprint().await;
    for levels in [128, 129, 100_000] {
        let reply = append_raw(&agent, &task, turn(&format!(r#""a":{}"#, nested(levels)))).await;
        reply.invalid_at(&[&format!("/events/0/payload/a{}", "/0".repeat(127))]);
    }
    let objects = format!(r#""a":{}1{}"#, r#"{"a":"#.repeat(128), "}".repeat(128));
    append_raw(&agent, &task, turn(&objects)).await.refused(422, "invalid_body");
    ada.post_raw("/agent-tasks/", create(129)).await.invalid_at(&[&format!("/params{}", "/0".repeat(128))]);
    assert_eq!(world.footprint().await, before);
}

#[tokio::test]
async fn an_event_of_64_kib_is_kept_and_a_larger_one_refused() {
    let world = World::new().await;
    let agent = world.agent().await;
    let task = world.task().await;
    // `{"body":"…"}` of exactly so many bytes.
    let event = |bytes: usize| json!({"type": "turn", "payload": {"body": "x".repeat(bytes - 11)}});
    let fits = agent.append(&task, json!([event(65_536)])).await;
    let kept = &fits.expect(201)["written"][0]["payload"];
    assert_eq!(serde_json::to_string(kept).unwrap().len(), 65_536);
    let before = world.footprint().await;
    let over = agent.append(&task, json!([event(100), event(65_537), event(70_000)])).await;
    assert_eq!(over.refused(413, "payload_too_large")["limit"], 65_536);
    assert_eq!(over.places(), ["/events/1/payload"]);
    // It ranks before everything that is wrong with the rest.
    let faulty = json!([{"type": "nonsense", "payload": 7}, {"type": "outcome.set", "payload": {}}, event(65_537)]);
    agent.append(&task, faulty).await.refused(413, "payload_too_large");
    // Bytes count, not characters; white space does not.
    let wide = json!([{"type": "turn", "payload": {"body": "é".repeat(32_763)}}]);
    agent.append(&task, wide).await.refused(413, "payload_too_large");
    assert_eq!(world.footprint().await, before);
    let spaced = format!(r#"{{"events":[{{"type":"turn","payload":{{"body":{}"x"}}}}]}}"#, " ".repeat(100_000));
    append_raw(&agent, &task, spaced).await.expect(201);
    agent.finish(&task).await.expect(200);
    agent.append(&task, json!([event(65_537)])).await.refused(413, "payload_too_large");
}

#[tokio::test]
async fn what_people_and_harnesses_say_has_the_same_limit() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    let task = world.task().await;
    let approval = json!({"kind": "approval", "title": "t",
        "artifact_digests": ["sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"]});
    let asked = agent.post(&format!("/agent-tasks/{task}/requests"), &approval).await;
    let request = asked.expect(201)["request"]["id"].as_str().unwrap().to_owned();
    let before = world.footprint().await;
    let big = "x".repeat(65_536);
    let create = |params: Value| json!({"agent_slug": "reviewer", "title": "t", "description": "", "params": params});
    let over = ada.post("/agent-tasks/", &create(json!({"p": big}))).await;
    over.refused(413, "payload_too_large");
    assert_eq!(over.places(), ["/params"]);
    // Just under the limit by itself, over it inside its event.
    let near = "x".repeat(65_500);
    ada.post("/agent-tasks/", &create(json!(near))).await.refused(413, "payload_too_large");
    let reply = format!("/agent-tasks/{task}/reply");
    ada.post(&reply, &json!({"body": "x".repeat(65_526)})).await.refused(413, "payload_too_large");
    ada.post(&reply, &json!({"body": "é".repeat(32_768)})).await.refused(413, "payload_too_large");
    let resolve = json!({"status": "rejected", "constraints": {"c": big}});
    ada.post(&format!("/agent-tasks/{task}/requests/{request}/resolve"), &resolve)
        .await
        .refused(413, "payload_too_large");
    let preview = json!({"digest": approval["artifact_digests"][0], "name": "n", "media_type": "text/plain", "size": 1,
        "preview": "x".repeat(20_000)});
    let ask = json!({"kind": "feedback", "title": "t", "artifacts": [preview, preview, preview, preview]});
    agent.post(&format!("/agent-tasks/{task}/requests"), &ask).await.refused(413, "payload_too_large");
    let outcome = json!({"outcome": "done_acted", "result": {"summary": big}});
    agent.post(&format!("/agent-tasks/{task}/outcome"), &outcome).await.refused(413, "payload_too_large");
    assert_eq!(world.footprint().await, before);
    ada.post(&reply, &json!({"body": "x".repeat(65_525)})).await.expect(200);
}
