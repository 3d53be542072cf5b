//! Turns what a tool returned into the text that the model reads, and stores large results as
//! artifacts.
//!
//! The order is fixed: format by output level, then apply the artifact rule, then page. Never
//! fails: without a store, or when the store fails, a long text is cut at a character boundary and
//! followed by an exact count of the missing bytes.
//!
//! Bounds: an observation has at most [`OBSERVATION_BYTES_MAX`] bytes, an artifact at most
//! [`ARTIFACT_BYTES_MAX`]. A long text is stored from the buffer that it arrived in, without a
//! copy.

use bytes::Bytes;
use serde_json::Value;

use super::{
    format::{format, json_within, stored_text, summary, text_summary},
    paging::{self, PAGE_BYTES},
};
use crate::{
    chat::Message,
    ids::ArtifactId,
    journal::ToolExecutionResult,
    limits::{ARTIFACT_BYTES_MAX, DATA_INLINE_BYTES_MAX, OBSERVATION_BYTES_MAX},
    ports::{Artifacts, ToolOutput},
    tool::OutputLevel,
};

/// Size of data in bytes above which it is serialized on a blocking thread.
const QUICK_BYTES: usize = 256 * 1024;

/// The observation of an output, with the figures of the whole result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The text that the model reads, at most [`OBSERVATION_BYTES_MAX`] bytes.
    pub text: String,
    /// The output level of the call.
    pub level: OutputLevel,
    /// The artifact with the whole result; `None` if it was not stored.
    pub artifact_id: Option<ArtifactId>,
    /// Bytes of the whole text, or of the JSON text of data.
    pub data_size_bytes: u64,
    /// The content hash in the artifact's id; `None` if nothing was stored.
    pub data_hash: Option<String>,
    /// One-line summary of the artifact; `None` if nothing was stored.
    pub data_summary: Option<String>,
    /// A user message with images and documents, which the model reads behind the results.
    pub attachments: Option<Message>,
}

/// The observation of a short text, unchanged.
impl From<&str> for Observed {
    fn from(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            level: OutputLevel::default(),
            artifact_id: None,
            data_size_bytes: text.len() as u64,
            data_hash: None,
            data_summary: None,
            attachments: None,
        }
    }
}

impl From<Observed> for ToolExecutionResult {
    fn from(observed: Observed) -> Self {
        Self {
            output_level: observed.level,
            artifact_id: observed.artifact_id.map(Into::into),
            data_size_bytes: observed.data_size_bytes,
            data_hash: observed.data_hash,
            data_summary: observed.data_summary,
            ..Self::ok(observed.text)
        }
    }
}

/// Makes the observation of an output, and stores what is too large to show.
///
/// Text ignores the output level: above 30 KiB it becomes an artifact, and its first page is shown.
/// Data becomes an artifact from 1 MiB up, and at FULL whenever it does not fit into an
/// observation. Smaller data is shown at its level.
///
/// # Cancel safety
/// Dropping the future may leave an artifact without a reference, which expires.
pub async fn observe(
    output: ToolOutput,
    level: OutputLevel,
    artifacts: Option<&Artifacts>,
    tool_call_id: &str,
) -> Observed {
    let keep = Keep {
        artifacts,
        tool_call_id,
    };
    match output {
        ToolOutput::Text(text) => observe_text(text, level, &keep).await,
        ToolOutput::Data(value) => observe_data(value, level, &keep).await,
        ToolOutput::Shown { text, attachments } => Observed {
            attachments: Some(attachments),
            ..observe_text(text, level, &keep).await
        },
        ToolOutput::Activation(result) => observe_text(result.text(), level, &keep).await,
    }
}

/// Where large results are stored, and for which call.
struct Keep<'a> {
    artifacts: Option<&'a Artifacts>,
    tool_call_id: &'a str,
}

impl Keep<'_> {
    /// Stores a content; `None` without a store, or when it fails.
    async fn store(&self, content: Bytes) -> Option<ArtifactId> {
        let artifacts = self.artifacts?;
        let stored = artifacts
            .store
            .store(
                artifacts.owner.clone(),
                self.tool_call_id.to_owned(),
                content,
            )
            .await;
        stored
            .inspect_err(|error| {
                tracing::warn!(
                    call = self.tool_call_id,
                    code = error.code(),
                    "result not stored: {error}"
                )
            })
            .ok()
    }
}

fn shown(text: String, level: OutputLevel, data_size_bytes: u64) -> Observed {
    Observed {
        text,
        level,
        artifact_id: None,
        data_size_bytes,
        data_hash: None,
        data_summary: None,
        attachments: None,
    }
}

async fn observe_text(text: String, level: OutputLevel, keep: &Keep<'_>) -> Observed {
    let size = text.len() as u64;
    if text.len() <= OBSERVATION_BYTES_MAX {
        return shown(text, level, size);
    }
    let summary = text_summary(&text);
    let content = Content::from_text(text);
    match keep.store(content.bytes.clone()).await {
        Some(id) => stored(content.first_page(&id), level, &id, size, summary),
        None => shown(content.cut(), level, size),
    }
}

async fn observe_data(value: Value, level: OutputLevel, keep: &Keep<'_>) -> Observed {
    let written = if is_quick(&value) {
        write(&value, level)
    } else {
        match crate::task::spawn_blocking(move || write(&value, level)).await {
            Ok(written) => written,
            // Rethrown, since the executor turns a panic into a result.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {
                return shown(
                    "[the result was lost: the host is stopping]".to_owned(),
                    level,
                    0,
                );
            }
        }
    };
    let Written {
        text,
        text_total,
        json,
        summary,
    } = written;
    let fits = text_total <= OBSERVATION_BYTES_MAX as u64;
    let size = json.total;
    let is_large = size >= DATA_INLINE_BYTES_MAX;
    if fits && !is_large {
        return shown(text, level, size);
    }
    // At BRIEF and STANDARD even small data can give a long text (three long items). That text is
    // paged.
    if level != OutputLevel::Full && !is_large {
        return Observed {
            data_size_bytes: size,
            ..observe_text(text, level, keep).await
        };
    }
    let Some(id) = keep.store(json.bytes.clone()).await else {
        let text = if fits {
            text
        } else {
            Content::partly(text, text_total).cut()
        };
        return shown(text, level, size);
    };
    let note = stored_text(&id, &summary);
    let text = if level == OutputLevel::Full {
        format!("{note}\n\n{}", json.first_page(&id))
    } else if text.len() + note.len() + 2 <= OBSERVATION_BYTES_MAX {
        format!("{text}\n\n{note}")
    } else {
        format!("{}\n\n{note}", Content::partly(text, text_total).cut())
    };
    stored(text, level, &id, size, summary)
}

fn stored(
    text: String,
    level: OutputLevel,
    id: &ArtifactId,
    data_size_bytes: u64,
    summary: String,
) -> Observed {
    Observed {
        text,
        level,
        artifact_id: Some(id.clone()),
        data_size_bytes,
        data_hash: Some(id.hash().to_owned()),
        data_summary: Some(summary),
        attachments: None,
    }
}

/// The data of a result as JSON text.
struct Written {
    /// The text at the output level; only its beginning if it does not fit into an observation.
    text: String,
    /// Bytes of the whole text.
    text_total: u64,
    /// The compact JSON text.
    json: Content,
    /// The one-line summary.
    summary: String,
}

fn write(value: &Value, level: OutputLevel) -> Written {
    let (json, total) = json_within(value, false, ARTIFACT_BYTES_MAX - NOTE_BYTES);
    let (text, text_total) = match level {
        OutputLevel::Full => json_within(value, true, OBSERVATION_BYTES_MAX),
        OutputLevel::Brief | OutputLevel::Standard => {
            let text = format(value, level);
            let len = text.len() as u64;
            (text, len)
        }
    };
    Written {
        text,
        text_total,
        json: Content::partly(json, total),
        summary: summary(value),
    }
}

/// Whether data is small enough to serialize on this thread. Stops looking as soon as it is not.
fn is_quick(value: &Value) -> bool {
    let mut bytes = 0usize;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        bytes += 8;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) if items.len() <= QUICK_BYTES => open.extend(items),
            Value::Object(fields) if fields.len() <= QUICK_BYTES => {
                bytes += fields.keys().map(String::len).sum::<usize>();
                open.extend(fields.values());
            }
            Value::Array(_) | Value::Object(_) => return false,
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        if bytes > QUICK_BYTES {
            return false;
        }
    }
    true
}

/// Bytes reserved for the note at the end of a content that was cut.
const NOTE_BYTES: usize = 128;

/// A text to store, cut to the maximum size of an artifact.
struct Content {
    bytes: Bytes,
    /// Bytes of the text in `bytes`; the note follows them.
    kept: u64,
    /// Bytes of the whole text.
    total: u64,
}

impl Content {
    fn from_text(text: String) -> Self {
        let total = text.len() as u64;
        Self::partly(text, total)
    }

    /// `text` is the beginning of a text of `total` bytes. It is cut in place.
    fn partly(mut text: String, total: u64) -> Self {
        if text.len() > ARTIFACT_BYTES_MAX {
            text.truncate(text.floor_char_boundary(ARTIFACT_BYTES_MAX - NOTE_BYTES));
        }
        let kept = text.len() as u64;
        if kept < total {
            text.push_str(&format!(
                "\n[kept {kept} of {total} bytes; the rest was too long to keep]"
            ));
            text.shrink_to_fit();
        }
        Self {
            bytes: Bytes::from(text),
            kept,
            total,
        }
    }

    /// The first page with its footer, for a stored content.
    fn first_page(&self, id: &ArtifactId) -> String {
        let page = String::from_utf8_lossy(paging::page(&self.bytes, 1).unwrap_or_default());
        let lost = match self.total - self.kept {
            0 => String::new(),
            _ => format!(
                "[kept {} of {} bytes; the rest was too long to keep]\n",
                self.kept, self.total
            ),
        };
        format!(
            "{page}\n\n{lost}{}",
            paging::footer(id, 1, page.len() as u64, self.bytes.len() as u64)
        )
    }

    /// The first page with a count of the missing bytes, for a content that could not be stored.
    fn cut(&self) -> String {
        let text = self
            .bytes
            .get(..usize::try_from(self.kept).unwrap_or_default())
            .unwrap_or_default();
        let range = 0..PAGE_BYTES.min(text.len() as u64);
        let page = String::from_utf8_lossy(paging::cut(text.len() as u64, &range, text).0);
        format!(
            "{page}\n\n[kept {} of {} bytes; ask for a smaller part to see the rest]",
            page.len(),
            self.total
        )
    }
}

#[cfg(test)]
mod tests;
