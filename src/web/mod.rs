//! Access to the public internet: a policy for URLs and addresses, and a client that enforces it.
//! Web tools, MCP servers over HTTP and image URLs use it exclusively.
//!
//! **Invariant:** no connection is made to an address that the policy has not checked. A name is
//! resolved once, all of its addresses are checked, and one of them is connected to; a redirect
//! starts over.
//!
//! Guarantees, tested in `tests/integration/web/`:
//! - no connection to a private, loopback, link-local, metadata or otherwise special address, in
//!   any spelling, by any name or redirect; none through a proxy from the environment
//! - public addresses, and those that the operator permits, are reachable
//! - at most ten redirects, never from https to http, none with a key or a body
//! - a body ends at the cap, counted after decompression; memory is at most twice the cap
//! - a total and an idle timeout; cancelling closes the connection
//! - names that wait for a slow DNS server keep no other tenant's work waiting (`dns`)
//!
//! gzip is requested and decompressed here, with the cap on its output; other encodings are
//! refused. reqwest's own decompression stays off, because enabling the feature would affect the
//! model providers' clients too.

mod address;
mod policy;
mod dns;
mod apart;
mod error;
mod body;
mod client;

pub use address::AddressClass;
pub use client::{WebAnswer, WebBody, WebClient, WebClientBuilder, WebRequest};
pub(crate) use dns::for_tenant;
#[cfg(test)]
pub(crate) use dns::owner;
pub use dns::{GuardedDns, Resolver, SystemResolver, guard_redirects, guarded};
pub use error::WebError;
pub use policy::{Denied, NoSuchEntry, REDIRECTS_MAX, URL_BYTES_MAX, UrlPolicy};
