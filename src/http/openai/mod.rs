//! The OpenAI-compatible API (Chat Completions). A request without a conversation id runs in a
//! temporary conversation, which is erased afterwards; with one, only messages that the
//! conversation does not have yet are sent. Unlike on all other routes, a client that disconnects
//! cancels its round.

mod convert;
mod stream;
mod wire;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    chat::{ContentBlock, History, RawJson},
    conversation::BUDGET_CODE,
    host::{ConversationHandle, OutcomeError, Prompt, Reply},
    ids::{ConversationId, RoundId, Scope, TenantId},
    ports::{Clock as _, Entropy as _, ListQuery, StoreError},
    stream::{Failure, RoundEnd, StopReason},
};

use self::{
    convert::{Transcript, after, unsupported},
    stream::Streamed,
    wire::{
        Answered, ChatCompletion, ChatError, ChatRequest, Choice, ErrorBody, ModelShown, Models,
    },
};
use super::{
    auth::Caller,
    body::Messages,
    error::Problem,
    routes::single_header,
    shared::{App, scope},
};
use crate::{
    Host,
    clock::{SystemClock, SystemEntropy},
};

/// Errors of routes under this prefix are written in OpenAI's form.
const PREFIX: &str = "/openai/";

/// Alias of the tenant's configured model; stays valid when the model changes.
const DEFAULT_MODEL: &str = "default";

/// Prefix of temporary conversations' ids; random hex digits follow.
const STATELESS: &str = "openai-";

/// Number of hex digits after [`STATELESS`].
const STATELESS_DIGITS: usize = 32;

/// Any request is parsed and converted or refused.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let _ = serde_json::from_slice::<ChatRequest>(data);
}

/// Creates a chat completion.
///
/// Without a conversation id, `messages` is the whole history. With `X-Conversation-Id` or
/// `metadata.conversation_id`, `messages` must begin with the conversation's history, and only the
/// messages after it are sent; a differing history is answered with 409. The caller's `tools` are
/// answered with 422: the host runs its own tools. A client that disconnects cancels the round.
#[utoipa::path(
    post, path = "/openai/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    params(("X-Conversation-Id" = Option<String>, Header, description = "The conversation that the call belongs to")),
    responses((status = 200, description = "The answer; with `stream`, chunks and `[DONE]`", body = ChatCompletion)),
)]
pub(super) async fn chat(
    State(app): State<App>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    Messages(request): Messages<ChatRequest>,
) -> Result<Response, Problem> {
    let model = app.host.setup_of(&tenant).model.clone();
    if request.model != *model && request.model != DEFAULT_MODEL {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            "model_not_found",
            "there is no such model; see GET /openai/v1/models",
        )
        .at("/model"));
    }
    let schema = schema(&request)?;
    let transcript = Transcript::from_request(&request)?;
    for (index, turn) in transcript.messages.iter().enumerate() {
        app.check_attachments(&turn.blocks, format_args!("/messages/{index}/content"))?;
    }
    let named = single_header(&headers, "x-conversation-id")?.map(str::to_owned);
    let bound = named.or_else(|| {
        request
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.conversation_id.clone())
    });
    let wants_stream = request.stream.unwrap_or_default();
    let watching = if wants_stream {
        Some(app.watch(&tenant)?)
    } else {
        None
    };

    let scope = scope(&tenant, &bound.clone().unwrap_or_else(stateless_id))?;
    let conversation = app.conversation(&scope);
    // From here on, dropping this future (the client left) interrupts the round, or erases the
    // temporary conversation.
    let mut guard = DisconnectGuard::new(conversation.clone(), bound.is_none());
    let known = match &bound {
        Some(_) => known_rounds(&app, &scope, &conversation).await?,
        None => None,
    };
    let (now, is_counted) = match known {
        Some(rounds) => (after(&rounds, transcript).ok_or_else(differs)?, false),
        None => begin(&app, &tenant, &conversation, transcript).await?,
    };
    let mut send = conversation
        .send(Prompt::blocks(now))
        .parameters(request.parameters());
    if is_counted {
        send = send.counted();
    }
    if let Some(schema) = schema {
        send = send.output_schema(schema);
    }
    let mut reply = send.await?;
    guard.round(&reply);

    let id = format!("chatcmpl-{}", reply.round_id());
    let created = SystemClock.now().0 / 1000;
    let model = model.to_string();
    if let Some(watching) = watching {
        let include_usage = request.stream_options.unwrap_or_default().include_usage;
        return Ok(Streamed {
            id,
            created,
            model,
            include_usage,
        }
        .respond(&app, reply, guard, watching));
    }
    let end = tokio::select! {
        biased;
        end = finished(&mut reply) => end,
        () = app.config.leaving.cancelled() => Err(Problem::draining()),
    };
    guard.stays().await;
    let end = end?;
    let message = Answered {
        role: "assistant",
        content: end.text,
        refusal: None,
    };
    let choices = vec![Choice {
        index: 0,
        message,
        finish_reason: finish_reason(end.stop_reason),
        logprobs: None,
    }];
    let answer = ChatCompletion {
        id,
        object: "chat.completion",
        created,
        model,
        choices,
        usage: end.usage.into(),
    };
    Ok(Json(answer).into_response())
}

/// Lists the models: the tenant's configured model, and its alias `default`.
#[utoipa::path(get, path = "/openai/v1/models", tag = "openai", responses((status = 200, description = "The models", body = Models)))]
pub(super) async fn models(State(app): State<App>, Caller(tenant): Caller) -> Json<Models> {
    let model = app.host.setup_of(&tenant).model.to_string();
    let shown = |id: String| ModelShown {
        id,
        object: "model",
        created: 0,
        owned_by: "callboard",
    };
    Json(Models {
        object: "list",
        data: vec![shown(model), shown(DEFAULT_MODEL.to_owned())],
    })
}

fn stateless_id() -> String {
    SystemEntropy
        .bytes()
        .iter()
        .fold(STATELESS.to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

/// Whether an id is that of a temporary conversation, which no client can ask for again.
fn is_stateless(id: &ConversationId) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    id.as_str()
        .strip_prefix(STATELESS)
        .is_some_and(|digits| digits.len() == STATELESS_DIGITS && digits.bytes().all(is_digit))
}

/// Lists temporary conversations that a stopped host did not erase. Call it before serving:
/// afterwards those of open requests look the same.
///
/// # Errors
/// The store's error.
pub async fn left_behind(host: &Host, tenant: &TenantId) -> Result<Vec<Scope>, StoreError> {
    let mut left = Vec::new();
    let mut after = ConversationId::new(STATELESS).ok();
    loop {
        let page = host
            .ports()
            .sessions
            .list(
                tenant,
                ListQuery {
                    after: after.clone(),
                    ..ListQuery::default()
                },
            )
            .await?;
        let Some(last) = page.last() else {
            return Ok(left);
        };
        let is_last = !last.conversation.as_str().starts_with(STATELESS);
        after = Some(last.conversation.clone());
        let ours = page
            .into_iter()
            .map(|row| row.conversation)
            .filter(is_stateless);
        left.extend(ours.map(|id| Scope::new(tenant.clone(), id)));
        if is_last {
            return Ok(left);
        }
    }
}

/// The JSON Schema that the answer must match, if `response_format` has one.
fn schema(request: &ChatRequest) -> Result<Option<RawJson>, Problem> {
    let Some(format) = &request.response_format else {
        return Ok(None);
    };
    match (
        format.kind.as_str(),
        format
            .json_schema
            .as_ref()
            .and_then(|json| json.schema.as_ref()),
    ) {
        ("text", _) => Ok(None),
        ("json_schema", Some(schema)) => {
            let raw = RawJson::from_text(schema.to_string());
            raw.map(Some).map_err(|error| {
                unsupported("/response_format/json_schema/schema", error.to_string())
            })
        }
        ("json_schema", None) => Err(unsupported(
            "/response_format/json_schema",
            "a `schema` is required",
        )),
        _ => Err(unsupported(
            "/response_format/type",
            "must be `text` or `json_schema`",
        )),
    }
}

/// Prompt and answer of each finished round; `None` for a conversation without entries.
async fn known_rounds(
    app: &App,
    scope: &Scope,
    conversation: &ConversationHandle,
) -> Result<Option<Vec<(String, Option<String>)>>, Problem> {
    if app.host.ports().sessions.head(scope).await?.seq.0 == 0 {
        return Ok(None);
    }
    let rounds = conversation.rounds().await?;
    Ok(Some(
        rounds
            .into_iter()
            .filter(|round| round.is_over())
            .map(|round| (round.user_message, round.final_answer))
            .collect(),
    ))
}

/// Imports the history into a new conversation. Returns the prompt, and whether its request is
/// counted: a history is stored only for a tenant that may send the prompt.
async fn begin(
    app: &App,
    tenant: &TenantId,
    conversation: &ConversationHandle,
    transcript: Transcript,
) -> Result<(Vec<ContentBlock>, bool), Problem> {
    let (history, now) = transcript.begin()?;
    let is_counted = !history.is_empty();
    if is_counted {
        app.host.tenant(tenant).admit_change()?;
        // OpenAI's API accepts more than others do, such as blank texts, so the history is repaired.
        let (history, _) = History::mend(history);
        conversation
            .import(history.messages().iter().cloned().collect())
            .await?;
    }
    Ok((now, is_counted))
}

fn differs() -> Problem {
    let detail = "the messages do not begin with this conversation's history; send the history unchanged, or use another conversation id";
    Problem::new(StatusCode::CONFLICT, "conversation_differs", detail)
}

/// Waits for the round's end. A failed round becomes an error, since OpenAI's response has no field
/// for it.
async fn finished(reply: &mut Reply) -> Result<RoundEnd, Problem> {
    match reply.outcome().await {
        Ok(end) => match failure_of(&end) {
            None => Ok(end),
            Some(failure) => Err(failed(failure)),
        },
        Err(OutcomeError::Failed { end }) => {
            Err(end.error.as_ref().map_or_else(Problem::internal, failed))
        }
        Err(error) => Err(error.into()),
    }
}

/// The failure of a round. A round that its budget cut has an answer if the model wrote any text;
/// `finish_reason` says that it is cut.
fn failure_of(end: &RoundEnd) -> Option<&Failure> {
    let is_cut = end.stop_reason == StopReason::Budget && !end.text.is_empty();
    end.error.as_ref().filter(|_| !is_cut)
}

/// A failed round as a problem document. Failures that OpenAI's API knows have its status and code,
/// which clients act on.
fn failed(failure: &Failure) -> Problem {
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
    match code {
        "context_length_exceeded" => problem.at("/messages"),
        _ => problem,
    }
}

fn finish_reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::Refusal => "content_filter",
        StopReason::MaxTokens
        | StopReason::IterationLimit
        | StopReason::LoopGuard
        | StopReason::Budget
        | StopReason::ContextTooLarge => "length",
        _ => "stop",
    }
}

/// Converts a problem document to OpenAI's error form.
fn in_their_form(problem: Problem) -> ChatError {
    let kind = match problem.status {
        401 | 403 => "authentication_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    let param = problem
        .pointer
        .map(|pointer| pointer.trim_start_matches('/').replace('/', "."));
    ChatError {
        error: ErrorBody {
            message: problem.detail,
            kind,
            param,
            code: problem.code,
        },
    }
}

/// Rewrites error responses of this API into OpenAI's form; other responses pass unchanged.
pub(super) fn translate(path: &str, mut response: Response) -> Response {
    if !path.starts_with(PREFIX) {
        return response;
    }
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };
    let status = response.status();
    let headers = response.headers().clone();
    let mut translated = (status, Json(in_their_form(problem))).into_response();
    for name in ["retry-after", "www-authenticate", "allow"] {
        translated.headers_mut().extend(
            headers
                .get(name)
                .cloned()
                .map(|value| (axum::http::HeaderName::from_static(name), value)),
        );
    }
    translated
}

/// Cleans up when the client disconnects, or when a request without a conversation id is over.
/// Dropping it means that the client left: the round is interrupted, or the temporary conversation
/// erased.
pub(super) struct DisconnectGuard {
    conversation: Option<ConversationHandle>,
    is_stateless: bool,
    round: Option<RoundId>,
}

impl DisconnectGuard {
    fn new(conversation: ConversationHandle, is_stateless: bool) -> Self {
        Self {
            conversation: Some(conversation),
            is_stateless,
            round: None,
        }
    }

    fn round(&mut self, reply: &Reply) {
        self.round = Some(reply.round_id());
    }

    /// The round's result was delivered: nothing is cancelled, and a temporary conversation is
    /// erased.
    pub(super) async fn stays(mut self) {
        if let Some(conversation) = self.conversation.take().filter(|_| self.is_stateless) {
            erase(&conversation).await;
        }
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        let Some(conversation) = self.conversation.take() else {
            return;
        };
        let is_stateless = self.is_stateless;
        let round = self.round;
        // `drop` cannot wait, so a task does the work; without a runtime the host is ending anyway.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            if is_stateless {
                erase(&conversation).await;
            } else if let Some(Ok(reply)) = round.map(|round| conversation.watch(round)) {
                // Interrupt only while this client's round is open: another client's round must not
                // end.
                let is_open = conversation
                    .state()
                    .await
                    .is_ok_and(|state| state.round.is_some_and(|open| open.id == reply.round_id()));
                if is_open {
                    reply.interrupt();
                }
            }
        });
    }
}

async fn erase(conversation: &ConversationHandle) {
    if let Err(error) = conversation.delete().await {
        tracing::warn!(%error, "a temporary conversation could not be erased");
    }
}
