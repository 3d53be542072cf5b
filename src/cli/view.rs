//! Displays a round: as JSON lines for programs, as text and tool lines for people, or only the
//! last text in a pipe.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use callboard_actors::{
    ids::ConversationId,
    journal::thousands,
    policy::usd,
    stream::{EventKind, RoundEnd, StreamEvent, SubagentState},
};

use super::{
    branch::branch,
    links::Places,
    live::{Live, ROWS_MAX},
    markdown::{Line, Markdown, Span, Style, cut},
    terminal::{
        Paint, Terminals, counted, err_line, err_shown, out_data, out_json, out_shown, sanitize,
        size,
    },
    unfold,
    wrap::parts_for_stderr,
};
use crate::visible::VisibleStream;

/// Lines of a tool's output that are shown.
const OUTPUT_LINES: usize = 3;

/// Characters of such a line that are kept.
const OUTPUT_CHARS: usize = 300;

/// Shortest time between two drawings of the live region, except the first after a pause.
const DRAWN_EVERY: Duration = Duration::from_millis(16);

/// What the spinner shows, one after another.
const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// How long one of them is shown, in milliseconds.
const FRAME_MS: u128 = 100;

/// A running tool call.
#[derive(Debug, Default)]
struct Running {
    /// Its tool and arguments on one line.
    what: String,
    /// The last line of its output.
    last: String,
}

/// Where streamed text goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Answer,
    Thoughts,
}

/// How a round is displayed.
#[derive(Debug)]
pub(super) struct View {
    json: bool,
    stdout_is_terminal: bool,
    /// Whether text goes to standard output while it is generated.
    streams: bool,
    /// Whether tool lines go to standard error.
    lines: bool,
    /// Whether notes that a person needs go to standard error also where tool lines do not.
    notes: bool,
    /// Whether several answers follow each other on standard output.
    many_answers: bool,
    /// Whether an answer was printed.
    has_answer: bool,
    /// When the question that is open was asked.
    asked_at: Option<Instant>,
    /// How long the person took for the questions of this round.
    person: Duration,
    paint: Paint,
    live: Live,
    drawn: Option<Instant>,
    /// When the spinner began; `None` while nothing is worked on.
    spins: Option<Instant>,
    /// Running tool calls, by id.
    running: BTreeMap<String, Running>,
    calls: usize,
    /// Running subagents: their model calls and tokens so far.
    subagents: BTreeMap<ConversationId, (u32, u64)>,
    /// Text displayed since the last complete message.
    shown: String,
    /// Escapes invisible characters in streamed text.
    visible: VisibleStream,
    markdown: Markdown,
    flow: Flow,
    /// Whether text was streamed since the last fresh line.
    is_open: bool,
    /// Tokens of the last model call, which the next one has too.
    filled: u64,
    /// The model's window; 0 if it is unknown.
    window: u64,
    cost_usd: Option<f64>,
    /// Rows of the person below the others, such as what is being typed.
    below: Vec<Line>,
    /// A folder of this user, for files that the person's editor opens.
    own_folder: Option<PathBuf>,
    /// The call of which Ctrl-O shows the output: the last one that was folded, else the last one.
    unfolds: Option<(String, String)>,
    /// Whether that call was folded.
    is_folded: bool,
    /// The model and the workspace, for the line below an answer.
    place: Option<(String, PathBuf)>,
    /// Makes places in files links.
    places: Option<Places>,
}

impl View {
    pub(super) fn new(json: bool, terminals: Terminals) -> Self {
        let (streams, lines) = (terminals.stdout && !json, terminals.stderr && !json);
        Self {
            json,
            stdout_is_terminal: terminals.stdout,
            streams,
            lines,
            notes: false,
            many_answers: false,
            has_answer: false,
            asked_at: None,
            person: Duration::ZERO,
            paint: Paint::stderr(),
            live: Live::new(streams || lines),
            drawn: None,
            spins: None,
            running: BTreeMap::new(),
            calls: 0,
            subagents: BTreeMap::new(),
            shown: String::new(),
            visible: VisibleStream::default(),
            markdown: Markdown::new(size().0),
            flow: Flow::Answer,
            is_open: false,
            filled: 0,
            window: 0,
            cost_usd: None,
            below: Vec::new(),
            own_folder: None,
            unfolds: None,
            is_folded: false,
            place: None,
            places: None,
        }
    }

    /// Sets the model and the workspace of the conversation.
    pub(super) fn set_place(&mut self, model: &str, workspace: &Path) {
        let is_same = |place: &(String, PathBuf)| place.1 == workspace;
        if !self.place.as_ref().is_some_and(is_same) {
            self.places = Places::of(workspace);
        }
        self.place = Some((sanitize(model), workspace.to_owned()));
    }

    /// The call whose output a person wants to see whole: its id, and its tool with its arguments.
    pub(super) fn unfolds(&self) -> Option<(String, String)> {
        self.unfolds.clone()
    }

    /// Prints the output of a call.
    pub(super) fn unfold(&mut self, what: &str, output: &str) {
        self.fresh_line();
        self.live.clear();
        let mut rows = vec![format!("  {what}")];
        rows.extend(unfold::rows(output));
        let mut rows: Vec<Line> = rows
            .iter()
            .map(|row| vec![Span::new(row, Style::DIM)])
            .collect();
        self.link(&mut rows);
        for row in &rows {
            err_shown(&(self.paint.spans(row) + "\n"));
        }
        self.drawn = None;
        self.draw();
    }

    fn link(&self, rows: &mut [Line]) {
        if let Some(places) = &self.places
            && self.paint.is_on()
        {
            places.link(rows);
        }
    }

    /// The view of a program that can open the person's editor, on files in a folder of this user.
    pub(super) fn edits_in(mut self, folder: &Path) -> Self {
        self.own_folder = Some(folder.to_owned());
        self
    }

    /// Where files for the person's editor can be made.
    pub(super) fn own_folder(&self) -> Option<&Path> {
        self.own_folder.as_deref()
    }

    /// The view without a region that changes, for screen readers.
    pub(super) fn still_lines(mut self, is_plain: bool) -> Self {
        if is_plain {
            self.live = Live::new(false);
        }
        self
    }

    /// The view that reports retries on standard error also where that is no terminal.
    pub(super) fn notes(mut self, notes: bool) -> Self {
        self.notes = notes;
        self
    }

    /// The view of a chat: in a pipe, an empty line separates its answers.
    pub(super) fn many_answers(mut self) -> Self {
        self.many_answers = true;
        self
    }

    /// Makes room for a question. The time until the person has answered is not the round's.
    pub(super) fn asks(&mut self) {
        self.still();
        self.asked_at.get_or_insert_with(Instant::now);
    }

    fn answered(&mut self) {
        if let Some(at) = self.asked_at.take() {
            self.person += at.elapsed();
        }
    }

    /// Starts the spinner: a model or tools are working.
    pub(super) fn begin(&mut self) {
        self.answered();
        self.spin();
    }

    /// Displays one event.
    pub(super) fn event(&mut self, event: &StreamEvent) {
        if self.json {
            out_json(&event.to_json());
            return;
        }
        self.kind(&event.kind);
    }

    /// Whether what is displayed can move a question out of sight: it goes to a terminal.
    pub(super) fn is_at_terminal(&self) -> bool {
        !self.json || self.stdout_is_terminal
    }

    /// Says how many events were not displayed because a question was open for long.
    pub(super) fn missed(&mut self, count: usize) {
        if count > 0 {
            self.note(&format!(
                "{count} events came while a question was open and are not shown; `callboard sessions show` has them"
            ));
        }
    }

    /// Displays the content of an event for people.
    pub(super) fn kind(&mut self, kind: &EventKind) {
        match kind {
            EventKind::TextDelta { text } => self.text(text),
            EventKind::ThinkingDelta { text } => self.thought(text),
            EventKind::Message { message, .. } => self.whole(&message.text()),
            EventKind::ToolCall {
                tool_call_id,
                summary,
                ..
            } => {
                let running = Running {
                    what: sanitize(summary),
                    ..Running::default()
                };
                self.running.insert(tool_call_id.clone(), running);
                self.fresh_line();
                self.spin();
            }
            EventKind::ToolProgress { tool_call_id, text } => self.progress(tool_call_id, text),
            EventKind::ToolResult {
                tool_call_id,
                name,
                is_error,
                summary,
                preview,
                duration_ms,
                retry_count,
                ..
            } => {
                self.calls += 1;
                let call = self
                    .running
                    .remove(tool_call_id)
                    .unwrap_or_else(|| Running {
                        what: sanitize(name),
                        ..Running::default()
                    });
                let lines = ToolLines::of(call.what, summary, preview, *is_error);
                if lines.is_folded || !self.is_folded {
                    self.unfolds = Some((tool_call_id.clone(), lines.what.clone()));
                    self.is_folded = lines.is_folded;
                }
                self.tool_lines(&lines, *duration_ms, *retry_count);
            }
            EventKind::Usage { usage, cost_usd } => {
                self.filled = usage.input().saturating_add(usage.output);
                if let Some(cost) = *cost_usd {
                    *self.cost_usd.get_or_insert(0.0) += cost;
                }
            }
            EventKind::Context { window, .. } => self.window = *window,
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
                let note = retry_note(layer, *delay_ms, reason);
                if self.lines {
                    self.note(&note);
                } else if self.notes && !self.json {
                    err_line(&format!("note: {}", sanitize(&note)));
                }
            }
            EventKind::Queued { position } => self.note(&format!("queued at place {position}")),
            EventKind::TurnRestarted { .. } => self.note("the round is resumed"),
            _ => {}
        }
    }

    /// A call runs with other arguments than the model's.
    pub(super) fn changed(&mut self, tool_call_id: &str, what: &str) {
        if let Some(call) = self.running.get_mut(tool_call_id) {
            call.what = format!("{} (changed)", sanitize(what));
        }
    }

    /// Sets the window of the model, in tokens; 0 for unknown.
    pub(super) fn set_window(&mut self, tokens: u64) {
        self.window = tokens;
    }

    /// Whether rows on the screen change.
    pub(super) fn has_live(&self) -> bool {
        self.live.is_on()
    }

    /// Shows that time passes. Call it every 50 ms or so.
    pub(super) fn tick(&mut self) {
        self.answered(); // Nothing ticks while a question is open.
        self.draw();
    }

    /// Sets rows of the person below the others.
    pub(super) fn set_below(&mut self, rows: Vec<Line>) {
        self.below = rows;
        self.drawn = None;
        self.draw();
    }

    /// Clears the region that changes, so that a question can be asked.
    pub(super) fn still(&mut self) {
        self.fresh_line();
        self.spins = None;
        self.live.clear();
    }

    /// Prints a line next to the progress.
    pub(super) fn note(&mut self, text: &str) {
        if self.lines {
            self.fresh_line();
            let spins = self.spins;
            self.live.clear();
            err_line(&self.paint.dim(&format!("  {}", sanitize(text))));
            self.spins = spins.or_else(|| Some(Instant::now()));
            self.draw();
        }
    }

    /// Displays the end of the round: its text if it was not streamed, and its usage.
    pub(super) fn end(&mut self, end: Option<&RoundEnd>) {
        self.still();
        self.answered();
        if self.json {
            return;
        }
        if let Some(end) = end {
            if !self.streams && !end.text.is_empty() {
                let separator = if self.has_answer { "\n" } else { "" };
                out_data(&format!("{separator}{}\n", end.text.trim_end_matches('\n')));
                self.has_answer = self.many_answers;
            }
            if self.lines {
                err_line(&self.paint.dim(&parts_for_stderr(&self.footer(end))));
            }
        }
        self.running.clear();
        self.subagents.clear();
        self.calls = 0;
        self.shown.clear();
        self.cost_usd = None;
        self.person = Duration::ZERO;
    }

    /// How many tool calls run.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    fn footer(&self, end: &RoundEnd) -> Vec<String> {
        let mut parts = vec![end.stop_reason.code().to_owned()];
        if self.calls > 0 {
            parts.push(counted(self.calls, "tool call"));
        }
        let (input, output) = (thousands(end.usage.input()), thousands(end.usage.output));
        if end.usage.input() > 0 || end.usage.output > 0 {
            parts.push(format!("{input} tokens in, {output} out"));
        }
        if self.filled > 0 && self.window > 0 {
            let percent = self.filled.saturating_mul(100).div_ceil(self.window);
            parts.push(format!("{percent} % of {}k", self.window / 1000));
        }
        if let Some(cost) = self.cost_usd {
            parts.push(usd(micro(cost)));
        }
        let person = u64::try_from(self.person.as_millis()).unwrap_or(u64::MAX);
        parts.push(seconds(end.latency_ms.saturating_sub(person)));
        if let Some((model, workspace)) = &self.place {
            parts.push(model.clone());
            parts.extend(branch(workspace));
        }
        parts
    }

    fn text(&mut self, text: &str) {
        if self.streams {
            self.flow(Flow::Answer, text);
            self.shown.push_str(text);
        }
    }

    fn thought(&mut self, text: &str) {
        if self.streams && self.lines {
            self.flow(Flow::Thoughts, text);
        }
    }

    fn flow(&mut self, flow: Flow, text: &str) {
        if self.flow != flow {
            self.fresh_line();
            self.flow = flow;
        }
        let is_first = !self.is_open;
        self.is_open = true;
        self.spins = None;
        self.markdown.set_width(size().0);
        let shown = self.visible.push(text);
        let rows = self.markdown.push(&shown);
        self.put(rows);
        if is_first {
            self.drawn = None;
        }
        self.draw();
    }

    /// Prints finished rows of streamed text.
    fn put(&mut self, mut rows: Vec<Line>) {
        if rows.is_empty() {
            return;
        }
        self.link(&mut rows);
        self.live.clear();
        let text = |paint: Paint, rows: &[Line]| -> String {
            rows.iter().map(|row| paint.spans(row) + "\n").collect()
        };
        match self.flow {
            Flow::Answer => out_shown(&text(Paint::stdout(), &rows)),
            Flow::Thoughts => err_shown(&text(self.paint, &dimmed(rows))),
        }
        self.drawn = None;
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
        let Some(call) = self.running.get_mut(id) else {
            return;
        };
        // A progress bar rewrites its line again and again; the last version counts.
        let versions = |line: &str| {
            let last = line.split('\r').rfind(|part| !part.is_empty());
            last.unwrap_or_default()
                .chars()
                .take(OUTPUT_CHARS)
                .collect::<String>()
        };
        for line in text
            .split('\n')
            .map(versions)
            .filter(|line| !line.trim().is_empty())
        {
            call.last = sanitize(&line);
        }
        self.draw();
    }

    fn tool_lines(&mut self, lines: &ToolLines, duration_ms: u64, retry_count: u32) {
        if !self.lines {
            return;
        }
        self.fresh_line();
        self.live.clear();
        let mark = match lines.failed {
            true => self.paint.red("✗"),
            false => self.paint.green("✓"),
        };
        let mut figures = vec![seconds(duration_ms)];
        match retry_count {
            0 => {}
            1 => figures.push("1 retry".to_owned()),
            count => figures.push(format!("{count} retries")),
        }
        let time = self.paint.dim(&format!("({})", figures.join(", ")));
        let why = match (&lines.exit, &lines.why) {
            (Some(exit), _) => format!(" {}", self.paint.red(exit)),
            (None, Some(why)) => format!(": {}", sanitize(why)),
            (None, None) => String::new(),
        };
        let width = size().0;
        // The call is cut, so that the line stays one; what went wrong is always whole.
        let what = [Span::new(&lines.what, Style::PLAIN)];
        let what = self
            .paint
            .spans(&cut(&what, width.saturating_sub(20).max(20)));
        err_line(&format!("  {mark} {what} {time}{why}"));
        for line in &lines.output {
            let row = [Span::new(&format!("    {line}"), Style::DIM)];
            let mut rows = [cut(&row, width)];
            self.link(&mut rows);
            let text: String = rows.iter().map(|row| self.paint.spans(row)).collect();
            err_shown(&(text + "\n"));
        }
        self.spin();
    }

    fn spin(&mut self) {
        if self.lines {
            self.spins.get_or_insert_with(Instant::now);
            self.drawn = None;
            self.draw();
        }
    }

    /// What the spinner says.
    fn status(&self) -> Option<Line> {
        let begun = self.spins?.elapsed();
        let message = match self.running.values().next() {
            None => "thinking".to_owned(),
            Some(first) if self.running.len() == 1 => format!("{}  {}", first.what, first.last),
            Some(first) => format!("{}  and {} more", first.what, self.running.len() - 1),
        };
        let message = match at_work(&self.subagents) {
            Some(children) => format!("{message}  {children}"),
            None => message,
        };
        let frame = usize::try_from(begun.as_millis() / FRAME_MS).unwrap_or(0) % FRAMES.len();
        let frame = FRAMES.get(frame).copied().unwrap_or_default();
        let time = format!("  {frame} {}s ", begun.as_secs());
        Some(vec![
            Span::new(&time, Style::DIM),
            Span::new(message.trim_end(), Style::PLAIN),
        ])
    }

    /// Draws the region that changes, unless that was just done.
    fn draw(&mut self) {
        if !self.live.is_on() || self.drawn.is_some_and(|at| at.elapsed() < DRAWN_EVERY) {
            return;
        }
        let status = self.status();
        let left = ROWS_MAX.saturating_sub(self.below.len() + usize::from(status.is_some()));
        let mut rows = match self.is_open {
            true => self.markdown.live(left),
            false => Vec::new(),
        };
        if self.flow == Flow::Thoughts {
            rows = dimmed(rows);
        }
        rows.extend(status);
        rows.extend(self.below.iter().cloned());
        match rows.is_empty() {
            true => self.live.clear(),
            false => self.live.show(&rows, self.paint),
        }
        self.drawn = Some(Instant::now());
    }

    /// Prints what is unfinished.
    fn fresh_line(&mut self) {
        if self.is_open {
            let held = self.visible.finish();
            let mut rows = self.markdown.push(&held);
            rows.extend(self.markdown.finish());
            self.put(rows);
            self.is_open = false;
        }
        self.flow = Flow::Answer;
    }
}

fn dimmed(mut rows: Vec<Line>) -> Vec<Line> {
    for span in rows.iter_mut().flatten() {
        span.style = span.style.with(Style::DIM);
    }
    rows
}

/// What is shown of a finished call.
#[derive(Debug, PartialEq, Eq)]
struct ToolLines {
    what: String,
    failed: bool,
    /// How a command ended, if not well.
    exit: Option<String>,
    why: Option<String>,
    output: Vec<String>,
    /// Whether there is more output than that.
    is_folded: bool,
}

impl ToolLines {
    fn of(what: String, summary: &str, preview: &str, is_error: bool) -> Self {
        // The first line of a command's result says how it ended.
        let ended = summary.strip_prefix("[exit status ");
        let exit = match ended.and_then(|rest| rest.split_once(']')) {
            Some((code, "")) => Some(format!("exit {code}")),
            _ if summary == "[killed by a signal]" => Some("killed".to_owned()),
            _ => None,
        };
        let first = (exit.is_none() && !is_error).then_some(summary);
        let mut output: Vec<String> = first
            .into_iter()
            .chain(preview.lines())
            .filter(|line| !line.trim().is_empty())
            .map(str::to_owned)
            .collect();
        let more = output.len() > OUTPUT_LINES;
        output.truncate(OUTPUT_LINES);
        if let (true, Some(last)) = (more, output.last_mut()) {
            last.push_str(" …");
        }
        Self {
            what,
            failed: is_error || exit.is_some(),
            why: is_error.then(|| summary.to_owned()),
            exit,
            output,
            is_folded: more,
        }
    }
}

/// What a person reads of a retry.
fn retry_note(layer: &str, delay_ms: u64, reason: &str) -> String {
    let reason = match reason {
        "provider_connection" => "the provider cannot be reached",
        "provider_timeout" => "the provider did not answer in time",
        "provider_rate_limited" => "the provider limits the rate",
        "provider_server_error" => "the provider failed",
        "provider_protocol" => "the provider's answer cannot be read",
        reason => reason,
    };
    match (layer, delay_ms) {
        ("fallback", _) => format!("trying a fallback: {reason}"),
        (_, 0) => format!("trying again: {reason}"),
        _ => format!("trying again in {}: {reason}", seconds(delay_ms)),
    }
}

/// Dollars as millionths.
fn micro(dollars: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float becomes the nearest number there is"
    )]
    let micro = (dollars * 1e6).round() as u64;
    micro
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
    fn a_command_that_fails_is_marked_and_its_first_lines_are_shown() {
        let lines = |summary: &str, preview: &str, is_error| {
            let lines = ToolLines::of("bash make".to_owned(), summary, preview, is_error);
            (lines.failed, lines.exit, lines.why, lines.output)
        };
        let texts = |all: &[&str]| {
            all.iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };

        assert_eq!(
            lines("[exit status 3]", "a\nb", false),
            (true, Some("exit 3".to_owned()), None, texts(&["a", "b"]))
        );
        assert_eq!(
            lines("a", "b\n  c\nd", false),
            (false, None, None, texts(&["a", "b", "  c …"]))
        );
        assert_eq!(
            lines("[killed by a signal]", "", false),
            (true, Some("killed".to_owned()), None, vec![])
        );
        assert_eq!(
            lines("no such file", "", true),
            (true, None, Some("no such file".to_owned()), vec![])
        );
    }

    #[test]
    fn a_retry_says_when_and_why() {
        let notes = [
            retry_note("gateway", 2000, "provider_connection"),
            retry_note("output", 0, "it is no JSON"),
            retry_note("fallback", 0, "provider_server_error"),
        ];

        assert_eq!(
            notes,
            [
                "trying again in 2.0 s: the provider cannot be reached",
                "trying again: it is no JSON",
                "trying a fallback: the provider failed"
            ]
        );
    }

    #[test]
    fn the_time_of_a_round_leaves_out_what_the_person_took() {
        let terminals = Terminals {
            stdin: true,
            stdout: true,
            stderr: true,
        };
        let mut view = View::new(true, terminals);
        view.person = Duration::from_secs(8);
        let end: RoundEnd = serde_json::from_value(serde_json::json!({
            "status": "completed", "stop_reason": "end_turn", "text": "", "full_text": "",
            "usage": {"input_uncached": 1000, "cache_read": 0, "cache_write": 0, "output": 2},
            "latency_ms": 9500
        }))
        .unwrap();

        assert_eq!(
            view.footer(&end),
            ["end_turn", "1,000 tokens in, 2 out", "1.5 s"]
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
