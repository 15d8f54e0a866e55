//! That a call wrote nothing, and what a log must look like whatever happened.

use serde_json::Value;

use super::World;

/// A task's row and log at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Still {
    task: String,
    row: Value,
    log: Vec<Value>,
}

impl World {
    /// The task's row and log as they are now.
    pub async fn still(&self, task: &str) -> Still {
        let row = self.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
        Still { task: task.to_owned(), row, log: self.log(task).await }
    }

    /// Asserts that the task is as it was: no field of the row moved, and nothing was written to the log.
    #[track_caller]
    pub fn unmoved<'a>(&'a self, before: &'a Still) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let now = self.still(&before.task).await;
            assert_eq!(now.row, before.row, "the row moved, at {place}");
            assert_eq!(now.log, before.log, "the log moved, at {place}");
        }
    }

    /// The log, checked: gapless, its head is the row's, `state.changed` and `outcome.set` agree with the row.
    pub async fn sound(&self, task: &str) -> Vec<Value> {
        let Still { row, log, .. } = self.still(task).await;
        for (index, event) in log.iter().enumerate() {
            assert_eq!(event["seq"], index + 1, "{task} has a gap");
        }
        let last = log.last().unwrap();
        assert_eq!(row["last_seq"], last["seq"]);
        assert_eq!(row["log_digest"], last["digest"]);
        let mut status = "queued".to_owned();
        for change in log.iter().filter(|event| event["type"] == "state.changed") {
            let payload = &change["payload"];
            assert_eq!(payload["from"], status, "{change}");
            assert_ne!(payload["from"], payload["to"], "{change}");
            payload["to"].as_str().unwrap().clone_into(&mut status);
        }
        assert_eq!(row["status"], status);
        let endings: Vec<_> = log.iter().filter(|event| event["type"] == "outcome.set").collect();
        assert_eq!(endings.len(), usize::from(status == "closed"), "{task}");
        if let Some(ending) = endings.first() {
            assert_eq!(row["outcome"], ending["payload"]["outcome"]);
            assert_eq!(row["outcome_reason"], ending["payload"]["reason"]);
        }
        log
    }

    /// The payloads of the events after `seq`, with their types: `(type, payload)`.
    pub async fn since(&self, task: &str, seq: i64) -> Vec<(String, Value)> {
        let log = self.sound(task).await;
        let new = log.iter().filter(|event| event["seq"].as_i64().unwrap() > seq);
        new.map(|event| (event["type"].as_str().unwrap().to_owned(), event["payload"].clone())).collect()
    }

    /// The length of the task's log.
    pub async fn last_seq(&self, task: &str) -> i64 {
        let read = self.person("ada").get(&format!("/agent-tasks/{task}")).await;
        read.expect(200)["last_seq"].as_i64().unwrap()
    }
}
