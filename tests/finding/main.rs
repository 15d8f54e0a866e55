//! Lists over a million tasks: the plans of the very statements that the store runs.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

#[path = "../support/generated_tasks.rs"]
mod generated_tasks;
#[path = "../api/support/mod.rs"]
mod support;

mod plan;

use std::time::Duration;

use generated_tasks::{agents, filters, generate, organization};
use mandate::app::store_options;
use mandate::config::{SecretUrl, Settings};
use mandate::domain::ids::{AgentId, RequestId, TaskId};
use mandate::domain::request::{RequestKind, RequestStatus};
use mandate::domain::status::Status;
use mandate::domain::time::Timestamp;
use mandate::store::{InboxPage, Sort, Store, TaskFilter, TaskPosition};
use plan::Plan;
use sqlx::{Connection as _, Executor as _, PgConnection};
use support::database;
use uuid::Uuid;

const TASKS: u32 = 1_000_000;
/// Blocks that a page may ask for, however many tasks there are.
const BLOCKS_MAX: u64 = 300;
/// Blocks that a search may ask for here, where the most that one sorts is some thousand tasks.
const SEARCH_BLOCKS_MAX: u64 = 5_000;
/// Entries of a page when the query does not say.
const PAGE: u32 = 50;
/// The most entries of a page.
const PAGE_MAX: u32 = 100;

/// The middle of all tasks.
fn middle() -> Timestamp {
    let begin = Timestamp::parse("2026-01-01T00:00:00Z").unwrap();
    begin.plus(Duration::from_secs(u64::from(TASKS) / 3 / 2))
}

/// A list that must cost what it shows.
struct Case {
    name: String,
    filter: TaskFilter,
    sort: Sort,
}

/// Each filter alone, newest first; each status also by the time in it; what an agent asks for its own tasks.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, filter) in filters() {
        if filter == (TaskFilter { statuses: filter.statuses.clone(), ..TaskFilter::default() }) {
            let (filter, sort) = (filter.clone(), Sort::StatusSince);
            cases.push(Case { name: format!("{name}, longest first"), filter, sort });
        }
        cases.push(Case { name, filter, sort: Sort::Newest });
    }
    let alone = |name: &str, filter| Case { name: name.to_owned(), filter, sort: Sort::Newest };
    let labels = vec![("run".to_owned(), "500000".to_owned())];
    cases.push(alone("a label of one task", TaskFilter { labels, ..TaskFilter::default() }));
    cases.push(alone("q, a short id", TaskFilter { text: Some("t-500000".to_owned()), ..TaskFilter::default() }));
    cases
}

/// What is wrong with how Postgres answers.
fn faults(what: &str, plan: &Plan, may_sort: bool, blocks_max: u64) -> Vec<String> {
    let mut faults: Vec<_> = plan.scanned.iter().map(|table| format!("a sequential scan of {table}")).collect();
    faults.extend((plan.sorted && !may_sort).then(|| "a sort".to_owned()));
    faults.extend((plan.blocks > blocks_max).then(|| format!("{} blocks", plan.blocks)));
    faults.into_iter().map(|fault| format!("{what}: {fault}\n{}", plan.text)).collect()
}

async fn look_at_lists(store: &Store) -> Vec<String> {
    let mut wrong = Vec::new();
    for Case { name, filter, sort } in cases() {
        let explain = async |after: Option<TaskPosition>, limit: u32| {
            let plan = store.explain_tasks(organization(), &filter, sort, after, limit).await;
            Plan::of(&plan.unwrap())
        };
        let page = store.tasks(organization(), &filter, sort, None, PAGE).await.unwrap();
        let mut plans = vec![("the first page", explain(None, PAGE).await)];
        assert_eq!(plans[0].1.rows, page.tasks.len() as u64 + u64::from(page.next.is_some()), "{name}");
        assert!(!page.tasks.is_empty(), "{name}: nothing was found");
        plans.push(("the middle", explain(Some(TaskPosition { at: middle(), id: TaskId(Uuid::nil()) }), PAGE).await));
        if page.next.is_some() {
            let second = explain(page.next, PAGE).await;
            assert!(second.rows > 0, "{name}: nothing on the second page");
            plans.push(("the second page", second));
        }
        if filter.labels.is_empty() {
            // Tasks found by a label are looked up one by one, so their largest page costs more, but no more each.
            plans.push(("the largest page", explain(None, PAGE_MAX).await));
        }
        let costs: Vec<_> = plans.iter().map(|(_, plan)| format!("{} of {}", plan.blocks, plan.rows)).collect();
        println!("{name}: blocks of rows: {}", costs.join(", "));
        for (page, plan) in &plans {
            // A search sorts what it finds, and reads it for that.
            let blocks_max = if filter.text.is_some() { SEARCH_BLOCKS_MAX } else { BLOCKS_MAX };
            wrong.extend(faults(&format!("{name}, {page}"), plan, filter.text.is_some(), blocks_max));
        }
    }
    wrong
}

/// What an agent's account asks most, its own open tasks, is found among the open ones.
async fn look_at_an_agents_open_tasks(store: &Store) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, agent) in agents() {
        let filter = TaskFilter { agent: Some(agent), statuses: vec![Status::Queued], ..TaskFilter::default() };
        for sort in [Sort::Newest, Sort::StatusSince] {
            let plan = store.explain_tasks(organization(), &filter, sort, None, PAGE).await.unwrap();
            let plan = Plan::of(&plan);
            println!("queued tasks of the agent {name}, {sort:?}: {} blocks of {} rows", plan.blocks, plan.rows);
            let scanned = plan.scanned.iter().map(|table| format!("{name} {sort:?}: a scan of {table}\n{}", plan.text));
            wrong.extend(scanned);
        }
    }
    wrong
}

async fn look_at_the_inbox(store: &Store) -> Vec<String> {
    let mut wrong = Vec::new();
    let statuses = [
        RequestStatus::Open,
        RequestStatus::Answered,
        RequestStatus::Approved,
        RequestStatus::Expired,
        RequestStatus::Void,
    ];
    let rare: Vec<Option<AgentId>> = agents().into_iter().map(|(_, agent)| Some(agent)).collect();
    for status in statuses {
        for kind in [None, Some(RequestKind::Feedback), Some(RequestKind::Approval)] {
            for agent in [&[None], rare.as_slice()].concat() {
                for after in [None, Some(InboxPage { at: middle(), id: RequestId(Uuid::nil()) })] {
                    // Kind and agent together are found among the requests of one of them.
                    if kind.is_some() && agent.is_some() {
                        continue;
                    }
                    let plan = store.explain_inbox(organization(), status, kind, agent, after, PAGE).await.unwrap();
                    let name = format!("requests {status} {kind:?} {agent:?} {after:?}");
                    // Those that no worker has seen yet are few, and found by their time.
                    let may_sort = status == RequestStatus::Expired;
                    wrong.extend(faults(&name, &Plan::of(&plan), may_sort, BLOCKS_MAX));
                }
            }
        }
    }
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_each_filter_costs_what_it_shows_however_many_tasks_there_are() {
    let url = database::create().await;
    let mut db = PgConnection::connect(&url).await.unwrap();
    // Should this fail before it drops the database.
    db.execute("CREATE TABLE public.spoiled_on_purpose ()").await.unwrap();
    db.close().await.unwrap();
    generate(&url, TASKS).await.unwrap();
    let mut settings = Settings::default();
    settings.database.url = SecretUrl::new(url.clone());
    settings.database.max_connections = 1;
    let store = Store::connect(&store_options(&settings)).unwrap();
    let mut wrong = look_at_lists(&store).await;
    wrong.extend(look_at_an_agents_open_tasks(&store).await);
    wrong.extend(look_at_the_inbox(&store).await);
    store.close().await;
    // It is large.
    database::drop(&url).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
