//! The way to the public internet: a policy that judges URLs and addresses, and a client that keeps to it. Tools, MCP servers over
//! HTTP and URLs of images go this way and no other.
//!
//! **Invariant:** nothing here is dialed that the policy did not see as an address. Names are resolved once, every address of a name
//! is judged, one of those judged is dialed; each redirect begins anew.
//!
//! Promises, tested in `tests/integration/web.rs` (FAULTS F6, F7):
//! - no connection to a private, loopback, link-local, metadata or otherwise special address, however it is spelled, resolved to or
//!   redirected to; none through a proxy of the environment
//! - public addresses, and what the operator permits, are reached
//! - at most ten redirects, never from https to http, none with a key or a body
//! - a body stops at the cap, counted after unpacking; memory at most twice the cap
//! - a total and an idle deadline; a cancel closes the connection
//!
//! gzip is asked for and unpacked here, with the cap on its output; every other encoding is refused. The unpacking that reqwest
//! offers stays off: it would be on for the model providers too.

mod address;
mod policy;
mod dns;
mod error;
mod body;
mod client;

pub use address::AddressClass;
pub use client::{WebAnswer, WebBody, WebClient, WebClientBuilder, WebRequest};
pub use dns::{GuardedDns, Resolver, SystemResolver, guard_redirects, guarded};
pub use error::WebError;
pub use policy::{Denied, NoSuchEntry, REDIRECTS_MAX, URL_BYTES_MAX, UrlPolicy};
