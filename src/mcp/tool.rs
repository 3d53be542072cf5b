//! An MCP server's tool as a [`Tool`]: checks its definition against the pin before each call, and
//! converts results and errors for the model.
//!
//! Effect class: `once`. If the configuration trusts the server's annotations and they say
//! read-only or idempotent: `idempotent`. Never `pure`, since an untrusted hint may allow a
//! repeated call, but not a cached result or a start before the journal's commit. Only a trusted
//! read-only tool runs without approval.

use std::sync::Arc;

use callboard_actors::{
    chat::RawJson,
    ids::TenantId,
    ports::{
        Approval, BoxFuture, McpClient, McpContent, McpError, McpResult, McpToolDefinition, Reach,
        Tool, ToolContext, ToolOutput, ToolSource, ToolSpec,
    },
    tool::{EffectClass, ToolError, ToolErrorType},
};

use super::{Server, config::Trust, definitions::masked, name::tool_name, pins::Pins};
use crate::{
    long_work::on_text,
    mask::Masker,
    visible::{visible, visible_line, visible_value},
};

/// A tool of an MCP server.
pub(super) struct McpTool {
    spec: ToolSpec,
    server: Arc<Server>,
    /// The tool's name on the server, without the prefix.
    own_name: String,
    /// Digest of the definition that the conversation was offered.
    digest: String,
    tenant: TenantId,
    pins: Arc<dyn Pins>,
}

impl McpTool {
    pub(super) fn new(
        definition: &McpToolDefinition,
        server: Arc<Server>,
        tenant: TenantId,
        pins: Arc<dyn Pins>,
    ) -> Self {
        let spec = spec(definition, server.server_name(), server.config().trust)
            .timeout(server.config().timeout);
        Self {
            spec,
            server,
            own_name: definition.name.clone(),
            digest: definition.digest.clone(),
            tenant,
            pins,
        }
    }

    /// Checks that the tool's current definition is both the offered and the approved one.
    async fn is_as_agreed(&self) -> Result<(), ToolError> {
        let now = self
            .server
            .list_tools()
            .await
            .map_err(|error| not_begun(tool_error(error)))?;
        let Some(now) = now.iter().find(|tool| tool.name == self.own_name) else {
            return Err(ToolError::not_found(format!(
                "the MCP server {} no longer offers this tool",
                self.server.server_name()
            ))
            .not_started());
        };
        let pins = self.pins.get(&self.tenant, self.server.server_name()).await;
        let pins = pins.map_err(|error| ToolError::denied(error.to_string()).not_started())?;
        if pins.get(&self.own_name) == Some(&now.digest) && now.digest == self.digest {
            return Ok(());
        }
        let why = match pins.get(&self.own_name) == Some(&now.digest) {
            // Approved meanwhile, but this conversation was offered the previous definition.
            true => "its definition changed since this conversation started; new conversations get the new one".to_owned(),
            false => format!("definition changed; approve again with `callboard mcp check --accept {}`", self.spec.name()),
        };
        Err(ToolError::denied(why).not_started())
    }
}

fn spec(definition: &McpToolDefinition, server: &str, trust: Trust) -> ToolSpec {
    let name = tool_name(server, &definition.name);
    let mut spec = ToolSpec::new(
        name,
        definition.description.clone(),
        definition.input_schema.clone(),
    )
    .source(ToolSource::Mcp(server.to_owned()))
    .reach(Reach::Server)
    .version(definition.digest.chars().take(12).collect::<String>())
    .returns_data()
    .not_shared();
    if trust == Trust::Annotations && (definition.read_only || definition.idempotent) {
        spec = spec.effect(EffectClass::Idempotent);
    }
    if trust == Trust::Annotations && definition.read_only {
        spec = spec.approval(Approval::Never);
    }
    spec
}

fn not_begun(error: ToolError) -> ToolError {
    error.not_started()
}

impl Tool for McpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(
        &self,
        arguments: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = context.cancel.cancelled() => return Err(tool_error(McpError::Cancelled).not_started()),
                agreed = self.is_as_agreed() => agreed?,
            }
            let called = self.server.call_tool(
                self.own_name.clone(),
                arguments,
                context.progress.clone(),
                context.cancel.clone(),
            );
            let result = called.await.map_err(tool_error)?;
            let masker = self.server.masker();
            output(result, masker, &context).await
        })
    }
}

/// Converts a server's failure for the model.
fn tool_error(error: McpError) -> ToolError {
    let text = error.to_string();
    match error {
        McpError::Unreachable { .. } => {
            ToolError::new(ToolErrorType::DependencyError, text).not_started()
        }
        McpError::Failed { .. } => ToolError::new(ToolErrorType::DependencyError, text),
        McpError::TimedOut { .. } => ToolError::new(ToolErrorType::Timeout, text),
        McpError::Cancelled => ToolError::failed("cancelled").code("INTERRUPTED"),
        McpError::Refused { code, message, .. } => match code {
            -32602 => ToolError::invalid(message),
            -32601 | -32002 => ToolError::not_found(text),
            -32700 | -32600 => ToolError::new(ToolErrorType::InternalError, text),
            _ => ToolError::failed(text),
        },
        // `McpError` is non-exhaustive.
        _ => ToolError::failed(text),
    }
}

/// Bytes of an error that the model reads: it is no result that could be read page by page.
const ERROR_BYTES_MAX: usize = 24 * 1024;

/// Converts a result for the model. Invisible characters are made visible; binary content becomes
/// an artifact, or a note when no artifact store is available.
async fn output(
    result: McpResult,
    masker: Arc<Masker>,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    let mut parts = Vec::new();
    for content in result.content {
        parts.push(match content {
            McpContent::Text(text) => text,
            McpContent::Link { name, uri } => format!("[link to {name}: {uri}]"),
            McpContent::Binary { mime, bytes } => {
                let length = bytes.len();
                match &context.artifacts {
                    Some(artifacts) => match artifacts
                        .store
                        .store(artifacts.owner.clone(), context.tool_call_id.clone(), bytes)
                        .await
                    {
                        Ok(id) => format!("[{mime}, {length} bytes, stored as {id}]"),
                        Err(_) => {
                            format!("[{mime}, {length} bytes, omitted: it could not be stored]")
                        }
                    },
                    None => format!("[{mime}, {length} bytes, omitted]"),
                }
            }
        });
    }
    let text = parts.join("\n");
    let (bytes, of_text) = (text.len(), masker.clone());
    let mut text = on_text(bytes, context, move || shown_masked(&of_text, &text)).await?;
    if result.is_error {
        if text.len() > ERROR_BYTES_MAX {
            let (kept, total) = (text.floor_char_boundary(ERROR_BYTES_MAX), text.len());
            text.truncate(kept);
            text += &format!("\n[kept {kept} of {total} bytes]");
        }
        return Err(ToolError::failed(if text.is_empty() {
            "the tool failed without a message".to_owned()
        } else {
            text
        }));
    }
    match result.structured {
        // The specification requires the text to be equivalent to the structured content, so the
        // text is enough.
        Some(value) if text.is_empty() => {
            let mask = move || masked(visible_value(&value), &|text: &str| masker.mask(text));
            // The data is as long as a message may be, and measuring it takes as long as masking.
            on_text(usize::MAX, context, mask)
                .await
                .map(ToolOutput::Data)
        }
        _ => Ok(ToolOutput::Text(text)),
    }
}

/// The text without its keys and its invisible characters.
fn shown_masked(masker: &Masker, text: &str) -> String {
    // Masked before, since an escape may split a key, and again only where something was escaped or
    // left out: a variation selector that is removed may join one.
    let masked = masker.mask(text);
    let shown = visible(&masked);
    if shown == masked {
        shown
    } else {
        masker.mask(&shown)
    }
}

/// A name as it may appear in a note.
pub(super) fn shown(name: &str) -> String {
    visible_line(name, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(read_only: bool, idempotent: bool) -> McpToolDefinition {
        McpToolDefinition {
            name: "get it".to_owned(),
            description: "Gets it.".to_owned(),
            input_schema: RawJson::empty_object(),
            read_only,
            idempotent,
            digest: "0123456789abcdef".to_owned(),
        }
    }

    #[test]
    fn annotations_count_only_when_they_are_trusted() {
        for (trust, read_only, idempotent, expected) in [
            (
                Trust::None,
                true,
                true,
                (EffectClass::Once, Approval::ByMode),
            ),
            (
                Trust::Annotations,
                false,
                false,
                (EffectClass::Once, Approval::ByMode),
            ),
            (
                Trust::Annotations,
                false,
                true,
                (EffectClass::Idempotent, Approval::ByMode),
            ),
            (
                Trust::Annotations,
                true,
                false,
                (EffectClass::Idempotent, Approval::Never),
            ),
        ] {
            let spec = spec(&definition(read_only, idempotent), "s", trust);
            assert_eq!((spec.effect, spec.approval), expected);
            assert_eq!(
                (spec.name(), &spec.source, spec.reach),
                ("s__get_it", &ToolSource::Mcp("s".to_owned()), Reach::Server)
            );
        }
    }

    #[test]
    fn keys_that_invisible_characters_split_are_masked() {
        let masker = Masker::new(["plain-not-real"]);
        let shown = |text: &str| shown_masked(&masker, text);

        assert_eq!(shown("a plain-not-real b"), "a [masked:1] b");
        assert_eq!(shown("a plain-\u{fe0f}not-real b"), "a [masked:1] b");
        assert_eq!(shown("\u{200b}plain-not-real"), r"\u{200b}[masked:1]");
    }

    #[test]
    fn errors_of_the_protocol_become_errors_that_a_model_can_use() {
        let server = || "s".to_owned();
        let refused = |code| McpError::Refused {
            server: server(),
            code,
            message: "no".to_owned(),
        };
        for (error, kind, not_started) in [
            (
                McpError::Unreachable {
                    server: server(),
                    reason: "gone".to_owned(),
                },
                ToolErrorType::DependencyError,
                true,
            ),
            (
                McpError::Failed {
                    server: server(),
                    reason: "gone".to_owned(),
                },
                ToolErrorType::DependencyError,
                false,
            ),
            (refused(-32602), ToolErrorType::InvalidParameters, true),
            (refused(-32601), ToolErrorType::NotFound, false),
            (refused(-32603), ToolErrorType::ExecutionError, false),
            (refused(-32700), ToolErrorType::InternalError, false),
            (refused(i64::MIN), ToolErrorType::ExecutionError, false),
            (
                McpError::TimedOut {
                    server: server(),
                    after: std::time::Duration::from_secs(1),
                },
                ToolErrorType::Timeout,
                false,
            ),
        ] {
            let found = tool_error(error);
            assert_eq!(
                (found.kind, found.not_started),
                (kind, not_started),
                "{found}"
            );
        }
    }
}
