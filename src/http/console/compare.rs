//! Two conversations side by side, round by round: what each was asked and answered, and what that
//! took. Long journals are read by part.

use std::time::{Duration, Instant};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use callboard_actors::{
    ids::Seq,
    journal::{ConversationMetrics, thousands},
    ports::ListQuery,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    html::{badge, bytes, clip_visible, duration, money, number},
    page::{Failure, Page, Section},
    rounds::{Pair, Reader, Round, Side, Text, pairs},
    session::TenantSession,
    thread::Subject,
};
use crate::{
    http::{
        answer_body::built, answer_room::AnswerRoom, error::Problem, routes::Query, shared::App,
    },
    visible::visible,
};

/// Rounds of a page.
const ROUNDS: usize = 50;

/// Bytes of HTML of the rounds of a page; later rounds go to the next page.
const BYTES_MAX: usize = 256 * 1024;

/// Bytes of the texts that are read of each conversation. Both together fill a page, so what is read
/// and not shown stays little: reading entries takes longer than showing them.
const SIDE_BYTES: usize = BYTES_MAX / 2;

/// Entries of one read.
const ENTRIES: usize = 32;

/// Reads of a journal behind the entries that were shown.
const READS_MAX: usize = 128;

/// Entries that are read before a part: a prompt may wait while other rounds run.
const BEFORE: u64 = 64;

/// Bytes that the entries of a read may hold.
const ROOM_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of a text that a page shows, invisible characters as escapes.
const TEXT_MAX: usize = 16 * 1024;

/// How long the lines of two answers are compared; beyond it they are marked coarsely.
const DIFF_MAX: Duration = Duration::from_millis(20);

/// How long all answers of a page are compared.
const DIFFS_MAX: Duration = Duration::from_millis(100);

/// Ids that the form proposes.
const PROPOSED: usize = 100;

/// What to compare.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    a: String,
    #[serde(default)]
    b: String,
    /// Entries that were shown before, of each.
    #[serde(default)]
    after_a: u64,
    #[serde(default)]
    after_b: u64,
    /// Rounds that were shown before.
    #[serde(default)]
    shown: u64,
}

impl Wanted {
    fn link(&self) -> String {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        pairs.append_pair("a", &self.a).append_pair("b", &self.b);
        for (name, value) in [
            ("after_a", self.after_a),
            ("after_b", self.after_b),
            ("shown", self.shown),
        ] {
            if value > 0 {
                pairs.append_pair(name, &value.to_string());
            }
        }
        format!("/console/compare?{}", pairs.finish())
    }
}

/// Shows two conversations side by side, or asks which.
pub(super) async fn compare(
    State(app): State<App>,
    viewer: TenantSession,
    wanted: Result<Query<Wanted>, Problem>,
) -> Result<Response, Failure> {
    let Query(wanted) = wanted?;
    let wanted = Wanted {
        a: wanted.a.trim().to_owned(),
        b: wanted.b.trim().to_owned(),
        ..wanted
    };
    if wanted.a.is_empty() || wanted.b.is_empty() {
        let content = html! {
            (head())
            (form(&app, &viewer, &wanted).await?)
            p.dim { "Choose two conversations. Their rounds are shown beside each other." }
        };
        let section = Section::Conversations;
        return Ok(Page::new(&viewer.session, section, "Compare", content).into_response());
    }
    let a = Subject::find(&app, &viewer, wanted.a.clone()).await?;
    let b = Subject::find(&app, &viewer, wanted.b.clone()).await?;
    let sums = (
        a.conversation.state().await?.metrics,
        b.conversation.state().await?.metrics,
    );
    let room = app
        .answers
        .take(&viewer.tenant, &viewer.connection, ROOM_BYTES)
        .await?;
    let (side_a, room) = read(&app, &viewer, &a, wanted.after_a, room).await?;
    let (side_b, room) = read(&app, &viewer, &b, wanted.after_b, room).await?;
    let form = form(&app, &viewer, &wanted).await?;
    let names = (a.id.to_string(), b.id.to_string());
    let title = format!("{} and {}", names.0, names.1);
    let render = move || {
        let shown = Shown {
            ids: [&names.0, &names.1],
            sides: [&side_a, &side_b],
            until: Instant::now() + DIFFS_MAX,
        };
        let (rounds, next) = shown.rounds(&wanted);
        let taken_back = side_a.taken_back + side_b.taken_back;
        html! {
            (head())
            (form)
            (headers(&a, &b))
            (sums_table(&sums.0, &sums.1))
            @if wanted.shown > 0 {
                nav.pages { a href=(first(&wanted)) { "First rounds" } }
            }
            @if rounds.is_empty() { p.dim { "No round in this part." } }
            @for round in &rounds { (round) }
            @if let Some(next) = next {
                nav.pages { a rel="next" href=(next.link()) { "Next rounds" } }
            }
            @if taken_back > 0 {
                p.dim.small { (taken_back) " rounds that were taken back are left out." }
            }
            p.dim.small {
                "Rounds with the same prompt stand beside each other. Models are those that the "
                "journal names: of fallbacks and of skills. All other calls asked the configured one."
            }
        }
    };
    // The lines of answers may take long to compare, so this is never done on a worker thread.
    let (content, room) = built(&app, &viewer.tenant, usize::MAX, room, render).await?;
    let page = Page::new(&viewer.session, Section::Conversations, title, content);
    page.counted(room, app.config.bounds.write_pause_max).await
}

/// Reads the rounds behind an entry, as many as a page may show.
async fn read(
    app: &App,
    viewer: &TenantSession,
    subject: &Subject,
    after: u64,
    mut room: AnswerRoom,
) -> Result<(Side, AnswerRoom), Failure> {
    let mut reader = Reader::new(after);
    let mut at = after.saturating_sub(BEFORE);
    let mut reads = 0;
    while reads < READS_MAX && !reader.fills(ROUNDS, SIDE_BYTES) {
        let entries = subject.conversation.entries(Seq(at), ENTRIES).await?;
        let Some(last) = entries.last().map(|entry| entry.seq.0) else {
            return Ok((Side::new(reader, at, true), room));
        };
        at = last;
        reads += usize::from(at > after);
        let take = move || {
            entries.iter().for_each(|entry| reader.take(entry));
            reader
        };
        (reader, room) = built(app, &viewer.tenant, usize::MAX, room, take).await?;
    }
    Ok((Side::new(reader, at, false), room))
}

fn head() -> Markup {
    html! {
        div.crumbs { a href="/console" { "Conversations" } " / compare" }
        h1 { "Two conversations side by side" }
    }
}

fn first(wanted: &Wanted) -> String {
    let (a, b) = (wanted.a.clone(), wanted.b.clone());
    let first = Wanted {
        a,
        b,
        ..Wanted::default()
    };
    first.link()
}

/// The form that chooses them. It proposes ids from the start of the list.
async fn form(app: &App, viewer: &TenantSession, wanted: &Wanted) -> Result<Markup, Failure> {
    let handle = app.host.tenant(&viewer.tenant);
    let query = ListQuery {
        count: PROPOSED,
        ..ListQuery::default()
    };
    let proposed = handle.conversations(query).await?;
    let swapped = Wanted {
        a: wanted.b.clone(),
        b: wanted.a.clone(),
        ..Wanted::default()
    };
    Ok(html! {
        form.filters method="get" action="/console/compare" {
            label.small for="a" { "A" }
            input #a name="a" value=(wanted.a) list="ids" maxlength="128" required
                autocomplete="off" data-slash[wanted.a.is_empty()];
            label.small for="b" { "B" }
            input #b name="b" value=(wanted.b) list="ids" maxlength="128" required
                autocomplete="off" data-slash[!wanted.a.is_empty()];
            datalist #ids {
                @for row in &proposed { option value=(row.conversation) {} }
            }
            button type="submit" { "Compare" }
            @if !wanted.a.is_empty() && !wanted.b.is_empty() {
                a href=(swapped.link()) { "Swap" }
            }
        }
    })
}

/// The two conversations, with links.
fn headers(a: &Subject, b: &Subject) -> Markup {
    html! {
        div.pair { @for (letter, one) in [("A", a), ("B", b)] {
            p {
                strong { (letter) ": " }
                a href={ "/console/c/" (one.id) } {
                    (one.title.as_deref().unwrap_or(one.id.as_str()))
                }
                " " span.dim.small.id { (one.id) }
            }
        } }
    }
}

fn cached(cache_read: u64, input: u64) -> u64 {
    cache_read.saturating_mul(100) / input.max(1)
}

/// What B has more or less than A.
fn difference(a: u64, b: u64, written: impl Fn(u64) -> String) -> String {
    match a.cmp(&b) {
        std::cmp::Ordering::Equal => "same".to_owned(),
        std::cmp::Ordering::Less => format!("+{}", written(b - a)),
        std::cmp::Ordering::Greater => format!("−{}", written(a - b)),
    }
}

/// The figures of the whole conversations.
fn sums_table(a: &ConversationMetrics, b: &ConversationMetrics) -> Markup {
    let percent = |value: u64| format!("{value} %");
    let of = |metrics: &ConversationMetrics| {
        let usage = &metrics.usage;
        let share = cached(usage.cache_read, usage.input());
        let plain = number as fn(u64) -> String;
        [
            ("Rounds", metrics.rounds, plain),
            ("Model calls", metrics.model_calls, plain),
            ("Tool calls", metrics.tool_calls, plain),
            ("Failed tool calls", metrics.failed_calls, plain),
            ("Tokens in", usage.input(), plain),
            ("From the cache", share, percent),
            ("Tokens out", usage.output, plain),
            ("Cost", metrics.cost_micro_usd, money),
            ("First to last entry", metrics.total_duration_ms(), duration),
            ("Compactions", metrics.compression_events, plain),
        ]
    };
    html! {
        h2 { "The whole conversations" }
        div.wide { table.rows.three {
            thead { tr { th { "Figure" } th.num { "A" } th.num { "B" } th.num { "B against A" } } }
            tbody { @for ((name, a, written), (_, b, _)) in of(a).into_iter().zip(of(b)) { tr {
                th scope="row" { (name) }
                td.num { (written(a)) }
                td.num { (written(b)) }
                td.num { (difference(a, b, written)) }
            } } }
        } }
    }
}

/// Two conversations as a page shows them.
struct Shown<'a> {
    ids: [&'a str; 2],
    sides: [&'a Side; 2],
    /// When answers are not compared line by line any more.
    until: Instant,
}

impl Shown<'_> {
    /// The rounds of a page, and what the next page shows; `None` at the end of both journals.
    fn rounds(&self, wanted: &Wanted) -> (Vec<Markup>, Option<Wanted>) {
        let [a, b] = self.sides;
        let pairs = pairs(a, b);
        let mut size = 0;
        let mut all = Vec::new();
        for (pair, number) in pairs
            .iter()
            .take(ROUNDS)
            .zip(wanted.shown.saturating_add(1)..)
        {
            let markup = self.round(*pair, number);
            size += markup.0.len();
            if size > BYTES_MAX && !all.is_empty() {
                break;
            }
            all.push(markup);
        }
        let shown = pairs.get(..all.len()).unwrap_or_default();
        let of_a = shown.iter().filter(|(a, _)| a.is_some()).count();
        let of_b = shown.iter().filter(|(_, b)| b.is_some()).count();
        let is_end = a.is_end && b.is_end && all.len() == pairs.len();
        let next = Wanted {
            a: wanted.a.clone(),
            b: wanted.b.clone(),
            after_a: a.next(of_a, wanted.after_a),
            after_b: b.next(of_b, wanted.after_b),
            shown: wanted.shown.saturating_add(all.len() as u64),
        };
        (all, (!is_end).then_some(next))
    }

    fn round(&self, (a, b): Pair, number: u64) -> Markup {
        let [a, b] = [(0, a), (1, b)].map(|(side, at): (usize, Option<usize>)| {
            let side = self.sides.get(side)?;
            side.rounds.get(at?)
        });
        let [answer_a, answer_b] = answers(a, b, self.until);
        let sides = [
            ("A", self.ids[0], a, answer_a),
            ("B", self.ids[1], b, answer_b),
        ];
        html! {
            section.round {
                h2 {
                    "Round " (thousands(number)) " "
                    @match (a, b) {
                        (Some(a), Some(b)) => {
                            (verdict("prompt", a.prompt == b.prompt)) " "
                            (verdict("answer", a.answer == b.answer))
                        }
                        (Some(_), None) => (badge("wait", "only in A")),
                        _ => (badge("wait", "only in B")),
                    }
                }
                div.pair { @for (letter, id, round, answer) in &sides {
                    article.item.side aria-label={ (letter) ", round " (number) } {
                        @if let Some(round) = round {
                            header {
                                strong { (letter) }
                                a.seq href={ "/console/c/" (id) "?to=" (round.last) }
                                    title="The thread up to the end of this round" {
                                    "#" (round.first) " to #" (round.last)
                                }
                                @if !round.is_over() { (badge("run", "has not ended here")) }
                            }
                            p.dim.small { "Prompt" }
                            (prompt(&round.prompt))
                            p.dim.small { "Answer" }
                            (answer)
                        } @else { p.dim { (letter) " has no such round." } }
                    }
                } }
                (figures(a, b))
            }
        }
    }
}

fn verdict(of: &str, is_same: bool) -> Markup {
    match is_same {
        true => badge("good", &format!("same {of}")),
        false => badge("wait", &format!("{of}s differ")),
    }
}

fn prompt(text: &Text) -> Markup {
    let (shown, left) = clip_visible(&text.start, TEXT_MAX);
    html! {
        @if text.bytes == 0 { p.dim { "none: goes on with the history as it is" } }
        @else { pre.code { (shown) } }
        (more(text, left))
    }
}

fn more(text: &Text, left: usize) -> Markup {
    let left = left + text.left();
    html! { @if left > 0 { p.dim.small { (bytes(left as u64)) " more in the thread" } } }
}

/// Lines of an answer, one after another, that the other has as well, or lacks.
struct Lines {
    is_own: bool,
    text: String,
}

fn add(all: &mut Vec<Lines>, is_own: bool, sign: char, line: &str) {
    if all.last().is_none_or(|lines| lines.is_own != is_own) {
        let text = String::new();
        all.push(Lines { is_own, text });
    }
    if let Some(lines) = all.last_mut() {
        if !lines.text.is_empty() {
            lines.text.push('\n');
        }
        // A long word may not be wrapped away from its sign.
        lines.text.extend([sign, '\u{a0}']);
        lines.text.push_str(line.trim_end_matches('\n'));
    }
}

/// The two answers, each with the lines marked that the other lacks.
fn answers(a: Option<&Round>, b: Option<&Round>, until: Instant) -> [Markup; 2] {
    let none = Text::default();
    let [text_a, text_b] = [a, b].map(|round| round.map_or(&none, |round| &round.answer));
    let (old, left_a) = clip_visible(&text_a.start, TEXT_MAX);
    let (new, left_b) = clip_visible(&text_b.start, TEXT_MAX);
    let (mut lines_a, mut lines_b) = (Vec::new(), Vec::new());
    if a.is_some() && b.is_some() {
        let left = until.saturating_duration_since(Instant::now());
        let diff = similar::TextDiff::configure()
            .timeout(DIFF_MAX.min(left))
            .diff_lines(&old, &new);
        for change in diff.iter_all_changes() {
            let line = change.value();
            match change.tag() {
                similar::ChangeTag::Equal => {
                    add(&mut lines_a, false, ' ', line);
                    add(&mut lines_b, false, ' ', line);
                }
                similar::ChangeTag::Delete => add(&mut lines_a, true, '−', line),
                similar::ChangeTag::Insert => add(&mut lines_b, true, '+', line),
            }
        }
    } else {
        let lines = |text: &str, all: &mut Vec<Lines>| {
            text.lines().for_each(|line| add(all, false, ' ', line));
        };
        lines(&old, &mut lines_a);
        lines(&new, &mut lines_b);
    }
    [
        answer(
            text_a,
            left_a,
            &lines_a,
            |lines| html! { del.del { (lines) } },
        ),
        answer(
            text_b,
            left_b,
            &lines_b,
            |lines| html! { ins.add { (lines) } },
        ),
    ]
}

fn answer(text: &Text, left: usize, all: &[Lines], own: impl Fn(&str) -> Markup) -> Markup {
    html! {
        @if text.bytes == 0 { p.dim { "none" } }
        @else {
            pre.code.compared { @for lines in all {
                @if lines.is_own { (own(&lines.text)) }
                @else { span.same { (lines.text) } }
            } }
        }
        (more(text, left))
    }
}

/// What the rounds took.
fn figures(a: Option<&Round>, b: Option<&Round>) -> Markup {
    let rows = [
        ("Ended with", stop as fn(&Round) -> Markup),
        ("Time", time),
        ("Model calls", |round| html! { (number(round.model_calls)) }),
        ("Tokens", tokens),
        ("Cost", |round| html! { (money(round.cost_micro_usd)) }),
        ("Tools", tools),
        ("Models", models),
    ];
    html! {
        div.wide { table.rows.three {
            thead { tr { th { "Figure" } th { "A" } th { "B" } } }
            tbody { @for (name, cell) in rows { tr {
                th scope="row" { (name) }
                td { @if let Some(round) = a { (cell(round)) } }
                td { @if let Some(round) = b { (cell(round)) } }
            } } }
        } }
    }
}

fn stop(round: &Round) -> Markup {
    html! {
        @match round.stop {
            Some(stop) => (badge(if stop.is_done() { "good" } else { "bad" }, stop.code())),
            None => span.dim { "open" },
        }
        @if let Some(error) = &round.error {
            " " span.bad { (visible(&error.code)) ": " (clip_visible(&error.message, 300).0) }
        }
    }
}

fn time(round: &Round) -> Markup {
    html! {
        @match round.took_ms {
            Some(ms) => (duration(ms)),
            None => span.dim { "open" },
        }
        @if round.waited_ms >= 20 {
            span.dim.small { " after " (duration(round.waited_ms)) " in the queue" }
        }
    }
}

fn tokens(round: &Round) -> Markup {
    let input = round.usage.input();
    html! {
        (number(input)) " in, " (cached(round.usage.cache_read, input)) " % from the cache; "
        (number(round.usage.output)) " out"
    }
}

fn tools(round: &Round) -> Markup {
    html! {
        @if round.tools.is_empty() { span.dim { "none" } }
        @for (at, (name, calls)) in round.tools.iter().enumerate() {
            @if at > 0 { ", " }
            code { (visible(name)) } " × " (number(calls.count))
            @if calls.failed > 0 { " " span.bad { "(" (number(calls.failed)) " failed)" } }
        }
    }
}

fn models(round: &Round) -> Markup {
    html! {
        @if round.models.is_empty() { span.dim { "the configured one" } }
        @for (at, name) in round.models.iter().enumerate() {
            @if at > 0 { ", " }
            (visible(name))
        }
    }
}
