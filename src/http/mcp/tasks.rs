//! Rounds as tasks of the protocol (SEP-2663): a client that knows tasks gets one in place of a long
//! answer. A task is read from the journal, so it outlives its client, and the host.

use callboard_actors::{ports::Clock as _, time::Timestamp};
use rmcp::model::{
    CallToolResponse, CreateTaskResult, DetailedTask, GetTaskResult, InputResponses, Task,
    TaskPayload, TaskStatus,
};
use serde_json::Value;
use std::time::Duration;

use super::{
    api::Refused,
    approvals::Decision,
    rounds::{Call, awaited},
};
use crate::clock::SystemClock;

/// How often a client should ask, in milliseconds.
const POLL_MS: u64 = 2_000;

/// The id of a task: a round, and when the task was made.
///
/// The client only carries it: the host looks the ids up with the caller's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskId {
    conversation: String,
    round: String,
    made_at: Timestamp,
}

impl TaskId {
    /// A task that is made now.
    pub(super) fn new(conversation: String, round: String) -> Self {
        Self {
            conversation,
            round,
            made_at: SystemClock.now(),
        }
    }

    fn parse(text: &str) -> Result<Self, Refused> {
        let parse = || {
            let mut parts = text.split('/');
            let id = Self {
                conversation: parts.next()?.to_owned(),
                round: parts.next()?.to_owned(),
                made_at: Timestamp(parts.next()?.parse().ok()?),
            };
            parts.next().is_none().then_some(id)
        };
        parse().ok_or_else(unknown)
    }

    fn task(&self, status: TaskStatus, message: Option<String>) -> Task {
        let id = format!("{}/{}/{}", self.conversation, self.round, self.made_at.0);
        let now = SystemClock.now().to_string();
        let task = Task::new(id, status, self.made_at.to_string(), now);
        let task = task.with_poll_interval_ms(POLL_MS);
        match message {
            Some(message) => task.with_status_message(message),
            None => task,
        }
    }

    /// The answer to a call whose round runs.
    pub(super) fn begun(&self) -> CallToolResponse {
        let line = format!("conversation_id {}", self.conversation);
        CreateTaskResult::new(self.task(TaskStatus::Working, Some(line))).into()
    }
}

fn unknown() -> Refused {
    Refused::new("not_found", "there is no such task")
}

/// Where a task stands.
pub(super) async fn get(call: &Call, id: &str) -> Result<GetTaskResult, Refused> {
    let id = TaskId::parse(id)?;
    let state: &Value = &call.state(&id.conversation).await?;
    let is_open = state["round_id"].as_str() == Some(&id.round);
    let working = |line: String| {
        let task = id.task(TaskStatus::Working, Some(line));
        Ok(GetTaskResult::new(DetailedTask::new(
            task,
            TaskPayload::Working,
        )))
    };
    if is_open && awaited(state).is_empty() {
        let waits_for = state.pointer("/waits_for/kind").and_then(Value::as_str);
        return working(format!("waits for: {}", waits_for.unwrap_or("nothing")));
    }
    let (conversation, round) = (id.conversation.clone(), id.round.clone());
    let read = call.read_round(conversation, round, Some(Duration::ZERO));
    let payload = match read.await? {
        CallToolResponse::InputRequired(asked) => TaskPayload::InputRequired {
            input_requests: asked.input_requests.unwrap_or_default(),
        },
        CallToolResponse::Complete(result) => {
            let shown = &result.structured_content.clone().unwrap_or_default();
            match (shown["status"].as_str(), shown["stop_reason"].as_str()) {
                (Some("running"), _) => return working("in the queue".to_owned()),
                (Some("waits_for_approval"), _) => {
                    return working("waits for an approval: use answer_approval".to_owned());
                }
                (_, Some("interrupted")) => TaskPayload::Cancelled,
                _ => TaskPayload::Completed {
                    result: match serde_json::to_value(result) {
                        Ok(Value::Object(result)) => result,
                        _ => return Err(unknown()),
                    },
                },
            }
        }
        _ => return Err(unknown()),
    };
    let task = id.task(payload.status(), None);
    Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
}

/// Takes the answers to questions of a task.
pub(super) async fn update(call: &Call, id: &str, answers: InputResponses) -> Result<(), Refused> {
    let id = TaskId::parse(id)?;
    call.state(&id.conversation).await?;
    for (tool_call, answer) in &answers {
        let decision = Decision::read(answer);
        let decided = call.decide(&id.conversation, &id.round, tool_call, decision);
        match decided.await {
            Err(refused) if refused.code != "not_found" => return Err(refused),
            _ => {} // It was answered elsewhere.
        }
    }
    Ok(())
}

/// Cancels the round of a task; one that has ended stays as it is.
pub(super) async fn cancel(call: &Call, id: &str) -> Result<(), Refused> {
    let id = TaskId::parse(id)?;
    match call.interrupt(&id.conversation, &id.round).await? {
        true => Ok(()),
        false => Err(Refused::new(
            "not_found",
            "the round waits in the queue; cancel it once it has begun",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_task_is_read_as_it_was_written() {
        let id = TaskId {
            conversation: "support-42".into(),
            round: "r1".into(),
            made_at: Timestamp(1_700_000_000_000),
        };

        let task = id.task(TaskStatus::Working, None);

        assert_eq!(TaskId::parse(&task.task_id), Ok(id));
        assert_eq!(task.created_at, "2023-11-14T22:13:20.000Z");
        for wrong in ["", "a", "a/b", "a/b/c", "a/b/1/2"] {
            assert_eq!(TaskId::parse(wrong), Err(unknown()), "{wrong}");
        }
    }
}
