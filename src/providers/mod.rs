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
mod pace;
#[cfg(feature = "_provider")]
mod reply;
#[cfg(feature = "_provider")]
mod room;
#[cfg(feature = "_provider")]
mod sealed;
#[cfg(feature = "_provider")]
mod secret;
#[cfg(any(feature = "openai", feature = "gemini"))]
mod shown;
#[cfg(feature = "_provider")]
pub mod sse;
#[cfg(feature = "openai")]
mod strict;
#[cfg(any(feature = "anthropic", feature = "openai"))]
mod template;
#[cfg(feature = "_provider")]
mod timer;
#[cfg(feature = "_provider")]
mod transport;
#[cfg(all(any(test, feature = "fuzzing"), feature = "_provider"))]
#[cfg_attr(
    not(test),
    allow(dead_code, clippy::unwrap_used, clippy::indexing_slicing)
)]
pub(crate) mod testing;

#[cfg(feature = "anthropic")]
pub mod anthropic;
#[cfg(feature = "gemini")]
pub mod gemini;
#[cfg(feature = "openai")]
pub mod openai;

#[cfg(all(any(test, feature = "fuzzing"), feature = "_provider"))]
use callboard_actors::chat::MessageList;

#[cfg(feature = "anthropic")]
pub use anthropic::{Anthropic, AnthropicAssembler, AnthropicBuilder};
#[cfg(feature = "_provider")]
pub use assembler::Assemble;
#[cfg(feature = "_provider")]
pub use config::{ProviderConfigError, Timeouts};
#[cfg(feature = "gemini")]
pub use gemini::{Gemini, GeminiAssembler, GeminiBuilder};
#[cfg(feature = "_provider")]
pub use network::Network;
#[cfg(feature = "openai")]
pub use openai::{OpenAi, OpenAiAssembler, OpenAiBuilder, ResponsesAssembler};

/// The events of a stream do not depend on how its bytes were split.
#[cfg(all(any(test, feature = "fuzzing"), feature = "_provider"))]
pub(crate) fn fuzz_sse(data: &[u8]) {
    let decode = |pieces: &[&[u8]]| {
        let mut events = Vec::new();
        let mut decoder = sse::SseDecoder::new();
        let ended = pieces.iter().try_for_each(|piece| {
            decoder.feed(piece, &mut |event: sse::SseEvent<'_>| {
                events.push((event.name.to_vec(), event.data.to_vec()));
                Ok::<(), sse::SseTooLong>(())
            })
        });
        (events, ended)
    };
    let whole = decode(&[data]);
    for size in [1, 7] {
        assert_eq!(decode(&data.chunks(size).collect::<Vec<_>>()), whole);
    }
}

/// A reply of Anthropic's API does not depend on how its bytes were split.
#[cfg(all(any(test, feature = "fuzzing"), feature = "anthropic"))]
pub(crate) fn fuzz_anthropic(data: &[u8]) {
    let new = || AnthropicAssembler::new(MessageList::default());
    let whole = testing::assemble(new(), [data]);
    assert_eq!(testing::assemble(new(), data.chunks(1)), whole);
    assert_eq!(testing::assemble(new(), data.chunks(61)), whole);
}

/// A reply of the Chat Completions API does not depend on how its bytes were split.
#[cfg(all(any(test, feature = "fuzzing"), feature = "openai"))]
pub(crate) fn fuzz_openai(data: &[u8]) {
    let new = || OpenAiAssembler::new(MessageList::default());
    let whole = testing::assemble(new(), [data]);
    assert_eq!(testing::assemble(new(), data.chunks(1)), whole);
    assert_eq!(testing::assemble(new(), data.chunks(61)), whole);
}

/// A reply of the Responses API does not depend on how its bytes were split.
#[cfg(all(any(test, feature = "fuzzing"), feature = "openai"))]
pub(crate) fn fuzz_responses(data: &[u8]) {
    let new = || ResponsesAssembler::new(MessageList::default());
    let whole = testing::assemble(new(), [data]);
    assert_eq!(testing::assemble(new(), data.chunks(1)), whole);
    assert_eq!(testing::assemble(new(), data.chunks(61)), whole);
}

/// A reply of the Gemini API does not depend on how its bytes were split.
#[cfg(all(any(test, feature = "fuzzing"), feature = "gemini"))]
pub(crate) fn fuzz_gemini(data: &[u8]) {
    let new = || GeminiAssembler::new(MessageList::default());
    let whole = testing::assemble(new(), [data]);
    assert_eq!(testing::assemble(new(), data.chunks(1)), whole);
    assert_eq!(testing::assemble(new(), data.chunks(61)), whole);
}

/// A chunked body does not depend on how its bytes were split.
#[cfg(all(any(test, feature = "fuzzing"), feature = "_provider"))]
pub(crate) fn fuzz_framing(data: &[u8]) {
    transport::fuzz(data);
}
