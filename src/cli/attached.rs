//! `callboard chat --attach`: a chat with a conversation of a running `callboard serve`. The host
//! runs the rounds and their tools; this program shows them, and answers approvals.

use std::time::{Duration, Instant};

use callboard_actors::{
    chat::{Message, RawJson},
    ids::ConversationId,
    stream::{EventKind, Failure as RoundFailure, RoundEnd},
};
use memchr::memchr;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ask::{Answer, Asker, Question},
    chat_words::{self, Meaning, meaning},
    failure::{Done, Failure},
    follow::interrupting,
    held::Held,
    remote::Remote,
    sessions::messages,
    signals::Signals,
    terminal::{
        Paint, Terminals, counted, err_line, out_line, ring_after, ring_at_question, sanitize,
    },
    typing::{Typed, Typing},
    unfold,
    view::View,
    wrap::list_for_stdout,
};

const MESSAGES: &str = "/v1/conversations/{id}/messages";
const INTERRUPT: &str = "/v1/conversations/{id}/interrupt";
const APPROVALS: &str = "/v1/conversations/{id}/approvals/{tool_call_id}";

/// Time between two drawings of what changes while nothing arrives.
const TICK: Duration = Duration::from_millis(50);

/// Bytes of one event: the largest message. Also of all questions that wait for the person.
const EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Tool calls of a round that run or wait for the person at the same time.
const CALLS_MAX: usize = 1000;

/// Commands of such a chat.
pub(super) const HELP: &str = "\
/help     this list
/quit     leave (also Ctrl-D); the conversation stays at its server
exit and quit alone leave too. Enter behind one backslash breaks a line.
What you type while a round runs waits in a queue. Esc cancels the running round, Ctrl-C does
and empties the queue. Ctrl-O shows the whole output of the last call of an ended round, Ctrl-G
opens the line in your editor. Not here: !COMMAND, @FILE, /attach and images, Esc twice (rewind),
links to files, and the other commands of a chat.";

/// Bytes of the id of a tool call that is shown. The view keeps it while the call runs.
const ID_BYTES_MAX: usize = 1024;

/// Characters of a tool call's summary, which the view keeps too.
const SUMMARY_CHARS_MAX: usize = 1000;

/// A conversation of a server.
pub(super) struct Attached {
    pub(super) remote: Remote,
    pub(super) id: ConversationId,
}

/// What a line did.
pub(super) enum Line {
    /// The chat ends.
    Leave,
    /// It is no command of this chat, and was not sent.
    Refused,
    /// It was handled, or failed.
    Done(Result<Done, Failure>),
}

/// The status of a conversation, as far as it is shown.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    state: String,
    #[serde(default)]
    rounds: u64,
}

/// The events of a round as bytes that arrive in any pieces.
#[derive(Default)]
struct Events {
    bytes: Vec<u8>,
    /// How many of them have no line end.
    searched: usize,
}

impl Events {
    /// Takes bytes and returns the data of the events that they complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<Value> {
        self.bytes.extend_from_slice(bytes);
        let mut found = Vec::new();
        // A long event arrives in thousands of pieces; none is searched again with each of them.
        while let Some(end) = memchr(b'\n', self.bytes.get(self.searched..).unwrap_or_default()) {
            let line: Vec<u8> = self.bytes.drain(..=self.searched + end).collect();
            self.searched = 0;
            let data = line.strip_prefix(b"data:");
            found.extend(data.and_then(|data| serde_json::from_slice(data).ok()));
        }
        self.searched = self.bytes.len();
        found
    }
}

/// A text of a JSON object; empty if it has none of this name.
fn text_of(value: &Value, name: &str) -> String {
    let text = value.get(name).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

/// The event of a JSON value; `None` for one that is not shown.
fn kind(value: &Value) -> Option<EventKind> {
    let text = |name: &str| text_of(value, name);
    let number = |name: &str| value.get(name).and_then(Value::as_u64).unwrap_or_default();
    let input = || RawJson::of(value.get("input").unwrap_or(&Value::Null)).ok();
    Some(match value.get("type")?.as_str()? {
        "text_delta" => EventKind::TextDelta { text: text("text") },
        "thinking_delta" => EventKind::ThinkingDelta { text: text("text") },
        "tool_call" => EventKind::ToolCall {
            tool_call_id: Some(text("tool_call_id")).filter(|id| id.len() <= ID_BYTES_MAX)?,
            name: text("name"),
            summary: text("summary").chars().take(SUMMARY_CHARS_MAX).collect(),
            input: input()?,
        },
        "tool_progress" => EventKind::ToolProgress {
            tool_call_id: text("tool_call_id"),
            text: text("text"),
        },
        "tool_result" => EventKind::ToolResult {
            tool_call_id: text("tool_call_id"),
            name: text("name"),
            is_error: value
                .get("is_error")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            summary: text("summary"),
            preview: text("preview"),
            duration_ms: number("duration_ms"),
            retry_count: u32::try_from(number("retry_count")).unwrap_or(u32::MAX),
            artifact_id: None,
        },
        "retry" => EventKind::Retry {
            layer: "gateway",
            attempt: u32::try_from(number("attempt")).unwrap_or(u32::MAX),
            delay_ms: number("delay_ms"),
            reason: text("reason"),
        },
        "usage" => EventKind::Usage {
            usage: serde_json::from_value(value.clone()).ok()?,
            cost_usd: value.get("cost_usd").and_then(Value::as_f64),
        },
        "context" => EventKind::Context {
            tokens: number("tokens"),
            window: number("window"),
            fraction: 0.0,
        },
        "queued" => EventKind::Queued {
            position: usize::try_from(number("position")).unwrap_or(usize::MAX),
        },
        "message" => EventKind::Message {
            message: serde_json::from_value::<Message>(value.get("message")?.clone()).ok()?,
            partial: false,
        },
        _ => return None,
    })
}

/// A server that names calls without end would fill the memory.
fn too_many_calls() -> Failure {
    Failure::work("the server names more tool calls at once than a round has")
}

impl Attached {
    /// Prints what the conversation is doing.
    pub(super) async fn announce(&self) -> Result<(), Failure> {
        let status: Status = self
            .remote
            .get_of("/v1/conversations/{id}", &self.id, "")
            .await?;
        err_line(&format!(
            "{} {} at {}: {}, {}",
            Paint::stderr().bold("callboard"),
            self.id,
            sanitize(self.remote.base()),
            sanitize(&status.state),
            counted(status.rounds, "round")
        ));
        Ok(())
    }

    /// Handles one line.
    pub(super) async fn line(
        &self,
        line: &str,
        is_interactive: bool,
        view: &mut View,
        signals: &mut Signals,
        typing: &mut Typing,
    ) -> Line {
        match meaning(line, is_interactive) {
            Meaning::Empty => Line::Done(Ok(Done::Well)),
            Meaning::Leave => Line::Leave,
            Meaning::Help => {
                out_line(&list_for_stdout(HELP));
                Line::Done(Ok(Done::Well))
            }
            Meaning::Other if chat_words::is_refused(line) => Line::Refused,
            Meaning::Other => Line::Done(self.prompt(line, view, signals, typing).await),
        }
    }

    /// Prints the whole output of the last call that was folded. A call of the open round is known to
    /// the server's clients once the round has ended.
    pub(super) async fn unfold(&self, view: &mut View) -> Result<(), Failure> {
        let Some((call, what)) = view.unfolds() else {
            err_line("no call has ended yet");
            return Ok(());
        };
        let messages = messages(&self.remote, &self.id).await?;
        match unfold::of_messages(messages.iter(), &call) {
            Some(output) => view.unfold(&what, &output),
            None => view.note("the server has this output once the round has ended"),
        }
        Ok(())
    }

    /// Asks the server to end the round, which may have ended.
    async fn interrupt(&self, signals: &mut Signals, typing: &mut Typing) {
        let body = json!({});
        let sent = self.remote.post_of(INTERRUPT, &self.id, None, &body);
        let _ = or_leave(signals, typing, sent).await;
    }

    async fn prompt(
        &self,
        prompt: &str,
        view: &mut View,
        signals: &mut Signals,
        typing: &mut Typing,
    ) -> Result<Done, Failure> {
        let body = json!({ "content": prompt, "stream": true });
        let mut answer = self.remote.post_of(MESSAGES, &self.id, None, &body).await?;
        let has_person = Terminals::detect().has_person();
        let mut events = Events::default();
        let mut asker = Asker::new(Paint::stderr()).of_model(view.own_folder());
        let mut held = Held::default();
        let begun = Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut interrupted = false;
        let mut round = None;
        view.begin();
        loop {
            let chunk = tokio::select! {
                biased;
                () = signals.next() => {
                    view.still();
                    if interrupted {
                        leave(typing);
                    }
                    interrupted = true;
                    asker.forget();
                    release(&mut held, view);
                    typing.forget();
                    interrupting(view, typing);
                    self.interrupt(signals, typing).await;
                    continue;
                }
                (question, given) = asker.answered() => {
                    let body = given.body(round.as_deref());
                    let call = Some(question.tool_call_id.as_str());
                    let sent = self.remote.post_of(APPROVALS, &self.id, call, &body);
                    match or_leave(signals, typing, sent).await {
                        // Those that the person typed: another answer is possible.
                        Err(failure) if matches!(given, Answer::Changed(_)) => {
                            err_line(&failure.text(Paint::stderr()));
                            asker.ask(question);
                        }
                        sent => {
                            drop(sent?);
                            if let Some(what) = given.changed_call(&question.name) {
                                view.changed(&question.tool_call_id, &what);
                            }
                        }
                    }
                    if !asker.is_open() {
                        release(&mut held, view);
                        if has_person {
                            typing.listen();
                        }
                        view.begin();
                    }
                    continue;
                }
                typed = typing.typed() => {
                    match typed {
                        Typed::Escape if !interrupted => {
                            interrupted = true;
                            interrupting(view, typing);
                            self.interrupt(signals, typing).await;
                        }
                        Typed::Unfold => {
                            let shown = self.unfold(view);
                            let _ = or_leave(signals, typing, shown).await;
                        }
                        Typed::Text | Typed::Escape => view.set_below(typing.rows()),
                    }
                    continue;
                }
                _ = ticks.tick(), if !asker.is_open() => {
                    view.tick();
                    continue;
                }
                chunk = answer.chunk() => chunk,
            };
            let Some(chunk) = chunk.map_err(|error| self.remote.unreachable(&error))? else {
                view.end(None);
                return Err(
                    Failure::work("the server ended the stream before the round ended").hint(
                        "`callboard sessions show` with the same --server shows how it went on",
                    ),
                );
            };
            if events.bytes.len() + chunk.len() > EVENT_BYTES_MAX {
                view.end(None);
                return Err(Failure::work("an event of the server is too long"));
            }
            for value in events.push(&chunk) {
                if let Some(id) = value.get("round_id").and_then(Value::as_str) {
                    round = Some(id.to_owned());
                }
                match value.get("type").and_then(Value::as_str) {
                    Some("round_finished") => {
                        let end: Option<RoundEnd> = serde_json::from_value(value).ok();
                        drop(asker);
                        release(&mut held, view);
                        view.set_below(Vec::new());
                        view.end(end.as_ref());
                        if has_person {
                            ring_after(begun);
                        }
                        return match end.and_then(|end| end.error) {
                            Some(failure) => Err(Failure::round(&failure)),
                            None if interrupted => Ok(Done::Interrupted),
                            None => Ok(Done::Well),
                        };
                    }
                    Some("error") => {
                        view.end(None);
                        let failure: Option<RoundFailure> = serde_json::from_value(value).ok();
                        return Err(failure.map_or_else(
                            || Failure::work("the server reported an error"),
                            |failure| Failure::round(&failure),
                        ));
                    }
                    Some("approval_required") if has_person && !interrupted => {
                        let text = |name: &str| text_of(&value, name);
                        typing.pause();
                        view.set_below(Vec::new());
                        view.asks();
                        ring_at_question(begun);
                        let question = Question {
                            tool_call_id: text("tool_call_id"),
                            name: text("name"),
                            input: value.get("input").map(Value::to_string).unwrap_or_default(),
                            reason: text("reason"),
                        };
                        if !asker.has_room(&question, CALLS_MAX, EVENT_BYTES_MAX) {
                            return Err(too_many_calls());
                        }
                        asker.ask(question);
                    }
                    _ => {
                        let Some(kind) = kind(&value) else { continue };
                        if let EventKind::ToolResult { tool_call_id, .. } = &kind {
                            asker.settled(tool_call_id);
                        }
                        match asker.is_open() && view.is_at_terminal() {
                            true if !kind.is_durable() => {} // The whole text follows.
                            true => held.push(kind, value.to_string().len()),
                            false => {
                                release(&mut held, view);
                                view.kind(&kind);
                            }
                        }
                        if view.running() > CALLS_MAX {
                            view.end(None);
                            return Err(too_many_calls());
                        }
                    }
                }
            }
        }
    }
}

/// Waits for a request; an interrupt meanwhile ends the program.
async fn or_leave<T>(
    signals: &mut Signals,
    typing: &mut Typing,
    request: impl Future<Output = T>,
) -> T {
    tokio::select! {
        biased;
        () = signals.next() => leave(typing),
        answer = request => answer,
    }
}

/// Ends the program at once, as after an interrupt.
fn leave(typing: &mut Typing) -> ! {
    typing.pause();
    std::process::exit(130)
}

/// Prints what was held back while a question was open.
fn release(held: &mut Held<EventKind>, view: &mut View) {
    let (events, missed) = held.take();
    for kind in &events {
        view.kind(kind);
    }
    view.missed(missed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_event_that_arrives_in_small_pieces_is_searched_once() {
        let line = format!("data: {{\"type\":\"{}\"}}\n", "x".repeat(1_000_000));
        let started = std::time::Instant::now();
        let mut events = Events::default();

        let found: usize = line
            .as_bytes()
            .chunks(1)
            .map(|byte| events.push(byte).len())
            .sum();

        assert_eq!(found, 1);
        // Searching all of it with each piece takes longer.
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn events_do_not_depend_on_how_the_bytes_arrive() {
        let stream = "id: 1\nevent: text_delta\ndata: {\"type\":\"text_delta\",\"text\":\"é\"}\n\n: ping\n\ndata: {\"type\":\"context\",\"tokens\":5,\"window\":10}\n\n";
        for size in 1..stream.len() {
            let mut events = Events::default();
            let found: Vec<Value> = stream
                .as_bytes()
                .chunks(size)
                .flat_map(|piece| events.push(piece))
                .collect();
            let kinds: Vec<EventKind> = found.iter().filter_map(kind).collect();
            let expected = [
                EventKind::TextDelta {
                    text: "é".to_owned(),
                },
                EventKind::Context {
                    tokens: 5,
                    window: 10,
                    fraction: 0.0,
                },
            ];
            assert_eq!(kinds, expected, "pieces of {size}");
        }
    }
}
