//! When each task of a fan-out ran, and what it cost.

use std::collections::HashMap;

use axum::{extract::State, response::Response};
use callboard_actors::{
    host::TenantHandle,
    ids::{ConversationId, FAN_OUT_PREFIX},
    ports::{ListQuery, SessionSummary},
    time::Timestamp,
};
use maud::{Markup, html};

use super::{
    bars::{Bar, Standing, picture, ran},
    fan_outs::top,
    html::{money, number},
    page::{Failure, Page, Section},
    session::TenantSession,
};
use crate::http::{answer_body::built, error::Problem, routes::Path, shared::App};

/// Tasks that are shown. The journal of each is read.
const TASKS_MAX: usize = 1000;

/// Rows of a list in one read.
const LISTED: usize = 1000;

/// Bytes that are reserved for a page before they are known.
const ROOM_BYTES: usize = 1024 * 1024;

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
