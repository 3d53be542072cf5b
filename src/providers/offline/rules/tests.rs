use std::sync::Arc;

use callboard_actors::{
    chat::{Message, MessageList, ToolChoice, ToolDefinition},
    ports::{Completion, ModelEvent},
};
use futures_util::StreamExt;

use super::*;

fn request(prompt: &str, tools: &[&str]) -> ModelRequest {
    let tool = |name: &&str| ToolDefinition {
        name: (*name).into(),
        description: String::new(),
        input_schema: RawJson::empty_object(),
    };
    ModelRequest {
        model: "offline".into(),
        system: None,
        messages: MessageList::from_iter([Message::user(prompt)]),
        tools: tools.iter().map(tool).collect(),
        tool_choice: ToolChoice::Auto,
        max_tokens: 4096,
        stop: Arc::new([]),
        effort: None,
        thinking: None,
        temperature: None,
        output_schema: None,
        cache: false,
    }
}

async fn events(request: ModelRequest) -> Vec<ModelEvent> {
    let stream = Offline
        .stream(request, CancellationToken::new())
        .await
        .unwrap();
    stream
        .map(Result::unwrap)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .flatten()
        .collect()
}

fn pieces(events: &[ModelEvent]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|event| {
            if let ModelEvent::Text(piece) = event {
                Some(piece.as_str())
            } else {
                None
            }
        })
        .collect()
}

#[tokio::test]
async fn a_greeting_is_answered_honestly() {
    let events = events(request("hello", &["grep_search"])).await;

    let pieces = pieces(&events);
    assert!(
        pieces
            .concat()
            .starts_with("[offline model: rule-based and deterministic, no network")
    );
    let Some(ModelEvent::Completed(Completion {
        usage: Some(usage), ..
    })) = events.last()
    else {
        panic!("{events:?}")
    };
    assert_eq!(usage.output, pieces.concat().len() as u64 / 4);
}

#[tokio::test]
async fn a_search_begins_with_calls_of_offered_tools_only() {
    for (tools, offered) in [
        (&["grep_search"][..], true),
        (&["grep_search", "file_list", "file_read"], true),
        (&["bash"], false),
    ] {
        let events = events(request("Where is `RetryBucket` defined?", tools)).await;

        let called: Vec<String> = events
            .iter()
            .filter_map(|event| {
                if let ModelEvent::Block(callboard_actors::chat::ContentBlock::ToolUse(call)) =
                    event
                {
                    Some(call.name.clone())
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(!called.is_empty(), offered);
        assert!(
            called.iter().all(|name| tools.contains(&name.as_str())),
            "{called:?}"
        );
    }
}

#[tokio::test]
async fn an_answer_stops_at_the_bound_of_the_request() {
    let events = events(ModelRequest {
        max_tokens: 5,
        ..request("hello", &[])
    })
    .await;

    assert_eq!(pieces(&events).concat().len(), 20);
    assert!(matches!(
        events.last(),
        Some(ModelEvent::Completed(Completion {
            stop: ProviderStop::MaxTokens,
            ..
        }))
    ));
}

#[tokio::test]
async fn any_prompt_is_answered_without_a_panic() {
    for prompt in [
        "",
        " ",
        "?",
        "`",
        "``",
        "`(`",
        "Where is `a::`?",
        "where is it?",
        "and what is its cap?",
        "汉字 在 哪里？",
        "((((",
        "\\",
        "list functions in /",
        "what is `[`",
        "….…",
    ] {
        assert!(
            !events(request(prompt, &["grep_search", "file_list", "file_read"]))
                .await
                .is_empty(),
            "{prompt:?}"
        );
    }
}
