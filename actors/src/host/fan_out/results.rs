//! The results of a fan-out: the end of each task, and the summary. Plain data.

use std::{sync::Arc, time::Duration};

use crate::{
    chat::Usage,
    host::SendError,
    ids::ConversationId,
    stream::{Failure, RoundEnd},
};

/// Why a task has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", failure.message)]
pub struct TaskFailure {
    /// A stable code and one line of text.
    pub failure: Failure,
    /// The end of its round, with the text until then; `None` if the task never began.
    pub end: Option<Arc<RoundEnd>>,
}

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEnd {
    /// The task's position in the list, from 0.
    pub index: usize,
    /// The subagent's conversation.
    pub conversation: ConversationId,
    /// The end of its round, or why there is no result.
    pub outcome: Result<Arc<RoundEnd>, TaskFailure>,
    /// Time from the task's start to its model's first content; `None` if an earlier process
    /// started the task or no content arrived.
    pub first_text: Option<Duration>,
    /// Time from the task's start to its end; zero for a task that never began.
    pub took: Duration,
    /// Whether an earlier fan-out of this name started the task, and possibly ended it.
    pub attached: bool,
}

impl TaskEnd {
    /// Converts the end of a round into the end of its task. A round that was cut short (by its
    /// budget, its deadline or an interruption) is a failure that keeps the partial text.
    pub(super) fn from_round(end: Arc<RoundEnd>) -> Result<Arc<RoundEnd>, TaskFailure> {
        if end.stop_reason.is_done() {
            return Ok(end);
        }
        let cut = || {
            let code = end.stop_reason.code();
            Failure {
                code: code.to_owned(),
                message: format!("the subagent did not come to an end: {code}"),
                retry_after_ms: None,
            }
        };
        Err(TaskFailure {
            failure: end.error.clone().unwrap_or_else(cut),
            end: Some(end),
        })
    }

    /// Whether the task succeeded.
    pub fn is_done(&self) -> bool {
        self.outcome.is_ok()
    }

    /// The end of the round; `None` if the task never began.
    pub fn end(&self) -> Option<&RoundEnd> {
        match &self.outcome {
            Ok(end) => Some(end),
            Err(failure) => failure.end.as_deref(),
        }
    }

    /// The text of the last message; empty if there is none.
    pub fn text(&self) -> &str {
        self.end().map_or("", |end| &end.text)
    }

    /// The tokens of the task's model calls.
    pub(crate) fn usage(&self) -> Usage {
        self.end().map(|end| end.usage).unwrap_or_default()
    }
}

/// The results of a fan-out that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FanOutSummary {
    /// The fan-out's name, which [`super::FanOut::name`] takes.
    pub name: String,
    /// The results, in the order of the tasks.
    pub tasks: Vec<Arc<TaskEnd>>,
    /// The tokens of all tasks.
    pub usage: Usage,
    /// Time from the fan-out's start to the end of its last task.
    pub wall: Duration,
    /// The use of the provider's prompt cache.
    pub cache: CacheEffect,
}

/// How the first task and the other tasks used the provider's prompt cache. The comparison shows
/// the effect of [`super::FanOut::warm_first`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheEffect {
    /// Whether the first task started alone.
    pub warmed: bool,
    /// The cache use of the first task.
    pub first: CacheShare,
    /// The cache use of all other tasks together.
    pub rest: CacheShare,
}

/// The cache use of one or more tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheShare {
    /// All input tokens, cached or not.
    pub input_tokens: u64,
    /// The input tokens that were read from the provider's cache.
    pub cache_read_tokens: u64,
    /// The median time from a task's start to its model's first content; `None` if no task's time
    /// is known.
    pub first_text: Option<Duration>,
}

impl CacheShare {
    fn from_tasks<'a>(tasks: impl Iterator<Item = &'a TaskEnd>) -> Self {
        let mut share = Self::default();
        let mut times = Vec::new();
        for task in tasks {
            let usage = task.usage();
            share.input_tokens = share.input_tokens.saturating_add(usage.input());
            share.cache_read_tokens = share.cache_read_tokens.saturating_add(usage.cache_read);
            times.extend(task.first_text);
        }
        times.sort_unstable();
        Self {
            first_text: times.get(times.len() / 2).copied(),
            ..share
        }
    }
}

impl FanOutSummary {
    /// Builds the summary. `ends` is in the order of the tasks; `None` is a result that was lost
    /// when the host stopped.
    pub(super) fn from_ends(
        name: String,
        ends: Vec<Option<Arc<TaskEnd>>>,
        wall: Duration,
        warmed: bool,
    ) -> Self {
        let tasks: Vec<Arc<TaskEnd>> = ends.into_iter().flatten().collect();
        let usage = tasks
            .iter()
            .fold(Usage::default(), |usage, task| usage.plus(&task.usage()));
        let (first, rest) = tasks.split_at(tasks.len().min(1));
        let share =
            |tasks: &[Arc<TaskEnd>]| CacheShare::from_tasks(tasks.iter().map(|task| &**task));
        let cache = CacheEffect {
            warmed,
            first: share(first),
            rest: share(rest),
        };
        Self {
            name,
            tasks,
            usage,
            wall,
            cache,
        }
    }

    /// The number of tasks that succeeded.
    pub fn done(&self) -> usize {
        self.tasks.iter().filter(|task| task.is_done()).count()
    }

    /// The number of tasks that failed or never began.
    pub fn failed(&self) -> usize {
        self.tasks.len() - self.done()
    }
}

pub(super) fn failure(code: &str, message: impl Into<String>) -> Failure {
    Failure {
        code: code.to_owned(),
        message: message.into(),
        retry_after_ms: None,
    }
}

/// Converts the refusal of a task into its failure.
pub(super) fn refused(error: &SendError) -> Failure {
    failure(error.code(), error.to_string())
}

pub(super) fn draining() -> Failure {
    failure("draining", "the host is shutting down")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{RoundStatus, StopReason};

    fn end(stop_reason: StopReason, usage: Usage) -> Arc<RoundEnd> {
        let status = RoundStatus::Completed;
        Arc::new(RoundEnd {
            status,
            stop_reason,
            text: "so far".into(),
            full_text: String::new(),
            usage,
            latency_ms: 1,
            error: None,
        })
    }

    fn task(index: usize, usage: Usage, first_ms: u64) -> Option<Arc<TaskEnd>> {
        let first_text = Some(Duration::from_millis(first_ms));
        let conversation = ConversationId::new("c").unwrap();
        let outcome = TaskEnd::from_round(end(StopReason::EndTurn, usage));
        Some(Arc::new(TaskEnd {
            index,
            conversation,
            outcome,
            first_text,
            took: Duration::ZERO,
            attached: false,
        }))
    }

    #[test]
    fn a_round_that_was_cut_is_a_failure_that_keeps_its_text() {
        let cut = TaskEnd::from_round(end(StopReason::Budget, Usage::default())).unwrap_err();

        assert_eq!(
            (cut.failure.code.as_str(), cut.end.unwrap().text.as_str()),
            ("budget", "so far")
        );
        assert!(TaskEnd::from_round(end(StopReason::MaxTokens, Usage::default())).is_ok());
    }

    #[test]
    fn the_cache_effect_separates_the_first_task_from_the_rest() {
        let wrote = Usage {
            cache_write: 100,
            output: 5,
            ..Usage::default()
        };
        let read = Usage {
            cache_read: 100,
            input_uncached: 10,
            output: 5,
            ..Usage::default()
        };

        let summary = FanOutSummary::from_ends(
            "n".into(),
            vec![task(0, wrote, 90), task(1, read, 10), task(2, read, 30)],
            Duration::ZERO,
            true,
        );

        let share = |input_tokens, cache_read_tokens, ms| CacheShare {
            input_tokens,
            cache_read_tokens,
            first_text: Some(Duration::from_millis(ms)),
        };
        assert_eq!(
            summary.cache,
            CacheEffect {
                warmed: true,
                first: share(100, 0, 90),
                rest: share(220, 200, 30)
            }
        );
        assert_eq!(
            (summary.usage.output, summary.done(), summary.failed()),
            (15, 3, 0)
        );
    }
}
