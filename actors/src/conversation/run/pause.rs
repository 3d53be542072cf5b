//! A pause: while the store is unavailable, effects are held and the head is read with growing
//! delays. Then either nothing was lost and the activation continues, or it ends.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    conversation::{
        ExitReason, WaitsFor,
        commit::append_queue::PauseOutcome,
        message::{ConversationError, ConversationMsg},
        round::decision::Effect,
        run::{Flow, Live},
    },
    journal::{Head, StoredEntry},
    limits::STORE_PAUSE_MAX,
    ports::{AppendError, StoreError},
    task::AbortOnDrop,
};

/// A pause under way.
pub(in crate::conversation) struct Pause {
    since: Instant,
    reads: u32,
    _task: AbortOnDrop,
}

impl Live {
    /// Handles a failed append. A conflict ends the activation. An unavailable store starts a
    /// pause.
    pub(in crate::conversation) fn append_lost(
        &mut self,
        error: AppendError,
        sending: u32,
    ) -> Flow {
        if self.commits.covers_loss(sending) {
            return Flow::GoOn;
        }
        match error {
            AppendError::Conflict { .. } => {
                self.exit(&ConversationError::InUse, ExitReason::Conflict)
            }
            AppendError::Unavailable { message } => {
                tracing::warn!(conversation = %self.scope.conversation, message, "the store is away; effects are held");
                self.commits.pause();
                self.ports.counters.store_pauses.add(1);
                self.wait_status.set(WaitsFor::Store, &*self.ports.clock);
                let task = self.read_head(Duration::from_millis(50));
                self.pause = Some(Pause {
                    since: Instant::now(),
                    reads: 0,
                    _task: task,
                });
                Flow::GoOn
            }
        }
    }

    fn read_head(&self, after: Duration) -> AbortOnDrop {
        let sessions = self.ports.sessions.clone();
        let scope = self.scope.clone();
        let me = self.me.clone();
        let stored = self.commits.stored_head().seq;
        AbortOnDrop(tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let read = async {
                let head = sessions.head(&scope).await?;
                let next = sessions.entries(&scope, stored, 1).await?;
                Ok((head, next.into_iter().next()))
            };
            let _ = me.cast(ConversationMsg::HeadRead(read.await));
        }))
    }

    pub(in crate::conversation) fn head_read(
        &mut self,
        result: Result<(Head, Option<StoredEntry>), StoreError>,
    ) -> Flow {
        let Some(pause) = &self.pause else {
            return Flow::GoOn;
        };
        let since = pause.since;
        let reads = pause.reads + 1;
        match result {
            Err(error) if since.elapsed() >= STORE_PAUSE_MAX => {
                self.exit(&ConversationError::Store(error), ExitReason::StoreAway)
            }
            Err(_) => {
                let after =
                    Duration::from_millis(50u64 << reads.min(5)).min(Duration::from_secs(1));
                let task = self.read_head(after);
                self.pause = Some(Pause {
                    since,
                    reads,
                    _task: task,
                });
                Flow::GoOn
            }
            Ok((head, next)) => {
                match self.commits.head_read(head, next.as_ref()) {
                    PauseOutcome::End => self.exit(&ConversationError::InUse, ExitReason::Conflict),
                    // Held effects are performed after everything is appended again.
                    PauseOutcome::Resume { released, resend } => {
                        self.pause = None;
                        self.wait_status.clear();
                        self.commits.resume(head, released, resend);
                        std::mem::take(&mut self.held)
                            .into_iter()
                            .for_each(|effect| self.perform(effect));
                        Flow::GoOn
                    }
                }
            }
        }
    }
}

/// Whether an effect is performed during a pause. Effects that stop work, refuse or report do;
/// effects that start work or confirm a request wait for the store.
pub(in crate::conversation) fn survives_pause(effect: &Effect) -> bool {
    match effect {
        Effect::CancelRound { .. }
        | Effect::Abort { .. }
        | Effect::Refuse { .. }
        | Effect::Reserve { .. }
        | Effect::Queued { .. }
        | Effect::RoundOver { .. }
        | Effect::CompactionDropped
        | Effect::Park { .. } => true,
        Effect::StartModel { .. }
        | Effect::MeasureContext { .. }
        | Effect::Summarise { .. }
        | Effect::StartTool(_)
        | Effect::RetryLater { .. }
        | Effect::ToolRetry { .. }
        | Effect::Acknowledge { .. }
        | Effect::Answer { .. } => false,
    }
}
