//! OpenAI's Responses. A response is a call as [`compat`](crate::http::compat) has it. A stored one
//! keeps its conversation, which the next response continues.

mod items;
mod journal;
pub(in crate::http) mod stored;
mod stream;
mod wire;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use callboard_actors::{
    chat::RawJson,
    ids::TenantId,
    ports::{Clock as _, Entropy as _},
    stream::StopReason,
};
use serde_json::{Map, Value, json};

use self::{
    items::{tools, transcript},
    stream::{Events, item_id},
    wire::{Fixed, Incomplete, Input, Item, ResponseError, ResponseRequest, ResponseShown},
};
use super::convert::{tool_choice, unsupported};
use crate::{
    clock::{SystemClock, SystemEntropy},
    http::{
        api::EventFrame,
        auth::{Caller, CallerKey},
        compat::{
            Ask, Asked, Bound, BringsHistory, Call, Ended, Place, Transcript, model::check_model,
            respond,
        },
        error::Problem,
        shared::App,
    },
};

/// Status of a response that was cancelled.
const CANCELLED: &str = "cancelled";

/// Prefix of the conversations of stored responses; random hex digits follow.
const STORED: &str = "resp-";

/// Any request is parsed and converted or refused.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<ResponseRequest>(data) {
        let _ = transcript(&request);
        let _ = tools(request.tools.as_deref().unwrap_or_default());
    }
}

impl BringsHistory for ResponseRequest {
    fn take_history(&mut self) -> Result<Transcript, Problem> {
        let transcript = transcript(self);
        self.input = Input::Items(Vec::new());
        transcript
    }
}

/// Creates a response.
///
/// `input` is the whole history, or with `previous_response_id` what follows that response. The
/// model may call the client's functions beside the host's own tools: the output then has
/// `function_call` items, and the next request brings their `function_call_output`. With `store`,
/// the default, the response is kept until it is deleted: others can follow it, and it can be read
/// again. A client that disconnects cancels the response, unless it is in the `background`: such a
/// response is answered at once, `in_progress`, or streamed, and goes on without its client.
#[utoipa::path(
    post, path = "/openai/v1/responses", tag = "openai", request_body = ResponseRequest,
    responses((status = 200, description = "The response; with `stream`, its events", content((ResponseShown = "application/json"), (EventFrame = "text/event-stream")))),
)]
pub(in crate::http) async fn create(
    State(app): State<App>,
    Caller(tenant): Caller,
    key: CallerKey,
    asked: Asked<ResponseRequest>,
) -> Result<Response, Problem> {
    let Asked {
        request,
        transcript,
        is_large,
    } = asked;
    let model = check_model(&app, &tenant, &request.model)?;
    refuse(&request)?;
    let store = request.store.unwrap_or(true);
    let is_background = request.background.unwrap_or_default();
    let bound = match &request.previous_response_id {
        Some(previous) => Bound::Follows(followed(&app, &tenant, previous).await?),
        None if store => Bound::Whole(stored_id()),
        None => Bound::Nothing,
    };
    let conversation = match &bound {
        Bound::Follows(id) | Bound::Whole(id) => id.strip_prefix(STORED).map(str::to_owned),
        Bound::Nothing => None,
    };
    let streams = request.stream.unwrap_or_default();
    let functions = tools(request.tools.as_deref().unwrap_or_default())?;
    let ask = Ask {
        bound,
        transcript: transcript?,
        is_large,
        tools: functions,
        choice: tool_choice(request.tool_choice.as_ref())?,
        schema: schema(&request)?,
        parameters: request.parameters(),
        streams,
    };
    let mut call = Call::begin(&app, &tenant, ask).await?;
    let place = call.place();
    let id = match conversation {
        Some(digits) => stored::id(&digits, place),
        None => {
            let [a, b, c, d, ..] = SystemEntropy.bytes();
            let part = u32::from_be_bytes([a, b, c, d]);
            format!("resp_{}_{part:08x}", place.round)
        }
    };
    let response = begun(id, model, store, request);
    if is_background {
        call.detach();
    }
    if streams {
        return Ok(respond(&app, call, key, Events::new(response)));
    }
    if is_background {
        return Ok(Json(response).into_response());
    }
    let ended = call.end(&app).await?;
    Ok(Json(whole(response, &ended)).into_response())
}

/// Refuses what an answer without it would misrepresent.
fn refuse(request: &ResponseRequest) -> Result<(), Problem> {
    let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
    if request.background == Some(true) && request.store == Some(false) {
        let detail = "needs `store`: a response in the background is read from what is stored";
        return Err(unsupported("/background", detail));
    }
    if is_given(&request.conversation) {
        let detail = "is a conversation of OpenAI's servers; use `previous_response_id`";
        return Err(unsupported("/conversation", detail));
    }
    if is_given(&request.prompt) {
        let detail = "is a prompt of OpenAI's servers; send `instructions` and `input`";
        return Err(unsupported("/prompt", detail));
    }
    if request.top_logprobs.is_some_and(|count| count > 0) {
        return Err(unsupported("/top_logprobs", "logprobs are not supported"));
    }
    Ok(())
}

/// A response that has ended, as one document.
fn whole(mut response: ResponseShown, ended: &Ended) -> ResponseShown {
    if !ended.text.is_empty() {
        let id = item_id("msg", &response, 0);
        response.output.push(Item::message(&id, Some(&ended.text)));
    }
    for tool_use in &ended.calls {
        let id = item_id("fc", &response, response.output.len());
        response.output.push(Item::call(&id, tool_use, true));
    }
    ended_as(&mut response, ended);
    response
}

/// The response before its end.
fn begun(id: String, model: String, store: bool, request: ResponseRequest) -> ResponseShown {
    let text = request
        .text
        .unwrap_or_else(|| object(json!({ "format": { "type": "text" } })));
    let offered = request.tools.unwrap_or_default().into_iter();
    ResponseShown {
        id,
        object: "response",
        created_at: SystemClock.now().0 / 1000,
        completed_at: None,
        ended_at: None,
        status: "in_progress",
        background: request.background.unwrap_or_default(),
        error: None,
        incomplete_details: None,
        instructions: request.instructions,
        max_output_tokens: request.max_output_tokens,
        model,
        output: Vec::new(),
        parallel_tool_calls: true,
        previous_response_id: request.previous_response_id,
        reasoning: request
            .reasoning
            .unwrap_or_else(|| object(json!({ "effort": null, "summary": null }))),
        store,
        temperature: request.temperature.map_or(1.0, f64::from),
        text,
        tool_choice: request.tool_choice.unwrap_or_else(|| json!("auto")),
        tools: offered
            .filter(|tool| tool["type"] == "function")
            .map(shown)
            .collect(),
        fixed: Fixed::default(),
        truncation: "disabled",
        usage: None,
        metadata: request.metadata.unwrap_or_default(),
    }
}

/// A function of the request, with all the fields of OpenAI's form.
fn shown(mut tool: Value) -> Value {
    if let Value::Object(fields) = &mut tool {
        for name in ["description", "parameters", "strict"] {
            fields.entry(name).or_insert(Value::Null);
        }
    }
    tool
}

/// The fields of an object.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Completes a response whose call ended.
fn ended_as(response: &mut ResponseShown, ended: &Ended) {
    let reason = match ended.stop {
        StopReason::Refusal => Some("content_filter"),
        StopReason::MaxTokens
        | StopReason::IterationLimit
        | StopReason::LoopGuard
        | StopReason::Budget
        | StopReason::ContextTooLarge => Some("max_output_tokens"),
        _ => None,
    };
    response.status = match (reason, ended.stop) {
        (Some(_), _) => "incomplete",
        (None, StopReason::Interrupted) => CANCELLED,
        (None, _) => "completed",
    };
    response.completed_at = (response.status == "completed").then(|| {
        let now = || SystemClock.now().0 / 1000;
        response.ended_at.unwrap_or_else(now)
    });
    response.incomplete_details = reason.map(|reason| Incomplete { reason });
    response.usage = Some(ended.usage.into());
}

/// Completes a response that failed after it was named.
fn failed_as(response: &mut ResponseShown, problem: Problem) {
    response.status = "failed";
    response.error = Some(ResponseError {
        code: problem.code,
        message: problem.detail,
    });
}

/// A new name of the conversation of stored responses.
fn stored_id() -> String {
    let bytes = SystemEntropy.bytes();
    bytes
        .iter()
        .fold(STORED.to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

/// The conversation that a response after `previous` continues: that of `previous`, or a copy if
/// another response followed it already.
async fn followed(app: &App, tenant: &TenantId, previous: &str) -> Result<String, Problem> {
    let missing = || {
        let detail = "there is no such stored response";
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail).at("/previous_response_id")
    };
    let (id, Place { round, .. }) = stored::parsed(previous).ok_or_else(missing)?;
    let known = app.known(tenant, &id).await;
    let (_, conversation) = known.map_err(|problem| match problem.status {
        404 | 422 => missing(),
        _ => problem,
    })?;
    let last = conversation
        .rounds()
        .await?
        .last()
        .map(|last| last.round_id);
    if last == Some(round) {
        return Ok(id);
    }
    app.host.tenant(tenant).admit_change()?;
    let copy = stored_id();
    conversation.fork(copy.as_str(), Some(round)).await?;
    Ok(copy)
}

/// The JSON Schema that the answer must match, if `text.format` has one.
fn schema(request: &ResponseRequest) -> Result<Option<RawJson>, Problem> {
    let Some(format) = request.text.as_ref().and_then(|text| text.get("format")) else {
        return Ok(None);
    };
    match (format["type"].as_str(), format.get("schema")) {
        (None | Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(RawJson::from_text(r#"{"type":"object"}"#).ok()),
        (Some("json_schema"), Some(schema)) => {
            let raw = RawJson::from_text(schema.to_string());
            raw.map(Some)
                .map_err(|error| unsupported("/text/format/schema", error.to_string()))
        }
        (Some("json_schema"), None) => Err(unsupported("/text/format", "a `schema` is required")),
        _ => Err(unsupported(
            "/text/format/type",
            "must be `text`, `json_object` or `json_schema`",
        )),
    }
}
