//! The HTTP host: routes, API keys, event streams and the OpenAI-compatible API. Handlers only call
//! methods of [`crate::Host`]; all rules about conversations live there.
//!
//! # Layout
//! | Module | Holds |
//! |---|---|
//! | `settings`, `keys`, `operator` | what the embedding program supplies |
//! | `server`, `socket`, `addresses` | listener and shutdown; timeouts; connections per client |
//! | `router`, `routes` | the route table and its middleware; the handlers, by resource |
//! | `auth`, `body`, `api`, `error` | authentication; bodies; JSON types; problem documents |
//! | `console` | pages for people |
//! | `sse`, `quiet`, `openapi` | event streams, and what they wait for; the OpenAPI document |
//! | `compat`, `openai`, `anthropic` | what the compatible APIs share: one call of a client; OpenAI's Chat Completions and Responses; Anthropic's Messages |
//! | `mcp`, `pipes` | the host as an MCP server; a client over pipes |
//! | `peers`, `owners`, `to_owner` | the other hosts on the store; requests that are sent on to the owner of a conversation |
//! | `shared`, `fan_outs` | state of all handlers: host, configuration, counters of open streams; fan-outs and their results |
//!
//! # Promises
//! - Another tenant's id gets the same 404 as an unknown id.
//! - A client that disconnects cancels nothing (the compatible APIs excepted). A client that
//!   stops reading costs one cursor, not a growing buffer.
//! - Every limit (size of a body or header, number of connections or streams) is refused with a
//!   typed error.
//! - No key is stored or logged; the host knows only hashes.

mod addresses;
mod anthropic;
mod answer_body;
mod answer_room;
mod api;
mod auth;
mod body;
mod compat;
mod console;
mod cors;
mod error;
mod fan_outs;
mod idle;
mod kept;
mod keys;
mod long_event;
#[cfg(feature = "mcp-server")]
pub(crate) mod mcp;
mod openai;
mod openapi;
mod operator;
mod owners;
mod peers;
#[cfg(all(feature = "mcp-server", feature = "cli"))]
pub(crate) mod pipes;
mod quiet;
mod refusals;
mod request_body;
mod router;
mod routes;
mod server;
mod sessions;
mod settings;
mod shared;
mod socket;
mod sse;
mod to_owner;
mod words;

#[cfg(feature = "cli")]
pub(crate) use compat::guard::is_stateless as is_single_call;
pub use compat::guard::left_behind;
pub use keys::{KeyHash, Keys, NotAKeyHash, new_key};
pub use operator::{
    MadeKey, Operator, OperatorError, Reloaded, TenantPut, WebhookShown, WorkspaceShown,
};
pub use peers::{FORWARDED, NotForwarded, Peers};
pub use server::{Served, serve};
pub use settings::{HttpBounds, HttpConfig};

/// Any body is parsed or refused.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let _ = serde_json::from_slice::<api::MessageRequest>(data);
    let _ = serde_json::from_slice::<api::Configure>(data);
    openai::fuzz(data);
    anthropic::fuzz(data);
}
