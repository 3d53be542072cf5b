//! Processes: how they start, run and end. Imports `fs` (the watchdog sweeps a workspace, a job
//! watches a disk) and the policy.
//!
//! # Layout
//! Each line imports only lines below it:
//! - `piped` adds processes with open streams to the handle, [`Spawner`].
//! - [`Spawner`] is the handle to `thread`, its one thread.
//! - `checks` are the checks of limits that the thread makes, `turns` which commands give way, `crowds`
//!   which stand still.
//! - `job` and `piped_job` are the processes that the thread manages. `parked` starts a job in its
//!   control group (`groups`).
//! - `search` finds the command that keeps something of which nothing is left, `tables` reads the
//!   open files of a command in small steps.
//! - `termination` ends jobs with shared scans. `processes`, `machine`, `hidden_memory`, `scarce`, `tcp`, `netlink`
//!   and `mounts` read `/proc`; `capture` and `progress` keep a job's output.
//! - `watchdog` sweeps after a host that was killed.
//! - `call` has the steps that every sandbox takes around a command, `shell` the script around it,
//!   and `words` what the script reports.
//! - `start` starts each process, in a session keyring of its own (`keys`) and with device nodes that it
//!   cannot change (`devices`). `program` is this program, started again as a helper.
//! - `launch` is what callers order. Plain data.

pub(super) mod call;
mod capture;
mod checks;
mod crowds;
mod devices;
pub(super) mod groups;
mod hidden_memory;
mod job;
pub(super) mod keys;
mod launch;
mod machine;
mod mounts;
mod netlink;
mod parked;
mod piped;
mod piped_job;
pub(super) mod processes;
mod program;
mod progress;
mod scarce;
mod search;
pub(super) mod shell;
mod spawner;
mod start;
mod tables;
mod tcp;
mod termination;
mod thread;
mod turns;
pub(super) mod watchdog;
pub(super) mod words;

pub use launch::PipedLaunch;
pub(super) use launch::{AtGate, BEGIN, CARRIED, Carried, Kind, Launch, Namespace, Shown};
pub use parked::ControlGroups;
pub use piped::{Piped, PipedProcess};
pub(super) use program::{ASK, ASKED, Program};
pub use spawner::Spawner;
pub(super) use start::{UNSHARE, become_command, start_helper};
pub(super) use watchdog::Registration;
