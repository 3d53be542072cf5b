//! Prompts of an editor as prompts of a conversation, and stored messages as updates of a session.
//!
//! Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use callboard_actors::{
    chat::{Attachment, ContentBlock, attachment::media_of},
    host::Prompt,
};
use serde_json::{Value, json};

use super::{
    rpc::RpcError,
    wire::{Block, Resource},
};

/// Converts the blocks of a prompt. A link becomes a mention, which the model opens with its tools if
/// it wants to; the text of an embedded resource is part of the prompt.
pub(super) fn prompt(blocks: Vec<Block>) -> Result<Prompt, RpcError> {
    let mut attachments = Vec::new();
    let mut texts = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text } => texts.push(ContentBlock::text(text)),
            Block::Image { data, mime_type } => {
                let image = Attachment::image(&mime_type, &bytes(&data)?);
                attachments.push(image.map_err(|error| RpcError::params(error.to_string()))?);
            }
            Block::ResourceLink { uri, name } => {
                texts.push(ContentBlock::text(format!("[@{name}]({uri})")));
            }
            Block::Resource { resource } => match resource {
                Resource {
                    uri,
                    text: Some(text),
                    ..
                } => texts.push(ContentBlock::text(embedded(&uri, &text))),
                Resource {
                    uri,
                    blob: Some(blob),
                    ..
                } => {
                    let found = Attachment::sniffed(&bytes(&blob)?)
                        .map_err(|error| RpcError::params(format!("{uri}: {error}")))?;
                    let name = uri.rsplit('/').next().unwrap_or_default();
                    attachments.push(found.title(name));
                }
                Resource { uri, .. } => {
                    return Err(RpcError::params(format!(
                        "{uri}: a resource needs `text` or `blob`"
                    )));
                }
            },
            Block::Other => {
                return Err(RpcError::params(
                    "a prompt holds text, images, resource links and resources; audio is not taken",
                ));
            }
        }
    }
    Ok(attachments
        .into_iter()
        .fold(Prompt::blocks(texts), Prompt::attach))
}

/// The text of a resource with its address. The tag cannot be closed from inside.
fn embedded(uri: &str, text: &str) -> String {
    let uri = uri.replace(['"', '<', '>', '\n'], " ");
    let text = text.replace("</resource>", "</resource >");
    format!("<resource uri=\"{uri}\">\n{text}\n</resource>")
}

fn bytes(data: &str) -> Result<Vec<u8>, RpcError> {
    STANDARD
        .decode(data)
        .map_err(|_| RpcError::params("`data` is not valid base64"))
}

/// A text as content of an update.
pub(super) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A block of a person's message as content of an update; `None` for what only the model sees.
pub(super) fn of_person(block: &ContentBlock) -> Option<Value> {
    match block {
        ContentBlock::Text(block) if callboard_actors::chat::is_reminder(&block.text) => None,
        _ if callboard_actors::chat::attachment::is_document_text(block) => None,
        ContentBlock::Text(block) => Some(text(&block.text)),
        ContentBlock::Image(_) => {
            let image = media_of(block)?;
            Some(json!({
                "type": "image",
                "data": image.data,
                "mimeType": image.media_type,
            }))
        }
        ContentBlock::Document(_) | ContentBlock::Other { .. } => {
            Some(text(&format!("[{}]", block.kind())))
        }
        ContentBlock::Thinking(_) | ContentBlock::ToolUse(_) | ContentBlock::ToolResult(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(blocks: Value) -> Result<Prompt, RpcError> {
        prompt(serde_json::from_value(blocks).unwrap())
    }

    #[test]
    fn links_are_mentions_and_resources_are_text_that_cannot_end_early() {
        let prompt = of(json!([
            {"type": "text", "text": "Look at"},
            {"type": "resource_link", "uri": "file:///w/a.rs", "name": "a.rs", "size": 3},
            {"type": "resource", "resource": {"uri": "file:///w/b\".rs", "text": "x</resource>y", "mimeType": "text/x"}},
        ]))
        .unwrap();

        let shown = format!("{prompt:?}");

        assert!(shown.contains("[@a.rs](file:///w/a.rs)"), "{shown}");
        assert!(
            shown.contains(r#"<resource uri=\"file:///w/b .rs\">\nx</resource >y\n</resource>"#),
            "{shown}"
        );
    }

    #[test]
    fn what_no_model_takes_is_refused_with_the_reason() {
        let refused = |block: Value| of(json!([block])).unwrap_err().message;

        assert!(
            refused(json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"}))
                .contains("audio is not taken")
        );
        assert!(
            refused(json!({"type": "image", "data": "?", "mimeType": "image/png"}))
                .contains("base64")
        );
        assert!(
            refused(json!({"type": "resource", "resource": {"uri": "file:///x", "blob": "AAAA"}}))
                .starts_with("file:///x: ")
        );
    }
}
