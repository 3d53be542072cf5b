//! Stub until the store branch is merged.
use crate::ports::{ArtifactId, Artifacts, OutputLevel, ToolOutput};
/// Stub.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// Stub.
    pub text: String,
    /// Stub.
    pub level: OutputLevel,
    /// Stub.
    pub artifact_id: Option<ArtifactId>,
    /// Stub.
    pub data_size_bytes: u64,
    /// Stub.
    pub data_hash: Option<String>,
    /// Stub.
    pub data_summary: Option<String>,
}
/// Stub.
pub async fn observe(output: ToolOutput, level: OutputLevel, _artifacts: Option<&Artifacts>, _id: &str) -> Observed {
    let text = match output {
        ToolOutput::Text(text) => text,
        ToolOutput::Data(value) => serde_json::to_string_pretty(&value).unwrap_or_default(),
    };
    Observed { text, level, ..Observed::default() }
}
