//! Handles to tenants and conversations: what they can be asked.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{HostInner, Reply};
use crate::{
    chat::{ContentBlock, Message, RawJson, Role},
    conversation::{Answer, ConversationError, ConversationMsg, LoadFailure, PromptMail, instruction, turn::OnBusy},
    ids::{ConversationId, InvalidId, RoundId, Scope, TenantId},
    journal::{ClientKey, Durable, digest},
    limits::PROMPT_BYTES_MAX,
    policy::{Amount, Budget},
    ports::{ListQuery, SessionSummary, StoreError},
};

/// Why something could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// An id is malformed.
    #[error(transparent)]
    InvalidId(#[from] InvalidId),
    /// The prompt is empty or too large.
    #[error("a prompt must have between 1 and {PROMPT_BYTES_MAX} bytes, this one has {0}")]
    BadPrompt(usize),
    /// A budget of money needs a price for the model.
    #[error("a budget of money needs a price for the model `{model}`")]
    NoPrice {
        /// The model.
        model: String,
    },
    /// The conversation, or the host, said no.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
}

impl From<std::convert::Infallible> for SendError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl From<StoreError> for SendError {
    fn from(error: StoreError) -> Self {
        Self::Conversation(error.into())
    }
}

impl SendError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidId(_) => "invalid_id",
            Self::BadPrompt(_) => "invalid_prompt",
            Self::NoPrice { .. } => "no_price",
            Self::Conversation(error) => error.code(),
        }
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InvalidId(_) | Self::BadPrompt(_) | Self::NoPrice { .. } => false,
            Self::Conversation(error) => error.is_retryable(),
        }
    }
}

/// A tenant of a host.
#[derive(Clone)]
pub struct TenantHandle {
    host: Arc<HostInner>,
    id: Result<TenantId, SendError>,
}

impl TenantHandle {
    pub(super) fn new(host: Arc<HostInner>, id: Result<TenantId, SendError>) -> Self {
        Self { host, id }
    }

    /// A conversation by id, which need not exist yet.
    pub fn conversation<C: TryInto<ConversationId, Error: Into<SendError>>>(&self, id: C) -> ConversationHandle {
        let scope = self.id.clone().and_then(|tenant| Ok(Scope::new(tenant, id.try_into().map_err(Into::into)?)));
        ConversationHandle { host: self.host.clone(), scope }
    }

    /// Lists the tenant's conversations; wakes none.
    ///
    /// # Errors
    /// [`SendError`] for a wrong id or a failing store.
    pub async fn conversations(&self, query: ListQuery) -> Result<Vec<SessionSummary>, SendError> {
        let id = self.id.clone()?;
        Ok(self.host.ports.sessions.list(&id, query).await?)
    }

    /// Bounds what all conversations of the tenant together may spend, counted since this host began (DESIGN §4.5). Holds from the next
    /// model call on.
    ///
    /// # Errors
    /// [`SendError::NoPrice`] for a bound of money where the model has no price; [`SendError::InvalidId`].
    pub fn set_budget(&self, budget: Budget) -> Result<(), SendError> {
        let (tenant, setup) = (self.host.tenants.get(&self.id.clone()?), &self.host.setup);
        if budget.micro_usd.is_some() && setup.spending.price.is_none() {
            return Err(SendError::NoPrice { model: setup.model.to_string() });
        }
        tenant.budget().set(budget);
        Ok(())
    }

    /// What the tenant's conversations have spent or reserved since this host began, as far as budgets were counted.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn spent(&self) -> Result<Amount, SendError> {
        Ok(self.host.tenants.get(&self.id.clone()?).budget().spent())
    }

    /// Prompts between admission and answer.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn prompts_under_way(&self) -> Result<usize, SendError> {
        Ok(self.host.tenants.get(&self.id.clone()?).seats_taken())
    }
}

/// A conversation of a tenant.
#[derive(Clone)]
pub struct ConversationHandle {
    host: Arc<HostInner>,
    scope: Result<Scope, SendError>,
}

impl ConversationHandle {
    /// Says something. Await it for a [`Reply`], or set a deadline, a client key, what to do when busy first.
    pub fn send(&self, prompt: impl Into<Prompt>) -> Send {
        let (conversation, prompt) = (self.clone(), prompt.into());
        Send { conversation, prompt, on_busy: OnBusy::Queue, deadline: None, client_key: None, output_schema: None }
    }

    /// Asks the open round to end now. Returns when the wish is taken.
    ///
    /// # Errors
    /// `NoSuch` when no round is open.
    pub async fn interrupt(&self) -> Result<(), SendError> {
        self.ask(|reply| ConversationMsg::Interrupt { failure: None, reply: Some(reply) }).await
    }

    /// Answers an approval that a round waits for.
    ///
    /// # Errors
    /// `NoSuch` when nobody waits for it.
    pub async fn approve(&self, tool_call_id: impl Into<String>, allow: bool) -> Result<(), SendError> {
        let tool_call_id = tool_call_id.into();
        self.ask(|reply| ConversationMsg::Approve { tool_call_id, allow, always: false, reply }).await
    }

    /// Agrees to a call, and to every later call of the same pattern in this conversation ([`crate::ports::Tool::approval_pattern`]).
    ///
    /// # Errors
    /// `NoSuch` when nobody waits for it.
    pub async fn approve_always(&self, tool_call_id: impl Into<String>) -> Result<(), SendError> {
        let tool_call_id = tool_call_id.into();
        self.ask(|reply| ConversationMsg::Approve { tool_call_id, allow: true, always: true, reply }).await
    }

    /// Adds a message for the model to read when it can. One with a known id is taken once.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn inject(&self, id: Option<String>, text: impl Into<String>) -> Result<(), SendError> {
        let message = Message::user(text);
        self.ask(|reply| ConversationMsg::Inject { id, message, reply }).await
    }

    /// Takes this history in place of what is there (REQUIREMENTS V-12, `update_messages`).
    ///
    /// # Errors
    /// `RoundOpen` while a round is open.
    pub async fn import(&self, messages: Vec<Message>) -> Result<(), SendError> {
        self.ask(|reply| ConversationMsg::Import { messages, reply }).await
    }

    /// Empties the conversation.
    ///
    /// # Errors
    /// `RoundOpen` while a round is open.
    pub async fn reset(&self) -> Result<(), SendError> {
        self.ask(|reply| ConversationMsg::Reset { reply }).await
    }

    /// Wakes the conversation, so that a round that was open when its host stopped is taken up again; returns it.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn resume(&self) -> Result<Option<Reply>, SendError> {
        let state = self.ask(|reply| ConversationMsg::Peek { reply }).await?;
        let scope = self.scope.clone()?;
        Ok(state.round.as_ref().map(|round| Reply::new(self.host.clone(), scope, round.id, true)))
    }

    /// Watches a round of this conversation.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn watch(&self, round_id: RoundId) -> Result<Reply, SendError> {
        Ok(Reply::new(self.host.clone(), self.scope.clone()?, round_id, true))
    }

    /// Reads the state from the store: history, open round, figures. Wakes nothing (DESIGN §4.5).
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn state(&self) -> Result<Durable, SendError> {
        let scope = self.scope.clone()?;
        match crate::conversation::load(&*self.host.ports.sessions, &scope).await {
            Ok(state) => Ok(state),
            Err(LoadFailure::Store(error)) => Err(error.into()),
            Err(LoadFailure::Unreadable(reason)) => Err(ConversationError::Failed { reason }.into()),
        }
    }

    /// Reads the messages from the store (REQUIREMENTS V-12, `get_messages`).
    ///
    /// # Errors
    /// As [`ConversationHandle::state`].
    pub async fn messages(&self) -> Result<Vec<Message>, SendError> {
        Ok(self.state().await?.history.messages().iter().cloned().collect())
    }

    pub(super) fn setup(&self) -> &crate::conversation::Setup {
        &self.host.setup
    }

    async fn ask<T>(&self, mail: impl FnOnce(Answer<T>) -> ConversationMsg) -> Result<T, SendError> {
        let scope = self.scope.clone()?;
        let (reply, answer) = oneshot::channel();
        self.host.directory.send(&scope, mail(reply));
        Ok(answer.await.unwrap_or(Err(ConversationError::Gone))?)
    }
}

/// What is said: a text, or blocks.
#[derive(Debug, Clone)]
pub struct Prompt(Vec<ContentBlock>);

impl<T: Into<String>> From<T> for Prompt {
    fn from(text: T) -> Self {
        Self(vec![ContentBlock::text(text)])
    }
}

impl Prompt {
    /// A prompt of blocks.
    pub fn blocks(blocks: Vec<ContentBlock>) -> Self {
        Self(blocks)
    }
}

/// A prompt about to be sent.
#[must_use = "nothing is said until this is awaited"]
pub struct Send {
    conversation: ConversationHandle,
    prompt: Prompt,
    on_busy: OnBusy,
    deadline: Option<Duration>,
    client_key: Option<String>,
    output_schema: Option<RawJson>,
}

impl Send {
    /// What to do when a round is open. Queues otherwise.
    pub fn on_busy(mut self, on_busy: OnBusy) -> Self {
        self.on_busy = on_busy;
        self
    }

    /// How long the round may take, its wait included (REQUIREMENTS H-07).
    pub fn deadline(mut self, within: Duration) -> Self {
        self.deadline = Some(within);
        self
    }

    /// The client's own name for this prompt: the same one again returns the same round.
    pub fn client_key(mut self, key: impl Into<String>) -> Self {
        self.client_key = Some(key.into());
        self
    }

    /// The JSON Schema that the answer must fit. It is kept with the prompt; an answer that does not fit is refused, and the model
    /// asked again, at most twice. Such a prompt waits where another would steer.
    pub fn output_schema(mut self, schema: RawJson) -> Self {
        self.output_schema = Some(schema);
        self
    }

    async fn run(mut self) -> Result<Reply, SendError> {
        let ConversationHandle { host, scope } = self.conversation;
        let scope = scope?;
        let says_nothing = self.prompt.0.iter().all(|block| block.as_text().is_some_and(|text| text.trim().is_empty()));
        if let Some(schema) = self.output_schema.as_ref().filter(|_| !host.setup.native_output) {
            self.prompt.0.push(instruction(schema));
        }
        let message = Message::new(Role::User, &self.prompt.0).map_err(|_| SendError::BadPrompt(0))?;
        let bytes = message.wire().len();
        if says_nothing || bytes > PROMPT_BYTES_MAX {
            return Err(SendError::BadPrompt(if says_nothing { 0 } else { bytes }));
        }
        let Some(seat) = host.tenants.get(&scope.tenant).take_seat() else {
            host.ports.counters.refusals.add(1);
            return Err(ConversationError::Overloaded { what: "prompts of this tenant", retry_after_ms: 1000 }.into());
        };
        let (reply, answer) = oneshot::channel();
        let mail = PromptMail {
            id: host.ports.entropy.prompt_id(),
            round_id: host.ports.entropy.round_id(),
            client_key: self.client_key.map(|key| ClientKey {
                key,
                digest: self
                    .output_schema
                    .as_ref()
                    .map_or(digest(message.wire()), |schema| digest(&[message.wire(), schema.as_str().as_bytes()].concat())),
            }),
            message,
            output_schema: self.output_schema,
            on_busy: self.on_busy,
            deadline: self.deadline.map(|within| Instant::now() + within),
            seat,
            reply,
        };
        host.directory.send(&scope, ConversationMsg::Prompt(Box::new(mail)));
        let receipt = answer.await.unwrap_or(Err(ConversationError::Gone))?;
        Ok(Reply::new(host, scope, receipt.round_id, receipt.replayed))
    }
}

impl IntoFuture for Send {
    type Output = Result<Reply, SendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + std::marker::Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
