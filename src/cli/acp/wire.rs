//! Parameters of the protocol's methods, version 1. Unknown fields are ignored, as the protocol asks.
//!
//! Pure.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

/// The version that is spoken here.
pub(super) const VERSION: u16 = 1;

/// Parameters of `session/new`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSession {
    pub(super) cwd: PathBuf,
    #[serde(default)]
    pub(super) mcp_servers: Vec<Value>,
}

/// Parameters of `session/load` and `session/resume`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OldSession {
    pub(super) session_id: String,
    #[serde(flatten)]
    pub(super) session: NewSession,
}

/// Parameters of `session/list`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct ListSessions {
    #[serde(default)]
    pub(super) cwd: Option<PathBuf>,
    #[serde(default)]
    pub(super) cursor: Option<String>,
}

/// Parameters of `session/close` and `session/cancel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OfSession {
    pub(super) session_id: String,
}

/// Parameters of `session/set_mode`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SetMode {
    pub(super) session_id: String,
    pub(super) mode_id: String,
}

/// Parameters of `session/prompt`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PromptOf {
    pub(super) session_id: String,
    pub(super) prompt: Vec<Block>,
}

/// A block of a prompt.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text {
        text: String,
    },
    #[serde(rename_all = "camelCase")]
    Image {
        data: String,
        mime_type: String,
    },
    ResourceLink {
        uri: String,
        name: String,
    },
    Resource {
        resource: Resource,
    },
    /// Audio, and what later versions add.
    #[serde(other)]
    Other,
}

/// The content of a resource that is part of a prompt.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Resource {
    pub(super) uri: String,
    #[serde(default)]
    pub(super) text: Option<String>,
    /// Base64.
    #[serde(default)]
    pub(super) blob: Option<String>,
}
