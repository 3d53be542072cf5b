//! The tool `recall`: returns messages that a compaction removed from the context, and attachments
//! that were left out of it. They are still in the journal, where a span locates them.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use crate::{
    chat::{ContentBlock, Message, Role, attachment},
    ids::{Scope, Seq},
    journal::{Durable, Entry, FoldError},
    limits::PROMPT_BYTES_MAX,
    ports::{
        Reach, SessionBackend, StoreError, ToolContext, ToolOutput, ToolSource, ToolSpec,
        TypedTool, text_arguments,
    },
    reads::{bytes_of, decoded},
    tool::{ToolError, ToolErrorType},
};

/// Number of entries read at a time. Few, because each may hold attachments.
const PAGE: usize = 32;

/// Most bytes of the attachments that one call brings back: those of one prompt.
const ATTACHMENTS_BYTES_MAX: usize = PROMPT_BYTES_MAX;

/// Locates removed messages: `from..to` in the history as it was after entry `seq`. Written
/// `seq:from-to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanPointer {
    /// The last entry before the compaction.
    pub seq: Seq,
    /// Index of the first message.
    pub from: usize,
    /// One past the index of the last message.
    pub to: usize,
}

impl fmt::Display for SpanPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}-{}", self.seq.0, self.from, self.to)
    }
}

impl FromStr for SpanPointer {
    type Err = ToolError;

    fn from_str(text: &str) -> Result<Self, ToolError> {
        let parts = || {
            let (seq, range) = text.trim().split_once(':')?;
            let (from, to) = range.split_once('-')?;
            let seq = seq.parse().ok()?;
            let from = from.parse().ok()?;
            let to = to.parse().ok()?;
            (from < to).then_some(Self {
                seq: Seq(seq),
                from,
                to,
            })
        };
        parts().ok_or_else(|| {
            ToolError::invalid(
                "span is not `seq:from-to` as a context summary names it, such as 120:2-40",
            )
        })
    }
}

/// The arguments of `recall`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecallArgs {
    /// The span as a context summary or the note of an attachment names it, such as 120:2-40.
    pub span: String,
}

impl JsonSchema for RecallArgs {
    fn schema_name() -> Cow<'static, str> {
        "RecallArgs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        text_arguments(
            &[(
                "span",
                "The span as a context summary or the note of an attachment names it, such as 120:2-40.",
            )],
            &[],
        )
    }
}

/// The tool `recall`.
pub(crate) struct Recall {
    sessions: Arc<dyn SessionBackend>,
}

impl Recall {
    /// A tool that reads from this store, limited to the conversation that makes the call.
    pub(crate) fn new(sessions: Arc<dyn SessionBackend>) -> Self {
        Self { sessions }
    }

    /// Reads the messages of a span.
    ///
    /// # Errors
    /// `NOT_FOUND` if the conversation has no such span; a retryable error if the store is
    /// unavailable.
    pub(crate) async fn messages(
        &self,
        scope: &Scope,
        span: SpanPointer,
    ) -> Result<Vec<Message>, ToolError> {
        let unknown = || {
            ToolError::not_found(format!(
                "there is no span {span} in this conversation; take one from a context summary"
            ))
        };
        let mut state = Durable::default();
        while state.head < span.seq {
            let entries = self
                .sessions
                .entries(scope, state.head, PAGE)
                .await
                .map_err(|error| away(&error))?;
            if entries.is_empty() {
                return Err(unknown());
            }
            let applied = decoded(bytes_of(&entries), &None, move || {
                for stored in entries.iter().take_while(|stored| stored.seq <= span.seq) {
                    state.apply(&Entry::decode(stored)?)?;
                }
                Ok::<_, FoldError>(state)
            });
            let applied = applied.await.map_err(|error| away(&error))?;
            state = applied.map_err(|error| ToolError::failed(error.to_string()))?;
        }
        let found: Vec<Message> = state
            .history
            .messages()
            .iter()
            .skip(span.from)
            .take(span.to - span.from)
            .cloned()
            .collect();
        if found.len() == span.to - span.from {
            Ok(found)
        } else {
            Err(unknown())
        }
    }
}

fn away(error: &StoreError) -> ToolError {
    ToolError::new(ToolErrorType::DependencyError, error.to_string())
}

impl TypedTool for Recall {
    type Args = RecallArgs;
    type Output = ToolOutput;
    const NAME: &'static str = "recall";
    const DESCRIPTION: &'static str = "Brings back earlier messages of this conversation that were taken out of the context to save room. A context \
summary names the spans that can be recalled, and so does the note in place of an image or document, which is then shown again.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
            .not_shared()
            .reach(Reach::Store)
            .source(ToolSource::BuiltIn)
    }

    fn check(&self, args: &RecallArgs) -> Result<(), ToolError> {
        args.span.parse::<SpanPointer>().map(drop)
    }

    async fn call(&self, args: RecallArgs, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let messages = self
            .messages(&context.key.scope, args.span.parse()?)
            .await?;
        let (text, attachments) = transcript(&messages);
        Ok(match Message::new(Role::User, &attachments) {
            Ok(attachments) => ToolOutput::Shown { text, attachments },
            Err(_) => ToolOutput::Text(text), // There are none.
        })
    }
}

/// The messages as readable text, in full, and their attachments.
fn transcript(messages: &[Message]) -> (String, Vec<ContentBlock>) {
    let mut text = String::new();
    let mut attachments = Vec::new();
    let mut room = ATTACHMENTS_BYTES_MAX;
    for message in messages {
        let who = match message.role() {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
        };
        for block in message.blocks() {
            let line = match &block {
                ContentBlock::Text(block) => format!("{who}: {}\n", block.text),
                ContentBlock::Thinking(_) => continue,
                ContentBlock::ToolUse(call) => {
                    format!("{who} calls {} {}\n", call.name, call.input.as_str())
                }
                ContentBlock::ToolResult(result) if result.is_error => {
                    format!("error of the tool: {}\n", result.content.text())
                }
                ContentBlock::ToolResult(result) => {
                    format!("result of the tool: {}\n", result.content.text())
                }
                ContentBlock::Image(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {
                    let bytes = block.raw().map_or(0, |raw| raw.as_str().len());
                    let label =
                        attachment::label(&block).unwrap_or_else(|| block.kind().to_owned());
                    let has_bytes = attachment::media_of(&block).is_some();
                    match () {
                        () if has_bytes && bytes <= room => {
                            room -= bytes;
                            attachments.push(block.clone());
                            format!("{who}: [{label}; shown behind the results of these calls]\n")
                        }
                        () if has_bytes => {
                            format!("{who}: [{label}; too large to be shown with the others]\n")
                        }
                        () => match attachment::as_text(&block) {
                            Some(text) => format!("{who}: {text}\n"),
                            None => format!("{who}: [{label}]\n"),
                        },
                    }
                }
            };
            text.push_str(&line);
        }
    }
    (text, attachments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_read_as_it_is_written_and_nothing_else_is_one() {
        let span = SpanPointer {
            seq: Seq(120),
            from: 2,
            to: 40,
        };

        assert_eq!(span.to_string(), "120:2-40");
        assert_eq!("120:2-40".parse::<SpanPointer>().unwrap(), span);
        for wrong in [
            "",
            "1",
            "1:2",
            "1:2-",
            "1:5-5",
            "1:6-5",
            "-1:2-3",
            "1:2-3x",
            "99999999999999999999999:1-2",
        ] {
            assert!(wrong.parse::<SpanPointer>().is_err(), "{wrong}");
        }
    }
}
