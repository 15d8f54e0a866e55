//! A database with as many generated tasks as wanted, for looking at how lists are answered. Of each filter's values one
//! is rare and of the oldest tasks, one has half of all tasks, and there are many others.

use std::sync::Mutex;

use mandate::domain::ids::{AccountId, AgentId, OrganizationId, PersonId, ProjectId};
use mandate::domain::status::Status;
use mandate::store::TaskFilter;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

/// The values that the generation gives, with the number in the ids of what goes with each and its kind of origin.
const VALUES: [(&str, u128, &str); 3] =
    [("rare", 1, "webhook"), ("frequent", 2, "schedule"), ("other-107", 107, "human")];

/// The organization of nearly all tasks.
pub fn organization() -> OrganizationId {
    OrganizationId(Uuid::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0001))
}

/// The agents with rare, frequent and other tasks.
pub fn agents() -> [(&'static str, AgentId); 3] {
    VALUES.map(|(value, number, _)| (value, AgentId(id_of(number))))
}

fn id_of(number: u128) -> Uuid {
    Uuid::from_u128(0x0000_0000_0000_7000_9000_0000_0000_0000 + number)
}

/// Fills the migrated database at `url`.
pub async fn generate(url: &str, tasks: u32) -> Result<(), sqlx::Error> {
    let mut db = PgConnection::connect(url).await?;
    db.execute(AssertSqlSafe(format!("SET finding.tasks = {tasks}"))).await?;
    db.execute(include_str!("generated_tasks.sql")).await?;
    // The slowest first, and two at once.
    let indexes = "SELECT definition FROM public.made_later ORDER BY definition LIKE '%gin%', definition";
    let indexes: Mutex<Vec<String>> = Mutex::new(sqlx::query_scalar(indexes).fetch_all(&mut db).await?);
    let make = async || {
        let mut db = PgConnection::connect(url).await?;
        db.execute("SET maintenance_work_mem = '256MB'; SET max_parallel_maintenance_workers = 0").await?;
        loop {
            let next = indexes.lock().ok().and_then(|mut indexes| indexes.pop());
            let Some(index) = next else { return db.close().await };
            db.execute(AssertSqlSafe(index)).await?;
        }
    };
    let (first, second) = tokio::join!(make(), make());
    first.and(second)?;
    let analyze = "ANALYZE agent_runtime.tasks, agent_runtime.task_labels, agent_runtime.task_texts,
        agent_runtime.requests";
    db.execute(analyze).await?;
    db.close().await
}

/// Every filter of a list alone, with each of the values.
pub fn filters() -> Vec<(String, TaskFilter)> {
    let all = TaskFilter::default;
    let mut filters = vec![("no filter".to_owned(), all())];
    for (value, number, kind) in VALUES {
        let id = id_of(number);
        for (name, filter) in [
            ("agent", TaskFilter { agent: Some(AgentId(id)), ..all() }),
            ("owner", TaskFilter { owner: PersonId::parse(value).ok(), ..all() }),
            ("project", TaskFilter { project: Some(ProjectId(id)), ..all() }),
            ("trigger", TaskFilter { created_by: Some(AccountId(id)), ..all() }),
            ("origin", TaskFilter { origin_kind: Some(kind.to_owned()), ..all() }),
            ("subject", TaskFilter { subject: Some(value.to_owned()), ..all() }),
            ("label", TaskFilter { labels: vec![("team".to_owned(), value.to_owned())], ..all() }),
            ("q", TaskFilter { text: Some(value.to_owned()), ..all() }),
        ] {
            filters.push((format!("{name} {value}"), filter));
        }
    }
    let open = vec![Status::Queued, Status::Running, Status::Blocked, Status::Paused];
    for statuses in [
        vec![Status::Paused],
        vec![Status::Queued],
        vec![Status::Closed],
        vec![Status::Queued, Status::Blocked, Status::Closed],
        open.clone(),
        [open, vec![Status::Closed]].concat(),
    ] {
        let names: Vec<_> = statuses.iter().map(ToString::to_string).collect();
        filters.push((names.join(" or "), TaskFilter { statuses, ..all() }));
    }
    filters
}
