//! Conversations for an MCP client: lists, pages of messages, and transcripts as resources.

use rmcp::model::{
    ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use serde_json::{Value, json};

use super::{
    api::{Api, Asked, Refused, escaped},
    rounds::awaited,
    tools::{ListConversations, ReadConversation},
};

/// Items on a page if the caller sets no limit, and at most.
pub(super) const PAGE: u32 = 20;
pub(super) const PAGE_MAX: u32 = 100;

/// Bytes of one text of a message; the rest is left out.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Bytes of the texts of a page.
const PAGE_BYTES_MAX: usize = 128 * 1024;

/// Messages of a resource: the newest ones.
const RESOURCE_MESSAGES: u32 = 100;

/// The address of a conversation as a resource begins so.
const SCHEME: &str = "callboard://conversations/";

/// The valid size of a page.
pub(super) fn limit(asked: Option<u32>) -> Result<u32, Refused> {
    match asked.unwrap_or(PAGE) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        _ => Err(Refused::new(
            "invalid_parameter",
            format!("limit: must be 1 to {PAGE_MAX}"),
        )),
    }
}

/// A page of the list.
pub(super) async fn list(api: &Api, wanted: ListConversations) -> Result<Value, Refused> {
    let limit = limit(wanted.limit)?;
    let after = match &wanted.after {
        Some(after) => format!("&after={}", escaped(after)),
        None => String::new(),
    };
    let path = format!("/v1/conversations?titles=true&limit={limit}{after}");
    let page = &api.json(Asked::get(path)).await?;
    let rows = page["conversations"].as_array().into_iter().flatten();
    let conversations: Vec<Value> = rows
        .map(|row| {
            let mut shown = json!({
                "conversation_id": row["conversation_id"],
                "open": row["open"],
                "created_at_ms": row["created_at"],
                "updated_at_ms": row["updated_at"],
            });
            for name in ["title", "failed"] {
                if let (Some(text), Some(shown)) = (row[name].as_str(), shown.as_object_mut()) {
                    shown.insert(name.to_owned(), json!(text));
                }
            }
            shown
        })
        .collect();
    let mut shown = json!({ "conversations": conversations });
    set(&mut shown, "next", &page["next"]);
    Ok(shown)
}

/// A page of messages, with what the conversation waits for.
pub(super) async fn read(api: &Api, wanted: ReadConversation) -> Result<Value, Refused> {
    let limit = limit(wanted.limit)?;
    let id = escaped(&wanted.conversation_id);
    let state = Asked::get(format!("/v1/conversations/{id}"));
    let state = &api.json(state).await?;
    let page = &page(api, &id, wanted.after, limit).await?;
    let (messages, is_cut) = shown(page);
    let last = messages.last().map(|message| message["index"].clone());
    let mut shown = json!({
        "conversation_id": wanted.conversation_id,
        "state": state["state"],
        "total_messages": page["total"],
        "messages": messages,
    });
    set(&mut shown, "round_id", &state["round_id"]);
    let approvals = awaited(state);
    if !approvals.is_empty() {
        set(&mut shown, "awaits_approval_of", &json!(approvals));
    }
    match is_cut {
        true => set(&mut shown, "next", &last.unwrap_or_default()),
        false => set(&mut shown, "next", &page["next"]),
    }
    Ok(shown)
}

/// A page of the API: after an index, or the newest messages.
async fn page(api: &Api, id: &str, after: Option<u64>, limit: u32) -> Result<Value, Refused> {
    let path = |after: Option<u64>, limit: u32| {
        let after = after.map(|after| format!("&after={after}"));
        let after = after.unwrap_or_default();
        Asked::get(format!(
            "/v1/conversations/{id}/messages?limit={limit}{after}"
        ))
    };
    if after.is_some() {
        return api.json(path(after, limit)).await;
    }
    let first = api.json(path(None, limit)).await?;
    let total = first
        .get("total")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    match total.checked_sub(u64::from(limit) + 1) {
        None => Ok(first),
        Some(before) => api.json(path(Some(before), limit)).await,
    }
}

/// The messages of a page in a short form, as many as fit, and whether some did not.
fn shown(page: &Value) -> (Vec<Value>, bool) {
    let mut bytes = 0;
    let mut messages = Vec::new();
    for placed in page["messages"].as_array().into_iter().flatten() {
        let shown = message(placed);
        bytes += shown.to_string().len();
        if bytes > PAGE_BYTES_MAX && !messages.is_empty() {
            return (messages, true);
        }
        messages.push(shown);
    }
    (messages, false)
}

/// A message in a short form: its text, its tool calls and their results.
fn message(placed: &Value) -> Value {
    let message = &placed["message"];
    let mut text = String::new();
    let (mut calls, mut results, mut others) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(whole) = message["content"].as_str() {
        text.push_str(whole);
    }
    for block in message["content"].as_array().into_iter().flatten() {
        match block["type"].as_str().unwrap_or_default() {
            "text" => {
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(block["text"].as_str().unwrap_or_default());
            }
            "tool_use" => {
                let input = cut(&block["input"].to_string());
                calls.push(
                    json!({"tool_call_id": block["id"], "tool": block["name"], "input": input}),
                );
            }
            "tool_result" => {
                let mut result = json!({"tool_call_id": block["tool_use_id"], "text": cut(&text_in(&block["content"]))});
                if block["is_error"] == true {
                    set(&mut result, "is_error", &json!(true));
                }
                results.push(result);
            }
            "thinking" | "redacted_thinking" => {}
            other => others.push(json!(other)),
        }
    }
    let mut shown = json!({"index": placed["index"], "role": message["role"], "text": cut(&text)});
    for (name, list) in [("calls", calls), ("results", results), ("also", others)] {
        if !list.is_empty() {
            set(&mut shown, name, &json!(list));
        }
    }
    shown
}

/// The text of a tool's result: a text, or the texts of blocks.
fn text_in(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        blocks => {
            let blocks = blocks.as_array().into_iter().flatten();
            let texts = blocks.filter_map(|block| block["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
    }
}

/// The beginning of a long text, and how much is left out.
pub(super) fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    let left = text.len() - end;
    format!(
        "{}… ({left} more bytes)",
        text.get(..end).unwrap_or_default()
    )
}

fn set(object: &mut Value, name: &str, value: &Value) {
    if let (Some(object), false) = (object.as_object_mut(), value.is_null()) {
        object.insert(name.to_owned(), value.clone());
    }
}

/// A page of conversations as resources.
pub(super) async fn resources(
    api: &Api,
    after: Option<String>,
) -> Result<ListResourcesResult, Refused> {
    let limit = Some(PAGE_MAX);
    let page = &list(api, ListConversations { after, limit }).await?;
    let rows = page["conversations"].as_array().into_iter().flatten();
    let resources = rows
        .filter_map(|row| {
            let id = row["conversation_id"].as_str()?;
            let title = row["title"].as_str().unwrap_or(id);
            let resource = Resource::new(format!("{SCHEME}{id}"), id);
            Some(
                resource
                    .with_title(title)
                    .with_description("Transcript of a conversation")
                    .with_mime_type("text/markdown"),
            )
        })
        .collect();
    let mut listed = ListResourcesResult::with_all_items(resources);
    listed.next_cursor = page["next"].as_str().map(str::to_owned);
    Ok(listed)
}

/// How the address of a conversation is built.
pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{conversation_id}}"), "conversation")
        .with_title("Conversation")
        .with_description("Transcript of a conversation: its newest messages")
        .with_mime_type("text/markdown")
}

/// The transcript of a conversation.
///
/// # Errors
/// `not_found`, also for an address of another kind.
pub(super) async fn resource(api: &Api, uri: &str) -> Result<ReadResourceResult, Refused> {
    let unknown = || Refused::new("not_found", "there is no such conversation");
    let id = uri.strip_prefix(SCHEME).ok_or_else(unknown)?;
    let page = &page(api, &escaped(id), None, RESOURCE_MESSAGES).await?;
    let (messages, is_cut) = shown(page);
    let total = page["total"].as_u64().unwrap_or_default();
    let mut text = format!("# Conversation {id}\n");
    let count = messages.len() as u64;
    if count < total {
        text.push_str(&format!("\n{count} of {total} messages"));
        text.push_str(match is_cut {
            true => "; read_conversation reads the others.\n",
            false => ", the newest; read_conversation reads the others.\n",
        });
    }
    for message in &messages {
        transcribe(message, &mut text);
    }
    let contents = ResourceContents::text(text, uri).with_mime_type("text/markdown");
    Ok(ReadResourceResult::new(vec![contents]))
}

fn transcribe(message: &Value, text: &mut String) {
    let of = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    text.push_str(&format!("\n## {}\n\n", of(message, "role")));
    let body = of(message, "text");
    if !body.is_empty() {
        text.push_str(&body);
        text.push('\n');
    }
    for call in message["calls"].as_array().into_iter().flatten() {
        let (tool, input) = (of(call, "tool"), of(call, "input"));
        text.push_str(&format!("\nCalls `{tool}`: {input}\n"));
    }
    for result in message["results"].as_array().into_iter().flatten() {
        let kind = match result["is_error"] == true {
            true => "Failure",
            false => "Result",
        };
        text.push_str(&format!("\n{kind}: {}\n", of(result, "text")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_shown_with_its_calls_and_results_and_without_thoughts() {
        let placed = json!({"index": 3, "message": {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "secret", "signature": "s"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "grep_search", "input": {"pattern": "x"}},
            {"type": "image", "source": {}},
        ]}});
        let expected = json!({
            "index": 3, "role": "assistant", "text": "Let me see.",
            "calls": [{"tool_call_id": "t1", "tool": "grep_search", "input": "{\"pattern\":\"x\"}"}],
            "also": ["image"],
        });
        assert_eq!(message(&placed), expected);

        let placed = json!({"index": 4, "message": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [{"type": "text", "text": "no"}]},
        ]}});
        let mut text = String::new();
        transcribe(&message(&placed), &mut text);
        assert_eq!(text, "\n## user\n\n\nFailure: no\n");
    }

    #[test]
    fn a_page_has_as_many_messages_as_fit_and_at_least_one() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let placed = |index: usize| json!({"index": index, "message": {"role": "user", "content": [{"type": "text", "text": long}]}});
        let page = json!({"messages": (0..20).map(placed).collect::<Vec<_>>()});

        let (messages, is_cut) = shown(&page);

        assert!(
            is_cut && (1..20).contains(&messages.len()),
            "{}",
            messages.len()
        );
        let text = messages[0]["text"].as_str().unwrap();
        assert!(text.ends_with("… (16384 more bytes)"), "{}", text.len());
    }
}
