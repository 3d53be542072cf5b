//! The HTTP host of INTERFACES §4: routes, keys, event streams, the OpenAI-compatible door. It asks the [`crate::Host`] by its verbs
//! alone; what is true of a conversation is decided there.
//!
//! # Layout
//! `server` has the sockets and the order in which all of it ends; `keys` and `settings` are what a program brings, `operator` what it
//! must be able to do for its operator.

mod keys;
mod operator;
mod server;
mod settings;

pub use keys::{KeyHash, Keys, NotAKeyHash, new_key};
pub use operator::{MadeKey, Operator, OperatorError, Reloaded, TenantPut};
pub use server::{Served, serve};
pub use settings::{HttpBounds, HttpConfig};
