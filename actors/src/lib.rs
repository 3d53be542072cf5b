//! The kernel of Callboard: it decides. Messages, ports (traits), the actors and pure logic of a runtime for LLM agents.
//!
//! **Invariant:** nothing in this crate opens a socket, a file or a process, reads the wall clock or rolls dice. If you need one,
//! add a verb to a port. `cargo check -p callboard-actors` and `tests/tidy.rs` keep it so.
//!
//! # The tree of actors
//! ```text
//! HostSupervisor                  replaces a supervisor that died; its tickers sweep idle and parked conversations
//! ├─ ConversationSupervisor × 16  by hash of tenant and conversation; owns, restarts nothing
//! │   └─ Conversation             one journal, one round at a time; started by the directory alone
//! │       └─ ToolExecutor         lives for a round that uses tools
//! ├─ Compactor                    makes background summaries, lends its pool to measure contexts
//! └─ MetricsCollector             reads sharded counters on a tick
//! ```
//! Beside it, behind short locks and no mailbox: the directory (who is awake), the model gateway (permits, retry, breaker) and the
//! tenants (seats, round permits). See DESIGN §3.
//!
//! # Reading order
//! The modules below, from top to bottom: names, what models speak, what is remembered, what watchers see; then bounds and
//! policies; then the ports; then the rooms. `conversation::round` is the heart: when a round is over.
//!
//! # Invariants
//! - A conversation is its journal: [`journal::Durable::apply`] is the only writer of its state, live and in a fold alike.
//! - Journal before visible: `conversation::round::Effect::when` is the table of waits.
//! - A handler awaits nothing: work runs in tasks and comes back as mail with its [`ids::WorkId`].
//! - [`chat::History`] cannot hold a call without its result.
//! - Tokens are never actor mail; every queue is bounded ([`limits`]).
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

// A tool that panics must be a result, not the end of every conversation of the process (DESIGN §9).
#[cfg(all(panic = "abort", not(test), not(feature = "accept-panic-abort")))]
compile_error!(
    "callboard turns a tool's panic into a result, which `panic = \"abort\"` makes impossible: build with `panic = \"unwind\"`, or turn on \
     the feature `accept-panic-abort` of callboard to let a panicking tool end the process"
);

pub mod ids;
pub mod time;
mod id_hash;
mod small_map;
mod json;
pub mod chat;
pub mod tool;
pub mod journal;
pub mod stream;
pub mod limits;
pub mod policy;
pub mod skill;
pub mod ports;
pub mod tokens;
pub mod compactor;
pub mod conversation;
pub mod tool_executor;
pub mod subagent;
pub mod model_gateway;
pub mod tenant;
pub mod metrics_collector;
pub mod host;
pub mod memory;
mod task;
pub mod scripted;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use host::{Host, HostBuilder};
