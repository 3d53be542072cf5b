//! Publishes the progress of running tool calls: lines of text, and for a call that starts a
//! subagent, the subagent's progress.

use std::sync::Arc;

use crate::{
    conversation::commit::stream_writer::StreamWriter,
    ids::RoundId,
    ports::Progress,
    stream::EventKind,
    tool_executor::{ProgressOf, Run},
};

/// The progress sinks for the calls of one round.
pub(in crate::conversation) fn progress_of(
    writer: Arc<StreamWriter>,
    round_id: RoundId,
) -> ProgressOf {
    Arc::new(move |run: &Run| {
        let lines = writer.clone();
        let tool_call_id = run.request.tool_call_id.clone();
        let progress = Progress::new(move |text| {
            lines.ephemeral(
                round_id,
                EventKind::ToolProgress {
                    tool_call_id: tool_call_id.clone(),
                    text,
                },
            );
        });
        if run.siblings.is_none() {
            return progress;
        }
        let writer = writer.clone();
        let id = run.key.child().conversation;
        progress.with_subagents(move |subagents| {
            writer.ephemeral(round_id, subagents.event(id.clone()))
        })
    })
}
