//! Load tests: offers turns to a host at a fixed rate or as fast as it answers, and reports the
//! results. The `callboard load` command.
//!
//! **Invariant:** with a rate, the offered load does not depend on how it is served. Latency then
//! counts from the time a turn was due, and a turn without an answer counts with all the time it
//! was waited for, so a host that stalls cannot hide it.
//!
//! # Layout
//! `plan` what is offered · `turn` one turn and what was observed · `model`, `tool` the scripted
//! model and tool of an in-process host · `target` the host under test · `remote` a host over HTTP
//! · `tally` counts and latencies · `drive` the loops · `process` CPU and memory of a process ·
//! `fan_out` subagents instead of turns · `shapes` the kinds of runs · `report` the figures, `svg`
//! their plot.

mod plan;
mod turn;
mod model;
mod tool;
mod target;
mod remote;
mod tally;
mod process;
mod drive;
mod fan_out;
mod shapes;
mod report;
mod svg;

pub(crate) use drive::Progress;
pub(crate) use plan::{Plan, Shape};
pub(crate) use remote::Remote;
pub(crate) use report::Report;
pub(crate) use shapes::run;
pub(crate) use svg::draw;
pub(crate) use target::{Target, host};
pub(crate) use tool::PANIC as TOOL_PANIC;

/// Why a load run failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The host could not be built.
    #[error(transparent)]
    Host(#[from] crate::BuildError),
    /// The HTTP client could not be built.
    #[error("the HTTP client could not be built: {0}")]
    Client(#[from] reqwest::Error),
    /// TLS could not be set up.
    #[error("the HTTP client could not be built: {0}")]
    Tls(#[from] crate::tls::TlsError),
    /// The histogram could not be created.
    #[error("latencies cannot be kept: {0}")]
    Latencies(#[from] hdrhistogram::CreationError),
}
