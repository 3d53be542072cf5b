//! Every bound of evaluations, with its reason.
//!
//! Pure.

use std::time::Duration;

/// Tasks of one data set: more would not fit a report that a person reads.
pub const TASKS_MAX: usize = 2_000;

/// Trials of one task. The width of an interval falls with the root of the trials, so more are
/// spent better on further tasks.
pub const TRIALS_MAX: u32 = 200;

/// Trials of one run, which a report holds in memory.
pub const RUN_TRIALS_MAX: usize = 20_000;

/// Trials at once: each has a sandbox and a folder.
pub const JOBS_MAX: u32 = 64;

/// Bytes of an instruction or a prompt; a prompt of the kernel has the same bound.
pub const PROMPT_BYTES_MAX: usize = callboard_actors::limits::PROMPT_BYTES_MAX;

/// Bytes of `task.toml`.
pub const SETTINGS_BYTES_MAX: u64 = 256 * 1024;

/// Bytes of a file of JSONL tasks.
pub const JSONL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Files in one folder of a task (`environment/`, `tests/`, `solution/`).
pub const FOLDER_FILES_MAX: usize = 5_000;

/// Bytes of all files in one folder of a task. A copy is made for every trial.
pub const FOLDER_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Folders within folders. A deeper tree is a mistake or a trap for the copy.
pub const FOLDER_DEPTH_MAX: usize = 64;

/// Bytes of a reward file.
pub const REWARD_BYTES_MAX: u64 = 4 * 1024;

/// Bytes of a script's output that are kept with its trial.
pub const OUTPUT_BYTES_MAX: usize = 4 * 1024;

/// Bytes of an answer that are kept with its trial; the conversation has all of it.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// Bytes of a pattern, an expected answer or a rubric.
pub const GRADER_BYTES_MAX: usize = 64 * 1024;

/// Longest time of a solver or a test script: a day.
pub const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// Time of a solver or a test script whose task names none; as in Harbor.
pub const TIME_DEFAULT: Duration = Duration::from_secs(600);

/// Repetitions of a trial that failed because of the machine, the store or the provider.
pub const RETRIES: u32 = 2;

/// Bytes of the id of a task: it is part of the id of a tenant.
pub const TASK_ID_BYTES_MAX: usize = 56;

/// Bytes of the name of a run, likewise.
pub const RUN_ID_BYTES_MAX: usize = 40;
