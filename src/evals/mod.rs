//! Evaluations: how often a solver does what a task asks, how sure that is, and whether a change
//! made it better.
//!
//! A **task** is a folder in Harbor's layout or a line of a JSONL file. A **trial** is one attempt at
//! a task: a conversation of a [`Host`](crate::Host) under a tenant of its own, over a fresh copy of
//! the task's files, and then a grade. A **run** is a number of trials of every task; its results are
//! in a SQLite file, and a run that was killed continues with the trials that are missing.
//!
//! # Layout
//! - Pure: `task` (what a task is, and its parsers) · `grading` (the rules of grades) ·
//!   [`statistics`] · `result` · `figures` and `comparison` (the models of reports) · [`report`]
//!   (text and HTML) · [`bounds`].
//! - Files: `load` (data sets) · `tree` (copies) · `store` (SQLite).
//! - Processes and hosts: `solver` (built-in solvers) · `options` · `verify` (test scripts in the sandbox) ·
//!   `trial` · `runner` ([`EvalRunner`]).

pub mod bounds;
mod pattern;
pub mod task;
mod grading;
pub mod statistics;
mod result;
mod figures;
mod comparison;
pub mod report;
mod load;
mod tree;
mod store;
mod solver;
mod options;
mod verify;
mod trial;
mod runner;

pub use comparison::{Comparison, compare};
pub use figures::{RunFigures, TaskFigures, Total, figures};
pub use load::{DataSet, data_set};
pub use options::{EvalOptions, Judge};
pub use result::{EvalResult, RunInfo, RunTask, Status, Tokens};
pub use runner::{EvalError, EvalRunner, RunEnd};
pub use solver::Solver;
pub use store::{EvalStore, EvalStoreError, RunRow};
