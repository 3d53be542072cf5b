use callboard_actors::chat::{Message, Role};

use super::*;
use crate::providers::testing::{
    SplitMix, assemble, in_another_hand, random_splits, random_text, seed,
};

const START: &str = r#"{"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":10,"cache_read_input_tokens":3,"output_tokens":1}}}"#;
const STOP: &str = r#"{"type":"message_stop"}"#;

fn sse(events: &[&str]) -> String {
    events
        .iter()
        .map(|data| format!("event: x\ndata: {data}\n\n"))
        .collect()
}

fn message_delta(stop: &str) -> String {
    format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"{stop}","stop_sequence":null}},"usage":{{"output_tokens":7}}}}"#
    )
}

/// Returns the events of a reply that consists of these inner events, and its completion
/// separately.
fn blocks(inner: &[&str], stop: &str) -> (Vec<ModelEvent>, Completion) {
    let delta = message_delta(stop);
    let events = [&[START], inner, &[&delta, STOP]].concat();
    let (mut events, ended) = assemble(
        AnthropicAssembler::new(MessageList::default()),
        [sse(&events).as_bytes()],
    );
    assert_eq!(ended, Ok(()));
    let Some(ModelEvent::Completed(completion)) = events.pop() else {
        panic!("no completion: {events:?}")
    };
    (events, completion)
}

fn block(json: &str) -> ModelEvent {
    ModelEvent::Block(serde_json::from_str(json).unwrap())
}

/// A call whose arguments are passed on as text.
fn faulty(name: &str, text: &str) -> ModelEvent {
    ModelEvent::Block(ContentBlock::ToolUse(ToolUseBlock {
        id: "t0".into(),
        name: name.into(),
        input: RawJson::of(text).unwrap(),
    }))
}

fn tool_use(index: u64, fragments: &[&str]) -> Vec<String> {
    let mut events = vec![format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"t{index}","name":"f","input":{{}}}}}}"#
    )];
    events.extend(fragments.iter().map(|fragment| {
        let fragment = serde_json::Value::from(*fragment);
        format!(r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"input_json_delta","partial_json":{fragment}}}}}"#)
    }));
    events.push(format!(
        r#"{{"type":"content_block_stop","index":{index}}}"#
    ));
    events
}

fn strs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

#[test]
fn text_thinking_and_signature_become_blocks_and_usage_is_cumulative() {
    let (events, completion) = blocks(
        &[
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hel"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"lo"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"citations_delta","citation":{"a": 1}}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"a_new_delta","text":"ignored"}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"a_new_event","x":[1]}"#,
        ],
        "end_turn",
    );

    assert_eq!(
        events,
        [
            ModelEvent::Thinking("hm".into()),
            block(r#"{"type":"thinking","thinking":"hm","signature":"c2ln"}"#),
            ModelEvent::Text("Hello".into()),
            block(r#"{"type":"text","text":"Hello","citations":[{"a": 1}]}"#),
        ]
    );
    assert_eq!(
        completion,
        Completion {
            stop: ProviderStop::EndTurn,
            raw_stop: Some("end_turn".into()),
            usage: Some(Usage {
                input_uncached: 10,
                cache_read: 3,
                cache_write: 0,
                output: 7
            }),
            raw_usage: Some(
                RawJson::from_text(
                    r#"{"input_tokens":10,"cache_read_input_tokens":3,"output_tokens":7}"#
                )
                .unwrap()
            ),
        }
    );
}

#[test]
fn thoughts_precede_the_calls_of_their_answer() {
    let thought = [
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
    ];
    let calls = [tool_use(1, &["{}"]), tool_use(2, &["{}"])].concat();

    let (events, _) = blocks(&[&thought, &strs(&calls)[..]].concat(), "tool_use");

    assert_eq!(
        events,
        [
            ModelEvent::Thinking("hm".into()),
            block(r#"{"type":"thinking","thinking":"hm","signature":"c2ln"}"#),
            block(r#"{"type":"tool_use","id":"t1","name":"f","input":{}}"#),
            block(r#"{"type":"tool_use","id":"t2","name":"f","input":{}}"#),
        ]
    );
}

#[test]
fn neighbouring_deltas_of_one_read_are_one_event() {
    let delta =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ab"}}"#;
    let mut assembler = AnthropicAssembler::new(MessageList::default());
    let mut out = Vec::new();

    assembler
        .feed(sse(&[START, delta, delta, delta]).as_bytes(), &mut out)
        .unwrap();

    assert_eq!(out[1..], [ModelEvent::Text("ababab".into())]); // Usage comes first.
}

#[test]
fn signed_thinking_without_text_is_kept_and_empty_text_is_not() {
    let (events, _) = blocks(
        &[
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
        ],
        "refusal",
    );

    assert_eq!(
        events,
        [block(
            r#"{"type":"thinking","thinking":"","signature":"c2ln"}"#
        )]
    );
}

#[test]
fn arguments_keep_the_models_own_text() {
    let (events, completion) = blocks(
        &strs(&tool_use(0, &["", "{\"b\": 1.0", ",  \"a\":2}"])),
        "tool_use",
    );

    assert_eq!(
        events,
        [block(
            r#"{"type":"tool_use","id":"t0","name":"f","input":{"b": 1.0,  "a":2}}"#
        )]
    );
    assert_eq!(completion.stop, ProviderStop::ToolUse);
}

#[test]
fn arguments_that_are_no_object_are_passed_on_as_text_unless_the_answer_was_truncated() {
    let deep = "{\"a\":".repeat(70) + "1" + &"}".repeat(70);
    let good = block(r#"{"type":"tool_use","id":"t1","name":"f","input":{"b":2}}"#);
    for text in ["{\"a\":", "[1]", "{\"a\":1}}", "\"{}\"", &deep] {
        let faulty = faulty("f", text);
        let call = tool_use(0, &[text]);
        let beside = [call.clone(), tool_use(1, &["{\"b\":2}"])].concat();

        assert_eq!(
            blocks(&strs(&call), "tool_use").0,
            std::slice::from_ref(&faulty)
        );
        assert_eq!(blocks(&strs(&call), "max_tokens").0, []);
        assert_eq!(
            blocks(&strs(&beside), "tool_use").0,
            [faulty, good.clone()],
            "beside a good call"
        );
    }
    let open = tool_use(0, &["{}"]);
    assert_eq!(
        blocks(&strs(&open[..2]), "tool_use").0,
        [faulty("f", "{}")],
        "without its end"
    );
    assert_eq!(blocks(&strs(&open[..2]), "max_tokens").0, []);
    let start = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t0","input":[1]}}"#;
    assert_eq!(
        blocks(
            &[start, r#"{"type":"content_block_stop","index":0}"#],
            "tool_use"
        )
        .0,
        [faulty("", "[1]")],
        "without a name"
    );
}

#[test]
fn a_call_without_arguments_is_reported_unless_the_answer_was_truncated() {
    let call = block(r#"{"type":"tool_use","id":"t0","name":"f","input":{}}"#);
    let two = [tool_use(0, &[""]), tool_use(1, &[])].concat();
    let second = block(r#"{"type":"tool_use","id":"t1","name":"f","input":{}}"#);

    assert_eq!(
        blocks(&strs(&tool_use(0, &[""])), "tool_use").0,
        std::slice::from_ref(&call)
    );
    assert_eq!(blocks(&strs(&tool_use(0, &[""])), "max_tokens").0, []);
    assert_eq!(blocks(&strs(&two), "tool_use").0, [call.clone(), second]);
    assert_eq!(blocks(&strs(&two), "max_tokens").0, [call]);
}

#[test]
fn blocks_without_a_start_and_fields_of_a_block_are_bounded_too() {
    let block = |index: usize| {
        format!(
            r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"text_delta","text":""}}}}"#
        )
    };
    let blocks: Vec<String> = (0..ANSWER_CALLS_MAX + 2).map(block).collect();
    let fields = |from: usize, count: usize| {
        let fields: Vec<String> = (from..from + count)
            .map(|nth| format!(r#""f{nth}":"x""#))
            .collect();
        let fields = fields.join(",");
        format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"odd_delta",{fields}}}}}"#
        )
    };
    let odd = r#"{"type":"content_block_start","index":0,"content_block":{"type":"odd"}}"#;
    let odd = odd.to_owned();
    for (events, expected) in [
        (blocks, "too many blocks"),
        (vec![odd.clone(), fields(0, 100)], "at most 64 fields"),
        (vec![odd, fields(0, 40), fields(40, 40)], "too many fields"),
    ] {
        let mut assembler = AnthropicAssembler::new(MessageList::default());
        let stream = sse(&strs(&events));
        let error = assembler
            .feed(stream.as_bytes(), &mut Vec::new())
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn an_endless_answer_ends_at_its_bound_whatever_it_repeats() {
    let piece = "x".repeat(64 * 1024);
    let delta = |fields: String| {
        format!(r#"{{"type":"content_block_delta","index":0,"delta":{{{fields}}}}}"#)
    };
    let start = |block: &str| {
        format!(r#"{{"type":"content_block_start","index":0,"content_block":{block}}}"#)
    };
    let call = start(r#"{"type":"tool_use","id":"a","name":"f"}"#);
    let stop = r#"{"type":"content_block_stop","index":0}"#.to_owned();
    let text = start(r#"{"type":"text","text":""}"#);
    for (head, repeated, error) in [
        (
            &text,
            vec![delta(format!(r#""type":"text_delta","text":"{piece}""#))],
            "12582912 bytes",
        ),
        (
            &text,
            vec![delta(format!(
                r#""type":"citations_delta","citation":"{piece}""#
            ))],
            "12582912 bytes",
        ),
        (
            &call,
            vec![delta(format!(
                r#""type":"input_json_delta","partial_json":"{piece}""#
            ))],
            "12582912 bytes",
        ),
        (
            &start(r#"{"type":"odd"}"#),
            vec![delta(format!(r#""type":"odd_delta","odd":"{piece}""#))],
            "12582912 bytes",
        ),
        (&stop, vec![text.clone(), stop.clone()], "12582912 bytes"),
        (&stop, vec![call.clone(), stop.clone()], "1024 tool calls"),
        (&stop, vec![call.clone()], "1024 tool calls"),
    ] {
        let repeated: Vec<&str> = repeated.iter().map(String::as_str).collect();
        let repeated = sse(&repeated);
        let mut assembler = AnthropicAssembler::new(MessageList::default());
        let mut out = Vec::new();
        assembler
            .feed(sse(&[START, head]).as_bytes(), &mut out)
            .unwrap();

        let times = 64 * 1024 * 1024 / repeated.len();
        let failed = (0..times).find_map(|_| assembler.feed(repeated.as_bytes(), &mut out).err());

        let error = format!("more than {error}");
        assert!(
            matches!(&failed, Some(ProviderError::Protocol { message }) if message.ends_with(&error)),
            "{error}: {failed:?}"
        );
        assert!(out.len() <= 50_000, "{error}: {} events", out.len());
    }
}

#[test]
fn blocks_that_we_do_not_know_are_kept_word_for_word() {
    let (events, _) = blocks(
        &[
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"s1","name":"web_search","input":{}}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"q\": \"x\"}"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"web_search_tool_result","tool_use_id":"s1","content":[{"b": 1.50}]}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"content_block_start","index":2,"content_block":{"type":"redacted_thinking","data":"eA=="}}"#,
            r#"{"type":"content_block_stop","index":2}"#,
            r#"{"type":"content_block_start","index":3,"content_block":{"type":"compaction","content":null,"z":"a"}}"#,
            r#"{"type":"content_block_delta","index":3,"delta":{"type":"compaction_delta","content":"sum","z":"b"}}"#,
            r#"{"type":"content_block_delta","index":3,"delta":{"type":"compaction_delta","content":"mary"}}"#,
            r#"{"type":"content_block_stop","index":3}"#,
        ],
        "pause_turn",
    );

    assert_eq!(
        events,
        [
            block(r#"{"type":"server_tool_use","id":"s1","name":"web_search","input":{"q": "x"}}"#),
            block(
                r#"{"type":"web_search_tool_result","tool_use_id":"s1","content":[{"b": 1.50}]}"#
            ),
            block(r#"{"type":"redacted_thinking","data":"eA=="}"#),
            block(r#"{"type":"compaction","content":"summary","z":"ab"}"#),
        ]
    );
}

#[test]
fn every_stop_reason_has_its_meaning_and_keeps_its_word() {
    for (word, stop) in [
        ("end_turn", ProviderStop::EndTurn),
        ("tool_use", ProviderStop::ToolUse),
        ("max_tokens", ProviderStop::MaxTokens),
        ("stop_sequence", ProviderStop::StopSequence),
        ("pause_turn", ProviderStop::PauseTurn),
        ("refusal", ProviderStop::Refusal),
        (
            "model_context_window_exceeded",
            ProviderStop::ContextWindowExceeded,
        ),
        ("something_new", ProviderStop::Other),
    ] {
        let call = tool_use(0, &["{}"]);
        let inner = if word == "tool_use" {
            strs(&call)
        } else {
            Vec::new()
        };
        let (_, completion) = blocks(&inner, word);
        assert_eq!(
            (completion.stop, completion.raw_stop.as_deref()),
            (stop, Some(word))
        );
    }
}

#[test]
fn an_error_event_ends_the_reply_after_what_came_before() {
    let delta =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"par"}}"#;
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;

    let ended = assemble(
        AnthropicAssembler::new(MessageList::default()),
        [sse(&[START, delta, error, STOP]).as_bytes()],
    );

    let overloaded = ProviderError::Server {
        status: 0,
        retry_after: None,
        message: "Overloaded".into(),
    };
    assert_eq!(
        ended,
        (vec![ModelEvent::Text("par".into())], Err(overloaded))
    );
}

#[test]
fn a_stream_without_its_end_is_an_error_at_every_cut() {
    let call = tool_use(0, &["{\"a\":", "1}"]);
    let whole = sse(&[
        &[START],
        &strs(&call)[..],
        &[&message_delta("tool_use"), STOP],
    ]
    .concat());
    let complete = whole.trim_end().len();

    for cut in 0..complete {
        let (events, ended) = assemble(
            AnthropicAssembler::new(MessageList::default()),
            [&whole.as_bytes()[..cut]],
        );

        assert!(
            matches!(ended, Err(ProviderError::Incomplete { .. })),
            "cut at {cut}: {ended:?}"
        );
        assert!(
            !events
                .iter()
                .any(|event| matches!(event, ModelEvent::Completed(_))),
            "cut at {cut}"
        );
    }
}

#[test]
fn an_answer_without_content_is_an_error_unless_the_model_ended_its_turn() {
    let ended = |events: &[&str]| {
        assemble(
            AnthropicAssembler::new(MessageList::default()),
            [sse(events).as_bytes()],
        )
    };
    let end_turn = message_delta("end_turn");
    let tool_use = message_delta("tool_use");
    let thinking = r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#;
    let text =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"yes"}}"#;

    for empty in [
        &[][..],
        &[r#"{"type":"ping"}"#],
        &[STOP],
        &[START, STOP],
        &[&end_turn, STOP],
        &[START, &tool_use, STOP],
        &[START, thinking, &tool_use, STOP],
        &[START, thinking, STOP],
    ] {
        let (events, ended) = ended(empty);
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
    for whole in [&[START, &end_turn, STOP][..], &[text, STOP]] {
        assert_eq!(ended(whole).1, Ok(()), "{whole:?}");
    }
}

#[test]
fn usage_is_reported_before_the_end() {
    let mut assembler = AnthropicAssembler::new(MessageList::default());
    let mut out = Vec::new();

    assembler.feed(sse(&[START]).as_bytes(), &mut out).unwrap();

    let usage = Usage {
        input_uncached: 10,
        cache_read: 3,
        cache_write: 0,
        output: 1,
    };
    assert_eq!(out, [ModelEvent::Usage(usage)]);
}

#[test]
fn a_repeated_or_missing_id_is_replaced() {
    let events = tool_use(0, &["{\"a\":1}"]);
    let delta = message_delta("tool_use");
    let stream = sse(&[&[START], &strs(&events)[..], &[&delta, STOP]].concat());
    let known: ContentBlock =
        serde_json::from_str(r#"{"type":"tool_use","id":"t0","name":"f","input":{}}"#).unwrap();
    let history = MessageList::from_iter([Message::new(Role::Assistant, &[known]).unwrap()]);

    for (history, stream) in [
        (history, stream.clone()),
        (MessageList::default(), stream.replace("\"id\":\"t0\",", "")),
    ] {
        let (events, ended) = assemble(AnthropicAssembler::new(history), [stream.as_bytes()]);
        let ModelEvent::Block(ContentBlock::ToolUse(call)) = &events[0] else {
            panic!("{events:?}")
        };
        assert!(
            call.id.starts_with("call_0_") && ended.is_ok(),
            "{}",
            call.id
        );
    }
}

/// A reply of random blocks, padded with blanks as the API pads its events.
fn random_reply(random: &mut SplitMix) -> String {
    let mut events = vec![START.to_owned()];
    for index in 0..random.below(4) {
        let thinking = random.below(2) == 0;
        let kind = if thinking { "thinking" } else { "text" };
        events.push(format!(r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"{kind}","{kind}":""}}}}"#));
        for _ in 0..random.below(8) {
            let other = random.below(12) == 0;
            let (kind, index) = if other {
                ("text", index + 1)
            } else {
                (kind, index)
            };
            let text = serde_json::Value::from(random_text(random));
            let pad = " ".repeat(random.below(3) * random.below(5));
            let data = format!(
                r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"{kind}_delta","{kind}":{text}}}{pad}}}"#
            );
            events.push(if random.below(20) == 0 {
                data.replace("}}", "},\"x\":\" } \"}")
            } else {
                data
            });
        }
        events.push(format!(
            r#"{{"type":"content_block_stop","index":{index}}}"#
        ));
    }
    events.push(message_delta("end_turn"));
    events.push(STOP.to_owned());
    sse(&strs(&events))
}

#[test]
fn the_template_yields_what_the_parser_yields_under_every_split() {
    let seed = seed("anthropic template");
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
            AnthropicAssembler::new(MessageList::default()).without_template(),
            [stream.as_slice()],
        );

        for pieces in [
            vec![stream.as_slice()],
            stream.chunks(1).collect(),
            random_splits(&stream, &mut random),
        ] {
            let assembled = assemble(AnthropicAssembler::new(MessageList::default()), pieces);
            assert_eq!(
                assembled,
                parsed,
                "seed {seed}, round {round}: {}",
                String::from_utf8_lossy(&stream)
            );
        }
    }
}

#[test]
fn a_second_delta_of_the_same_shape_is_not_parsed() {
    let line = |text: &str| {
        format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
        )
    };
    let mut assembler = AnthropicAssembler::new(MessageList::default());

    assembler
        .feed(sse(&[START, &line("one")]).as_bytes(), &mut Vec::new())
        .unwrap();

    assert_eq!(
        assembler.reply.template.text(line("two").as_bytes()),
        Some(((0, Piece::Text), "two"))
    );
}

#[test]
fn events_of_the_same_shape_are_not_taken_apart_and_others_end_the_run() {
    let line = |text: &str| {
        format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
        )
    };
    let mut assembler = AnthropicAssembler::new(MessageList::default());
    assembler
        .feed(sse(&[START, &line("one")]).as_bytes(), &mut Vec::new())
        .unwrap();
    let run = sse(&[&line("two"), &format!("{}   ", line("drei ü"))]);
    let end = sse(&[&line("\\n")]);

    let stream = [run.as_str(), &end].concat();
    let mut out = Vec::new();
    let rest = assembler.reply.take_known(stream.as_bytes(), &mut out);
    assembler.reply.pieces.flush(&mut out);

    assert_eq!(out, [ModelEvent::Text("twodrei ü".into())]);
    assert_eq!(rest, end.as_bytes());
}

#[test]
fn arguments_count_while_they_are_written_and_not_when_their_call_was_emitted() {
    let events = tool_use(1, &["{\"text\":\"", "abc", "\"}"]);
    let mut assembler = AnthropicAssembler::new(MessageList::default());
    let mut bytes = |events: &[&str]| {
        assembler
            .feed(sse(events).as_bytes(), &mut Vec::new())
            .unwrap();
        assembler.argument_bytes()
    };

    assert_eq!(bytes(&[START, &events[0]]), 0);
    assert_eq!(bytes(&[&events[1], &events[2]]), 12);
    assert_eq!(bytes(&[&events[3]]), 14);
    assert_eq!(bytes(&[&events[4]]), 0);
}
