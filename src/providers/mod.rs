//! Adapters of the `LlmProvider` port: one folder for each wire format, all with the same files.
//!
//! # Layout
//! In each folder: `mod.rs` the adapter and its builder · `convert.rs` a request as the wire's JSON
//! · `wire.rs` the JSON of its stream · `stream.rs` bytes to events, pure.
//!
//! Shared: `sse` and `template` decode streams, `body` and `http` send requests, `http1` is the
//! HTTP/1.1 client for servers without TLS or proxy, `answer` is a response of either client,
//! `reply` drives a stream, `timer` keeps deadlines, `errors` classifies refusals, `limits` reads
//! rate limits.
//!
//! **Invariant:** an adapter never retries and keeps nothing between calls. A key is in no error
//! and in no debug output.

pub mod offline;

#[cfg(any(feature = "anthropic", feature = "openai"))]
mod answer;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod assembler;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod body;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod call_ids;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod config;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod errors;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod http;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod http1;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod json;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod limits;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod reply;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod secret;
#[cfg(any(feature = "anthropic", feature = "openai"))]
pub mod sse;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod template;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod timer;
#[cfg(all(test, any(feature = "anthropic", feature = "openai")))]
mod testing;

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(feature = "openai")]
pub mod openai;

#[cfg(feature = "anthropic")]
pub use anthropic::{Anthropic, AnthropicAssembler, AnthropicBuilder};
#[cfg(any(feature = "anthropic", feature = "openai"))]
pub use assembler::Assemble;
#[cfg(any(feature = "anthropic", feature = "openai"))]
pub use config::{ProviderConfigError, Timeouts};
#[cfg(feature = "openai")]
pub use openai::{OpenAi, OpenAiAssembler, OpenAiBuilder};
