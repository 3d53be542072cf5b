//! Files of the workspace: paths that cannot leave it, and what may lie in it. Imports only the
//! policy.
//!
//! # Layout
//! - `jail` has [`Root`], a folder that paths cannot leave; `normalize` computes the canonical
//!   spelling of a path from its text.
//! - `shared_rules` protects in one root what sessions over others name.
//! - `second_names` finds hard links to files that hold keys.
//! - `atomic` writes files, `walk` lists them.
//! - `git` knows which files of a repository make git run programs.
//! - `quota` and `space` bound a workspace, `disk` estimates what one command takes.
//! - `guard` finds protected files before a command and moves aside those that it left.
//!
//! `guard` imports `jail`, `git`, `quota` and `space`; nothing here imports `guard`.

mod atomic;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod disk;
mod git;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
mod guard;
mod jail;
mod normalize;
mod quota;
mod second_names;
mod shared_rules;
mod space;
mod walk;

pub use atomic::Slot;
pub(crate) use atomic::is_temporary;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(crate) use guard::why_no_notices;
pub use jail::{Opened, PathError, Root};
pub(crate) use jail::{settled, shown};
pub(crate) use normalize::folder_below;
pub use quota::{WorkspaceQuota, WorkspaceUsage};
#[cfg(any(test, feature = "cli"))]
pub(crate) use shared_rules::NamedFiles;
pub(crate) use walk::Walk;
#[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
pub(super) use {
    disk::{Disk, Free, free},
    guard::{
        Added, Found, Guard, Guarded, Identity, Made, Note, Notice, Orphaned, Searching,
        WatchdogLock, identity, names_of,
    },
    quota::Excess,
};
