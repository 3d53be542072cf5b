//! A connection to an MCP server, whose tools become tools named `{server}__{tool}`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{BoxFuture, Progress};
use crate::chat::RawJson;

/// A tool as its server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpToolDefinition {
    /// The server's name for the tool.
    pub name: String,
    /// What the tool does, for the model. Untrusted text of the server, with invisible characters
    /// made visible.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: RawJson,
    /// The server declares that the tool changes nothing.
    pub read_only: bool,
    /// The server declares that a repeated call changes nothing more.
    pub idempotent: bool,
    /// SHA-256 of the server's description of the tool (name, description, schema, annotations) in
    /// hexadecimal. A host that pins a tool pins this digest.
    pub digest: String,
}

/// A part of a call's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpContent {
    /// Text for the model.
    Text(String),
    /// Binary content: an image, audio, a file.
    Binary {
        /// Media type that the server declares.
        mime: String,
        /// The decoded bytes.
        bytes: Bytes,
    },
    /// A reference to content that the server did not send.
    Link {
        /// Name for people.
        name: String,
        /// URI of the content at the server.
        uri: String,
    },
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct McpResult {
    /// The parts, in order.
    pub content: Vec<McpContent>,
    /// Structured content, if the server sent any.
    pub structured: Option<Value>,
    /// Whether the server reports that the call failed.
    pub is_error: bool,
}

/// Why a call to a server failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// The server cannot be started or reached. No work began.
    #[error("the MCP server {server} cannot be reached: {reason}")]
    Unreachable {
        /// Configured name of the server.
        server: String,
        /// Why, without paths and keys.
        reason: String,
    },
    /// The server exited or broke the protocol. The call may have taken effect.
    #[error("the MCP server {server} failed: {reason}")]
    Failed {
        /// Configured name of the server.
        server: String,
        /// What happened, without paths and keys.
        reason: String,
    },
    /// The server answered with a JSON-RPC error.
    #[error("the MCP server {server} refused: {message}")]
    Refused {
        /// Configured name of the server.
        server: String,
        /// JSON-RPC error code.
        code: i64,
        /// The server's message.
        message: String,
    },
    /// The server did not answer in time and was asked to stop. The call may have taken effect.
    #[error("the MCP server {server} did not answer within {} ms", after.as_millis())]
    TimedOut {
        /// Configured name of the server.
        server: String,
        /// The time limit of the call.
        after: Duration,
    },
    /// Cancelled; the server was notified.
    #[error("cancelled")]
    Cancelled,
}

/// A connection to one server. Contract: a dead server fails calls but never the host, and a
/// cancellation is forwarded to the server.
pub trait McpClient: Send + Sync + 'static {
    /// Returns the configured name of the server.
    fn server_name(&self) -> &str;

    /// Returns the server's tools in a fixed order. Starts the server if necessary. The list is
    /// cached until the server reports a change.
    ///
    /// # Errors
    /// [`McpError`].
    fn list_tools(&self) -> BoxFuture<'_, Result<Arc<[McpToolDefinition]>, McpError>>;

    /// Calls a tool by the server's name for it. Progress is reported as it arrives; a cancellation
    /// is forwarded to the server.
    ///
    /// # Errors
    /// [`McpError`]. A failure of the tool is an `Ok` with `is_error`.
    fn call_tool(
        &self,
        tool: String,
        arguments: RawJson,
        progress: Progress,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<McpResult, McpError>>;

    /// Closes the connection and ends the server's processes. Later calls fail.
    fn close(&self) -> BoxFuture<'_, ()>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::McpClient) {}
        let _ = takes;
    }
}
