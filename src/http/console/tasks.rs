//! When each task of a fan-out ran, and what it cost: bars in rows, coloured by cost, and the same as
//! a table. Subagents of a conversation are shown in the same way.

use std::collections::HashMap;

use axum::{extract::State, response::Response};
use callboard_actors::{
    host::TenantHandle,
    ids::{ConversationId, FAN_OUT_PREFIX},
    ports::{ListQuery, SessionSummary},
    stream::Open,
    time::Timestamp,
};
use maud::{Markup, html};

use super::{
    fan_outs::{Node, top},
    figures::{WIDTH, at, gaps},
    flame::{HEATS, Ran, heat, rows},
    html::{badge, clip, duration, money, number, time},
    page::{Failure, Page, Section},
    session::TenantSession,
    timeline::{Span, Work, axis},
};
use crate::{
    http::{answer_body::built, error::Problem, routes::Path, shared::App},
    visible::visible,
};

/// Tasks that are shown. The journal of each is read.
const TASKS_MAX: usize = 1000;

/// Rows of a list in one read.
const LISTED: usize = 1000;

/// Bytes of a name that are shown.
const NAME_MAX: usize = 120;

/// Bytes that are reserved for a page before they are known.
const ROOM_BYTES: usize = 1024 * 1024;

/// Height of a row, and of one of many rows.
const ROW: f64 = 20.0;
const ROW_OF_MANY: f64 = 9.0;

/// Rows up to which they are high enough for a label.
const HIGH_ROWS_MAX: usize = 40;

/// Shortest bar, so that it can be seen and pointed at.
const BAR_MIN: f64 = 2.0;

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open,
    Done,
    Failed,
}

/// A task or a subagent.
pub(super) struct Bar {
    /// The number of a task that has ended.
    index: Option<usize>,
    name: String,
    id: ConversationId,
    ran: Ran,
    standing: Standing,
    tokens: u64,
    micro_usd: u64,
}

impl Bar {
    fn took_ms(&self) -> u64 {
        self.ran.to.ms_since(self.ran.from)
    }

    /// A subagent of a conversation.
    pub(super) fn subagent(node: &Node, now: Timestamp) -> Self {
        let summary = &node.summary;
        let is_open = summary.open != Open::None && summary.failed.is_none();
        Self {
            index: None,
            name: match node.title.is_empty() {
                true => summary.conversation.to_string(),
                false => visible(&node.title),
            },
            id: summary.conversation.clone(),
            ran: ran(summary, is_open, now),
            standing: match (is_open, &summary.failed) {
                (true, _) => Standing::Open,
                (false, None) => Standing::Done,
                (false, Some(_)) => Standing::Failed,
            },
            tokens: node.tokens,
            micro_usd: node.micro_usd,
        }
    }
}

/// What a fan-out knows of the tasks that have ended: number, success, tokens.
type Ends = HashMap<ConversationId, (usize, bool, u64)>;

/// Shows the tasks of a fan-out by time and cost.
pub(super) async fn cost(
    State(app): State<App>,
    viewer: TenantSession,
    name: Result<Path<String>, Problem>,
) -> Result<Response, Failure> {
    let Path(name) = name?;
    let kept = app.fan_outs.get(&viewer.tenant, &name)?;
    let room = app
        .answers
        .take(&viewer.tenant, &viewer.connection, ROOM_BYTES)
        .await?;
    let ends: Ends = {
        let results = kept.results.lock();
        let ended = results.ends.iter().flatten();
        let figures = ended.map(|end| {
            let tokens = end.usage.input().saturating_add(end.usage.output);
            (end.conversation_id.clone(), (end.index, end.ok, tokens))
        });
        figures.collect()
    };
    let now = app.host.ports().clock.now();
    let handle = app.host.tenant(&viewer.tenant);
    let (bars, began) = read(&handle, &kept.name, &ends, now).await?;
    let name = kept.name.clone();
    let title = format!("Time and cost of {name}");
    let render = move || content(&name, bars, began);
    let (content, room) = built(&app, &viewer.tenant, usize::MAX, room, render).await?;
    let page = Page::new(&viewer.session, Section::FanOuts, title, content);
    page.counted(room, app.config.bounds.write_pause_max).await
}

/// Reads the tasks that have the most tokens, and those that have not ended. Returns the number of
/// those that have begun as well.
async fn read(
    handle: &TenantHandle,
    name: &str,
    ends: &Ends,
    now: Timestamp,
) -> Result<(Vec<Bar>, usize), Failure> {
    let mut listed = tasks(handle, name).await?;
    let began = listed.len();
    let tokens = |row: &SessionSummary| ends.get(&row.conversation).map_or(u64::MAX, |end| end.2);
    listed.sort_by_cached_key(|row| std::cmp::Reverse(tokens(row)));
    listed.truncate(TASKS_MAX);
    let mut bars = Vec::new();
    for row in listed {
        let end = ends.get(&row.conversation);
        let metrics = match handle.conversation(&row.conversation).state().await {
            Ok(state) => state.metrics,
            Err(_) => Default::default(), // A damaged journal is a bar without figures.
        };
        bars.push(Bar {
            index: end.map(|(index, ..)| *index),
            name: match end {
                Some((index, ..)) => format!("Task {index}"),
                None => "A task that has not ended".to_owned(),
            },
            ran: ran(&row, end.is_none(), now),
            standing: match end {
                None => Standing::Open,
                Some((_, true, _)) => Standing::Done,
                Some((_, false, _)) => Standing::Failed,
            },
            tokens: metrics.total_tokens(),
            micro_usd: metrics.cost_micro_usd,
            id: row.conversation,
        });
    }
    Ok((bars, began))
}

/// The conversations of the tasks that have begun.
async fn tasks(handle: &TenantHandle, name: &str) -> Result<Vec<SessionSummary>, Failure> {
    let root = ConversationId::new(format!("{FAN_OUT_PREFIX}{name}"));
    let Ok(prefix) = root.map(|root| root.children()) else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    let mut after = prefix.clone();
    loop {
        let query = ListQuery {
            after: Some(after),
            count: LISTED,
            open: None,
            subagents: true,
        };
        let rows = handle.conversations(query).await?;
        let count = rows.len();
        let is_mine = |row: &SessionSummary| row.conversation.as_str().starts_with(prefix.as_str());
        let before = all.len();
        all.extend(rows.into_iter().take_while(is_mine));
        match all.last() {
            Some(last) if count == LISTED && all.len() - before == count => {
                after = last.conversation.clone();
            }
            _ => return Ok(all),
        }
    }
}

fn ran(row: &SessionSummary, is_open: bool, now: Timestamp) -> Ran {
    let to = if is_open { now } else { row.updated_at };
    Ran {
        from: row.created_at,
        to: to.max(row.created_at),
    }
}

/// What bars are coloured by.
#[derive(Clone, Copy)]
struct Scale {
    /// Whether any model has a price; without one, tokens stand for the cost.
    is_money: bool,
    most: u64,
    sum: u64,
}

impl Scale {
    fn new(bars: &[Bar]) -> Self {
        let is_money = bars.iter().any(|bar| bar.micro_usd > 0);
        let cost = |bar: &Bar| if is_money { bar.micro_usd } else { bar.tokens };
        let costs = bars.iter().map(cost);
        Self {
            is_money,
            most: costs.clone().max().unwrap_or_default(),
            sum: costs.fold(0, u64::saturating_add),
        }
    }

    fn cost(&self, bar: &Bar) -> u64 {
        if self.is_money {
            bar.micro_usd
        } else {
            bar.tokens
        }
    }

    fn written(&self, cost: u64) -> String {
        match self.is_money {
            true => money(cost),
            false => format!("{} tokens", number(cost)),
        }
    }

    /// The share of a bar in the sum of all.
    fn share(&self, bar: &Bar) -> String {
        let share = self.cost(bar) as f64 * 100.0 / self.sum.max(1) as f64;
        format!("{share:.1} %")
    }
}

fn content(name: &str, bars: Vec<Bar>, began: usize) -> Markup {
    let tokens = bars.iter().map(|bar| bar.tokens);
    let cost = bars.iter().map(|bar| bar.micro_usd);
    html! {
        (top(name, "/cost"))
        @if bars.is_empty() { p.dim { "No task has begun." } }
        @else {
            p {
                (number(bars.len() as u64)) @if bars.len() == 1 { " task, " } @else { " tasks, " }
                (number(tokens.fold(0, u64::saturating_add))) " tokens, "
                (money(cost.fold(0, u64::saturating_add)))
            }
            @if began > bars.len() {
                p.flash {
                    "These are the " (number(TASKS_MAX as u64)) " with the most tokens, of "
                    (number(began as u64)) " tasks that have begun."
                }
            }
            (picture(bars, "Task"))
        }
    }
}

/// Bars coloured by cost, and the same as a table. `of` is what a bar stands for.
pub(super) fn picture(mut bars: Vec<Bar>, of: &str) -> Markup {
    bars.sort_by_key(|bar| (bar.ran.from, bar.index));
    let scale = Scale::new(&bars);
    html! {
        @if !scale.is_money { p.dim.small { "No model has a price here: colours stand for tokens." } }
        (legend(&scale))
        div.wide.high tabindex="0" role="region" aria-label="Bars by time and cost" {
            (drawing(&bars, &scale))
        }
        (table(bars, &scale, of))
    }
}

fn legend(scale: &Scale) -> Markup {
    let upto = |heat: u64| {
        let most = u128::from(scale.most) * u128::from(heat + 1) / u128::from(HEATS);
        scale.written(u64::try_from(most).unwrap_or(u64::MAX))
    };
    html! {
        ul.legend aria-label="Colours by cost" {
            @for heat in 0..HEATS { li {
                span class={ "key heat" (heat) } {} "up to " (upto(heat))
            } }
        }
    }
}

fn drawing(bars: &[Bar], scale: &Scale) -> Markup {
    let times: Vec<Ran> = bars.iter().map(|bar| bar.ran).collect();
    let (rows, count) = rows(&times);
    let spans: Vec<Span> = bars.iter().map(span).collect();
    let (axis, _) = axis(&spans, WIDTH);
    let height = if count <= HIGH_ROWS_MAX {
        ROW
    } else {
        ROW_OF_MANY
    };
    let whole = height * count as f64 + 24.0;
    html! {
        svg.timeline.flame viewBox={ "0 0 " (WIDTH) " " (whole) } width=(WIDTH) height=(whole)
            role="img" aria-label="Bars by time, coloured by cost; the table has the same" {
            (gaps(&axis.gaps(), whole))
            @for (bar, row) in bars.iter().zip(rows) {
                @let x = axis.place(bar.ran.from);
                @let width = (axis.place(bar.ran.to) - x).max(BAR_MIN);
                (bar_drawing(bar, scale, (x, row as f64 * height), (width, height)))
            }
        }
    }
}

/// As a bar of a timeline, which shortens times without work.
fn span(bar: &Bar) -> Span {
    Span {
        work: Work::Model,
        label: String::new(),
        from: bar.ran.from,
        to: bar.ran.to,
        is_open: bar.standing == Standing::Open,
        failed: bar.standing == Standing::Failed,
    }
}

fn bar_drawing(
    bar: &Bar,
    scale: &Scale,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
) -> Markup {
    let heat = heat(scale.cost(bar), scale.most);
    let hot = if heat >= HEATS / 2 { " hot" } else { "" };
    let standing = match bar.standing {
        Standing::Open => " open",
        Standing::Done => "",
        Standing::Failed => " failed",
    };
    let label = match bar.index {
        Some(index) => format!("{index}: {}", scale.written(scale.cost(bar))),
        None => scale.written(scale.cost(bar)),
    };
    let has_label = height >= ROW && width > label.chars().count() as f64 * 6.5 + 10.0;
    html! {
        g class={ "bar heat" (heat) (hot) (standing) } {
            title {
                (clip(&bar.name, NAME_MAX).0) ": " (money(bar.micro_usd)) " (" (scale.share(bar)) "), "
                (number(bar.tokens)) " tokens, " (duration(bar.took_ms())) (standing)
            }
            rect x=(at(x)) y=(at(y + 1.0)) width=(at(width)) height=(at(height - 2.0)) rx="2" {}
            @if has_label { text.in x=(at(x + 5.0)) y=(at(y + height - 6.0)) { (label) } }
        }
    }
}

/// The same, the costliest first.
fn table(mut bars: Vec<Bar>, scale: &Scale, of: &str) -> Markup {
    bars.sort_by_key(|bar| std::cmp::Reverse(scale.cost(bar)));
    html! {
        details.more {
            summary { "As a table, the costliest first" }
            div.wide { table.rows {
                thead { tr {
                    th { (of) } th { "State" } th { "Began" } th.num { "Took" } th.num { "Tokens" }
                    th.num { "Cost" } th.num { "Share" }
                } }
                tbody { @for bar in &bars { tr {
                    td.name { a href={ "/console/c/" (bar.id) } { (clip(&bar.name, NAME_MAX).0) } }
                    td { @match bar.standing {
                        Standing::Open => (badge("run", "open")),
                        Standing::Done => (badge("good", "done")),
                        Standing::Failed => (badge("bad", "failed")),
                    } }
                    td { (time(bar.ran.from)) }
                    td.num { (duration(bar.took_ms())) }
                    td.num { (number(bar.tokens)) }
                    td.num { (money(bar.micro_usd)) }
                    td.num { (scale.share(bar)) }
                } } }
            } }
        }
    }
}
