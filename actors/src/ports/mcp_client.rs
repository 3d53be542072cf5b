//! A connection to an MCP server (REQUIREMENTS Q-01). What it offers becomes tools named `{server}__{tool}`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{BoxFuture, Progress};
use crate::chat::RawJson;

/// A tool as its server defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpToolDefinition {
    /// The server's own name of it.
    pub name: String,
    /// What it does, for the model: somebody else's words, invisible characters made visible.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: RawJson,
    /// The server says that it changes nothing.
    pub read_only: bool,
    /// The server says that repeating it changes nothing more.
    pub idempotent: bool,
    /// SHA-256 over what the server sent (name, description, schema, annotations), as hexadecimal digits: what is pinned (FAULTS F9).
    pub digest: String,
}

/// A piece of what a call gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpContent {
    /// Text.
    Text(String),
    /// Bytes: a picture, a sound, a file.
    Binary {
        /** Media type, as the server says. */
        mime: String,
        /** The bytes themselves. */
        bytes: Bytes,
    },
    /// Something that the server names and did not send.
    Link {
        /** Name for people. */
        name: String,
        /** Where the server has it. */
        uri: String,
    },
}

/// What a call gave.
#[derive(Debug, Clone, PartialEq)]
pub struct McpResult {
    /// Its pieces in order.
    pub content: Vec<McpContent>,
    /// Structured content, if the server gave any.
    pub structured: Option<Value>,
    /// The server says that the call failed.
    pub is_error: bool,
}

/// Why a server did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// It cannot be started or reached; nothing was begun.
    #[error("the MCP server {server} cannot be reached: {reason}")]
    Unreachable {
        /** Which. */
        server: String,
        /** Why; no path, no key. */
        reason: String,
    },
    /// It went away, or said what no server may say. What it was doing may have happened.
    #[error("the MCP server {server} failed: {reason}")]
    Failed {
        /** Which. */
        server: String,
        /** Why. */
        reason: String,
    },
    /// It answered with an error of the protocol.
    #[error("the MCP server {server} refused: {message}")]
    Refused {
        /** Which. */
        server: String,
        /** JSON-RPC code. */
        code: i64,
        /** Its words. */
        message: String,
    },
    /// It did not answer in time; it was told to stop. What it was doing may have happened.
    #[error("the MCP server {server} did not answer within {} ms", after.as_millis())]
    TimedOut {
        /** Which. */
        server: String,
        /** How long it had. */
        after: Duration,
    },
    /// Cancelled; the server was told.
    #[error("cancelled")]
    Cancelled,
}

/// A connection to one server. Contract: a dead server fails calls, never the caller; cancel is forwarded (DESIGN §6).
pub trait McpClient: Send + Sync + 'static {
    /// Name of the server, as configured.
    fn server_name(&self) -> &str;

    /// What it offers, in a fixed order. Starts it if need be; asked again only when the server said that its list changed.
    ///
    /// # Errors
    /// [`McpError`].
    fn list_tools(&self) -> BoxFuture<'_, Result<Arc<[McpToolDefinition]>, McpError>>;

    /// Calls a tool by the server's own name. Progress is told as it comes; on cancel the server is told to stop.
    ///
    /// # Errors
    /// [`McpError`]. A failure of the tool itself is an `Ok` with `is_error`.
    fn call_tool(
        &self,
        tool: String,
        arguments: RawJson,
        progress: Progress,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<McpResult, McpError>>;

    /// Ends the connection and the server's processes. Calls after it fail.
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
