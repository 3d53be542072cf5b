//! The status of a conversation: its state, what it waits for and since when. Read from the journal
//! and from the wait status of an active conversation; activates nothing.

use serde::{Deserialize, Serialize};

use super::{ConversationHandle, SendError, directory::Activity};
use crate::{
    conversation::{ConversationError, WaitsFor},
    ids::{ConversationId, RoundId},
    journal::{Call, CallState, Durable, OpenRound},
    policy::{Amount, Budget},
    ports::StoreError,
    time::Timestamp,
};

/// The state of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConversationState {
    /// The conversation has no actor. The next prompt activates it.
    Asleep,
    /// The conversation is active, and no round is open.
    Idle,
    /// A round is open, or about to begin.
    Running,
    /// The open round waits for an approval.
    Parked,
    /// The conversation crashed repeatedly, or its journal cannot be read.
    Failed,
}

/// How full the model's window is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ContextStatus {
    /// Tokens in use, estimated.
    pub tokens: u64,
    /// The model's window, in tokens; 0 if it is not known.
    pub window: u64,
    /// `tokens` divided by `window`; 0 if the window is not known. Can exceed 1.
    pub fraction: f64,
}

/// What is left of a budget. `None` means that this part has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BudgetLeft {
    /// Input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_usd: Option<u64>,
    /// Duration of rounds, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
}

/// The status of a conversation. `GET /v1/conversations/{id}` returns it as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationStatus {
    /// The conversation's id within its tenant.
    pub conversation_id: ConversationId,
    /// Whether it is asleep, idle, running, parked or failed.
    pub state: ConversationState,
    /// The open round; `None` between rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_id: Option<RoundId>,
    /// What it waits for now.
    pub waits_for: WaitsFor,
    /// How long it has waited for that, in milliseconds.
    pub since_ms: u64,
    /// Accepted prompts whose rounds have not begun.
    pub prompts_waiting: usize,
    /// How full the model's window is.
    pub context: ContextStatus,
    /// What the conversation has spent, the open round included.
    pub spent: Amount,
    /// What is left of the conversation's own budget.
    pub budget_left: BudgetLeft,
    /// The number of messages in the history.
    pub messages: u64,
    /// The number of rounds that have ended; of a fork or an import, those of its history count too.
    pub rounds: u64,
    /// When its first entry was stored.
    pub created_at: Timestamp,
    /// When its last entry was stored.
    pub updated_at: Timestamp,
    /// Why the state is `failed`; `None` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl BudgetLeft {
    fn new(budget: &Budget, spent: &Amount) -> Self {
        let left = |limit: Option<u64>, spent: u64| limit.map(|limit| limit.saturating_sub(spent));
        Self {
            tokens: left(budget.tokens, spent.tokens),
            micro_usd: left(budget.micro_usd, spent.micro_usd),
            wall_ms: left(budget.wall_ms, spent.wall_ms),
        }
    }
}

impl ConversationHandle {
    /// Returns the state of the conversation and what it waits for. Reads the store, and activates
    /// nothing. A conversation whose journal cannot be read has the state `failed`.
    ///
    /// # Errors
    /// `NotFound` for a conversation that is not stored, [`SendError`] for a failing store.
    pub async fn status(&self) -> Result<ConversationStatus, SendError> {
        let scope = self.scope()?;
        let setup = self.setup()?;
        let activity = self.activity()?;
        let now = self.watching().0.clock.now();
        let (durable, mut failure) = match self.state().await {
            Ok(durable) if durable.head.0 == 0 => return Err(StoreError::NotFound.into()),
            Ok(durable) => (durable, None),
            Err(SendError::Conversation(
                ConversationError::Failed { reason }
                | ConversationError::NeedsNewerVersion { reason },
            )) => (Durable::default(), Some(reason)),
            Err(error) => return Err(error),
        };
        // The journal shows approvals and tools, the actor's wait status everything else. A wait
        // for the store outranks both. A sleeping conversation can only wait for an approval or for
        // its caller.
        let (waits_for, since) = match &activity {
            Activity::Asleep => (
                journaled_wait(&durable).filter(|waits| {
                    matches!(waits, WaitsFor::Person { .. } | WaitsFor::Client { .. })
                }),
                None,
            ),
            Activity::Awake(wait_status) => match (journaled_wait(&durable), wait_status.get()) {
                (_, Some((WaitsFor::Store, since))) => (Some(WaitsFor::Store), Some(since)),
                (Some(calls), _) => (Some(calls), None),
                (None, Some((waits, since)))
                    if durable.round.is_some() || waits == WaitsFor::Compaction =>
                {
                    (Some(waits), Some(since))
                }
                (None, _) => (durable.round.is_some().then_some(WaitsFor::Store), None),
            },
            Activity::Changing => (Some(WaitsFor::Store), None),
            Activity::Failed(error) => {
                failure = failure.or_else(|| Some(error.to_string()));
                (None, None)
            }
        };
        let state = match &activity {
            _ if failure.is_some() => ConversationState::Failed,
            _ if durable.round.as_deref().is_some_and(OpenRound::is_parked) => {
                ConversationState::Parked
            }
            Activity::Asleep | Activity::Failed(_) => ConversationState::Asleep,
            Activity::Changing => ConversationState::Running,
            Activity::Awake(_) if durable.round.is_some() || !durable.inbox.is_empty() => {
                ConversationState::Running
            }
            Activity::Awake(_) => ConversationState::Idle,
        };
        let tokens = durable.context.window.estimate(setup.context.fixed);
        let window = setup.context.window;
        let fraction = if window == 0 {
            0.0
        } else {
            tokens as f64 / window as f64
        };
        let spent = durable
            .spent
            .now(durable.round.as_ref().map(|round| round.started_at), now);
        Ok(ConversationStatus {
            conversation_id: scope.conversation,
            state,
            round_id: durable.round.as_ref().map(|round| round.id),
            waits_for: waits_for.unwrap_or_default(),
            since_ms: now.ms_since(since.unwrap_or(durable.metrics.end_time)),
            prompts_waiting: durable.inbox.len(),
            context: ContextStatus {
                tokens,
                window,
                fraction,
            },
            spent,
            budget_left: BudgetLeft::new(&setup.pricing.budget, &spent),
            messages: durable.history.messages().len() as u64,
            rounds: ended(&durable),
            created_at: durable.metrics.start_time,
            updated_at: durable.metrics.end_time,
            failure,
        })
    }
}

/// The rounds that have ended here, or those of a history that came from elsewhere.
fn ended(durable: &Durable) -> u64 {
    let marks = durable.rounds.as_slice();
    let open = durable.round.as_ref().map(|round| round.id);
    let over = marks.iter().filter(|mark| Some(mark.id) != open).count();
    durable.metrics.rounds.max(over as u64)
}

/// The wait of a round that the journal alone shows: for an approval or for tools.
fn journaled_wait(state: &Durable) -> Option<WaitsFor> {
    let batch = state.batch().filter(|batch| !batch.is_done())?;
    let open = batch
        .calls
        .iter()
        .filter(|call| !matches!(call.state, CallState::Finished(_)));
    if batch.is_parked() {
        let expires_at = batch.expires_at();
        let (asked, at_client): (Vec<&Call>, Vec<&Call>) =
            open.partition(|call| matches!(call.state, CallState::Asked { .. }));
        let ids = |calls: Vec<&Call>| calls.iter().map(|call| call.tool_use.id.clone()).collect();
        return Some(match asked.is_empty() {
            false => WaitsFor::Person {
                tool_call_ids: ids(asked),
                expires_at,
            },
            true => WaitsFor::Client {
                tool_call_ids: ids(at_client),
                expires_at,
            },
        });
    }
    let running = open.filter(|call| {
        !matches!(
            call.state,
            CallState::Asked { .. } | CallState::AtClient { .. }
        )
    });
    Some(WaitsFor::Tools {
        names: running.map(|call| call.tool_use.name.clone()).collect(),
    })
}
