//! What a task is: an instruction, the folder that a solver gets, and how its work is graded.
//!
//! Pure.

pub mod jsonl;
pub mod settings;

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    bounds::{GRADER_BYTES_MAX, PROMPT_BYTES_MAX, TASK_ID_BYTES_MAX},
    pattern::pattern as compile,
};

/// One task of a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Name within its data set: the name of its folder, or `id` of its line.
    pub id: String,
    /// What the solver is asked to do.
    pub prompt: String,
    /// Difficulty as its author names it, such as `easy`.
    pub difficulty: Option<String>,
    /// Words by which its author groups tasks.
    pub tags: Vec<String>,
    /// Longest time of the solver.
    pub solver_timeout: Duration,
    /// Longest time of the test script.
    pub tests_timeout: Duration,
    /// What the workspace holds at the start of a trial.
    pub start: Start,
    /// How the work is graded.
    pub grader: Grader,
    /// The answer that the known-good solver gives; `None` for a task with a `solution/`.
    pub answer: Option<String>,
    /// SHA-256 of everything that decides about the result, in hex. Trials of one task are
    /// comparable only if their hashes are equal.
    pub hash: String,
}

/// What a workspace holds at the start of a trial.
#[derive(Debug, Clone, PartialEq)]
pub enum Start {
    /// A copy of a folder of a task in Harbor's layout.
    Folder {
        /// The task's folder. Its `environment/` is copied, if there is one.
        task: PathBuf,
    },
    /// Files by their paths.
    Files(Vec<(String, String)>),
}

impl Task {
    /// The task's folder, if it has one.
    pub fn folder(&self) -> Option<&PathBuf> {
        match &self.start {
            Start::Folder { task } => Some(task),
            Start::Files(_) => None,
        }
    }
}

/// How the work of a solver is graded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Grader {
    /// The answer equals a text, apart from white space at both ends.
    Exact {
        /// The text.
        expected: String,
        /// Whether upper and lower case differ.
        #[serde(default = "yes")]
        case: bool,
    },
    /// The answer contains a text.
    Contains {
        /// The text.
        expected: String,
        /// Whether upper and lower case differ.
        #[serde(default = "yes")]
        case: bool,
    },
    /// A regular expression matches somewhere in the answer.
    Regex {
        /// The expression.
        pattern: String,
    },
    /// The answer is JSON, or holds a fenced block of it, and has a value at a path.
    Json {
        /// A JSON pointer (RFC 6901), such as `/cities/0/name`; empty means the whole value.
        #[serde(default)]
        path: String,
        /// The value. Numbers are equal if their values are.
        expected: serde_json::Value,
    },
    /// A script over the workspace, run in the sandbox after the solver ended: `tests/test.sh` of
    /// the task's folder.
    Script,
    /// A model judges the answer.
    Model {
        /// What a good answer is.
        rubric: String,
        /// The score from which on the trial passes.
        #[serde(default = "full")]
        pass_at: f64,
    },
}

fn yes() -> bool {
    true
}

fn full() -> f64 {
    1.0
}

impl Grader {
    /// The word for the grader in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exact { .. } => "exact",
            Self::Contains { .. } => "contains",
            Self::Regex { .. } => "regex",
            Self::Json { .. } => "json",
            Self::Script => "script",
            Self::Model { .. } => "model",
        }
    }

    /// Checks what its type cannot hold.
    ///
    /// # Errors
    /// The key, and what is wrong with its value.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let long = |key, text: &str| match text.len() {
            0 => Err((key, "it is empty; write what is expected".to_owned())),
            bytes if bytes > GRADER_BYTES_MAX => Err((
                key,
                format!("it has {bytes} bytes; {GRADER_BYTES_MAX} are allowed"),
            )),
            _ => Ok(()),
        };
        match self {
            Self::Exact { expected, .. } | Self::Contains { expected, .. } => {
                long("expected", expected)
            }
            Self::Regex { pattern } => {
                long("grader.pattern", pattern)?;
                compile(pattern)
                    .map(drop)
                    .map_err(|why| ("grader.pattern", why))
            }
            Self::Json { path, .. } if !path.is_empty() && !path.starts_with('/') => Err((
                "grader.path",
                format!("`{path}` is no JSON pointer; write it as `/name/0`"),
            )),
            Self::Json { .. } | Self::Script => Ok(()),
            Self::Model { rubric, pass_at } => {
                long("grader.rubric", rubric)?;
                if (0.0..=1.0).contains(pass_at) && *pass_at > 0.0 {
                    Ok(())
                } else {
                    Err((
                        "grader.pass_at",
                        "it must be more than 0 and at most 1".to_owned(),
                    ))
                }
            }
        }
    }
}

/// What is wrong with a task: one line that names file, key and remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {}{problem}", key.as_ref().map(|key| format!("`{key}`: ")).unwrap_or_default())]
pub struct TaskError {
    /// The file, with a line where there is one.
    pub place: String,
    /// The key; `None` for a mistake of the whole file.
    pub key: Option<String>,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl TaskError {
    /// A mistake of a whole file or folder.
    pub fn file(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            place: one_line(&place.into()),
            key: None,
            problem: one_line(&problem.into()),
        }
    }

    /// A mistake at a key.
    pub fn key(
        place: impl Into<String>,
        key: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self {
            key: Some(one_line(&key.into())),
            ..Self::file(place, problem)
        }
    }
}

/// Characters of a part of an error.
const ERROR_CHARS_MAX: usize = 500;

/// A text without line ends and invisible characters: it can quote what a stranger wrote.
fn one_line(text: &str) -> String {
    crate::visible::visible_line(text, ERROR_CHARS_MAX)
}

/// A task is read or refused in one line that begins with its place.
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(clippy::panic))]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let errors = [
        settings::parse("place", &text).err(),
        jsonl::parse("place", &text).err(),
    ];
    for error in errors.into_iter().flatten() {
        let line = error.to_string();
        if line.contains('\n') || !line.starts_with("place") {
            panic!("{line:?}");
        }
    }
}

/// Checks the id of a task.
///
/// # Errors
/// What is wrong with it.
pub fn check_id(id: &str) -> Result<(), String> {
    let fits = !id.is_empty()
        && id.len() <= TASK_ID_BYTES_MAX
        && !id.starts_with('.')
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if fits {
        Ok(())
    } else {
        Err(format!(
            "{:?} is no id of a task; use 1-{TASK_ID_BYTES_MAX} characters of A-Z a-z 0-9 . _ - without a leading dot",
            id.chars().take(60).collect::<String>()
        ))
    }
}

/// Checks a prompt.
pub(super) fn check_prompt(prompt: &str) -> Result<(), String> {
    if prompt.trim().is_empty() {
        Err("it is empty; write what the solver shall do".to_owned())
    } else if prompt.len() > PROMPT_BYTES_MAX {
        Err(format!(
            "it has {} bytes; {PROMPT_BYTES_MAX} are allowed",
            prompt.len()
        ))
    } else {
        Ok(())
    }
}
