//! The address of a cluster: `kafka://host:9092,host2:9092/?security.protocol=SASL_SSL&sasl.username=…`.

use std::fmt;

use rdkafka::ClientConfig;

/// Brokers and the properties of the client library that reach them.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaAddress {
    brokers: String,
    properties: Vec<(String, String)>,
}

/// Why a text is no address of a cluster. Names properties, never their values: one of them is the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KafkaAddressError {
    /// Another scheme, or none.
    #[error("the address of a Kafka cluster begins with kafka://")]
    Scheme,
    /// No brokers, an empty one, or credentials before them.
    #[error(
        "after kafka:// stand brokers, host:port each, with commas between; credentials are the properties \
         sasl.username and sasl.password"
    )]
    Brokers,
    /// Something between the brokers and the properties.
    #[error("after the brokers comes nothing but `/?` and properties")]
    Path,
    /// A parameter without a name or a value.
    #[error("the property {0:?} has no value")]
    NoValue(String),
    /// The same one again.
    #[error("the property {0} is set twice")]
    Twice(String),
    /// One on which the promises of the stream rest.
    #[error("the property {0} is set by Mandate itself")]
    Owned(String),
    /// One that the client library does not know, or whose value it does not take.
    #[error("the client library of this build does not take the property {0} (TLS needs the feature kafka-tls)")]
    Unfit(String),
}

/// What Mandate sets, other names of the same, and what would break it.
const OWNED: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "batch.size",
    "bootstrap.servers",
    "client.id",
    "compression.codec",
    "compression.type",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "fetch.queue.backoff.ms",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "linger.ms",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "max.poll.interval.ms",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "partitioner",
    "plugin.library.paths",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "request.required.acks",
    "retries",
    "session.timeout.ms",
    "test.mock.num.brokers",
    "topic.metadata.refresh.interval.ms",
    "transactional.id",
];

impl KafkaAddress {
    /// Takes an address apart and has the client library look at the properties. Connects to nothing.
    ///
    /// # Errors
    /// What is wrong with it, without any value.
    pub fn parse(text: &str) -> Result<Self, KafkaAddressError> {
        let rest = text.strip_prefix("kafka://").ok_or(KafkaAddressError::Scheme)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (brokers, rest) = rest.split_at(end);
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        if brokers.split(',').any(|broker| broker.is_empty() || !broker.chars().all(legal)) {
            return Err(KafkaAddressError::Brokers);
        }
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        let query = match rest.strip_prefix('?') {
            Some(query) => query,
            None if rest.is_empty() => "",
            None => return Err(KafkaAddressError::Path),
        };
        let mut address = Self { brokers: brokers.to_owned(), properties: Vec::new() };
        // This is no form: a plus sign is one, as in many a password.
        for (name, value) in url::form_urlencoded::parse(query.replace('+', "%2B").as_bytes()) {
            address.add(&name, &value)?;
        }
        Ok(address)
    }

    fn add(&mut self, name: &str, value: &str) -> Result<(), KafkaAddressError> {
        if OWNED.contains(&name) {
            return Err(KafkaAddressError::Owned(name.to_owned()));
        }
        if name.is_empty() || value.is_empty() {
            return Err(KafkaAddressError::NoValue(name.to_owned()));
        }
        if self.properties.iter().any(|(earlier, _)| earlier == name) {
            return Err(KafkaAddressError::Twice(name.to_owned()));
        }
        let mut alone = ClientConfig::new();
        alone.set(name, value);
        // Its own words would quote the value.
        alone.create_native_config().map_err(|_| KafkaAddressError::Unfit(name.to_owned()))?;
        self.properties.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// What every client of this cluster begins with.
    pub(super) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers).set("client.id", "mandate");
        config.set("socket.keepalive.enable", "true");
        // The library's own default, 10 s, is many times what a broker takes to restart, and rows wait that long.
        config.set("reconnect.backoff.max.ms", "1000");
        config.extend(self.properties.iter().cloned());
        config
    }
}

/// Without values.
impl fmt::Debug for KafkaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.properties.iter().map(|(name, _)| name).collect();
        f.debug_struct("KafkaAddress").field("brokers", &self.brokers).field("properties", &names).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> (String, Vec<(String, String)>) {
        let address = KafkaAddress::parse(text).unwrap();
        (address.brokers, address.properties)
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn brokers_end_at_the_first_slash_or_question_mark() {
        for text in ["kafka://a:9092,b-1.example.com:9093", "kafka://a:9092,b-1.example.com:9093/"] {
            assert_eq!(parsed(text), ("a:9092,b-1.example.com:9093".to_owned(), vec![]), "{text}");
        }
        assert_eq!(parsed("kafka://[::1]:9092"), ("[::1]:9092".to_owned(), vec![]));
        for text in ["kafka://a:1/?client.rack=r", "kafka://a:1?client.rack=r", "kafka://a:1/?&client.rack=r&"] {
            assert_eq!(parsed(text), ("a:1".to_owned(), pairs(&[("client.rack", "r")])), "{text}");
        }
    }

    #[test]
    fn properties_are_percent_decoded_and_a_plus_sign_is_one() {
        let (_, properties) = parsed("kafka://a/?sasl.username=m%40x&sasl.password=a+b%2B%26%3D%2F%3F%C3%BC");
        assert_eq!(properties, pairs(&[("sasl.username", "m@x"), ("sasl.password", "a+b+&=/?ü")]));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "direct:", "http://a:1", "KAFKA://a:1", "kafka:/a"] {
            assert_eq!(KafkaAddress::parse(text), Err(KafkaAddressError::Scheme), "{text}");
        }
        for text in ["kafka://", "kafka:///", "kafka://,", "kafka://a,,b", "kafka://a,", "kafka://m:secret@a:1"] {
            assert_eq!(KafkaAddress::parse(text), Err(KafkaAddressError::Brokers), "{text}");
        }
        for text in ["kafka://a/topic", "kafka://a//?x=y", "kafka://a/topic?x=y"] {
            assert_eq!(KafkaAddress::parse(text), Err(KafkaAddressError::Path), "{text}");
        }
    }

    #[test]
    fn the_properties_that_mandate_sets_are_refused_by_name() {
        for name in OWNED {
            let fault = KafkaAddress::parse(&format!("kafka://a/?client.rack=r&{name}=1")).unwrap_err();
            assert_eq!(fault, KafkaAddressError::Owned((*name).to_owned()));
            assert!(fault.to_string().contains(name));
        }
        let encoded = KafkaAddress::parse("kafka://a/?%61cks=1");
        assert_eq!(encoded, Err(KafkaAddressError::Owned("acks".to_owned())));
    }

    #[test]
    fn faults_name_the_property_and_never_its_value() {
        for (query, fault) in [
            ("no.such.thing=hunter2", KafkaAddressError::Unfit("no.such.thing".to_owned())),
            ("security.protocol=hunter2", KafkaAddressError::Unfit("security.protocol".to_owned())),
            ("socket.timeout.ms=hunter2", KafkaAddressError::Unfit("socket.timeout.ms".to_owned())),
            ("sasl.password=x&sasl.password=hunter2", KafkaAddressError::Twice("sasl.password".to_owned())),
            ("sasl.password=", KafkaAddressError::NoValue("sasl.password".to_owned())),
            ("sasl.password", KafkaAddressError::NoValue("sasl.password".to_owned())),
            ("=hunter2", KafkaAddressError::NoValue(String::new())),
        ] {
            let found = KafkaAddress::parse(&format!("kafka://a/?{query}")).unwrap_err();
            assert_eq!(found, fault, "{query}");
            assert!(!format!("{found} {found:?}").contains("hunter2"), "{query}");
        }
    }

    #[test]
    fn no_value_is_shown() {
        let address = KafkaAddress::parse("kafka://a:1/?sasl.username=m&sasl.password=hunter2").unwrap();
        let shown = format!("{address:?}");
        assert!(shown.contains("a:1") && shown.contains("sasl.password"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!format!("{:?}", address.client()).contains("hunter2"), "the library's own Debug");
    }

    proptest! {
        // The client library looks at each property.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_address_is_read_or_refused_without_a_value(
            text in prop_oneof![
                "kafka://[a-z0-9:.,@\\[\\]-]{0,20}[/?]{0,2}([a-z.]{0,12}=?(hunter22|%00|%ff|\\+|[ -~]){0,3}&?){0,3}",
                any::<String>(),
            ],
        ) {
            match KafkaAddress::parse(&text) {
                Ok(address) => {
                    prop_assert!(text.starts_with("kafka://") && !address.brokers.is_empty());
                    prop_assert!(address.properties.iter().all(|(name, _)| !OWNED.contains(&name.as_str())));
                    let shown = format!("{address:?}").replace(&address.brokers, "");
                    let named = address.properties.iter().any(|(name, _)| name.contains("hunter22"));
                    prop_assert!(named || !shown.contains("hunter22"), "{}", shown);
                }
                // What stands where a name belongs is told, as one cannot mend it otherwise.
                Err(KafkaAddressError::NoValue(name) | KafkaAddressError::Unfit(name)) => {
                    let mut names = text.split(['?', '&']).skip(1).filter_map(|pair| pair.split('=').next());
                    prop_assert!(!name.contains("hunter22") || names.any(|named| named.contains("hunter22")), "{}", name);
                }
                Err(fault) => prop_assert!(!fault.to_string().contains("hunter22"), "{}", fault),
            }
        }

        #[test]
        fn properties_go_round(user in ".{1,20}", password in ".{1,20}") {
            let (user, password) = (user.replace('\0', "0"), password.replace('\0', "0"));
            let mut query = url::form_urlencoded::Serializer::new(String::new());
            query.append_pair("sasl.username", &user).append_pair("sasl.password", &password);
            // A form writes a space as a plus sign, which here is one.
            let text = format!("kafka://a:1,b:2/?{}", query.finish().replace('+', "%20"));
            let expected = pairs(&[("sasl.username", &user), ("sasl.password", &password)]);
            prop_assert_eq!(parsed(&text), ("a:1,b:2".to_owned(), expected));
        }
    }
}
