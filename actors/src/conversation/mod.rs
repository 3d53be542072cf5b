//! The conversation actor: one journal, one open round at a time. `round` decides, `commit` stores
//! the decisions, `run` performs the effects, and `setup` holds the configuration.
//!
//! State: the fold of the journal (`Durable`), running work (`Volatile`), the queue to the store,
//! the stream writer, and the callers that await an answer. A ConversationSupervisor supervises the
//! actor. Only the directory starts one; the directory also holds the mail of a conversation that
//! is asleep.
//!
//! **Invariant:** `handle` never awaits: work runs in tasks, whose results come back as mail.
//!
//! Promises: second_prompt_waits_for_the_running_turn, cancel_reaches_model_tools_and_subagents,
//! a_crashed_conversation_reloads_from_its_journal, an_interrupted_round_is_taken_up_again, a_stale_owner_cannot_write.

mod command;
pub mod commit;
mod setup;
pub mod round;
mod run;
mod lease;
mod outgoing;
mod message;
mod store_health;
mod unsettled;
mod wait_status;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::FutureExt;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

pub(crate) use command::kept_bytes;
pub use command::{Command, Consent, Copied};
pub(crate) use lease::{ExitReason, Lease, LeaseIssuer};
pub use message::{Answer, ConversationError, ConversationMsg, LoadFailure, PromptMail};
pub(crate) use outgoing::OutboxRules;
pub use round::budget::BUDGET_CODE;
pub(crate) use round::output::{OUTPUT_CODE, instruction, json_in};
pub(crate) use run::fork::{read_entries, read_fork, read_rounds, read_transcript};
pub(crate) use run::load::{load, load_within, spent_by, until};
pub(crate) use setup::OutboxSetup;
pub use setup::skill_registry::SkillRegistry;
pub use setup::toolset::{Toolset, ToolsetError, first_sentence};
pub use setup::{Ports, Setup};
pub(crate) use store_health::UNATTENDED;
pub use store_health::{StoreHealth, StoreOutage};
pub(crate) use unsettled::UnsettledAppends;

use crate::{
    ids::Scope,
    journal::{Durable, Growth, Loaded},
    metrics_collector::Figure,
    policy::Amount,
    task::AbortOnDrop,
    tenant::{Family, HistoryBytes, NotAdmitted, Tenant},
};
pub(crate) use commit::after_commit::refuse;
use run::load::folded_with;
use run::{Flow, Live};
pub(crate) use wait_status::WaitStatus;
pub use wait_status::WaitsFor;

/// The arguments of a new conversation actor.
pub(crate) struct ConversationArgs {
    pub(crate) scope: Scope,
    pub(crate) setup: Arc<Setup>,
    pub(crate) ports: Ports,
    pub(crate) tenant: Arc<Tenant>,
    /// The budget that a parent conversation shares with all its subagents; `None` without
    /// subagents.
    pub(crate) family: Option<Arc<Family>>,
    pub(crate) loads: Arc<tokio::sync::Semaphore>,
    pub(crate) wait_status: Arc<WaitStatus>,
    /// Whether the activation before this one ended without a crash although a round was open.
    pub(crate) follows_orderly_end: bool,
    pub(crate) lease: Lease,
}

impl ConversationArgs {
    /// Takes memory for the history of a conversation with an open round, which goes on. A subagent
    /// gets it always, since its parent waits for it, and so does a round that is to end.
    fn memory_for(
        &self,
        durable: &Durable,
        mail: &[ConversationMsg],
    ) -> Result<HistoryBytes, NotAdmitted> {
        let mut history = HistoryBytes::new(self.tenant.clone());
        let goes_on = durable.round.is_some() || !durable.inbox.is_empty();
        if goes_on && !self.scope.conversation.is_subagent() && !mail.iter().any(ends_round) {
            let events = || self.ports.events.bytes(&self.scope.tenant);
            history.take(durable.message_bytes(), 0, events)?;
        }
        Ok(history)
    }
}

fn ends_round(mail: &ConversationMsg) -> bool {
    match mail {
        ConversationMsg::Delete | ConversationMsg::Cancel { .. } => true,
        ConversationMsg::Ask { command, .. } => matches!(command, Command::Interrupt),
        _ => false,
    }
}

/// The conversation actor.
pub(crate) struct Conversation;

/// The state of the actor: its arguments, and what it is doing.
pub(crate) struct State {
    args: ConversationArgs,
    phase: Phase,
}

enum Phase {
    /// The journal is being read; mail waits in `stash`.
    Loading {
        stash: Vec<ConversationMsg>,
        _task: AbortOnDrop,
    },
    /// Boxed, so that an idle conversation's actor stays small in memory.
    Live(Box<Live>),
    /// The activation is over; mail goes back to the directory.
    Over,
}

impl Actor for Conversation {
    type Msg = ConversationMsg;
    /// Boxed: ractor holds the state in two futures, each as large as the state itself.
    type State = Box<State>;
    type Arguments = ConversationArgs;

    async fn pre_start(
        &self,
        me: ActorRef<ConversationMsg>,
        args: ConversationArgs,
    ) -> Result<Box<State>, ActorProcessingErr> {
        let tenant = &args.scope.tenant;
        args.ports.collector.count(Some(tenant), Figure::Activated);
        let scope = args.scope.clone();
        let sessions = args.ports.sessions.clone();
        let loads = args.loads.clone();
        let tenant = args.tenant.clone();
        let mut reading = Box::pin(async move {
            // The tenant's first: one that waits for its own takes none of the host's.
            let own = tenant.loads().clone().acquire_owned().await.ok()?;
            let permit = (own, loads.acquire_owned().await.ok()?);
            let mut loaded = sessions.load_to_own(&scope).await;
            if loaded.is_ok()
                && let Err(error) = tenant.read_spending().await
            {
                loaded = Err(error);
            }
            Some((loaded, permit))
        });
        // An in-memory store answers on the first poll. A new conversation has no open round, so
        // its recovery cannot end the activation.
        let at_once = (&mut reading).now_or_never();
        if let Some(Some((Ok(loaded), _))) = &at_once
            && *loaded == Loaded::default()
        {
            if let Some(family) = &args.family {
                family.enter(&args.scope.conversation, Amount::default());
            }
            let history = HistoryBytes::new(args.tenant.clone());
            let mut live = Box::new(Live::begin(
                &args,
                me,
                Box::default(),
                Growth::default(),
                history,
            ));
            live.recover()?;
            return Ok(Box::new(State {
                args,
                phase: Phase::Live(live),
            }));
        }
        let scope = args.scope.clone();
        let sessions = args.ports.sessions.clone();
        let family = args.family.clone();
        let task = tokio::spawn(async move {
            let read = match at_once {
                Some(read) => read,
                None => reading.await,
            };
            let Some((loaded, _permit)) = read else {
                return;
            };
            let folded = match loaded {
                Ok(loaded) => {
                    let growth = Growth::of(&loaded.entries);
                    folded_with(&*sessions, &scope, loaded, family.as_deref())
                        .await
                        .map(|durable| (Box::new(durable), growth))
                }
                Err(error) => Err(LoadFailure::from(error)),
            };
            let _ = me.cast(ConversationMsg::Loaded(folded));
        });
        Ok(Box::new(State {
            args,
            phase: Phase::Loading {
                stash: Vec::new(),
                _task: AbortOnDrop(task),
            },
        }))
    }

    async fn handle(
        &self,
        me: ActorRef<ConversationMsg>,
        message: ConversationMsg,
        state: &mut Box<State>,
    ) -> Result<(), ActorProcessingErr> {
        state.count_wake_up();
        state
            .receive(&me, message)
            .map_err(ActorProcessingErr::from)
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<ConversationMsg>,
        event: SupervisionEvent,
        state: &mut Box<State>,
    ) -> Result<(), ActorProcessingErr> {
        // An executor normally ends with its round. The open calls of a crashed executor need
        // results.
        if let (SupervisionEvent::ActorFailed(_, error), Phase::Live(live)) =
            (event, &mut state.phase)
        {
            tracing::error!(conversation = %state.args.scope.conversation, %error, "a tool executor crashed");
            let flow = live.executor_failed()?;
            state.follow(&me, flow);
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<ConversationMsg>,
        state: &mut Box<State>,
    ) -> Result<(), ActorProcessingErr> {
        state.phase = Phase::Over; // Stops all work before the lease reports the end to the directory.
        state.args.lease.release();
        Ok(())
    }
}

impl State {
    fn count_wake_up(&mut self) {
        match &mut self.phase {
            Phase::Live(live) => live.woke_up(),
            Phase::Loading { .. } | Phase::Over => {
                let tenant = &self.args.scope.tenant;
                let collector = &self.args.ports.collector;
                collector.count(Some(tenant), Figure::WokeUp(1));
            }
        }
    }

    fn receive(
        &mut self,
        me: &ActorRef<ConversationMsg>,
        message: ConversationMsg,
    ) -> Result<(), String> {
        match &mut self.phase {
            // The store answers these reads.
            Phase::Loading { .. } | Phase::Over
                if matches!(message, ConversationMsg::Read { .. }) =>
            {
                Ok(())
            }
            Phase::Loading { stash, .. } => match message {
                ConversationMsg::Loaded(Ok((durable, growth))) => {
                    let stash = std::mem::take(stash);
                    let history = match self.args.memory_for(&durable, &stash) {
                        Ok(history) => history,
                        Err(why) => {
                            let error = ConversationError::from(why);
                            stash.into_iter().for_each(|mail| refuse(mail, &error));
                            let bytes = durable.message_bytes();
                            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
                            self.end(me, ExitReason::NoMemory(bytes));
                            return Ok(());
                        }
                    };
                    // Recovery comes before the stashed mail, so that the mail meets a resumed or
                    // closed round.
                    let mut live = Box::new(Live::begin(
                        &self.args,
                        me.clone(),
                        durable,
                        growth,
                        history,
                    ));
                    let flow = live.recover()?;
                    self.phase = Phase::Live(live);
                    self.follow(me, flow);
                    stash
                        .into_iter()
                        .try_for_each(|message| self.receive(me, message))
                }
                ConversationMsg::Loaded(Err(failure)) => {
                    let has_open_round = stash
                        .iter()
                        .any(|message| matches!(message, ConversationMsg::Resume));
                    let (end, error) = match failure {
                        LoadFailure::Store(error) => (
                            ExitReason::StoreAway { has_open_round },
                            ConversationError::Store(error),
                        ),
                        LoadFailure::Elsewhere(host) => {
                            (ExitReason::Conflict, ConversationError::Elsewhere { host })
                        }
                        LoadFailure::NeedsNewerVersion(reason) => (
                            ExitReason::NeedsNewerVersion(reason.clone()),
                            ConversationError::NeedsNewerVersion { reason },
                        ),
                        LoadFailure::Unreadable(reason) => (
                            ExitReason::Unreadable(reason.clone()),
                            ConversationError::Failed { reason },
                        ),
                    };
                    std::mem::take(stash)
                        .into_iter()
                        .for_each(|message| refuse(message, &error));
                    self.end(me, end);
                    Ok(())
                }
                ConversationMsg::Delete => {
                    std::mem::take(stash)
                        .into_iter()
                        .for_each(|message| refuse(message, &ConversationError::Deleted));
                    self.end(me, ExitReason::Hibernated);
                    Ok(())
                }
                other if stash.len() < self.args.setup.limits.held_mail_max => {
                    stash.push(other);
                    Ok(())
                }
                other => {
                    refuse(
                        other,
                        &ConversationError::Overloaded {
                            what: "mail of a conversation that is loading",
                            retry_after_ms: 1000,
                        },
                    );
                    Ok(())
                }
            },
            Phase::Live(live) => {
                let flow = live.handle(message)?;
                self.follow(me, flow);
                Ok(())
            }
            // Returning a sweep to the directory would wake the conversation that the sweep put to
            // sleep.
            Phase::Over if matches!(message, ConversationMsg::Sweep) => Ok(()),
            Phase::Over => {
                self.args.lease.give_back(message);
                Ok(())
            }
        }
    }

    fn follow(&mut self, me: &ActorRef<ConversationMsg>, flow: Flow) {
        match flow {
            Flow::GoOn => {}
            Flow::End(end) => self.end(me, end),
        }
    }

    /// Ends the activation: closes admission, so that mail still under way goes back to the
    /// directory.
    fn end(&mut self, me: &ActorRef<ConversationMsg>, end: ExitReason) {
        self.args.lease.end_with(end);
        self.phase = Phase::Over;
        let _ = me.drain();
    }
}
