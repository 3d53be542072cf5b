//! Displays a round: as JSON lines for programs, as text and tool lines for people, or only the
//! last text in a pipe.

use std::{collections::BTreeMap, time::Duration};

use callboard_actors::{
    ids::ConversationId,
    stream::{EventKind, RoundEnd, StreamEvent, SubagentState},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::terminal::{
    Paint, Terminals, err, err_line, err_shown, out, out_data, out_json, out_shown, sanitize,
};
use crate::visible::VisibleStream;

/// How a round is displayed.
#[derive(Debug)]
pub(super) struct View {
    json: bool,
    /// Whether text goes to standard output while it is generated.
    streams: bool,
    /// Whether tool lines go to standard error.
    lines: bool,
    paint: Paint,
    spinner: Option<ProgressBar>,
    /// Summaries of the running tool calls, by id.
    running: BTreeMap<String, String>,
    calls: usize,
    /// Running subagents: their model calls and tokens so far.
    subagents: BTreeMap<ConversationId, (u32, u64)>,
    /// Text displayed since the last complete message.
    shown: String,
    /// Escapes invisible characters in streamed text.
    visible: VisibleStream,
    thinking: bool,
    at_line_start: bool,
}

impl View {
    pub(super) fn new(json: bool, terminals: Terminals) -> Self {
        Self {
            json,
            streams: terminals.stdout && !json,
            lines: terminals.stderr && !json,
            paint: Paint::stderr(),
            spinner: None,
            running: BTreeMap::new(),
            calls: 0,
            subagents: BTreeMap::new(),
            shown: String::new(),
            visible: VisibleStream::default(),
            thinking: false,
            at_line_start: true,
        }
    }

    /// Starts the spinner: a model or tools are working.
    pub(super) fn begin(&mut self) {
        self.spin();
    }

    /// Displays one event.
    pub(super) fn event(&mut self, event: &StreamEvent) {
        if self.json {
            out_json(&event.to_json());
            return;
        }
        match &event.kind {
            EventKind::TextDelta { text } => self.text(text),
            EventKind::ThinkingDelta { text } => self.thought(text),
            EventKind::Message { message, .. } => self.whole(&message.text()),
            EventKind::ToolCall {
                tool_call_id,
                summary,
                ..
            } => {
                self.running.insert(tool_call_id.clone(), sanitize(summary));
                self.fresh_line();
                self.spin();
            }
            EventKind::ToolProgress { tool_call_id, text } => self.progress(tool_call_id, text),
            EventKind::ToolResult {
                tool_call_id,
                name,
                is_error,
                summary,
                duration_ms,
                retry_count,
                ..
            } => {
                self.calls += 1;
                let what = self
                    .running
                    .remove(tool_call_id)
                    .unwrap_or_else(|| sanitize(name));
                let why = is_error.then_some(summary.as_str());
                self.tool_line(&what, why, *duration_ms, *retry_count);
            }
            EventKind::Subagent {
                id,
                state,
                steps,
                tokens,
            } => {
                match state {
                    SubagentState::Started | SubagentState::Running => {
                        self.subagents
                            .insert(id.clone(), (steps.unwrap_or(0), tokens.unwrap_or(0)));
                    }
                    _ => {
                        self.subagents.remove(id);
                    }
                }
                self.spin();
            }
            EventKind::Retry {
                layer,
                delay_ms,
                reason,
                ..
            } => {
                self.note(&format!(
                    "{layer}: {reason}; next try in {}",
                    seconds(*delay_ms)
                ));
            }
            EventKind::Queued { position } => self.note(&format!("queued at place {position}")),
            EventKind::TurnRestarted { .. } => self.note("the round is resumed"),
            _ => {}
        }
    }

    /// Stops the spinner, so that a question can be asked.
    pub(super) fn still(&mut self) {
        self.stop_spinner();
        self.fresh_line();
    }

    /// Prints a line next to the progress.
    pub(super) fn note(&mut self, text: &str) {
        if self.lines {
            self.stop_spinner();
            self.fresh_line();
            err_line(&self.paint.dim(&format!("  {}", sanitize(text))));
            self.spin();
        }
    }

    /// Displays the end of the round: its text if it was not streamed, and its usage.
    pub(super) fn end(&mut self, end: Option<&RoundEnd>) {
        self.stop_spinner();
        if self.json {
            return;
        }
        if let Some(end) = end {
            if self.streams {
                self.fresh_line();
            } else if !end.text.is_empty() {
                out_data(&format!("{}\n", end.text.trim_end_matches('\n')));
            }
            if self.lines {
                let tools = match self.calls {
                    0 => String::new(),
                    1 => " · 1 tool call".into(),
                    n => format!(" · {n} tool calls"),
                };
                let usage = format!("{} tokens in, {} out", end.usage.input(), end.usage.output);
                let figures = format!(
                    "{}{tools} · {usage} · {}",
                    end.stop_reason.code(),
                    seconds(end.latency_ms)
                );
                err_line(&self.paint.dim(&figures));
            }
        }
        self.fresh_line();
        self.running.clear();
        self.subagents.clear();
        self.calls = 0;
        self.shown.clear();
    }

    fn text(&mut self, text: &str) {
        if !self.streams {
            return;
        }
        self.stop_spinner();
        if self.thinking {
            self.fresh_line();
            self.thinking = false;
        }
        out_shown(&self.visible.push(text));
        self.shown.push_str(text);
        self.at_line_start = text.ends_with('\n');
    }

    fn thought(&mut self, text: &str) {
        if !self.streams || !self.lines {
            return;
        }
        self.stop_spinner();
        self.thinking = true;
        let shown = self.visible.push(text);
        err_shown(&self.paint.dim(&shown));
        self.at_line_start = text.ends_with('\n');
    }

    /// A message replaces its deltas: displays the part that was not streamed.
    fn whole(&mut self, text: &str) {
        let shown = std::mem::take(&mut self.shown);
        if !self.streams {
            return;
        }
        match text.strip_prefix(shown.as_str()) {
            Some("") => {}
            Some(rest) => self.text(rest),
            None => {
                self.fresh_line();
                self.text(text);
            }
        }
        self.shown.clear();
    }

    fn progress(&mut self, id: &str, text: &str) {
        if let (Some(spinner), Some(what)) = (&self.spinner, self.running.get(id)) {
            // A progress bar rewrites its line again and again; the last version counts.
            let line = sanitize(
                text.split(['\n', '\r'])
                    .rfind(|line| !line.is_empty())
                    .unwrap_or_default(),
            );
            spinner.set_message(format!("{what}  {line}"));
        }
    }

    fn tool_line(&mut self, what: &str, why: Option<&str>, duration_ms: u64, retry_count: u32) {
        if !self.lines {
            return;
        }
        self.stop_spinner();
        self.fresh_line();
        let mark = if why.is_some() {
            self.paint.red("✗")
        } else {
            self.paint.green("✓")
        };
        let retries = match retry_count {
            0 => String::new(),
            1 => ", 1 retry".to_owned(),
            count => format!(", {count} retries"),
        };
        let time = self
            .paint
            .dim(&format!("({}{retries})", seconds(duration_ms)));
        let why = why
            .map(|why| format!(": {}", sanitize(why)))
            .unwrap_or_default();
        err_line(&format!("  {mark} {what} {time}{why}"));
        self.spin();
    }

    fn spin(&mut self) {
        if !self.lines || !self.at_line_start || !self.paint.is_on() {
            return;
        }
        let message = match self.running.values().next() {
            None => "thinking".to_owned(),
            Some(first) if self.running.len() == 1 => first.clone(),
            Some(first) => format!("{first}  and {} more", self.running.len() - 1),
        };
        let message = match at_work(&self.subagents) {
            Some(children) => format!("{message}  {children}"),
            None => message,
        };
        let spinner = self.spinner.get_or_insert_with(|| {
            let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {wide_msg} {elapsed:.dim}")
            {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        spinner.set_message(message);
    }

    fn stop_spinner(&mut self) {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
    }

    fn fresh_line(&mut self) {
        match self.visible.finish() {
            held if held.is_empty() => {}
            held if self.thinking => err_shown(&self.paint.dim(&held)),
            held => out_shown(&held),
        }
        if !self.at_line_start {
            self.at_line_start = true;
            if self.streams { out("\n") } else { err("\n") }
        }
    }
}

/// The number of running subagents, and their model calls and tokens together.
fn at_work(subagents: &BTreeMap<ConversationId, (u32, u64)>) -> Option<String> {
    let (steps, tokens) = subagents
        .values()
        .fold((0, 0), |(steps, tokens), (more, used)| {
            (steps + more, tokens + used)
        });
    let many = if subagents.len() == 1 {
        "subagent"
    } else {
        "subagents"
    };
    match (subagents.len(), steps) {
        (0, _) => None,
        (count, 0) => Some(format!("[{count} {many} at work]")),
        (count, _) => Some(format!(
            "[{count} {many} at work, {steps} model calls, {tokens} tokens]"
        )),
    }
}

/// Formats a duration for people.
pub(super) fn seconds(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subagents_are_counted_with_what_they_did() {
        let id = |n: u8| ConversationId::new(format!("subagent:{n}")).unwrap();
        let describe = |all: &[(u8, (u32, u64))]| {
            at_work(&all.iter().map(|(n, far)| (id(*n), *far)).collect())
        };

        assert_eq!(describe(&[]), None);
        assert_eq!(describe(&[(1, (0, 0))]).unwrap(), "[1 subagent at work]");
        assert_eq!(
            describe(&[(1, (2, 300)), (2, (1, 50))]).unwrap(),
            "[2 subagents at work, 3 model calls, 350 tokens]"
        );
    }

    #[test]
    fn durations_are_read_by_people() {
        let shown: Vec<_> = [0, 999, 1000, 1950, 59_999, 61_000]
            .into_iter()
            .map(seconds)
            .collect();

        assert_eq!(
            shown,
            ["0 ms", "999 ms", "1.0 s", "1.9 s", "59.9 s", "1 min 1 s"]
        );
    }
}
