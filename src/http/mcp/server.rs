//! The methods of the protocol. A server serves one request over HTTP, or one client over pipes.

use std::{sync::Arc, time::Duration};

use axum::http::{HeaderName, HeaderValue};
use callboard_actors::ports::Entropy as _;
use rmcp::{
    RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ErrorData,
        GetTaskParams, GetTaskResult, Implementation, InputResponses, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, NumberOrString, PaginatedRequestParams,
        ProgressToken, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
        ServerConfig, Tool, UpdateTaskParams,
    },
    service::RequestContext,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{
    api::{Api, Asked, Refused, escaped},
    approvals::{Decision, Held},
    conversations, fan_outs,
    rounds::{Asks, Call, prompt, result, unfinished},
    tasks::{self, TaskId},
    tools::{
        AnswerApproval, CancelFanOut, CancelRound, GetFanOut, GetRound, ListConversations, Offered,
        ReadConversation, SendPrompt, StartFanOut, WAIT_MS, WAIT_MS_MAX, arguments, failed,
    },
    unread::AnswerCounter,
};
use crate::clock::SystemEntropy;

/// What a client's model reads first.
const INSTRUCTIONS: &str = "Callboard runs agents with tools of their own. `send_prompt` gives one a task and waits for the answer; continue \
with the `conversation_id` of the answer. Work of many minutes: `background`, then `get_round`. Many tasks at once: `start_fan_out`, then \
`get_fan_out`. A round that waits for an approval says so: ask the user before you allow anything.";

/// Prefix of the conversations that are started here; random hex digits follow.
const STARTED: &str = "mcp-";

/// Bytes of a progress token, which each notification repeats.
const PROGRESS_TOKEN_BYTES_MAX: usize = 256;

/// Calls of one client at once. Over HTTP each is a request of its own, and the host bounds those.
const CALLS_MAX: usize = 64;

/// The server for one client.
#[derive(Clone)]
pub(in crate::http) struct Server {
    api: Api,
    tools: Offered,
    /// Whether the client holds one connection: it can then be asked, and can cancel.
    is_pipe: bool,
    calls: Arc<Semaphore>,
    /// Counts the answers, over HTTP. A client of pipes holds up only its own process.
    counter: Option<AnswerCounter>,
}

impl Server {
    pub(in crate::http) fn new(api: Api, tools: Offered, is_pipe: bool) -> Self {
        Self {
            api,
            tools,
            is_pipe,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            counter: None,
        }
    }

    /// Counts each answer before it is given.
    pub(super) fn counted_by(self, counter: AnswerCounter) -> Self {
        Self {
            counter: Some(counter),
            ..self
        }
    }

    async fn count(&self, answer: &impl Serialize) -> Result<(), Refused> {
        match &self.counter {
            Some(counter) => counter.count(answer).await,
            None => Ok(()),
        }
    }

    /// The answer, once it is counted.
    async fn given<T: Serialize>(&self, answer: T) -> Result<T, ErrorData> {
        self.count(&answer).await.map_err(refused)?;
        Ok(answer)
    }

    async fn called(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(ProgressToken(NumberOrString::String(token))) =
            context.meta.get_progress_token()
            && token.len() > PROGRESS_TOKEN_BYTES_MAX
        {
            let line = format!("progressToken: at most {PROGRESS_TOKEN_BYTES_MAX} bytes");
            return Err(ErrorData::invalid_params(line, None));
        }
        let Ok(_place) = self.calls.try_acquire() else {
            let line = format!("{CALLS_MAX} calls are at work; wait for one, or cancel one");
            return Ok(failed(&line).into());
        };
        let call = Call::new(self.api.clone(), context, self.is_pipe);
        let name = request.name.clone();
        let answered = match &request.request_state {
            Some(held) => answered(&call, held, request.input_responses.unwrap_or_default()).await,
            None => run(&call, &name, request.arguments).await,
        };
        let counted = match &answered {
            Ok(CallToolResponse::Complete(result)) => self.count(result).await,
            Ok(CallToolResponse::InputRequired(asked)) => self.count(asked).await,
            _ => Ok(()), // One line, or a task.
        };
        if let Err(refused) = counted {
            return Ok(failed(&refused.line()).into());
        }
        match answered {
            Ok(response) => Ok(response),
            Err(Failed::NoTool) => {
                let name: String = name.chars().take(64).collect();
                Err(ErrorData::invalid_params(
                    format!("there is no tool `{name}`"),
                    None,
                ))
            }
            Err(Failed::Arguments(wrong)) => Ok((*wrong).into()),
            Err(Failed::Refused(refused)) => Ok(failed(&refused.line()).into()),
        }
    }
}

/// Why a call has no result.
enum Failed {
    NoTool,
    Arguments(Box<CallToolResult>),
    Refused(Refused),
}

impl From<CallToolResult> for Failed {
    fn from(wrong: CallToolResult) -> Self {
        Self::Arguments(Box::new(wrong))
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

type Given = Option<rmcp::model::JsonObject>;

async fn run(call: &Call, name: &str, given: Given) -> Result<CallToolResponse, Failed> {
    let structured = |shown: Value| CallToolResult::structured(shown).into();
    Ok(match name {
        "send_prompt" => send(call, arguments::<SendPrompt>(name, given)?).await?,
        "get_round" => get_round(call, arguments::<GetRound>(name, given)?).await?,
        "cancel_round" => {
            let CancelRound { conversation_id } = arguments(name, given)?;
            let path = format!("/v1/conversations/{}/interrupt", escaped(&conversation_id));
            let asked = Asked::post(path, Value::Null).changing(&conversation_id);
            call.api.json(asked).await?;
            structured(json!({ "conversation_id": conversation_id, "cancelled": true }))
        }
        "answer_approval" => answer(call, arguments::<AnswerApproval>(name, given)?).await?,
        "list_conversations" => {
            let wanted = arguments::<ListConversations>(name, given)?;
            structured(conversations::list(&call.api, wanted).await?)
        }
        "read_conversation" => {
            let wanted = arguments::<ReadConversation>(name, given)?;
            structured(conversations::read(&call.api, wanted).await?)
        }
        "start_fan_out" => {
            let wanted = arguments::<StartFanOut>(name, given)?;
            structured(fan_outs::start(call, &wanted).await?)
        }
        "get_fan_out" => {
            let wanted = arguments::<GetFanOut>(name, given)?;
            structured(fan_outs::get(call, wanted).await?)
        }
        "cancel_fan_out" => {
            let CancelFanOut { name } = arguments(name, given)?;
            structured(fan_outs::cancel(call, &name).await?)
        }
        _ => return Err(Failed::NoTool),
    })
}

/// Sends a prompt, and follows its round unless it is in the background.
async fn send(call: &Call, wanted: SendPrompt) -> Result<CallToolResponse, Failed> {
    if wanted.idempotency_key.is_some() && wanted.conversation_id.is_none() {
        let line = "arguments of send_prompt: idempotency_key: needs a conversation_id";
        return Err(failed(line).into());
    }
    let conversation = wanted.conversation_id.unwrap_or_else(new_conversation);
    let path = format!("/v1/conversations/{}/messages", escaped(&conversation));
    let mut body = prompt(&wanted.prompt, wanted.on_busy);
    if let Some(ms) = wanted.deadline_ms {
        body.insert("deadline_ms".to_owned(), json!(ms));
    }
    let mut asked = Asked::post(path, Value::Object(body)).changing(&conversation);
    if let Some(key) = &wanted.idempotency_key {
        let key = HeaderValue::from_str(key).map_err(|_| {
            failed("arguments of send_prompt: idempotency_key: must be visible ASCII")
        })?;
        asked = asked.with(HeaderName::from_static("idempotency-key"), key);
    }
    if wanted.background || call.knows_tasks() {
        let prefer = HeaderValue::from_static("respond-async");
        asked = asked.with(HeaderName::from_static("prefer"), prefer);
        let accepted = &call.api.json(asked).await?;
        let round = accepted["round_id"].as_str().map(str::to_owned);
        return Ok(match (round, wanted.background) {
            (Some(round), false) => TaskId::new(conversation, round).begun(),
            (round, _) => result(unfinished(conversation, round)).into(),
        });
    }
    let events = call.events(asked).await?;
    Ok(call.follow(events, conversation, None, None).await?)
}

fn new_conversation() -> String {
    let bytes = SystemEntropy.bytes();
    bytes
        .iter()
        .fold(STARTED.to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

async fn get_round(call: &Call, wanted: GetRound) -> Result<CallToolResponse, Failed> {
    let wait = wanted.wait_ms.unwrap_or(WAIT_MS);
    if wait > WAIT_MS_MAX {
        let line = format!("arguments of get_round: wait_ms: must be at most {WAIT_MS_MAX}");
        return Err(failed(&line).into());
    }
    let id = wanted.conversation_id;
    let round = match wanted.round_id {
        Some(round) => round,
        None => newest_round(call, &id).await?,
    };
    let wait = Some(Duration::from_millis(wait));
    Ok(call.reading().read_round(id, round, wait).await?)
}

/// The open round, or else the last one.
async fn newest_round(call: &Call, conversation: &str) -> Result<String, Refused> {
    let state = &call.state(conversation).await?;
    if let Some(open) = state["round_id"].as_str() {
        return Ok(open.to_owned());
    }
    let id = escaped(conversation);
    let path = |after: String| Asked::get(format!("/v1/conversations/{id}/rounds?limit=1{after}"));
    let mut page = call.api.json(path(String::new())).await?;
    let total = page
        .get("total")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    if let Some(before) = total.checked_sub(2) {
        page = call.api.json(path(format!("&after={before}"))).await?;
    }
    let last = page.get("rounds").and_then(Value::as_array);
    let last = last.and_then(|rounds| rounds.last());
    let last = last.and_then(|round| round["round_id"].as_str());
    last.map(str::to_owned)
        .ok_or_else(|| Refused::new("not_found", "this conversation has no round"))
}

/// Answers an approval, and follows the round. Where the client's user can be asked, an approval is
/// the user's to give: the model's word only leads to the question.
async fn answer(call: &Call, wanted: AnswerApproval) -> Result<CallToolResponse, Failed> {
    let id = wanted.conversation_id;
    let state = &call.state(&id).await?;
    let round = state["round_id"].as_str().map(str::to_owned);
    let awaited = super::rounds::awaited(state);
    let is_wanted = wanted.round_id.is_none() || wanted.round_id == round;
    let awaited = is_wanted && awaited.contains(&wanted.tool_call_id);
    let (Some(round), true) = (round, awaited) else {
        let line = "no round waits for an approval of this tool call";
        return Err(Refused::new("not_found", line).into());
    };
    let decision = match (wanted.allow, wanted.always) {
        (false, true) => {
            let line = "arguments of answer_approval: always: needs allow";
            return Err(failed(line).into());
        }
        (false, false) => Decision::Refuse,
        (true, false) => Decision::Allow,
        (true, true) => Decision::Always,
    };
    if decision == Decision::Refuse || call.asks == Asks::No {
        call.decide(&id, &round, &wanted.tool_call_id, decision)
            .await?;
    }
    Ok(call.read_round(id, round, None).await?)
}

/// Goes on with a call whose questions are answered.
async fn answered(
    call: &Call,
    held: &str,
    answers: InputResponses,
) -> Result<CallToolResponse, Failed> {
    let held: Held = serde_json::from_str(held)
        .map_err(|_| Refused::new("invalid_parameter", "requestState is not of this server"))?;
    let Held {
        conversation_id: id,
        round_id,
    } = held;
    for (tool_call, answer) in &answers {
        let decision = Decision::read(answer);
        if decision == Decision::Nothing {
            // The user dismissed the question: what waits is the result, and nothing is asked again.
            let call = call.without_questions();
            return Ok(call.read_round(id, round_id, None).await?);
        }
        match call.decide(&id, &round_id, tool_call, decision).await {
            Err(refused) if refused.code != "not_found" => return Err(refused.into()),
            _ => {} // It was answered elsewhere, or is not of this conversation.
        }
    }
    Ok(call.read_round(id, round_id, None).await?)
}

/// A problem of a request about a task.
fn no_task(why: Refused) -> ErrorData {
    match why.code.as_str() {
        "not_found" => ErrorData::invalid_params(why.line(), None),
        _ => refused(why),
    }
}

/// A problem of a request that is no call of a tool.
fn refused(refused: Refused) -> ErrorData {
    match refused.code.as_str() {
        "not_found" => ErrorData::resource_not_found(refused.line(), None),
        "invalid_parameter" => ErrorData::invalid_params(refused.line(), None),
        _ => ErrorData::internal_error(refused.line(), None),
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_tasks()
            .build();
        let version = env!("CARGO_PKG_VERSION");
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("callboard", version).with_title("Callboard"))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.tools.all().to_vec();
        self.given(ListToolsResult::with_all_items(tools)).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.named(name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Box::pin(self.called(request, context)).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let call = Call::new(self.api.clone(), context, self.is_pipe).reading();
        let task = Box::pin(tasks::get(&call, &request.task_id)).await;
        self.given(task.map_err(no_task)?).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let call = Call::new(self.api.clone(), context, self.is_pipe);
        let taken = tasks::update(&call, &request.task_id, request.input_responses).await;
        taken.map_err(no_task)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let call = Call::new(self.api.clone(), context, self.is_pipe);
        let cancelled = tasks::cancel(&call, &request.task_id).await;
        cancelled.map_err(no_task)
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let after = page.and_then(|page| page.cursor);
        let page = conversations::resources(&self.api, after).await;
        self.given(page.map_err(refused)?).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let all = vec![conversations::template()];
        Ok(ListResourceTemplatesResult::with_all_items(all))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = conversations::resource(&self.api, &request.uri).await;
        let read = self.given(read.map_err(refused)?).await?;
        Ok(read.into())
    }
}
