//! Ports: the traits through which the kernel reaches the world. The kernel holds each as
//! `Arc<dyn Port>`, and their methods return boxed futures.
//!
//! A port file has plain data, the trait, and a test that the trait is dyn-compatible. Every port
//! has a contract suite in `crate::testing` that each adapter must pass.

mod artifact_store;
mod clock;
mod document_text;
mod entropy;
mod event_store;
mod fn_tool;
mod hook;
mod llm_provider;
mod lock_provider;
mod mcp_client;
mod outbox;
mod output;
mod rate_limits;
mod resource;
mod network;
mod sandbox;
mod schema;
mod session_backend;
mod skill_source;
mod steady_clock;
mod store_error;
mod text_arguments;
mod tool;
mod typed_tool;

pub use self::{
    document_text::{DocumentText, DocumentTextError, ExtractedText},
    entropy::Entropy,
    lock_provider::LockProvider,
    steady_clock::SteadyClock,
    store_error::StoreError,
};
pub use artifact_store::{ArtifactError, ArtifactMeta, ArtifactStore, Cleaned};
pub use clock::Clock;
pub use event_store::{
    EventStore, EventStoreError, StreamKey, StreamSink, StreamSource, StreamStatus, TextKind,
};
pub use fn_tool::FnTool;
pub use hook::{Hook, Review, Verdict};
pub use llm_provider::{
    AnswerSize, Capabilities, Completion, FinalMessage, LlmProvider, ModelEvent, ModelStream,
    ProviderError,
};
pub use mcp_client::{McpClient, McpContent, McpError, McpResult, McpToolDefinition};
pub use network::{HostPattern, Network, NoSuchHost};
pub use outbox::{Outbox, OutboxEvent, OutboxMessage};
pub(crate) use output::CACHE_TTL;
pub use output::{CachePolicy, PermissionLevel, Reach};
pub use rate_limits::{Allowance, RateLimits};
pub use resource::Resource;
pub use sandbox::{Exec, ExecLimits, ExecResult, Sandbox, SandboxError, SandboxPolicy};
pub use schema::{SchemaCheck, Schemas};
pub use session_backend::{
    Append, AppendError, AppendExt, Done, Durability, ListQuery, Salvaged, SessionBackend,
    SessionSummary,
};
pub use skill_source::{
    SKILL_BODY_BYTES_MAX, SKILL_RESOURCE_BYTES_MAX, SkillError, SkillListing, SkillSource,
};
pub(crate) use text_arguments::text_arguments;
pub use tool::{
    Approval, Artifacts, Concurrency, Extensions, Progress, TOOL_TIMEOUT, Tool, ToolContext,
    ToolOutput, ToolSource, ToolSpec,
};
pub use typed_tool::{Json, TypedTool, erased};

/// The future that every port method returns.
pub type BoxFuture<'a, T> = futures_util::future::BoxFuture<'a, T>;
