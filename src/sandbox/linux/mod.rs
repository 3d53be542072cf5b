//! The boundaries of the kernel, and what only they need. Imports `exec`, `fs` and `proxy`.
//!
//! # Layout
//! - `bubblewrap` has [`Linux`], `landlock` has [`Landlock`]. Both check the workspace's quota while
//!   a command runs (`quota_check`).
//! - `begin` lets a command begin beside others that run in its workspace.
//! - `helper` is this program, started again to confine itself; `pdf` uses it to read PDFs.
//! - `filter` builds the seccomp filters of both boundaries and of the helper.
//! - `system_paths` lists the paths of the system that commands read. Plain data.
//!
//! The boundaries import `helper`, which imports `filter` and `system_paths`.

mod begin;
mod bubblewrap;
mod filter;
mod helper;
mod landlock;
#[cfg(feature = "pdf")]
mod pdf;
mod quota_check;
mod system_paths;

pub use bubblewrap::Linux;
pub(super) use helper::exit_if_asked;
pub use landlock::Landlock;
#[cfg(feature = "pdf")]
pub use pdf::PdfText;
