//! What is read of the permanent log: proofs and exports.

use std::process::Command;

use mandate::domain::digest::Digest;
use reqwest::Method;
use serde_json::Value;

use crate::archive::{PAYLOAD, closed_task_with};
use crate::combination::{Place, archived, landed};
use crate::over_every_combination;
use crate::support::{World, program};

over_every_combination!(an_export_proves_itself_before_and_after_the_archive);

async fn export(world: &World, task: &str, query: &str) -> String {
    let request = world.person("vera").request(Method::GET, &format!("/agent-tasks/{task}/events{query}"));
    let answer = request.header("accept", "application/x-ndjson, application/json;q=0.1").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap()
}

/// Runs `mandate verify` on a text; whether it is content, and what it says.
fn verify(text: &str, more: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log.ndjson");
    std::fs::write(&file, text).unwrap();
    let done = Command::new(program()).arg("verify").arg(&file).args(more).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(said).unwrap())
}

async fn an_export_proves_itself_before_and_after_the_archive(place: Place) {
    let world = place.world().await;
    let agent = world.agent().await;
    let task = closed_task_with(&world, &agent, PAYLOAD).await;
    landed(&world, &task).await;
    let path = format!("/agent-tasks/{task}/proof");
    let live = world.person("vera").get(&path).await.expect(200).clone();
    assert_eq!((&live["location"], &live["log_archived_at"]), (&Value::from("postgres"), &Value::Null));
    let before = export(&world, &task, "").await;
    archived(&world, &task).await;
    let proof = world.person("vera").get(&path).await.expect(200).clone();
    assert_eq!(proof["location"], "log_store");
    assert_eq!(proof["verified_seq"], proof["last_seq"]);
    assert!(proof["verified_at"].is_string() && proof["log_archived_at"].is_string());
    assert_eq!(live["log_digest"], proof["log_digest"]);
    let after = export(&world, &task, "").await;
    assert_eq!(after, before);
    let head = proof["log_digest"].as_str().unwrap();
    let (whole, said) = verify(&after, &["--head", head]);
    assert!(whole && said.contains("whole"), "{said}");
    assert_refused(&after, head);
    // With a limit it is a part, and says so by itself.
    let part = export(&world, &task, "?limit=3").await;
    assert_eq!(part.lines().count(), 3);
    assert!(after.starts_with(&part));
    let newest = export(&world, &task, "?before_seq=4").await;
    assert_eq!(newest.lines().count(), 3);
    // Bounded and backwards, it is the newest below, as in an array; and it leads on.
    let vera = world.person("vera");
    for query in ["?before_seq=9&limit=3", "?limit=4", "?after_seq=2&before_seq=8&limit=3"] {
        let path = format!("/agent-tasks/{task}/events{query}");
        let array = vera.get(&path).await;
        let lines = vera.request(Method::GET, &path).header("accept", "application/x-ndjson").send().await.unwrap();
        let link = lines.headers().get("link").map(|link| link.to_str().unwrap().to_owned());
        assert_eq!(link.as_deref(), array.header("link"), "{query}");
        assert!(lines.headers().get_all("vary").iter().any(|vary| vary == "accept"));
        let seqs = |text: &str| text.match_indices("\"seq\":").count();
        assert_eq!(seqs(&lines.text().await.unwrap()), seqs(&array.text), "{query}");
    }
}

/// Every way in which a copy can differ from the log is found.
fn assert_refused(export: &str, head: &str) {
    let lines: Vec<&str> = export.lines().collect();
    let joined = |lines: &[&str]| lines.join("\n");
    let mut swapped = lines.clone();
    swapped.swap(2, 3);
    let mut holed = lines.clone();
    holed.remove(4);
    let doubled: Vec<&str> = lines.iter().take(3).chain(lines.iter().skip(2)).copied().collect();
    for (copy, said) in [
        (joined(&lines[..lines.len() - 1]), "but end in"),
        (joined(&lines[1..]), "seq 2 stands where seq 1 belongs"),
        (joined(&swapped), "line 3: seq 4 stands where seq 3 belongs"),
        (joined(&holed), "line 5: seq 6 stands where seq 5 belongs"),
        (joined(&doubled), "seq 3 stands where seq 4 belongs"),
        (export.replacen("\"schema_version\":1", "\"schema_version\":2", 1), "line 1: seq 1 was changed"),
        (export.replacen("9007199254740993", "9007199254740992", 1), "was changed"),
        (export.replacen("0.10", "0.1", 1), "was changed"),
        ("not json\n".to_owned(), "line 1: no log entry"),
        (String::new(), "no log entry"),
    ] {
        let (whole, text) = verify(&copy, &["--head", head]);
        assert!(!whole, "{text}");
        assert!(text.contains(said), "{text} does not say {said}");
    }
    let other = Digest::ZERO.to_string();
    assert!(!verify(export, &["--head", &other]).0);
    let (bad, text) = verify(export, &["--head", "sha256:xyz"]);
    assert!(!bad && text.contains("--head"), "{text}");
}
