//! `GET …/proof`: the head of a log, signed.

use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Value, json};

use crate::archive::closed_task;
use crate::combination::{Combination, Place, archived, landed};
use crate::support::{Seed, World};

const TYPE: &str = "mandate-proof+jws";

async fn embedded() -> World {
    Place::new(Combination::DirectPostgres).world().await
}

/// What the JWS says, if the published keys verify it.
async fn payload(world: &World, jws: &str) -> Value {
    let published = world.anyone().get("//.well-known/jwks.json").await;
    let keys: JwkSet = serde_json::from_value(published.expect(200).clone()).unwrap();
    let header = decode_header(jws).unwrap();
    assert_eq!((header.alg, header.typ.as_deref()), (Algorithm::EdDSA, Some(TYPE)));
    let key = DecodingKey::from_jwk(keys.find(&header.kid.unwrap()).unwrap()).unwrap();
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    decode::<Value>(jws, &key, &validation).unwrap().claims
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_is_what_the_published_keys_have_signed() {
    let world = embedded().await;
    let agent = world.agent().await;
    let task = closed_task(&world, &agent).await;
    let (path, vera) = (format!("/agent-tasks/{task}/proof"), world.person("vera"));
    let row = vera.get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let mut proofs = Vec::new();
    for round in 0..2 {
        let before = world.now();
        let proof = vera.get(&path).await.expect(200).clone();
        assert_eq!(proof["organization_id"], json!(world.seed.organization_id));
        for (name, of_row) in [("task_id", "id"), ("short_id", "short_id"), ("last_seq", "last_seq")] {
            assert_eq!(proof[name], row[of_row], "{name}");
        }
        assert_eq!((&proof["log_digest"], &proof["issuer"]), (&row["log_digest"], &json!("mandate")));
        let issued = proof["issued_at"].as_str().unwrap().to_owned();
        assert!(before.to_string() <= issued && issued <= world.now().to_string());
        if round == 0 {
            let nothing = json!(["postgres", 0, null, null]);
            let found =
                json!([proof["location"], proof["verified_seq"], proof["verified_at"], proof["log_archived_at"]]);
            assert_eq!(found, nothing);
        } else {
            assert_eq!((&proof["location"], &proof["verified_seq"]), (&json!("log_store"), &row["last_seq"]));
            let now = vera.get(&format!("/agent-tasks/{task}")).await.expect(200)["log_archived_at"].clone();
            assert_eq!((&proof["log_archived_at"], proof["verified_at"].is_string()), (&now, true));
        }
        let mut signed = proof.clone();
        let jws = signed.as_object_mut().unwrap().remove("jws").unwrap();
        let jws = jws.as_str().unwrap().to_owned();
        assert_eq!(payload(&world, &jws).await, signed);
        proofs.push(jws);
        landed(&world, &task).await;
        archived(&world, &task).await;
    }
    // No key of ours has signed anything else.
    let [live, kept] = [&proofs[0], &proofs[1]].map(|jws| jws.split('.').collect::<Vec<_>>());
    let mixed = [live[0], kept[1], live[2]].join(".");
    let keys: JwkSet =
        serde_json::from_value(world.anyone().get("//.well-known/jwks.json").await.expect(200).clone()).unwrap();
    let key = DecodingKey::from_jwk(&keys.keys[0]).unwrap();
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    assert!(decode::<Value>(&mixed, &key, &validation).is_err());
    assert!(decode::<Value>(&proofs[1], &key, &validation).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_is_no_token_and_a_token_is_no_proof() {
    let world = embedded().await;
    let (agent, task) = (world.agent().await, world.task().await);
    let proof = agent.get(&format!("/agent-tasks/{task}/proof")).await.expect(200).clone();
    let bearer = world.bearer(proof["jws"].as_str().unwrap());
    bearer.get(&format!("/agent-tasks/{task}")).await.refused(401, "unauthenticated");
    bearer.get("/agent-tasks/").await.refused(401, "unauthenticated");
    let kinds = [agent.token(), proof["jws"].as_str().unwrap()].map(|jws| decode_header(jws).unwrap());
    assert_eq!(kinds[0].kid, kinds[1].kid, "the same key signs both");
    assert_ne!(kinds[0].typ, kinds[1].typ);
    let ring = mandate::auth::keys::KeyRing::open(&world.settings.auth.data_folder.join("keys")).unwrap();
    assert!(ring.verify_jws(agent.token(), TYPE).is_err());
    assert!(ring.verify_jws(proof["jws"].as_str().unwrap(), TYPE).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_a_task_reads_its_proof() {
    let world = embedded().await;
    let agent = world.agent().await;
    let worker = Seed::agent(&world.db, world.seed.organization_id, "worker").await;
    let stranger = Seed::agent(&world.db, world.seed.organization_id, "stranger").await;
    let account = async |seed: &crate::support::AgentSeed| world.account(&seed.client_id, &seed.client_secret).await;
    let (worker, stranger) = (account(&worker).await, account(&stranger).await);
    let task = world.task_with(json!({"agent_slug": "worker"})).await;
    let path = format!("/agent-tasks/{task}/proof");
    for person in ["vera", "oscar", "abe", "ada"] {
        world.person(person).get(&path).await.expect(200);
    }
    let (trigger, mallory) = (world.trigger().await, world.person("mallory"));
    let mut readers = 0;
    for client in [&agent, &worker, &stranger, &trigger, &mallory, &world.anyone()] {
        // As for every other look at the task.
        let (proof, row) = (client.get(&path).await, client.get(&format!("/agent-tasks/{task}")).await);
        assert_eq!((proof.status, &proof.body["code"]), (row.status, &row.body["code"]), "{}", proof.text);
        readers += i32::from(proof.status == 200);
    }
    assert_eq!(readers, 1, "not only the agent's own account");
    worker.get(&path).await.expect(200);
    let vera = world.person("vera");
    vera.get("/agent-tasks/T-999/proof").await.refused(404, "task_not_found");
    vera.get("/agent-tasks/nothing/proof").await.refused(404, "task_not_found");
    let other = Seed::plant(&world.db, "other").await;
    vera.in_organization(&other.slug).get(&path).await.refused(404, "task_not_found");
    // In any letter case.
    vera.get(&format!("/agent-tasks/{}/proof", task.to_lowercase())).await.expect(200);
}
