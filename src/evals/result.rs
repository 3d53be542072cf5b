//! The result of a trial, and what a run was asked to do.
//!
//! Pure.

use std::collections::BTreeMap;

use callboard_actors::chat::Usage;
use serde::{Deserialize, Serialize};

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its grade is a pass.
    Passed,
    /// Its grade is no pass.
    Failed,
    /// The machine, the store or a provider failed, also when it was repeated. Counts as failed.
    Error,
}

impl Status {
    /// The word in reports and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Error => "error",
        }
    }

    /// The status of a stored word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Passed, Self::Failed, Self::Error]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// The result of one trial of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// Id of the task.
    pub task: String,
    /// Number of the trial, from 1.
    pub trial: u32,
    /// How it ended.
    pub status: Status,
    /// 0 to 1.
    pub score: f64,
    /// The grader's reason, or the error, in one line.
    pub reason: String,
    /// The code of an error.
    pub error_code: Option<String>,
    /// Name and model of the judge, if one graded.
    pub judge: Option<String>,
    /// Why the solver's round ended.
    pub stop_reason: String,
    /// The solver's last message, shortened.
    pub answer: String,
    /// Output of the test script, shortened.
    pub output: String,
    /// Tokens of the solver, subagents and summaries included.
    pub tokens: Tokens,
    /// Cost of the solver in US dollars; `None` for a model without a price.
    pub cost_usd: Option<f64>,
    /// Tokens and cost of the judge.
    pub judge_tokens: u64,
    /// See `judge_tokens`.
    pub judge_cost_usd: Option<f64>,
    /// Model calls of the solver's conversation.
    pub model_calls: u32,
    /// Calls of each tool.
    pub tools: BTreeMap<String, u32>,
    /// Tool calls whose result was an error.
    pub tool_errors: u32,
    /// Whether the solver ran a command after its last edit. `None` if it edited no file through
    /// `file_edit`, because a command may be an edit or a check.
    pub self_verified: Option<bool>,
    /// Milliseconds of the solver's round.
    pub duration_ms: u64,
    /// Runs of the trial: 1, or more after errors.
    pub attempts: u32,
    /// Tenant of the conversation.
    pub tenant: String,
    /// Id of the conversation.
    pub conversation: String,
    /// Wall time of the end, in milliseconds since 1970.
    pub finished_ms: u64,
}

/// Tokens of a solver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// Of its conversation, by class.
    #[serde(flatten)]
    pub usage: Usage,
    /// All that the trial was charged: subagents and summaries as well.
    pub total: u64,
}

/// What a run was asked to do. Two runs differ in what differs here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Its name.
    pub id: String,
    /// Wall time of its start, in milliseconds since 1970.
    pub created_ms: u64,
    /// Name of the data set: of its folder or file.
    pub data_set: String,
    /// `model`, `oracle`, `noop` or `cheater`.
    pub solver: String,
    /// Name of the provider.
    pub provider: String,
    /// Name of the model.
    pub model: String,
    /// SHA-256 of the system prompt, in hex; the first digits appear in reports.
    pub system_hash: String,
    /// Parameters of the model, tools and limits, as JSON.
    pub settings: serde_json::Value,
    /// Name and model of the judge.
    pub judge: Option<String>,
    /// Trials of each task.
    pub trials: u32,
    /// Version of Callboard that began the run.
    pub version: String,
    /// The tasks, in the order of the report.
    pub tasks: Vec<RunTask>,
}

impl RunInfo {
    /// Number of trials.
    pub fn trials_planned(&self) -> usize {
        let trials = usize::try_from(self.trials).unwrap_or(usize::MAX);
        self.tasks.len().saturating_mul(trials)
    }

    /// What differs between this run and another request under its name. Only the number of trials
    /// may change.
    pub fn differs_from(&self, other: &Self) -> Option<&'static str> {
        let parts = [
            ("the solver", self.solver == other.solver),
            (
                "the provider or the model",
                (&self.provider, &self.model) == (&other.provider, &other.model),
            ),
            ("the system prompt", self.system_hash == other.system_hash),
            ("the judge", self.judge == other.judge),
            ("a setting", self.settings == other.settings),
            ("the tasks", self.tasks == other.tasks),
        ];
        parts
            .into_iter()
            .find(|(_, same)| !same)
            .map(|(what, _)| what)
    }
}

/// A task of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTask {
    /// Its id.
    pub id: String,
    /// Its difficulty.
    pub difficulty: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its grader.
    pub grader: String,
    /// Its hash, tests included.
    pub hash: String,
}

/// A tool call, as the events of a round report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenCall {
    /// Name of the tool.
    pub name: String,
    /// Whether its result was an error.
    pub is_error: bool,
}

/// Whether a solver ran a command after its last edit; see [`EvalResult::self_verified`].
pub(super) fn self_verified(calls: &[SeenCall]) -> Option<bool> {
    let edit = calls
        .iter()
        .rposition(|call| call.name == "file_edit" && !call.is_error)?;
    Some(calls.iter().skip(edit + 1).any(|call| call.name == "bash"))
}

/// Shortens a text to its start and its end.
pub(super) fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let half = bytes_max / 2;
    let start = (0..=half).rev().find(|at| text.is_char_boundary(*at));
    let end = (text.len() - half..text.len()).find(|at| text.is_char_boundary(*at));
    let (start, end) = (start.unwrap_or(0), end.unwrap_or(text.len()));
    format!(
        "{}\n[{} bytes left out]\n{}",
        text.get(..start).unwrap_or_default(),
        end - start,
        text.get(end..).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_after_the_last_edit_verifies() {
        let calls = |names: &[&str]| -> Vec<SeenCall> {
            names
                .iter()
                .map(|name| SeenCall {
                    name: name.trim_start_matches('!').to_owned(),
                    is_error: name.starts_with('!'),
                })
                .collect()
        };
        for (names, verified) in [
            (&["file_read", "file_edit", "bash"][..], Some(true)),
            (&["bash", "file_edit"][..], Some(false)),
            (
                &["file_edit", "bash", "file_edit", "file_read"][..],
                Some(false),
            ),
            (&["file_edit", "bash", "!file_edit"][..], Some(true)),
            (&["bash", "bash"][..], None),
            (&[][..], None),
        ] {
            assert_eq!(self_verified(&calls(names)), verified, "{names:?}");
        }
    }

    #[test]
    fn a_long_text_keeps_its_start_and_its_end() {
        assert_eq!(shortened("short", 10), "short");
        let cut = shortened(&"äbc".repeat(100), 21);
        assert!(
            cut.starts_with("äbcäbc") && cut.ends_with("bc") && cut.len() < 60,
            "{cut}"
        );
    }
}
