//! A pause: while the store cannot be written, effects are held and the store is tried again and
//! again: the head is read, then the first missing batch is appended. Only a stored append ends
//! the pause. If that takes too long, or another owner writes the journal, the activation ends.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    conversation::{
        ExitReason, WaitsFor,
        commit::{after_commit::AfterCommit, append_queue::PauseOutcome},
        message::{ConversationError, ConversationMsg},
        round::decision::Effect,
        run::{Flow, Live},
        store_health::{Paused, Probe},
    },
    journal::{Head, StoredEntry},
    metrics_collector::Figure,
    ports::{AppendError, StoreError},
    task::AbortOnDrop,
};

/// Delay before the store is tried first.
const FIRST_TRY: Duration = Duration::from_millis(50);

/// Delay between two tries. The activation that tried the store keeps its permit meanwhile, and the
/// next try is another one's if others wait.
const TRIES_APART: Duration = Duration::from_millis(250);

/// Conversations that go on after an outage are spread over this time, so that their reads do not
/// arrive at once.
const SPREAD: Duration = Duration::from_millis(200);

/// A pause under way.
pub(in crate::conversation) struct Pause {
    /// The permit under which the store is being tried.
    probe: Option<Probe>,
    /// Whether a batch was appended as a trial; its loss is the next failure.
    is_trying: bool,
    _counted: Paused,
    _limit: AbortOnDrop,
    _task: AbortOnDrop,
}

impl Live {
    /// Handles a failed append. A conflict ends the activation. An unavailable store starts a
    /// pause, or continues one.
    pub(in crate::conversation) fn append_lost(
        &mut self,
        error: AppendError,
        sending: u32,
    ) -> Flow {
        if !self.commits.is_current(sending) {
            return Flow::GoOn;
        }
        match (&self.pause, error) {
            (Some(pause), _) if !pause.is_trying => Flow::GoOn, // The head shows what was stored.
            // A conflict of the trial may be an earlier append that was stored late: read again.
            (Some(_), _) => {
                self.try_later();
                Flow::GoOn
            }
            (None, AppendError::Conflict { found, .. }) => self.conflict(found, false),
            (None, AppendError::Unavailable { message } | AppendError::Overloaded { message }) => {
                tracing::debug!(conversation = %self.scope.conversation, message, "an append failed; effects are held");
                self.begin_pause();
                Flow::GoOn
            }
        }
    }

    /// Begins a pause if the store is known to be unavailable, so that an activation orders no work
    /// whose entries cannot be stored.
    pub(in crate::conversation) fn pause_in_outage(&mut self) {
        if self.ports.store_health.outage().is_some() {
            self.begin_pause();
        }
    }

    /// Begins a pause before work starts on a host that was cut off from the store for so long that
    /// another one may have taken the conversation over. The pause reads the head, which shows it.
    pub(in crate::conversation) fn pause_unless_sure(&mut self, effects: &[Effect]) {
        if self.pause.is_none()
            && !effects.iter().all(survives_pause)
            && !self.ports.sessions.is_sure_to_own()
        {
            tracing::debug!(conversation = %self.scope.conversation, "this host may have lost its conversations; effects are held");
            self.begin_pause();
        }
    }

    fn begin_pause(&mut self) {
        self.commits.pause();
        self.tally.add(Figure::StorePaused);
        self.wait_status.set(WaitsFor::Store, &*self.ports.clock);
        let limit = Instant::now() + self.setup.limits.store_pause;
        self.pause = Some(Pause {
            probe: None,
            is_trying: false,
            _counted: self.ports.store_health.pause(),
            _limit: self.timer(limit, ConversationMsg::StorePauseOver),
            _task: self.read_head(FIRST_TRY, None),
        });
    }

    /// Schedules the next try after a failed one.
    fn try_later(&mut self) {
        let Some(pause) = &mut self.pause else {
            return;
        };
        pause.is_trying = false;
        let probe = pause.probe.take();
        let task = self.read_head(TRIES_APART, probe);
        if let Some(pause) = &mut self.pause {
            pause._task = task;
        }
    }

    /// Ends the activation because the journal ends at `found`, beyond what this activation knows.
    /// Entries of the epoch that it was loaded from are its own past, so the next activation
    /// continues. Entries of the epoch that it claims itself are from an activation that began from
    /// the same journal, of which nothing is known; the directory looks again later. Any other epoch
    /// belongs to another owner. `is_unknown` says that entries may have been stored for whose callers
    /// nothing is known: those must not ask the other owner for the same again.
    fn conflict(&mut self, found: Head, is_unknown: bool) -> Flow {
        let error = match is_unknown {
            true => ConversationError::Gone,
            false => ConversationError::InUse,
        };
        let known = self.commits.stored_head();
        let end = if found.epoch == known.epoch && found.seq > known.seq {
            ExitReason::Overtaken
        } else if found.epoch == self.volatile.epoch && known.epoch != found.epoch {
            self.commits.refuse_all(&error);
            ExitReason::Contested(found)
        } else {
            return self.exit(&error, ExitReason::Conflict);
        };
        // Callers whose prompts are stored are left alone: an answer may still come from the next
        // activation. The streams go: the journal may have the ends of their rounds already, and no
        // activation would publish those again. Watchers go on from the journal.
        self.commits.writer.close();
        self.ports.events.forget(&self.scope);
        Flow::End(end)
    }

    /// Reads the head after a delay, during which it keeps the permit `kept`. During an outage one
    /// activation at a time goes on; the others wait for the end of the outage.
    fn read_head(&self, after: Duration, kept: Option<Probe>) -> AbortOnDrop {
        let sessions = self.ports.sessions.clone();
        let health = self.ports.store_health.clone();
        let scope = self.scope.clone();
        let me = self.me.clone();
        let stored = self.commits.stored_head().seq;
        let spread = SPREAD.mul_f64(self.ports.entropy.fraction());
        AbortOnDrop(tokio::spawn(async move {
            tokio::time::sleep(after).await;
            drop(kept);
            let probe = health.over_or_probe().await;
            if probe.is_none() {
                tokio::time::sleep(spread).await;
            }
            let read = async {
                let head = sessions.head(&scope).await?;
                let next = sessions.entries(&scope, stored, 1).await?;
                Ok((head, next.into_iter().next()))
            };
            let read = read.await;
            let _ = me.cast(ConversationMsg::HeadRead { read, probe });
        }))
    }

    pub(in crate::conversation) fn head_read(
        &mut self,
        read: Result<(Head, Option<StoredEntry>), StoreError>,
        probe: Option<Probe>,
    ) -> Flow {
        let Some(pause) = &mut self.pause else {
            return Flow::GoOn;
        };
        let Ok((head, next)) = read else {
            pause.probe = probe;
            self.try_later();
            return Flow::GoOn;
        };
        match self.commits.head_read(head, next.as_ref()) {
            PauseOutcome::End {
                stored,
                is_rest_unknown,
            } => {
                stored.into_iter().for_each(AfterCommit::answer);
                self.conflict(head, is_rest_unknown)
            }
            PauseOutcome::Continue {
                released,
                trial: Some(trial),
            } => {
                (pause.is_trying, pause.probe) = (true, probe);
                self.commits.try_store(head, released, trial);
                Flow::GoOn
            }
            PauseOutcome::Continue {
                released,
                trial: None,
            } => {
                self.commits.stored_meanwhile(head, released);
                self.end_pause();
                Flow::GoOn
            }
        }
    }

    /// Ends the pause. Held effects are performed after everything is appended again.
    pub(in crate::conversation) fn end_pause(&mut self) {
        if self.pause.take().is_none() {
            return;
        }
        self.wait_status.clear();
        self.commits.resume();
        std::mem::take(&mut self.held)
            .into_iter()
            .for_each(|effect| self.perform(effect));
    }

    /// Ends the activation if the pause still lasts.
    pub(in crate::conversation) fn pause_over(&mut self) -> Flow {
        if self.pause.is_none() {
            return Flow::GoOn;
        }
        let error = self.ports.store_health.outage().map_or_else(
            || StoreError::Unavailable {
                message: "it does not answer".into(),
            },
            StoreError::from,
        );
        // A round whose end is not stored yet is open in the journal.
        let has_open_round = self.durable.round.is_some()
            || !self.durable.inbox.is_empty()
            || !self.commits.is_idle();
        let end = ExitReason::StoreAway { has_open_round };
        self.exit(&ConversationError::Store(error), end)
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
        | Effect::ToolRetry { .. }
        | Effect::Acknowledge { .. }
        | Effect::Answer { .. } => false,
    }
}
