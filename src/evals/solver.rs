//! Built-in solvers, which need no model: the known-good one, one that does nothing, and one that
//! edits the tests. They are model providers, so that their trials are conversations like any other.

use std::{collections::HashMap, sync::Arc};

use callboard_actors::{
    chat::{ContentBlock, ModelRequest, ProviderStop, RawJson, ToolUseBlock, Usage},
    ports::{
        BoxFuture, Capabilities, Completion, LlmProvider, ModelEvent, ModelStream, ProviderError,
    },
};
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::task::Task;

/// Who solves the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Solver {
    /// The model of the host.
    #[default]
    Model,
    /// Runs `solution/solve.sh`, or gives the expected answer: every task must pass.
    Oracle,
    /// Does nothing: no task may pass.
    Noop,
    /// Edits the tests instead of doing the task: no task may pass.
    Cheater,
}

impl Solver {
    /// The word for the solver on the command line and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Oracle => "oracle",
            Self::Noop => "noop",
            Self::Cheater => "cheater",
        }
    }
}

/// Where the solution of a task lies while the oracle works.
pub(super) const SOLUTION: &str = ".callboard-solution";

/// Time of the oracle's command, in milliseconds: the longest that `bash` accepts.
const COMMAND_MS: u32 = 600_000;

/// The provider of a built-in solver.
pub(super) struct Builtin {
    solver: Solver,
    /// Answers of the oracle, by prompt.
    answers: HashMap<String, String>,
}

impl Builtin {
    /// The provider; `None` for the model of the host.
    pub(super) fn of(solver: Solver, tasks: &[Task]) -> Option<Arc<dyn LlmProvider>> {
        if solver == Solver::Model {
            return None;
        }
        let answers = tasks
            .iter()
            .filter_map(|task| Some((task.prompt.clone(), task.answer.clone()?)));
        Some(Arc::new(Self {
            solver,
            answers: answers.collect(),
        }))
    }

    /// The first message of a round: a command, or an answer.
    fn first(&self, prompt: &str, commands: bool) -> Result<String, String> {
        let command = |text: String| if commands { Ok(text) } else { Err(text) };
        match self.solver {
            Solver::Model | Solver::Noop => Err("I did nothing.".to_owned()),
            Solver::Oracle => match self.answers.get(prompt) {
                Some(answer) => Err(answer.clone()),
                None => command(format!(
                    "bash {SOLUTION}/solve.sh; status=$?; rm -rf {SOLUTION}; exit $status"
                )),
            },
            Solver::Cheater => command(include_str!("cheat.sh").to_owned()),
        }
    }
}

impl LlmProvider for Builtin {
    fn name(&self) -> &str {
        self.solver.as_str()
    }

    fn capabilities(&self, _model: &str) -> Capabilities {
        Capabilities {
            context_window: 1_000_000,
            output_max: 64_000,
            tools: true,
            output_schema: false,
            counts_tokens: false,
            images: false,
            documents: false,
            request_bytes_max: None,
            thinking: false,
        }
    }

    fn stream(
        &self,
        request: ModelRequest,
        _cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let commands = request
            .tools
            .iter()
            .any(|tool| tool.name.as_str() == "bash");
        let last = request.messages.last();
        let has_result = last.is_some_and(|message| {
            message
                .blocks()
                .iter()
                .any(|block| matches!(block, ContentBlock::ToolResult(_)))
        });
        let prompt = last.map(|message| message.text()).unwrap_or_default();
        let said = if has_result {
            Err("Done.".to_owned())
        } else {
            self.first(&prompt, commands)
        };
        let (block, stop) = match said {
            Err(text) => (ContentBlock::text(text), ProviderStop::EndTurn),
            Ok(command) => {
                let input = serde_json::json!({ "command": command, "timeout_ms": COMMAND_MS });
                let input = RawJson::of(&input).unwrap_or_else(|_| RawJson::empty_object());
                let call = ToolUseBlock {
                    id: "call-1".into(),
                    name: "bash".into(),
                    input,
                };
                (ContentBlock::ToolUse(call), ProviderStop::ToolUse)
            }
        };
        let mut events = Vec::new();
        events.extend(
            block
                .as_text()
                .map(|text| ModelEvent::Text(text.to_owned())),
        );
        events.push(ModelEvent::Block(block));
        events.push(ModelEvent::Completed(Completion {
            stop,
            raw_stop: None,
            usage: Some(Usage::default()),
            raw_usage: None,
        }));
        Box::pin(async { Ok(stream::iter([Ok(events)]).boxed()) })
    }
}
