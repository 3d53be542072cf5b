//! HTTP/1.1: one exchange after another on a connection. The task that waits for an answer drives
//! the connection, so no task stands between socket and reader.
//!
//! `head` and `framing` parse an answer, pure · `connection` drives one exchange.

mod head;
mod framing;
mod connection;

pub(super) use self::connection::{Broken, Connection, Free};
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::providers) use self::framing::fuzz;
pub(super) use self::head::HEADERS_MAX;
