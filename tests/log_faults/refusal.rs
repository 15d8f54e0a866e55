//! A row that the log store refuses, among very many that waited for it.

use futures::future::join_all;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::Headers as _;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use serde_json::{Value, json};

use crate::place::{PARTITIONS, Place, at_length, metric};
use crate::proof::{archived, prove};
use crate::servers::ClickHouseServer;
use crate::writers::tasks;

/// The reasons and values on the topic for dead letters so far.
pub fn dead_letters(place: &Place) -> Vec<(String, Value)> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", place.broker())
        .set("group.id", format!("{}-reader", place.name))
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(&place.topic("agent_dead_letters"), partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&all).unwrap();
    let (mut found, mut ends) = (Vec::new(), 0);
    while ends < PARTITIONS {
        match consumer.poll(None) {
            None => {}
            Some(Ok(message)) => {
                let reason = message.headers().unwrap().iter().find(|header| header.key == "mandate-reason").unwrap();
                let reason = String::from_utf8(reason.value.unwrap().to_vec()).unwrap();
                found.push((reason, serde_json::from_slice(message.payload().unwrap()).unwrap()));
            }
            Some(Err(KafkaError::PartitionEOF(_))) => ends += 1,
            Some(Err(fault)) => panic!("{fault}"),
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_bad_row_after_20_000_that_waited_is_set_apart_and_nothing_else_is() {
    let mut clickhouse = ClickHouseServer::start();
    let place = Place::shared().on_clickhouse(clickhouse.url());
    let world = place.world(|_| {}).await;
    let agent = world.agent().await;
    let names = tasks(&world, 20).await;
    place.in_store("ALTER TABLE agent_task_events ADD CONSTRAINT c CHECK position(payload, 'forbidden') = 0").await;
    clickhouse.stop();
    join_all(names.iter().enumerate().map(async |(nth, task)| {
        for batch in 0..10 {
            let mut events = vec![json!({"type": "turn", "payload": {"body": "waits"}}); 100];
            if (nth, batch) == (7, 5) {
                events[50]["payload"]["body"] = json!("forbidden");
            }
            agent.append(task, json!(events)).await.expect(201);
        }
        agent.finish(task).await;
    }))
    .await;
    let log = &world.service.counters().log;
    at_length("20,000 rows wait", async || log.published.get() >= 20_000).await;
    clickhouse.start_again();
    let left = "SELECT short_number, count(*) OVER () FROM agent_runtime.tasks WHERE log_archived_at IS NULL";
    at_length("all but one log is archived", async || {
        let left: Vec<(i64, i64)> = sqlx::query_as(left).fetch_all(&world.db).await.unwrap();
        left.len() == 1
    })
    .await;
    // Sent again, it is refused again, each time after a longer wait.
    at_length("the row is refused again", async || metric(&world.base, "mandate_log_refused_rows_total").await >= 2)
        .await;
    assert!(log.republished.get() >= 1);
    let left: Vec<(i64, i64)> = sqlx::query_as(left).fetch_all(&world.db).await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(names[7], format!("T-{}", left[0].0));
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_runtime.events").fetch_one(&world.db).await.unwrap();
    assert_eq!(kept, world.last_seq(&names[7]).await, "a log with a row that is refused is never pruned");
    let found = {
        let place = place.clone();
        tokio::task::spawn_blocking(move || dead_letters(&place)).await.unwrap()
    };
    assert!(found.len() >= 2);
    for (_, letter) in &found {
        assert!(letter["payload"].as_str().unwrap().contains("forbidden"), "{letter}");
    }
    // Mended, the log follows the others.
    place.in_store("ALTER TABLE agent_task_events DROP CONSTRAINT c").await;
    archived(&world).await;
    prove(&world, &place, &[]).await;
}
