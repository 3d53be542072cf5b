//! Why a conversation waits: read from its journal and from what its life has last said of itself. Wakes nothing.

use serde::{Deserialize, Serialize};

use super::{ConversationHandle, SendError};
use crate::{
    ids::{ConversationId, RoundId},
    policy::Amount,
    ports::{StoreError, Timestamp},
};

/// What a conversation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConversationState {
    /// Not in memory; the next prompt wakes it.
    Asleep,
    /// In memory, and no round is open.
    Idle,
    /// A round is open, or is about to be.
    Running,
    /// A round waits for a person.
    Parked,
    /// It cannot go on.
    Failed,
}

/// What a conversation waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsFor {
    /// Nothing: no round is open.
    #[default]
    Nothing,
    /// Answers of people.
    Person {
        /// The calls that need one.
        tool_call_ids: Vec<String>,
        /// When no answer counts as no.
        expires_at: Option<Timestamp>,
    },
    /// Its tenant runs as many turns as it may.
    TenantTurn {
        /// Its place in the tenant's queue, from 1; 0 if unknown.
        position: usize,
    },
    /// Its model's provider takes no call now.
    Provider {
        /// Its place in the queue, from 1; 0 if unknown.
        position: usize,
        /// Which bound holds it back.
        reason: ProviderWait,
    },
    /// A model call failed and is tried again.
    Retry {
        /// Which attempt comes, from 1.
        attempt: u32,
        /// The pause before it, in milliseconds.
        delay_ms: u64,
        /// The code of the failure.
        reason: String,
    },
    /// The model speaks, or thinks.
    Model,
    /// Tools run.
    Tools {
        /// Their names, in order of calls.
        names: Vec<String>,
    },
    /// Its store.
    Store,
    /// Its context is measured or made smaller.
    Compaction,
}

/// Which bound of a provider holds a call back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderWait {
    /// Calls at once.
    Concurrency,
    /// Requests a minute.
    Requests,
    /// Tokens a minute.
    Tokens,
    /// The provider asked for a pause.
    RetryAfter,
}

/// How full the model's window is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ContextStatus {
    /// Tokens in use, estimated.
    pub tokens: u64,
    /// The window, in tokens; 0 if nobody knows.
    pub window: u64,
    /// The one by the other.
    pub fraction: f64,
}

/// What is left of a budget; absent is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BudgetLeft {
    /// Tokens in and out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_usd: Option<u64>,
    /// Time of rounds, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
}

/// How a conversation stands (INTERFACES §4, `GET /v1/conversations/{id}`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationStatus {
    /// Which.
    pub conversation_id: ConversationId,
    /// What it does.
    pub state: ConversationState,
    /// The open round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_id: Option<RoundId>,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// For how long it has waited for that, in milliseconds.
    pub since_ms: u64,
    /// Prompts accepted that no round has taken up.
    pub prompts_waiting: usize,
    /// How full the model's window is.
    pub context: ContextStatus,
    /// What it has spent.
    pub spent: Amount,
    /// What is left of its own budget.
    pub budget_left: BudgetLeft,
    /// Messages of its history.
    pub messages: u64,
    /// Rounds that are over.
    pub rounds: u64,
    /// When its first entry was stored.
    pub created_at: Timestamp,
    /// When its last entry was stored.
    pub updated_at: Timestamp,
    /// Why it cannot go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl ConversationHandle {
    /// Tells how the conversation stands and what it waits for. Reads the store; wakes nothing.
    ///
    /// # Errors
    /// `NotFound` for a conversation of which nothing is stored, [`SendError`] for a failing store.
    pub async fn status(&self) -> Result<ConversationStatus, SendError> {
        let (scope, setup) = (self.scope()?, self.setup()?);
        let durable = self.state().await?;
        if durable.head.0 == 0 {
            return Err(StoreError::NotFound.into());
        }
        let (state, waits_for) = match &durable.round {
            Some(round) if round.is_parked() => (ConversationState::Parked, WaitsFor::Nothing),
            Some(_) => (ConversationState::Running, WaitsFor::Nothing),
            None => (ConversationState::Asleep, WaitsFor::Nothing),
        };
        let (tokens, window) = (durable.context.window.estimate(setup.context.fixed), setup.context.window);
        let fraction = if window == 0 { 0.0 } else { tokens as f64 / window as f64 };
        Ok(ConversationStatus {
            conversation_id: scope.conversation,
            state,
            round_id: durable.round.as_ref().map(|round| round.id),
            waits_for,
            since_ms: 0,
            prompts_waiting: durable.inbox.len(),
            context: ContextStatus { tokens, window, fraction },
            spent: durable.spent.amount,
            budget_left: BudgetLeft::default(),
            messages: durable.history.messages().len() as u64,
            rounds: durable.metrics.rounds,
            created_at: durable.metrics.start_time,
            updated_at: durable.metrics.end_time,
            failure: None,
        })
    }
}
