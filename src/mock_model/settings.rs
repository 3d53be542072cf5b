//! Settings of the mock model server. Plain data.

use std::time::Duration;

use super::{Fault, MockTls, TlsIdentityError};

/// What a streamed answer puts into one write, and over HTTP/2 into one DATA frame. The bytes are
/// the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WritePer {
    /// Everything that is due at the same time: without a delay between chunks, the whole answer.
    #[default]
    Answer,
    /// One event, as providers send them.
    Event,
}

/// How the server answers. By default it answers at once with 64 chunks of 4 bytes, calls no tool
/// and injects no fault.
#[derive(Debug, Clone, PartialEq)]
pub struct MockModelSettings {
    /// Delay between the whole request and the first byte of the answer.
    pub latency: Duration,
    /// Delay before each chunk except the first. At zero all chunks are due at once.
    pub chunk_delay: Duration,
    /// What goes out in one write.
    pub write_per: WritePer,
    /// Chunks of text in an answer.
    pub chunks: usize,
    /// Bytes of text in a chunk.
    pub chunk_bytes: usize,
    /// The text of each chunk; `None`: filler of `chunk_bytes`.
    pub text: Option<String>,
    /// Chunks of text before a tool call.
    pub tool_chunks: usize,
    /// Tool calls in a round before the answer. None are made if no tool is named and the request
    /// offers none.
    pub tool_calls: u32,
    /// The tool to call; `None`: the first that the request offers.
    pub tool: Option<String>,
    /// Its arguments, a JSON object.
    pub tool_input: String,
    /// The key that clients must send; others get 401.
    pub key: Option<String>,
    /// Concurrent calls; more get 429.
    pub concurrency: Option<usize>,
    /// Calls per minute; more get 429. A full minute's worth may arrive at once.
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, input and output; more get 429. A full minute's worth may arrive at once.
    pub tokens_per_minute: Option<u64>,
    /// Share of the calls that fail, 0 to 1.
    pub fault_rate: f64,
    /// The faults to inject; the seed picks one for each failing call.
    pub faults: Vec<Fault>,
    /// Decides which calls fail and how: the same seed, the same calls.
    pub seed: u64,
    /// Model calls after which the server stops; `None`: never.
    pub requests_max: Option<u64>,
    /// Serve https; `None`: plain HTTP.
    pub tls: Option<MockTls>,
}

impl Default for MockModelSettings {
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            chunk_delay: Duration::ZERO,
            write_per: WritePer::default(),
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
            tls: None,
        }
    }
}

/// Bytes of text in one answer, at most. Its chunks are rendered once and kept in memory.
const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why settings are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSettings {
    /// `tool_input` is not a JSON object.
    #[error("the tool input must be a JSON object: {0}")]
    ToolInput(String),
    /// `fault_rate` is not between 0 and 1.
    #[error("the fault rate must be between 0 and 1")]
    FaultRate,
    /// A fault rate without faults.
    #[error("a fault rate needs at least one kind of fault")]
    NoFaults,
    /// An answer without text, or with more text than is kept in memory.
    #[error("an answer must have between 1 and {TEXT_BYTES_MAX} bytes of text")]
    Text,
    /// The certificate of https.
    #[error(transparent)]
    Tls(#[from] TlsIdentityError),
}

impl MockModelSettings {
    /// Checks the rules that the types do not express.
    ///
    /// # Errors
    /// [`BadSettings`].
    pub fn check(&self) -> Result<(), BadSettings> {
        if let Err(error) =
            serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&self.tool_input)
        {
            return Err(BadSettings::ToolInput(error.to_string()));
        }
        if !(0.0..=1.0).contains(&self.fault_rate) {
            return Err(BadSettings::FaultRate);
        }
        if self.fault_rate > 0.0 && self.faults.is_empty() {
            return Err(BadSettings::NoFaults);
        }
        let chunk_bytes = self.text.as_ref().map_or(self.chunk_bytes, String::len);
        let bytes = self
            .chunks
            .max(self.tool_chunks)
            .saturating_mul(chunk_bytes);
        if self.chunks == 0 || chunk_bytes == 0 || bytes > TEXT_BYTES_MAX {
            return Err(BadSettings::Text);
        }
        if let Some(tls) = &self.tls {
            tls.server_config()?;
        }
        Ok(())
    }
}
