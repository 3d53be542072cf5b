//! The JSON of a Chat Completions stream, borrowed from the line it arrived on. Lenient: many
//! servers speak this protocol with small differences, so a field that may be of several kinds
//! stays raw.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::providers::json::{Few, OUTER_LIST_MAX, Str};

/// One chunk of the stream.
#[derive(Debug, Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) choices: Option<Few<Choice<'a>, OUTER_LIST_MAX>>,
    #[serde(borrow, default)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
    /// Set to `error` in the errors of some servers.
    #[serde(borrow, default)]
    pub(super) object: Option<&'a RawValue>,
}

/// One alternative answer. Requests ask for exactly one.
#[derive(Debug, Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(borrow, default)]
    pub(super) delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Str<'a>,
}

/// The part of the answer that this chunk adds.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Delta<'a> {
    /// A string, or from some servers a list of parts.
    #[serde(borrow, default)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) reasoning_content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) reasoning: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) refusal: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Few<Call<'a>>>,
    #[serde(borrow, default)]
    pub(super) function_call: Option<Function<'a>>,
}

/// A fragment of a tool call.
#[derive(Debug, Deserialize)]
pub(super) struct Call<'a> {
    #[serde(default)]
    pub(super) index: Option<u64>,
    #[serde(borrow, default)]
    pub(super) id: Str<'a>,
    #[serde(borrow, default)]
    pub(super) function: Option<Function<'a>>,
}

/// The function of a tool call, in fragments.
#[derive(Debug, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Str<'a>,
    /// A string with JSON, or from some servers the object itself.
    #[serde(borrow, default)]
    pub(super) arguments: Option<&'a RawValue>,
}

/// A part of a content list.
#[derive(Debug, Deserialize)]
pub(super) struct Part<'a> {
    #[serde(borrow, rename = "type", default)]
    pub(super) kind: Str<'a>,
    #[serde(borrow, default)]
    pub(super) text: Str<'a>,
    /// A list of text parts.
    #[serde(borrow, default)]
    pub(super) thinking: Option<&'a RawValue>,
}
