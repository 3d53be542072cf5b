//! Records which files of a project a person trusts, by path and content.
//!
//! Strangers may have written a folder that was cloned or unpacked, so its configuration,
//! instructions and skills take effect only after a person agrees to them. An agreement covers one
//! path with one content: a file that changes or is copied elsewhere needs another one.
//!
//! # Layout
//! `content` reads a file or a tree of files once and hashes it · `store` keeps the agreements in
//! the user's data folder.
//!
//! Promises, tested in `tests/integration/trust.rs`:
//! - `callboard.toml` and `AGENTS.md` are checked by the very bytes that are used, never by a
//!   second read; skills are checked again after each read
//! - reading an untrusted file never blocks: pipes, devices and folders are refused, sizes are
//!   bounded
//! - a store that cannot be read trusts nothing

mod content;
mod store;

pub use content::{Content, TREE_BYTES_MAX, TREE_FILES_MAX, Tree, Unread, file, tree};
pub use store::{Place, Standing, TrustEntry, TrustError, TrustStore};
