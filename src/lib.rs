//! A runtime for LLM agents in which every conversation is an actor with a mailbox and a journal.
//!
#![cfg_attr(feature = "offline", doc = "```")]
#![cfg_attr(not(feature = "offline"), doc = "```ignore")]
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
//! # Concepts
//! - A **host** ([`Host`]) carries many **tenants**, which share nothing but the machine, and their
//!   **conversations**. It is an actor system in your process: it needs a tokio runtime and no server.
//! - A **prompt** starts a **round**: model calls and tool calls until the reply. [`Reply`] streams the
//!   round's events; dropping it cancels nothing.
//! - A conversation is its **journal**: whatever a caller has seen is stored, so after a crash
//!   [`Host::resume_interrupted`](callboard_actors::Host::resume_interrupted) continues open rounds.
//! - **Tools** declare what a second run would do (`pure`, `idempotent`, `once`), and a `once` call
//!   never starts twice. An application decides which calls need an **approval**.
//! - Everything is bounded: a full queue refuses at once, with a typed error that says when to retry.
//!
//! The repository's `docs/glossary.md` has all terms, and `docs/walkthrough.md` follows one prompt
//! through the code, function by function.
//!
//! # Extending it
//! | You want | Implement | Example |
//! |---|---|---|
//! | a tool | [`TypedTool`], or a closure with [`FnTool`] | `custom_tool`, `closure_tool` |
//! | a model provider | [`ports::LlmProvider`] | `custom_provider` |
//! | a session store | [`ports::SessionBackend`] | `own_store` |
//! | hooks around tool calls | [`ports::Hook`] | `tool_hooks` |
//! | skills from elsewhere | [`ports::SkillSource`] | `skills` |
//!
//! Each port has a contract suite in `callboard_actors::testing::contract` (feature `test-util`): run
//! it against your implementation.
//!
//! # Features
//! | Feature | Adds |
//! |---|---|
//! | `anthropic`, `openai` | model providers over HTTP |
//! | `sqlite` | sessions in a SQLite file |
//! | `schema` | JSON Schema checks of tool arguments |
//! | `tools` | the built-in tools on files |
//! | `sandbox-linux` | commands behind bubblewrap or Landlock |
//! | `web` | tools that fetch and search public pages |
//! | `mcp` | tools of MCP servers |
//! | `skills` | skills from folders |
//! | `pdf` | the text of PDF files for models that take none |
//! | `config` | `callboard.toml` |
//! | `evals` | evaluations: tasks, trials in the sandbox, statistics, reports |
//! | `http` | the HTTP server |
//! | `mcp-server` | the host as an MCP server |
//! | `otel` | traces and metrics over OTLP |
//! | `offline` | a model that answers by rules, without a network or a key |
//! | `mock-model` | a scripted model server, for load tests |
//! | `load` (default) | `callboard load`, load runs against a host |
//! | `cli` (default) | the `callboard` program without its commands for load tests |
//! | `test-util` | fakes and contract suites |
//! | `fuzzing` | what the fuzzers in `fuzz/` call |
//!
//! A library usually takes `default-features = false` with a provider, a store and `tools`.
//!
//! # Layout
//! The kernel, [`callboard_actors`], makes decisions and does no I/O; its modules are re-exported
//! here. This crate does the I/O: adapters for every port of the kernel, configuration, the HTTP
//! server and the command line. `app` wires them together for the binary.
//!
//! Start with [`Host`] and [`HostBuilder`]; then [`stream`] (what watchers see), [`chat`] (what models
//! read and write), [`ports`] (what you can replace) and [`limits`] (every bound).
//!
//! The library builds no runtime, installs no subscriber, recorder or panic hook, and keeps no
//! process-wide state: two hosts in one process share nothing.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

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
        BuildError, ConversationHandle, FanOut, FanOutRun, FanOutSummary, OutcomeError,
        OutputError, Prompt, Reply, SendAsError, SendError, StoredFanOut, TaskEnd, TaskFailure,
        TenantHandle, stored_fan_outs,
    },
    model_gateway::exact::ExactCounter,
    ports::{Extensions, FnTool, Json, Tool, ToolContext, ToolOutput, ToolSpec, TypedTool, erased},
    stream::{EventKind, RoundEnd, StopReason, StreamEvent},
    tool::ToolError,
};
pub use callboard_actors::{
    chat, compactor, conversation, ids, journal, limits, metrics_collector, model_gateway, policy,
    ports, skill, stream, subagent, time, tokens, tool, tool_executor,
};

/// Compiles the code blocks of `docs/tools.md`.
#[cfg(all(doctest, feature = "offline"))]
#[doc = include_str!("../docs/tools.md")]
mod docs_tools {}

/// Compiles the code blocks of `docs/fanout.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/fanout.md")]
mod docs_fanout {}

/// Compiles the code blocks of `docs/migrating.md`.
#[cfg(all(doctest, feature = "anthropic", feature = "sqlite"))]
#[doc = include_str!("../docs/migrating.md")]
mod docs_migrating {}

/// Compiles and runs the programs of the cookbook.
#[cfg(all(doctest, feature = "load"))]
mod cookbook {
    #[doc = include_str!("../docs/cookbook/axum.md")]
    mod axum {}
    #[doc = include_str!("../docs/cookbook/own-tool.md")]
    mod own_tool {}
    #[doc = include_str!("../docs/cookbook/structured-output.md")]
    mod structured_output {}
}

pub use host::Host;

mod host;
#[cfg(all(any(test, feature = "fuzzing"), feature = "cli"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod clock;
#[cfg(feature = "_client")]
pub mod tls;
pub mod providers;
pub mod storage;
pub mod observe;
#[cfg(feature = "schema")]
pub mod schema;
#[cfg(feature = "tools")]
pub mod mask;
#[cfg(feature = "tools")]
pub mod visible;
#[cfg(any(feature = "tools", feature = "postgres"))]
pub mod notes;
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
#[cfg(feature = "tools")]
mod long_work;
#[cfg(any(feature = "schema", feature = "sandbox-linux"))]
mod thread_clock;
mod private;
#[cfg(feature = "config")]
mod named_file;
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "http",
    feature = "tools"
))]
mod fair;
#[cfg(any(feature = "_provider", feature = "http"))]
mod frames;
#[cfg(any(feature = "_provider", feature = "http"))]
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "clients take turns"))]
mod read_turns;
#[cfg(any(feature = "_provider", feature = "mcp"))]
mod intake;
#[cfg(any(feature = "mcp", feature = "otel", feature = "cli"))]
mod outside;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "tools"))]
mod os_error;
#[cfg(any(feature = "config", feature = "tools"))]
mod real_path;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mock-model")]
pub mod mock_model;
#[cfg(feature = "cli")]
pub mod telemetry;
#[cfg(feature = "evals")]
pub mod evals;
#[cfg(feature = "load")]
mod load;
#[cfg(feature = "cli")]
mod webhooks;
#[cfg(feature = "cli")]
mod app;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
