//! Faults that a broker answers, put into a mocked cluster.

use std::collections::BTreeSet;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use uuid::Uuid;

use super::*;
use crate::domain::digest::Digest;
use crate::domain::ids::{AgentId, EventId, OrganizationId, TaskId};
use crate::domain::time::Timestamp;
use crate::log::EventRow;

const TOPIC: &str = "agent_task_events";

type Cluster = MockCluster<'static, DefaultProducerContext>;

fn cluster() -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    cluster
}

fn stream(cluster: &Cluster, publish_timeout: Duration) -> KafkaStream {
    KafkaStream::new(KafkaOptions {
        address: KafkaAddress::parse(&format!("kafka://{}", cluster.bootstrap_servers())).unwrap(),
        topic_prefix: String::new(),
        partitions: 1,
        replication: 1,
        remake: false,
        group: "g".to_owned(),
        publish_timeout,
        batch_rows: 100,
        batch_bytes: 1 << 20,
        linger: Duration::from_millis(50),
    })
}

fn rows(first: i64, count: i64) -> Batch {
    let row = |seq: i64| EventRow {
        organization_id: OrganizationId(Uuid::from_u128(1)),
        task_id: TaskId(Uuid::from_u128(2)),
        seq,
        event_id: EventId(Uuid::from_u128(u128::try_from(seq).unwrap())),
        event_type: "turn".to_owned(),
        schema_version: 1,
        actor_kind: "agent".to_owned(),
        actor_id: "reviewer".to_owned(),
        channel: None,
        session_id: None,
        at: Timestamp::EPOCH,
        recorded_at: Timestamp::EPOCH,
        payload: "{}".to_owned(),
        redacted: Vec::new(),
        digest: Digest::ZERO,
        short_number: 1,
        agent_id: AgentId(Uuid::from_u128(3)),
        agent_slug: "reviewer".to_owned(),
        project_id: None,
        version: 1,
        trace: None,
    };
    Batch { events: (first..first + count).map(row).collect(), usage: Vec::new() }
}

/// The seqs in the topic, in order, each time that they are there.
fn arrived(cluster: &Cluster) -> Vec<i64> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "reader");
    config.set("enable.partition.eof", "true");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut all = TopicPartitionList::new();
    all.add_partition_offset(TOPIC, 0, Offset::Beginning).unwrap();
    consumer.assign(&all).unwrap();
    let mut seqs = Vec::new();
    loop {
        match consumer.poll(None) {
            Some(Ok(message)) => {
                let row: EventRow = serde_json::from_slice(message.payload().unwrap()).unwrap();
                seqs.push(row.seq);
            }
            Some(Err(KafkaError::PartitionEOF(_))) => return seqs,
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
}

fn delivered(count: u64) -> Published {
    Published { delivered: count, ..Published::default() }
}

/// Publishes until everything arrives: the client looks at the cluster again in its own time.
async fn recovers(stream: &KafkaStream, batch: Batch) {
    let count = u64::try_from(batch.len()).unwrap();
    for _ in 0..60 {
        if stream.publish(batch.clone()).await == delivered(count) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("it never recovers");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_tried_again_and_delivered_once() {
    let cluster = cluster();
    let stream = stream(&cluster, Duration::from_secs(30));
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        ],
    );
    assert_eq!(stream.publish(rows(1, 20)).await, delivered(20));
    assert_eq!(stream.publish(rows(21, 20)).await, delivered(20));
    assert_eq!(arrived(&cluster), (1..=40).collect::<Vec<_>>());
    assert!(stream.flush(Duration::from_secs(10)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_has_failed_for_good_is_followed_by_another() {
    let cluster = cluster();
    let stream = stream(&cluster, Duration::from_secs(10));
    assert_eq!(stream.publish(rows(1, 1)).await, delivered(1));
    cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]);
    let lost = stream.publish(rows(2, 3)).await;
    assert_eq!((lost.delivered, lost.failed), (0, 3), "{lost:?}");
    assert!(lost.fault.is_some());
    assert_eq!(stream.publish(rows(5, 3)).await, delivered(3));
    // The sweep brings what was lost.
    assert_eq!(stream.publish(rows(2, 3)).await, delivered(3));
    let arrived: BTreeSet<_> = arrived(&cluster).into_iter().collect();
    assert_eq!(arrived, (1..=7).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_may_not_be_written_fails_until_it_may() {
    let cluster = cluster();
    let stream = stream(&cluster, Duration::from_secs(2));
    cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]);
    let refused = stream.publish(rows(1, 3)).await;
    assert_eq!((refused.delivered, refused.failed, refused.refused), (0, 3, 0), "{refused:?}");
    recovers(&stream, rows(1, 3)).await;
    cluster.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).unwrap();
    let other = self::stream(&cluster, Duration::from_secs(2));
    let refused = other.publish(rows(4, 2)).await;
    assert_eq!((refused.delivered, refused.failed, refused.refused), (0, 2, 0), "{refused:?}");
    cluster.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    recovers(&other, rows(4, 2)).await;
    assert_eq!(arrived(&cluster).into_iter().collect::<BTreeSet<_>>(), (1..=5).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_not_there_fails_until_it_is() {
    let cluster = cluster();
    let stream = stream(&cluster, Duration::from_secs(2));
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    cluster.topic_error(TOPIC, denied).unwrap();
    let lost = stream.publish(rows(1, 3)).await;
    assert_eq!((lost.delivered, lost.failed), (0, 3), "{lost:?}");
    cluster.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    recovers(&stream, rows(1, 3)).await;
    assert_eq!(arrived(&cluster).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2, 3]));
}

#[tokio::test]
async fn more_than_the_queue_holds_waits_and_then_fails_in_time_beside_a_running_runtime() {
    let cluster = cluster();
    let stream = stream(&cluster, Duration::from_secs(2));
    assert_eq!(stream.publish(rows(1, 1)).await, delivered(1));
    cluster.broker_down(-1).unwrap();
    let begun = std::time::Instant::now();
    let ticks = async {
        let mut ticks = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            ticks += 1;
            if begun.elapsed() > Duration::from_millis(1_500) {
                return ticks;
            }
        }
    };
    let (published, ticks) = tokio::join!(stream.publish(rows(2, 21_000)), ticks);
    assert_eq!((published.delivered, published.failed), (0, 21_000));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(ticks > 15, "the runtime's one thread came to its timer {ticks} times only");
    let begun = std::time::Instant::now();
    assert!(stream.flush(Duration::from_millis(200)).await || begun.elapsed() < Duration::from_secs(2));
    cluster.broker_up(-1).unwrap();
    recovers(&stream, rows(2, 1)).await;
}
