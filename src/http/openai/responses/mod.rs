//! OpenAI's Responses. A response is a call as [`compat`](crate::http::compat) has it. A stored one
//! keeps its conversation, which the next response continues.

mod items;
mod journal;
pub(in crate::http) mod stored;
mod stream;
mod wire;

use axum::{Extension, extract::State, http::StatusCode, response::Response};
use callboard_actors::{
    chat::{RawJson, ToolChoice},
    ids::{Seq, TenantId},
    ports::{Clock as _, Entropy as _},
    stream::StopReason,
};

use self::{
    items::{tools, transcript},
    journal::choice_shown,
    stream::{Events, item_id},
    wire::{
        Fixed, FormatShown, FormatTaken, Incomplete, Input, Item, ReasoningShown, ResponseError,
        ResponseRequest, ResponseShown, TextShown, ToolShown, ToolTaken,
    },
};
use super::convert::{answer_schema, tool_choice, unsupported};
use crate::{
    clock::{SystemClock, SystemEntropy},
    http::{
        answer_body::round_answer,
        answer_room::ConnectionRoom,
        api::EventFrame,
        auth::{Caller, CallerKey},
        compat::{
            Ask, Asked, Bound, BringsHistory, Call, Ended, Place, Transcript, model::check_model,
            respond, waiting_in,
        },
        error::Problem,
        shared::{App, scope},
    },
};

/// Status of a response that was cancelled.
const CANCELLED: &str = "cancelled";

/// The schema that stands for any JSON object.
const ANY_OBJECT: &str = r#"{"type":"object"}"#;

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
        self.input = Input::List(Vec::new());
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
    connection: Option<Extension<ConnectionRoom>>,
    asked: Asked<ResponseRequest>,
) -> Result<Response, Problem> {
    let Asked {
        request,
        transcript,
        is_large,
        room,
    } = asked;
    let model = check_model(&app, &tenant, &request.model)?;
    refuse(&request)?;
    let store = request.store.unwrap_or(true);
    let is_background = request.background.unwrap_or_default();
    let bound = match &request.previous_response_id {
        Some(previous) => followed(&app, &tenant, previous).await?,
        None if store => Bound::New(stored_id()),
        None => Bound::Nothing,
    };
    let conversation = match &bound {
        Bound::Follows(id, _) | Bound::New(id) | Bound::Whole(id) => {
            id.strip_prefix(STORED).map(str::to_owned)
        }
        Bound::Nothing => None,
    };
    let streams = request.stream.unwrap_or_default();
    let functions = tools(request.tools.as_deref().unwrap_or_default())?;
    let ask = Ask {
        bound,
        transcript: transcript?,
        is_large,
        tools: functions,
        choice: tool_choice(&request.tool_choice)?,
        schema: schema(&request)?,
        parameters: request.parameters(),
        streams,
        room,
    };
    let mut response = begun(model, store, request, ask.choice.as_ref())?;
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
    response.id = id;
    if is_background {
        call.detach();
    }
    if streams {
        return Ok(respond(&app, call, key, Events::new(response)));
    }
    let own_bytes = response.bytes();
    if is_background {
        return round_answer(&app, &tenant, connection, own_bytes, response).await;
    }
    let ended = call.end(&app).await.map_err(in_input)?;
    let bytes = own_bytes + ended.bytes();
    round_answer(&app, &tenant, connection, bytes, whole(response, &ended)).await
}

/// The problem with the pointer of this API's list of messages.
fn in_input(problem: Problem) -> Problem {
    match problem.pointer.as_deref() {
        Some("/messages") => problem.at("/input"),
        _ => problem,
    }
}

/// Refuses what an answer without it would misrepresent.
fn refuse(request: &ResponseRequest) -> Result<(), Problem> {
    if request.background == Some(true) && request.store == Some(false) {
        let detail = "needs `store`: a response in the background is read from what is stored";
        return Err(unsupported("/background", detail));
    }
    if request.conversation.0 {
        let detail = "is a conversation of OpenAI's servers; use `previous_response_id`";
        return Err(unsupported("/conversation", detail));
    }
    if request.prompt.0 {
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
    let text = ended.text();
    if !text.is_empty() {
        let id = item_id("msg", &response, 0);
        let item = Item::message(&id, Some((&text, is_cut(ended))));
        response.output.push(item);
    }
    for tool_use in &ended.calls {
        let id = item_id("fc", &response, response.output.len());
        response.output.push(Item::call(&id, tool_use, true));
    }
    ended_as(&mut response, ended);
    response
}

/// Bytes of the metadata of a request.
const METADATA_BYTES_MAX: usize = 16 * 1024;

/// The response before its end, without its id.
fn begun(
    model: String,
    store: bool,
    request: ResponseRequest,
    choice: Option<&ToolChoice>,
) -> Result<ResponseShown, Problem> {
    let metadata = request.metadata.unwrap_or_else(RawJson::empty_object);
    if !metadata.is_object() || metadata.as_str().len() > METADATA_BYTES_MAX {
        let detail = format!("must be an object of at most {METADATA_BYTES_MAX} bytes");
        return Err(unsupported("/metadata", detail));
    }
    let text = request.text.unwrap_or_default();
    let reasoning = request.reasoning.unwrap_or_default();
    let offered = request.tools.unwrap_or_default().into_iter();
    Ok(ResponseShown {
        id: String::new(),
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
        reasoning: ReasoningShown {
            effort: reasoning.effort.0,
            summary: reasoning.summary.0,
        },
        store,
        temperature: request.temperature.map_or(1.0, f64::from),
        text: TextShown {
            format: format_shown(text.format),
            verbosity: text.verbosity.0,
        },
        tool_choice: choice_shown(choice),
        tools: offered
            .filter(|tool| tool.kind.as_str() == Some("function"))
            .map(tool_shown)
            .collect(),
        fixed: Fixed::default(),
        truncation: "auto",
        usage: None,
        metadata,
    })
}

fn tool_shown(tool: ToolTaken) -> ToolShown {
    ToolShown {
        kind: "function",
        name: tool.name.0.unwrap_or_default(),
        description: tool.description.0,
        parameters: tool.parameters,
        strict: tool.strict,
    }
}

fn format_shown(format: Option<FormatTaken>) -> FormatShown {
    let Some(format) = format else {
        return FormatShown::Text;
    };
    match (format.kind.as_str(), format.schema) {
        (Some("json_object"), _) => FormatShown::JsonObject,
        (Some("json_schema"), Some(schema)) => FormatShown::JsonSchema {
            name: format.name.0,
            schema,
            description: format.description.0,
            strict: format.strict.unwrap_or_default(),
        },
        _ => FormatShown::Text,
    }
}

/// Whether the model's message is not whole.
fn is_cut(ended: &Ended) -> bool {
    cut_by(ended.stop).is_some() || ended.stop == StopReason::Interrupted
}

/// Why the model's message is not whole.
fn cut_by(stop: StopReason) -> Option<&'static str> {
    match stop {
        StopReason::Refusal => Some("content_filter"),
        StopReason::MaxTokens
        | StopReason::IterationLimit
        | StopReason::LoopGuard
        | StopReason::Budget
        | StopReason::ContextTooLarge => Some("max_output_tokens"),
        _ => None,
    }
}

/// Completes a response whose call ended.
fn ended_as(response: &mut ResponseShown, ended: &Ended) {
    let reason = cut_by(ended.stop);
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
async fn followed(app: &App, tenant: &TenantId, previous: &str) -> Result<Bound, Problem> {
    let missing = || {
        let detail = "there is no such stored response";
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail).at("/previous_response_id")
    };
    let (id, Place { round, .. }) = stored::parsed(previous).ok_or_else(missing)?;
    let scope = scope(tenant, &id).map_err(|_| missing())?;
    let conversation = app.conversation(&scope);
    let state = conversation.state_for_prompt().await?;
    if state.head == Seq(0) {
        return Err(missing());
    }
    let begun_last = state.rounds.last().filter(|_| state.inbox.is_empty());
    let last = match begun_last {
        Some(last) => Some(last),
        // Prompts wait, or the history was replaced: the journal has all rounds.
        None => {
            let all = conversation.rounds().await?;
            all.last().map(|last| last.round_id)
        }
    };
    if last == Some(round) {
        return Ok(Bound::Follows(id, waiting_in(&state)));
    }
    app.host.tenant(tenant).admit_change()?;
    let copy = stored_id();
    conversation.fork(copy.as_str(), Some(round)).await?;
    Ok(Bound::Follows(copy, None))
}

/// The JSON Schema that the answer must match, if `text.format` has one.
fn schema(request: &ResponseRequest) -> Result<Option<RawJson>, Problem> {
    let Some(format) = request.text.as_ref().and_then(|text| text.format.as_ref()) else {
        return Ok(None);
    };
    match (format.kind.as_str(), &format.schema) {
        (None | Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(RawJson::from_text(ANY_OBJECT).ok()),
        (Some("json_schema"), Some(schema)) => {
            answer_schema(schema, "/text/format/schema").map(Some)
        }
        (Some("json_schema"), None) => Err(unsupported("/text/format", "a `schema` is required")),
        _ => Err(unsupported(
            "/text/format/type",
            "must be `text`, `json_object` or `json_schema`",
        )),
    }
}
