//! From rows to the wire.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mandate::domain::ids::TaskId;
use mandate::domain::limits::PAYLOAD_BYTES_MAX;
use mandate::domain::redaction::POINTER_BYTES_MAX;
use mandate::log::kafka::{KafkaAddress, KafkaStream, MESSAGE_BYTES_MAX, ROW_BYTES_MAX};
use mandate::log::{Batch, EventRow, LogStore as _, Stream as _, UsageRow};
use rdkafka::admin::{AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use uuid::Uuid;

use crate::support::{Running, Wire, World, admin, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_made_once_with_room_for_the_largest_row() {
    let world = World::bare().await;
    world.stream.prepare().await.unwrap();
    world.stream.prepare().await.unwrap();
    for name in ["agent_task_events", "agent_usage", "agent_dead_letters"] {
        let topic = world.topic(name);
        let described = admin().describe_configs(&[ResourceSpecifier::Topic(&topic)], &AdminOptions::new()).await;
        let described = described.unwrap().remove(0).unwrap();
        let limit = described.get("max.message.bytes").unwrap().value.clone();
        assert_eq!(limit, Some(MESSAGE_BYTES_MAX.to_string()), "{name}");
        let metadata = admin().inner().fetch_metadata(Some(&topic), Duration::from_secs(20)).unwrap();
        assert_eq!(metadata.topics()[0].partitions().len(), 4, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_prepare_at_once_both_succeed() {
    let world = World::bare().await;
    let other = KafkaStream::new(world.options.clone());
    let (one, two) = tokio::join!(world.stream.prepare(), other.prepare());
    one.unwrap();
    two.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_take_the_largest_row_is_refused() {
    let world = World::bare().await;
    let topic = world.topic("agent_usage");
    let small = NewTopic::new(&topic, 1, TopicReplication::Fixed(1)).set("max.message.bytes", "300000");
    admin().create_topics(&[small], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
    let made = || admin().inner().fetch_metadata(Some(&topic), Duration::from_secs(20));
    eventually("the topic is known", async || !made().unwrap().topics()[0].partitions().is_empty()).await;
    let fault = world.stream.prepare().await.unwrap_err().to_string();
    for part in [topic.as_str(), "300000", &ROW_BYTES_MAX.to_string()] {
        assert!(fault.contains(part), "{fault} does not say {part}");
    }
}

/// What `prepare` lets pass must be enough for whole batches too, not only for one row.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_with_just_room_for_the_largest_row_takes_full_batches() {
    let world = World::bare().await;
    let (topic, limit) = (world.topic("agent_task_events"), ROW_BYTES_MAX.to_string());
    let tight = NewTopic::new(&topic, 4, TopicReplication::Fixed(1)).set("max.message.bytes", &limit);
    admin().create_topics(&[tight], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
    world.stream.prepare().await.unwrap();
    let mut batch = world.batch(1, 500);
    for row in &mut batch.events {
        // Compression must not help much.
        let noise: Vec<u8> = (0..300).flat_map(|_| *world.event(row.task_id, 1).event_id.0.as_bytes()).collect();
        row.payload = format!("{{\"b\":\"{}\"}}", STANDARD.encode(noise));
    }
    for _ in 0..3 {
        world.publish(&batch).await;
    }
}

fn header<'a>(message: &'a Wire, name: &str) -> &'a str {
    message.headers.get(name).unwrap_or_else(|| panic!("no header {name}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn key_value_and_headers_are_the_same_on_every_resend() {
    let world = World::new().await;
    let task = TaskId(Uuid::from_u128(0x0192_7777_0000_7000_8000_0000_0000_0001));
    let mut traced = world.event(task, 1);
    traced.event_type = "tool.called".to_owned();
    traced.trace = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    let batch = Batch { events: vec![traced, world.event(task, 2)], usage: vec![world.usage(task, 3)] };
    world.publish(&batch).await;
    world.publish(&batch).await;

    let events = world.wire("agent_task_events").await;
    assert_eq!(events.len(), 4);
    let [first, second] = [&events[0], &events[1]];
    assert_eq!(events.iter().map(|message| message.partition).max(), Some(first.partition), "one task, one partition");
    let expected: BTreeMap<_, _> = [
        ("ce_specversion", "1.0".to_owned()),
        ("ce_id", batch.events[0].event_id.to_string()),
        ("ce_source", format!("/organizations/{}", world.organization)),
        ("ce_type", "mandate.tool.called".to_owned()),
        ("ce_time", batch.events[0].recorded_at.to_string()),
        ("ce_subject", task.to_string()),
        ("content-type", "application/json".to_owned()),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    assert_eq!(first.headers, expected);
    assert_eq!(first.key.as_deref(), Some(task.to_string().as_bytes()));
    let mut row: EventRow = serde_json::from_slice(first.value.as_ref().unwrap()).unwrap();
    row.trace.clone_from(&batch.events[0].trace);
    assert_eq!(row, batch.events[0]);
    let columns: serde_json::Value = serde_json::from_slice(first.value.as_ref().unwrap()).unwrap();
    assert_eq!((&columns["type"], &columns["seq"]), (&"tool.called".into(), &1.into()));

    let derived = header(second, "traceparent");
    assert!(derived.starts_with(&format!("00-{}-", batch.events[1].event_id.0.simple())), "{derived}");
    let same = |a: &Wire, b: &Wire| (&a.key, &a.value, &a.headers) == (&b.key, &b.value, &b.headers);
    assert!(same(first, &events[2]) && same(second, &events[3]));

    let usage = world.wire("agent_usage").await;
    assert_eq!(usage.len(), 2);
    assert!(same(&usage[0], &usage[1]));
    assert_eq!(header(&usage[0], "ce_type"), "mandate.usage");
    assert_eq!(header(&usage[0], "ce_id"), batch.usage[0].report_id.to_string());
    let row: UsageRow = serde_json::from_slice(usage[0].value.as_ref().unwrap()).unwrap();
    assert_eq!(row, batch.usage[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_possible_row_passes() {
    let world = World::new().await;
    let task = TaskId(Uuid::from_u128(5));
    let mut row = world.event(task, 1);
    let filler = "\\\"\\\\".repeat(PAYLOAD_BYTES_MAX / 4);
    row.payload = format!("{{\"b\":\"{}\"}}", &filler[..PAYLOAD_BYTES_MAX - 8]);
    assert_eq!(row.payload.len(), PAYLOAD_BYTES_MAX);
    serde_json::from_str::<serde_json::Value>(&row.payload).unwrap();
    // One slash, and control characters: six bytes each as JSON.
    row.redacted = (0..16).map(|_| format!("/{}", "\u{1}".repeat(POINTER_BYTES_MAX / 16 - 1))).collect();
    let (name, text) = ("\u{1}".repeat(500), "\u{1f980}".repeat(500));
    (row.event_type, row.actor_id) = (name, text);
    let bytes = serde_json::to_vec(&row).unwrap().len();
    assert!(bytes > 512 * 1024 && bytes + 8 * 1024 < ROW_BYTES_MAX, "{bytes} of {ROW_BYTES_MAX}");
    let batch = Batch { events: vec![row.clone(); 3], usage: Vec::new() };
    world.publish(&batch).await;
    let running = Running::start(world.sink(world.store.clone()));
    world.has_stored(1, 0).await;
    assert_eq!(running.stop().await.refused, 0);
    assert_eq!(world.store.stored_events(world.organization, &[task], 1, 1).await.unwrap(), [row]);
}

/// The runtime has one thread here: were it blocked, nothing would tick.
#[tokio::test]
async fn a_broker_that_is_not_there_fails_every_row_in_time_and_blocks_nothing() {
    let world = World::bare().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut options = world.options.clone();
    options.address = KafkaAddress::parse(&format!("kafka://{closed}")).unwrap();
    options.publish_timeout = Duration::from_secs(1);
    let stream = KafkaStream::new(options);
    let ticks = AtomicUsize::new(0);
    let ticking = async {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            ticks.fetch_add(1, Ordering::SeqCst);
        }
    };
    let begun = Instant::now();
    let published = tokio::select! {
        published = stream.publish(world.batch(10, 10)) => published,
        () = ticking => unreachable!(),
    };
    assert_eq!((published.delivered, published.failed, published.refused), (0, 100, 0));
    assert!(published.fault.is_some());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let ticks = ticks.load(Ordering::SeqCst);
    assert!(ticks > 30, "the runtime came to its timer {ticks} times only");
    let begun = Instant::now();
    stream.flush(Duration::from_millis(300)).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}
