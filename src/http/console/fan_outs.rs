//! Subagents of a conversation as a tree, and fan-outs with their results.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use callboard_actors::{
    host::TenantHandle,
    ids::ConversationId,
    ports::{ListQuery, SessionSummary},
    stream::Open,
    time::Timestamp,
};
use maud::{Markup, html};

use super::{
    answer::see_other,
    bars::{Bar, Standing, picture, ran},
    form::Form,
    html::{ago, badge, clip, money, number},
    page::{Failure, Page, Section, csrf},
    session::TenantSession,
    thread::Subject,
};
use crate::{
    http::{
        api::{FanOutPage, FanOutRequest, FanOutShown, TaskShown},
        auth::Caller,
        body,
        error::Problem,
        routes::{Path, Query, fan_outs},
        shared::App,
    },
    visible::visible,
};

/// Subagents that are shown of a tree. Reading one reads its journal.
const SUBAGENTS_MAX: usize = 200;

/// Bytes that are reserved for a page before they are known.
const ROOM_BYTES: usize = 64 * 1024;

/// Generations of subagents that are shown.
const DEPTH_MAX: usize = 6;

/// Bytes of a result that a row shows.
const TEXT_MAX: usize = 300;

/// A subagent, with its tokens and cost.
struct Node {
    depth: usize,
    summary: SessionSummary,
    title: String,
    tokens: u64,
    micro_usd: u64,
}

/// Shows the subagents of a conversation.
pub(super) async fn subagents(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<String>, Problem>,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let room = app
        .answers
        .take(&viewer.tenant, &viewer.connection, ROOM_BYTES)
        .await?;
    let subject = Subject::find(&app, &viewer, id).await?;
    let handle = app.host.tenant(&viewer.tenant);
    let mut nodes = Vec::new();
    let is_whole = children(&handle, &subject.id, &mut nodes).await?;
    let cost_max = nodes.iter().map(|node| node.micro_usd.max(node.tokens));
    let cost_max = cost_max.max().unwrap_or_default().max(1);
    let total: u64 = nodes.iter().map(|node| node.tokens).sum();
    let cost: u64 = nodes.iter().map(|node| node.micro_usd).sum();
    let bars: Vec<Bar> = nodes.iter().map(|node| bar(node, subject.now)).collect();
    let content = html! {
        (subject.top("/subagents"))
        @if nodes.is_empty() { p.dim { "No subagent was started here." } }
        @else {
            p {
                (number(nodes.len() as u64)) " subagents, "
                (number(total)) " tokens, " (money(cost))
            }
            @if !is_whole { p.flash { "There are more; these are the first." } }
            div.wide { table.rows {
                thead { tr {
                    th { "Subagent" } th { "Round" } th.num { "Tokens" } th.num { "Cost" }
                    th { "Share" }
                    th.num { "Last entry" }
                } }
                tbody { @for node in &nodes { (row(node, cost_max, subject.now)) } }
            } }
            h2 { "Time and cost" }
            (picture(bars, "Subagent"))
        }
    };
    let title = format!("Subagents of {}", subject.id);
    let page = Page::new(&viewer.session, Section::Conversations, title, content);
    page.counted(room, app.config.bounds.write_pause_max).await
}

fn row(node: &Node, cost_max: u64, now: Timestamp) -> Markup {
    let id = &node.summary.conversation;
    let title = match node.title.is_empty() {
        true => id.as_str(),
        false => &node.title,
    };
    let share = node.micro_usd.max(node.tokens) * 100 / cost_max;
    html! {
        tr {
            td class={ "name depth" (node.depth) } {
                @if node.depth > 0 { span.dim { "└ " } }
                a href={ "/console/c/" (id) } { (visible(title)) }
            }
            td {
                @if node.summary.failed.is_some() { (badge("bad", "failed")) }
                @else {
                    @match node.summary.open {
                        Open::None => (badge("good", "ended")),
                        Open::Running => (badge("run", "open")),
                        Open::Parked => (badge("wait", "waits")),
                    }
                }
            }
            td.num { (number(node.tokens)) }
            td.num { (money(node.micro_usd)) }
            td { meter max="100" value=(share) title="Share of the most expensive" {} }
            td.num { (ago(node.summary.updated_at, now)) " ago" }
        }
    }
}

/// A subagent as a bar.
fn bar(node: &Node, now: Timestamp) -> Bar {
    let summary = &node.summary;
    let is_open = summary.open != Open::None && summary.failed.is_none();
    Bar {
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

/// Collects the subagents below a conversation, each above its own. `false` if there are more.
async fn children(
    handle: &TenantHandle,
    of: &ConversationId,
    nodes: &mut Vec<Node>,
) -> Result<bool, Failure> {
    // The next to visit is the last: a stack instead of recursion.
    let mut open: Vec<(usize, Option<SessionSummary>, ConversationId)> =
        vec![(0, None, of.clone())];
    while let Some((depth, summary, id)) = open.pop() {
        if let Some(summary) = summary {
            if nodes.len() >= SUBAGENTS_MAX {
                return Ok(false);
            }
            let conversation = handle.conversation(&id);
            let metrics = match conversation.state().await {
                Ok(state) => state.metrics,
                Err(_) => Default::default(), // A damaged journal is a row without figures.
            };
            nodes.push(Node {
                depth: depth - 1,
                summary,
                title: conversation
                    .title()
                    .await
                    .ok()
                    .flatten()
                    .unwrap_or_default(),
                tokens: metrics.total_tokens(),
                micro_usd: metrics.cost_micro_usd,
            });
        }
        if depth < DEPTH_MAX {
            let prefix = id.children();
            let rows = handle
                .conversations(ListQuery {
                    after: Some(prefix.clone()),
                    count: SUBAGENTS_MAX + 1,
                    open: None,
                    subagents: true,
                })
                .await?;
            let rows = rows.into_iter();
            let mine =
                rows.take_while(|row| row.conversation.as_str().starts_with(prefix.as_str()));
            let mine: Vec<_> = mine.collect();
            for row in mine.into_iter().rev() {
                let id = row.conversation.clone();
                open.push((depth + 1, Some(row), id));
            }
        }
    }
    Ok(true)
}

/// Lists the fan-outs, and offers to start one.
pub(super) async fn list(
    State(app): State<App>,
    viewer: TenantSession,
) -> Result<Response, Failure> {
    let all = fan_outs::kept(&app, &viewer.tenant);
    let content = html! {
        h1 { "Fan-outs" }
        div #list data-refresh="/console/fanouts" data-part="list" {
            @if all.is_empty() {
                p.dim { "None since this host started." }
            } @else {
                div.wide { table.rows {
                    thead { tr {
                        th { "Name" } th { "State" } th { "Progress" } th.num { "Done" }
                        th.num { "Failed" }
                        th.num { "Tasks" }
                    } }
                    tbody { @for one in all.iter().rev() { tr {
                        td { a href=(path(&one.name)) { (one.name) } }
                        td { (state(one)) }
                        td { progress max=(one.tasks) value=(one.ended) {} }
                        td.num { (number(one.done as u64)) }
                        td.num { (number(one.failed as u64)) }
                        td.num { (number(one.tasks as u64)) }
                    } } }
                } }
            }
        }
        section.new {
            h2 { "New fan-out" }
            form.stack method="post" action="/console/fanouts/start" {
                (csrf(&viewer.session))
                label for="name" { "Name" }
                input #name name="name" maxlength="100"
                    placeholder="empty for a random one; the same name and tasks go on";
                label for="tasks" { "Tasks, one a line" }
                textarea #tasks name="tasks" rows="4" required {}
                button.main type="submit" { "Start" }
            }
        }
    };
    Ok(Page::new(&viewer.session, Section::FanOuts, "Fan-outs", content).into_response())
}

/// The head of the pages of a fan-out, with links to the others.
pub(super) fn top(name: &str, here: &str) -> Markup {
    html! {
        div.crumbs { a href="/console/fanouts" { "Fan-outs" } }
        h1 { (name) }
        nav.tabs aria-label="Pages of the fan-out" {
            @for (rest, title) in [("", "Results"), ("/cost", "Time and cost")] {
                a href={ (path(name)) (rest) }
                    aria-current=[(rest == here).then_some("page")] { (title) }
            }
        }
    }
}

fn path(name: &str) -> String {
    let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
    format!("/console/fanouts/of/{name}")
}

fn state(one: &FanOutShown) -> Markup {
    match (one.is_over, one.failed) {
        (false, _) => badge("run", "runs"),
        (true, 0) => badge("good", "done"),
        (true, _) => badge("wait", "ended with failures"),
    }
}

/// Shows a fan-out and a page of its results.
pub(super) async fn one(
    State(app): State<App>,
    viewer: TenantSession,
    name: Result<Path<String>, Problem>,
    page: Result<Query<FanOutPage>, Problem>,
) -> Result<Response, Failure> {
    let (Path(name), Query(page)) = (name?, page?);
    let page = FanOutPage {
        wait_ms: None,
        ..page
    };
    let (shown, _room) =
        fan_outs::read(&app, &viewer.tenant, &viewer.connection, &name, page).await?;
    let results = shown.results.as_deref().unwrap_or_default();
    let tokens: u64 = results
        .iter()
        .map(|task| task.usage.input().saturating_add(task.usage.output))
        .sum();
    let content = html! {
        (top(&shown.name, ""))
        div #list data-refresh=(path(&shown.name)) data-part="list" {
            p {
                (state(&shown)) " "
                (number(shown.ended as u64)) " of " (number(shown.tasks as u64)) " ended, "
                (number(shown.failed as u64)) " failed; " (number(tokens)) " tokens on this page"
            }
            progress.whole max=(shown.tasks) value=(shown.ended) {}
            div.wide { table.rows {
                thead { tr {
                    th.num { "Task" } th { "State" } th { "Answer" } th.num { "Tokens" }
                } }
                tbody { @for task in results { (task_row(task)) } }
            } }
            @if let Some(next) = shown.next {
                nav.pages { a rel="next" href={ "?after=" (next) } { "Next page" } }
            }
        }
        div.row {
            @if !shown.is_over {
                form method="post" action={ (path(&shown.name)) "/cancel" } {
                    (csrf(&viewer.session)) button.danger type="submit" { "Cancel" }
                }
            } @else {
                form method="post" action={ (path(&shown.name)) "/delete" }
                    data-confirm="Erase the conversations of this fan-out?" {
                    (csrf(&viewer.session)) button.danger type="submit" { "Delete" }
                }
            }
        }
    };
    let title = format!("Fan-out {}", shown.name);
    Ok(Page::new(&viewer.session, Section::FanOuts, title, content).into_response())
}

fn task_row(task: &TaskShown) -> Markup {
    let (text, left) = clip(&task.text, TEXT_MAX);
    html! {
        tr {
            td.num { a href={ "/console/c/" (task.conversation_id) } { (task.index) } }
            td { @if task.ok { (badge("good", "done")) } @else { (badge("bad", "failed")) } }
            td.text {
                @if let Some(error) = &task.error { span.bad { (visible(&error.message)) } " " }
                (visible(text)) @if left > 0 { " …" }
                @if task.text_omitted { span.dim { "in its conversation" } }
            }
            td.num { (number(task.usage.input().saturating_add(task.usage.output))) }
        }
    }
}

/// Starts a fan-out.
pub(super) async fn start(State(app): State<App>, form: Form) -> Result<Response, Failure> {
    let tasks = form.fields.get("tasks");
    let lines = tasks.lines().map(str::trim);
    let request = FanOutRequest {
        tasks: lines
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect(),
        name: form.fields.filled("name"),
        model: None,
        parallel: None,
        deadline_ms: None,
        retry_failed: false,
    };
    let tenant = form.tenant()?;
    let request = body::Messages(request, app.body_room(&tenant));
    let (_, Json(started)) = fan_outs::start(State(app), Caller(tenant), request).await?;
    Ok(see_other(&path(&started.name)))
}

/// Cancels a fan-out.
pub(super) async fn cancel(
    State(app): State<App>,
    name: Result<Path<String>, Problem>,
    form: Form,
) -> Result<Response, Failure> {
    let Path(name) = name?;
    let caller = Caller(form.tenant()?);
    fan_outs::cancel(State(app), caller, Path(name.clone())).await?;
    Ok(see_other(&path(&name)))
}

/// Erases a fan-out that has ended.
pub(super) async fn delete(
    State(app): State<App>,
    name: Result<Path<String>, Problem>,
    form: Form,
) -> Result<Response, Failure> {
    let caller = Caller(form.tenant()?);
    fan_outs::delete(State(app), caller, name?).await?;
    Ok(see_other("/console/fanouts"))
}
