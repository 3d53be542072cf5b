//! Prompts on arrival, their seats, and their deadlines.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    conversation::{
        Command, ConversationError, ConversationMsg, ExitReason, PromptMail,
        commit::after_commit::Waiter,
        round::{Input, NewPrompt},
        run::{Flow, Live},
    },
    ids::{PromptId, RoundId},
    journal::{AcceptedPrompt, WithdrawReason},
    metrics_collector::Figure,
    ports::StoreError,
    stream::Failure,
    task::AbortOnDrop,
    tenant::{NotAdmitted, Seat},
    time::Timestamp,
};

impl Live {
    pub(super) fn prompt(&mut self, prompt: PromptMail) -> Result<Flow, String> {
        let PromptMail {
            id,
            round_id,
            client_key,
            message,
            output_schema,
            parameters,
            client_tools,
            on_busy,
            deadline,
            wait_until,
            seat,
            reply,
        } = prompt;
        if self.commits.backlog_bytes() > self.setup.limits.journal_backlog_bytes {
            let _ = reply.send(Err(ConversationError::Overloaded {
                what: "entries waiting for the store",
                retry_after_ms: 1000,
            }));
            return Ok(Flow::GoOn);
        }
        if let Some(outage) = self.ports.store_health.outage()
            && !self.scope.conversation.is_subagent()
        {
            let _ = reply.send(Err(StoreError::from(outage).into()));
            return Ok(Flow::GoOn);
        }
        if let Err(why) = self.take_history(&seat) {
            let _ = reply.send(Err(why.into()));
            drop(seat);
            // Asleep, it takes none of the memory that is missing.
            return Ok(self.sleep_if_idle(ExitReason::Hibernated));
        }
        self.tally.add(Figure::PromptAccepted);
        // Stored in wall time, so that a later activation takes the deadlines up again.
        let wall = |at: Instant| {
            let left = at.saturating_duration_since(Instant::now()).as_millis();
            let now = self.ports.clock.now();
            Timestamp(
                now.0
                    .saturating_add(u64::try_from(left).unwrap_or(u64::MAX)),
            )
        };
        let (deadline_at, wait_until_at) = (deadline.map(wall), wait_until.map(wall));
        let timers = self.timers_of(id, round_id, deadline, wait_until);
        self.admitted.insert(round_id, (Some(seat), timers));
        let waiter = self.waiters.add(Waiter::Receipt(reply));
        let flow = self.input(Input::Prompt(NewPrompt {
            id,
            round_id,
            client_key,
            message,
            output_schema,
            parameters,
            client_tools,
            deadline_at,
            wait_until: wait_until_at,
            on_busy,
            waiter,
        }))?;
        // A refused, replayed or steering prompt opens no round, so its seat is released.
        let waits = self
            .durable
            .inbox
            .iter()
            .any(|prompt| prompt.round_id == round_id);
        if !waits
            && self
                .durable
                .round
                .as_ref()
                .is_none_or(|round| round.id != round_id)
        {
            self.admitted.remove(&round_id);
        }
        Ok(flow)
    }

    /// Takes memory for the history of a conversation that begins to work. A subagent gets it always:
    /// its parent keeps its own memory until the subagent ends.
    fn take_history(&mut self, seat: &Seat) -> Result<(), NotAdmitted> {
        if self.scope.conversation.is_subagent() {
            return Ok(());
        }
        let bytes = self.durable.history.messages().kept_bytes();
        let events = || self.ports.events.bytes(&self.scope.tenant);
        self.history_bytes.take(bytes, seat.bytes(), events)
    }

    /// Whether the tenant has memory for what a command adds to the open round.
    pub(super) fn has_memory_for(&self, command: &Command) -> Result<(), NotAdmitted> {
        let added = command.waiting_bytes();
        if added == 0 || self.durable.round.is_none() || self.scope.conversation.is_subagent() {
            return Ok(());
        }
        let events = || self.ports.events.bytes(&self.scope.tenant);
        self.history_bytes.has_room_for(added, events)
    }

    /// Takes up the deadlines of an earlier activation.
    pub(super) fn restore_deadlines(&mut self) {
        let open = self.durable.round.as_deref().and_then(|round| {
            let prompt = *round.prompts.first()?;
            Some((prompt, round.id, round.deadline_at, None))
        });
        let waiting = self.durable.inbox.iter().map(|prompt| {
            let AcceptedPrompt { id, round_id, .. } = prompt;
            (*id, *round_id, prompt.deadline_at, prompt.wait_until)
        });
        let prompts: Vec<_> = open.into_iter().chain(waiting).collect();
        let now = self.ports.clock.now();
        // No instant is so far away that it is none: such a deadline never passes.
        let instant = |at: Timestamp| {
            let left = Duration::from_millis(at.0.saturating_sub(now.0));
            Instant::now().checked_add(left)
        };
        for (prompt_id, round_id, deadline, wait_until) in prompts {
            let (deadline, wait_until) = (deadline.and_then(instant), wait_until.and_then(instant));
            let timers = self.timers_of(prompt_id, round_id, deadline, wait_until);
            if !timers.is_empty() {
                self.admitted.insert(round_id, (None, timers));
            }
        }
    }

    /// The timers of a prompt: of its deadline, and of its wait for its turn.
    fn timers_of(
        &self,
        prompt_id: PromptId,
        round_id: RoundId,
        deadline: Option<Instant>,
        wait_until: Option<Instant>,
    ) -> Vec<AbortOnDrop> {
        let over = |at| {
            let over = ConversationMsg::DeadlineOver {
                prompt_id,
                round_id,
            };
            self.timer(at, over)
        };
        let waited = |at| self.timer(at, ConversationMsg::WaitOver { prompt_id });
        let timers = deadline.map(over).into_iter();
        timers.chain(wait_until.map(waited)).collect()
    }

    /// Whether a prompt still waits for its turn.
    pub(super) fn waits(&self, prompt_id: PromptId) -> bool {
        let mut inbox = self.durable.inbox.iter();
        inbox.any(|prompt| prompt.id == prompt_id)
    }

    pub(super) fn deadline_over(&self, prompt_id: PromptId, round_id: RoundId) -> Input {
        if self
            .durable
            .round
            .as_ref()
            .is_some_and(|round| round.id == round_id)
        {
            let failure = Failure {
                code: "deadline".into(),
                message: "the time given for this prompt is over".into(),
                retry_after_ms: None,
            };
            return Input::Cancel {
                failure: Some(failure),
            };
        }
        Input::Withdraw {
            prompt_id,
            reason: WithdrawReason::Deadline,
        }
    }

    /// Releases the seats of withdrawn prompts.
    pub(super) fn release_withdrawn(&mut self) {
        let inbox = &self.durable.inbox;
        let open = self.durable.round.as_ref().map(|round| round.id);
        self.admitted.retain(|round, _| {
            open == Some(*round) || inbox.iter().any(|prompt| prompt.round_id == *round)
        });
    }
}
