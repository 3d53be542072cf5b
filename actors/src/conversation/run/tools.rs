//! Tool calls: the round's executor, its environment, and the runs it gets.

use std::sync::Arc;

use crate::{
    conversation::{
        ConversationMsg,
        round::{Input, StartTool, volatile::Work},
        run::{Flow, Live, progress::progress_of},
    },
    ids::{CallKey, RoundId, Seq, WorkId},
    metrics_collector::Figure,
    stream::EventKind,
    subagent::{CREATE_SUBAGENT, Siblings},
    tool_executor::{
        Again, Run, RunResult, ToolEnvironment, ToolExecutorArgs, ToolExecutorRef,
        ToolInvocationRequest, ToolReport,
    },
};

impl Live {
    /// The environment in which this conversation's tools run.
    fn environment(&self) -> ToolEnvironment {
        let resources = self.setup.resources.clone();
        let tools = self.tenant.tools().clone();
        let collector = self.ports.collector.clone();
        // A subagent's artifacts and runs belong to its parent, so that the parent can read them.
        let owner = self
            .durable
            .parent(&self.scope)
            .unwrap_or_else(|| self.scope.clone());
        ToolEnvironment::new(resources, tools, owner, collector)
    }

    /// The executor and the run for one attempt; starts the executor if the round has none.
    pub(super) fn tool_run(&mut self, start: StartTool) -> Option<(ToolExecutorRef, Run)> {
        let StartTool {
            work,
            batch,
            call,
            tool_use,
            attempt,
            level,
            spec,
            last_error: _,
        } = start;
        let tool = self.setup.tools.get(&tool_use.name)?.clone();
        let round_id = self.durable.round.as_ref()?.id;
        let me = self.me.clone();
        let writer = self.commits.writer.clone();
        let supervisor = self.me.get_cell();
        let key = CallKey {
            scope: self.scope.clone(),
            seq: batch,
            index: call,
        };
        let siblings =
            (tool_use.name == CREATE_SUBAGENT).then(|| Siblings::of(self.durable.batch()));
        let executor = match self.resources()?.executor.clone() {
            Some(executor) => executor,
            None => {
                let environment = self.environment();
                let resources = self.resources()?;
                let report = move |report| {
                    let _ = me.cast(match report {
                        ToolReport::Ended {
                            work,
                            result,
                            duration_ms,
                            again,
                        } => ConversationMsg::ToolEnded {
                            work,
                            result: Box::new(result),
                            duration_ms,
                            again,
                        },
                        ToolReport::Due { batch, call } => {
                            ConversationMsg::RetryDue { batch, call }
                        }
                    });
                };
                let cancel = resources.cancel.clone();
                let args = ToolExecutorArgs {
                    report: Arc::new(report),
                    progress: progress_of(writer, round_id),
                    environment,
                    cancel,
                };
                let executor = ToolExecutorRef::start(args, supervisor)?;
                resources.executor = Some(executor.clone());
                executor
            }
        };
        let resources = self.resources()?;
        if attempt == 0 {
            resources.ran_ms.remove(&call); // Left by the call with the same index of an earlier batch.
        }
        let ran_ms = resources.ran_ms.get(&call).copied().unwrap_or_default();
        let request = ToolInvocationRequest::from_spec(&spec, tool_use.id, tool_use.input);
        Some((
            executor,
            Run {
                work,
                key,
                tool,
                request,
                level,
                attempt,
                ran_ms,
                waited_ms: Arc::default(),
                turn: Some(resources.span.clone()),
                siblings,
            },
        ))
    }

    /// Handles a crash of the executor: its open calls end with an error, and their effect is
    /// unknown. Calls that it would have tried again are tried again at once.
    pub(in crate::conversation) fn executor_failed(&mut self) -> Result<Flow, String> {
        if let Some((_, resources)) = &mut self.resources {
            resources.executor = None;
        }
        let is_tool =
            |(id, work): (&WorkId, &Work)| matches!(work, Work::Tool { .. }).then_some(*id);
        let open: Vec<WorkId> = self.volatile.work.iter().filter_map(is_tool).collect();
        for work in open {
            let result = RunResult::Panicked {
                message: "the tool executor crashed".into(),
            };
            if let Flow::End(end) = self.input(Input::Tool {
                work,
                result,
                duration_ms: 0,
                again: None,
            })? {
                return Ok(Flow::End(end));
            }
        }
        let waiting: Vec<(Seq, u32)> = self.volatile.retries.keys().copied().collect();
        for (batch, call) in waiting {
            if let Flow::End(end) = self.input(Input::RetryDue { batch, call })? {
                return Ok(Flow::End(end));
            }
        }
        Ok(Flow::GoOn)
    }

    /// Publishes that a tool call will be tried again.
    pub(super) fn publish_tool_retry(&mut self, round_id: RoundId, again: Again, last_error: &str) {
        let Again {
            attempt,
            delay,
            reason,
        } = again;
        // A record for logs; no model reads it.
        tracing::debug!(
            error_type = "RETRY",
            error_message = format!("Retrying after {attempt} failures"),
            "Retry {attempt} after: {last_error}"
        );
        self.tally.add(Figure::ToolRetried);
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.commits.writer.ephemeral(
            round_id,
            EventKind::Retry {
                layer: "tool",
                attempt,
                delay_ms,
                reason: reason.as_str().to_owned(),
            },
        );
    }
}
