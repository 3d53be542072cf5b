//! Adapters of the `LlmProvider` port: one folder for each wire format, all with the same files.
//!
//! # Layout
//! In each folder: `mod.rs` the adapter and its builder · `convert.rs` a request as the wire's JSON
//! · `wire.rs` the JSON of its stream · `stream.rs` bytes to events, pure.
//!
//! Shared: `sse` and `template` decode streams, `body` and `http` send requests, `transport` carries
//! them over HTTP/1.1 and HTTP/2, `reply` drives a stream, `timer` keeps deadlines, `errors`
//! classifies refusals, `limits` reads rate limits, `gunzip` decodes
//! what proxies compressed.
//!
//! **Invariant:** an adapter never retries and keeps nothing between calls. A key is in no error
//! and in no debug output.

#[cfg(feature = "offline")]
pub mod offline;

#[cfg(feature = "_provider")]
mod assembler;
#[cfg(feature = "_provider")]
mod body;
#[cfg(feature = "_provider")]
mod call_ids;
#[cfg(feature = "_provider")]
mod config;
#[cfg(feature = "_provider")]
mod errors;
#[cfg(feature = "_provider")]
mod gunzip;
#[cfg(feature = "_provider")]
mod http;
#[cfg(feature = "_provider")]
mod json;
#[cfg(feature = "_provider")]
mod limits;
#[cfg(feature = "_provider")]
mod network;
#[cfg(feature = "_provider")]
mod reply;
#[cfg(feature = "_provider")]
mod secret;
#[cfg(feature = "_provider")]
pub mod sse;
#[cfg(feature = "_provider")]
mod template;
#[cfg(feature = "_provider")]
mod timer;
#[cfg(feature = "_provider")]
mod transport;
#[cfg(all(test, feature = "_provider"))]
mod testing;

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(feature = "openai")]
pub mod openai;

#[cfg(feature = "anthropic")]
pub use anthropic::{Anthropic, AnthropicAssembler, AnthropicBuilder};
#[cfg(feature = "_provider")]
pub use assembler::Assemble;
#[cfg(feature = "_provider")]
pub use config::{ProviderConfigError, Timeouts};
#[cfg(feature = "_provider")]
pub use network::Network;
#[cfg(feature = "openai")]
pub use openai::{OpenAi, OpenAiAssembler, OpenAiBuilder};
