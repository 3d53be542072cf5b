//! The JSON of a Responses stream, borrowed from the line it arrived on. Unknown events and fields
//! are ignored.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::providers::json::{Few, Str};

/// An event of any type. Parts whose shape depends on the type stay raw.
#[derive(Debug, Deserialize)]
pub(super) struct Event<'a> {
    #[serde(borrow, rename = "type", default)]
    pub(super) kind: Str<'a>,
    #[serde(default)]
    pub(super) output_index: Option<u64>,
    #[serde(default)]
    pub(super) summary_index: Option<u64>,
    #[serde(default)]
    pub(super) content_index: Option<u64>,
    #[serde(borrow, default)]
    pub(super) delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) response: Option<&'a RawValue>,
}

/// The fields of all known output items.
#[derive(Debug, Deserialize)]
pub(super) struct Item<'a> {
    #[serde(borrow, rename = "type", default)]
    pub(super) kind: Str<'a>,
    #[serde(borrow, default)]
    pub(super) id: Str<'a>,
    #[serde(borrow, default)]
    pub(super) call_id: Str<'a>,
    #[serde(borrow, default)]
    pub(super) name: Str<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Str<'a>,
    #[serde(borrow, default)]
    pub(super) status: Str<'a>,
    /// The parts of a message, or the text of reasoning that the server does not hide.
    #[serde(borrow, default)]
    pub(super) content: Option<Few<Part<'a>>>,
    #[serde(borrow, default)]
    pub(super) summary: Option<Few<Part<'a>>>,
    #[serde(borrow, default)]
    pub(super) encrypted_content: Str<'a>,
}

/// A part of a message or of a summary.
#[derive(Debug, Deserialize)]
pub(super) struct Part<'a> {
    #[serde(borrow, rename = "type", default)]
    pub(super) kind: Str<'a>,
    #[serde(borrow, default)]
    pub(super) text: Str<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Str<'a>,
}

/// The fields of the last event's response that the assembler uses.
#[derive(Debug, Deserialize)]
pub(super) struct Response<'a> {
    #[serde(borrow, default)]
    pub(super) output: Option<Few<&'a RawValue>>,
    #[serde(borrow, default)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) incomplete_details: Option<Incomplete<'a>>,
}

/// Why a response is incomplete.
#[derive(Debug, Deserialize)]
pub(super) struct Incomplete<'a> {
    #[serde(borrow, default)]
    pub(super) reason: Str<'a>,
}
