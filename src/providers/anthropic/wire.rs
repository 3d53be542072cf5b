//! JSON of the Messages API's stream, borrowed from the line it came on. Fields that we do not know are ignored.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::providers::json::Str;

/// Any event. Inner parts stay raw: what they are depends on their own `type`.
#[derive(Debug, Deserialize)]
pub(super) struct Event<'a> {
    #[serde(borrow, rename = "type", default)]
    pub(super) kind: Str<'a>,
    #[serde(default)]
    pub(super) index: u64,
    #[serde(borrow, default)]
    pub(super) delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) content_block: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) usage: Option<&'a RawValue>,
}

/// The `type` of an inner part.
#[derive(Debug, Deserialize)]
pub(super) struct Tag<'a> {
    #[serde(borrow, rename = "type", default)]
    pub(super) kind: Str<'a>,
}

/// The deltas that we know.
#[derive(Debug, Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) text: Str<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Str<'a>,
    #[serde(borrow, default)]
    pub(super) signature: Str<'a>,
    #[serde(borrow, default)]
    pub(super) partial_json: Str<'a>,
    #[serde(borrow, default)]
    pub(super) citation: Option<&'a RawValue>,
}

/// The start of a block that we know.
#[derive(Debug, Deserialize)]
pub(super) struct BlockStart<'a> {
    #[serde(borrow, default)]
    pub(super) text: Str<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Str<'a>,
    #[serde(borrow, default)]
    pub(super) signature: Str<'a>,
    #[serde(borrow, default)]
    pub(super) id: Str<'a>,
    #[serde(borrow, default)]
    pub(super) name: Str<'a>,
    #[serde(borrow, default)]
    pub(super) input: Option<&'a RawValue>,
}

/// What `message_start` holds for us.
#[derive(Debug, Deserialize)]
pub(super) struct MessageStart<'a> {
    #[serde(borrow, default)]
    pub(super) usage: Option<&'a RawValue>,
}

/// What `message_delta` holds for us.
#[derive(Debug, Deserialize)]
pub(super) struct MessageDelta<'a> {
    #[serde(borrow, default)]
    pub(super) stop_reason: Str<'a>,
}
