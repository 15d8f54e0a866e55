//! The digest chain proves a log: no field of any event can be altered unseen.

use std::borrow::Cow;

use mandate::domain::aggregate::{LogError, fold};
use mandate::domain::digest::{Digest, chain};
use mandate::domain::event::{ActorKind, Channel, Event};
use mandate::domain::ids::{EventId, SessionId, TaskId};
use mandate::domain::time::Timestamp;
use proptest::prelude::*;
use uuid::Uuid;

use crate::config;
use crate::life::{Life, ORGANIZATION, TASK};
use crate::step::steps;

type Alter = fn(&mut Event);

/// Every field that the chain covers, with an alteration of it. `redacted` is derived from the payload and not chained.
const FIELDS: &[(&str, Alter)] = &[
    ("event_id", |event| event.event_id = EventId(Uuid::from_u128(event.event_id.0.as_u128() ^ 1))),
    ("seq", |event| event.seq += 1),
    ("type", |event| event.event_type = Cow::Owned(format!("{}x", event.event_type))),
    ("schema_version", |event| event.schema_version += 1),
    ("actor_kind", |event| {
        event.actor.kind = if event.actor.kind == ActorKind::Human { ActorKind::Agent } else { ActorKind::Human };
    }),
    ("actor_id", |event| event.actor.id.push('x')),
    ("channel", |event| {
        event.actor.channel = if event.actor.channel.is_some() { None } else { Some(Channel::Web) };
    }),
    ("session_id", |event| {
        event.session_id = if event.session_id.is_some() { None } else { Some(SessionId(Uuid::nil())) };
    }),
    ("at", |event| event.at = Timestamp::from_micros(event.at.micros() + 1).unwrap()),
    ("recorded_at", |event| event.recorded_at = Timestamp::from_micros(event.recorded_at.micros() + 1).unwrap()),
    // The same JSON to a reader that does not mind white space, and another text.
    ("payload", |event| event.payload = event.payload.replacen('{', "{ ", 1)),
    ("digest", |event| event.digest.0[31] ^= 1),
];

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn altering_any_field_of_any_event_breaks_the_chain_there(steps in steps()) {
        let mut life = Life::begin(Some("1000"));
        for step in &steps {
            life.take(step);
        }
        prop_assert!(fold(ORGANIZATION, TASK, &life.log).is_ok());
        for at in 0..life.log.len() {
            for (field, alter) in FIELDS {
                let mut log = life.log.clone();
                alter(&mut log[at]);
                prop_assert_ne!(&log[at], &life.log[at], "{} was not altered", field);
                let fault = fold(ORGANIZATION, TASK, &log).expect_err(field);
                let seq = i64::try_from(at).unwrap() + 1;
                let seen = match (*field, &fault) {
                    ("seq" | "type", LogError::Beginning) => at == 0,
                    ("seq", LogError::Gap { found, .. }) => *found == seq + 1,
                    (_, LogError::Digest(broken)) => *broken == seq,
                    _ => false,
                };
                prop_assert!(seen, "{} of seq {}: {}", field, seq, fault);
            }
        }
    }

    #[test]
    fn a_log_that_lacks_an_event_or_has_one_twice_or_out_of_order_is_no_log(steps in steps(), at in any::<usize>()) {
        let mut life = Life::begin(Some("1000"));
        for step in &steps {
            life.take(step);
        }
        let (log, at) = (&life.log, at % life.log.len());
        let mut twice = log.clone();
        twice.insert(at, log[at].clone());
        prop_assert!(fold(ORGANIZATION, TASK, &twice).is_err());
        if log.len() > 1 {
            let mut swapped = log.clone();
            swapped.swap(at, (at + 1) % log.len());
            prop_assert!(fold(ORGANIZATION, TASK, &swapped).is_err());
        }
        let mut short = log.clone();
        short.remove(at);
        // Without its last event a log is still one, of an earlier time: its head tells, which is kept elsewhere.
        match fold(ORGANIZATION, TASK, &short) {
            Ok(earlier) => {
                prop_assert_eq!(at, log.len() - 1);
                prop_assert_ne!(earlier.task().facts().log_digest, life.task.task().facts().log_digest);
            }
            Err(_) => prop_assert!(at < log.len() - 1 || at == 0),
        }
        let other = TaskId(Uuid::from_u128(99));
        prop_assert!(fold(ORGANIZATION, other, log).is_err(), "the log of another task");
    }
}

#[test]
fn fields_cannot_run_into_each_other() {
    let life = Life::begin(None);
    let digest_of = |actor: &str, channel: Option<Channel>, session: Option<SessionId>| {
        let mut event = life.log[0].clone();
        event.actor.id = actor.to_owned();
        event.actor.channel = channel;
        event.session_id = session;
        chain(Digest::ZERO, TASK, &event)
    };
    let channel_in_name = digest_of("ada\u{1}\0\0\0\u{3}api", None, None);
    assert_ne!(channel_in_name, digest_of("ada", Some(Channel::Api), None));
    assert_ne!(digest_of("ada", None, None), digest_of("ada", None, Some(SessionId(Uuid::nil()))));
    assert_ne!(digest_of("", None, None), digest_of("\0", None, None));
}
