//! Which files of a project a person agreed to, by path and by content.
//!
//! A folder that was cloned or unpacked is written by strangers. Its files count after a person agreed to them; the agreement holds for
//! one path and one content, so a file that changes, or that is copied elsewhere, has to be agreed to again.
//!
//! # Layout
//! `content` reads a file or a tree of files once and hashes what it read · `store` keeps agreements in the user's data folder.
//!
//! Promises, tested in `tests/integration/trust.rs`:
//! - `callboard.toml` and `AGENTS.md` are judged by the bytes that are used, never by a second read; skills again behind each read
//! - reading a stranger's file never blocks: pipes, devices and folders are refused, sizes are bounded
//! - a store that cannot be read trusts nothing

mod content;
mod store;

pub use content::{Content, TREE_BYTES_MAX, TREE_FILES_MAX, Tree, Unread, file, tree};
pub use store::{Place, Standing, TrustEntry, TrustError, TrustStore};
