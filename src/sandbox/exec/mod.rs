//! Processes: starting, watching and ending them. Imports `fs`, where the watchdog sweeps and a disk
//! is watched, and the policy.
//!
//! # Layout
//! From the top down; each imports only what follows:
//! - [`Spawner`] is the handle, `piped` its processes with open streams, `thread` its one thread.
//! - `job` and `piped_job` are the processes that the thread manages, `parked` starts a job in its
//!   control group (`groups`).
//! - `termination` ends jobs with shared scans. `processes`, `machine` and `hidden_memory` read
//!   `/proc`, `capture` and `progress` take a job's output.
//! - `watchdog` sweeps after a host that was killed.
//! - `start` starts each process, in a session keyring of its own (`keys`). `program` is this
//!   program, started again as a helper.
//! - `launch` is what callers order. Plain data.
//!
//! Beside these stand what the sandboxes share: `call` has the steps around a command, `shell` the
//! script around it, and `words` what that script reports.

pub(super) mod call;
mod capture;
pub(super) mod groups;
mod hidden_memory;
mod job;
pub(super) mod keys;
mod launch;
mod machine;
mod parked;
mod piped;
mod piped_job;
pub(super) mod processes;
mod program;
mod progress;
pub(super) mod shell;
mod spawner;
mod start;
mod termination;
mod thread;
pub(super) mod watchdog;
pub(super) mod words;

pub use launch::PipedLaunch;
pub(super) use launch::{CARRIED, Carried, Kind, Launch, Namespace, Shown};
pub use parked::ControlGroups;
pub use piped::{Piped, PipedProcess};
pub(super) use program::{ASK, ASKED, Program};
pub use spawner::Spawner;
pub(super) use start::{UNSHARE, become_command, start_helper};
pub(super) use watchdog::Registration;
