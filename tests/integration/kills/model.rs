//! The model of the kill loops. It answers by what a request says, so that the order of requests
//! does not matter, and it checks that each request is one that a provider would accept.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use super::Broken;
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_call, anthropic_text, sse};

/// What a prompt asks for; the last word of its text.
pub(super) const KINDS: [&str; 4] = ["text", "text", "bash", "child"];

/// A prompt: a name that occurs once in a story, and what it asks for.
pub(super) fn prompt(name: &str, kind: &str) -> String {
    format!("prompt {name} {kind}")
}

/// The answer that ends the round of a prompt.
pub(super) fn answer(name: &str) -> String {
    format!("answer to {name}")
}

/// A command that starts once for each name, prints a line, and leaves a process behind.
pub(super) fn command(name: &str, mark: &str) -> String {
    format!(
        "echo {name} >> starts; (setsid nohup sleep {mark} >/dev/null 2>&1 &); \
         sleep 0.03; echo ended {name}"
    )
}

/// Name and kind of the last prompt of a request. Later texts, such as notes of the host, are
/// passed over.
fn asked(request: &Value) -> Option<(String, String)> {
    let messages = request["messages"].as_array()?;
    messages.iter().rev().find_map(|message| {
        texts(message).into_iter().rev().find_map(|text| {
            let mut words = text.strip_prefix("prompt ")?.split(' ');
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        })
    })
}

/// The texts of a message, whether its content is a string or blocks.
pub(super) fn texts(message: &Value) -> Vec<&str> {
    match &message["content"] {
        Value::String(text) => vec![text],
        content => blocks(content, "text")
            .filter_map(|block| block["text"].as_str())
            .collect(),
    }
}

fn blocks<'a>(content: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = content.as_array().into_iter().flatten();
    all.filter(move |block| block["type"] == kind)
}

fn ids<'a>(content: &'a Value, kind: &'a str, key: &'a str) -> Vec<&'a str> {
    blocks(content, kind)
        .filter_map(|block| block[key].as_str())
        .collect()
}

/// What a provider would refuse in a request.
pub(super) fn invalid(request: &Value) -> Option<String> {
    let messages = request["messages"].as_array()?;
    let mut open: Vec<&str> = Vec::new();
    let mut seen = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        let role = &message["role"];
        let follows = at > 0 && messages[at - 1]["role"] == "assistant" && role == "assistant";
        if follows || at == 0 && role != "user" {
            return Some(format!("message {at} is of {role}"));
        }
        if texts(message).iter().any(|text| text.trim().is_empty()) {
            return Some(format!("message {at} has a blank text"));
        }
        let content = &message["content"];
        let mut results = ids(content, "tool_result", "tool_use_id");
        results.sort_unstable();
        open.sort_unstable();
        if results != open {
            return Some(format!(
                "message {at}: results {results:?} of calls {open:?}"
            ));
        }
        open = ids(content, "tool_use", "id");
        if let Some(twice) = open.iter().find(|id| !seen.insert(**id)) {
            return Some(format!("message {at}: call {twice} is there twice"));
        }
    }
    let last = messages.last()?;
    (last["role"] != "user").then(|| "the last message is the assistant's".to_owned())
}

/// The prompts of a request, in its order.
fn prompts(request: &Value) -> Vec<&str> {
    let messages = request["messages"].as_array().into_iter().flatten();
    messages
        .flat_map(texts)
        .filter(|text| text.starts_with("prompt "))
        .collect()
}

/// A text in four pieces with pauses between them: kills meet it half sent.
fn slowly(text: &str) -> Reply {
    let events = anthropic_text(text);
    let pause = || Step::Pause(Duration::from_millis(3));
    let [start, block, _, end @ ..] = <[String; 6]>::try_from(events).unwrap();
    let mut reply = Reply::stream().send(sse([start, block]));
    let at = text.len() / 2;
    for piece in [&text[..at], &text[at..]] {
        let delta = anthropic_text(piece)[2].clone();
        reply = reply.then(pause()).send(sse([delta]));
    }
    reply.then(pause()).send(sse(end))
}

/// Starts the model. Its commands leave processes that have `mark` as a word.
pub(super) async fn start(mark: String, broken: Broken) -> ModelServer {
    let calls = AtomicUsize::new(0);
    ModelServer::answering(move |request| {
        if let Some(why) = invalid(request) {
            broken.add(format!(
                "an invalid request: {why}: {}",
                request["messages"]
            ));
        }
        let asks = prompts(request);
        let once: HashSet<&&str> = asks.iter().collect();
        broken.check(once.len() == asks.len(), || {
            format!("a prompt is in a request twice: {asks:?}")
        });
        let Some((name, kind)) = asked(request) else {
            return slowly("A child is done.");
        };
        let messages = request["messages"].as_array().unwrap();
        let last = messages.last().unwrap();
        let has_result = blocks(&last["content"], "tool_result").next().is_some();
        let id = format!("call-{}", calls.fetch_add(1, Ordering::Relaxed));
        match (has_result, kind.as_str()) {
            (false, "bash") => {
                let input = json!({ "command": command(&name, &mark) });
                Reply::events(anthropic_call(&id, "bash", &input))
            }
            (false, "child") => {
                let input = json!({ "task": format!("Help with {name}.") });
                Reply::events(anthropic_call(&id, "create_subagent", &input))
            }
            _ => slowly(&answer(&name)),
        }
    })
    .await
}
