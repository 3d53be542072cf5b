//! Why a conversation waits: read from its journal and from what its life has last said of itself. Wakes nothing.

use serde::{Deserialize, Serialize};

use super::{ConversationHandle, SendError, directory::Place};
use crate::{
    conversation::{ConversationError, WaitsFor},
    ids::{ConversationId, RoundId},
    journal::{CallState, Durable, OpenRound},
    policy::{Amount, Budget},
    ports::StoreError,
    time::Timestamp,
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

impl BudgetLeft {
    fn of(budget: &Budget, spent: &Amount) -> Self {
        let left = |limit: Option<u64>, spent: u64| limit.map(|limit| limit.saturating_sub(spent));
        Self {
            tokens: left(budget.tokens, spent.tokens),
            micro_usd: left(budget.micro_usd, spent.micro_usd),
            wall_ms: left(budget.wall_ms, spent.wall_ms),
        }
    }
}

impl ConversationHandle {
    /// Tells how the conversation stands and what it waits for. Reads the store; wakes nothing. One that cannot be read is `failed`.
    ///
    /// # Errors
    /// `NotFound` for a conversation of which nothing is stored, [`SendError`] for a failing store.
    pub async fn status(&self) -> Result<ConversationStatus, SendError> {
        let (scope, setup, place) = (self.scope()?, self.setup()?, self.place()?);
        let now = self.watching().0.clock.now();
        let (durable, mut failure) = match self.state().await {
            Ok(durable) if durable.head.0 == 0 => return Err(StoreError::NotFound.into()),
            Ok(durable) => (durable, None),
            Err(SendError::Conversation(ConversationError::Failed { reason })) => (Durable::default(), Some(reason)),
            Err(error) => return Err(error),
        };
        let (waits_for, since) = match &place {
            Place::Asleep => (told_by(&durable).filter(|waits| matches!(waits, WaitsFor::Person { .. })), None),
            Place::Awake(wait_status) => match (told_by(&durable), wait_status.get()) {
                (_, Some((WaitsFor::Store, since))) => (Some(WaitsFor::Store), Some(since)),
                (Some(told), _) => (Some(told), None),
                (None, Some((said, since))) if durable.round.is_some() || said == WaitsFor::Compaction => (Some(said), Some(since)),
                (None, _) => (durable.round.is_some().then_some(WaitsFor::Store), None),
            },
            Place::OnTheWay => (Some(WaitsFor::Store), None),
            Place::Failed(error) => {
                failure = failure.or_else(|| Some(error.to_string()));
                (None, None)
            }
        };
        let state = match &place {
            _ if failure.is_some() => ConversationState::Failed,
            _ if durable.round.as_ref().is_some_and(OpenRound::is_parked) => ConversationState::Parked,
            Place::Asleep | Place::Failed(_) => ConversationState::Asleep,
            Place::OnTheWay => ConversationState::Running,
            Place::Awake(_) if durable.round.is_some() || !durable.inbox.is_empty() => ConversationState::Running,
            Place::Awake(_) => ConversationState::Idle,
        };
        let (tokens, window) = (durable.context.window.estimate(setup.context.fixed), setup.context.window);
        let fraction = if window == 0 { 0.0 } else { tokens as f64 / window as f64 };
        let spent = durable.spent.now(durable.round.as_ref().map(|round| round.started_at), now);
        Ok(ConversationStatus {
            conversation_id: scope.conversation,
            state,
            round_id: durable.round.as_ref().map(|round| round.id),
            waits_for: waits_for.unwrap_or_default(),
            since_ms: now.ms_since(since.unwrap_or(durable.metrics.end_time)),
            prompts_waiting: durable.inbox.len(),
            context: ContextStatus { tokens, window, fraction },
            spent,
            budget_left: BudgetLeft::of(&setup.spending.budget, &spent),
            messages: durable.history.messages().len() as u64,
            rounds: durable.metrics.rounds,
            created_at: durable.metrics.start_time,
            updated_at: durable.metrics.end_time,
            failure,
        })
    }
}

/// What a journal alone tells of a round's wait: people and tools.
fn told_by(state: &Durable) -> Option<WaitsFor> {
    let batch = state.batch().filter(|batch| !batch.is_done())?;
    let open = batch.calls.iter().filter(|call| !matches!(call.state, CallState::Finished(_)));
    if batch.is_parked() {
        let tool_call_ids = open.map(|call| call.tool_use.id.clone()).collect();
        return Some(WaitsFor::Person { tool_call_ids, expires_at: batch.expires_at() });
    }
    let running = open.filter(|call| !matches!(call.state, CallState::Asked { .. }));
    Some(WaitsFor::Tools { names: running.map(|call| call.tool_use.name.clone()).collect() })
}
