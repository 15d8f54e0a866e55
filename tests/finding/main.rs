//! Lists over a million tasks: the plans of the very statements that the store runs.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

#[path = "../api/support/mod.rs"]
mod support;

mod plan;
mod table;

use mandate::domain::ids::{AccountId, AgentId, OrganizationId, PersonId, ProjectId, TaskId};
use mandate::domain::status::Status;
use mandate::domain::time::Timestamp;
use mandate::store::{Sort, Store, TaskFilter, TaskPosition};
use plan::Plan;
use table::{TASKS, Table, VALUES, id_of, organization};
use uuid::Uuid;

/// Blocks that a page may read, however many tasks there are.
const BLOCKS_MAX: u64 = 300;
/// Entries of a page when the query does not say.
const PAGE: u32 = 50;

/// A list that must cost what it shows.
struct Case {
    name: String,
    filter: TaskFilter,
    sort: Sort,
    /// What is sought as text may be sorted.
    may_sort: bool,
}

fn case(name: impl Into<String>, filter: TaskFilter) -> Case {
    Case { name: name.into(), may_sort: filter.text.is_some(), filter, sort: Sort::Newest }
}

/// Each filter alone, with a rare value of the oldest tasks, one that half of all have, and one among many.
fn cases() -> Vec<Case> {
    let all = TaskFilter::default;
    let mut cases = vec![case("no filter", all())];
    for (value, number) in VALUES {
        let id = id_of(number);
        let kind = match value {
            "rare" => "webhook",
            "frequent" => "schedule",
            _ => "human",
        };
        let label = vec![("team".to_owned(), value.to_owned())];
        let owner = PersonId::parse(value).unwrap();
        for (name, filter) in [
            ("agent", TaskFilter { agent: Some(AgentId(id)), ..all() }),
            ("owner", TaskFilter { owner: Some(owner), ..all() }),
            ("project", TaskFilter { project: Some(ProjectId(id)), ..all() }),
            ("trigger", TaskFilter { created_by: Some(AccountId(id)), ..all() }),
            ("origin", TaskFilter { origin_kind: Some(kind.to_owned()), ..all() }),
            ("subject", TaskFilter { subject: Some(value.to_owned()), ..all() }),
            ("label", TaskFilter { labels: label, ..all() }),
            ("q", TaskFilter { text: Some(value.to_owned()), ..all() }),
        ] {
            cases.push(case(format!("{name} {value}"), filter));
        }
    }
    let (paused, queued, closed) = (vec![Status::Paused], vec![Status::Queued], vec![Status::Closed]);
    let several = vec![Status::Queued, Status::Blocked, Status::Closed];
    let open = vec![Status::Queued, Status::Running, Status::Blocked, Status::Paused];
    let every = [open.clone(), closed.clone()].concat();
    for statuses in [paused, queued, closed, several, open, every] {
        let names = statuses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        let filter = TaskFilter { statuses, ..all() };
        cases.push(case(&names, filter.clone()));
        cases.push(Case { name: format!("{names}, longest first"), sort: Sort::StatusSince, ..case("", filter) });
    }
    cases.push(Case { sort: Sort::StatusSince, ..case("all, longest first", all()) });
    cases.push(case("one task's own label", TaskFilter { labels: vec![("run".into(), "500000".into())], ..all() }));
    cases.push(case("q of one short id", TaskFilter { text: Some("t-500000".into()), ..all() }));
    cases
}

/// The middle of all tasks. `status_since` is at most some hours later.
fn middle() -> TaskPosition {
    let begin = Timestamp::parse("2026-01-01T00:00:00Z").unwrap();
    let seconds = u64::from(TASKS) / 3 / 2;
    TaskPosition { at: begin.plus(std::time::Duration::from_secs(seconds)), id: TaskId(Uuid::nil()) }
}

/// What is wrong with how Postgres answers.
fn faults(case: &Case, page: &str, plan: &Plan) -> Vec<String> {
    let mut faults = Vec::new();
    if plan.rows == 0 && page == "first" {
        faults.push("nothing was found".to_owned());
    }
    faults.extend(plan.scanned.iter().map(|table| format!("a sequential scan of {table}")));
    if !case.may_sort {
        faults.extend(plan.sorted.then(|| "a sort".to_owned()));
    }
    if plan.blocks > BLOCKS_MAX && !case.may_sort {
        faults.push(format!("{} blocks", plan.blocks));
    }
    faults.into_iter().map(|fault| format!("{}, {page} page: {fault}\n{}", case.name, plan.text)).collect()
}

async fn explain(store: &Store, case: &Case, after: Option<TaskPosition>, limit: u32) -> Plan {
    let plan = store.explain_tasks(OrganizationId(organization()), &case.filter, case.sort, after, limit).await;
    Plan::of(&plan.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_each_filter_costs_what_it_shows_however_many_tasks_there_are() {
    let table = Table::generate().await;
    let store = table.store();
    let mut wrong = Vec::new();
    for case in cases() {
        let first = explain(&store, &case, None, PAGE).await;
        let found = store.tasks(OrganizationId(organization()), &case.filter, case.sort, None, PAGE).await.unwrap();
        wrong.extend(faults(&case, "first", &first));
        let middle = explain(&store, &case, Some(middle()), PAGE).await;
        wrong.extend(faults(&case, "middle", &middle));
        let mut pages = vec![first, middle];
        if found.next.is_some() {
            let second = explain(&store, &case, found.next, PAGE).await;
            assert!(second.rows > 0, "{}: the second page is empty", case.name);
            wrong.extend(faults(&case, "second", &second));
            pages.push(second);
        }
        let costs: Vec<_> = pages.iter().map(|plan| format!("{} rows {} blocks", plan.rows, plan.blocks)).collect();
        println!("{}: {}", case.name, costs.join(", "));
    }
    store.close().await;
    table.drop().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
