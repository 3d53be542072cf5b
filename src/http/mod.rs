//! The HTTP host of INTERFACES §4: routes, keys, event streams, the OpenAI-compatible door. It asks the [`crate::Host`] by its verbs
//! alone; what is true of a conversation is decided there.
//!
//! # Layout
//! `settings`, `keys` and `operator` are what a program brings · `server` has the sockets and the order in which all of it ends, `socket`
//! their deadlines, `addresses` how many each client address has · `router` all routes and what is done for each, `routes` a file a noun · `auth` who asks, `body` what was sent, `api`
//! its JSON, `error` the refusals, `sse` event streams, `openapi` the document · `openai` the door · `shared` what all of them share, and what is counted.
//!
//! # Promises
//! - Another tenant's id is answered as one that never was.
//! - A client that leaves cancels nothing; a client that does not read holds nothing but its cursor.
//! - Every bound is a typed refusal: a body, a header, a connection, a stream.
//! - No key is kept, logged or told; only hashes of them are known.

mod addresses;
mod api;
mod auth;
mod body;
mod error;
mod keys;
mod openai;
mod openapi;
mod operator;
mod router;
mod routes;
mod server;
mod settings;
mod shared;
mod socket;
mod sse;

pub use keys::{KeyHash, Keys, NotAKeyHash, new_key};
pub use openai::left_behind;
pub use operator::{MadeKey, Operator, OperatorError, Reloaded, TenantPut, WorkspaceShown};
pub use server::{Served, serve};
pub use settings::{HttpBounds, HttpConfig};
