//! The directory: the organization, its members and projects, and the lists of all records.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::World;

#[tokio::test]
async fn the_organization_is_renamed_and_keeps_its_slug() {
    let world = World::new().await;
    let ada = world.person("ada");
    let first = ada.get("").await.expect(200).clone();
    assert_eq!((&first["slug"], &first["external_ref"]), (&json!("acme"), &json!(null)));
    let body = json!({"name": "Acme Ltd", "external_ref": "crm-1", "slug": "other", "id": "x"});
    let renamed = ada.put("", &body).await.expect(200).clone();
    assert_eq!((&renamed["name"], &renamed["external_ref"]), (&json!("Acme Ltd"), &json!("crm-1")));
    for kept in ["id", "slug", "created_at"] {
        assert_eq!(renamed[kept], first[kept]);
    }
    assert_ne!(renamed["updated_at"], first["updated_at"]);
    assert_eq!(world.person("vera").get("").await.expect(200), &renamed);
    let before = world.directory_footprint().await;
    assert_eq!(ada.put("", &body).await.expect(200), &renamed);
    ada.put("", &json!({})).await.invalid_at(&["/name"]);
    ada.put("", &json!({"name": " ", "external_ref": 5})).await.invalid_at(&["/name", "/external_ref"]);
    ada.put("", &json!({"name": "x".repeat(501), "external_ref": ""})).await.invalid_at(&["/name", "/external_ref"]);
    assert_eq!(world.directory_footprint().await, before);
    let bare = ada.put("", &json!({"name": "Acme Ltd"})).await;
    assert_eq!(bare.expect(200)["external_ref"], json!(null), "what is absent is none");
    assert_eq!(
        world.trail().await,
        [("updated".into(), "organization".into()), ("updated".into(), "organization".into())]
    );
}

#[tokio::test]
async fn a_person_is_one_member_in_whatever_letter_case() {
    let world = World::new().await;
    let ada = world.person("ada");
    let body = json!({"roles": ["operator", "viewer", "operator"], "name": "Grace Hopper", "email": "grace@example.com",
        "external_ref": "hr-7"});
    let made = ada.put("/members/GrAce", &body).await.expect(201).clone();
    assert_eq!((&made["person_id"], &made["roles"]), (&json!("grace"), &json!(["viewer", "operator"])));
    assert_eq!((&made["name"], &made["email"]), (&json!("Grace Hopper"), &json!("grace@example.com")));
    assert_eq!(made["external_ref"], "hr-7");
    assert_eq!(ada.get("/members/GRACE").await.expect(200), &made);
    assert_eq!(ada.put("/members/GRACE", &body).await.expect(200), &made, "the same membership again");
    world.person("Grace").get("/agent-tasks/").await.expect(200);
    let less = ada.put("/members/graCE", &json!({"roles": []})).await.expect(200).clone();
    assert_eq!((&less["roles"], &less["name"], &less["email"]), (&json!([]), &json!(null), &json!(null)));
    assert_eq!((&less["external_ref"], &less["created_at"]), (&json!(null), &made["created_at"]));
    ada.put("/members/%C3%89MILE", &json!({"roles": ["viewer"]})).await.expect(201);
    assert_eq!(ada.get("/members/%C3%A9mile").await.expect(200)["person_id"], "émile");
    ada.delete("/members/%C3%89mile").await.expect(204);
    ada.get("/members/%C3%A9mile").await.refused(404, "not_found");
}

#[tokio::test]
async fn every_fault_of_a_membership_is_named_at_once() {
    let world = World::new().await;
    let ada = world.person("ada");
    let before = world.directory_footprint().await;
    let put = |body: Value| {
        let ada = ada.clone();
        async move { ada.put("/members/grace", &body).await }
    };
    put(json!({})).await.invalid_at(&["/roles"]);
    put(json!({"roles": "viewer"})).await.invalid_at(&["/roles"]);
    put(json!({"roles": ["viewer", "root", 5, null], "name": "", "email": 1, "external_ref": " "}))
        .await
        .invalid_at(&["/roles/1", "/roles/2", "/roles/3", "/name", "/email", "/external_ref"]);
    ada.put("/members/two%20words", &json!({"roles": []})).await.invalid_at(&["person"]);
    ada.put(&format!("/members/{}", "x".repeat(201)), &json!({"roles": []})).await.invalid_at(&["person"]);
    ada.put("/members/a%00b", &json!({"roles": []})).await.refused(404, "not_found");
    ada.get("/members/a%00b").await.refused(404, "not_found");
    ada.get("/members/two%20words").await.refused(404, "not_found");
    ada.get("/members/grace").await.refused(404, "not_found");
    ada.delete("/members/grace").await.refused(404, "not_found");
    assert_eq!(world.directory_footprint().await, before);
}

#[tokio::test]
async fn roles_take_effect_at_once_and_removal_takes_access_away() {
    // The memory of who is who must not outlive a change that this server made.
    let world = World::with(|settings| settings.auth.directory_cache_seconds = 10).await;
    let (ada, oscar) = (world.person("ada"), world.person("oscar"));
    let task = world.task().await;
    let path = format!("/agent-tasks/{task}");
    ada.post(&format!("{path}/reassign"), &json!({"owner": "oscar"})).await.expect(200);
    oscar.post_nothing(&format!("{path}/pause")).await.expect(200);
    ada.put("/members/oscar", &json!({"roles": ["viewer"]})).await.expect(200);
    let refused = oscar.post_nothing(&format!("{path}/resume")).await;
    assert_eq!(refused.refused(403, "permission_denied")["permission"], "agent_task:manage");
    oscar.get(&path).await.expect(200);
    ada.put("/members/oscar", &json!({"roles": ["viewer", "operator"]})).await.expect(200);
    oscar.post_nothing(&format!("{path}/resume")).await.expect(200);
    ada.delete("/members/OSCAR").await.expect(204);
    oscar.get(&path).await.refused(403, "organization_forbidden");
    oscar.get("").await.refused(403, "organization_forbidden");
    assert_eq!(ada.get(&path).await.expect(200)["owner"], "oscar", "tasks keep their owner");
    let other = world.task().await;
    let reassigned = ada.post(&format!("/agent-tasks/{other}/reassign"), &json!({"owner": "oscar"})).await;
    reassigned.refused(422, "owner_not_member");
    ada.put("/members/oscar", &json!({"roles": ["viewer"]})).await.expect(201);
    oscar.get(&path).await.expect(200);
}

#[tokio::test]
async fn the_last_administrator_stays() {
    let world = World::new().await;
    let ada = world.person("ada");
    let before = world.directory_footprint().await;
    for roles in [json!([]), json!(["viewer", "operator", "approver"])] {
        ada.put("/members/ada", &json!({"roles": roles})).await.refused(409, "last_admin");
    }
    ada.delete("/members/ADA").await.refused(409, "last_admin");
    assert_eq!(world.directory_footprint().await, before);
    ada.put("/members/ada", &json!({"roles": ["viewer", "admin"], "name": "Ada"})).await.expect(200);
    ada.put("/members/bea", &json!({"roles": ["admin"]})).await.expect(201);
    ada.put("/members/ada", &json!({"roles": ["viewer"]})).await.expect(200);
    let put = ada.put("/members/ada", &json!({"roles": ["admin"]})).await;
    assert_eq!(put.refused(403, "permission_denied")["permission"], "agent_directory:manage");
    world.person("bea").delete("/members/bea").await.refused(409, "last_admin");
}

#[tokio::test]
async fn two_administrators_who_remove_each_other_leave_one() {
    let world = World::new().await;
    let admins = || async {
        let query = "SELECT count(*) FROM agent_directory.members WHERE 'admin' = ANY (roles)";
        sqlx::query_scalar::<_, i64>(query).fetch_one(&world.db).await.unwrap()
    };
    for round in 0..5 {
        let (ada, bea) = (world.person("ada"), world.person("bea"));
        for person in ["ada", "bea"] {
            let admin = if ada.get("").await.status == 200 { &ada } else { &bea };
            let put = admin.put(&format!("/members/{person}"), &json!({"roles": ["admin"]})).await;
            assert!([200, 201].contains(&put.status), "{}", put.text);
        }
        let (left, right) = tokio::join!(ada.delete("/members/bea"), bea.delete("/members/ada"));
        let mut answers = [(left.status, left.body["code"].clone()), (right.status, right.body["code"].clone())];
        answers.sort_by_key(|(status, _)| *status);
        assert_eq!(answers[0].0, 204, "round {round}: {answers:?}");
        // The loser found itself the last one, gone before it was asked, or the other one gone.
        let codes = [json!("last_admin"), json!("organization_forbidden"), json!("not_found")];
        assert!(codes.contains(&answers[1].1), "round {round}: {answers:?}");
        assert_eq!(admins().await, 1);
    }
}

#[tokio::test]
async fn a_deleted_project_takes_no_new_task_and_the_old_ones_keep_it() {
    let world = World::new().await;
    let ada = world.person("ada");
    let made = ada.put("/projects/web", &json!({"name": "Website", "external_ref": "git-1"})).await;
    let project = made.expect(201).clone();
    assert_eq!((&project["slug"], &project["name"]), (&json!("web"), &json!("Website")));
    let id = project["id"].as_str().unwrap();
    let (by_slug, by_id) = (ada.get("/projects/web").await, ada.get(&format!("/projects/{id}")).await);
    assert_eq!((by_slug.expect(200), by_id.expect(200)), (&project, &project));
    let renamed = ada.put(&format!("/projects/{id}"), &json!({"name": "Web"})).await;
    assert_eq!((&renamed.expect(200)["name"], &renamed.body["external_ref"]), (&json!("Web"), &json!(null)));
    let task = world.task_with(json!({"project_id": id})).await;
    let before = world.still(&task).await;
    ada.delete("/projects/web").await.expect(204);
    ada.get("/projects/web").await.refused(404, "not_found");
    ada.put(&format!("/projects/{id}"), &json!({"name": "Web"})).await.refused(404, "not_found");
    ada.delete(&format!("/projects/{id}")).await.refused(404, "not_found");
    let body = json!({"agent_slug": "reviewer", "title": "t", "description": "", "project_id": id});
    ada.post("/agent-tasks/", &body).await.invalid_at(&["/project_id"]);
    world.unmoved(&before).await;
    let listed = ada.all(&format!("/agent-tasks/?project_id={id}")).await;
    assert_eq!((listed.len(), &listed[0]["project_id"]), (1, &json!(id)));
    // The slug is free, and its next owner is another project.
    let again = ada.put("/projects/web", &json!({"name": "Website"})).await;
    assert_ne!(again.expect(201)["id"], id);
}

#[tokio::test]
async fn every_list_has_pages_in_order_of_names_and_a_filter() {
    let world = World::new().await;
    let ada = world.person("ada");
    let model = json!({"provider": "acme", "model_id": "m"});
    let kinds: [(&str, Value, &str, usize); 5] = [
        ("members", json!({"roles": ["viewer"]}), "person_id", 4),
        ("agents", json!({"name": "n"}), "slug", 1),
        ("triggers", json!({"name": "n"}), "slug", 1),
        ("models", model, "slug", 1),
        ("projects", json!({"name": "n"}), "slug", 1),
    ];
    for (kind, body, name, seeded) in kinds {
        for slug in ["z-5", "z-1", "z-4", "z-2", "z-3"] {
            let mut body = body.clone();
            body["external_ref"] = json!(if slug < "z-4" { "ours" } else { "theirs" });
            if kind == "models" {
                body["model_id"] = json!(format!("{slug}-2026"));
            }
            ada.put(&format!("/{kind}/{slug}"), &body).await.expect(201);
        }
        let names = |entries: &[Value]| -> Vec<String> {
            entries.iter().map(|entry| entry[name].as_str().unwrap().to_owned()).collect()
        };
        let pages = world.person("vera").pages(&format!("/{kind}?limit=2")).await;
        assert!(pages.iter().rev().skip(1).all(|page| page.len() == 2), "{kind}");
        let listed = names(&pages.concat());
        assert_eq!(listed.len(), seeded + 5, "{kind}");
        assert!(listed.is_sorted() && listed.ends_with(&["z-4".to_owned(), "z-5".to_owned()]), "{kind}: {listed:?}");
        let ours = ada.pages(&format!("/{kind}?external_ref=ours&limit=2")).await;
        assert_eq!(names(&ours.concat()), ["z-1", "z-2", "z-3"], "{kind}");
        assert_eq!(ours.len(), 2);
        assert!(ada.all(&format!("/{kind}?external_ref=our")).await.is_empty(), "{kind}");
        // A cursor belongs to its list and filter.
        let next = ada.get(&format!("/{kind}?limit=2")).await.next().unwrap();
        let cursor = next.split("cursor=").nth(1).unwrap();
        ada.get(&format!("/{kind}?external_ref=ours&cursor={cursor}")).await.refused(400, "invalid_cursor");
        ada.get(&format!("/{kind}?cursor=AAAA")).await.refused(400, "invalid_cursor");
        ada.get(&format!("/{kind}?limit=0")).await.invalid_at(&["limit"]);
        ada.get(&format!("/{kind}?limit=101&external_ref=%00")).await.invalid_at(&["limit", "external_ref"]);
        ada.delete(&format!("/{kind}/z-2")).await.expect(204);
        assert_eq!(names(&ada.all(&format!("/{kind}?external_ref=ours")).await), ["z-1", "z-3"], "{kind}");
    }
}

#[tokio::test]
async fn parallel_puts_of_one_name_make_one_record() {
    let world = World::new().await;
    let ada = world.person("ada");
    let kinds = [
        ("members", json!({"roles": ["viewer"]}), "person_id", 1),
        ("agents", json!({"name": "n"}), "id", 2),
        ("triggers", json!({"name": "n"}), "id", 2),
        ("models", json!({"provider": "p", "model_id": "m", "input_cost_per_million": "1"}), "id", 1),
        ("projects", json!({"name": "n"}), "id", 1),
    ];
    for (kind, body, id, rows) in kinds {
        let known = world.trail().await.len();
        let path = format!("/{kind}/fresh");
        let answers = join_all((0..8).map(|_| ada.put(&path, &body))).await;
        let mut statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 201], "{kind}");
        for answer in &answers {
            assert_eq!(answer.body[id], answers[0].body[id], "{kind}");
            let shown = answer.body.get("client_secret").is_some_and(Value::is_string);
            assert_eq!(shown, answer.status == 201 && rows == 2, "{kind}: {}", answer.text);
        }
        assert_eq!(world.trail().await.len(), known + rows, "{kind}: one change, one row");
    }
}

#[tokio::test]
async fn a_name_in_a_route_is_a_slug_or_the_id_of_what_is_there() {
    let world = World::new().await;
    let ada = world.person("ada");
    let before = world.directory_footprint().await;
    let nobody = "01890a5d-ac96-774b-bcce-b302099a8057";
    let model = json!({"provider": "p", "model_id": "m"});
    for (kind, parameter, body) in [
        ("agents", "agent", json!({"name": "n"})),
        ("triggers", "trigger", json!({"name": "n"})),
        ("models", "model", model),
        ("projects", "project", json!({"name": "n"})),
    ] {
        for bad in ["Upper", "-x", "a%20b", "a%2Fb", "%C3%A9", &"x".repeat(101)] {
            ada.put(&format!("/{kind}/{bad}"), &body).await.invalid_at(&[parameter]);
            ada.get(&format!("/{kind}/{bad}")).await.refused(404, "not_found");
            ada.delete(&format!("/{kind}/{bad}")).await.refused(404, "not_found");
        }
        for unknown in [nobody, &nobody.replace('-', "")] {
            ada.put(&format!("/{kind}/{unknown}"), &body).await.refused(404, "not_found");
            ada.get(&format!("/{kind}/{unknown}")).await.refused(404, "not_found");
        }
        ada.send(ada.request(reqwest::Method::PUT, &format!("/{kind}/x"))).await.refused(400, "invalid_json");
        ada.put(&format!("/{kind}/x"), &json!([])).await.refused(422, "invalid_body");
    }
    assert_eq!(world.directory_footprint().await, before);
}
