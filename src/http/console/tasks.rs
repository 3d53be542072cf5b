//! When each task of a fan-out ran, and what it cost: bars in rows, coloured by cost, and the same as
//! a table.

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
    fan_outs::{Node, children, top},
    figures::{WIDTH, at, gaps},
    flame::{HEATS, Ran, Tree, heat, rows},
    html::{badge, duration, money, number, time},
    page::{Failure, Page, Section},
    session::TenantSession,
    timeline::{Span, Work, axis},
};
use crate::{
    http::{
        answer_body::built,
        error::Problem,
        routes::Path,
        shared::App,
    },
    visible::visible,
};

/// Tasks that are shown. The journal of each is read.
const TASKS_MAX: usize = 1000;

/// Tasks whose subagents are looked for, those with the most tokens.
const PARENTS_MAX: usize = 100;

/// Rows of a list in one read.
const LISTED: usize = 1000;

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

/// A task, or a subagent below one.
struct Bar {
    depth: usize,
    /// The number of a task; `None` while it runs, and for a subagent.
    index: Option<usize>,
    id: ConversationId,
    title: String,
    ran: Ran,
    standing: Standing,
    tokens: u64,
    micro_usd: u64,
}

impl Bar {
    fn name(&self) -> String {
        match (self.depth, self.index) {
            (0, Some(index)) => format!("Task {index}"),
            (0, None) => "A task that has not ended".to_owned(),
            _ => format!("Subagent: {}", self.title),
        }
    }

    fn took_ms(&self) -> u64 {
        self.ran.to.ms_since(self.ran.from)
    }
}

/// Everything that a page shows.
struct Shown {
    /// The tasks in the order of their begin, each with the subagents below it.
    tasks: Vec<Vec<Bar>>,
    /// Tasks that have begun.
    began: usize,
    /// Whether all subagents of the tasks are among the bars.
    is_whole: bool,
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
    let shown = read(&handle, &kept.name, &ends, now).await?;
    let name = kept.name.clone();
    let title = format!("Time and cost of {name}");
    let render = move || content(&name, &shown);
    let (content, room) = built(&app, &viewer.tenant, usize::MAX, room, render).await?;
    let page = Page::new(&viewer.session, Section::FanOuts, title, content);
    page.counted(room, app.config.bounds.write_pause_max).await
}

/// Reads the tasks that have the most tokens, and those that have not ended, with their subagents.
async fn read(
    handle: &TenantHandle,
    name: &str,
    ends: &Ends,
    now: Timestamp,
) -> Result<Shown, Failure> {
    let mut listed = tasks(handle, name).await?;
    let began = listed.len();
    let tokens = |row: &SessionSummary| ends.get(&row.conversation).map_or(u64::MAX, |end| end.2);
    listed.sort_by_cached_key(|row| std::cmp::Reverse(tokens(row)));
    listed.truncate(TASKS_MAX);
    let mut is_whole = listed.len() <= PARENTS_MAX;
    let mut trees = Vec::new();
    let mut nodes = Vec::new();
    let mut has_room = true;
    for (row, number) in listed.into_iter().zip(0..) {
        let conversation = handle.conversation(&row.conversation);
        let end = ends.get(&row.conversation);
        let metrics = match conversation.state().await {
            Ok(state) => state.metrics,
            Err(_) => Default::default(), // A damaged journal is a bar without figures.
        };
        let before = nodes.len();
        if number < PARENTS_MAX && has_room {
            has_room = children(handle, &row.conversation, &mut nodes).await?;
        }
        let below = nodes.iter().skip(before).map(|node| below(node, now));
        let task = Bar {
            depth: 0,
            index: end.map(|(index, ..)| *index),
            title: String::new(),
            ran: ran(&row, end.is_none(), now),
            standing: match end {
                None => Standing::Open,
                Some((_, true, _)) => Standing::Done,
                Some((_, false, _)) => Standing::Failed,
            },
            tokens: metrics.total_tokens(),
            micro_usd: metrics.cost_micro_usd,
            id: row.conversation,
        };
        trees.push(std::iter::once(task).chain(below).collect::<Vec<_>>());
    }
    is_whole &= has_room;
    trees.sort_by_key(|tree| tree.first().map(|task| (task.ran.from, task.index)));
    Ok(Shown {
        tasks: trees,
        began,
        is_whole,
    })
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
        let is_mine =
            |row: &SessionSummary| row.conversation.as_str().starts_with(prefix.as_str());
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

fn below(node: &Node, now: Timestamp) -> Bar {
    let is_open = node.summary.open != Open::None && node.summary.failed.is_none();
    Bar {
        depth: node.depth + 1,
        index: None,
        id: node.summary.conversation.clone(),
        title: match node.title.is_empty() {
            true => node.summary.conversation.to_string(),
            false => visible(&node.title),
        },
        ran: ran(&node.summary, is_open, now),
        standing: match (is_open, &node.summary.failed) {
            (true, _) => Standing::Open,
            (false, None) => Standing::Done,
            (false, Some(_)) => Standing::Failed,
        },
        tokens: node.tokens,
        micro_usd: node.micro_usd,
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
    fn new<'a>(bars: impl Iterator<Item = &'a Bar> + Clone) -> Self {
        let is_money = bars.clone().any(|bar| bar.micro_usd > 0);
        let costs = bars.map(|bar| if is_money { bar.micro_usd } else { bar.tokens });
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

fn content(name: &str, shown: &Shown) -> Markup {
    let bars = || shown.tasks.iter().flatten();
    let scale = Scale::new(bars());
    let tokens = bars().map(|bar| bar.tokens).fold(0, u64::saturating_add);
    let cost = bars().map(|bar| bar.micro_usd).fold(0, u64::saturating_add);
    let below = bars().filter(|bar| bar.depth > 0).count();
    html! {
        (top(name, "/cost"))
        @if shown.tasks.is_empty() { p.dim { "No task has begun." } }
        @else {
            p {
                (number(shown.tasks.len() as u64)) " tasks and "
                (number(below as u64)) " subagents below them: "
                (number(tokens)) " tokens, " (money(cost)) ". "
                @if !scale.is_money { "No model of them has a price: colours stand for tokens." }
            }
            @if shown.began > shown.tasks.len() {
                p.flash {
                    "These are the " (number(TASKS_MAX as u64)) " with the most tokens, of "
                    (number(shown.began as u64)) " tasks that have begun."
                }
            }
            @if !shown.is_whole {
                p.dim.small {
                    "Subagents are shown of the " (PARENTS_MAX) " tasks with the most tokens, "
                    "200 at most."
                }
            }
            (legend(&scale))
            div.wide.high tabindex="0" role="region" aria-label="Bars of the tasks" {
                (drawing(shown, &scale))
            }
            (table(shown, &scale))
        }
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

fn drawing(shown: &Shown, scale: &Scale) -> Markup {
    let trees: Vec<Tree> = shown
        .tasks
        .iter()
        .filter_map(|bars| {
            let (task, below) = bars.split_first()?;
            let below = below.iter().map(|bar| (bar.depth, bar.ran));
            Some(Tree {
                task: task.ran,
                below: below.collect(),
            })
        })
        .collect();
    let (placed, count) = rows(&trees);
    let mut spans: Vec<Span> = shown.tasks.iter().flatten().map(span).collect();
    spans.sort_by_key(|span| (span.from, span.to));
    let (axis, _) = axis(&spans, WIDTH);
    let height = if count <= HIGH_ROWS_MAX {
        ROW
    } else {
        ROW_OF_MANY
    };
    let whole = height * count as f64 + 24.0;
    html! {
        svg.timeline.flame viewBox={ "0 0 " (WIDTH) " " (whole) } width=(WIDTH) height=(whole)
            role="img" aria-label="Bars of the tasks by time, coloured by cost; the table has the same" {
            (gaps(&axis.gaps(), whole))
            @for (bars, rows) in shown.tasks.iter().zip(&placed) {
                @for (bar, row) in bars.iter().zip(std::iter::once(&rows.task).chain(&rows.below)) {
                    @let x = axis.place(bar.ran.from);
                    @let width = (axis.place(bar.ran.to) - x).max(BAR_MIN);
                    (bar_drawing(bar, scale, x, width, *row as f64 * height, height))
                }
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

fn bar_drawing(bar: &Bar, scale: &Scale, x: f64, width: f64, y: f64, height: f64) -> Markup {
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
                (bar.name()) ": " (money(bar.micro_usd)) " (" (scale.share(bar)) "), "
                (number(bar.tokens)) " tokens, " (duration(bar.took_ms())) (standing)
            }
            rect x=(at(x)) y=(at(y + 1.0)) width=(at(width)) height=(at(height - 2.0)) rx="2" {}
            @if has_label { text.in x=(at(x + 5.0)) y=(at(y + height - 6.0)) { (label) } }
        }
    }
}

/// The same, the costliest task first.
fn table(shown: &Shown, scale: &Scale) -> Markup {
    let cost = |bars: &&Vec<Bar>| {
        let costs = bars.iter().map(|bar| scale.cost(bar));
        std::cmp::Reverse(costs.fold(0, u64::saturating_add))
    };
    let mut trees: Vec<&Vec<Bar>> = shown.tasks.iter().collect();
    trees.sort_by_key(cost);
    html! {
        details.more {
            summary { "As a table, the costliest task first" }
            div.wide { table.rows {
                thead { tr {
                    th { "Task" } th { "State" } th { "Began" } th.num { "Took" } th.num { "Tokens" }
                    th.num { "Cost" } th.num { "Share" }
                } }
                tbody { @for bar in trees.into_iter().flatten() { tr {
                    td.name class={ "depth" (bar.depth) } {
                        @if bar.depth > 0 { span.dim { "└ " } }
                        a href={ "/console/c/" (bar.id) } { (bar.name()) }
                    }
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
