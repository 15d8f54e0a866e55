use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::replay::recording::{CALLS_MAX, FILE_BYTES_MAX, Recording, RecordingFault, Usage, spread};

fn parse(document: &Value) -> Result<Recording, String> {
    Recording::parse("run", document.to_string().as_bytes()).map_err(|fault| fault.to_string())
}

fn with_stats(steps: usize, stats: &Value) -> Result<Usage, String> {
    let step = json!({"action": "ls", "observation": "", "response": "", "thought": ""});
    parse(&json!({"trajectory": vec![step; steps], "info": {"model_stats": stats}})).map(|recording| recording.usage)
}

#[test]
fn a_run_is_read_with_its_function_calls() {
    let call = |id: &str, name: &str, arguments: &str| json!([{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]);
    let recording = parse(&json!({
        "environment": "main",
        "trajectory": [
            {"action": "open a.py", "observation": "[File]", "response": "I look.", "thought": "I look.",
             "execution_time": 0.2387, "state": {"open_file": "a.py"}},
            {"action": "submit", "observation": null, "response": "Done."},
        ],
        "history": [
            {"role": "system", "content": "You are…"},
            {"role": "user", "content": "a demonstration", "is_demo": true},
            {"role": "assistant", "content": "", "action": "open a.py", "is_demo": true, "tool_calls": call("d", "demo", "{}")},
            {"role": "user", "content": [{"type": "text", "text": "Fix "}, {"type": "text", "text": "it."}]},
            {"role": "assistant", "content": "", "action": "asked again", "tool_calls": call("x", "lost", "{}")},
            {"role": "assistant", "content": "", "action": "open a.py", "tool_calls": call("c1", "open", "{\"path\":\"a.py\"}")},
            {"role": "tool", "content": "[File]", "tool_call_ids": ["c1"]},
            {"role": "assistant", "content": "", "action": "submit", "tool_calls": call("c2", "submit", "not JSON")},
        ],
        "info": {"exit_status": "submitted", "submission": "diff", "model_stats": {"api_calls": 2, "tokens_sent": 9, "tokens_received": 4}},
    }))
    .unwrap();
    assert_eq!((recording.task.as_str(), recording.steps.len()), ("Fix it.", 2));
    let calls: Vec<_> = recording.steps.iter().filter_map(|step| step.call.as_ref()).collect();
    assert_eq!((calls[0].id.as_deref(), calls[0].name.as_str()), (Some("c1"), "open"));
    assert_eq!((&calls[0].arguments, &calls[1].arguments), (&json!({"path": "a.py"}), &json!("not JSON")));
    assert_eq!((recording.steps[0].duration_ms, recording.steps[1].duration_ms), (Some(238), None));
    assert_eq!(recording.steps[1].observation, "");
    assert_eq!(recording.usage, Usage { calls: 2, tokens: Some((9, 4)) });
    assert_eq!((recording.exit_status.as_deref(), recording.submission.as_deref()), (Some("submitted"), Some("diff")));
}

#[test]
fn the_smallest_run_is_one_step() {
    let recording = parse(&json!({"trajectory": [{}]})).unwrap();
    assert_eq!((recording.steps.len(), recording.usage), (1, Usage { calls: 1, tokens: None }));
    assert_eq!((recording.task.as_str(), recording.exit_status), ("", None));
}

#[test]
fn what_is_no_recording_is_told_where() {
    let step = json!({});
    let cases = [
        (json!([]), "the file must be an object, not an array"),
        (json!({}), "/trajectory is missing: this is no recording of SWE-agent"),
        (json!({"trajectory": {}}), "/trajectory must be an array, not an object"),
        (json!({"trajectory": []}), "/trajectory must have 1 to 100000 steps, not 0"),
        (json!({"trajectory": [step, "x"]}), "/trajectory/1 must be an object, not a string"),
        (json!({"trajectory": [{"action": 3}]}), "/trajectory/0/action must be a string, not a number"),
        (json!({"trajectory": [{"observation": ["x"]}]}), "/trajectory/0/observation must be a string, not an array"),
        (json!({"trajectory": [{"execution_time": "1s"}]}), "/trajectory/0/execution_time must be seconds, not \"1s\""),
        (json!({"trajectory": [{"execution_time": -1}]}), "/trajectory/0/execution_time must be seconds, not -1"),
        (
            json!({"trajectory": [{"execution_time": 1e300}]}),
            "/trajectory/0/execution_time must be seconds, not 1e+300",
        ),
        (json!({"trajectory": [{}], "history": 1}), "/history must be an array, not a number"),
        (json!({"trajectory": [{}], "info": []}), "/info must be an object, not an array"),
        (json!({"trajectory": [{}], "info": {"exit_status": 1}}), "/info/exit_status must be a string, not a number"),
        (json!({"trajectory": [{}], "info": {"model_stats": 1}}), "/info/model_stats must be an object, not a number"),
        (
            json!({"trajectory": [{}], "history": [{"role": "assistant", "action": "", "tool_calls": [{"function": {}}]}]}),
            "/history/0/tool_calls/0/function/name is missing",
        ),
    ];
    for (document, wanted) in cases {
        assert_eq!(parse(&document).unwrap_err(), wanted, "{document}");
    }
}

#[test]
fn what_is_no_json_is_told_where() {
    let fault = |bytes: &[u8]| Recording::parse("run", bytes).unwrap_err().to_string();
    assert!(fault(b"").starts_with("not JSON: EOF"));
    assert!(fault(b"{\"trajectory\": [}").contains("line 1 column 17"));
    assert!(fault(b"\xff\xfe").starts_with("not JSON:"));
    assert!(fault(br#"{"trajectory": [{"action": "\ud800"}]}"#).contains("hex escape at line 1"));
    assert!(fault("[".repeat(1_000).as_bytes()).contains("recursion limit"));
    let large = vec![b' '; usize::try_from(FILE_BYTES_MAX).unwrap() + 1];
    assert_eq!(fault(&large), "the file is larger than 64 MiB");
    let missing = Recording::read(std::path::Path::new("no/such/file.traj")).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read the file: "));
}

#[test]
fn counts_are_whole_and_within_bounds() {
    for stats in [
        json!({"api_calls": -1}),
        json!({"api_calls": 1.5}),
        json!({"api_calls": CALLS_MAX + 1}),
        json!({"api_calls": "12"}),
        json!({"tokens_sent": 1_000_000_000_001_u64}),
        json!({"tokens_received": -3}),
    ] {
        let fault = with_stats(1, &stats).unwrap_err();
        assert!(fault.contains("must be a whole number from 0 to "), "{stats}: {fault}");
    }
}

#[test]
fn zero_tokens_were_not_counted_and_zero_calls_were_one_per_step() {
    assert_eq!(with_stats(3, &json!(null)), Ok(Usage { calls: 3, tokens: None }));
    let zeros = json!({"api_calls": 0, "tokens_sent": 0, "tokens_received": 0, "instance_cost": 0});
    assert_eq!(with_stats(3, &zeros), Ok(Usage { calls: 3, tokens: None }));
    assert_eq!(with_stats(3, &json!({"api_calls": 11})), Ok(Usage { calls: 11, tokens: None }));
    let sent = json!({"api_calls": 2, "tokens_sent": 5});
    assert_eq!(with_stats(3, &sent), Ok(Usage { calls: 2, tokens: Some((5, 0)) }));
}

#[test]
fn totals_are_spread_in_whole_numbers_that_add_up() {
    for total in [0, 1, 7, 1_369, 122_612, 1_000_000_000_000] {
        for parts in [1, 2, 5, 12, 97, CALLS_MAX] {
            let spread: Vec<_> = (0..parts).map(|index| spread(total, parts, index)).collect();
            assert_eq!(spread.iter().sum::<u64>(), total, "{total} over {parts}");
            let (least, most) = (spread.iter().min().unwrap(), spread.iter().max().unwrap());
            assert!(most - least <= 1, "{total} over {parts}");
        }
    }
    assert_eq!(spread(5, 2, 2), 0, "there is no third of two parts");
    assert_eq!(spread(5, 0, 0), 0);
    assert_eq!(spread(u64::MAX, 1, 0), u64::MAX);
}

#[test]
fn every_call_belongs_to_exactly_one_step() {
    for (calls, steps) in [(12, 12), (5, 12), (13, 12), (1, 1), (7, 3), (100, 1), (1, 100)] {
        let usage = Usage { calls, tokens: None };
        let all: Vec<_> = (0..steps).flat_map(|step| usage.of_step(step, steps)).collect();
        assert_eq!(all, (0..calls).collect::<Vec<_>>(), "{calls} calls, {steps} steps");
        assert!(!usage.of_step(0, steps).is_empty(), "the first step needs a call");
    }
}

#[test]
fn the_price_of_the_parts_is_the_price_of_the_whole() {
    // The totals of a real run, at 10 and 30 US dollars per million: 1.26719 exactly.
    let usage = Usage { calls: 12, tokens: Some((122_612, 1_369)) };
    let micros: u64 = (0..12).filter_map(|call| usage.of_call(call)).map(|(sent, got)| sent * 10 + got * 30).sum();
    assert_eq!(micros, 1_267_190);
}

#[test]
fn a_log_has_no_place_for_nul() {
    let document = json!({"trajectory": [{"action": "xxd\u{0}", "observation": "\u{0}ELF"}],
        "history": [{"role": "assistant", "action": "xxd\u{0}",
            "tool_calls": [{"function": {"name": "xxd", "arguments": "{\"a\\u0000\": [\"\\u0000\"]}"}}]}]});
    let step = parse(&document).unwrap().steps.remove(0);
    assert_eq!((step.action.as_str(), step.observation.as_str()), ("xxd\u{fffd}", "\u{fffd}ELF"));
    assert_eq!(step.call.unwrap().arguments, json!({"a\u{fffd}": ["\u{fffd}"]}));
}

/// What a recording is made of, more or less.
fn documents() -> impl Strategy<Value = Value> {
    let names = [
        "trajectory",
        "history",
        "info",
        "model_stats",
        "action",
        "observation",
        "response",
        "thought",
        "execution_time",
        "role",
        "content",
        "is_demo",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "text",
        "api_calls",
        "tokens_sent",
        "tokens_received",
        "exit_status",
        "submission",
    ];
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        select(vec!["user", "assistant", "ls", "{}", "{\"a\":\"\\u0000\"}", "submitted", "\0", ""])
            .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let tree = scalar.prop_recursive(5, 40, 5, move |inner| {
        let member = (select(names.to_vec()), inner.clone());
        prop_oneof![
            vec(inner, 0..4).prop_map(Value::from),
            vec(member, 0..7).prop_map(|members| {
                Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    });
    // Half of them are whole but for one thing.
    let whole = (
        tree.clone(),
        select(vec!["/trajectory/0", "/history/0", "/info", "/info/model_stats", "/trajectory"]),
    )
        .prop_map(|(tree, place)| {
            let step =
                json!({"action": "ls", "observation": "a", "response": "I look.", "thought": "", "execution_time": 1});
            let message = json!({"role": "assistant", "action": "ls", "tool_calls": [{"function": {"name": "ls"}}]});
            let stats = json!({"api_calls": 2, "tokens_sent": 9, "tokens_received": 4});
            let mut document = json!({"trajectory": [step], "history": [message], "info": {"model_stats": stats}});
            *document.pointer_mut(place).unwrap() = tree;
            document
        });
    prop_oneof![1 => tree, 2 => whole]
}

proptest! {
    #[test]
    fn any_document_is_a_recording_or_says_where_it_is_none(document in documents()) {
        match Recording::parse("run", document.to_string().as_bytes()) {
            Ok(recording) => {
                prop_assert!(!recording.steps.is_empty() && recording.usage.calls > 0);
                let read = format!("{:?}", (&recording.steps, &recording.task, &recording.exit_status));
                prop_assert!(!read.contains("\\0"), "{}", read);
                // Every call falls to one step, and every token to one call.
                let steps = recording.steps.len();
                let calls = (0..steps).flat_map(|step| recording.usage.of_step(step, steps));
                prop_assert!(calls.eq(0..recording.usage.calls));
            }
            Err(RecordingFault::Shape { place, what }) => {
                let parent = place.rsplit_once('/').map_or("", |(parent, _)| parent);
                let there = document.pointer(&place).is_some() || document.pointer(parent).is_some();
                prop_assert!(place == "the file" || there, "{} {}", place, what);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn any_bytes_are_a_recording_or_none(bytes in vec(any::<u8>(), 0..100)) {
        prop_assert!(Recording::parse("run", &bytes).is_err());
    }

    #[test]
    fn shares_add_up(total: u64, parts in 1..1_000_u64) {
        let shares: Vec<u64> = (0..parts).map(|index| spread(total, parts, index)).collect();
        prop_assert_eq!(shares.iter().map(|share| u128::from(*share)).sum::<u128>(), u128::from(total));
        prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
    }
}
