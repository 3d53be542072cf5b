//! The Anthropic-compatible API (Messages). What one call does is in [`compat`](super::compat). It is
//! stateless: each request brings the whole history.

mod convert;
mod errors;
mod stream;
mod wire;

use axum::{Extension, Json, extract::State, response::Response};
use callboard_actors::{ports::Entropy as _, stream::StopReason};

pub(super) use self::errors::translate;
pub(super) use self::wire::ErrorShown;
use self::{
    convert::{parameters, refuse, schema, tool_choice, tools, transcript},
    stream::Events,
    wire::{
        CountRequest, MessageShown, MessagesRequest, ModelInfo, ModelList, TokensCounted,
        UsageShown, block, call,
    },
};
use super::{
    answer_body::round_answer,
    answer_room::ConnectionRoom,
    api::EventFrame,
    auth::{Caller, CallerKey},
    compat::{
        Ask, Asked, Bound, BringsHistory, Call, Ended, Transcript, count_tokens,
        model::{self, Model},
        respond,
    },
    error::Problem,
    routes::Path,
    shared::App,
};
use crate::clock::SystemEntropy;

impl BringsHistory for MessagesRequest {
    fn take_history(&mut self) -> Result<Transcript, Problem> {
        transcript(std::mem::take(&mut self.messages), self.system.take())
    }
}

impl BringsHistory for CountRequest {
    fn take_history(&mut self) -> Result<Transcript, Problem> {
        transcript(std::mem::take(&mut self.messages), self.system.take())
    }
}

/// Any request is parsed and converted or refused.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<MessagesRequest>(data) {
        let _ = parameters(&request, true);
        let _ = schema(&request);
        let _ = tools(request.tools);
        let _ = transcript(request.messages, request.system);
    }
}

/// Creates a message.
///
/// `messages` is the whole history; nothing of the call is kept. The model may call the client's
/// `tools` beside the host's own: the answer then has `tool_use` blocks, and the next request brings
/// the history with their `tool_result` blocks. A client that disconnects cancels the call. The key
/// comes in `x-api-key`, or as a bearer token.
#[utoipa::path(
    post, path = "/anthropic/v1/messages", tag = "anthropic", request_body = MessagesRequest,
    responses((status = 200, description = "The message; with `stream`, its events", content((MessageShown = "application/json"), (EventFrame = "text/event-stream")))),
)]
pub(super) async fn create(
    State(app): State<App>,
    Caller(tenant): Caller,
    key: CallerKey,
    connection: Option<Extension<ConnectionRoom>>,
    asked: Asked<MessagesRequest>,
) -> Result<Response, Problem> {
    let Asked {
        request,
        transcript,
        is_large,
        room,
    } = asked;
    let model = model::check_model(&app, &tenant, &request.model)?;
    refuse(&request)?;
    let streams = request.stream.unwrap_or_default();
    let stop = request.stop_sequences.as_deref();
    let stop = stop.and_then(|texts| match texts {
        [only] => Some(only.clone()),
        _ => None,
    });
    let ask = Ask {
        bound: Bound::Nothing,
        choice: tool_choice(request.tool_choice.as_ref())?,
        schema: schema(&request)?,
        parameters: parameters(&request, app.host.setup_of(&tenant).takes_thinking)?,
        tools: tools(request.tools)?,
        transcript: transcript?,
        is_large,
        streams,
        room,
    };
    let call_made = Call::begin(&app, &tenant, ask)
        .await
        .map_err(in_their_words)?;
    // A round of one id is answered once, but their clients want an id for each answer.
    let [a, b, c, d, ..] = SystemEntropy.bytes();
    let part = u32::from_be_bytes([a, b, c, d]);
    let id = format!("msg_{}_{part:08x}", call_made.place().round);
    let mut message = begun(model, id);
    if streams {
        return Ok(respond(&app, call_made, key, Events::new(message, stop)));
    }
    let ended = call_made.end(&app).await?;
    let (reason, sequence) = stop_reason(&ended, stop);
    message.content = ended.thoughts().iter().map(block).collect();
    let text = ended.text();
    if !text.is_empty() {
        let text = serde_json::json!({ "type": "text", "text": text });
        message.content.push(text);
    }
    message.content.extend(ended.calls.iter().map(call));
    (message.stop_reason, message.stop_sequence) = (Some(reason), sequence);
    message.usage = ended.usage.into();
    round_answer(&app, &tenant, connection, ended.bytes(), message).await
}

/// Counts the tokens of a message before it is created.
///
/// The count has the host's own system prompt and tools too. It is an estimate, unless the model is
/// configured to be counted by its provider. Counts as one request of the tenant.
#[utoipa::path(
    post, path = "/anthropic/v1/messages/count_tokens", tag = "anthropic", request_body = CountRequest,
    responses((status = 200, description = "The count", body = TokensCounted)),
)]
pub(super) async fn count(
    State(app): State<App>,
    Caller(tenant): Caller,
    asked: Asked<CountRequest>,
) -> Result<Json<TokensCounted>, Problem> {
    let Asked {
        request,
        transcript,
        room: _room,
        ..
    } = asked;
    model::check_model(&app, &tenant, &request.model)?;
    let tools = tools(request.tools)?;
    let input_tokens = count_tokens(&app, &tenant, transcript?, tools).await?;
    Ok(Json(TokensCounted { input_tokens }))
}

/// Lists the models: the tenant's configured model, and its alias `default`.
#[utoipa::path(
    get, path = "/anthropic/v1/models", tag = "anthropic",
    responses((status = 200, description = "The models", body = ModelList)),
)]
pub(super) async fn models(State(app): State<App>, Caller(tenant): Caller) -> Json<ModelList> {
    let data: Vec<ModelInfo> = model::models(&app, &tenant)
        .into_iter()
        .map(shown)
        .collect();
    Json(ModelList {
        first_id: data.first().map(|model| model.id.clone()),
        last_id: data.last().map(|model| model.id.clone()),
        data,
        has_more: false,
    })
}

/// Reads one model, with its window.
#[utoipa::path(
    get, path = "/anthropic/v1/models/{model_id}", tag = "anthropic",
    params(("model_id" = String, Path, description = "An id of the list")),
    responses((status = 200, description = "The model", body = ModelInfo)),
)]
pub(super) async fn one_model(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<ModelInfo>, Problem> {
    model::model(&app, &tenant, &id).map(|model| Json(shown(model)))
}

fn shown(model: Model) -> ModelInfo {
    ModelInfo {
        display_name: model.id.clone(),
        id: model.id,
        kind: "model",
        created_at: "1970-01-01T00:00:00Z",
        lifecycle: "active",
        max_input_tokens: model.window,
        max_tokens: model.output_max,
    }
}

/// The message before its end.
fn begun(model: String, id: String) -> MessageShown {
    MessageShown {
        id,
        kind: "message",
        role: "assistant",
        model,
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: UsageShown::from(callboard_actors::chat::Usage::default()),
    }
}

/// Names a field of the core as this API does.
fn in_their_words(problem: Problem) -> Problem {
    match problem.pointer.as_deref() {
        Some("/stop") => problem.at("/stop_sequences"),
        _ => problem,
    }
}

/// Why a message ended, and the text that ended it. Which of several texts it was is not known.
fn stop_reason(ended: &Ended, stop: Option<String>) -> (&'static str, Option<String>) {
    if !ended.calls.is_empty() {
        return ("tool_use", None);
    }
    match ended.stop {
        StopReason::StopSequence => ("stop_sequence", stop),
        StopReason::Refusal => ("refusal", None),
        StopReason::ContextTooLarge => ("model_context_window_exceeded", None),
        StopReason::MaxTokens
        | StopReason::IterationLimit
        | StopReason::LoopGuard
        | StopReason::Budget => ("max_tokens", None),
        _ => ("end_turn", None),
    }
}
