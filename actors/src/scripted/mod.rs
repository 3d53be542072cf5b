//! Model replies written in advance, the streams that play them, and the model that gives them, for
//! tests, benchmarks, load runs and examples. Behind the feature `scripted`.
//!
//! Uses `tokio::time` only where a reply has a delay: without delays it creates no timer, spawns no
//! task and never waits.
//!
//! Pure.

mod reply;
mod playing;
mod model;

pub use model::{CallCounts, ScriptedModel};
pub use reply::Reply;

use crate::chat::ModelRequest;

/// Bytes per token in estimates.
const TOKEN_BYTES: u64 = 4;

/// An estimate of the request's tokens, at four bytes each; images and documents count as text of as
/// many tokens. An estimated usage reports it as input.
pub fn estimate_tokens(request: &ModelRequest) -> u64 {
    let system = request.system.as_ref().map_or(0, |text| text.len());
    let tools: usize = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.as_str().len())
        .sum();
    (request.messages.estimate_bytes() + (system + tools) as u64) / TOKEN_BYTES
}

/// One step of splitmix64: a well-mixed 64-bit value for `index`. For reproducible randomness; not
/// for secrets.
pub fn splitmix64(index: u64) -> u64 {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
