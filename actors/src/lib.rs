//! The kernel of Callboard: messages, ports (traits), the actors and the pure decision logic of a
//! runtime for LLM agents.
//!
//! **Invariant:** nothing in this crate opens a socket, a file or a process, reads the wall clock
//! or generates random numbers. If you need one, add a method to a port.
//! `cargo check -p callboard-actors` and `tests/tidy.rs` enforce the rule.
//!
//! # The tree of actors
//! ```text
//! HostSupervisor                  replaces a supervisor that died; its tickers sweep idle and parked conversations
//! ├─ ConversationSupervisor × 16  by hash of tenant and conversation; owns, restarts nothing
//! │   └─ Conversation             one journal, one round at a time; started by the directory alone
//! │       └─ ToolExecutor         lives for a round that uses tools
//! ├─ Compactor                    owns the background summaries, lends its pool to measure contexts
//! └─ MetricsCollector             adds up the figures that the others send
//! ```
//! Three shared structures have short locks instead of a mailbox: the directory (active
//! conversations), the model gateway (permits, retries, circuit breaker) and the tenants (seats,
//! round permits).
//!
//! # Reading order
//! The modules below, from top to bottom: ids, what models read and write, the journal, the event
//! stream; then limits and policies; then the ports; then the actors. `conversation::round` is the
//! heart: it decides when a round is over.
//!
//! # Invariants
//! - A conversation is its journal: [`journal::Durable::apply`] is the only function that changes
//!   its state, live and when a journal is read.
//! - Entries are stored before their effects are visible: `conversation::round::Effect::when` lists
//!   which effect waits for what.
//! - A handler awaits nothing: work runs in tasks and returns as mail with its [`ids::WorkId`].
//! - [`chat::History`] cannot hold a tool call without its result.
//! - Tokens are never actor mail, and every queue is bounded ([`limits`]).
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

// A panic in a tool must become a result. With `panic = "abort"` it would end every conversation of
// the process.
#[cfg(all(panic = "abort", not(test), not(feature = "accept-panic-abort")))]
compile_error!(
    "callboard turns a tool's panic into a result, which `panic = \"abort\"` makes impossible: build with `panic = \"unwind\"`, or turn on \
     the feature `accept-panic-abort` of callboard to let a panicking tool end the process"
);

pub mod ids;
pub mod time;
mod small_map;
mod hashing;
pub mod chat;
pub mod tool;
pub mod journal;
pub mod stream;
pub mod limits;
pub mod policy;
pub mod skill;
pub mod ports;
mod reads;
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
#[cfg(test)]
mod planted;
#[cfg(any(test, feature = "scripted"))]
pub mod scripted;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use host::{Host, HostBuilder};
