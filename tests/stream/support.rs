//! What every test starts from: topics of its own on the broker, a group of its own, and a log store of its own.

#![allow(clippy::disallowed_methods, reason = "fresh names and ids")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mandate::domain::digest::Digest;
use mandate::domain::ids::{AccountId, AgentId, EventId, ModelId, OrganizationId, ReportId, TaskId};
use mandate::domain::money::{Money, Prices, TokenCounts};
use mandate::domain::time::Timestamp;
use mandate::log::kafka::{KafkaAddress, KafkaOptions, KafkaStream};
use mandate::log::postgres::{PostgresLog, PostgresLogOptions};
use mandate::log::sink::{Landed, Sink};
use mandate::log::{Batch, EventRow, LogStore, Stream as _, UsageRow};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::Headers as _;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::database;

/// 2026-01-31T00:00:00Z.
const RECORDED: i64 = 1_769_817_600_000_000;

const TRIES: usize = 3_000;
const BETWEEN: Duration = Duration::from_millis(20);

pub fn broker() -> String {
    std::env::var("MANDATE_TEST_KAFKA").expect("MANDATE_TEST_KAFKA (host:port of a broker) is set by tests/run")
}

pub struct World {
    pub options: KafkaOptions,
    pub stream: KafkaStream,
    pub store: Arc<PostgresLog>,
    pub db: PgPool,
    pub organization: OrganizationId,
}

impl World {
    /// With topics.
    pub async fn new() -> Self {
        let world = Self::bare().await;
        world.stream.prepare().await.unwrap();
        world
    }

    /// Without topics.
    pub async fn bare() -> Self {
        let url = database::create().await;
        let db = PgPoolOptions::new().max_connections(2).connect(&url).await.unwrap();
        let store = PostgresLog::connect(&PostgresLogOptions {
            url,
            acquire_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            transaction_pooler: false,
        });
        let name = format!("t{}", Uuid::new_v4().simple());
        let options = KafkaOptions {
            address: KafkaAddress::parse(&format!("kafka://{}", broker())).unwrap(),
            topic_prefix: format!("{name}_"),
            partitions: 4,
            replication: -1,
            remake: false,
            group: format!("{name}-sink"),
            publish_timeout: Duration::from_secs(20),
            batch_rows: 1_000,
            batch_bytes: 8 << 20,
            linger: Duration::from_millis(100),
        };
        let (stream, store) = (KafkaStream::new(options.clone()), Arc::new(store.unwrap()));
        Self { options, stream, store, db, organization: OrganizationId(Uuid::new_v4()) }
    }

    pub fn topic(&self, name: &str) -> String {
        format!("{}{name}", self.options.topic_prefix)
    }

    pub fn event(&self, task: TaskId, seq: i64) -> EventRow {
        EventRow {
            organization_id: self.organization,
            task_id: task,
            seq,
            event_id: EventId(Uuid::new_v4()),
            event_type: "turn".to_owned(),
            schema_version: 1,
            actor_kind: "agent".to_owned(),
            actor_id: "reviewer".to_owned(),
            channel: Some("harness".to_owned()),
            session_id: None,
            at: Timestamp::from_micros(RECORDED).unwrap(),
            recorded_at: Timestamp::from_micros(RECORDED + seq).unwrap(),
            payload: format!(r#"{{"body":"turn {seq} \"ü\"","n":1E400}}"#),
            redacted: vec!["/a~1b".to_owned()],
            digest: Digest::of(&seq.to_be_bytes()),
            short_number: 7,
            agent_id: AgentId(Uuid::new_v4()),
            agent_slug: "reviewer".to_owned(),
            project_id: None,
            version: 1,
            trace: None,
        }
    }

    pub fn usage(&self, task: TaskId, seq: i64) -> UsageRow {
        UsageRow {
            organization_id: self.organization,
            task_id: task,
            report_id: ReportId(Uuid::new_v4()),
            seq,
            account_id: AccountId(Uuid::new_v4()),
            idempotency_key: format!("k{seq}"),
            session_id: None,
            model_id: "large".to_owned(),
            model_ref: Some(ModelId(Uuid::new_v4())),
            tokens: TokenCounts { tokens_in: 5, tokens_out: 6, cache_read_tokens: 7, cache_write_tokens: 0 },
            prices: Prices { input_cost_per_million: Some("1.25".parse().unwrap()), ..Prices::default() },
            cost: Some(Money::parse_amount("0.00000625").unwrap()),
            measured: true,
            corrects: None,
            unmeasured_delta: 0,
            unpriced_delta: 0,
            recorded_at: Timestamp::from_micros(RECORDED + seq).unwrap(),
            short_number: 7,
            agent_id: AgentId(Uuid::new_v4()),
            agent_slug: "reviewer".to_owned(),
            project_id: None,
            project_slug: None,
            version: 1,
            trace: None,
        }
    }

    /// Events 1 to `length` for each of `tasks` new tasks.
    pub fn batch(&self, tasks: usize, length: i64) -> Batch {
        let mut batch = Batch::default();
        for _ in 0..tasks {
            let task = TaskId(Uuid::new_v4());
            batch.events.extend((1..=length).map(|seq| self.event(task, seq)));
        }
        batch
    }

    pub async fn publish(&self, batch: &Batch) {
        let published = self.stream.publish(batch.clone()).await;
        assert_eq!(published.delivered, u64::try_from(batch.len()).unwrap(), "{published:?}");
        assert_eq!((published.failed, published.refused, published.fault), (0, 0, None));
    }

    /// How many event rows and usage rows the store has.
    pub async fn stored(&self) -> (i64, i64) {
        let events = sqlx::query_scalar("SELECT count(*) FROM agent_log.agent_task_events");
        let usage = sqlx::query_scalar("SELECT count(*) FROM agent_log.agent_usage");
        (events.fetch_one(&self.db).await.unwrap(), usage.fetch_one(&self.db).await.unwrap())
    }

    pub async fn has_stored(&self, events: i64, usage: i64) {
        let mut stored = (0, 0);
        for _ in 0..TRIES {
            stored = self.stored().await;
            if stored == (events, usage) {
                return;
            }
            tokio::time::sleep(BETWEEN).await;
        }
        panic!("in vain: {events} events and {usage} usage rows are stored, not {stored:?}");
    }

    pub fn sink(&self, store: Arc<dyn LogStore>) -> Arc<Sink> {
        Arc::new(Sink::new(self.options.clone(), store))
    }

    /// What is in a topic, by partition and offset.
    pub async fn wire(&self, topic: &str) -> Vec<Wire> {
        let (topic, partitions) = (self.topic(topic), self.options.partitions);
        tokio::task::spawn_blocking(move || read(&topic, partitions)).await.unwrap()
    }

    /// The sum of the offsets that the group has committed in a topic.
    pub async fn committed(&self, topic: &str) -> i64 {
        let (group, topic, partitions) = (self.options.group.clone(), self.topic(topic), self.options.partitions);
        let asked = move || {
            let consumer: BaseConsumer = client().set("group.id", group).create().unwrap();
            let mut all = TopicPartitionList::new();
            all.add_partition_range(&topic, 0, partitions - 1);
            let committed = consumer.committed_offsets(all, Duration::from_secs(20)).unwrap();
            let offset = |offset: Offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
            committed.elements().iter().map(|partition| offset(partition.offset())).sum()
        };
        tokio::task::spawn_blocking(asked).await.unwrap()
    }
}

pub fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker());
    config
}

pub fn admin() -> AdminClient<DefaultClientContext> {
    client().create().unwrap()
}

pub async fn delete_topics(topics: &[&str]) {
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    for deleted in admin().delete_topics(topics, &options).await.unwrap() {
        deleted.unwrap();
    }
}

/// Puts any bytes into a topic.
pub async fn produce(topic: &str, key: Option<&[u8]>, value: Option<&[u8]>) {
    let producer: FutureProducer = client().set("message.max.bytes", "2000000").create().unwrap();
    let mut record = FutureRecord::<[u8], [u8]>::to(topic);
    (record.key, record.payload) = (key, value);
    producer.send(record, Duration::from_secs(20)).await.unwrap();
}

/// A message as it is on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wire {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: BTreeMap<String, String>,
    pub partition: i32,
    pub offset: i64,
}

fn read(topic: &str, partitions: i32) -> Vec<Wire> {
    let consumer: BaseConsumer =
        client().set("group.id", "reader").set("enable.partition.eof", "true").create().unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..partitions {
        all.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&all).unwrap();
    let (mut messages, mut ended) = (Vec::new(), 0);
    while ended < partitions {
        match consumer.poll(None) {
            Some(Ok(message)) => messages.push(Wire {
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
                headers: message.headers().map_or_else(BTreeMap::new, |headers| {
                    let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
                    headers.iter().map(|header| (header.key.to_owned(), text(header.value))).collect()
                }),
                partition: message.partition(),
                offset: message.offset(),
            }),
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
    messages.sort_by_key(|message| (message.partition, message.offset));
    messages
}

/// A sink that steps until it is stopped.
pub struct Running {
    pub sink: Arc<Sink>,
    stop: CancellationToken,
    task: JoinHandle<Landed>,
}

impl Running {
    pub fn start(sink: Arc<Sink>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (sink, stop) = (Arc::clone(&sink), stop.clone());
            async move {
                let mut all = Landed::default();
                while !stop.is_cancelled() {
                    let landed = sink.step(&stop).await.unwrap();
                    all.rows.extend(landed.rows);
                    all.refused += landed.refused;
                }
                all
            }
        });
        Self { sink, stop, task }
    }

    /// Stops it and leaves the group; answers all that landed.
    pub async fn stop(self) -> Landed {
        self.stop.cancel();
        let landed = tokio::time::timeout(Duration::from_secs(30), self.task).await.expect("it stops").unwrap();
        self.sink.close().await;
        landed
    }

    /// Drops it in the middle of whatever it does.
    pub async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    for _ in 0..TRIES {
        if condition().await {
            return;
        }
        tokio::time::sleep(BETWEEN).await;
    }
    panic!("in vain: {what}");
}
