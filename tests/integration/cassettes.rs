//! Checks the stream assemblers against recorded traffic: an `index.jsonl` with golden results, one
//! `<id>.sse` each. The recordings of `cassettes/` are written by hand from the references of the
//! APIs. `CALLBOARD_CASSETTES` names a folder of others, from real traffic, that is not part of the
//! repository.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use callboard::{
    chat::{ContentBlock, MessageList},
    ports::{ModelEvent, ProviderError},
    providers::{
        AnthropicAssembler, Assemble, GeminiAssembler, OpenAiAssembler, ResponsesAssembler,
    },
};
use serde_json::{Value, json};

use crate::support::{SplitMix, random_splits, seed};

/// A recording and its expected result.
struct Cassette {
    id: String,
    body: Vec<u8>,
    golden: Value,
}

fn cassettes(test: &str, prefix: &str) -> Vec<Cassette> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/cassettes");
    let others = std::env::var_os("CALLBOARD_CASSETTES").map(PathBuf::from);
    let all: Vec<_> = others
        .iter()
        .chain([&own])
        .flat_map(|folder| read(folder, prefix))
        .collect();
    if others.is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: {test}: the recordings of real traffic, CALLBOARD_CASSETTES is not set"
        );
    } else {
        assert!(!all.is_empty(), "no recording begins with {prefix}");
    }
    all
}

fn read(folder: &Path, prefix: &str) -> Vec<Cassette> {
    let index = std::fs::read_to_string(folder.join("index.jsonl")).unwrap();
    let entries = index
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let wanted = entries.filter(|entry| entry["id"].as_str().unwrap().starts_with(prefix));
    wanted
        .map(|entry| {
            let id = entry["id"].as_str().unwrap().to_owned();
            let body = std::fs::read(folder.join(format!("{id}.sse"))).unwrap();
            Cassette {
                id,
                body,
                golden: entry["golden"].clone(),
            }
        })
        .collect()
}

fn assemble<'a>(
    mut assembler: impl Assemble,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Result<(), ProviderError>) {
    let mut out = Vec::new();
    for piece in pieces {
        if let Err(error) = assembler.feed(piece, &mut out) {
            return (out, Err(error));
        }
    }
    let ended = if assembler.is_complete() {
        Ok(())
    } else {
        assembler.finish(&mut out)
    };
    (out, ended)
}

fn text_of(events: &[ModelEvent]) -> String {
    let text = |event: &ModelEvent| match event {
        ModelEvent::Text(piece) => Some(piece.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

/// Converts events to the form of the golden results.
fn summary(events: &[ModelEvent], golden: &Value) -> Value {
    let mut text = String::new();
    let mut block_text = String::new();
    let mut thinking = 0;
    let mut tools = Vec::new();
    let mut end = Value::Null;
    for event in events {
        assert!(end.is_null(), "nothing follows the completion");
        match event {
            ModelEvent::Text(piece) => text.push_str(piece),
            ModelEvent::Thinking(piece) => thinking += piece.chars().count(),
            ModelEvent::Block(ContentBlock::Text(block)) => block_text.push_str(&block.text),
            ModelEvent::Block(ContentBlock::ToolUse(call)) => {
                tools.push(json!({"id": call.id, "name": call.name, "args": call.input.parse::<Value>().unwrap()}));
            }
            ModelEvent::Block(ContentBlock::Other { kind, raw }) if kind == "server_tool_use" => {
                let call: Value = raw.parse().unwrap();
                tools.push(json!({"id": call["id"], "name": call["name"], "args": call["input"]}));
            }
            ModelEvent::Block(_) => {}
            ModelEvent::Usage(_) | ModelEvent::Arguments(_) | ModelEvent::Limits(_) => {}
            ModelEvent::Completed(completion) => {
                let usage: Value = completion
                    .raw_usage
                    .as_ref()
                    .map_or(Value::Null, |raw| raw.parse().unwrap());
                // The golden usage holds only the plain figures.
                let names = golden["usage"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, _)| name);
                let usage: Value = names
                    .map(|name| (name.clone(), usage[name].clone()))
                    .collect::<serde_json::Map<_, _>>()
                    .into();
                end = json!({"stop": completion.raw_stop, "usage": usage});
            }
        }
    }
    assert_eq!(text, block_text, "pieces and blocks are the same text");
    let thinking = if counts_thinking(golden) {
        json!(thinking)
    } else {
        Value::Null
    };
    json!({"text": text, "thinking_len": thinking, "tools": tools, "end": end})
}

/// Whether a golden result counts the reasoning. Those of OpenAI's APIs from elsewhere do not.
fn counts_thinking(golden: &Value) -> bool {
    matches!(golden["provider"].as_str(), Some("anthropic" | "gemini"))
        || golden["thinking_len"] != 0 && golden["provider"] != "openai_chat"
}

/// The expected result. A call that was cut at the length limit before any argument is not part of
/// it, because it must not run.
fn expected(golden: &Value) -> Value {
    let cut = matches!(golden["stop"].as_str(), Some("length" | "max_tokens"));
    let tools = golden["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|tool| tool["args_raw_ok"] == true && !(cut && tool["args"] == json!({})));
    let tools: Vec<_> = tools
        .map(|tool| json!({"id": tool["id"], "name": tool["name"], "args": tool["args"]}))
        .collect();
    let thinking = if counts_thinking(golden) {
        &golden["thinking_len"]
    } else {
        &Value::Null
    };
    json!({
        "text": golden["text"], "thinking_len": thinking, "tools": tools,
        "end": {"stop": golden["stop"], "usage": golden["usage"]},
    })
}

fn check<A: Assemble>(test: &str, prefix: &str, assembler: impl Fn() -> A) {
    let seed = seed(test);
    let mut random = SplitMix(seed);
    for Cassette { id, body, golden } in cassettes(test, prefix) {
        let check = |how: &str, pieces: Vec<&[u8]>| {
            let (events, ended) = assemble(assembler(), pieces);
            if let Some(code) = golden["error"].as_str() {
                let failed = json!({"text": text_of(&events), "error": ended.unwrap_err().code()});
                assert_eq!(
                    failed,
                    json!({"text": golden["text"], "error": code}),
                    "{id}, {how}"
                );
                return;
            }
            ended.unwrap_or_else(|error| panic!("{id}, {how}: {error}"));
            assert_eq!(summary(&events, &golden), expected(&golden), "{id}, {how}");
        };
        check("whole", vec![&body]);
        check("byte by byte", body.chunks(1).collect());
        for _ in 0..10 {
            check(
                &format!("random splits of seed {seed}"),
                random_splits(&body, &mut random),
            );
        }
    }
}

/// Cuts every recording at several hundred places. No cut reply may look complete, and no call in
/// it may differ from the golden ones.
fn check_cuts<A: Assemble>(test: &str, prefix: &str, assembler: impl Fn() -> A) {
    for Cassette { id, body, golden } in cassettes(test, prefix) {
        if golden["error"].is_string() {
            continue;
        }
        let whole = expected(&golden);
        for cut in (0..body.len()).step_by(1 + body.len() / 300) {
            let mut assembler = assembler();
            let mut events = Vec::new();
            let ended = assembler
                .feed(&body[..cut], &mut events)
                .and_then(|()| assembler.finish(&mut events));
            let calls = events.iter().filter_map(|event| match event {
                ModelEvent::Block(ContentBlock::ToolUse(call)) => {
                    Some((call.id.clone(), call.input.parse::<Value>().unwrap()))
                }
                _ => None,
            });
            for (call, arguments) in calls {
                let known = whole["tools"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|tool| tool["id"] == call.as_str() && tool["args"] == arguments);
                assert!(known, "{id} cut at {cut}: {call} with {arguments}");
            }
            let complete = events
                .iter()
                .any(|event| matches!(event, ModelEvent::Completed(_)));
            assert_eq!(complete, ended.is_ok(), "{id} cut at {cut}");
        }
    }
}

#[test]
fn recorded_anthropic_streams_give_their_golden_result_under_every_split() {
    check("recorded_anthropic_streams", "anthropic-", || {
        AnthropicAssembler::new(MessageList::default())
    });
}

#[test]
fn recorded_chat_completions_streams_give_their_golden_result_under_every_split() {
    check("recorded_chat_completions_streams", "openai_chat-", || {
        OpenAiAssembler::new(MessageList::default())
    });
}

#[test]
fn recorded_responses_streams_give_their_golden_result_under_every_split() {
    check("recorded_responses_streams", "openai_responses-", || {
        ResponsesAssembler::new(MessageList::default())
    });
}

#[test]
fn recorded_gemini_streams_give_their_golden_result_under_every_split() {
    check("recorded_gemini_streams", "gemini-", || {
        GeminiAssembler::new(MessageList::default())
    });
}

#[test]
fn a_cut_recording_never_runs_a_tool_with_other_arguments() {
    check_cuts("a_cut_recording (anthropic)", "anthropic-", || {
        AnthropicAssembler::new(MessageList::default())
    });
    check_cuts("a_cut_recording (openai)", "openai_chat-", || {
        OpenAiAssembler::new(MessageList::default())
    });
    check_cuts("a_cut_recording (gemini)", "gemini-", || {
        GeminiAssembler::new(MessageList::default())
    });
    check_cuts("a_cut_recording (responses)", "openai_responses-", || {
        ResponsesAssembler::new(MessageList::default())
    });
}
