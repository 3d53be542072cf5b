//! Callboard: a runtime for LLM agents in which every conversation is an actor with a mailbox and a journal.
//!
//! ```
//! use std::time::Duration;
//!
//! use callboard::{Host, providers::offline::Offline, storage::MemorySessions, stream::EventKind};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // A model (`providers::Anthropic`, `providers::OpenAi`), a store (`storage::Sqlite`), tools (`tools::standard`).
//!     let host = Host::builder().provider(Offline).sessions(MemorySessions::new()).build().await?;
//!
//!     let mut reply = host.tenant("acme").conversation("support-42").send("Hello").await?;
//!     while let Some(event) = reply.next().await {
//!         if let EventKind::TextDelta { text } = &event.kind {
//!             print!("{text}");
//!         }
//!     }
//!     let outcome = reply.outcome().await?;
//!     assert!(outcome.stop_reason.is_done());
//!
//!     host.shutdown(Duration::from_secs(10)).await;
//!     Ok(())
//! }
//! ```
//!
//! # Layout
//! The kernel, [`callboard_actors`], makes decisions and does no I/O; its modules are re-exported
//! here. This crate does the I/O: adapters for every port of the kernel, configuration, the HTTP
//! server and the command line. `app` wires them together for the binary.
//!
//! The library builds no runtime, installs no subscriber, recorder or panic hook, and keeps no
//! process-wide state: two hosts in one process share nothing.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

#[cfg(feature = "test-util")]
pub use callboard_actors::testing;
pub use callboard_actors::{
    HostBuilder,
    conversation::{
        ConversationError,
        round::{
            OnBusy,
            rules::{ApprovalMode, Recovery},
        },
    },
    host::{
        BuildError, ConversationHandle, FanOut, FanOutRun, FanOutSummary, OutcomeError, OutputError, Prompt, Reply, SendAsError, SendError,
        TaskEnd, TaskFailure, TenantHandle,
    },
    model_gateway::exact::{Counted, ExactCounter},
    ports::{Extensions, FnTool, Json, Tool, ToolContext, ToolOutput, ToolSpec, TypedTool, erased},
    stream::{EventKind, RoundEnd, StopReason, StreamEvent},
    tool::ToolError,
};
pub use callboard_actors::{
    chat, compactor, conversation, ids, journal, limits, metrics_collector, model_gateway, policy, ports, skill, stream, subagent, time,
    tokens, tool, tool_executor,
};

/// Compiles the code blocks of `docs/tools.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/tools.md")]
mod docs_tools {}

/// Compiles the code blocks of `docs/fanout.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/fanout.md")]
mod docs_fanout {}

pub use host::Host;

mod host;
pub mod clock;
pub mod providers;
pub mod storage;
pub mod observe;
#[cfg(feature = "schema")]
pub mod schema;
#[cfg(feature = "tools")]
pub mod tools;
#[cfg(feature = "tools")]
pub mod sandbox;
#[cfg(feature = "web")]
pub mod web;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "skills")]
pub mod skills;
#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "config")]
pub mod trust;
mod private;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "http")]
pub mod mock_model;
#[cfg(feature = "cli")]
pub mod telemetry;
#[cfg(feature = "cli")]
mod load;
#[cfg(feature = "cli")]
mod app;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
