//! The reference turn of the benches: a prompt of 200 bytes on a history of 4 × 1 KB that grows.
//! Call 1 streams 32 deltas of 4 bytes and one tool call with 60 bytes of arguments, which are
//! checked against their schema. The tool returns 200 bytes. Call 2 streams 64 deltas. One
//! subscriber reads every delta.
//!
//! # Layout
//! `model` the model server, in a separate process · `ours` the turn on Callboard · `by_hand` the
//! turn on tokio and reqwest, `hand_client` its connections, `hand_json` its JSON, `hand_journal`
//! its journal · `fed` a model with
//! its bytes in memory · `forgetful` a journal that stores nothing · `counted` one that counts ·
//! `phases`, `process` measuring · `scripted` a model that always gives the same reply.
#![allow(dead_code, unused_imports, reason = "each bench needs some of it")]

pub(crate) mod model;
pub(crate) mod ours;
pub(crate) mod by_hand;
pub(crate) mod hand_client;
pub(crate) mod hand_json;
pub(crate) mod fed;
pub(crate) mod hand_journal;
pub(crate) mod forgetful;
pub(crate) mod counted;
#[path = "../support/phases.rs"]
pub(crate) mod phases;
#[path = "../support/process.rs"]
pub(crate) mod process;
#[path = "../support/scripted.rs"]
pub(crate) mod scripted;

use callboard::chat::{
    ContentBlock, Message, RawJson, Role, ToolResultBlock, ToolResultContent, ToolUseBlock,
};

/// Turns of one conversation before a new one replaces it, so that the history stays short.
pub(crate) const TURNS_EACH: usize = 10;

/// The model's name in requests.
pub(crate) const MODEL: &str = "m";

/// Name of the tool.
pub(crate) const TOOL: &str = "no_op";

/// Which API's JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Anthropic,
    OpenAi,
}

impl Wire {
    pub(crate) const BOTH: [Self; 2] = [Self::Anthropic, Self::OpenAi];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
        }
    }
}

/// The prompt of every turn.
pub(crate) fn prompt() -> String {
    "p".repeat(200)
}

/// The arguments of the tool call: 60 bytes.
pub(crate) fn arguments() -> String {
    serde_json::json!({ "argument": "x".repeat(45) }).to_string()
}

/// What the tool returns.
pub(crate) fn result() -> String {
    "r".repeat(200)
}

/// The history that every conversation begins with: 4 × 1 KB.
pub(crate) fn history() -> Vec<Message> {
    (0..4)
        .map(|n| {
            if n % 2 == 0 {
                Message::user("u".repeat(1000))
            } else {
                Message::assistant("a".repeat(1000))
            }
        })
        .collect()
}

/// The messages of `turns` earlier turns whose tool returned `result`.
pub(crate) fn turns_before(turns: usize, result: &str) -> Vec<Message> {
    let mut messages = history();
    for turn in 0..turns {
        let id = format!("call_{turn}");
        let call = ContentBlock::ToolUse(ToolUseBlock {
            id: id.clone(),
            name: TOOL.into(),
            input: RawJson::from_text(arguments()).unwrap(),
        });
        let result = ToolResultBlock {
            tool_use_id: id,
            content: ToolResultContent::Text(result.to_owned()),
            is_error: false,
        };
        messages.push(Message::user(format!("{turn:>5} {}", "p".repeat(194))));
        messages.push(
            Message::new(
                Role::Assistant,
                &[ContentBlock::text("word".repeat(32)), call],
            )
            .unwrap(),
        );
        messages.push(Message::tool_results([result], []));
        messages.push(Message::assistant("word".repeat(64)));
    }
    messages
}
