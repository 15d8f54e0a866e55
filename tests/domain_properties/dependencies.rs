//! Dependencies: one row, written to the logs of both tasks.

use mandate::domain::aggregate::Aggregate;
use mandate::domain::change::{Context, Decision};
use mandate::domain::decide;
use mandate::domain::event::{Actor, ActorKind, Channel};
use mandate::domain::ids::{ShortId, TaskId};
use mandate::domain::refusal::{Place, Refusal};
use mandate::domain::relation::{Dependency, DependencyChange, Edit};
use serde_json::Value;
use uuid::Uuid;

use crate::life::{Life, ORGANIZATION, created, decided_by};

fn context<T>(decide: impl FnOnce(&mut Context<'_>) -> T) -> T {
    decided_by(Actor { kind: ActorKind::Human, id: "ada".to_owned(), channel: Some(Channel::Web) }, decide)
}

/// Two tasks, each archived or not.
fn two(archived: [bool; 2]) -> [Aggregate; 2] {
    [1, 2].map(|number: i64| {
        let id = TaskId(Uuid::from_u128(20 + u128::try_from(number).unwrap()));
        let create = |context: &mut Context<'_>| {
            decide::create(ORGANIZATION, id, ShortId(number), created(None), None, context).unwrap()
        };
        let Decision::Change(change) = context(create) else { panic!("a creation that creates nothing") };
        let task = change.next().clone();
        if archived[usize::try_from(number - 1).unwrap()] { Life::archived(&task) } else { task }
    })
}

fn dependency(
    [from, to]: &[Aggregate; 2],
    wanted: bool,
    found: Option<Dependency>,
) -> Result<Option<DependencyChange>, Refusal> {
    context(|context| decide::dependency(from, to, wanted, found, context))
}

/// Of each event: its type, the side that it names, and the operation.
fn events(change: &DependencyChange) -> Vec<(String, Value, Value)> {
    let event = |change: &mandate::domain::change::Change| {
        let [event] = change.events() else { panic!("not one event") };
        let payload: Value = serde_json::from_str(&event.payload).unwrap();
        (event.event_type.to_string(), payload["side"].clone(), payload["operation_id"].clone())
    };
    change.changes.iter().map(event).collect()
}

#[test]
fn a_dependency_is_added_and_removed_in_both_logs_by_one_operation() {
    let tasks = two([false, false]);
    let added = dependency(&tasks, true, None).unwrap().unwrap();
    assert_eq!(added.organization, ORGANIZATION);
    let Edit::Add(row) = added.edit.clone() else { panic!("not added") };
    assert_eq!((row.dependent, row.prerequisite), (tasks[0].task().id(), tasks[1].task().id()));
    assert_eq!((row.created_by_kind.as_str(), row.created_by.as_str()), ("human", "ada"));
    let operation = events(&added)[0].2.clone();
    let of = |kind: &str| {
        ["dependent", "prerequisite"].map(|side| (kind.to_owned(), Value::from(side), operation.clone())).to_vec()
    };
    assert_eq!(events(&added), of("dependency.added"));
    // What is there already, or gone, is nothing to write.
    assert_eq!(dependency(&tasks, true, Some(row.clone())), Ok(None));
    assert_eq!(dependency(&tasks, false, None), Ok(None));
    let removed = dependency(&tasks, false, Some(row.clone())).unwrap().unwrap();
    assert_eq!(removed.edit, Edit::Remove(row));
    assert_eq!(events(&removed), of("dependency.removed"));
}

#[test]
fn only_logs_that_are_not_archived_are_written() {
    for (archived, sides) in [([true, false], vec!["prerequisite"]), ([false, true], vec!["dependent"])] {
        let added = dependency(&two(archived), true, None).unwrap().unwrap();
        assert_eq!(events(&added).into_iter().map(|event| event.1).collect::<Vec<_>>(), sides);
    }
    assert_eq!(dependency(&two([true, true]), true, None), Err(Refusal::TaskArchived));
}

#[test]
fn no_task_requires_itself() {
    let [task, _] = two([false, false]);
    let itself = [task.clone(), task];
    let Err(Refusal::Invalid(faults)) = dependency(&itself, true, None) else { panic!("it requires itself") };
    assert_eq!(faults[0].place, Place::Path("other"));
    // Taking back what cannot be is fine.
    assert_eq!(dependency(&itself, false, None), Ok(None));
}
