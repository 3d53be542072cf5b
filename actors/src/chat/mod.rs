//! Messages, content blocks, and a history that is always valid: what models read and write,
//! independent of any provider.
//!
//! The wire form is the one of Anthropic's Messages API:
//! `{"role":"user"|"assistant","content":string|[block]}`.
//!
//! Pure.

pub mod attachment;
mod block;
mod client_tools;
mod debug;
mod edit;
mod faulty_call;
mod history;
mod intake;
mod message;
mod message_list;
mod parameters;
mod plain_json;
mod raw_json;
mod reminder;
mod request;
mod usage;

pub use attachment::{Attachment, AttachmentError};
pub use block::{
    ContentBlock, MediaBlock, MediaSource, TextBlock, ThinkingBlock, ToolResultBlock,
    ToolResultContent, ToolUseBlock,
};
pub use debug::{DebugBlock, StandardMessage};

pub use self::{
    message::{Message, MessageError, Role},
    message_list::MessageList,
    parameters::{
        Effort, ModelParameters, NotATemperature, NotThinking, ParameterFault, Temperature,
        Thinking,
    },
    raw_json::{NotAnObject, RawJson},
    reminder::{is_reminder, reminder},
    request::{ModelRequest, ToolChoice, ToolDefinition},
    usage::{ProviderStop, Usage},
};
pub(crate) use client_tools::is_tool_name;
pub use client_tools::{ClientToolFault, ClientToolResult, ClientTools};
pub use edit::Edit;
pub(crate) use edit::span_hash;
pub(crate) use faulty_call::{fault, storable};
pub use history::{History, HistoryError, Repair};
pub use intake::HistoryFault;
pub(crate) use plain_json::ambiguity;
pub use plain_json::values_in;
