use super::*;
use crate::providers::testing::{
    SplitMix, assemble, in_another_hand, random_splits, random_text, seed,
};

fn sse(events: &[String]) -> String {
    events
        .iter()
        .map(|data| format!("data: {data}\n\n"))
        .collect()
}

fn run(events: &[&str]) -> (Vec<ModelEvent>, Result<(), ProviderError>) {
    let events: Vec<String> = events.iter().map(|event| (*event).to_owned()).collect();
    assemble(
        ResponsesAssembler::from_host(MessageList::default(), "h"),
        [sse(&events).as_bytes()],
    )
}

fn blocks(events: &[ModelEvent]) -> Vec<ContentBlock> {
    let block = |event: &ModelEvent| match event {
        ModelEvent::Block(block) => Some(block.clone()),
        _ => None,
    };
    events.iter().filter_map(block).collect()
}

fn stop_of(events: &[ModelEvent]) -> (ProviderStop, String) {
    match events.last() {
        Some(ModelEvent::Completed(completion)) => (
            completion.stop,
            completion.raw_stop.clone().unwrap_or_default(),
        ),
        other => panic!("no completion: {other:?}"),
    }
}

const COMPLETED: &str = r#"{"type":"response.completed","response":{"status":"completed"}}"#;

fn incomplete_for(reason: &str) -> String {
    format!(
        r#"{{"type":"response.incomplete","response":{{"status":"incomplete","incomplete_details":{{"reason":"{reason}"}}}}}}"#
    )
}

#[test]
fn reasoning_is_sealed_with_its_host_and_what_the_api_asks_back() {
    let (events, ended) = run(&[
        r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[]}}"#,
        r#"{"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":0,"delta":"One."}"#,
        r#"{"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":1,"delta":"Two."}"#,
        r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"One."},{"type":"summary_text","text":"Two."}],"encrypted_content":"c2VhbGVk"}}"#,
        COMPLETED,
    ]);

    assert_eq!(ended, Ok(()));
    let thinking = ContentBlock::Thinking(ThinkingBlock {
        thinking: "One.\n\nTwo.".into(),
        signature: Some(
            r#"openai-responses:{"host":"h","id":"rs_1","encrypted_content":"c2VhbGVk","parts":[4,4]}"#
                .into(),
        ),
    });
    assert_eq!(
        events.get(..2),
        Some(
            &[
                ModelEvent::Thinking("One.\n\nTwo.".into()),
                ModelEvent::Block(thinking)
            ][..]
        )
    );
}

#[test]
fn a_summary_that_cannot_go_back_has_no_signature() {
    let (events, _) = run(&[
        r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Hm."}]}}"#,
        r#"{"type":"response.output_item.done","output_index":1,"item":{"type":"reasoning","id":"rs_2","summary":[]}}"#,
        COMPLETED,
    ]);

    assert_eq!(
        blocks(&events),
        [ContentBlock::Thinking(ThinkingBlock {
            thinking: "Hm.".into(),
            signature: None
        })]
    );
}

#[test]
fn every_end_has_its_stop_reason() {
    let call = r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f","arguments":"{}","status":"completed"}}"#;
    let refusal = r#"{"type":"response.refusal.delta","output_index":0,"delta":"No."}"#;
    for (events, stop, raw) in [
        (
            vec![COMPLETED.to_owned()],
            ProviderStop::EndTurn,
            "response.completed",
        ),
        (
            vec![call.to_owned(), COMPLETED.to_owned()],
            ProviderStop::ToolUse,
            "response.completed",
        ),
        (
            vec![refusal.to_owned(), COMPLETED.to_owned()],
            ProviderStop::Refusal,
            "response.completed",
        ),
        (
            vec![incomplete_for("max_output_tokens")],
            ProviderStop::MaxTokens,
            "max_output_tokens",
        ),
        (
            vec![incomplete_for("content_filter")],
            ProviderStop::Refusal,
            "content_filter",
        ),
        (
            vec![incomplete_for("of the future")],
            ProviderStop::Other,
            "of the future",
        ),
    ] {
        let (seen, ended) = run(&events.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(ended, Ok(()));
        assert_eq!(stop_of(&seen), (stop, raw.to_owned()), "{events:?}");
    }
}

#[test]
fn arguments_that_are_no_object_do_not_run_and_missing_ids_are_made() {
    let call = |index: u32, id: &str, arguments: &str| {
        format!(
            r#"{{"type":"response.output_item.done","output_index":{index},"item":{{"type":"function_call","call_id":"{id}","name":"f","arguments":{}}}}}"#,
            serde_json::Value::from(arguments)
        )
    };
    let events = [
        call(0, "a", "{\"x\":"),
        call(1, "a", "{\"x\": 1}"),
        call(2, "", "{}"),
        COMPLETED.to_owned(),
    ];
    let (events, _) = run(&events.iter().map(String::as_str).collect::<Vec<_>>());

    let calls: Vec<(String, String)> = blocks(&events)
        .into_iter()
        .filter_map(|block| match block {
            ContentBlock::ToolUse(call) => Some((call.id, call.input.as_str().to_owned())),
            _ => None,
        })
        .collect();
    let [first, second, third] = calls.as_slice() else {
        panic!("{calls:?}")
    };
    assert_eq!(first, &("a".to_owned(), r#""{\"x\":""#.to_owned()));
    assert_eq!(second.1, "{\"x\": 1}");
    assert!(second.0 != "a" && third.0 != second.0 && !third.0.is_empty());
}

#[test]
fn a_call_that_never_ended_runs_only_if_the_response_is_whole() {
    let begin = [
        r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f","arguments":""}}"#,
        r#"{"type":"response.function_call_arguments.delta","output_index":0,"delta":"{}"}"#,
    ];
    let cut = incomplete_for("max_output_tokens");

    let whole = run(&[begin[0], begin[1], COMPLETED]).0;
    let cut = run(&[begin[0], begin[1], &cut]).0;

    assert_eq!((blocks(&whole).len(), blocks(&cut).len()), (1, 0));
}

#[test]
fn an_item_that_ends_as_another_kind_keeps_what_was_streamed_and_runs_nothing() {
    let (events, ended) = run(&[
        r#"{"type":"response.reasoning_summary_text.delta","output_index":0,"delta":"Hm."}"#,
        r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"new_kind"}}"#,
        r#"{"type":"response.output_text.delta","output_index":1,"delta":"Hi."}"#,
        r#"{"type":"response.output_item.done","output_index":1,"item":{"type":"reasoning"}}"#,
        r#"{"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","call_id":"c","name":"f"}}"#,
        r#"{"type":"response.output_item.done","output_index":2,"item":{"type":"message"}}"#,
        COMPLETED,
    ]);

    assert_eq!(ended, Ok(()));
    let thinking = ContentBlock::Thinking(ThinkingBlock {
        thinking: "Hm.".into(),
        signature: None,
    });
    let last = events.len() - 1;
    assert_eq!(
        events[..last],
        [
            ModelEvent::Thinking("Hm.".into()),
            ModelEvent::Block(thinking),
            ModelEvent::Text("Hi.".into()),
            ModelEvent::Block(ContentBlock::text("Hi.")),
        ]
    );
    assert_eq!(stop_of(&events).0, ProviderStop::EndTurn);
}

#[test]
fn a_failure_inside_the_stream_has_its_class() {
    for (event, code, wait) in [
        (
            r#"{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"Please try again in 1.5s."}}}"#,
            "provider_rate_limited",
            Some(1500),
        ),
        (
            r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"x"}}}"#,
            "provider_server_error",
            None,
        ),
        (
            r#"{"type":"response.failed","response":{"error":null}}"#,
            "provider_server_error",
            None,
        ),
        (
            r#"{"type":"response.failed","response":{"error":{"code":"invalid_prompt","message":"x"}}}"#,
            "provider_invalid_request",
            None,
        ),
        (
            r#"{"type":"error","code":"context_length_exceeded","message":"x","param":null}"#,
            "provider_invalid_request",
            None,
        ),
        (
            r#"{"type":"error","error":{"type":"insufficient_quota","code":"insufficient_quota","message":"x"}}"#,
            "provider_quota_exhausted",
            None,
        ),
        (
            r#"{"error":{"code":"invalid_api_key","message":"x"}}"#,
            "provider_auth",
            None,
        ),
    ] {
        let error = run(&[event]).1.unwrap_err();
        let millis = error.retry_after().map(|wait| wait.as_millis());
        assert_eq!((error.code(), millis), (code, wait), "{event}");
    }
    let (_, ended) = run(&[r#"{"type":"response.output_text.delta","delta":"half"}"#]);
    assert_eq!(ended.unwrap_err().code(), "provider_protocol");
}

#[test]
fn usage_of_a_failed_response_is_reported() {
    let mut out = Vec::new();
    let mut assembler = ResponsesAssembler::new(MessageList::default());
    let event = r#"{"type":"response.failed","response":{"error":{"code":"server_error"},"usage":{"input_tokens":9,"output_tokens":4,"input_tokens_details":{"cached_tokens":2}}}}"#;

    let ended = assembler.feed(sse(&[event.to_owned()]).as_bytes(), &mut out);

    assert!(ended.is_err());
    assert_eq!(
        out,
        [ModelEvent::Usage(Usage {
            input_uncached: 7,
            cache_read: 2,
            cache_write: 0,
            output: 4
        })]
    );
}

#[test]
fn random_replies_do_not_depend_on_splits_or_line_ends() {
    let seed = seed("responses");
    let mut random = SplitMix(seed);
    for _ in 0..200 {
        let mut events = Vec::new();
        let items = random.below(4) as u64;
        for index in 0..items {
            let pieces: Vec<String> = (0..random.below(4))
                .map(|_| random_text(&mut random))
                .collect();
            let json = |text: &str| serde_json::Value::from(text).to_string();
            let kind = random.below(3);
            for piece in &pieces {
                let name = [
                    "response.output_text.delta",
                    "response.reasoning_summary_text.delta",
                    "response.function_call_arguments.delta",
                ][kind];
                events.push(format!(
                    r#"{{"type":"{name}","output_index":{index},"delta":{}}}"#,
                    json(piece)
                ));
            }
            let whole = json(&pieces.concat());
            let item = match kind {
                0 => format!(
                    r#"{{"type":"message","content":[{{"type":"output_text","text":{whole}}}]}}"#
                ),
                1 => format!(
                    r#"{{"type":"reasoning","id":"r","summary":[{{"text":{whole}}}],"encrypted_content":"e"}}"#
                ),
                _ => format!(
                    r#"{{"type":"function_call","call_id":"c{index}","name":"f","arguments":{whole}}}"#
                ),
            };
            if random.below(4) > 0 {
                events.push(format!(
                    r#"{{"type":"response.output_item.done","output_index":{index},"item":{item}}}"#
                ));
            }
        }
        events.push(COMPLETED.to_owned());
        let stream = sse(&events).into_bytes();
        let new = || ResponsesAssembler::new(MessageList::default());
        let whole = assemble(new(), [stream.as_slice()]);

        let other = in_another_hand(&stream, &mut random);
        assert_eq!(assemble(new(), random_splits(&stream, &mut random)), whole);
        assert_eq!(assemble(new(), random_splits(&other, &mut random)), whole);
        assert_eq!(whole.1, Ok(()), "seed {seed}");
    }
}

#[test]
fn an_event_with_very_many_values_is_refused_when_that_is_known() {
    let many = vec!["{}"; 100_000].join(",");
    let item = |field: &str| {
        format!(
            r#"{{"type":"response.output_item.done","output_index":0,"item":{{"type":"message","{field}":[{many}]}}}}"#
        )
    };
    let last = format!(r#"{{"type":"response.completed","response":{{"output":[{many}]}}}}"#);
    for event in [item("content"), item("summary"), last] {
        let (_, ended) = run(&[&event]);

        assert!(
            matches!(&ended, Err(ProviderError::Protocol { message, .. }) if message.contains("at most 4096 values")),
            "{ended:?}"
        );
    }
}

#[test]
fn names_and_ids_of_open_calls_count_for_the_size_of_an_answer() {
    let name = "x".repeat(6 << 20);
    let added = |index: usize| {
        format!(
            r#"{{"type":"response.output_item.added","output_index":{index},"item":{{"type":"function_call","call_id":"c","name":"{name}"}}}}"#
        )
    };
    let events = [added(0), added(1), added(2)];

    let (_, ended) = run(&events.each_ref().map(String::as_str));

    assert!(
        matches!(ended, Err(ProviderError::Protocol { .. })),
        "{ended:?}"
    );
}

#[test]
fn arguments_count_while_they_are_written() {
    let mut assembler = ResponsesAssembler::from_host(MessageList::default(), "h");
    let mut bytes = |event: &str| {
        let events = sse(&[event.to_owned()]);
        assembler.feed(events.as_bytes(), &mut Vec::new()).unwrap();
        assembler.argument_bytes()
    };

    let begun = r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f","arguments":""}}"#;
    assert_eq!(bytes(begun), 0);
    let delta =
        r#"{"type":"response.function_call_arguments.delta","output_index":0,"delta":"{\"a\":"}"#;
    assert_eq!(bytes(delta), 5);
    assert_eq!(bytes(delta), 10);
}
