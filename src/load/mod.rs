//! Load: turns offered to a host at a rate or as fast as it answers, and what came of them. The `callboard load` command.
//!
//! **Invariant:** what is offered does not depend on how it is served when a rate is given. Latency then counts from the moment a turn was
//! due, and a turn that never came back counts with all the time it was waited for: a host that stalls cannot hide it.
//!
//! # Layout
//! `plan` what is offered · `turn` one turn and what was seen of it · `model`, `tool` the scripted world of an in-process host · `target`
//! who is measured · `remote` a host over HTTP · `tally` counts and latencies · `drive` the loops · `process` what a process costs ·
//! `fan_out` subagents in place of turns · `shapes` the runs · `report` the figures, `svg` drawn.

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

/// Why a load run cannot be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The host could not be built.
    #[error(transparent)]
    Host(#[from] crate::BuildError),
    /// The HTTP client could not be built.
    #[error("the HTTP client could not be built: {0}")]
    Client(#[from] reqwest::Error),
    /// No histogram of these bounds.
    #[error("latencies cannot be kept: {0}")]
    Latencies(#[from] hdrhistogram::CreationError),
}
