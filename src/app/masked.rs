//! A provider decorator that masks configured keys in answers and errors. A provider masks its own
//! key; this one also masks the keys of other providers, MCP servers and collectors, before the
//! text is displayed, sent as an event, logged or stored.
//!
//! Answers lose exact keys; errors also lose text that has the shape of a key. A streamed answer is
//! delayed only while its end may be the beginning of a key.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use callboard_actors::{
    chat::{ContentBlock, ModelRequest, RawJson, values_in},
    limits::JSON_VALUES_MAX,
    ports::{BoxFuture, Capabilities, LlmProvider, ModelEvent, ModelStream, ProviderError},
};
use futures_util::Stream;
use tokio_util::sync::CancellationToken;

use crate::observe::{Redactor, redact::RedactingStream};

/// Wraps a provider so that all of its text is masked.
pub(super) fn masked(inner: Arc<dyn LlmProvider>, redactor: &Redactor) -> Arc<dyn LlmProvider> {
    Arc::new(Masked {
        inner,
        redactor: redactor.clone(),
    })
}

struct Masked {
    inner: Arc<dyn LlmProvider>,
    redactor: Redactor,
}

impl LlmProvider for Masked {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn default_model(&self) -> &str {
        self.inner.default_model()
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        self.inner.capabilities(model)
    }

    fn calls_max(&self) -> usize {
        self.inner.calls_max()
    }

    fn stream(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        Box::pin(async move {
            let inner = self
                .inner
                .stream(request, cancel)
                .await
                .map_err(|error| of_error(error, &self.redactor))?;
            let redactor = self.redactor.clone();
            let stream = || self.redactor.stream();
            Ok(Box::pin(Words {
                inner: Some(inner),
                redactor,
                text: stream(),
                thinking: stream(),
                text_blocks: stream(),
                thinking_blocks: stream(),
                failed: None,
            }) as ModelStream)
        })
    }

    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        Box::pin(async move {
            self.inner
                .count_tokens(request)
                .await
                .map_err(|error| of_error(error, &self.redactor))
        })
    }

    fn request_body(&self, request: &ModelRequest) -> Result<bytes::Bytes, ProviderError> {
        self.inner.request_body(request)
    }
}

/// A streamed answer.
struct Words {
    /// `None` once the stream has ended.
    inner: Option<ModelStream>,
    redactor: Redactor,
    text: RedactingStream,
    thinking: RedactingStream,
    /// Readers join the blocks of a kind.
    text_blocks: RedactingStream,
    thinking_blocks: RedactingStream,
    /// An error to report after the text that was held back before it.
    failed: Option<ProviderError>,
}

impl Words {
    fn take(&mut self, event: ModelEvent, out: &mut Vec<ModelEvent>) {
        let mask = |text: &str| self.redactor.mask_exact(text);
        match event {
            ModelEvent::Text(text) => push(self.text.push(&text), ModelEvent::Text, out),
            ModelEvent::Thinking(text) => {
                push(self.thinking.push(&text), ModelEvent::Thinking, out)
            }
            ModelEvent::Block(mut block) => {
                match &mut block {
                    ContentBlock::Text(text) => {
                        text.text = self.text_blocks.part(&text.text);
                    }
                    ContentBlock::Thinking(thinking) => {
                        thinking.thinking = self.thinking_blocks.part(&thinking.thinking);
                        thinking.signature = thinking.signature.as_deref().map(mask);
                    }
                    ContentBlock::ToolUse(call) => {
                        if let Ok(text) = call.input.parse::<String>() {
                            // Arguments that are not JSON: a key in them has the escapes of one
                            // level only.
                            call.input = RawJson::of(&mask(&text))
                                .unwrap_or_else(|_| RawJson::empty_object());
                        }
                        // Read only where the arguments of a call are read at all.
                        let values = values_in(call.input.as_str().as_bytes());
                        if values > JSON_VALUES_MAX {
                            let text =
                                format!("{values} JSON values, of at most {JSON_VALUES_MAX}");
                            call.input =
                                RawJson::of(&text).unwrap_or_else(|_| RawJson::empty_object());
                        }
                        call.id = mask(&call.id);
                        call.name = mask(&call.name);
                        if let Some(input) = masked_json(&call.input, mask) {
                            call.input = input;
                        }
                    }
                    ContentBlock::Other { raw, .. } => {
                        if let Some(masked) = masked_json(raw, mask) {
                            *raw = masked;
                        }
                    }
                    ContentBlock::ToolResult(_)
                    | ContentBlock::Image(_)
                    | ContentBlock::Document(_) => {}
                }
                self.release(out);
                out.push(ModelEvent::Block(block));
            }
            ModelEvent::Completed(mut completion) => {
                completion.raw_stop = completion.raw_stop.map(|stop| mask(&stop));
                self.release(out);
                out.push(ModelEvent::Completed(completion));
            }
            event @ (ModelEvent::Usage(_) | ModelEvent::Arguments(_) | ModelEvent::Limits(_)) => {
                out.push(event);
            }
        }
    }

    /// Emits the text that was held back.
    fn release(&mut self, out: &mut Vec<ModelEvent>) {
        push(self.thinking.finish(), ModelEvent::Thinking, out);
        push(self.text.finish(), ModelEvent::Text, out);
    }
}

/// JSON with its keys masked, if it has any: as it is written, and behind escapes such as `\\u0041`.
fn masked_json(json: &RawJson, mask: impl Fn(&str) -> String) -> Option<RawJson> {
    // Keys occur within JSON strings, so masked JSON is still JSON. If not, it becomes an empty object.
    let masked = |text: &str| {
        let masked = mask(text);
        (masked != text)
            .then(|| RawJson::from_text(masked).unwrap_or_else(|_| RawJson::empty_object()))
    };
    let plain = || {
        let is_escaped = json.as_str().contains("\\u") || json.as_str().contains("\\/");
        if is_escaped && values_in(json.as_str().as_bytes()) > JSON_VALUES_MAX {
            return Some(RawJson::empty_object());
        }
        let value = is_escaped.then(|| json.parse::<serde_json::Value>().ok())??;
        masked(&value.to_string())
    };
    masked(json.as_str()).or_else(plain)
}

fn push(text: String, event: fn(String) -> ModelEvent, out: &mut Vec<ModelEvent>) {
    if !text.is_empty() {
        out.push(event(text));
    }
}

impl Stream for Words {
    type Item = Result<Vec<ModelEvent>, ProviderError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let words = self.get_mut();
        loop {
            if let Some(error) = words.failed.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let mut out = Vec::new();
            let Some(inner) = &mut words.inner else {
                return Poll::Ready(None);
            };
            match ready!(inner.as_mut().poll_next(cx)) {
                Some(Ok(events)) => events
                    .into_iter()
                    .for_each(|event| words.take(event, &mut out)),
                Some(Err(error)) => {
                    words.failed = Some(of_error(error, &words.redactor));
                    words.release(&mut out);
                }
                None => {
                    words.inner = None;
                    words.release(&mut out);
                }
            }
            // All text of this batch may be held back; poll again.
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(out)));
            }
        }
    }
}

/// The error with a masked message.
fn of_error(error: ProviderError, redactor: &Redactor) -> ProviderError {
    error.map_message(|message| redactor.mask_cut(message))
}

#[cfg(test)]
mod tests {
    use callboard_actors::testing::{Reply, ScriptedModel, contract::example_request};
    use futures_util::StreamExt as _;
    use serde_json::json;

    use super::*;

    const OTHER: &str = "another\"key\\of-this-host-not-real";

    async fn events(reply: Reply) -> (Vec<ModelEvent>, Option<ProviderError>) {
        let model = masked(
            Arc::new(ScriptedModel::replies([reply])),
            &Redactor::new([OTHER]),
        );
        let mut stream = match model
            .stream(example_request(), CancellationToken::new())
            .await
        {
            Ok(stream) => stream,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let mut all = Vec::new();
        let mut failed = None;
        while let Some(batch) = stream.next().await {
            match batch {
                Ok(events) => all.extend(events),
                Err(error) => failed = Some(error),
            }
        }
        (all, failed)
    }

    fn text_of(events: &[ModelEvent]) -> String {
        events
            .iter()
            .filter_map(|event| {
                if let ModelEvent::Text(text) = event {
                    Some(&**text)
                } else {
                    None
                }
            })
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_repeats_another_configured_key_in_pieces_shows_none_of_it() {
        let said = format!("It is {OTHER}, I was given");
        for bytes in 1..said.len() {
            let reply = Reply::text(&*said)
                .chunk_bytes(bytes)
                .chunk_delay(std::time::Duration::from_millis(1));

            let (events, failed) = events(reply).await;

            assert_eq!(
                text_of(&events),
                "It is [masked:1], I was given",
                "in pieces of {bytes}"
            );
            assert!(
                events.contains(&ModelEvent::Block(ContentBlock::text(
                    "It is [masked:1], I was given"
                ))),
                "{events:?}"
            );
            assert_eq!(failed, None);
        }
    }

    #[tokio::test]
    async fn arguments_that_hold_a_key_are_masked_and_stay_json() {
        let (events, _) = events(Reply::empty().and_tool("send", &json!({ "to": OTHER }))).await;

        let input = events.iter().find_map(|event| match event {
            ModelEvent::Block(ContentBlock::ToolUse(call)) => {
                Some(call.input.parse::<serde_json::Value>().unwrap())
            }
            _ => None,
        });
        assert_eq!(input, Some(json!({ "to": "[masked:1]" })));
    }

    #[tokio::test]
    async fn arguments_of_very_many_values_are_no_object_and_are_not_read() {
        let values = r#""\u0041","#.repeat(JSON_VALUES_MAX);
        let input = RawJson::from_text(format!(r#"{{"to":[{values}0]}}"#)).unwrap();

        let (events, _) = events(Reply::empty().and_tool_with_id("t", "send", input)).await;

        let input = events.iter().find_map(|event| match event {
            ModelEvent::Block(ContentBlock::ToolUse(call)) => call.input.parse::<String>().ok(),
            _ => None,
        });
        assert_eq!(
            input.as_deref(),
            Some("100002 JSON values, of at most 100000")
        );
    }

    #[tokio::test]
    async fn no_part_of_a_call_shows_a_key() {
        // As escapes that JSON does not need.
        let escaped: String = OTHER
            .encode_utf16()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect();
        let input = RawJson::from_text(format!(r#"{{"to":"{escaped}"}}"#)).unwrap();

        let (events, _) = events(Reply::empty().and_tool_with_id(OTHER, OTHER, input)).await;

        let call = events.iter().find_map(|event| match event {
            ModelEvent::Block(ContentBlock::ToolUse(call)) => Some(call.clone()),
            _ => None,
        });
        let call = call.unwrap();
        assert_eq!((&*call.id, &*call.name), ("[masked:1]", "[masked:1]"));
        assert_eq!(call.input.as_str(), r#"{"to":"[masked:1]"}"#);
        let data = json!({ "type": "redacted_thinking", "data": OTHER });
        let mask = |text: &str| Redactor::new([OTHER]).mask_exact(text);
        let masked = masked_json(&RawJson::of(&data).unwrap(), mask).unwrap();
        assert_eq!(
            masked.parse::<serde_json::Value>().unwrap(),
            json!({ "type": "redacted_thinking", "data": "[masked:1]" })
        );
    }

    #[tokio::test]
    async fn arguments_that_are_not_json_are_masked_too() {
        let text = json!({ "to": OTHER }).to_string() + "{";
        let call = Reply::empty().and_tool_with_id("t", "send", RawJson::of(&text).unwrap());

        let (events, _) = events(call).await;

        let input = events.iter().find_map(|event| match event {
            ModelEvent::Block(ContentBlock::ToolUse(call)) => call.input.parse::<String>().ok(),
            _ => None,
        });
        assert_eq!(input.as_deref(), Some(r#"{"to":"[masked:1]"}{"#));
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_within_what_may_be_a_key_keeps_its_text() {
        let broken = ProviderError::Connection {
            message: "reset".into(),
        };
        for (reply, error) in [
            (
                Reply::text("so far another").then_fail(broken.clone()),
                Some(broken),
            ),
            (Reply::text("so far another").then_cut(), None),
        ] {
            let (events, failed) = events(reply).await;

            assert_eq!(
                (text_of(&events).as_str(), failed),
                ("so far another", error)
            );
        }
    }

    #[tokio::test]
    async fn errors_hold_neither_a_configured_key_nor_the_shape_of_one() {
        let shape = ["ghp_", "notarealkeynotarealkeynotarealkey0000"].concat();
        let json = serde_json::Value::from(OTHER);
        for message in [
            format!("bad {OTHER}"),
            format!("bad {json}"),
            format!("bad {shape}"),
            format!("bad {}…", &OTHER[..20]),
        ] {
            let (_, failed) = events(Reply::error(ProviderError::Auth { message })).await;

            let text = failed.unwrap().to_string();
            assert!(
                !text.contains("key") && !text.contains("notareal") && text.contains("bad "),
                "{text}"
            );
        }
    }
}
