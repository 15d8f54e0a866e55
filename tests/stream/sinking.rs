//! From the wire to the log store.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mandate::domain::digest::Digest;
use mandate::domain::ids::TaskId;
use mandate::domain::time::Timestamp;
use mandate::log::kafka::{KafkaAddress, KafkaStream, MESSAGE_BYTES_MAX};
use mandate::log::sink::{Landed, Sink};
use mandate::log::{Batch, LogStore as _, Stream as _};
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use sqlx::Executor as _;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::Faulty;
use crate::support::{Running, World, admin, delete_topics, eventually, produce};

#[tokio::test(flavor = "multi_thread")]
async fn every_row_arrives_and_stands_once() {
    let world = World::new().await;
    let running = Running::start(world.sink(world.store.clone()));
    let mut batch = world.batch(20, 50);
    let task = batch.events[0].task_id;
    batch.usage.extend((1..=30).map(|seq| world.usage(task, seq)));
    world.publish(&batch).await;
    world.publish(&batch).await;
    world.has_stored(1_000, 30).await;
    eventually("all offsets are committed", async || {
        world.committed("agent_task_events").await == 2_000 && world.committed("agent_usage").await == 60
    })
    .await;
    let landed = running.stop().await;
    assert_eq!((landed.rows.len(), landed.refused), (2_060, 0));
    let sorted = |mut times: Vec<Timestamp>| {
        times.sort();
        times
    };
    let recorded = batch.events.iter().map(|row| row.recorded_at).chain(batch.usage.iter().map(|row| row.recorded_at));
    assert_eq!(sorted(landed.rows), sorted(recorded.flat_map(|at| [at, at]).collect()));
    let mut expected: Vec<_> = batch.events.iter().filter(|row| row.task_id == task).cloned().collect();
    expected.sort_by_key(|row| row.seq);
    assert_eq!(world.store.stored_events(world.organization, &[task], 1, 50).await.unwrap(), expected);
    let reports: Vec<_> = batch.usage.iter().map(|row| (task, row.report_id)).collect();
    let mut stored = world.store.stored_usage(world.organization, &reports).await.unwrap();
    stored.sort_by_key(|row| row.seq);
    assert_eq!(stored, batch.usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_row_and_what_is_refused_is_set_apart_and_the_rest_lands() {
    let world = World::new().await;
    world.db.execute("ALTER TABLE agent_log.agent_task_events ADD CONSTRAINT odd CHECK (seq <> 3)").await.unwrap();
    let (events, usage) = (world.topic("agent_task_events"), world.topic("agent_usage"));
    let mut batch = world.batch(2, 5);
    batch.usage.push(world.usage(batch.events[0].task_id, 1));
    let mut broken = world.event(TaskId(Uuid::from_u128(1)), 1);
    broken.actor_id = "nul\0".to_owned();
    batch.events.push(broken);
    world.publish(&batch).await;
    produce(&events, Some(b"k\xff"), Some(b"no json \xff")).await;
    produce(&events, None, None).await;
    produce(&usage, Some(b"u"), Some(br#"{"task_id":"hunter2"}"#)).await;
    world.publish(&world.batch(1, 2)).await;

    let running = Running::start(world.sink(world.store.clone()));
    world.has_stored(10, 1).await;
    eventually("all offsets are committed", async || {
        world.committed("agent_task_events").await == 15 && world.committed("agent_usage").await == 2
    })
    .await;
    let landed = running.stop().await;
    assert_eq!((landed.rows.len(), landed.refused), (11, 6));

    let dead = world.wire("agent_dead_letters").await;
    assert_eq!(dead.len(), 6);
    let (wire_events, wire_usage) = (world.wire("agent_task_events").await, world.wire("agent_usage").await);
    for letter in &dead {
        let header = |name: &str| letter.headers[name].as_str();
        let wire = if header("mandate-topic") == usage { &wire_usage } else { &wire_events };
        assert!([&usage, &events].contains(&&letter.headers["mandate-topic"]));
        let at = (header("mandate-partition").parse().unwrap(), header("mandate-offset").parse().unwrap());
        let original = wire.iter().find(|message| (message.partition, message.offset) == at).unwrap();
        assert_eq!((&letter.key, &letter.value), (&original.key, &original.value));
        assert_eq!(letter.headers.len(), 4);
    }
    let reasons: Vec<_> = dead.iter().map(|letter| letter.headers["mandate-reason"].as_str()).collect();
    for (reason, count) in [("\"odd\"", 2), ("invalid byte sequence", 1), ("not a row: ", 2), ("no value", 1)] {
        let found = reasons.iter().filter(|found| found.contains(reason)).count();
        assert_eq!(found, count, "{reason} in {reasons:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_as_large_as_the_topic_takes_does_not_stop_the_partition() {
    let world = World::new().await;
    // Random, so that compression does not help: with its headers it is larger than the topic for dead letters takes.
    let noise = noise(&world, MESSAGE_BYTES_MAX);
    let poison = &noise[..MESSAGE_BYTES_MAX - 100];
    produce(&world.topic("agent_task_events"), Some(b"k"), Some(poison)).await;
    world.publish(&world.batch(1, 3)).await;
    let running = Running::start(world.sink(world.store.clone()));
    world.has_stored(3, 0).await;
    eventually("all offsets are committed", async || world.committed("agent_task_events").await == 4).await;
    assert_eq!(running.stop().await.refused, 1);
    let dead = world.wire("agent_dead_letters").await;
    let value = dead[0].value.as_ref().unwrap();
    assert!(!value.is_empty() && value.len() < poison.len() && poison.starts_with(value));
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_with_a_key_as_large_as_the_topic_takes_does_not_stop_the_partition() {
    let world = World::new().await;
    let noise = noise(&world, MESSAGE_BYTES_MAX);
    let key = &noise[..MESSAGE_BYTES_MAX - 100];
    let events = world.topic("agent_task_events");
    produce(&events, Some(key), None).await;
    let (half, rest) = key.split_at(MESSAGE_BYTES_MAX / 2);
    produce(&events, Some(half), Some(rest)).await;
    world.publish(&world.batch(1, 3)).await;
    let running = Running::start(world.sink(world.store.clone()));
    world.has_stored(3, 0).await;
    eventually("all offsets are committed", async || world.committed("agent_task_events").await == 5).await;
    assert_eq!(running.stop().await.refused, 2);
    let mut dead = world.wire("agent_dead_letters").await;
    dead.sort_by_key(|letter| letter.value.is_some());
    assert_eq!(dead.len(), 2);
    for (letter, whole) in dead.iter().zip([key, half]) {
        let kept = letter.key.as_ref().unwrap();
        assert!(!kept.is_empty() && kept.len() < whole.len() && whole.starts_with(kept));
        assert_eq!(letter.headers["mandate-key-digest"], Digest::of(whole).to_string());
    }
    let value = dead[1].value.as_ref().unwrap();
    assert!(dead[0].value.is_none() && !value.is_empty() && rest.starts_with(value));
    assert_eq!(dead[1].headers["mandate-value-digest"], Digest::of(rest).to_string());
    assert!(!dead[0].headers.contains_key("mandate-value-digest"));
}

/// A topic that somebody made for themselves: not even the beginning of a message has room in it.
#[tokio::test(flavor = "multi_thread")]
async fn poison_of_which_the_topic_for_dead_letters_takes_nothing_is_passed_over() {
    let world = World::bare().await;
    let topic = world.topic("agent_dead_letters");
    let tiny = NewTopic::new(&topic, 4, TopicReplication::Fixed(1)).set("max.message.bytes", "700");
    admin().create_topics(&[tiny], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
    // Makes the others, and says that this one is too small.
    world.stream.prepare().await.unwrap_err();
    let usage = world.topic("agent_usage");
    produce(&usage, Some(&noise(&world, 900)), Some(b"poison")).await;
    produce(&usage, Some(b"k"), Some(b"poison")).await;
    world.publish(&world.batch(1, 3)).await;
    let running = Running::start(world.sink(world.store.clone()));
    world.has_stored(3, 0).await;
    eventually("all offsets are committed", async || world.committed("agent_usage").await == 2).await;
    assert_eq!(running.stop().await.refused, 2);
    // What has room is kept, also beside what has none.
    let dead = world.wire("agent_dead_letters").await;
    assert_eq!(dead.iter().map(|letter| letter.key.clone().unwrap()).collect::<Vec<_>>(), [b"k".to_vec()]);
}

/// Random bytes, which no compression makes fewer: an id of which those are left out that have a meaning.
fn noise(world: &World, bytes: usize) -> Vec<u8> {
    let id = || world.event(TaskId(Uuid::nil()), 1).event_id.0;
    let random = std::iter::repeat_with(|| id().into_bytes().into_iter().take(6));
    random.flatten().take(bytes).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_topic_for_dead_letters_is_away_nothing_is_committed() {
    let world = World::new().await;
    delete_topics(&[&world.topic("agent_dead_letters")]).await;
    produce(&world.topic("agent_usage"), None, Some(b"poison")).await;
    world.publish(&world.batch(1, 3)).await;
    let mut quick = world.options.clone();
    quick.publish_timeout = Duration::from_secs(2);
    let store = Faulty::over(&world.store);
    let sink = Sink::new(quick, store.clone());
    let running = Running::start(sink.into());
    world.has_stored(3, 0).await;
    let another = world.batch(1, 2);
    world.publish(&another).await;
    assert_eq!(world.committed("agent_usage").await, 0);
    world.stream.prepare().await.unwrap();
    eventually("the offset is committed", async || world.committed("agent_usage").await == 1).await;
    world.has_stored(5, 0).await;
    assert_eq!(running.stop().await.refused, 1);
    assert!(!world.wire("agent_dead_letters").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_away_nothing_is_committed_and_nothing_is_lost() {
    let world = World::new().await;
    let store = Faulty::over(&world.store);
    store.away.store(true, Ordering::SeqCst);
    let running = Running::start(world.sink(store.clone()));
    world.publish(&world.batch(10, 20)).await;
    eventually("the sink has tried", async || store.asked() >= 2).await;
    for tries in [3, 4, 5] {
        world.publish(&world.batch(10, 20)).await;
        eventually("the sink tries again", async || store.asked() >= tries).await;
        assert_eq!(world.committed("agent_task_events").await, 0);
    }
    assert_eq!(world.stored().await, (0, 0));
    store.away.store(false, Ordering::SeqCst);
    world.has_stored(800, 0).await;
    eventually("all offsets are committed", async || world.committed("agent_task_events").await == 800).await;
    assert_eq!(running.stop().await.rows.len(), 800);
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_while_the_store_is_away_it_stops_and_a_further_step_goes_on() {
    let world = World::new().await;
    let store = Faulty::over(&world.store);
    store.away.store(true, Ordering::SeqCst);
    let sink = world.sink(store.clone());
    world.publish(&world.batch(1, 5)).await;
    let stop = CancellationToken::new();
    let stops = async {
        eventually("the sink has tried", async || store.asked() >= 2).await;
        stop.cancel();
    };
    let (landed, ()) = tokio::join!(sink.step(&stop), stops);
    assert_eq!((landed.unwrap().rows.len(), world.committed("agent_task_events").await), (0, 0));
    assert_eq!(sink.step(&stop).await.unwrap().rows.len(), 0, "still told to stop");
    store.away.store(false, Ordering::SeqCst);
    // What it has taken is not forgotten: the group would never give it again to this member.
    let mut rows = 0;
    while rows < 5 {
        rows += sink.step(&CancellationToken::new()).await.unwrap().rows.len();
    }
    assert_eq!((rows, world.committed("agent_task_events").await), (5, 5));
    sink.close().await;
    assert_eq!(world.stored().await, (5, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_dies_between_the_append_and_the_commit_repeats_rows_harmlessly() {
    let world = World::new().await;
    let store = Faulty::over(&world.store);
    store.mute.store(true, Ordering::SeqCst);
    let batch = world.batch(5, 20);
    world.publish(&batch).await;
    let running = Running::start(world.sink(store.clone()));
    world.has_stored(100, 0).await;
    running.kill().await;
    assert_eq!(world.committed("agent_task_events").await, 0);

    let after = Running::start(world.sink(world.store.clone()));
    world.publish(&world.batch(1, 10)).await;
    world.has_stored(110, 0).await;
    eventually("all offsets are committed", async || world.committed("agent_task_events").await == 110).await;
    assert_eq!(after.stop().await.rows.len(), 110, "all of them again");
    // And what was committed does not come again.
    let last = Running::start(world.sink(world.store.clone()));
    world.publish(&world.batch(1, 1)).await;
    world.has_stored(111, 0).await;
    assert_eq!(last.stop().await.rows.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_come_later_are_found() {
    let world = World::bare().await;
    let sink = world.sink(world.store.clone());
    // Without topics a step waits, and is no fault.
    let stop = CancellationToken::new();
    let stops = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        stop.cancel();
    };
    let (landed, ()) = tokio::join!(sink.step(&stop), stops);
    assert_eq!(landed.unwrap(), Landed::default());
    let running = Running::start(sink);
    world.stream.prepare().await.unwrap();
    let batch = Batch { usage: vec![world.usage(TaskId(Uuid::from_u128(9)), 1)], ..world.batch(1, 3) };
    world.publish(&batch).await;
    world.has_stored(3, 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_were_lost_and_made_anew_are_read_from_their_beginning() {
    let world = World::new().await;
    let running = Running::start(world.sink(world.store.clone()));
    world.publish(&world.batch(4, 25)).await;
    world.has_stored(100, 0).await;
    eventually("all offsets are committed", async || world.committed("agent_task_events").await == 100).await;
    delete_topics(&[&world.topic("agent_task_events"), &world.topic("agent_usage")]).await;
    world.stream.prepare().await.unwrap();
    let batch = world.batch(4, 5);
    let again = KafkaStream::new(world.options.clone());
    eventually("the new topics take rows", async || again.publish(batch.clone()).await.failed == 0).await;
    world.has_stored(120, 0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_broker_a_step_waits_and_the_sink_closes_in_time() {
    let world = World::bare().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut options = world.options.clone();
    options.address = KafkaAddress::parse(&format!("kafka://{closed}")).unwrap();
    let sink = Sink::new(options, world.store.clone());
    let stop = CancellationToken::new();
    let stops = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
    };
    let (landed, ()) = tokio::join!(sink.step(&stop), stops);
    assert_eq!(landed.unwrap(), Landed::default());
    let begun = Instant::now();
    sink.close().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "closing took {:?}", begun.elapsed());
}
