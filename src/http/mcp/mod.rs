//! The host as an MCP server: `/mcp` of the HTTP host, and what `pipes` serves to `callboard mcp serve`.
//!
//! # Layout
//! | Module | Holds |
//! |---|---|
//! | `tools` | the tools that a client is offered, and their arguments |
//! | `server` | the protocol: which method leads where |
//! | `rounds`, `approvals` | a round that is followed: progress, questions to the user, its end |
//! | `tasks` | rounds as tasks of the protocol |
//! | `conversations`, `fan_outs` | lists, messages, transcripts; many tasks at once |
//! | `api`, `events` | requests of the host's own HTTP API, and the events of a round |
//! | `route`, `patience`, `unread` | the route `/mcp`, its answers that take long, and those that no client reads |
//!
//! # Promises
//! - A call is one or more requests of the HTTP API with the client's own key: every check, rate,
//!   quota and bound of that API applies, and another tenant's ids are unknown ids.
//! - A request is served from the request alone: no session, nothing is kept between two.
//! - An approval is given by the client's user where the client can ask, else by `answer_approval`.

mod api;
mod approvals;
mod conversations;
mod events;
mod fan_outs;
mod patience;
mod rounds;
pub(super) mod route;
mod server;
mod tasks;
mod tools;
mod unread;

#[cfg(feature = "cli")]
pub(crate) use api::Admit;
#[cfg(feature = "cli")]
pub(super) use api::Api;
#[cfg(feature = "cli")]
pub(super) use server::Server;
pub(super) use tools::Offered;
