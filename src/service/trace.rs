//! The trace context (W3C) of the call that is being served, which its events carry on.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static TRACEPARENT: Option<Arc<str>>;
}

/// Runs `call` within a trace context.
pub async fn within<F: Future>(traceparent: Option<Arc<str>>, call: F) -> F::Output {
    TRACEPARENT.scope(traceparent, call).await
}

/// The context of the call that runs now.
pub fn current() -> Option<Arc<str>> {
    TRACEPARENT.try_with(Clone::clone).ok().flatten()
}

/// `text` if it is a `traceparent` of version 00, which alone may be passed on without understanding it.
pub fn parse(text: &str) -> Option<Arc<str>> {
    let mut parts = text.split('-');
    let hex = |part: Option<&str>, length: usize| {
        part.is_some_and(|part| {
            part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
        })
    };
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    let (version, trace, span, flags) = (parts.next()?, parts.next(), parts.next(), parts.next());
    let fits = version == "00" && hex(trace, 32) && hex(span, 16) && hex(flags, 2) && parts.next().is_none();
    let named = !trace.is_some_and(zero) && !span.is_some_and(zero);
    (fits && named).then(|| Arc::from(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_whole_traceparent_is_passed_on() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(parse(good).as_deref(), Some(good));
        for bad in [
            "",
            "00",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn the_context_is_that_of_the_call() {
        assert_eq!(current(), None);
        let inner = within(Some(Arc::from("t")), async { current() }).await;
        assert_eq!(inner.as_deref(), Some("t"));
        assert_eq!(current(), None);
    }

    proptest! {
        #[test]
        fn a_traceparent_is_passed_on_as_it_is_or_not_at_all(
            text in prop_oneof!["0[01]-[0-9a-fA-F]{31,33}-[0-9a-f]{16}-[0-9a-f]{2}(-[0-9]{0,2})?", any::<String>()],
        ) {
            if let Some(kept) = parse(&text) {
                prop_assert_eq!(&*kept, text.as_str());
                let legal = |b: u8| b == b'-' || b.is_ascii_digit() || matches!(b, b'a'..=b'f');
                prop_assert!(text.len() == 55 && text.starts_with("00-") && text.bytes().all(legal), "{}", text);
            }
        }

        #[test]
        fn every_traceparent_is_passed_on(trace in 1..=u128::MAX, span in 1..=u64::MAX, flags: u8) {
            let text = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
            prop_assert_eq!(parse(&text), Some(Arc::from(text)));
        }
    }
}
