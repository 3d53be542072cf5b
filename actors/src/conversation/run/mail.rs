//! The mail of an activation: each message becomes an input of the round, or is handled at once.

use super::{Flow, Live};
use crate::{
    conversation::{
        ExitReason,
        command::Command,
        commit::after_commit::{AfterCommit, Waiter},
        message::{ConversationMsg, EndedCall},
        round::{Input, input::ContextOutcome, volatile::Work},
    },
    journal::WithdrawReason,
    metrics_collector::Figure,
    reads::DECODED_IN_PLACE,
    stream::Failure,
    task::off_workers,
};

impl Live {
    /// Handles one message.
    pub(in crate::conversation) fn handle(
        &mut self,
        message: ConversationMsg,
    ) -> Result<Flow, String> {
        off_workers(self.is_long(&message), || self.handle_here(message))
    }

    /// Whether handling a message takes time that grows with a large history: to check it, to apply
    /// it, and to encode it.
    fn is_long(&self, message: &ConversationMsg) -> bool {
        let own = || self.durable.history.messages().kept_bytes();
        let bytes = match message {
            ConversationMsg::Ask { command, .. } => match command {
                Command::Rewind { .. } | Command::Reset => own(),
                command => command.history_bytes(),
            },
            ConversationMsg::ContextMeasured { outcome, .. } => match **outcome {
                ContextOutcome::Compacted(_) => own(),
                ContextOutcome::Fits
                | ContextOutcome::TooLarge { .. }
                | ContextOutcome::TooManyBytes { .. } => 0,
            },
            _ => 0,
        };
        bytes > DECODED_IN_PLACE
    }

    fn handle_here(&mut self, message: ConversationMsg) -> Result<Flow, String> {
        let input = match message {
            ConversationMsg::Prompt(prompt) => return self.prompt(*prompt),
            ConversationMsg::Ask {
                command,
                place,
                reply,
            } => {
                if let Err(why) = self.has_memory_for(&command) {
                    let _ = reply.send(Err(why.into()));
                    return Ok(Flow::GoOn);
                }
                let waiter = self.waiters.add(Waiter::Done(reply, place));
                return self.input(Input::Command { command, waiter });
            }
            ConversationMsg::Cancel { failure } => Input::Cancel { failure },
            ConversationMsg::ContextMeasured { work, outcome } => {
                self.work_ended(work);
                Input::Context {
                    work,
                    outcome: *outcome,
                }
            }
            ConversationMsg::SummaryBilled(bill) => Input::Summary(bill),
            ConversationMsg::Peek { reply } => {
                let _ = reply.send(Ok(self.durable.clone()));
                return Ok(Flow::GoOn);
            }
            ConversationMsg::Read { reply, place } => {
                // During a pause nothing is stored for some time; the reader asks the store instead.
                if self.pause.is_none() {
                    let state = AfterCommit::State {
                        reply,
                        state: self.durable.clone(),
                        place,
                    };
                    self.commits
                        .commit(&[], &self.durable, Vec::new(), vec![state]);
                }
                return Ok(Flow::GoOn);
            }
            ConversationMsg::ModelEnded { work, call } => {
                self.work_ended(work);
                let EndedCall {
                    outcome,
                    model,
                    failed,
                    times,
                    checked,
                    memory,
                    place,
                } = *call;
                // From here on the history counts.
                drop(memory);
                self.long_answer = place;
                self.volatile.rules.call_policy.use_checked(checked);
                if let Some(times) = times {
                    self.tally.add(Figure::ModelCallEnded(times));
                }
                Input::Model {
                    work,
                    outcome,
                    model,
                    failed,
                }
            }
            ConversationMsg::ToolEnded {
                work,
                result,
                duration_ms,
                again,
            } => {
                if let (Some(Work::Tool { call, .. }), Some((_, resources))) =
                    (self.volatile.work.get(&work), &mut self.resources)
                {
                    resources.ran_ms.insert(*call, duration_ms);
                }
                Input::Tool {
                    work,
                    result: *result,
                    duration_ms,
                    again,
                }
            }
            ConversationMsg::RetryDue { batch, call } => Input::RetryDue { batch, call },
            ConversationMsg::GraceOver { round_id } => Input::GraceOver { round_id },
            ConversationMsg::DeadlineOver {
                prompt_id,
                round_id,
            } => self.deadline_over(prompt_id, round_id),
            ConversationMsg::WaitOver { prompt_id } => {
                if !self.waits(prompt_id) {
                    return Ok(Flow::GoOn);
                }
                Input::Withdraw {
                    prompt_id,
                    reason: WithdrawReason::Deadline,
                }
            }
            ConversationMsg::BudgetTimeOver { round_id } => match self.budget_time_over(round_id) {
                Some(input) => input,
                None => return Ok(Flow::GoOn),
            },
            ConversationMsg::Tick => Input::Tick,
            ConversationMsg::AppendLost { error, sending } => {
                return Ok(self.append_lost(error, sending));
            }
            ConversationMsg::Claimed => {
                self.commits.send_held();
                return Ok(Flow::GoOn);
            }
            ConversationMsg::HeadRead { read, probe } => return Ok(self.head_read(read, probe)),
            ConversationMsg::StoreWritten { sending } => {
                if self.commits.is_current(sending) {
                    self.end_pause();
                }
                return Ok(Flow::GoOn);
            }
            ConversationMsg::StorePauseOver => return Ok(self.pause_over()),
            ConversationMsg::Sweep => {
                let end = if self.volatile.draining {
                    ExitReason::Drained
                } else {
                    ExitReason::Hibernated
                };
                return Ok(self.sleep_if_idle(end));
            }
            ConversationMsg::Drain { deadline } => {
                self.drain = Some(self.timer(deadline, ConversationMsg::DrainDeadline));
                Input::Drain
            }
            ConversationMsg::DrainDeadline => {
                let failure = Failure {
                    code: "draining".into(),
                    message: "the host is shutting down".into(),
                    retry_after_ms: None,
                };
                Input::Cancel {
                    failure: Some(failure),
                }
            }
            ConversationMsg::Delete => return self.delete(),
            // The conversation is active already. Check for expired approvals: the timer may have
            // fired before the wall clock reached the expiry.
            ConversationMsg::Resume => Input::Tick,
            ConversationMsg::Loaded(_) => return Ok(Flow::GoOn),
        };
        self.input(input)
    }
}
