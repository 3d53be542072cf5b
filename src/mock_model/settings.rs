//! What the server is told. Plain data.

use std::time::Duration;

use super::Fault;

/// How the server answers. The default answers at once, with 64 chunks of 4 bytes, calls no tool and breaks nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct MockModelSettings {
    /// From the whole request to the first byte.
    pub latency: Duration,
    /// Before each chunk but the first; without it a reply is one write.
    pub chunk_delay: Duration,
    /// Chunks of text of an answer.
    pub chunks: usize,
    /// Bytes of text in a chunk.
    pub chunk_bytes: usize,
    /// What each chunk says; filler of `chunk_bytes` otherwise.
    pub text: Option<String>,
    /// Chunks of text before a tool call.
    pub tool_chunks: usize,
    /// Calls of a turn that ask for a tool before the call that answers; none where no tool is named and the request offers none.
    pub tool_calls: u32,
    /// The tool that is asked for; the first that the request offers otherwise.
    pub tool: Option<String>,
    /// Its arguments, a JSON object.
    pub tool_input: String,
    /// The key that clients must have; others get 401.
    pub key: Option<String>,
    /// Calls at once; more get 429.
    pub concurrency: Option<usize>,
    /// Calls a minute; more get 429. A minute's worth may come at once.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute, input and output; more get 429. A minute's worth may come at once.
    pub tokens_per_minute: Option<u64>,
    /// Part of the calls that go wrong, 0 to 1.
    pub fault_rate: f64,
    /// How they go wrong, in turns by chance.
    pub faults: Vec<Fault>,
    /// Decides which calls go wrong and how: the same seed, the same calls.
    pub seed: u64,
    /// Model calls after which the server ends.
    pub requests_max: Option<u64>,
}

impl Default for MockModelSettings {
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            chunk_delay: Duration::ZERO,
            chunks: 64,
            chunk_bytes: 4,
            text: None,
            tool_chunks: 0,
            tool_calls: 0,
            tool: None,
            tool_input: "{}".to_owned(),
            key: None,
            concurrency: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            fault_rate: 0.0,
            faults: Fault::ALL.to_vec(),
            seed: 0,
            requests_max: None,
        }
    }
}

/// Bytes of text of one answer: its chunks are rendered once and kept.
const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why settings cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSettings {
    /// The arguments are none.
    #[error("the tool input must be a JSON object: {0}")]
    ToolInput(String),
    /// Not a part of one.
    #[error("the fault rate must be between 0 and 1")]
    FaultRate,
    /// Nothing to break.
    #[error("a fault rate needs at least one kind of fault")]
    NoFaults,
    /// Chunks of nothing, or more text than is kept.
    #[error("an answer must have between 1 and {TEXT_BYTES_MAX} bytes of text")]
    Text,
}

impl MockModelSettings {
    /// Checks what cannot be said in types.
    ///
    /// # Errors
    /// [`BadSettings`].
    pub fn check(&self) -> Result<(), BadSettings> {
        if let Err(error) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&self.tool_input) {
            return Err(BadSettings::ToolInput(error.to_string()));
        }
        if !(0.0..=1.0).contains(&self.fault_rate) {
            return Err(BadSettings::FaultRate);
        }
        if self.fault_rate > 0.0 && self.faults.is_empty() {
            return Err(BadSettings::NoFaults);
        }
        let chunk_bytes = self.text.as_ref().map_or(self.chunk_bytes, String::len);
        let bytes = self.chunks.max(self.tool_chunks).saturating_mul(chunk_bytes);
        if self.chunks == 0 || chunk_bytes == 0 || bytes > TEXT_BYTES_MAX {
            return Err(BadSettings::Text);
        }
        Ok(())
    }
}
