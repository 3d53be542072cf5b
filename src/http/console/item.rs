//! The HTML of one item of a thread.

use callboard_actors::{
    chat::{ContentBlock, Message, is_reminder},
    ids::{ConversationId, RoundId, Seq},
    journal::{ApprovalVerdict, summary},
    stream::StopReason,
    time::Timestamp,
};
use maud::{Markup, html};
use serde_json::Value;

use super::{
    html::{badge, bytes, clip, duration, edit, money, number, plain, time, until},
    items::{Answer, Approval, Call, Item, Kind},
    markdown::markdown,
    page::csrf,
};
use crate::http::sessions::Session;
use crate::visible::{visible, visible_strict};

/// Bytes of a prompt or an answer that are shown.
const TEXT_MAX: usize = 16 * 1024;

/// Bytes of the arguments or the result of a tool call that are shown.
const CALL_MAX: usize = 4 * 1024;

/// Messages of an imported history that are shown.
const IMPORTED_MAX: usize = 50;

/// What the items of a page have in common.
pub(super) struct Shown<'a> {
    pub(super) id: &'a ConversationId,
    pub(super) session: &'a Session,
    pub(super) now: Timestamp,
    /// Whether a round is open.
    pub(super) is_open: bool,
    /// The calls that wait for a person.
    pub(super) waiting: &'a [String],
}

impl Shown<'_> {
    fn path(&self, rest: &str) -> String {
        format!("/console/c/{}/{rest}", self.id)
    }
}

/// Renders an item.
pub(super) fn item(shown: &Shown<'_>, item: &Item) -> Markup {
    let seq = item.seq;
    let class = match &item.kind {
        Kind::Prompt { .. } | Kind::Injected { .. } => "prompt",
        Kind::Answer(_) => "answer",
        Kind::End { .. } => "end",
        Kind::Imported { .. } => "prompt",
        Kind::Note { class, .. } => class,
    };
    let gone = if item.is_taken_back { " gone" } else { "" };
    html! {
        article class={ "item " (class) (gone) } id={ "e" (seq) } data-seq=(seq)
            data-unsettled[item.is_unsettled()] tabindex="-1" {
            @match &item.kind {
                Kind::Prompt { round, message, began, is_withdrawn } => {
                    (head(shown, item, "Prompt", html! {
                        @if *is_withdrawn { (badge("bad", "withdrawn")) }
                        @else if let Some(began) = began {
                            @let waited = began.ms_since(item.at);
                            @if waited >= 200 { span.dim.small { "waited " (duration(waited)) } }
                        } @else { (badge("wait", "waits")) }
                    }))
                    @if let Some(message) = message { (content(shown, seq, message)) }
                    @else { p.dim { "Goes on with the history as it is." } }
                    @if !item.is_taken_back { (from_here(shown, seq, *round)) }
                }
                Kind::Injected { message } => {
                    (head(shown, item, "Steering", html! {}))
                    (content(shown, seq, message))
                }
                Kind::Answer(answer) => (self::answer(shown, item, answer)),
                Kind::End { stop, latency_ms, error, round } => {
                    (end(*stop, *latency_ms))
                    @if let Some(error) = error {
                        p.flash.bad { strong { (error.code) } " " (visible(&error.message)) }
                    }
                    @if let Some(round) = round && !item.is_taken_back {
                        (fork_here(shown, seq, *round))
                    }
                }
                Kind::Imported { messages } => {
                    (head(shown, item, "Imported history", html! {
                        span.dim.small { (messages.len()) " messages" }
                    }))
                    @for message in messages.iter().take(IMPORTED_MAX) {
                        div.imported {
                            strong.small { (message.role().as_str()) }
                            (content(shown, seq, message))
                        }
                    }
                    @if messages.len() > IMPORTED_MAX { p.dim { "and more in the entry" } }
                }
                Kind::Note { text, .. } => {
                    @let (text, left) = clip(text, CALL_MAX);
                    p { (visible(text)) @if left > 0 { " …" } " " (link(shown, seq)) }
                }
            }
        }
    }
}

fn link(shown: &Shown<'_>, seq: Seq) -> Markup {
    let path = shown.path(&format!("entry/{seq}"));
    html! { a.seq href=(path) title="The entry of the journal" { "#" (seq) } }
}

fn head(shown: &Shown<'_>, item: &Item, name: &str, more: Markup) -> Markup {
    html! {
        header {
            strong { (name) }
            @if item.is_taken_back { (badge("", "taken back")) }
            (more)
            span.grow {}
            span.dim.small { (time(item.at)) }
            (link(shown, item.seq))
        }
    }
}

/// The blocks of a message that people read.
fn content(shown: &Shown<'_>, seq: Seq, message: &Message) -> Markup {
    let blocks = message.blocks();
    html! {
        @for (index, block) in blocks.iter().enumerate() {
            @match block {
                ContentBlock::Text(block) if is_reminder(&block.text) => {
                    (folded("Reminder of the host", &block.text))
                }
                ContentBlock::Text(block) => {
                    @let (text, left) = clip(&block.text, TEXT_MAX);
                    div.text { (markdown(text)) }
                    @if left > 0 { p.dim.small { (bytes(left as u64)) " more in the entry" } }
                }
                ContentBlock::Thinking(block) if !block.thinking.is_empty() => {
                    (folded("Thoughts", &block.thinking))
                }
                ContentBlock::Thinking(_) | ContentBlock::ToolUse(_) => {}
                ContentBlock::ToolResult(result) => {
                    (plain(&visible(&result.content.text()), CALL_MAX))
                }
                ContentBlock::Image(_) => {
                    @let path = shown.path(&format!("image/{seq}/{index}"));
                    img.shot src=(path) alt="Attached image" loading="lazy";
                }
                ContentBlock::Document(_) | ContentBlock::Other { .. } => {
                    @let length = block.raw().map_or(0, |raw| raw.as_str().len());
                    p.dim { "[" (visible(block.kind())) ", " (bytes(length as u64)) "]" }
                }
            }
        }
    }
}

/// A text that most readers pass over.
fn folded(name: &str, text: &str) -> Markup {
    html! { details.thought { summary { (name) } (plain(&visible(text), CALL_MAX)) } }
}

fn answer(shown: &Shown<'_>, item: &Item, answer: &Answer) -> Markup {
    let usage = &answer.usage;
    html! {
        (head(shown, item, "Model", html! {
            @if answer.is_partial { (badge("wait", "cut off")) }
            @if let Some(asked) = answer.asked {
                span.dim.small { (duration(item.at.ms_since(asked))) }
            }
            @if !usage.is_zero() {
                span.dim.small title="Tokens: input, of that from the provider's cache; output" {
                    (number(usage.input())) " in"
                    @if usage.cache_read > 0 {
                        " (" (usage.cache_read * 100 / usage.input().max(1)) " % cached)"
                    }
                    ", " (number(usage.output)) " out"
                }
            }
            @if let Some(cost) = answer.cost_micro_usd { span.dim.small { (money(cost)) } }
        }))
        @match &answer.message {
            Some(message) => (content(shown, item.seq, message)),
            None if answer.stop.is_some() => p.dim { "Nothing of this answer was kept." },
            None => p.dim.small { "The answer stands on the page before." },
        }
        @for call in &answer.calls { (tool_call(shown, item, call)) }
    }
}

fn tool_call(shown: &Shown<'_>, item: &Item, call: &Call) -> Markup {
    let (class, word) = match (&call.finished, &call.approval) {
        (Some((_, result)), _) if result.is_error => ("bad", "failed"),
        (Some(_), _) => ("good", "done"),
        (None, Some(approval)) if approval.answered.is_none() => ("wait", "waits for you"),
        (None, _) if call.started.is_some() => ("run", "runs"),
        (None, _) => ("", "not started"),
    };
    let line = call.input.as_ref().map(|input| summary(&call.name, input));
    let line = line.unwrap_or_else(|| call.name.clone());
    let took = match (call.started, &call.finished) {
        (Some(from), Some((to, _))) => Some(to.ms_since(from)),
        (None, Some((_, result))) => Some(result.duration_ms),
        _ => None,
    };
    let asks = call
        .approval
        .as_ref()
        .filter(|approval| approval.answered.is_none() && shown.waiting.contains(&call.id));
    html! {
        details.call id={ "c" (item.seq) "-" (call.index) } {
            summary {
                (badge(class, word)) " " code { (visible(&line)) } " "
                @if let Some(ms) = took { span.dim.small { (duration(ms)) } }
            }
            @if let Some(input) = &call.input { (arguments(input.as_str(), false)) }
            @if let Some(approval) = &call.approval { (decided(approval)) }
            @if let Some((_, result)) = &call.finished {
                (plain(&visible(&result.observation), CALL_MAX))
                @if result.retry_count > 0 { p.dim.small { (result.retry_count) " retries" } }
                @if let Some(id) = &result.artifact_id {
                    p.small {
                        @let path = shown.path(&format!("artifact/{}", encoded(id)));
                        a href=(path) { "Download the whole result" }
                        @if result.data_size_bytes > 0 { " (" (bytes(result.data_size_bytes)) ")" }
                    }
                }
                @if let Some(seq) = call.result_seq { p.small { "Result " (link(shown, seq)) } }
            }
        }
        @if let Some(approval) = asks { (question(shown, call, approval)) }
    }
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// The arguments of a call: an edit as a diff, a command as text, others as JSON. `strict` shows
/// every invisible character, for texts on which a person decides.
fn arguments(json: &str, strict: bool) -> Markup {
    let seen = |text: &str| match strict {
        true => visible_strict(text),
        false => visible(text),
    };
    // A decision is made on the whole text.
    let most = if strict { usize::MAX } else { CALL_MAX };
    let value: Value = serde_json::from_str(json).unwrap_or_default();
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let rest = |shown: &[&str]| {
        let fields = value.as_object().into_iter().flatten();
        let rest = fields.filter(|(key, _)| !shown.contains(&key.as_str()));
        rest.map(|(key, value)| (seen(key), seen(&value.to_string())))
            .collect::<Vec<_>>()
    };
    let (main, named) = match (text("command"), text("old_text"), text("new_text")) {
        (Some(command), None, None) => (plain(&seen(command), most), rest(&["command"])),
        (None, Some(old), Some(new)) => (
            edit(&seen(old), &seen(new), most),
            rest(&["old_text", "new_text"]),
        ),
        _ => {
            let pretty = serde_json::to_string_pretty(&value).unwrap_or_default();
            let pretty = if value.is_null() { json } else { &pretty };
            (plain(&seen(pretty), most), Vec::new())
        }
    };
    html! {
        @if !named.is_empty() {
            dl.named { @for (key, value) in &named {
                dt { (key) } dd { (clip(value, most).0) }
            } }
        }
        (main)
    }
}

fn decided(approval: &Approval) -> Markup {
    let Some((at, verdict, always)) = &approval.answered else {
        return html! {};
    };
    let waited = duration(at.ms_since(approval.asked));
    html! {
        p.small {
            @match verdict {
                ApprovalVerdict::Allowed if *always => "Always allowed",
                ApprovalVerdict::Allowed => "Allowed",
                ApprovalVerdict::Denied => "Denied",
                ApprovalVerdict::Expired => "Not answered in time",
            }
            " after " (waited)
        }
    }
}

/// The question about a call that waits, with its answers.
fn question(shown: &Shown<'_>, call: &Call, approval: &Approval) -> Markup {
    html! {
        form.question method="post" action=(shown.path("approve")) {
            (csrf(shown.session))
            input type="hidden" name="call" value=(call.id);
            p {
                strong { "Allow " code { (visible_strict(&call.name)) } "?" }
                " " span.dim {
                    (visible_strict(&approval.reason)) ", "
                    (until(approval.expires_at, shown.now)) " left"
                }
            }
            (arguments(approval.resolved_input.as_str(), true))
            div.row {
                button.main name="allow" value="once" { "Allow" }
                @if let Some(pattern) = &approval.pattern {
                    @let pattern = visible_strict(pattern);
                    button name="allow" value="always" title={ "Calls like " (pattern) } {
                        "Always allow " code { (clip(&pattern, 60).0) }
                    }
                }
                button.danger name="allow" value="no" { "Deny" }
            }
        }
    }
}

fn end(stop: StopReason, latency_ms: u64) -> Markup {
    html! {
        p.endline {
            @if stop == StopReason::EndTurn { "Round ended" }
            @else { "Round ended: " code { (stop.code()) } }
            " after " (duration(latency_ms))
        }
    }
}

/// What can be done from a prompt on.
fn from_here(shown: &Shown<'_>, seq: Seq, round: RoundId) -> Markup {
    html! {
        @if !shown.is_open && !shown.id.is_reserved() {
            form.tools method="post" action=(shown.path("rewind"))
                data-confirm="Take back this round and all after it?" {
                (csrf(shown.session))
                input type="hidden" name="round" value=(round);
                input type="hidden" name="seq" value=(seq);
                button.quiet type="submit" { "Take back and edit" }
            }
        }
    }
}

/// What can be done at the end of a round.
fn fork_here(shown: &Shown<'_>, seq: Seq, round: RoundId) -> Markup {
    html! {
        @if !shown.id.is_reserved() {
            details.tools {
                summary { "Fork here" }
                form.row method="post" action=(shown.path("fork")) {
                    (csrf(shown.session))
                    input type="hidden" name="round" value=(round);
                    label.hidden for={ "copy" (seq) } { "Id of the copy" }
                    input id={ "copy" (seq) } name="copy" maxlength="128"
                        placeholder="id of the copy; empty for one made here";
                    button type="submit" { "Fork" }
                }
            }
        }
    }
}
