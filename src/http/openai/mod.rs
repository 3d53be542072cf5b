//! The OpenAI-compatible API (Chat Completions). What one call does is in
//! [`compat`](super::compat).

mod convert;
pub(super) mod responses;
mod stream;
mod wire;

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, Uri},
    response::{IntoResponse, Response},
};
use callboard_actors::{chat::RawJson, ports::Clock as _, stream::StopReason};

pub(super) use self::wire::ChatError;
use self::{
    convert::{answer_schema, tool_choice, tools, transcript, unsupported},
    stream::Streamed,
    wire::{
        Answered, CallShown, ChatCompletion, ChatRequest, Choice, ErrorBody, ModelMeta, ModelShown,
        Models, StreamOptions,
    },
};
use super::{
    answer_body::round_answer,
    answer_room::ConnectionRoom,
    api::EventFrame,
    auth::{Caller, CallerKey},
    compat::{
        Ask, Asked, Bound, BringsHistory, Call, Ended, Transcript,
        model::{self, Model},
        respond,
    },
    error::{Problem, SHOULD_RETRY},
    routes::{Path, single_header},
    shared::App,
};
use crate::clock::SystemClock;

/// Errors of routes under this prefix are written in OpenAI's form.
const PREFIX: &str = "/openai/";

/// The same API is served below this too, as far as no route of this host has the path.
const SECOND_BASE: &str = "/v1";

/// What is served there, with all that is below.
const AT_SECOND_BASE: [&str; 3] = ["/chat/completions", "/models", "/responses"];

/// The path of the second base that leads to a documented one.
pub(super) fn second_path(path: &str) -> Option<String> {
    let below = path.strip_prefix("/openai")?;
    let rest = below.strip_prefix(SECOND_BASE)?;
    is_at_second_base(rest).then(|| below.to_owned())
}

fn is_at_second_base(rest: &str) -> bool {
    AT_SECOND_BASE.iter().any(|base| {
        rest.strip_prefix(base)
            .is_some_and(|below| below.is_empty() || below.starts_with('/'))
    })
}

/// The URI below `/openai/v1` that a URI below the second base stands for.
pub(super) fn at_second_base(uri: &Uri) -> Option<Uri> {
    let rest = uri.path().strip_prefix(SECOND_BASE)?;
    if !is_at_second_base(rest) {
        return None;
    }
    let mut parts = uri.clone().into_parts();
    let path = format!("/openai{}", parts.path_and_query?);
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Any request is parsed and converted or refused.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let _ = serde_json::from_slice::<ChatRequest>(data);
    responses::fuzz(data);
}

impl BringsHistory for ChatRequest {
    fn take_history(&mut self) -> Result<Transcript, Problem> {
        let transcript = transcript(self);
        self.messages = Vec::new();
        transcript
    }
}

/// Creates a chat completion.
///
/// Without a conversation id, `messages` is the whole history. With `X-Conversation-Id` or
/// `metadata.conversation_id`, `messages` must begin with the conversation's history, and only the
/// messages after it are sent; a differing history is answered with 409. The model may call the
/// client's `tools` beside the host's own: the answer then has `tool_calls`, and the next request
/// brings their results. A client that disconnects cancels the round.
#[utoipa::path(
    post, path = "/openai/v1/chat/completions", tag = "openai", request_body = ChatRequest,
    params(("X-Conversation-Id" = Option<String>, Header, description = "The conversation that the call belongs to")),
    responses((status = 200, description = "The answer; with `stream`, chunks and `[DONE]`", content((ChatCompletion = "application/json"), (EventFrame = "text/event-stream")))),
)]
pub(super) async fn chat(
    State(app): State<App>,
    Caller(tenant): Caller,
    key: CallerKey,
    headers: HeaderMap,
    connection: Option<Extension<ConnectionRoom>>,
    asked: Asked<ChatRequest>,
) -> Result<Response, Problem> {
    let Asked {
        request,
        transcript,
        is_large,
        room,
    } = asked;
    let model = model::check_model(&app, &tenant, &request.model)?;
    let named = single_header(&headers, "x-conversation-id")?.map(str::to_owned);
    let metadata = request.metadata.as_ref();
    let bound = named.or_else(|| metadata?.conversation_id.clone());
    let bound = bound.map_or(Bound::Nothing, Bound::Whole);
    let streams = request.stream.unwrap_or_default();
    let ask = Ask {
        bound,
        transcript: transcript?,
        is_large,
        tools: tools(&request.tools)?,
        choice: tool_choice(&request.tool_choice)?,
        schema: schema(&request)?,
        parameters: request.parameters(),
        streams,
        room,
    };
    let includes_usage = |options: &StreamOptions| options.include_usage;
    let include_usage = request.stream_options.as_ref().is_some_and(includes_usage);
    drop(request); // A round may take hours.
    let call = Call::begin(&app, &tenant, ask).await?;
    let id = format!("chatcmpl-{}", call.place().round);
    let created = SystemClock.now().0 / 1000;
    if streams {
        let streamed = Streamed {
            id,
            created,
            model,
            include_usage,
        };
        return Ok(respond(&app, call, key, streamed));
    }
    let ended = call.end(&app).await?;
    let bytes = ended.bytes();
    let calls: Vec<CallShown> = ended.calls.iter().map(CallShown::of).collect();
    let finish_reason = finish_reason(&ended);
    let text = ended.text();
    let message = Answered {
        role: "assistant",
        content: (calls.is_empty() || !text.is_empty()).then_some(text),
        refusal: None,
        tool_calls: (!calls.is_empty()).then_some(calls),
    };
    let choices = vec![Choice {
        index: 0,
        message,
        finish_reason,
        logprobs: None,
    }];
    let answer = ChatCompletion {
        id,
        object: "chat.completion",
        created,
        model,
        choices,
        usage: ended.usage.into(),
    };
    round_answer(&app, &tenant, connection, bytes, answer).await
}

/// Lists the models: the tenant's configured model, and its alias `default`.
#[utoipa::path(get, path = "/openai/v1/models", tag = "openai", responses((status = 200, description = "The models", body = Models)))]
pub(super) async fn models(State(app): State<App>, Caller(tenant): Caller) -> Json<Models> {
    Json(Models {
        object: "list",
        data: model::models(&app, &tenant).map(ModelShown::of).into(),
    })
}

/// Reads one model, with its window.
#[utoipa::path(
    get, path = "/openai/v1/models/{model_id}", tag = "openai",
    params(("model_id" = String, Path, description = "An id of the list")),
    responses((status = 200, description = "The model", body = ModelShown)),
)]
pub(super) async fn one_model(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<ModelShown>, Problem> {
    model::model(&app, &tenant, &id).map(|model| Json(ModelShown::of(model)))
}

impl ModelShown {
    fn of(model: Model) -> Self {
        Self {
            id: model.id,
            object: "model",
            created: 0,
            owned_by: "callboard",
            context_window: model.window,
            context_length: model.window,
            max_model_len: model.window,
            max_output_tokens: model.output_max,
            meta: ModelMeta {
                n_ctx: model.window,
            },
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
            answer_schema(schema, "/response_format/json_schema/schema").map(Some)
        }
        ("json_schema", None) => Err(unsupported(
            "/response_format/json_schema",
            "a `schema` is required",
        )),
        ("json_object", _) => Ok(RawJson::from_text(r#"{"type":"object"}"#).ok()),
        _ => Err(unsupported(
            "/response_format/type",
            "must be `text`, `json_object` or `json_schema`",
        )),
    }
}

fn finish_reason(ended: &Ended) -> &'static str {
    if !ended.calls.is_empty() {
        return "tool_calls";
    }
    match ended.stop {
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
        .filter(|pointer| !pointer.is_empty())
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
    for name in ["retry-after", "www-authenticate", "allow", SHOULD_RETRY] {
        translated.headers_mut().extend(
            headers
                .get(name)
                .cloned()
                .map(|value| (axum::http::HeaderName::from_static(name), value)),
        );
    }
    translated
}
