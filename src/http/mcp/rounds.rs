//! Follows a round for an MCP client: its progress as notifications, its approvals as questions, and
//! its end as the result of the call.

use std::time::Duration;

use callboard_actors::ports::BoxFuture;
use futures_util::{StreamExt as _, future::OptionFuture, stream::FuturesUnordered};
use rmcp::{
    RoleServer,
    model::{
        CallToolResponse, CallToolResult, ContentBlock, ElicitResult, InputRequiredResult,
        JsonObject, ProgressNotificationParam, ProgressToken, ProtocolVersion,
    },
    service::{Peer, RequestContext, ServiceError},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    api::{Api, Asked, Refused, escaped},
    approvals::{Decision, Held, question, questions},
    events::Events,
    tools::{Approval, RoundShown, RoundState},
};

/// Shortest time between two notifications about text that is being written.
const TEXT_EVERY: Duration = Duration::from_secs(1);

/// Longest time without a notification: clients take silence for death after a minute, at the
/// earliest.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

/// How often the events of a round are asked for again when they break off, as they do when another
/// host takes the conversation.
const AGAIN_MAX: usize = 3;

/// Shortest wait for the end of a round: one that is over is read within it.
const WAIT_MIN: Duration = Duration::from_millis(500);

/// Characters of a notification.
const LINE_CHARS_MAX: usize = 200;

/// How approvals reach the client's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    /// By a request to the client, while the call goes on.
    Meanwhile,
    /// By a result that the client completes and sends again.
    InTurns,
    /// Not at all: the result says what waits.
    No,
}

/// A call of a client.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) api: Api,
    pub(super) context: RequestContext<RoleServer>,
    pub(super) asks: Asks,
    /// Whether a call that ends early ends its round. Before version 2026-07-28 a closed stream of
    /// HTTP means nothing.
    pub(super) cancels: bool,
}

impl Call {
    /// `is_pipe` says that the client holds one connection, over which it can be asked.
    pub(super) fn new(api: Api, context: RequestContext<RoleServer>, is_pipe: bool) -> Self {
        let is_modern = context
            .protocol_version()
            .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str());
        let has_forms = context
            .client_capabilities()
            .and_then(|capabilities| capabilities.elicitation)
            .is_some_and(|asked| asked.form.is_some() || asked.url.is_none());
        Self {
            api,
            asks: match (has_forms, is_modern, is_pipe) {
                (false, ..) | (true, false, false) => Asks::No,
                (true, true, _) => Asks::InTurns,
                (true, false, true) => Asks::Meanwhile,
            },
            cancels: is_pipe || is_modern,
            context,
        }
    }

    /// The same call, which only reads: its end means nothing to the round.
    pub(super) fn reading(&self) -> Self {
        Self {
            cancels: false,
            ..self.clone()
        }
    }

    /// Whether the client knows tasks.
    pub(super) fn knows_tasks(&self) -> bool {
        let capabilities = self.context.client_capabilities();
        capabilities.is_some_and(|capabilities| capabilities.supports_tasks())
    }

    /// The same call, whose result says what waits instead of asking.
    pub(super) fn without_questions(&self) -> Self {
        Self {
            asks: Asks::No,
            ..self.clone()
        }
    }

    /// The state of a conversation.
    pub(super) async fn state(&self, conversation: &str) -> Result<Value, Refused> {
        let path = format!("/v1/conversations/{}", escaped(conversation));
        self.api.json(Asked::get(path)).await
    }

    /// The events of a round, from its beginning.
    async fn round_events(&self, conversation: &str, round: &str) -> Result<Events, Refused> {
        let (id, round) = (escaped(conversation), escaped(round));
        let path = format!("/v1/conversations/{id}/events?round={round}");
        self.events(Asked::get(path)).await
    }

    /// The events of a request; without the text that is being written if the client asked for no
    /// notifications.
    pub(super) async fn events(&self, asked: Asked) -> Result<Events, Refused> {
        let asked = match self.context.meta.get_progress_token() {
            Some(_) => asked,
            None => asked.without_text(),
        };
        self.api.events(asked).await
    }

    /// Reports to the host what its user decided on a call of this round.
    pub(super) async fn decide(
        &self,
        conversation: &str,
        round: &str,
        tool_call: &str,
        decision: Decision,
    ) -> Result<(), Refused> {
        let Some(body) = decision.body(round) else {
            return Ok(());
        };
        let (id, tool_call) = (escaped(conversation), escaped(tool_call));
        let path = format!("/v1/conversations/{id}/approvals/{tool_call}");
        let asked = Asked::post(path, body).changing(conversation);
        self.api.json(asked).await.map(drop)
    }

    /// Cancels a round. `false` if it waits in the queue. A round of another prompt is not touched.
    pub(super) async fn interrupt(&self, conversation: &str, round: &str) -> Result<bool, Refused> {
        let state = &self.state(conversation).await?;
        if state["round_id"].as_str() != Some(round) {
            let is_queued = state["prompts_waiting"].as_u64() > Some(0);
            return Ok(!is_queued);
        }
        let id = escaped(conversation);
        let asked = Asked::post(format!("/v1/conversations/{id}/interrupt"), Value::Null);
        match self.api.json(asked.changing(conversation)).await {
            Err(refused) if refused.code != "not_found" => Err(refused),
            _ => Ok(true),
        }
    }

    /// Follows a round that is stored, until it ends, or for `wait`.
    pub(super) async fn read_round(
        &self,
        conversation: String,
        round: String,
        wait: Option<Duration>,
    ) -> Result<CallToolResponse, Refused> {
        let events = self.round_events(&conversation, &round).await?;
        self.follow(events, conversation, Some(round), wait).await
    }

    /// Follows the events of a round until it ends, waits for an approval that cannot be asked for
    /// here, or `wait` is over.
    pub(super) async fn follow(
        &self,
        events: Events,
        conversation: String,
        round: Option<String>,
        wait: Option<Duration>,
    ) -> Result<CallToolResponse, Refused> {
        let until = wait.map(|wait| Instant::now() + wait.max(WAIT_MIN));
        let followed = Followed {
            call: self,
            conversation,
            round,
            approvals: Vec::new(),
            progress: Progress::of(&self.context),
        };
        followed.until_its_end(events, until).await
    }
}

/// A round that is followed.
struct Followed<'a> {
    call: &'a Call,
    conversation: String,
    /// Known from its first event on.
    round: Option<String>,
    /// Calls that asked for an approval and whose decision is not known.
    approvals: Vec<Approval>,
    progress: Progress,
}

/// The answer to a question, and the tool call that it was about.
type Answered<'a> = BoxFuture<'a, (String, Result<ElicitResult, ServiceError>)>;

impl Followed<'_> {
    async fn until_its_end(
        mut self,
        mut events: Events,
        until: Option<Instant>,
    ) -> Result<CallToolResponse, Refused> {
        let call = self.call;
        let mut asked: FuturesUnordered<Answered<'_>> = FuturesUnordered::new();
        let mut is_left = false;
        let mut again = 0;
        loop {
            let timeout = OptionFuture::from(until.map(sleep_until));
            let event = tokio::select! {
                biased;
                () = call.context.ct.cancelled(), if !is_left => {
                    if !call.cancels || self.interrupt().await? {
                        return Err(Refused::new("interrupted", "the call was cancelled"));
                    }
                    is_left = true; // Its round waits in the queue: it is cancelled when it begins.
                    continue;
                }
                Some((tool_call, answer)) = asked.next(), if !asked.is_empty() => {
                    let decision = answer.as_ref().map_or(Decision::Nothing, Decision::of);
                    if decision == Decision::Nothing {
                        return self.shown(RoundState::WaitsForApproval);
                    }
                    self.approvals.retain(|approval| approval.tool_call_id != tool_call);
                    let round = self.round.as_deref().unwrap_or_default();
                    let decided = call.decide(&self.conversation, round, &tool_call, decision);
                    match decided.await {
                        Err(refused) if refused.code != "not_found" => return Err(refused),
                        _ => continue, // Someone else was faster.
                    }
                }
                event = events.next() => event,
                Some(()) = timeout => return self.shown(RoundState::Running),
                () = self.progress.silent() => {
                    self.progress.say("at work".to_owned()).await;
                    continue;
                }
            };
            let Some(event) = event else {
                let round = self.round.as_deref().filter(|_| again < AGAIN_MAX);
                let Some(round) = round else {
                    return Err(self.lost());
                };
                again += 1;
                events = call.round_events(&self.conversation, round).await?;
                continue;
            };
            let event = &event;
            if let Some(round) = event["round_id"].as_str() {
                self.round.get_or_insert_with(|| round.to_owned());
            }
            match event["type"].as_str().unwrap_or_default() {
                "round_finished" => return Ok(self.ended(event)),
                "error" => return Err(failure(event)),
                _ if is_left => {
                    if self.interrupt().await? {
                        return Err(Refused::new("interrupted", "the call was cancelled"));
                    }
                }
                "approval_required" if self.waits(event).await? => match call.asks {
                    Asks::Meanwhile => {
                        let Some(approval) = self.approvals.last().cloned() else {
                            continue;
                        };
                        asked.push(Box::pin(ask(&call.context.peer, approval)));
                    }
                    Asks::InTurns | Asks::No if self.has_all_questions().await? => {
                        return self.shown(RoundState::WaitsForApproval);
                    }
                    Asks::InTurns | Asks::No => {}
                },
                _ => self.progress.take(event).await,
            }
        }
    }

    /// Whether an approval is still awaited. The events of a round are read from its beginning, so
    /// it may have been given long ago.
    async fn waits(&mut self, event: &Value) -> Result<bool, Refused> {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let approval = Approval {
            tool_call_id: text("tool_call_id"),
            tool: text("name"),
            input: event["input"].clone(),
            reason: text("reason"),
        };
        let awaited = self.awaited().await?;
        let is_new = !self.approvals.contains(&approval);
        if !is_new || !awaited.contains(&approval.tool_call_id) {
            return Ok(false);
        }
        self.progress
            .say(format!("{} waits for an approval", approval.tool))
            .await;
        self.approvals.push(approval);
        Ok(true)
    }

    /// The tool calls whose approval is awaited.
    async fn awaited(&self) -> Result<Vec<String>, Refused> {
        let state = self.call.state(&self.conversation).await?;
        Ok(awaited(&state))
    }

    async fn has_all_questions(&self) -> Result<bool, Refused> {
        let awaited = self.awaited().await?;
        let is_known = |id: &String| self.approvals.iter().any(|known| known.tool_call_id == *id);
        Ok(awaited.iter().all(is_known))
    }

    /// Cancels the round. `false` if it has not begun, as far as it is known.
    async fn interrupt(&self) -> Result<bool, Refused> {
        match &self.round {
            Some(round) => self.call.interrupt(&self.conversation, round).await,
            None => Ok(false),
        }
    }

    /// The result of a round that has not ended.
    fn shown(self, status: RoundState) -> Result<CallToolResponse, Refused> {
        let held = self.round.clone().map(|round_id| Held {
            conversation_id: self.conversation.clone(),
            round_id,
        });
        if let (RoundState::WaitsForApproval, Asks::InTurns, Some(held)) =
            (status, self.call.asks, held)
        {
            let asked = questions(&self.approvals);
            let asked = asked.map_err(|why| Refused::new("internal", why))?;
            let held = serde_json::to_string(&held).unwrap_or_default();
            return Ok(InputRequiredResult::new(Some(asked), Some(held)).into());
        }
        let shown = RoundShown {
            status,
            approvals: self.approvals,
            ..unfinished(self.conversation, self.round)
        };
        Ok(result(shown).into())
    }

    fn ended(self, event: &Value) -> CallToolResponse {
        result(ended(self.conversation, self.round, event)).into()
    }

    fn lost(&self) -> Refused {
        let (id, round) = (&self.conversation, self.round.as_deref().unwrap_or("?"));
        Refused::new(
            "draining",
            format!(
                "the events of the round ended before it; read its end with get_round (conversation_id {id}, round_id {round})"
            ),
        )
    }
}

async fn ask(
    peer: &Peer<RoleServer>,
    approval: Approval,
) -> (String, Result<ElicitResult, ServiceError>) {
    let answer = match question(&approval) {
        Ok(question) => peer.create_elicitation(question).await,
        Err(_) => Err(ServiceError::UnexpectedResponse),
    };
    (approval.tool_call_id, answer)
}

/// The tool calls whose approval a conversation awaits.
pub(super) fn awaited(state: &Value) -> Vec<String> {
    let waits_for = &state["waits_for"];
    let ids = waits_for["tool_call_ids"].as_array();
    ids.filter(|_| waits_for["kind"] == "person")
        .into_iter()
        .flatten()
        .filter_map(|id| id.as_str().map(str::to_owned))
        .collect()
}

/// The failure of a prompt that never became a round.
fn failure(event: &Value) -> Refused {
    Refused {
        code: event["code"].as_str().unwrap_or("internal").to_owned(),
        detail: event["message"].as_str().unwrap_or_default().to_owned(),
        retry_after_ms: event["retry_after_ms"].as_u64(),
    }
}

/// A round of which no more is known than that it runs.
pub(super) fn unfinished(conversation_id: String, round_id: Option<String>) -> RoundShown {
    RoundShown {
        conversation_id,
        round_id,
        status: RoundState::Running,
        text: None,
        stop_reason: None,
        usage: None,
        error: None,
        approvals: Vec::new(),
    }
}

/// A round that has ended, from its last event.
fn ended(conversation: String, round: Option<String>, event: &Value) -> RoundShown {
    let object = |name: &str| event[name].as_object().cloned();
    RoundShown {
        status: match event["status"].as_str() {
            Some("completed") => RoundState::Completed,
            _ => RoundState::Failed,
        },
        text: event["text"].as_str().map(str::to_owned),
        stop_reason: event["stop_reason"].as_str().map(str::to_owned),
        usage: object("usage"),
        error: object("error"),
        ..unfinished(conversation, round)
    }
}

/// The result of a call that ends where a round stands: text for the model, and the same structured.
pub(super) fn result(shown: RoundShown) -> CallToolResult {
    let line = text_of(&shown);
    let is_error = shown.status == RoundState::Failed;
    let structured = serde_json::to_value(&shown).unwrap_or_default();
    let mut result = CallToolResult::structured(structured);
    result.content = vec![ContentBlock::text(line)];
    result.is_error = Some(is_error);
    result
}

/// What the model reads.
fn text_of(shown: &RoundShown) -> String {
    let id = &shown.conversation_id;
    let round = shown.round_id.as_deref().unwrap_or_default();
    let text = shown.text.as_deref().unwrap_or_default();
    let footer = format!("(conversation_id {id})");
    match shown.status {
        RoundState::Running => format!(
            "The round runs. Read its end with get_round: conversation_id {id}, round_id {round}."
        ),
        RoundState::WaitsForApproval => {
            let calls: Vec<String> = shown
                .approvals
                .iter()
                .map(|approval| {
                    let Approval {
                        tool_call_id,
                        tool,
                        input,
                        ..
                    } = approval;
                    format!("{tool} with {input} (tool_call_id {tool_call_id})")
                })
                .collect();
            format!(
                "The round waits for an approval of: {}. Ask the user, then call answer_approval with conversation_id {id}.",
                calls.join("; ")
            )
        }
        RoundState::Completed if shown.stop_reason.as_deref() == Some("end_turn") => {
            format!("{text}\n\n{footer}")
        }
        RoundState::Completed => {
            let why = shown.stop_reason.as_deref().unwrap_or_default();
            format!("{text}\n\n(ended early: {why}) {footer}")
        }
        RoundState::Failed => {
            let error = shown.error.clone().unwrap_or_default();
            let line = failure(&Value::Object(error)).line();
            match text {
                "" => format!("{line} {footer}"),
                text => format!("{line} {footer}\n\nUntil then it wrote:\n{text}"),
            }
        }
    }
}

/// Notifications about a call's progress, if its client asked for them.
pub(super) struct Progress {
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    /// The protocol wants a number that grows with each notification.
    value: f64,
    last: Instant,
    /// Characters of the message that is being written.
    chars: usize,
}

impl Progress {
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Self {
        let token = context.meta.get_progress_token();
        Self {
            to: token.map(|token| (context.peer.clone(), token)),
            value: 0.0,
            last: Instant::now(),
            chars: 0,
        }
    }

    /// Waits until nothing was said for so long that a sign of life is due; for ever if the
    /// client asked for none.
    async fn silent(&self) {
        match self.to {
            Some(_) => sleep_until(self.last + ALIVE_EVERY).await,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn say(&mut self, line: String) {
        self.say_of(line, None).await;
    }

    /// Says a line, and how many of how many parts are done.
    pub(super) async fn say_of(&mut self, line: String, parts: Option<(u64, u64)>) {
        let Some((peer, token)) = &self.to else {
            return;
        };
        self.value = match parts {
            Some((done, _)) => (done as f64).max(self.value + 0.001),
            None => self.value + 1.0,
        };
        self.last = Instant::now();
        let line: String = line
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .chars()
            .take(LINE_CHARS_MAX)
            .collect();
        let note = ProgressNotificationParam::new(token.clone(), self.value);
        let mut note = note.with_message(line);
        if let Some((_, all)) = parts {
            note = note.with_total(all as f64);
        }
        // A client that is gone is noticed elsewhere.
        let _ = peer.notify_progress(note).await;
    }

    /// Says what an event of a round means.
    async fn take(&mut self, event: &Value) {
        if self.to.is_none() {
            return;
        }
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        let line = match text("type") {
            "round_started" => "started".to_owned(),
            "queued" => format!("waits at place {} of the queue", event["position"]),
            "tool_call" => format!("{} {}", text("name"), text("summary")),
            "tool_result" if event["is_error"] == true => format!("{} failed", text("name")),
            "tool_result" => format!("{} is done", text("name")),
            "retry" => format!("tries again after {}", text("reason")),
            "subagent" => format!("subagent {} {}", text("id"), text("state")),
            "message" => {
                self.chars = 0;
                return;
            }
            "text_delta" | "thinking_delta" => {
                self.chars += text("text").chars().count();
                if self.last.elapsed() < TEXT_EVERY {
                    return;
                }
                format!("writes, {} characters", self.chars)
            }
            _ => return,
        };
        self.say(line).await;
    }
}

/// The body of a prompt.
pub(super) fn prompt(text: &str, on_busy: Option<impl serde::Serialize>) -> JsonObject {
    let mut body = JsonObject::new();
    body.insert("content".to_owned(), json!(text));
    if let Some(on_busy) = on_busy {
        body.insert("on_busy".to_owned(), json!(on_busy));
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(event: Value) -> RoundShown {
        ended("c".into(), Some("r".into()), &event)
    }

    #[test]
    fn the_result_of_a_round_is_its_text_and_a_failure_is_an_error_of_one_line() {
        let done = shown(
            json!({"status": "completed", "stop_reason": "end_turn", "text": "Hello.", "usage": {"output": 2}}),
        );
        assert_eq!(text_of(&done), "Hello.\n\n(conversation_id c)");
        assert_eq!(result(done).is_error, Some(false));

        let cut =
            shown(json!({"status": "completed", "stop_reason": "interrupted", "text": "Hel"}));
        assert_eq!(
            text_of(&cut),
            "Hel\n\n(ended early: interrupted) (conversation_id c)"
        );

        let failed = shown(
            json!({"status": "error", "stop_reason": "error", "text": "", "error": {"code": "deadline", "message": "the deadline is over"}}),
        );
        assert_eq!(
            text_of(&failed),
            "the deadline is over (code deadline) (conversation_id c)"
        );
        assert_eq!(result(failed).is_error, Some(true));
    }

    #[test]
    fn only_a_person_is_waited_for_as_an_approval() {
        let state = json!({"waits_for": {"kind": "person", "tool_call_ids": ["a", "b"]}});
        assert_eq!(awaited(&state), ["a", "b"]);
        let client = json!({"waits_for": {"kind": "client", "tool_call_ids": ["a"]}});
        assert!(awaited(&client).is_empty());
        assert!(awaited(&json!({"waits_for": {"kind": "model"}})).is_empty());
    }
}
