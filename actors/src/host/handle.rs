//! Handles to tenants and conversations. Each method sends one message to the conversation and
//! waits for its answer, or reads the store.
//!
//! A handle can name a conversation that does not exist yet, and creating a handle activates
//! nothing. A malformed id is reported by the first method that needs it.

use crate::{
    chat::{
        ClientToolResult, ClientTools, History, Message, ModelParameters, RawJson, ToolChoice,
        ToolDefinition,
    },
    conversation::{
        Answer, Command, Consent, ConversationError, ConversationMsg, Ports, PromptMail, Setup,
        instruction, kept_bytes, round::OnBusy,
    },
    host::{
        SendError,
        store_admission::{admit_bytes, admit_round},
    },
    ids::{ConversationId, RoundId, Scope, TenantId},
    journal::{ClientKey, CompactionNote, ConversationRound, Durable, Head, digest},
    limits::CLIENT_RESULT_BYTES_MAX,
    policy::{Amount, Budget},
    ports::{ListQuery, SessionSummary},
    reads::{DECODED_IN_PLACE, ReadPermit, decoded},
    tenant::Tenant,
};
use std::{
    collections::BTreeSet,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Semaphore, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{HostInner, Prompt, Reply, directory::Activity, prompt::Documents};

/// A tenant of a host. Cheap to clone.
#[derive(Clone)]
pub struct TenantHandle {
    pub(super) host: Arc<HostInner>,
    pub(super) id: Result<TenantId, SendError>,
}

impl TenantHandle {
    pub(super) fn new(host: Arc<HostInner>, id: Result<TenantId, SendError>) -> Self {
        Self { host, id }
    }

    /// The tenant's quotas, counters and budget.
    pub(super) fn tenant(&self) -> Result<Arc<Tenant>, SendError> {
        Ok(self.host.tenants.get(&self.id.clone()?))
    }

    /// Returns a handle to a conversation, which need not exist yet.
    pub fn conversation<C: TryInto<ConversationId, Error: Into<SendError>>>(
        &self,
        id: C,
    ) -> ConversationHandle {
        let scope = self
            .id
            .clone()
            .and_then(|tenant| Ok(Scope::new(tenant, id.try_into().map_err(Into::into)?)));
        ConversationHandle {
            host: self.host.clone(),
            scope,
        }
    }

    /// Lists the tenant's stored conversations, without activating them.
    ///
    /// # Errors
    /// [`SendError`] for a wrong id or a failing store.
    pub async fn conversations(&self, query: ListQuery) -> Result<Vec<SessionSummary>, SendError> {
        let id = self.id.clone()?;
        Ok(self.host.ports.sessions.list(&id, query).await?)
    }

    /// Sets the budget that all conversations of the tenant share. What was spent since this host
    /// started counts toward it, and what the store knows of earlier hosts and of others while the
    /// tenant had a budget. It applies from the next model call on.
    ///
    /// # Errors
    /// [`SendError::NoPrice`] for a budget in money when the model has no price;
    /// [`SendError::InvalidId`].
    pub fn set_budget(&self, budget: Budget) -> Result<(), SendError> {
        let tenant = self.tenant()?;
        let setup = self.host.directory.setup_of(tenant.id());
        if budget.micro_usd.is_some()
            && let Some(model) = setup.unpriced_model()
        {
            return Err(SendError::NoPrice {
                model: model.to_string(),
            });
        }
        tenant.budget().set(budget);
        Ok(())
    }

    /// What the tenant's conversations have spent and reserved. Only calls to which a budget applied
    /// are counted. What earlier hosts of the store and others spent is included about a second
    /// after the tenant has a budget, and before its first prompt.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn spent(&self) -> Result<Amount, SendError> {
        Ok(self.tenant()?.budget().spent())
    }

    /// The number of admitted prompts whose rounds have not ended.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn prompts_under_way(&self) -> Result<usize, SendError> {
        Ok(self.tenant()?.seats_taken())
    }
}

/// A conversation of a tenant. Cheap to clone; it need not exist yet.
#[derive(Clone)]
pub struct ConversationHandle {
    pub(super) host: Arc<HostInner>,
    pub(super) scope: Result<Scope, SendError>,
}

impl ConversationHandle {
    /// Sends a prompt. Await the returned [`SendPrompt`] for a [`Reply`]; set its deadline, client
    /// key or busy policy first.
    pub fn send(&self, prompt: impl Into<Prompt>) -> SendPrompt {
        self.prompt(Some(prompt.into()))
    }

    /// Has the model answer the history as it is, without another message: an import that ends with
    /// results of tools or a message of a user.
    ///
    /// Awaiting it is refused with `NothingToAnswer` when the history ends otherwise, and while a
    /// round is open or a prompt waits.
    pub fn go_on(&self) -> SendPrompt {
        self.prompt(None)
    }

    fn prompt(&self, prompt: Option<Prompt>) -> SendPrompt {
        let conversation = self.clone();
        SendPrompt {
            conversation,
            prompt,
            on_busy: OnBusy::Queue,
            deadline: None,
            wait: None,
            client_key: None,
            output_schema: None,
            parameters: ModelParameters::default(),
            client_tools: None,
            is_counted: false,
        }
    }

    /// Requests cancellation of the open round. Returns when the request is accepted, not when the
    /// round has ended.
    ///
    /// # Errors
    /// `NoSuch` when no round is open.
    pub async fn interrupt(&self) -> Result<(), SendError> {
        self.ask(Command::Interrupt).await
    }

    /// Answers for the tool call for which a round waits: `true` and `false` allow and deny it,
    /// [`Consent`] has more answers.
    ///
    /// # Errors
    /// `NoSuch` when no round waits for the approval of this call; `Arguments` when changed
    /// arguments cannot be used.
    pub async fn approve(
        &self,
        tool_call_id: impl Into<String>,
        answer: impl Into<Consent>,
    ) -> Result<(), SendError> {
        self.answer(None, tool_call_id.into(), answer.into()).await
    }

    /// Like [`approve`](Self::approve), for a call of this round only. The model chooses the id of a
    /// call, and another call may have it after a rewind, a reset or a deletion.
    ///
    /// # Errors
    /// Those of `approve`; `NoSuch` also when another round is open.
    pub async fn approve_in(
        &self,
        round_id: RoundId,
        tool_call_id: impl Into<String>,
        answer: impl Into<Consent>,
    ) -> Result<(), SendError> {
        self.answer(Some(round_id), tool_call_id.into(), answer.into())
            .await
    }

    async fn answer(
        &self,
        round_id: Option<RoundId>,
        tool_call_id: String,
        answer: Consent,
    ) -> Result<(), SendError> {
        let command = Command::Approve {
            round_id,
            tool_call_id,
            answer,
        };
        let scope = self.scope.clone()?;
        let _pending_bytes = match command.waiting_bytes() {
            0 => None, // A plain answer is a few bytes, and lets a round end.
            bytes => {
                let tenant = self.host.tenants.get(&scope.tenant);
                admit_bytes(&self.host.ports, &tenant, bytes).await?
            }
        };
        self.ask(command).await
    }

    /// Sends results of calls of tools that this caller brought, in any order: all are accepted, or
    /// none. When the last open call of its batch has its result, the round goes on. The same
    /// result may be sent again.
    ///
    /// # Errors
    /// `NoSuch` for a call that does not wait for its caller in this conversation;
    /// `AlreadyAnswered` for a call that has another result, or ended without one;
    /// [`SendError::ClientResult`] for a result that is too large.
    pub async fn client_tool_results(
        &self,
        results: impl IntoIterator<Item = ClientToolResult>,
    ) -> Result<(), SendError> {
        let results: Vec<ClientToolResult> = results.into_iter().collect();
        let sizes = results.iter().map(|result| result.content.len());
        if let Some(bytes) = sizes.clone().find(|bytes| *bytes > CLIENT_RESULT_BYTES_MAX) {
            return Err(SendError::ClientResult { bytes });
        }
        let scope = not_reserved(self.scope.clone()?)?;
        let tenant = self.host.tenants.get(&scope.tenant);
        self.host.admitted(tenant.in_service())?;
        self.host.writable()?;
        let _pending_bytes = admit_bytes(&self.host.ports, &tenant, sizes.sum()).await?;
        self.ask(Command::ToolResults { results }).await
    }

    /// Adds a message that the model reads at its next call. A message whose `id` is known already
    /// is ignored.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn inject(
        &self,
        id: Option<String>,
        text: impl Into<String>,
    ) -> Result<(), SendError> {
        let message = Message::user(text);
        let injected = self
            .begin(
                Some(message.wire().len()),
                Command::Inject { id, message },
                None,
            )
            .await;
        injected.inspect_err(|error| tracing::error!("Failed to inject messages: {error}"))
    }

    /// Pins a line: it becomes part of the model's context and stays through every compaction. A
    /// line that is pinned already is not added again.
    ///
    /// # Errors
    /// `PinnedFull` when the pinned lines have no room for it.
    pub async fn pin(&self, line: impl Into<String>) -> Result<(), SendError> {
        let line = line.into();
        self.begin(Some(line.len()), Command::Pin { line }, None)
            .await
    }

    /// Compacts the context now, and waits up to ten seconds for a summary of what is dropped, unless
    /// the strategy is `truncate`. Returns `None` when there was nothing to drop.
    ///
    /// # Errors
    /// `RoundOpen` while a round is open; `CannotShrink` when the system prompt, the tools and the
    /// pinned lines alone are too large; `Overloaded` when the tenant's stored bytes are used up.
    pub async fn compact(&self) -> Result<Option<CompactionNote>, SendError> {
        self.compact_now(false).await
    }

    /// Compacts the context as [`ConversationHandle::compact`] does, but with the strategy
    /// `summarize`. Without `enable_llm_summarization`, and beyond what summaries may cost, there is
    /// none.
    ///
    /// # Errors
    /// As [`ConversationHandle::compact`].
    pub async fn compact_with_summary(&self) -> Result<Option<CompactionNote>, SendError> {
        self.compact_now(true).await
    }

    async fn compact_now(&self, summary: bool) -> Result<Option<CompactionNote>, SendError> {
        let scope = self.scope.clone()?;
        let _pending_bytes =
            admit_bytes(&self.host.ports, &self.host.tenants.get(&scope.tenant), 0).await?;
        let before = self.peek().await?.context.last_compaction;
        self.ask(Command::Compact { summary }).await?;
        let after = self.peek().await?.context.last_compaction;
        Ok(after.filter(|after| before.is_none_or(|before| before.seq != after.seq)))
    }

    /// Replaces the conversation's history with these messages. What only differs in form, such as
    /// tool results in another order than their calls, is put into the form of a [`History`].
    ///
    /// # Errors
    /// `RoundOpen` while a round is open; `InvalidHistory` with the first place that providers
    /// refuse. [`History::mend`] repairs such a history.
    pub async fn import(&self, messages: Vec<Message>) -> Result<(), SendError> {
        self.import_rounds(messages, Vec::new()).await
    }

    /// Replaces the conversation's history with these messages and the records of their rounds, as
    /// an export holds them. Without records, each user message begins a round.
    ///
    /// # Errors
    /// `RoundOpen` while a round is open; `InvalidHistory` with the first place that providers
    /// refuse; `InvalidMessage` when a record does not fit the history.
    pub async fn import_rounds(
        &self,
        messages: Vec<Message>,
        rounds: Vec<ConversationRound>,
    ) -> Result<(), SendError> {
        let place = match kept_bytes(&messages) {
            small if small <= DECODED_IN_PLACE => None,
            _ => self.host.read_permit(&self.scope.clone()?).await,
        };
        let (messages, bytes) = decoded(kept_bytes(&messages), &place, move || {
            let history = History::accept(messages)?;
            let messages: Vec<Message> = history.messages().iter().cloned().collect();
            Ok::<_, SendError>((messages, history.messages().wire_bytes()))
        })
        .await??;
        let command = Command::Import { messages, rounds };
        self.begin(Some(bytes), command, place).await
    }

    /// Takes back a round and all later ones. They stay in the journal, what they spent stays
    /// spent, and [`ConversationHandle::fork`] at a round that was taken back restores it in a new
    /// conversation.
    ///
    /// # Errors
    /// `NoSuch` when the history holds no such round; `RoundOpen` while a round is open or a prompt
    /// waits.
    pub async fn rewind(&self, round_id: RoundId) -> Result<(), SendError> {
        self.ask(Command::Rewind { round_id }).await
    }

    /// Copies this conversation into another one of the same tenant, up to the end of the round
    /// `at`, or up to the last round that is over when `at` is `None`. The source is read from the
    /// store: it is not activated, it may run meanwhile, and an open round is not copied.
    ///
    /// # Errors
    /// `NotFound` when there is nothing to copy, `NoSuch` when the round is unknown or not over,
    /// `NotEmpty` when the target conversation is not empty.
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
        let permit = self.host.read_permit(&from).await;
        let sessions = &*self.host.ports.sessions;
        let copied = crate::conversation::read_fork(sessions, &from, &permit, at).await?;
        let copied = Box::new(copied);
        let bytes = copied
            .fork
            .messages
            .iter()
            .map(|message| message.wire().len())
            .sum();
        // The copy is written with the place with which it was read.
        fork.begin(Some(bytes), Command::Fork { copied }, permit)
            .await?;
        Ok(fork)
    }

    /// Empties the conversation and erases its entries, its artifacts and summaries, and the
    /// conversations of its subagents. Its id, its place in the tenant's list and its next epoch
    /// stay. A conversation that does not exist is created, if the tenant's quota allows one more.
    ///
    /// # Errors
    /// `RoundOpen` while a round is open; `Overloaded` when the tenant has as many conversations as
    /// it may have; [`SendError`] of a failing store. Some data may remain after a store error;
    /// another reset erases the rest.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop an erasure that has begun.
    pub async fn reset(&self) -> Result<(), SendError> {
        let scope = self.scope.clone()?;
        let was_there = self.host.ports.sessions.head(&scope).await? != Head::default();
        // List the children before the reset, so that subagents of a round that begins after it are
        // kept.
        let children = if was_there {
            self.host.children(&scope).await?
        } else {
            BTreeSet::new()
        };
        self.begin(None, Command::Reset, None).await?;
        if !was_there {
            return Ok(());
        }
        let reset_at = self.peek().await?.reset_at;
        self.host.clone().empty(scope, reset_at, children).await
    }

    /// Activates the conversation, so that a round that was open when its host stopped is resumed.
    /// Returns that round.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn resume(&self) -> Result<Option<Reply>, SendError> {
        let state = self.peek().await?;
        let scope = self.scope.clone()?;
        Ok(state
            .round
            .as_ref()
            .map(|round| Reply::new(self.host.clone(), scope, round.id, true)))
    }

    /// Watches a round of this conversation.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn watch(&self, round_id: RoundId) -> Result<Reply, SendError> {
        Ok(Reply::new(
            self.host.clone(),
            self.scope.clone()?,
            round_id,
            true,
        ))
    }

    /// Reads the state as it is stored: history, open round, figures. A conversation that is awake
    /// answers from memory once its entries are stored, and the store is asked for its head only;
    /// otherwise its journal is read from the store. Does not
    /// activate the conversation, and does not keep it awake.
    ///
    /// # Errors
    /// [`SendError`] for a failing store or an unreadable journal.
    pub async fn state(&self) -> Result<Durable, SendError> {
        let scope = self.scope.clone()?;
        // The head is one row. It shows whether another process has written the conversation since
        // this one did, and fails with a store that cannot be read.
        let head = self.host.ports.sessions.head(&scope).await?;
        if let Some(state) = self.host.directory.read_awake(&scope).await
            && (state.epoch, state.head) >= (head.epoch, head.seq)
        {
            return Ok(*state);
        }
        Ok(self.host.read_stored(&scope).await?)
    }

    /// As [`ConversationHandle::state`], for a prompt that follows from it. A conversation that is
    /// awake here answers without a look at the store: if another process has written it since, the
    /// prompt is refused with [`ConversationError::InUse`].
    ///
    /// # Errors
    /// Those of [`ConversationHandle::state`].
    pub async fn state_for_prompt(&self) -> Result<Durable, SendError> {
        let scope = self.scope.clone()?;
        match self.host.directory.read_awake(&scope).await {
            Some(state) => Ok(*state),
            None => self.state().await,
        }
    }

    /// The tenant and the conversation, or the error of a malformed id.
    pub(super) fn scope(&self) -> Result<Scope, SendError> {
        self.scope.clone()
    }

    /// What a watcher needs: the ports, and the token that is cancelled when the host stops. It
    /// does not hold the host, so that a watcher does not keep the host running.
    pub(super) fn watching(&self) -> (Ports, CancellationToken) {
        (
            self.host.ports.clone(),
            self.host.directory.stopped().clone(),
        )
    }

    /// The tenant's places for reads of journals. They do not hold the host.
    pub(super) fn reads(&self) -> Result<Arc<Semaphore>, SendError> {
        let scope = self.scope.clone()?;
        Ok(self.host.tenants.get(&scope.tenant).reads().clone())
    }

    /// The conversation's activity in the directory.
    pub(super) fn activity(&self) -> Result<Activity, SendError> {
        Ok(self.host.directory.activity(&self.scope()?))
    }

    /// The setup that the conversation gets at its next activation.
    pub(super) fn setup(&self) -> Result<Arc<Setup>, SendError> {
        let scope = self.scope.clone()?;
        Ok(self
            .host
            .directory
            .setup_of(&scope.tenant)
            .of(&scope.conversation))
    }

    /// Sends a command that may create the conversation, after the tenant's quotas have admitted
    /// it. `bytes` is what the command will store; `None` skips the check of stored bytes, for
    /// commands that free more than they store. The quota reservations are held until the answer:
    /// dropping `pending` before `keep` has the store counted again.
    pub(super) async fn begin(
        &self,
        bytes: Option<usize>,
        command: Command,
        place: ReadPermit,
    ) -> Result<(), SendError> {
        let scope = not_reserved(self.scope.clone()?)?;
        let tenant = self.host.tenants.get(&scope.tenant);
        self.host.admitted(tenant.in_service())?;
        self.host.writable()?;
        let _pending_bytes = match bytes {
            Some(bytes) => admit_bytes(&self.host.ports, &tenant, bytes).await?,
            None => None,
        };
        let pending = self
            .host
            .admit_conversation(&tenant, &scope.conversation)
            .await?;
        self.ask_within(command, place).await?;
        if let Some(pending) = pending {
            pending.keep();
        }
        Ok(())
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn ask(&self, command: Command) -> Result<(), SendError> {
        self.ask_within(command, None).await
    }

    /// As [`ConversationHandle::ask`], for a command that holds a place among the reads of its tenant
    /// until what it led to is stored.
    async fn ask_within(&self, command: Command, place: ReadPermit) -> Result<(), SendError> {
        self.send_mail(|reply| ConversationMsg::Ask {
            command,
            place,
            reply,
        })
        .await
    }

    /// A copy of the state in memory.
    async fn peek(&self) -> Result<Box<Durable>, SendError> {
        self.send_mail(|reply| ConversationMsg::Peek { reply })
            .await
    }

    async fn send_mail<T>(
        &self,
        mail: impl FnOnce(Answer<T>) -> ConversationMsg,
    ) -> Result<T, SendError> {
        let scope = self.scope.clone()?;
        let (reply, answer) = oneshot::channel();
        self.host.directory.send(&scope, mail(reply));
        Ok(answer.await.unwrap_or(Err(ConversationError::Gone))?)
    }
}

/// Refuses the ids of subagents: only the parent may send them messages.
fn not_reserved(scope: Scope) -> Result<Scope, SendError> {
    if scope.conversation.is_reserved() {
        Err(SendError::Reserved)
    } else {
        Ok(scope)
    }
}

/// A prompt that is sent when it is awaited. Nothing happens before.
#[must_use = "the prompt is not sent until this is awaited"]
pub struct SendPrompt {
    conversation: ConversationHandle,
    /// `None` to answer the history as it is.
    prompt: Option<Prompt>,
    on_busy: OnBusy,
    deadline: Option<Duration>,
    wait: Option<Duration>,
    client_key: Option<String>,
    output_schema: Option<RawJson>,
    parameters: ModelParameters,
    client_tools: Option<ClientTools>,
    is_counted: bool,
}

impl SendPrompt {
    /// Does not count the prompt against the tenant's prompts per minute again: the caller has
    /// counted it by [`TenantHandle::admit_change`], before it stored the history of the prompt.
    pub fn counted(mut self) -> Self {
        self.is_counted = true;
        self
    }

    /// Sets what happens when a round is open. Default: the prompt is queued.
    pub fn on_busy(mut self, on_busy: OnBusy) -> Self {
        self.on_busy = on_busy;
        self
    }

    /// Sets the deadline of the round, counted from now, time in the queue included.
    pub fn deadline(mut self, within: Duration) -> Self {
        self.deadline = Some(within);
        self
    }

    /// Sets how long the prompt may wait in the conversation's queue. If its round has not started
    /// then, it is withdrawn with the code `deadline` and never runs. Once the round has started,
    /// this bounds nothing.
    pub fn wait_at_most(mut self, within: Duration) -> Self {
        self.wait = Some(within);
        self
    }

    /// Sets an idempotency key: a prompt with a known key returns the round of the first one.
    pub fn client_key(mut self, key: impl Into<String>) -> Self {
        self.client_key = Some(key.into());
        self
    }

    /// Sets the JSON Schema that the answer must match. An answer that does not match is refused
    /// and the model is asked again, at most twice. A prompt with a schema is never steered into
    /// the open round: it is queued.
    pub fn output_schema(mut self, schema: RawJson) -> Self {
        self.output_schema = Some(schema);
        self
    }

    /// Sets how the model is asked to answer in the round of this prompt. What is left open comes
    /// from the tenant and the host. A prompt with parameters is never steered into the open
    /// round: it is queued.
    pub fn parameters(mut self, parameters: ModelParameters) -> Self {
        self.parameters = parameters.or(&self.parameters);
        self
    }

    /// Brings tools that the caller runs itself. A call of one waits, through restarts of the host,
    /// until [`ConversationHandle::client_tool_results`] brings its result or
    /// [`Limits::client_result`](crate::limits::Limits::client_result) is over; the event
    /// `client_tool_call` announces it. The tools hold for the round of this prompt. A prompt with
    /// tools is never steered into the open round: it is queued.
    pub fn client_tools(mut self, tools: impl IntoIterator<Item = ToolDefinition>) -> Self {
        let tools = tools.into_iter().collect();
        let choice = self.client_tools.map(|brought| brought.choice);
        let choice = choice.unwrap_or_default();
        self.client_tools = Some(ClientTools { tools, choice });
        self
    }

    /// Sets whether the model may or must call a tool. All but [`ToolChoice::None`] hold for the
    /// first model call of the round.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        let tools = self.client_tools.map(|brought| brought.tools);
        let tools = tools.unwrap_or_default();
        self.client_tools = Some(ClientTools { tools, choice });
        self
    }

    async fn run(mut self) -> Result<Reply, SendError> {
        let ConversationHandle { host, scope } = self.conversation;
        let scope = not_reserved(scope?)?;
        let deadline = self.deadline.map(|within| Instant::now() + within);
        let wait_until = self.wait.map(|within| Instant::now() + within);
        let tenant = host.tenants.get(&scope.tenant);
        host.writable()?;
        let setup = host.directory.setup_of(tenant.id());
        let parameters = checked_parameters(self.parameters, &setup)?;
        let client_tools = checked_tools(self.client_tools, &setup)?;
        if let Some(schema) = self.output_schema.as_ref().filter(|_| !setup.native_output) {
            let block = instruction(schema);
            self.prompt = Some(match self.prompt {
                Some(prompt) => prompt.with_instruction(block),
                None => Prompt::blocks(vec![block]),
            });
        }
        // Admission: the prompt quotas, the message itself, memory, stored bytes, and the number of
        // conversations. Every guard is held until the conversation has accepted the prompt; an
        // early return drops them, so a refused prompt uses up nothing.
        let mut seat = host.admitted(match self.is_counted {
            true => tenant.admit_counted(),
            false => tenant.admit(),
        })?;
        let documents = if setup.takes_documents {
            Documents::Taken
        } else {
            Documents::Read(host.documents.as_deref())
        };
        let message = match self.prompt {
            Some(prompt) => Some(prompt.into_message(tenant.id(), documents).await?),
            None => None,
        };
        let bytes = message.as_ref().map_or(0, |message| message.wire().len())
            + self
                .output_schema
                .as_ref()
                .map_or(0, |schema| schema.as_str().len())
            + client_tools.as_ref().map_or(0, |brought| brought.bytes());
        host.admitted(seat.weigh(bytes, || host.ports.events.bytes(&scope.tenant)))?;
        let _pending_bytes = admit_round(&host.ports, &tenant, &mut seat, bytes).await?;
        let pending = host
            .admit_conversation(&tenant, &scope.conversation)
            .await?;
        if let Some(skills) = &setup.skills {
            skills.refresh().await;
        }
        let (reply, answer) = oneshot::channel();
        let mail = PromptMail {
            id: host.ports.entropy.prompt_id(),
            round_id: host.ports.entropy.round_id(),
            client_key: self.client_key.map(|key| ClientKey {
                key,
                digest: digest_of(
                    message.as_ref(),
                    self.output_schema.as_ref(),
                    parameters.as_deref(),
                    client_tools.as_deref(),
                ),
            }),
            message,
            output_schema: self.output_schema,
            parameters,
            client_tools,
            on_busy: self.on_busy,
            deadline,
            wait_until,
            seat,
            reply,
        };
        host.directory
            .send(&scope, ConversationMsg::Prompt(Box::new(mail)));
        let receipt = answer.await.unwrap_or(Err(ConversationError::Gone))?;
        if let Some(pending) = pending {
            pending.keep();
        }
        Ok(Reply::new(host, scope, receipt.round_id, receipt.replayed))
    }
}

/// Checks the parameters of a prompt, together with those that it leaves to `setup`. `None` if the
/// prompt asks for nothing.
fn checked_parameters(
    asked: ModelParameters,
    setup: &Setup,
) -> Result<Option<Arc<ModelParameters>>, SendError> {
    if asked.is_empty() {
        return Ok(None);
    }
    let merged = asked.or(&ModelParameters {
        max_tokens: Some(setup.max_tokens),
        ..setup.parameters.clone()
    });
    merged.check()?;
    if asked.thinking.is_some() && !setup.takes_thinking {
        return Err(SendError::NoThinking(setup.model.to_string()));
    }
    Ok(Some(Arc::new(asked)))
}

/// Checks the tools that the caller brings. `None` if it brings none and wishes nothing of them.
fn checked_tools(
    brought: Option<ClientTools>,
    setup: &Setup,
) -> Result<Option<Arc<ClientTools>>, SendError> {
    let is_empty = |brought: &ClientTools| brought.tools.is_empty() && brought.choice.is_auto();
    let Some(brought) = brought.filter(|brought| !is_empty(brought)) else {
        return Ok(None);
    };
    brought.check(|name| setup.tools.spec(name).is_some())?;
    Ok(Some(Arc::new(brought)))
}

/// The digest that a repeated client key must come with: of all that the prompt asks.
fn digest_of(
    message: Option<&Message>,
    schema: Option<&RawJson>,
    parameters: Option<&ModelParameters>,
    client_tools: Option<&ClientTools>,
) -> u64 {
    let wire: &[u8] = message.map_or(&[], |message| message.wire());
    let parameters = parameters.and_then(|parameters| serde_json::to_vec(parameters).ok());
    let client_tools = client_tools.and_then(|tools| serde_json::to_vec(tools).ok());
    if schema.is_none() && parameters.is_none() && client_tools.is_none() {
        return digest(wire);
    }
    let mut all = wire.to_vec();
    all.extend_from_slice(schema.map_or("", RawJson::as_str).as_bytes());
    all.extend(parameters.unwrap_or_default());
    all.extend(client_tools.unwrap_or_default());
    digest(&all)
}

impl IntoFuture for SendPrompt {
    type Output = Result<Reply, SendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
