use callboard_actors::chat::{Message, RawJson, Role};

use super::*;
use crate::providers::testing::{
    SplitMix, assemble, in_another_hand, random_splits, random_text, seed,
};

fn sse(chunks: &[&str]) -> String {
    chunks
        .iter()
        .map(|data| format!("data: {data}\n\n"))
        .collect()
}

fn chunk(delta: &str) -> String {
    format!(
        r#"{{"id":"c","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#
    )
}

fn finish(reason: &str) -> String {
    format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}"#)
}

fn run(chunks: &[&str]) -> (Vec<ModelEvent>, Result<(), ProviderError>) {
    assemble(
        OpenAiAssembler::new(MessageList::default()),
        [sse(chunks).as_bytes()],
    )
}

/// Returns the events of a reply with these deltas, and its completion separately.
fn events(deltas: &[&str], reason: &str) -> (Vec<ModelEvent>, Completion) {
    let chunks: Vec<String> = deltas
        .iter()
        .map(|delta| chunk(delta))
        .chain([finish(reason), "[DONE]".into()])
        .collect();
    let (mut events, ended) = run(&chunks.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ended, Ok(()));
    let Some(ModelEvent::Completed(completion)) = events.pop() else {
        panic!("no completion: {events:?}")
    };
    (events, completion)
}

/// Returns id, name and arguments of the calls in a reply.
fn calls(deltas: &[&str], reason: &str) -> Vec<(String, String, String)> {
    let calls = events(deltas, reason)
        .0
        .into_iter()
        .filter_map(|event| match event {
            ModelEvent::Block(ContentBlock::ToolUse(call)) => {
                Some((call.id, call.name, call.input.as_str().to_owned()))
            }
            _ => None,
        });
    calls.collect()
}

fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
    (id.into(), name.into(), arguments.into())
}

#[test]
fn text_reasoning_and_refusal_become_blocks() {
    let (emitted, completion) = events(
        &[
            r#"{"role":"assistant","content":null,"refusal":null}"#,
            r#"{"reasoning_content":"h","content":""}"#,
            r#"{"reasoning":"m"}"#,
            r#"{"reasoning_content":"!","reasoning":"!"}"#,
            r#"{"content":"Hel"}"#,
            r#"{"content":[{"type":"text","text":"l"},{"type":"new"}]}"#,
            r#"{"refusal":"o"}"#,
        ],
        "stop",
    );

    let thinking = ContentBlock::Thinking(ThinkingBlock {
        thinking: "hm!".into(),
        signature: None,
    });
    assert_eq!(
        emitted,
        [
            ModelEvent::Thinking("hm!".into()),
            ModelEvent::Block(thinking),
            ModelEvent::Text("Hello".into()),
            ModelEvent::Block(ContentBlock::text("Hello")),
        ]
    );
    assert_eq!(
        (completion.stop, completion.raw_stop.as_deref()),
        (ProviderStop::Refusal, Some("stop"))
    );
}

#[test]
fn tool_calls_are_put_together_from_whatever_the_server_sends() {
    let expected = [call("a", "f", "{\"x\": 1}"), call("b", "g", "{}")];
    for (what, deltas) in [
        (
            "as OpenAI does",
            vec![
                r#"{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\""}}]}"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":": 1}"}}]}"#,
                r#"{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}"#,
            ],
        ),
        (
            "whole, in one chunk, all of index 0",
            vec![
                r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\": 1}"}},{"index":0,"id":"b","function":{"name":"g","arguments":"{}"}}]}"#,
            ],
        ),
        (
            "without an index",
            vec![
                r#"{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"x\""}}]}"#,
                r#"{"tool_calls":[{"function":{"arguments":": 1}"}}]}"#,
                r#"{"tool_calls":[{"id":"b","function":{"name":"g","arguments":null}}]}"#,
            ],
        ),
        (
            "id and name on every fragment",
            vec![
                r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\""}}]}"#,
                r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":": 1}"}}]}"#,
                r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{"}}]}"#,
                r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"}"}}]}"#,
            ],
        ),
        (
            "a new id on every fragment",
            vec![
                r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}"#,
                r#"{"tool_calls":[{"index":0,"id":"r1","function":{"name":null,"arguments":"{\"x\": 1}"}}]}"#,
                r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{"}}]}"#,
                r#"{"tool_calls":[{"index":1,"id":"r2","function":{"arguments":"}"}}]}"#,
            ],
        ),
        (
            "arguments as an object",
            vec![
                r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":{"x": 1}}},{"index":1,"id":"b","function":{"name":"g"}}]}"#,
            ],
        ),
    ] {
        assert_eq!(calls(&deltas, "tool_calls"), expected, "{what}");
    }
}

#[test]
fn thoughts_precede_the_calls_of_their_answer_also_when_they_come_later() {
    let thought = r#"{"reasoning_content":"hm"}"#;
    let call = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}"#;

    for deltas in [[thought, call], [call, thought]] {
        let blocks: Vec<ModelEvent> = events(&deltas, "tool_calls")
            .0
            .into_iter()
            .filter(|event| matches!(event, ModelEvent::Block(_)))
            .collect();

        assert!(
            matches!(
                &blocks[..],
                [
                    ModelEvent::Block(ContentBlock::Thinking(_)),
                    ModelEvent::Block(ContentBlock::ToolUse(_)),
                ]
            ),
            "{blocks:?}"
        );
    }
}

#[test]
fn a_call_of_the_old_kind_is_a_call_too() {
    let emitted = calls(
        &[
            r#"{"function_call":{"name":"f","arguments":"{\"x\""}}"#,
            r#"{"function_call":{"arguments":":1}"}}"#,
        ],
        "function_call",
    );

    assert_eq!(
        emitted
            .iter()
            .map(|(_, name, arguments)| (name.as_str(), arguments.as_str()))
            .collect::<Vec<_>>(),
        [("f", "{\"x\":1}")]
    );
}

#[test]
fn missing_and_repeated_ids_are_replaced_and_always_by_the_same() {
    let known: ContentBlock =
        serde_json::from_str(r#"{"type":"tool_use","id":"call_0","name":"f","input":{}}"#).unwrap();
    let history = MessageList::from_iter([Message::new(Role::Assistant, &[known]).unwrap()]);
    let delta = chunk(
        r#"{"tool_calls":[{"index":0,"id":"call_0","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"","function":{"name":"f","arguments":"{}"}},{"index":2,"function":{"name":"f","arguments":"{}"}},{"index":3,"id":"own","function":{"name":"f","arguments":"{}"}}]}"#,
    );
    let stream = sse(&[&delta, &finish("tool_calls"), "[DONE]"]);

    let ids = |_: u8| -> Vec<String> {
        let (events, _) = assemble(OpenAiAssembler::new(history.clone()), [stream.as_bytes()]);
        events
            .into_iter()
            .filter_map(|event| {
                if let ModelEvent::Block(ContentBlock::ToolUse(call)) = event {
                    Some(call.id)
                } else {
                    None
                }
            })
            .collect()
    };

    let first = ids(0);
    assert_eq!(first, ids(1));
    assert_eq!(first[3], "own");
    assert!(
        first[..3]
            .iter()
            .all(|id| id.starts_with("call_") && id != "call_0"),
        "{first:?}"
    );
    assert_eq!(
        first.iter().collect::<std::collections::HashSet<_>>().len(),
        4
    );
}

#[test]
fn arguments_that_are_no_object_are_passed_on_as_text_unless_the_answer_was_truncated() {
    let one = |arguments: &str| {
        let arguments = serde_json::Value::from(arguments);
        format!(
            r#"{{"tool_calls":[{{"index":0,"id":"a","function":{{"name":"f","arguments":{arguments}}}}}]}}"#
        )
    };
    let deep = "{\"a\":".repeat(70) + "1" + &"}".repeat(70);
    let good = r#"{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}"#;
    for arguments in ["{\"x\":", "[]", "{}{}", "null", &deep] {
        let text = serde_json::Value::from(arguments).to_string();
        let faulty = call("a", "f", &text);
        assert_eq!(
            calls(&[&one(arguments)], "tool_calls"),
            std::slice::from_ref(&faulty)
        );
        assert_eq!(calls(&[&one(arguments)], "length"), [], "{arguments}");
        assert_eq!(
            calls(&[&one(arguments), good], "tool_calls"),
            [faulty, call("b", "g", "{}")],
            "beside a good call"
        );
    }
    assert_eq!(
        events(&[&one("[]")], "stop").1.stop,
        ProviderStop::ToolUse,
        "a faulty call is a call"
    );
    assert_eq!(calls(&[&one("")], "length"), []);
    assert_eq!(calls(&[&one("")], "tool_calls"), [call("a", "f", "{}")]);
    assert_eq!(
        calls(&[&one("{\"x\":1}")], "length"),
        [call("a", "f", "{\"x\":1}")]
    );
    assert_eq!(
        calls(
            &[r#"{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{}"}}]}"#],
            "tool_calls"
        ),
        [call("a", "", "{}")],
        "without a name"
    );
}

#[test]
fn every_finish_reason_has_its_meaning_and_keeps_its_word() {
    for (word, stop) in [
        ("stop", ProviderStop::EndTurn),
        ("length", ProviderStop::MaxTokens),
        ("tool_calls", ProviderStop::ToolUse),
        ("function_call", ProviderStop::ToolUse),
        ("content_filter", ProviderStop::Refusal),
        ("something_new", ProviderStop::Other),
    ] {
        let call =
            [r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}"#];
        let is_call = stop == ProviderStop::ToolUse;
        let (_, completion) = events(if is_call { &call } else { &[] }, word);
        assert_eq!(
            (completion.stop, completion.raw_stop.as_deref()),
            (stop, Some(word))
        );
    }
    let whole = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}"#;
    assert_eq!(
        events(&[whole], "stop").1.stop,
        ProviderStop::ToolUse,
        "a call says more than the word"
    );
}

#[test]
fn an_endless_answer_ends_at_its_bound_whatever_it_repeats() {
    let piece = "x".repeat(64 * 1024);
    let arguments =
        |function: &str| format!(r#"{{"tool_calls":[{{"index":0,"function":{function}}}]}}"#);
    for (repeated, error) in [
        (
            vec![chunk(&format!(r#"{{"content":"{piece}"}}"#))],
            "12582912 bytes",
        ),
        (
            vec![chunk(&format!(r#"{{"reasoning":"{piece}"}}"#))],
            "12582912 bytes",
        ),
        (
            vec![chunk(r#"{"content":"x"}"#), chunk(r#"{"reasoning":"x"}"#)],
            "12582912 bytes",
        ),
        (
            vec![chunk(&arguments(&format!(r#"{{"arguments":"{piece}"}}"#)))],
            "12582912 bytes",
        ),
        // Arguments that begin again with every fragment must not be parsed again and again.
        (
            vec![chunk(&arguments(&format!(
                r#"{{"name":"f","arguments":"{{\"a\":\"{piece}"}}"#
            )))],
            "12582912 bytes",
        ),
        (
            vec![chunk(&arguments(r#"{"name":"f","arguments":"{}"}"#))],
            "1024 tool calls",
        ),
    ] {
        let repeated: Vec<&str> = repeated.iter().map(String::as_str).collect();
        let repeated = sse(&repeated);
        let mut assembler = OpenAiAssembler::new(MessageList::default());
        let mut out = Vec::new();

        let times = 64 * 1024 * 1024 / repeated.len();
        let failed = (0..times).find_map(|_| assembler.feed(repeated.as_bytes(), &mut out).err());

        let error = format!("more than {error}");
        assert!(
            matches!(&failed, Some(ProviderError::Protocol { message }) if message.ends_with(&error)),
            "{error}: {failed:?}"
        );
    }
}

#[test]
fn usage_is_normalised_and_kept_as_it_came() {
    for (raw, expected) in [
        (
            r#"{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":30}}"#,
            Usage {
                input_uncached: 10,
                cache_read: 60,
                cache_write: 30,
                output: 5,
            },
        ),
        (
            r#"{"prompt_tokens":355,"completion_tokens":16,"prompt_cache_hit_tokens":256,"total_tokens":371}"#,
            Usage {
                input_uncached: 99,
                cache_read: 256,
                cache_write: 0,
                output: 16,
            },
        ),
        (
            r#"{"prompt_tokens":5,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":50}}"#,
            Usage {
                cache_read: 5,
                ..Usage::default()
            },
        ),
        (
            r#"{"prompt_tokens":5,"prompt_tokens_details":null}"#,
            Usage {
                input_uncached: 5,
                ..Usage::default()
            },
        ),
    ] {
        let (events, ended) = run(&[
            &chunk(r#"{"content":"x"}"#),
            &finish("stop"),
            &format!(r#"{{"choices":[],"usage":{raw}}}"#),
            "[DONE]",
        ]);

        let Some(ModelEvent::Completed(completion)) = events.last() else {
            panic!("{events:?}")
        };
        assert_eq!(
            (
                completion.usage,
                completion.raw_usage.as_ref().map(RawJson::as_str)
            ),
            (Some(expected), Some(raw))
        );
        assert_eq!(ended, Ok(()));
    }
    assert_eq!(events(&[], "stop").1.usage, None);
}

#[test]
fn usage_is_reported_before_the_end() {
    let mut assembler = OpenAiAssembler::new(MessageList::default());
    let mut out = Vec::new();
    let chunk = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#;

    assembler.feed(sse(&[chunk]).as_bytes(), &mut out).unwrap();

    let usage = Usage {
        input_uncached: 5,
        output: 1,
        ..Usage::default()
    };
    assert_eq!(out, [ModelEvent::Usage(usage)]);
}

#[test]
fn the_end_is_done_or_a_finish_reason_and_nothing_less() {
    let text = chunk(r#"{"content":"x"}"#);

    assert_eq!(run(&[&text, &finish("stop")]).1, Ok(()), "DONE is missing");
    assert_eq!(run(&[&text, "[DONE]"]).1, Ok(()), "the reason is missing");
    let (emitted, ended) = run(&[&text]);
    assert_eq!(emitted, [ModelEvent::Text("x".into())]);
    assert!(
        matches!(ended, Err(ProviderError::Incomplete { .. })),
        "{ended:?}"
    );
}

#[test]
fn an_answer_without_content_is_an_error_unless_the_model_ended_its_turn() {
    let role = chunk(r#"{"role":"assistant","content":""}"#);
    let thinking = chunk(r#"{"reasoning_content":"hm"}"#);
    let calls = finish("tool_calls");
    let stop = finish("stop");

    for empty in [
        &[][..],
        &["[DONE]"],
        &[r#"{"choices":[]}"#, "[DONE]"],
        &[&role, "[DONE]"],
        &[&role],
        &[&thinking, "[DONE]"],
        &[&calls, "[DONE]"],
        &[&calls],
        &[&thinking, &calls, "[DONE]"],
    ] {
        let (events, ended) = run(empty);
        assert!(
            matches!(&ended, Err(error @ ProviderError::Incomplete { .. }) if error.is_retryable()),
            "{empty:?}: {ended:?}"
        );
        assert!(
            !events
                .iter()
                .any(|event| matches!(event, ModelEvent::Completed(_)))
        );
    }
    for whole in [&[stop.as_str(), "[DONE]"][..], &[&role, &stop]] {
        assert_eq!(run(whole).1, Ok(()), "{whole:?}");
    }
}

#[test]
fn an_error_inside_the_stream_ends_it() {
    let server = |message: &str| {
        Err(ProviderError::Server {
            status: 0,
            retry_after: None,
            message: message.into(),
        })
    };
    let text = chunk(r#"{"content":"x"}"#);

    for (error, expected) in [
        (
            r#"{"error":{"message":"busy","type":"server_error"}}"#,
            server("busy"),
        ),
        (
            r#"{"error":{"message":"slow","code":429},"choices":[]}"#,
            server("slow"),
        ),
        (
            r#"{"object":"error","message":"too long","code":400}"#,
            Err(ProviderError::InvalidRequest {
                status: 400,
                message: "too long".into(),
            }),
        ),
        (
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#,
            server("the server gave up on the answer"),
        ),
    ] {
        assert_eq!(
            run(&[&text, error, "[DONE]"]),
            (vec![ModelEvent::Text("x".into())], expected),
            "{error}"
        );
    }
}

#[test]
fn other_answers_than_the_first_are_ignored() {
    let other = chunk(r#"{"content":"no"}"#).replace("\"index\":0", "\"index\":1");

    let (emitted, _) = run(&[
        &other,
        &chunk(r#"{"content":"yes"}"#),
        &other,
        &finish("stop"),
        "[DONE]",
    ]);

    assert_eq!(emitted[0], ModelEvent::Text("yes".into()));
    assert_eq!(emitted.len(), 3);
}

fn random_reply(random: &mut SplitMix) -> String {
    let mut chunks = Vec::new();
    for _ in 0..random.below(20) {
        let text = serde_json::Value::from(random_text(random));
        let delta = match random.below(8) {
            0 => format!(r#"{{"reasoning_content":{text}}}"#),
            1 => format!(r#"{{"content":"{{","reasoning_content":{text}}}"#),
            2 => format!(r#"{{"content":{text},"refusal":""}}"#),
            3 => r#"{"tool_calls":[{"index":0,"function":{"arguments":"1"}}]}"#.to_owned(),
            _ => format!(r#"{{"content":{text}}}"#),
        };
        let data = chunk(&delta);
        chunks.push(match random.below(12) {
            0 => data.replace("\"index\":0", "\"index\":1"),
            1 => data.replace("null}]}", "null}],\"usage\":{\"prompt_tokens\":1}}"),
            2 => data.replace("finish_reason\":null", "finish_reason\":\"stop\""),
            _ => data,
        });
    }
    chunks.push(finish("stop"));
    sse(&chunks.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn the_template_yields_what_the_parser_yields_under_every_split() {
    let seed = seed("openai template");
    let mut random = SplitMix(seed);
    for round in 0..400 {
        let mut stream = random_reply(&mut random).into_bytes();
        if round % 3 == 0 {
            let at = random.below(stream.len());
            stream[at] = [b'"', b'\\', b'}', 0xff, b'\n', b'\r', b' ', b'x'][random.below(8)];
        }
        if round % 5 == 0 {
            stream = in_another_hand(&stream, &mut random);
        }
        let parsed = assemble(
            OpenAiAssembler::new(MessageList::default()).without_template(),
            [stream.as_slice()],
        );

        for pieces in [
            vec![stream.as_slice()],
            stream.chunks(1).collect(),
            random_splits(&stream, &mut random),
        ] {
            let emitted = assemble(OpenAiAssembler::new(MessageList::default()), pieces);
            assert_eq!(
                emitted,
                parsed,
                "seed {seed}, round {round}: {}",
                String::from_utf8_lossy(&stream)
            );
        }
    }
}

#[test]
fn a_second_delta_of_the_same_shape_is_not_parsed() {
    let mut assembler = OpenAiAssembler::new(MessageList::default());

    assembler
        .feed(
            sse(&[&chunk(r#"{"content":"one"}"#)]).as_bytes(),
            &mut Vec::new(),
        )
        .unwrap();
    assert_eq!(
        assembler
            .reply
            .template
            .text(chunk(r#"{"content":"two"}"#).as_bytes()),
        Some((Piece::Text, "two"))
    );

    // A chunk that carries more than text must not become the template.
    assembler
        .feed(
            sse(&[&chunk(r#"{"content":"x"}"#).replace("null}]}", "\"stop\"}]}")]).as_bytes(),
            &mut Vec::new(),
        )
        .unwrap();
    assert_eq!(
        assembler.reply.template.text(
            chunk(r#"{"content":"x"}"#)
                .replace("null}]}", "\"stop\"}]}")
                .as_bytes()
        ),
        None
    );
}

#[test]
fn events_of_the_same_shape_are_not_taken_apart_and_others_end_the_run() {
    let line = |text: &str| chunk(&format!(r#"{{"content":"{text}"}}"#));
    let mut assembler = OpenAiAssembler::new(MessageList::default());
    assembler
        .feed(sse(&[&line("one")]).as_bytes(), &mut Vec::new())
        .unwrap();
    let run = sse(&[&line("two"), &line("drei ü")]);
    let end = sse(&[&chunk("{}")]);

    let stream = [run.as_str(), &end].concat();
    let mut out = Vec::new();
    let rest = assembler.reply.take_known(stream.as_bytes(), &mut out);
    assembler.reply.pieces.flush(&mut out);

    assert_eq!(out, [ModelEvent::Text("twodrei ü".into())]);
    assert_eq!(rest, end.as_bytes());
}

#[test]
fn an_event_with_very_many_values_is_refused_when_that_is_known() {
    let many = |value: &str| vec![value; 100_000].join(",");
    let events = [
        (format!(r#"{{"choices":[{}]}}"#, many("{}")), 32),
        (
            chunk(&format!(r#"{{"tool_calls":[{}]}}"#, many("{}"))),
            4096,
        ),
    ];
    for (event, most) in events {
        let (_, ended) = run(&[&event]);

        let most = format!("at most {most} values");
        assert!(
            matches!(&ended, Err(ProviderError::Protocol { message, .. }) if message.contains(&most)),
            "{ended:?}"
        );
    }
}

#[test]
fn arguments_count_while_they_are_written() {
    let mut assembler = OpenAiAssembler::new(MessageList::default());
    let mut bytes = |delta: &str| {
        let events = sse(&[&chunk(delta)]);
        assembler.feed(events.as_bytes(), &mut Vec::new()).unwrap();
        assembler.argument_bytes()
    };

    let call = |index: u64, arguments: &str| {
        let arguments = serde_json::Value::from(arguments);
        format!(
            r#"{{"tool_calls":[{{"index":{index},"id":"c{index}","type":"function","function":{{"name":"f","arguments":{arguments}}}}}]}}"#
        )
    };
    assert_eq!(bytes(r#"{"content":"text"}"#), 0);
    assert_eq!(bytes(&call(0, "{\"a\":\"abc")), 9);
    assert_eq!(bytes(&call(1, "{\"b\":")), 14);
}
