//! A log store that is away.

use std::time::Duration;

use mandate::config::Role;
use mandate::domain::ids::{AccountId, AgentId, OrganizationId, TaskId};
use mandate::domain::log_page::EventPage;
use mandate::service::caller::{Located, Ownership};
use mandate::service::sweep::SweepError;
use mandate::service::waiting::Following;
use serde_json::json;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::place::{Place, at_length, only, outage};
use crate::proof::{archived, end_and_prove};
use crate::servers::ClickHouseServer;
use crate::support::{Client, World};
use crate::writers::{Writers, never, tasks, unavailable};

/// Between two calls of a writer.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest that a route of a living task takes, whatever the log store does.
const PROMPT: Duration = Duration::from_secs(2);

/// A task whose log is archived.
async fn archived_task(world: &World, agent: &Client) -> String {
    let (task, session) = world.working(agent).await;
    agent.say(&task, &session, "to be archived").await.expect(201);
    agent.finish(&task).await;
    archived(world).await;
    task
}

async fn living_reads_are_prompt(world: &World, task: &str) {
    let ada = world.person("ada");
    for path in
        [format!("/agent-tasks/{task}"), format!("/agent-tasks/{task}/events?limit=5"), "/agent-tasks/".to_owned()]
    {
        let begun = Instant::now();
        ada.get(&path).await.expect(200);
        assert!(begun.elapsed() < PROMPT, "{path} took {:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn while_the_log_store_is_away_only_what_it_keeps_is_unavailable_and_all_of_it_lands_later() {
    let mut clickhouse = ClickHouseServer::start();
    let place = Place::shared().on_clickhouse(clickhouse.url());
    let world = place.world(|_| {}).await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let old = archived_task(&world, &agent).await;
    let tasks = tasks(&world, 8).await;
    let writers = Writers::paced(PAUSE, 8, &tasks, |_| agent.clone(), never);
    writers.advance(100).await;
    let log = &world.service.counters().log;
    for kill in [false, true] {
        if kill {
            clickhouse.kill();
        } else {
            clickhouse.stop();
        }
        let (begun, failed) = (Instant::now(), log.failed_rounds.get());
        while log.failed_rounds.get() == failed || begun.elapsed() < outage() {
            writers.advance(20).await;
            for path in [format!("/agent-tasks/{old}/events"), "/agent-usage".to_owned()] {
                let reply = ada.get(&path).await;
                assert!(unavailable(&reply), "{path}: {reply:?}");
            }
            ada.get(&format!("/agent-tasks/{old}")).await.expect(200);
            living_reads_are_prompt(&world, &tasks[0]).await;
        }
        clickhouse.start_again();
        ada.get(&format!("/agent-tasks/{old}/events")).await.expect(200);
        writers.advance(50).await;
    }
    let written = writers.end().await;
    end_and_prove(&world, &place, &tasks, &written).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_log_store_that_hangs_holds_up_nothing_but_its_own_reads_and_those_end_in_time() {
    let clickhouse = ClickHouseServer::start();
    let place = Place::shared().on_clickhouse(clickhouse.url());
    let world = place.world(|_| {}).await;
    let (agent, ada) = (world.agent().await, world.person("ada"));
    let old = archived_task(&world, &agent).await;
    let tasks = tasks(&world, 8).await;
    let writers = Writers::paced(PAUSE, 8, &tasks, |_| agent.clone(), never);
    writers.advance(50).await;
    clickhouse.freeze();
    let begun = Instant::now();
    let reads: Vec<_> = [format!("/agent-tasks/{old}/events"), "/agent-usage".to_owned()]
        .into_iter()
        .map(|path| {
            let ada = ada.clone();
            tokio::spawn(async move { ada.get(&path).await })
        })
        .collect();
    while !reads.iter().all(tokio::task::JoinHandle::is_finished) {
        writers.advance(20).await;
        living_reads_are_prompt(&world, &tasks[0]).await;
    }
    // Before the request's own limit is over, which would say nothing of why.
    assert!(begun.elapsed() < Duration::from_secs(world.settings.server.request_timeout_seconds));
    for read in reads {
        let reply = read.await.unwrap();
        assert!(unavailable(&reply), "{reply:?}");
    }
    clickhouse.thaw();
    let written = writers.end().await;
    end_and_prove(&world, &place, &tasks, &written).await;
}

/// A reader of the task who has seen all of it.
async fn follower(world: &World, task: &str) -> Following {
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let id = |name: &str| row[name].as_str().unwrap().parse::<Uuid>().unwrap();
    let ownership = Ownership {
        organization: OrganizationId(world.seed.organization_id),
        agent: AgentId(id("agent_id")),
        account: AccountId(id("service_account_id")),
        created_by: None,
        parent_agent: None,
    };
    let located = Located { id: TaskId(id("id")), task: ownership };
    let page = EventPage { after_seq: row["last_seq"].as_i64(), limit: 100, ..EventPage::default() };
    let mut following = world.service.follow(located, page).unwrap();
    assert_eq!(world.service.next_events(&mut following).await.unwrap(), []);
    following
}

/// More readers than are woken at once.
const CROWD: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_that_wait_for_the_log_store_keep_no_turn_from_those_of_living_tasks() {
    let clickhouse = ClickHouseServer::start();
    let place = Place::shared().on_clickhouse(clickhouse.url()).direct();
    let world = place.world(|settings| only(settings, &[Role::Api, Role::Publisher])).await;
    let (agent, tasks) = (world.agent().await, tasks(&world, 3).await);
    let [behind, at_head, living] = &tasks[..] else { panic!("{tasks:?}") };
    let mut waiting = Vec::new();
    for _ in 0..CROWD {
        waiting.push(follower(&world, behind).await);
    }
    for task in [behind, at_head] {
        agent.finish(task).await.expect(200);
    }
    let mut done = Vec::new();
    for _ in 0..CROWD {
        done.push(follower(&world, at_head).await);
    }
    let archived = "SELECT count(*) FROM agent_runtime.tasks WHERE log_archived_at IS NOT NULL";
    at_length("both logs are archived", async || {
        world.sweep().await;
        sqlx::query_scalar::<_, i64>(archived).fetch_one(&world.db).await.unwrap() == 2
    })
    .await;
    let mut live = follower(&world, living).await;
    clickhouse.freeze();
    world.service.look_for_news().await.unwrap();
    let waiting: Vec<_> = waiting
        .into_iter()
        .map(|mut following| {
            let service = world.service.clone();
            tokio::spawn(async move {
                assert!(following.news().await);
                service.next_events(&mut following).await
            })
        })
        .collect();
    for nth in 0..100 {
        agent.append(living, json!([{"type": "turn", "payload": {"body": "on"}}])).await.expect(201);
        let read = timeout(PROMPT, async {
            assert!(live.news().await);
            world.service.next_events(&mut live).await.unwrap()
        });
        let read = read.await.unwrap_or_else(|_| panic!("event {nth} waits with the log store"));
        assert_eq!(read.len(), 1);
    }
    // Who has seen all of it needs no store to know that nothing more comes.
    for mut following in done {
        assert!(timeout(PROMPT, following.news()).await.unwrap());
        let read = timeout(PROMPT, world.service.next_events(&mut following)).await.expect("it asks the log store");
        assert_eq!(read.unwrap(), []);
        assert!(following.is_closed() && !following.has_more());
    }
    assert!(waiting.iter().all(|read| !read.is_finished()), "the log store does not hang");
    clickhouse.thaw();
    for read in waiting {
        let read = read.await.unwrap().unwrap();
        assert_eq!(read.last().unwrap().event_type, "outcome.set");
    }
}

/// What waits on the stream for a log store that was away is late, not lost: sent again, all of it would come twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_waited_for_the_log_store_is_not_sent_again_at_once() {
    let mut clickhouse = ClickHouseServer::start();
    let place = Place::shared().on_clickhouse(clickhouse.url());
    let world = place
        .world(|settings| {
            only(settings, &[Role::Api, Role::Publisher]);
            settings.archive.patience_seconds = 60;
        })
        .await;
    clickhouse.stop();
    let tasks = tasks(&world, 3).await;
    at_length("the stream has everything", async || world.service.counters().log.published.get() >= 9).await;
    world.skew_clock(3_600);
    assert!(matches!(world.sweep.round().await, Err(SweepError::Log(_))));
    clickhouse.start_again();
    assert_eq!((world.sweep().await.republished, world.sweep().await.republished), (0, 0));
    world.skew_clock(3_600 + 61);
    let republished = world.sweep().await.republished;
    assert!(republished >= 9, "{republished} rows sent again");
    let agent = world.agent().await;
    agent.append(&tasks[0], json!([{"type": "turn", "payload": {"body": "new"}}])).await.expect(201);
    assert_eq!(world.sweep().await.republished, 0, "what was sent again is waited for");
}
