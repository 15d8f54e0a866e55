//! Text that would be something else to a database, a shell or a browser is text.

use reqwest::Url;
use serde_json::{Value, json};

use crate::support::World;

const HOSTILE: [&str; 8] = [
    "'); DROP TABLE agent_runtime.tasks; --",
    "' OR '1'='1",
    "$1 $2 {} %s",
    "100%_of\\everything",
    "\\'; SELECT pg_sleep(30); --",
    "E'\\x27' || current_user",
    "<script>alert(1)</script>",
    "\u{202e}gnitirw \u{0} \u{1f} \u{feff}",
];

fn found(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|task| task["short_id"].as_str().unwrap()).collect()
}

/// A path with a query whose values are escaped.
fn path(pairs: &[(&str, &str)]) -> String {
    let url = Url::parse_with_params("http://server/agent-tasks/", pairs).unwrap();
    format!("/agent-tasks/?{}", url.query().unwrap())
}

#[tokio::test]
async fn hostile_text_is_kept_and_found_as_itself_or_refused() {
    let world = World::new().await;
    let (ada, agent) = (world.person("ada"), world.agent().await);
    world.task().await;
    for text in HOSTILE {
        let body = json!({
            "agent_slug": world.seed.agent.slug, "title": text, "description": text, "subject": text,
            "labels": {"kind": text}, "idempotency_key": text,
        });
        let reply = ada.post("/agent-tasks/", &body).await;
        if text.contains('\0') {
            reply.refused(422, "invalid_body");
            ada.get(&path(&[("q", text)])).await.refused(422, "invalid_body");
            continue;
        }
        let task = reply.expect(201)["short_id"].as_str().unwrap().to_owned();
        assert_eq!(ada.post("/agent-tasks/", &body).await.expect(200)["short_id"], task);
        let read = ada.get(&format!("/agent-tasks/{task}")).await;
        for member in ["title", "description", "subject"] {
            assert_eq!(read.expect(200)[member], text);
        }
        for query in [path(&[("q", text)]), path(&[("subject", text)]), path(&[("label", &format!("kind={text}"))])] {
            assert_eq!(found(ada.get(&query).await.expect(200)), [&task], "{query}");
        }
        for parameter in ["cursor", "status", "agent_id", "project_id", "sort", "limit", "origin_kind"] {
            let reply = ada.get(&path(&[(parameter, text)])).await;
            assert!([400, 404, 422].contains(&reply.status), "{parameter}: {reply:?}");
        }
        // A person's id may be almost any text.
        let owned = ada.get(&path(&[("owner", text)])).await;
        assert!(owned.status == 422 || owned.expect(200) == &json!([]), "{owned:?}");
        let said = agent.append(&task, json!([{"type": "turn", "payload": {"body": text}}])).await;
        said.expect(201);
        assert_eq!(world.log(&task).await.last().unwrap()["payload"]["body"], text);
        assert!(agent.spend(&task, text, 1, 1).await.status < 300);
        let asked = json!({"kind": "feedback", "title": text, "why": text, "options": [text, "other"]});
        let asked = agent.on(&task, "requests", asked).await;
        assert_eq!(asked.expect(201)["request"]["options"][0], text);
    }
    assert!(world.prove().await >= HOSTILE.len());
}
