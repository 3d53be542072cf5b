//! The HTML of one item of a thread.

use std::cell::Cell;

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
    html::{
        badge, bytes, clip, clip_visible, code, duration, edit, money, number, plain, time, until,
        whole_code, whole_edit,
    },
    imported::History,
    items::{Answer, Approval, Call, Item, Kind},
    markdown::markdown,
    page::csrf,
};
use crate::http::sessions::Session;
use crate::visible::visible_strict;

/// Bytes of a prompt or an answer that are shown.
const TEXT_MAX: usize = 16 * 1024;

/// Bytes of the arguments or the result of a tool call that are shown.
const CALL_MAX: usize = 4 * 1024;

/// Bytes of HTML of an item. What begins before it is shown, the rest is in the entry.
const ITEM_MAX: usize = 128 * 1024;

/// Bytes of HTML of the questions of an item, each of which shows the whole call. There is no room for
/// larger ones in a page that a person reads.
const QUESTIONS_MAX: usize = 512 * 1024;

/// Bytes of arguments that are parsed to be shown.
const PARSED_MAX: usize = 64 * 1024;

/// Bytes of names and the like that are shown.
const NAME_MAX: usize = 256;

/// Bytes of a pattern on its button.
const PATTERN_MAX: usize = 200;

/// Messages of an imported history that are shown.
const IMPORTED_MAX: usize = 50;

/// Bytes of HTML that are left.
struct Left(Cell<usize>);

impl Left {
    fn new(bytes: usize) -> Self {
        Self(Cell::new(bytes))
    }

    fn is_used(&self) -> bool {
        self.0.get() == 0
    }

    fn has(&self, bytes: usize) -> bool {
        bytes <= self.0.get()
    }

    /// Counts a part.
    fn with(&self, part: Markup) -> Markup {
        self.0.set(self.0.get().saturating_sub(part.0.len()));
        part
    }
}

/// What the items of a page have in common.
pub(super) struct Shown<'a> {
    pub(super) id: &'a ConversationId,
    pub(super) session: &'a Session,
    pub(super) now: Timestamp,
    /// The open round.
    pub(super) round: Option<RoundId>,
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
    let left = Left::new(ITEM_MAX);
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
                    @if let Some(message) = message { (content(shown, seq, message, &left)) }
                    @else { p.dim { "Goes on with the history as it is." } }
                    @if !item.is_taken_back { (from_here(shown, seq, *round)) }
                }
                Kind::Injected { message } => {
                    (head(shown, item, "Steering", html! {}))
                    (content(shown, seq, message, &left))
                }
                Kind::Answer(answer) => (self::answer(shown, item, answer, &left)),
                Kind::End { stop, latency_ms, error, round } => {
                    (end(*stop, *latency_ms))
                    @if let Some(error) = error {
                        p.flash.bad {
                            strong { (error.code) } " "
                            (clip_visible(&error.message, CALL_MAX).0)
                        }
                    }
                    @if let Some(round) = round && !item.is_taken_back {
                        (fork_here(shown, seq, *round))
                    }
                }
                Kind::Imported { messages } => {
                    (head(shown, item, "Imported history", html! {
                        span.dim.small { (number(messages.len() as u64)) " messages" }
                    }))
                    (imported(shown, item, messages, &left))
                    @if messages.len() > IMPORTED_MAX || left.is_used() {
                        p.dim { "and more in the entry" }
                    }
                }
                Kind::Note { text, .. } => {
                    @let (text, left) = clip_visible(text, CALL_MAX);
                    p { (text) @if left > 0 { " …" } " " (link(shown, seq)) }
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

/// The first messages of an imported history.
fn imported(shown: &Shown<'_>, item: &Item, messages: &[Message], left: &Left) -> Markup {
    let first = messages.iter().take(IMPORTED_MAX);
    let history = History::of(first.clone(), item.at);
    html! {
        @for (place, message) in first.enumerate().take_while(|_| !left.is_used()) {
            @if !history.is_shown(message) {
                div.imported {
                    strong.small { (message.role().as_str()) }
                    (content_of(shown, item.seq, message, left, &history))
                    @for call in history.calls(place) {
                        @if !left.is_used() { (left.with(tool_call(shown, item, call))) }
                    }
                }
            }
        }
    }
}

/// The blocks of a message that people read, as far as the item goes.
fn content(shown: &Shown<'_>, seq: Seq, message: &Message, left: &Left) -> Markup {
    content_of(shown, seq, message, left, &History::default())
}

/// As [`content`], without the results that `history` shows with their calls.
fn content_of(
    shown: &Shown<'_>,
    seq: Seq,
    message: &Message,
    left: &Left,
    history: &History,
) -> Markup {
    let blocks = message.blocks();
    html! {
        @for (index, block) in blocks.iter().enumerate().take_while(|_| !left.is_used()) {
            (left.with(html! { @match block {
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
                ContentBlock::ToolResult(result) if history.has(result) => {}
                ContentBlock::ToolResult(result) => {
                    (plain(&result.content.text(), CALL_MAX))
                }
                ContentBlock::Image(_) => {
                    @let path = shown.path(&format!("image/{seq}/{index}"));
                    img.shot src=(path) alt="Attached image" loading="lazy";
                }
                ContentBlock::Document(_) | ContentBlock::Other { .. } => {
                    @let length = block.raw().map_or(0, |raw| raw.as_str().len());
                    p.dim { "[" (name(block.kind())) ", " (bytes(length as u64)) "]" }
                }
            } }))
        }
        @if left.is_used() { p.dim.small { "more in the entry" } }
    }
}

/// A name or another short text, as people see it.
fn name(text: &str) -> String {
    clip_visible(text, NAME_MAX).0
}

/// A text that most readers pass over.
fn folded(name: &str, text: &str) -> Markup {
    html! { details.thought { summary { (name) } (plain(text, CALL_MAX)) } }
}

fn answer(shown: &Shown<'_>, item: &Item, answer: &Answer, left: &Left) -> Markup {
    let usage = &answer.usage;
    let questions = Left::new(QUESTIONS_MAX);
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
            Some(message) => (content(shown, item.seq, message, left)),
            None if answer.stop.is_some() => p.dim { "Nothing of this answer was kept." },
            None => p.dim.small { "The answer stands on the page before." },
        }
        @for call in &answer.calls {
            @if !left.is_used() { (left.with(tool_call(shown, item, call))) }
            @if let Some(approval) = asks(shown, call) {
                (question(shown, item.seq, call, approval, &questions))
            }
        }
        @if left.is_used() && !answer.calls.is_empty() {
            p.dim.small { (answer.calls.len()) " calls, not all shown; more in the entries" }
        }
    }
}

fn tool_call(shown: &Shown<'_>, item: &Item, call: &Call) -> Markup {
    let (class, word) = match (&call.finished, &call.approval) {
        (Some((_, result)), _) if result.is_error => ("bad", "failed"),
        (Some(_), _) => ("good", "done"),
        (None, Some(approval)) if approval.answered.is_none() => ("wait", "waits for you"),
        (None, _) if call.started.is_some() => ("run", "runs"),
        (None, _) if call.is_imported => ("", "no result"),
        (None, _) => ("", "not started"),
    };
    let input = call.input.as_ref();
    let parsed = input.filter(|input| input.as_str().len() <= PARSED_MAX);
    let line = parsed.map(|input| summary(&call.name, input));
    let line = name(line.as_deref().unwrap_or(&call.name));
    let took = match (call.started, &call.finished) {
        (Some(from), Some((to, _))) => Some(to.ms_since(from)),
        (None, Some((_, result))) if !call.is_imported => Some(result.duration_ms),
        _ => None,
    };
    html! {
        details.call id={ "c" (item.seq) "-" (call.index) } {
            summary {
                (badge(class, word)) " " code { (line) } " "
                @if let Some(ms) = took { span.dim.small { (duration(ms)) } }
            }
            @if let Some(input) = &call.input { (arguments(input.as_str())) }
            @if let Some(approval) = &call.approval { (decided(approval)) }
            @if let Some((_, result)) = &call.finished {
                (plain(&result.observation, CALL_MAX))
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
    }
}

/// The approval of a call that waits for a person.
fn asks<'a>(shown: &Shown<'_>, call: &'a Call) -> Option<&'a Approval> {
    let approval = call.approval.as_ref()?;
    (approval.answered.is_none() && shown.waiting.contains(&call.id)).then_some(approval)
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// The arguments of a call, as far as a person reads them who decides nothing.
fn arguments(json: &str) -> Markup {
    if json.len() > PARSED_MAX {
        return plain(json, CALL_MAX);
    }
    let short = |text: &str| clip_visible(text, CALL_MAX);
    Arguments::of(json).shown(&short, code, edit)
}

/// The whole arguments of a call on which a person decides, with every invisible character.
fn whole_arguments(json: &str) -> Markup {
    let whole = |text: &str| (visible_strict(text), 0);
    Arguments::of(json).shown(&whole, whole_code, whole_edit)
}

/// The arguments of a call: an edit as a diff, a command as text, others as JSON.
struct Arguments<'a> {
    json: &'a str,
    value: Value,
}

impl<'a> Arguments<'a> {
    fn of(json: &'a str) -> Self {
        Self {
            json,
            value: serde_json::from_str(json).unwrap_or_default(),
        }
    }

    /// Shows what `seen` makes of each text: what is shown, and how many bytes are left out.
    fn shown(
        &self,
        seen: &dyn Fn(&str) -> (String, usize),
        code: fn(&str) -> Markup,
        edit: fn(&str, &str) -> Markup,
    ) -> Markup {
        let text = |key: &str| self.value.get(key).and_then(Value::as_str);
        let rest = |shown: &[&str]| {
            let fields = self.value.as_object().into_iter().flatten();
            let rest = fields.filter(|(key, _)| !shown.contains(&key.as_str()));
            rest.map(|(key, value)| (seen(key).0, seen(&value.to_string()).0))
                .collect::<Vec<_>>()
        };
        let as_code = |text: &str| {
            let (shown, left) = seen(text);
            html! {
                (code(&shown))
                @if left > 0 { p.dim.small { (bytes(left as u64)) " more in the entry" } }
            }
        };
        let (main, named) = match (text("command"), text("old_text"), text("new_text")) {
            (Some(command), None, None) => (as_code(command), rest(&["command"])),
            (None, Some(old), Some(new)) => (
                edit(&seen(old).0, &seen(new).0),
                rest(&["old_text", "new_text"]),
            ),
            _ => {
                let pretty = serde_json::to_string_pretty(&self.value).unwrap_or_default();
                let is_json = !self.value.is_null();
                (
                    as_code(if is_json { &pretty } else { self.json }),
                    Vec::new(),
                )
            }
        };
        html! {
            @if !named.is_empty() {
                dl.named { @for (key, value) in &named { dt { (key) } dd { (value) } } }
            }
            (main)
        }
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

/// The question about a call that waits, with its answers. A person allows only what is shown whole.
fn question(shown: &Shown<'_>, seq: Seq, call: &Call, approval: &Approval, left: &Left) -> Markup {
    let asked = whole_question(shown, call, approval, left);
    html! {
        form.question method="post" action=(shown.path("approve")) {
            (csrf(shown.session))
            input type="hidden" name="call" value=(call.id);
            @if let Some(round) = &shown.round {
                input type="hidden" name="round" value=(round);
            }
            @if let Some(asked) = &asked { (asked) }
            @else {
                p {
                    strong { "May " code { (name(&call.name)) } " run?" } " "
                    (link(shown, seq))
                }
                p.flash.bad {
                    "This call is too long to be allowed here. Answer the other questions first, or "
                    "read its entry and allow it over the API."
                }
            }
            div.row {
                @if asked.is_some() {
                    button.main name="allow" value="once" { "Allow" }
                    @if let Some(pattern) = &approval.pattern {
                        (always(&visible_strict(pattern)))
                    }
                }
                button.danger name="allow" value="no" { "Deny" }
            }
        }
    }
}

/// The button that allows all calls of a pattern.
fn always(pattern: &str) -> Markup {
    let (start, left) = clip(pattern, PATTERN_MAX);
    html! {
        button name="allow" value="always" title={ "Calls like " (pattern) } {
            "Always allow " code { (start) }
            @if left > 0 { " … and " (bytes(left as u64)) " more of it" }
        }
    }
}

/// What a person decides on, whole; `None` if it does not fit.
fn whole_question(
    shown: &Shown<'_>,
    call: &Call,
    approval: &Approval,
    left: &Left,
) -> Option<Markup> {
    let json = approval.resolved_input.as_str();
    let pattern = approval.pattern.as_deref().unwrap_or_default();
    let rest = [&call.name, &approval.reason, pattern].map(str::len);
    if !left.has(rest.iter().sum::<usize>().saturating_add(json.len())) {
        return None;
    }
    let asked = html! {
        p {
            strong { "Allow " code { (visible_strict(&call.name)) } "?" }
            " " span.dim {
                (visible_strict(&approval.reason)) ", "
                (until(approval.expires_at, shown.now)) " left"
            }
        }
        (whole_arguments(json))
    };
    left.has(asked.0.len()).then(|| left.with(asked))
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
        @if shown.round.is_none() && !shown.id.is_reserved() {
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
                        placeholder="id of the copy; optional";
                    button type="submit" { "Fork" }
                }
            }
        }
    }
}
