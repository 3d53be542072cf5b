//! What the compatible APIs share: one call of a client, whatever its wire looks like.
//!
//! Without a conversation, a call runs in a temporary one, made of the messages that the client
//! sends and erased when the answer is complete. With one, only what the conversation does not have
//! yet is sent; results of the client's tools continue the round that waits for them. Unlike on the
//! routes under `/v1`, a client that disconnects cancels its round.

mod asked;
mod count;
pub(super) mod guard;
mod loose;
pub(super) mod model;
mod prefix;
pub(super) mod steps;
mod streamed;
mod transcript;

use std::collections::{HashSet, VecDeque};

use axum::http::StatusCode;
use callboard_actors::{
    chat::{
        ContentBlock, History, Message, MessageList, ModelParameters, RawJson, ToolChoice,
        ToolDefinition,
    },
    conversation::BUDGET_CODE,
    host::{ConversationHandle, Prompt, Reply, SendPrompt},
    ids::{RoundId, Scope, Seq, TenantId},
    journal::Durable,
    stream::{Failure, StreamEvent},
};

pub(super) use self::{
    asked::{Asked, BringsHistory},
    count::count_tokens,
    loose::{Given, Loose, LooseText, Skipped},
    prefix::Prefix,
    steps::{Ended, Step},
    streamed::{Encoder, Out, data, event, respond},
    transcript::{Speaker, Transcript, Turn, instructions_in},
};
use self::{
    guard::{DisconnectGuard, stateless_id},
    steps::Steps,
    transcript::{Begin, after, after_texts},
};
use super::{
    body::{WORKED_IN_PLACE_MAX, worked},
    error::Problem,
    shared::{App, BodyRoom, Watching, scope},
};

/// The conversation that a call belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bound {
    /// A temporary one.
    Nothing,
    /// A new one of this name, which no other has.
    New(String),
    /// This one; the messages are its whole history.
    Whole(String),
    /// This one, which is known; the messages are only what is new. Its round may wait for its
    /// client.
    Follows(String, Option<RoundId>),
}

/// One call of a client.
pub(super) struct Ask {
    pub(super) bound: Bound,
    pub(super) transcript: Transcript,
    /// Whether the transcript is worked on with a place of the large bodies.
    pub(super) is_large: bool,
    /// Tools that the client runs.
    pub(super) tools: Vec<ToolDefinition>,
    pub(super) choice: Option<ToolChoice>,
    /// JSON Schema of the answer.
    pub(super) schema: Option<RawJson>,
    pub(super) parameters: ModelParameters,
    /// Whether the answer is streamed.
    pub(super) streams: bool,
    /// Room for the request until it is stored.
    pub(super) room: BodyRoom,
}

/// Where a call is found in its conversation: a round that waits for its client has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) round: RoundId,
    /// The entry behind which the call begins.
    pub(super) begins_at: Seq,
}

/// A call under way. Dropping it means that the client left.
pub(super) struct Call {
    reply: Reply,
    /// `None` once the end was delivered.
    guard: Option<DisconnectGuard>,
    _watching: Option<Watching>,
    steps: Steps,
    ahead: VecDeque<Step>,
    /// Whether it can be read again from what is stored.
    is_kept: bool,
}

impl Call {
    /// Starts a call.
    pub(super) async fn begin(app: &App, tenant: &TenantId, ask: Ask) -> Result<Self, Problem> {
        ask.transcript.check_attachments(app)?;
        // Reserved before anything is stored: a stored prompt must not be answered with 429.
        let watching = match ask.streams {
            true => Some(app.watch(tenant)?),
            false => None,
        };
        let is_stateless = ask.bound == Bound::Nothing;
        let scope = match &ask.bound {
            Bound::Nothing => scope(tenant, &stateless_id())?,
            Bound::New(id) | Bound::Whole(id) | Bound::Follows(id, _) => scope(tenant, id)?,
        };
        let conversation = app.conversation(&scope);
        let is_large = ask.is_large;
        // From here on, dropping this future (the client left) interrupts the round, or erases the
        // temporary conversation.
        let mut guard = DisconnectGuard::new(conversation.clone(), is_stateless);
        let results = ask.transcript.results();
        let known = match ask.bound {
            Bound::Nothing | Bound::New(_) => None,
            Bound::Follows(_, waiting) => Some((waiting, Known::Followed)),
            Bound::Whole(_) => {
                let state = conversation.state_for_prompt().await?;
                let is_known = state.head.0 > 0;
                is_known.then(|| (waiting_in(&state), Known::of(&state)))
            }
        };
        let (reply, awaited) = if known.is_some() && !results.is_empty() {
            let awaited = results.iter().map(|result| result.tool_call_id.clone());
            let awaited: HashSet<String> = awaited.collect();
            app.host.tenant(tenant).check_open()?;
            let round = round_of(&conversation).await?;
            conversation.client_tool_results(results).await?;
            (conversation.watch(round)?, awaited)
        } else {
            let send = match known {
                Some((waiting, known)) => {
                    give_up(app, tenant, &conversation, waiting).await?;
                    let known = (&conversation, known);
                    next_prompt(app, tenant, known, ask.transcript, is_large).await?
                }
                None => begin(app, tenant, &conversation, ask.transcript, is_large).await?,
            };
            let mut send = send.parameters(ask.parameters);
            if !ask.tools.is_empty() {
                send = send.client_tools(ask.tools);
            }
            if let Some(choice) = ask.choice {
                send = send.tool_choice(choice);
            }
            if let Some(schema) = ask.schema {
                send = send.output_schema(schema);
            }
            (guard.send(send).await?, HashSet::new())
        };
        drop(ask.room); // The prompt counts as memory of its tenant now.
        guard.round(&reply);
        let mut call = Self {
            reply,
            guard: Some(guard),
            _watching: watching,
            steps: Steps::new(awaited),
            ahead: VecDeque::new(),
            is_kept: false,
        };
        call.settle().await;
        Ok(call)
    }

    /// Where the call is found again.
    pub(super) fn place(&self) -> Place {
        Place {
            round: self.reply.round_id(),
            begins_at: self.steps.begins_at(),
        }
    }

    /// The end was delivered: nothing is cancelled, and a temporary conversation is erased.
    async fn stays(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.stays().await;
        }
    }

    /// The next step; `None` when the host stops before the end. Cancel safe.
    async fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.ahead.pop_front() {
                return Some(step);
            }
            let event = self.reply.next().await?;
            self.take(&event);
        }
    }

    fn take(&mut self, event: &StreamEvent) {
        self.ahead
            .extend(self.steps.take(event.id.seq, &event.kind));
    }

    /// Reads on to where the call begins, so that it can be found again.
    async fn settle(&mut self) {
        while !self.steps.is_here()
            && let Some(event) = self.reply.next().await
        {
            self.take(&event);
        }
    }

    /// A call that was made before, from its beginning. Nothing of it depends on this client.
    pub(super) fn again(
        app: &App,
        scope: &Scope,
        place: Place,
        watching: Option<Watching>,
    ) -> Result<Self, Problem> {
        Ok(Self {
            reply: app.conversation(scope).watch(place.round)?,
            guard: Some(DisconnectGuard::none()),
            _watching: watching,
            steps: Steps::behind(place.begins_at),
            ahead: VecDeque::new(),
            is_kept: true,
        })
    }

    /// Makes the call independent of its client, which may leave.
    pub(super) fn detach(&mut self) {
        if let Some(guard) = self.guard.replace(DisconnectGuard::none()) {
            guard.disarm();
        }
    }

    /// The end of the call, if it has ended. Does not wait.
    ///
    /// # Errors
    /// The failure of its round.
    pub(super) async fn end_now(&mut self) -> Option<Result<Ended, Problem>> {
        loop {
            match self.ahead.pop_front() {
                Some(Step::Ended(ended)) => return Some(Ok(ended)),
                Some(Step::Failed(failure)) => return Some(Err(failed(&failure))),
                Some(Step::Text(_) | Step::Thinking(_) | Step::Message(_)) => {}
                None => {
                    let event = self.reply.next_now().await?;
                    self.take(&event);
                }
            }
        }
    }

    /// Waits for the end. A failed round becomes an error: the answers of these APIs have no field
    /// for it.
    pub(super) async fn end(mut self, app: &App) -> Result<Ended, Problem> {
        let end = loop {
            let step = tokio::select! {
                biased;
                step = self.next() => step,
                () = app.config.leaving.cancelled() => break Err(Problem::draining()),
            };
            match step {
                Some(Step::Ended(ended)) => break Ok(ended),
                Some(Step::Failed(failure)) => break Err(failed(&failure)),
                Some(Step::Text(_) | Step::Thinking(_) | Step::Message(_)) => {}
                None => match self.reply.outcome().await {
                    Ok(_) => break Err(Problem::internal()),
                    Err(error) => break Err(error.into()),
                },
            }
        };
        self.stays().await;
        end
    }
}

/// The round that waits for its client, or the last one, whose client sends its results again.
async fn round_of(conversation: &ConversationHandle) -> Result<RoundId, Problem> {
    let state = conversation.state().await?;
    if let Some(round) = state.round {
        return Ok(round.id);
    }
    let last = conversation.rounds().await?;
    let last = last
        .last()
        .ok_or_else(|| Problem::not_found("open tool call"))?;
    Ok(last.round_id)
}

/// Ends a round that waits for its client's tools: the client sends something else.
async fn give_up(
    app: &App,
    tenant: &TenantId,
    conversation: &ConversationHandle,
    waiting: Option<RoundId>,
) -> Result<(), Problem> {
    if let Some(round) = waiting {
        app.host.tenant(tenant).check_open()?;
        conversation.interrupt().await?;
        let _ = conversation.watch(round)?.outcome().await;
    }
    Ok(())
}

/// The open round, if it waits for its client's tools.
pub(super) fn waiting_in(state: &Durable) -> Option<RoundId> {
    let round = state.round.as_ref()?;
    round.waits_for_client().then_some(round.id)
}

/// What the history of a request is compared with.
enum Known {
    /// Nothing: the messages are only what is new.
    Followed,
    /// The messages of the conversation between two rounds.
    Messages(MessageList),
    /// The rounds of the journal, as long as a round is open.
    Unsettled,
}

impl Known {
    fn of(state: &Durable) -> Self {
        match &state.round {
            Some(_) => Self::Unsettled,
            None => Self::Messages(state.history.messages().clone()),
        }
    }
}

/// The prompt for a conversation that has entries: what follows its history. The messages of the
/// conversation are compared first, because reading its rounds takes the whole journal.
async fn next_prompt(
    app: &App,
    tenant: &TenantId,
    (conversation, known): (&ConversationHandle, Known),
    transcript: Transcript,
    is_large: bool,
) -> Result<SendPrompt, Problem> {
    let place = (&app.parses, Some(tenant.clone()));
    let transcript = match known {
        Known::Followed => {
            let begun = worked(place, is_large, move || transcript.begin());
            let Begin { history, prompt } = begun.await??;
            let prompt = prompt.filter(|_| history.is_empty()).ok_or_else(|| {
                let detail = "must be results of open calls, or messages of the user";
                Problem::invalid("/input", detail)
            })?;
            return Ok(conversation.send(Prompt::blocks(prompt)));
        }
        Known::Messages(known) if is_large || known.wire_bytes() <= WORKED_IN_PLACE_MAX => {
            let compared = move || (after_texts(&known, &transcript), transcript);
            match worked(place.clone(), is_large, compared).await? {
                (Some(blocks), _) => return Ok(conversation.send(Prompt::blocks(blocks))),
                (None, transcript) => transcript,
            }
        }
        Known::Messages(_) | Known::Unsettled => transcript,
    };
    let rounds = conversation.rounds().await?;
    let rounds: Vec<(String, Option<String>)> = rounds
        .into_iter()
        .filter(|round| round.is_over())
        .map(|round| (round.user_message, round.final_answer))
        .collect();
    let blocks = worked(place, is_large, move || after(&rounds, &transcript));
    let blocks = blocks.await?.ok_or_else(differs)?;
    Ok(conversation.send(Prompt::blocks(blocks)))
}

/// Imports the history into a new conversation. A history is stored only for a tenant that may send
/// the prompt, and both count as one request.
async fn begin(
    app: &App,
    tenant: &TenantId,
    conversation: &ConversationHandle,
    transcript: Transcript,
    is_large: bool,
) -> Result<SendPrompt, Problem> {
    let place = (&app.parses, Some(tenant.clone()));
    let begun = worked(place, is_large, move || {
        let Begin { history, prompt } = transcript.begin()?;
        // These APIs accept more than others do, such as blank texts, so the history is repaired.
        let (history, _) = History::mend(history);
        let history: Vec<Message> = history.messages().iter().cloned().collect();
        Ok::<_, Problem>((history, prompt))
    });
    let (history, prompt) = begun.await??;
    let send = |prompt: Option<Vec<ContentBlock>>| match prompt {
        Some(blocks) => conversation.send(Prompt::blocks(blocks)),
        None => conversation.go_on(),
    };
    if history.is_empty() {
        return Ok(send(prompt));
    }
    app.host.tenant(tenant).admit_change()?;
    conversation.import(history).await?;
    Ok(send(prompt).counted())
}

fn differs() -> Problem {
    let detail = "the messages do not begin with this conversation's history; send the history unchanged, or use another conversation id";
    Problem::new(StatusCode::CONFLICT, "conversation_differs", detail)
}

/// A failed round as a problem document. Failures that OpenAI's API knows have its status and code,
/// which clients act on.
pub(super) fn failed(failure: &Failure) -> Problem {
    let theirs = match failure.code.as_str() {
        "context_too_large" => Some((StatusCode::BAD_REQUEST, "context_length_exceeded")),
        "provider_rate_limited" => Some((StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded")),
        BUDGET_CODE | "stored_bytes" => Some((StatusCode::TOO_MANY_REQUESTS, "insufficient_quota")),
        "deadline" => Some((StatusCode::GATEWAY_TIMEOUT, "deadline")),
        _ => None,
    };
    let (status, code) = theirs.unwrap_or(match failure.retry_after_ms {
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, &*failure.code),
        None => (StatusCode::BAD_GATEWAY, &*failure.code),
    });
    let problem =
        Problem::new(status, code, failure.message.as_str()).after(failure.retry_after_ms);
    let problem = problem.of_stored();
    match code {
        "context_length_exceeded" => problem.at("/messages"),
        _ => problem,
    }
}
