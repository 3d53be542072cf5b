//! The JSON of a Gemini stream, borrowed from the line it arrived on. Each event is a whole response
//! with the parts that are new. Unknown fields are ignored.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::providers::json::{Few, OUTER_LIST_MAX, Str};

/// One event of the stream.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) candidates: Option<Few<Candidate<'a>, OUTER_LIST_MAX>>,
    #[serde(borrow, default)]
    pub(super) prompt_feedback: Option<Feedback<'a>>,
    #[serde(borrow, default)]
    pub(super) usage_metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

/// One alternative answer. Requests ask for exactly one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Candidate<'a> {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(borrow, default)]
    pub(super) content: Option<Content<'a>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Str<'a>,
}

/// What the event adds to the answer.
#[derive(Debug, Deserialize)]
pub(super) struct Content<'a> {
    #[serde(borrow, default)]
    pub(super) parts: Option<Few<Part<'a>>>,
}

/// A part of an answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Part<'a> {
    #[serde(borrow, default)]
    pub(super) text: Option<Str<'a>>,
    /// Whether the text is a thought.
    #[serde(default)]
    pub(super) thought: Option<bool>,
    #[serde(borrow, default, alias = "thought_signature")]
    pub(super) thought_signature: Str<'a>,
    #[serde(borrow, default)]
    pub(super) function_call: Option<Call<'a>>,
}

/// A whole call.
#[derive(Debug, Deserialize)]
pub(super) struct Call<'a> {
    #[serde(borrow, default)]
    pub(super) id: Str<'a>,
    #[serde(borrow, default)]
    pub(super) name: Str<'a>,
    #[serde(borrow, default)]
    pub(super) args: Option<&'a RawValue>,
}

/// Why a prompt was refused.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Feedback<'a> {
    #[serde(borrow, default)]
    pub(super) block_reason: Str<'a>,
}
