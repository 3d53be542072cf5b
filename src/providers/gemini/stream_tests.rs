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

fn chunk(parts: &str) -> String {
    format!(r#"{{"candidates":[{{"content":{{"parts":[{parts}],"role":"model"}}}}]}}"#)
}

fn finish(reason: &str) -> String {
    format!(r#"{{"candidates":[{{"finishReason":"{reason}"}}]}}"#)
}

fn run(chunks: &[String]) -> (Vec<ModelEvent>, Result<(), ProviderError>) {
    assemble(
        GeminiAssembler::new(MessageList::default()),
        [sse(chunks).as_bytes()],
    )
}

fn blocks(parts: &[&str], reason: &str) -> Vec<ContentBlock> {
    let chunks: Vec<String> = parts
        .iter()
        .map(|parts| chunk(parts))
        .chain([finish(reason)])
        .collect();
    let (events, ended) = run(&chunks);
    assert_eq!(ended, Ok(()));
    let block = |event| match event {
        ModelEvent::Block(block) => Some(block),
        _ => None,
    };
    events.into_iter().filter_map(block).collect()
}

fn thinking(thinking: &str, signature: Option<&str>) -> ContentBlock {
    ContentBlock::Thinking(ThinkingBlock {
        thinking: thinking.into(),
        signature: signature.map(str::to_owned),
    })
}

#[test]
fn a_signature_stands_where_its_part_does() {
    let emitted = blocks(
        &[
            r#"{"text":"h","thought":true}"#,
            r#"{"text":"m","thought":true,"thoughtSignature":"A"}"#,
            r#"{"text":"un"}"#,
            r#"{"text":"signed"}"#,
            r#"{"text":"signed","thoughtSignature":"B"}"#,
            r#"{"text":"after"}"#,
            r#"{"text":"","thoughtSignature":"C"}"#,
            r#"{"functionCall":{"name":"f","args":{"x": 1.0},"id":"a"},"thoughtSignature":"D"},{"functionCall":{"name":"f","args":{},"id":"b"}}"#,
        ],
        "STOP",
    );

    let call = |id: &str, input: &str| {
        ContentBlock::ToolUse(ToolUseBlock {
            id: id.into(),
            name: "f".into(),
            input: callboard_actors::chat::RawJson::from_text(input).unwrap(),
        })
    };
    assert_eq!(
        emitted,
        [
            thinking("hm", Some("gemini:thought:A")),
            ContentBlock::text("unsigned"),
            thinking("", Some("gemini:next:B")),
            ContentBlock::text("signed"),
            thinking("", Some("gemini:after:C")),
            ContentBlock::text("after"),
            thinking("", Some("gemini:next:D")),
            call("a", "{\"x\": 1.0}"),
            call("b", "{}"),
        ]
    );
}

#[test]
fn calls_without_ids_get_stable_ones() {
    let ids = || -> Vec<String> {
        let parts =
            r#"{"functionCall":{"name":"f","args":{}}},{"functionCall":{"name":"f","args":{}}}"#;
        let id = |block| match block {
            ContentBlock::ToolUse(call) => Some(call.id),
            _ => None,
        };
        blocks(&[parts], "STOP")
            .into_iter()
            .filter_map(id)
            .collect()
    };

    let first = ids();
    assert_eq!(first, ids());
    assert!(first.len() == 2 && first[0] != first[1], "{first:?}");
}

#[test]
fn every_end_has_its_stop_reason() {
    let text = r#"{"text":"x"}"#;
    let call = r#"{"functionCall":{"name":"f"}}"#;
    for (parts, reason, stop) in [
        (text, "STOP", ProviderStop::EndTurn),
        (call, "STOP", ProviderStop::ToolUse),
        (text, "MAX_TOKENS", ProviderStop::MaxTokens),
        (text, "SAFETY", ProviderStop::Refusal),
        (text, "RECITATION", ProviderStop::Refusal),
        (text, "PROHIBITED_CONTENT", ProviderStop::Refusal),
        (text, "MALFORMED_FUNCTION_CALL", ProviderStop::Other),
        (text, "OF_THE_FUTURE", ProviderStop::Other),
    ] {
        let (events, ended) = run(&[chunk(parts), finish(reason)]);
        assert_eq!(ended, Ok(()));
        let Some(ModelEvent::Completed(completion)) = events.last() else {
            panic!("{events:?}")
        };
        assert_eq!(
            (&completion.stop, completion.raw_stop.as_deref()),
            (&stop, Some(reason))
        );
    }
    let blocked =
        r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":4}}"#;
    let (events, ended) = run(&[blocked.to_owned()]);
    assert_eq!(ended, Ok(()));
    let Some(ModelEvent::Completed(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(
        (&completion.stop, completion.raw_stop.as_deref()),
        (&ProviderStop::Refusal, Some("prompt blocked: SAFETY"))
    );
}

#[test]
fn a_reply_without_an_end_or_with_a_call_that_nobody_can_read_may_be_tried_again() {
    for chunks in [
        vec![chunk(r#"{"text":"x"}"#)],
        vec![finish("MALFORMED_FUNCTION_CALL")],
        vec![],
    ] {
        let (_, ended) = run(&chunks);
        assert!(
            matches!(ended, Err(ProviderError::Incomplete { .. })),
            "{chunks:?}: {ended:?}"
        );
    }
}

#[test]
fn thoughts_and_cached_tokens_are_counted_once() {
    let usage = r#"{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":60,"toolUsePromptTokenCount":5,"candidatesTokenCount":20,"thoughtsTokenCount":30,"totalTokenCount":155}}"#;

    let (events, _) = run(&[usage.to_owned()]);

    let Some(ModelEvent::Completed(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(
        completion.usage,
        Some(Usage {
            input_uncached: 45,
            cache_read: 60,
            cache_write: 0,
            output: 50
        })
    );
}

#[test]
fn random_replies_do_not_depend_on_splits_or_line_ends() {
    let seed = seed("gemini");
    let mut random = SplitMix(seed);
    for _ in 0..200 {
        let mut chunks = Vec::new();
        for _ in 0..random.below(6) {
            let text = serde_json::Value::from(random_text(&mut random)).to_string();
            chunks.push(chunk(&match random.below(5) {
                0 => format!(r#"{{"text":{text},"thought":true}}"#),
                1 => format!(r#"{{"text":{text},"thoughtSignature":"s"}}"#),
                2 => format!(r#"{{"functionCall":{{"name":"f","args":{{"t":{text}}}}}}}"#),
                _ => format!(r#"{{"text":{text}}}"#),
            }));
        }
        chunks.push(finish("STOP"));
        let stream = sse(&chunks).into_bytes();
        let new = || GeminiAssembler::new(MessageList::default());
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
    let events = [
        (format!(r#"{{"candidates":[{many}]}}"#), 32),
        (chunk(&many), 4096),
    ];
    for (event, most) in events {
        let (_, ended) = run(&[event]);

        let most = format!("at most {most} values");
        assert!(
            matches!(&ended, Err(ProviderError::Protocol { message, .. }) if message.contains(&most)),
            "{ended:?}"
        );
    }
}
