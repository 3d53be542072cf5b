//! The tool `create_subagent`: each call runs as a separate conversation.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::json;

use super::{
    CREATE_SUBAGENT, Children, CreateSubagentArgs, DESCRIPTION, SUBAGENT_FAILED, Siblings, Task,
};
use crate::{
    limits::SUBAGENT_TIME_MAX,
    policy::{BreakerConfig, ToolRetryPolicy},
    ports::{Approval, Reach, ToolContext, ToolSource, ToolSpec, TypedTool},
    stream::RoundEnd,
    tool::{EffectClass, ToolError, ToolErrorType},
};

/// A circuit breaker that never opens.
const NO_BREAKER: BreakerConfig = BreakerConfig {
    failures: u32::MAX,
    open_for: Duration::ZERO,
};

/// The tool. It is `idempotent`: a repeated call finds the subagent that the first one started.
pub(crate) struct CreateSubagent {
    children: Arc<dyn Children>,
}

impl CreateSubagent {
    pub(crate) fn new(children: Arc<dyn Children>) -> Self {
        Self { children }
    }
}

impl TypedTool for CreateSubagent {
    type Args = CreateSubagentArgs;
    type Output = String;
    const NAME: &'static str = CREATE_SUBAGENT;
    const DESCRIPTION: &'static str = DESCRIPTION;

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        // A failed subagent says nothing about the next one, hence no breaker. Only a call that
        // found no room to start is retried.
        let spec = spec
            .effect(EffectClass::Idempotent)
            .approval(Approval::Never)
            .timeout(SUBAGENT_TIME_MAX)
            .reach(Reach::Nothing);
        let retry = ToolRetryPolicy {
            retry_on: vec![ToolErrorType::ResourceError],
            ..ToolRetryPolicy::default()
        };
        spec.retry(retry)
            .breaker(NO_BREAKER)
            .source(ToolSource::BuiltIn)
    }

    fn check(&self, args: &CreateSubagentArgs) -> Result<(), ToolError> {
        if args.task.trim().is_empty() {
            Err(ToolError::invalid("task is empty"))
        } else {
            Ok(())
        }
    }

    async fn call(
        &self,
        args: CreateSubagentArgs,
        context: ToolContext,
    ) -> Result<String, ToolError> {
        let ToolContext {
            key,
            cancel,
            progress,
            artifacts,
            tool_call_id,
            extensions,
            ..
        } = context;
        let shown_max = extensions
            .get::<Siblings>()
            .map_or_else(|| Siblings::of(None).share(), |siblings| siblings.share());
        let end = self
            .children
            .run(Task {
                key,
                text: args.task,
                cancel,
                progress,
            })
            .await?;
        let text = answer(&end, shown_max)?;
        if text.len() <= shown_max {
            return Ok(json!({ "result": text }).to_string());
        }
        let bytes = text.len();
        let first = head(&text, shown_max).to_owned();
        let stored = match &artifacts {
            Some(artifacts) => artifacts
                .store
                .store(artifacts.owner.clone(), tool_call_id, Bytes::from(text))
                .await
                .ok(),
            None => None,
        };
        Ok(match stored {
            Some(id) => json!({ "result": first, "shown_bytes": first.len(), "bytes": bytes, "rest": format!("read_more(result_id=\"{id}\", page=1)") }),
            None => json!({ "result": first, "shown_bytes": first.len(), "bytes": bytes }),
        }
        .to_string())
    }
}

/// The text of a finished subagent, or the error that the parent's model reads instead.
fn answer(end: &RoundEnd, shown_max: usize) -> Result<String, ToolError> {
    if end.stop_reason.is_done() {
        return Ok(end.full_text.clone());
    }
    let why = end.error.as_ref().map_or_else(
        || end.stop_reason.code().to_owned(),
        |failure| failure.message.clone(),
    );
    let text = head(&end.full_text, shown_max);
    let partial = if text.is_empty() {
        String::new()
    } else {
        format!(" Until then it said: {text}")
    };
    Err(ToolError::failed(format!(
        "the subagent did not come to an end: {why}.{partial}"
    ))
    .code(SUBAGENT_FAILED))
}

/// The first `bytes` bytes at most, cut after a whole line if there is one.
fn head(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    let cut = text.get(..end).unwrap_or_default();
    if end == text.len() {
        return cut;
    }
    cut.rfind('\n')
        .filter(|line| *line > 0)
        .and_then(|line| cut.get(..line))
        .unwrap_or(cut)
}
