//! Handles to tenants and conversations: what they can be asked.

use crate::{
    chat::{Message, RawJson},
    conversation::{Answer, ConversationError, ConversationMsg, Ports, PromptMail, Setup, SkillRegistry, instruction, round::OnBusy},
    host::{SendError, room::room},
    ids::{ConversationId, RoundId, Scope, TenantId},
    journal::{ActivatedBy, ActiveSkill, ClientKey, CompactionNote, ConversationRound, Durable, Head, digest},
    policy::{Amount, Budget},
    ports::{ListQuery, SessionSummary},
    skill::{SkillActivationRequest, SkillMetadata, SkillName},
    tenant::Tenant,
};
use std::{
    collections::BTreeSet,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{HostInner, Prompt, Reply, directory::Place, prompt::Documents};

/// A tenant of a host.
#[derive(Clone)]
pub struct TenantHandle {
    pub(super) host: Arc<HostInner>,
    pub(super) id: Result<TenantId, SendError>,
}

impl TenantHandle {
    pub(super) fn new(host: Arc<HostInner>, id: Result<TenantId, SendError>) -> Self {
        Self { host, id }
    }

    /// Its counters and policy.
    pub(super) fn tenant(&self) -> Result<Arc<Tenant>, SendError> {
        Ok(self.host.tenants.get(&self.id.clone()?))
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
        let tenant = self.tenant()?;
        let setup = self.host.directory.setup_of(tenant.id());
        if budget.micro_usd.is_some()
            && let Some(model) = setup.unpriced_model()
        {
            return Err(SendError::NoPrice { model: model.to_string() });
        }
        tenant.budget().set(budget);
        Ok(())
    }

    /// What the tenant's conversations have spent or reserved since this host began, as far as budgets were counted.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn spent(&self) -> Result<Amount, SendError> {
        Ok(self.tenant()?.budget().spent())
    }

    /// Prompts between admission and answer.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn prompts_under_way(&self) -> Result<usize, SendError> {
        Ok(self.tenant()?.seats_taken())
    }
}

/// A conversation of a tenant.
#[derive(Clone)]
pub struct ConversationHandle {
    pub(super) host: Arc<HostInner>,
    pub(super) scope: Result<Scope, SendError>,
}

impl ConversationHandle {
    /// Says something. Await it for a [`Reply`], or set a deadline, a client key, what to do when busy first.
    pub fn send(&self, prompt: impl Into<Prompt>) -> SendPrompt {
        let (conversation, prompt) = (self.clone(), prompt.into());
        SendPrompt { conversation, prompt, on_busy: OnBusy::Queue, deadline: None, client_key: None, output_schema: None }
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
        let injected = self.begin(Some(message.wire().len()), |reply| ConversationMsg::Inject { id, message, reply }).await;
        injected.inspect_err(|error| tracing::error!("Failed to inject messages: {error}"))
    }

    /// Keeps a line of context through every compaction, and tells it to the model (REQUIREMENTS C-51, `add_system_context`). A line that
    /// is kept already is taken once.
    ///
    /// # Errors
    /// `PinnedFull` when there is no room for it.
    pub async fn pin(&self, line: impl Into<String>) -> Result<(), SendError> {
        let line = line.into();
        self.begin(Some(line.len()), |reply| ConversationMsg::Pin { line, reply }).await
    }

    /// Makes the context smaller now, and waits up to ten seconds for a summary of what is dropped. `None`: there was nothing to drop.
    ///
    /// # Errors
    /// `RoundOpen` while a round is open, `CannotShrink` when system prompt, tools or pinned lines alone are too large; `Overloaded`
    /// while the tenant has as many bytes stored as it may have.
    pub async fn compact(&self) -> Result<Option<CompactionNote>, SendError> {
        let scope = self.scope.clone()?;
        let _room = room(&self.host.ports, &self.host.tenants.get(&scope.tenant), 0).await?;
        let before = self.ask(|reply| ConversationMsg::Peek { reply }).await?.context.last_compaction;
        self.ask(|reply| ConversationMsg::Compact { reply }).await?;
        let after = self.ask(|reply| ConversationMsg::Peek { reply }).await?.context.last_compaction;
        Ok(after.filter(|after| before.is_none_or(|before| before.seq != after.seq)))
    }

    /// Takes this history in place of what is there (REQUIREMENTS V-12, `update_messages`).
    ///
    /// # Errors
    /// `RoundOpen` while a round is open.
    pub async fn import(&self, messages: Vec<Message>) -> Result<(), SendError> {
        self.import_rounds(messages, Vec::new()).await
    }

    /// Takes this history with records of its rounds, as an export holds them. Without records a round begins with each message of a
    /// person.
    ///
    /// # Errors
    /// `RoundOpen` while a round is open; `InvalidMessage` when the history has faults or a record does not fit it.
    pub async fn import_rounds(&self, messages: Vec<Message>, rounds: Vec<ConversationRound>) -> Result<(), SendError> {
        let bytes = messages.iter().map(|message| message.wire().len()).sum();
        self.begin(Some(bytes), |reply| ConversationMsg::Import { messages, rounds, reply }).await
    }

    /// Takes a round and all later ones back (FAULTS F26). What was said there stays in the journal, and what was spent stays spent; a
    /// [`ConversationHandle::fork`] at a round that was taken back brings it to life again.
    ///
    /// # Errors
    /// `NoSuch` when the history holds no such round, `RoundOpen` while one is open or a prompt waits.
    pub async fn rewind(&self, round_id: RoundId) -> Result<(), SendError> {
        self.ask(|reply| ConversationMsg::Rewind { round_id, reply }).await
    }

    /// Begins another conversation of this tenant as a copy of this one: as it stood when the round `at` ended, or without one at the
    /// last border of two rounds. This one may run meanwhile; it is read from the store and not woken, and nothing of an open round is
    /// taken.
    ///
    /// # Errors
    /// `NotFound` when there is nothing to copy, `NoSuch` when the round is unknown or not over, `NotEmpty` when the other conversation
    /// holds something.
    ///
    /// # Cancel safety
    /// The copy is stored whole or not at all.
    pub async fn fork<C: TryInto<ConversationId, Error: Into<SendError>>>(
        &self,
        id: C,
        at: Option<RoundId>,
    ) -> Result<ConversationHandle, SendError> {
        let from = self.scope.clone()?;
        let fork = TenantHandle::new(self.host.clone(), Ok(from.tenant.clone())).conversation(id);
        fork.scope.clone()?;
        let copied = Box::new(crate::conversation::read_fork(&*self.host.ports.sessions, &from, at).await?);
        let bytes = copied.fork.messages.iter().map(|message| message.wire().len()).sum();
        fork.begin(Some(bytes), |reply| ConversationMsg::Fork { copied, reply }).await?;
        Ok(fork)
    }

    /// Reads the rounds from the store, oldest first (REQUIREMENTS V-01). Wakes nothing.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn rounds(&self) -> Result<Vec<ConversationRound>, SendError> {
        let scope = self.scope.clone()?;
        Ok(crate::conversation::read_rounds(&*self.host.ports.sessions, &scope).await?.rounds())
    }

    /// Activates a skill until it is deactivated: what it says enters the history, what it changes counts from the next model call on.
    ///
    /// # Errors
    /// [`SendError::Skill`] for a skill that is not there or cannot be used, `Refused(Skill)` for one that is active or too deep.
    pub async fn activate_skill(&self, name: impl AsRef<str>) -> Result<(), SendError> {
        let conversation_id = Some(self.scope.clone()?.conversation);
        let (shelf, name) = (self.shelf()?, skill_name(name.as_ref())?);
        let id = self.host.ports.entropy.activation_id();
        let request = SkillActivationRequest { conversation_id, ..SkillActivationRequest::new(name, id) };
        let loaded = Box::new(shelf.activation(&request, ActivatedBy::User).await);
        self.begin(Some(0), |reply| ConversationMsg::ActivateSkill { loaded, reply }).await
    }

    /// Ends a skill, and those that were activated on top of it; what they said stays in the history.
    ///
    /// # Errors
    /// `NoSuch` when it is not active.
    pub async fn deactivate_skill(&self, name: impl AsRef<str>) -> Result<(), SendError> {
        let name = skill_name(name.as_ref())?;
        self.ask(|reply| ConversationMsg::DeactivateSkill { name, reply }).await
    }

    /// The skills within reach, and which of them are active here. Wakes nothing.
    ///
    /// # Errors
    /// [`SendError::Skill`] when the host has none or they cannot be read, and as [`ConversationHandle::state`].
    pub async fn skills(&self) -> Result<Vec<SkillStanding>, SendError> {
        let listing = self.shelf()?.source().index().await.map_err(|error| SendError::Skill(error.to_string()))?;
        let state = self.state().await?;
        let standing = |metadata: SkillMetadata| SkillStanding { active: state.skills.active.get(&metadata.name).cloned(), metadata };
        Ok(listing.skills.into_iter().map(standing).collect())
    }

    fn shelf(&self) -> Result<Arc<SkillRegistry>, SendError> {
        self.setup()?.skills.clone().ok_or_else(|| SendError::Skill("this host has no skills".into()))
    }

    /// Empties the conversation and erases what it held: its entries, what its subagents stored, artifacts, summaries. One that was not
    /// there begins, if the tenant may have one more. Its name, its place in the tenant's list and its next epoch stay.
    ///
    /// # Errors
    /// `RoundOpen` while a round is open; `Overloaded` beyond the tenant's conversations; those of a failing store: then something of
    /// it may still be there, and asking again erases the rest.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop an erasure that began.
    pub async fn reset(&self) -> Result<(), SendError> {
        let scope = self.scope.clone()?;
        let was_there = self.host.ports.sessions.head(&scope).await? != Head::default();
        // Before the reset: what a round after it begins is not touched.
        let children = if was_there { self.host.children(&scope).await? } else { BTreeSet::new() };
        self.begin(None, |reply| ConversationMsg::Reset { reply }).await?;
        if !was_there {
            return Ok(());
        }
        let reset_at = self.ask(|reply| ConversationMsg::Peek { reply }).await?.reset_at;
        self.host.clone().empty(scope, reset_at, children).await
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
            Err(failure) => Err(failure.into()),
        }
    }

    /// Reads the messages from the store (REQUIREMENTS V-12, `get_messages`).
    ///
    /// # Errors
    /// As [`ConversationHandle::state`].
    pub async fn messages(&self) -> Result<Vec<Message>, SendError> {
        Ok(self.state().await?.history.messages().iter().cloned().collect())
    }

    /// Which conversation.
    pub(super) fn scope(&self) -> Result<Scope, SendError> {
        self.scope.clone()
    }

    /// What a watcher needs: it keeps no host alive.
    pub(super) fn watching(&self) -> (Ports, CancellationToken) {
        (self.host.ports.clone(), self.host.directory.stopped().clone())
    }

    /// Where it is.
    pub(super) fn place(&self) -> Result<Place, SendError> {
        Ok(self.host.directory.place(&self.scope()?))
    }

    /// How conversations of its tenant are set up.
    pub(super) fn setup(&self) -> Result<Arc<Setup>, SendError> {
        let scope = self.scope.clone()?;
        Ok(self.host.directory.setup_of(&scope.tenant).of(&scope.conversation))
    }

    /// Asks what may begin a conversation: where their number is bounded it needs a place, and where stored bytes are bounded it needs
    /// room for `bytes`; what frees more than it stores needs none.
    async fn begin<T>(&self, bytes: Option<usize>, mail: impl FnOnce(Answer<T>) -> ConversationMsg) -> Result<T, SendError> {
        let scope = not_reserved(self.scope.clone()?)?;
        let tenant = self.host.tenants.get(&scope.tenant);
        self.host.admitted(tenant.in_service())?;
        let _room = match bytes {
            Some(bytes) => room(&self.host.ports, &tenant, bytes).await?,
            None => None,
        };
        let place = self.host.place(&tenant, &scope.conversation).await?;
        let answer = self.ask(mail).await?;
        if let Some(place) = place {
            place.keep();
        }
        Ok(answer)
    }

    async fn ask<T>(&self, mail: impl FnOnce(Answer<T>) -> ConversationMsg) -> Result<T, SendError> {
        let scope = self.scope.clone()?;
        let (reply, answer) = oneshot::channel();
        self.host.directory.send(&scope, mail(reply));
        Ok(answer.await.unwrap_or(Err(ConversationError::Gone))?)
    }
}

/// Nobody but its parent tells a subagent anything.
fn not_reserved(scope: Scope) -> Result<Scope, SendError> {
    if scope.conversation.is_reserved() { Err(SendError::Reserved) } else { Ok(scope) }
}

fn skill_name(text: &str) -> Result<SkillName, SendError> {
    SkillName::new(text).map_err(|error| SendError::Skill(error.to_string()))
}

/// A skill, and whether it is active in a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillStanding {
    /// Level 1.
    pub metadata: SkillMetadata,
    /// How it is active, if it is.
    pub active: Option<ActiveSkill>,
}

/// A prompt about to be sent.
#[must_use = "nothing is said until this is awaited"]
pub struct SendPrompt {
    conversation: ConversationHandle,
    prompt: Prompt,
    on_busy: OnBusy,
    deadline: Option<Duration>,
    client_key: Option<String>,
    output_schema: Option<RawJson>,
}

impl SendPrompt {
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
        let scope = not_reserved(scope?)?;
        let deadline = self.deadline.map(|within| Instant::now() + within);
        let tenant = host.tenants.get(&scope.tenant);
        let setup = host.directory.setup_of(tenant.id());
        if let Some(schema) = self.output_schema.as_ref().filter(|_| !setup.native_output) {
            self.prompt = self.prompt.told(instruction(schema));
        }
        let mut seat = host.admitted(tenant.admit())?;
        let documents = if setup.takes_documents { Documents::Taken } else { Documents::Read(host.documents.as_deref()) };
        let message = self.prompt.into_message(documents).await?;
        let bytes = message.wire().len() + self.output_schema.as_ref().map_or(0, |schema| schema.as_str().len());
        host.admitted(seat.weigh(bytes, || host.ports.events.bytes(&scope.tenant)))?;
        let _room = room(&host.ports, &tenant, bytes).await?;
        let place = host.place(&tenant, &scope.conversation).await?;
        if let Some(skills) = &setup.skills {
            skills.look_again().await;
        }
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
            deadline,
            seat,
            reply,
        };
        host.directory.send(&scope, ConversationMsg::Prompt(Box::new(mail)));
        let receipt = answer.await.unwrap_or(Err(ConversationError::Gone))?;
        if let Some(place) = place {
            place.keep();
        }
        Ok(Reply::new(host, scope, receipt.round_id, receipt.replayed))
    }
}

impl IntoFuture for SendPrompt {
    type Output = Result<Reply, SendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
