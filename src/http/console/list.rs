//! The conversations of a tenant: those with an open round and what each waits for, and all of them
//! by id.

use std::collections::HashMap;

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    conversation::WaitsFor,
    host::{ConversationState, ConversationStatus},
    ids::{ConversationId, Seq},
    journal::EntryBody,
    ports::{ListQuery, SessionSummary},
    stream::Open,
    time::Timestamp,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    html::{ago, badge, duration, number, until},
    page::{Failure, Page, Section, csrf},
    session::TenantSession,
};
use crate::{
    http::{KeyHash, answer_body::whole_answer, error::Problem, routes::Query, shared::App},
    visible::visible,
};

/// Conversations of the list by id on a page.
const PAGE: usize = 50;

/// Conversations with an open round that are shown.
const OPEN_MAX: usize = 100;

/// Bytes that are reserved for a page before they are known.
const ROOM_BYTES: usize = 64 * 1024;

/// Rows that are read to find those whose id holds the words of the filter.
const SEARCHED_MAX: usize = 5_000;

/// The same for those whose last round failed: of each the end of the journal is read.
const SEARCHED_FAILED_MAX: usize = 500;

/// Entries at the end of a journal in which the end of its last round is looked for.
const TAIL: u64 = 16;

/// The part of the page that refreshes.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Filter {
    /// `open`, `waiting` or `failed`, whose last round ended in an error; empty for all.
    #[serde(default)]
    state: String,
    /// What the id holds.
    #[serde(default)]
    q: String,
    /// The page starts after this id.
    #[serde(default)]
    after: String,
    /// Whether to list subagents too.
    subagents: Option<String>,
    /// Whether only the list is wanted.
    part: Option<String>,
}

impl Filter {
    fn is_failed(&self) -> bool {
        self.state == "failed"
    }

    /// The address of this filter after an id.
    fn link(&self, after: &str) -> String {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        for (name, value) in [("state", &*self.state), ("q", &self.q), ("after", after)] {
            if !value.is_empty() {
                pairs.append_pair(name, value);
            }
        }
        if self.subagents.is_some() {
            pairs.append_pair("subagents", "1");
        }
        format!("/console?{}", pairs.finish())
    }
}

/// A row: what the store says, and of an open round what it waits for.
struct Row {
    summary: SessionSummary,
    status: Option<ConversationStatus>,
}

/// Shows the list, or with `part` only what changes in it.
pub(super) async fn list(
    State(app): State<App>,
    viewer: TenantSession,
    filter: Result<Query<Filter>, Problem>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Query(filter) = filter?;
    let room = app
        .answers
        .take(&viewer.tenant, &viewer.connection, ROOM_BYTES)
        .await?;
    let pause_max = app.config.bounds.write_pause_max;
    let now = app.host.ports().clock.now();
    let open = open_rows(&app, &viewer, &filter).await?;
    let (rows, next) = match filter.state.as_str() {
        "open" | "waiting" => (Vec::new(), None),
        _ => all_rows(&app, &viewer, &filter).await?,
    };
    if filter.part.is_some() {
        let tag = tag(&open, &rows);
        if headers
            .get(header::IF_NONE_MATCH)
            .is_some_and(|held| held.as_bytes() == tag.as_bytes())
        {
            return Ok(StatusCode::NOT_MODIFIED.into_response());
        }
        let reads = reads(&app, &viewer, &filter, &open, &rows).await;
        let list = lists(&filter, &open, &rows, next, &reads, now).into_string();
        let mut response = whole_answer("text/html; charset=utf-8", list, room, pause_max).await?;
        let tag = HeaderValue::from_str(&tag).ok();
        response
            .headers_mut()
            .extend(tag.map(|tag| (header::ETAG, tag)));
        return Ok(response);
    }
    let reads = reads(&app, &viewer, &filter, &open, &rows).await;
    let content = html! {
        h1 { "Conversations" }
        (filters(&filter))
        (lists(&filter, &open, &rows, next, &reads, now))
        section.new {
            h2 { "New conversation" }
            form.stack method="post" action="/console/new" {
                (csrf(&viewer.session))
                label for="id" { "Id" }
                input #id name="id" placeholder="support-42" maxlength="128"
                    pattern="[A-Za-z0-9_:\\-][A-Za-z0-9._:\\-]*"
                    title="1 to 128 of A-Z a-z 0-9 . _ : - ; empty for a random one";
                label for="prompt" { "Prompt" }
                textarea #prompt name="content" rows="3" required data-send {}
                button.main type="submit" { "Send" }
            }
        }
    };
    let section = Section::Conversations;
    let page = Page::new(&viewer.session, section, "Conversations", content);
    page.counted(room, pause_max).await
}

/// Conversations with an open round, those that wait for a person first.
async fn open_rows(
    app: &App,
    viewer: &TenantSession,
    filter: &Filter,
) -> Result<Vec<Row>, Failure> {
    if filter.is_failed() {
        return Ok(Vec::new());
    }
    let handle = app.host.tenant(&viewer.tenant);
    let mut rows = Vec::new();
    let states: &[Open] = match filter.state.as_str() {
        "waiting" => &[Open::Parked],
        _ => &[Open::Parked, Open::Running],
    };
    for open in states {
        let query = ListQuery {
            count: OPEN_MAX,
            open: Some(*open),
            subagents: filter.subagents.is_some(),
            ..ListQuery::default()
        };
        for summary in handle.conversations(query).await? {
            if rows.len() < OPEN_MAX && summary.conversation.as_str().contains(&filter.q) {
                let conversation = handle.conversation(&summary.conversation);
                let status = conversation.status().await.ok();
                rows.push(Row { summary, status });
            }
        }
    }
    Ok(rows)
}

/// A page of all conversations by id, and the id that the next one starts after.
async fn all_rows(
    app: &App,
    viewer: &TenantSession,
    filter: &Filter,
) -> Result<(Vec<SessionSummary>, Option<String>), Failure> {
    let handle = app.host.tenant(&viewer.tenant);
    let mut after = match filter.after.is_empty() {
        true => None,
        false => Some(
            ConversationId::new(&filter.after)
                .map_err(|error| Problem::bad_parameter("after", error))?,
        ),
    };
    let (count, most) = match (filter.is_failed(), filter.q.is_empty()) {
        (true, _) => (100, SEARCHED_FAILED_MAX),
        (false, false) => (1000, SEARCHED_MAX),
        (false, true) => (PAGE + 1, SEARCHED_MAX),
    };
    let mut found = Vec::new();
    let mut searched = 0;
    loop {
        let query = ListQuery {
            after: after.clone(),
            count,
            open: None,
            subagents: filter.subagents.is_some(),
        };
        let rows = handle.conversations(query).await?;
        searched += rows.len();
        let is_last = rows.len() < count;
        after = rows.last().map(|row| row.conversation.clone()).or(after);
        for row in rows {
            if row.conversation.as_str().contains(&filter.q)
                && (!filter.is_failed() || has_failed(app, viewer, &row).await)
            {
                found.push(row);
            }
        }
        if is_last || found.len() > PAGE || searched >= most {
            let next = match found.len() > PAGE {
                true => found.get(PAGE - 1).map(|row| row.conversation.to_string()),
                false if is_last => None,
                false => after.map(|id| id.to_string()),
            };
            found.truncate(PAGE);
            return Ok((found, next));
        }
    }
}

async fn has_failed(app: &App, viewer: &TenantSession, row: &SessionSummary) -> bool {
    row.failed.is_some() || last_failure(app, viewer, row).await.is_some()
}

/// The code of the error in which the last round of a conversation ended; `None` if it did not end
/// in one, was taken back, or another round is open.
async fn last_failure(app: &App, viewer: &TenantSession, row: &SessionSummary) -> Option<String> {
    if row.open != Open::None || row.failed.is_some() {
        return None;
    }
    let handle = app.host.tenant(&viewer.tenant);
    let conversation = handle.conversation(&row.conversation);
    let head = row.head.seq.0;
    let mut after = head.saturating_sub(TAIL);
    let mut failure = None;
    while after < head {
        let count = usize::try_from(head - after).unwrap_or(usize::MAX);
        let entries = conversation.entries(Seq(after), count).await.ok()?;
        after = entries.last()?.seq.0;
        for entry in entries {
            match entry.body {
                EntryBody::RoundFinished { error, .. } => {
                    failure = error.map(|error| error.code);
                }
                EntryBody::Rewound { .. } | EntryBody::Reset {} => failure = None,
                _ => {}
            }
        }
    }
    failure
}

/// What is read of each row besides the store's list.
#[derive(Default)]
struct Read {
    title: String,
    /// The code of the error in which its last round ended.
    failure: Option<String>,
}

/// Changes whenever the list would say something else, the passing of time excepted.
fn tag(open: &[Row], rows: &[SessionSummary]) -> String {
    let mut text = String::new();
    for row in open {
        let waits = row.status.as_ref().map(|status| &status.waits_for);
        text.push_str(&format!("{:?}{waits:?}", row.summary.head));
    }
    for row in rows {
        let (id, head) = (&row.conversation, row.head);
        text.push_str(&format!(
            "{id}{head:?}{:?}{}",
            row.open,
            row.failed.is_some()
        ));
    }
    format!("\"{}\"", KeyHash::from_key(&text))
}

/// Reads of each conversation its first words and, where failed ones are asked for, how its last
/// round failed: that reads the end of a journal, and lists are read again every few seconds.
async fn reads(
    app: &App,
    viewer: &TenantSession,
    filter: &Filter,
    open: &[Row],
    rows: &[SessionSummary],
) -> HashMap<ConversationId, Read> {
    let handle = app.host.tenant(&viewer.tenant);
    let open = open.iter().map(|row| &row.summary);
    let mut all = HashMap::new();
    for row in open.chain(rows) {
        // A damaged conversation has no title.
        let title = handle.conversation(&row.conversation).title().await;
        let title = title.ok().flatten();
        let failure = match filter.is_failed() {
            true => last_failure(app, viewer, row).await,
            false => None,
        };
        let read = Read {
            title: title.map(|title| visible(&title)).unwrap_or_default(),
            failure,
        };
        all.insert(row.conversation.clone(), read);
    }
    all
}

fn filters(filter: &Filter) -> Markup {
    let states = [
        ("", "All"),
        ("open", "With an open round"),
        ("waiting", "Waiting for a person"),
        ("failed", "Last round failed"),
    ];
    html! {
        form.filters method="get" action="/console" role="search" {
            label.small for="q" { "Id holds" }
            input #q name="q" value=(filter.q) type="search" data-slash;
            label.small for="state" { "State" }
            select #state name="state" {
                @for (value, name) in states {
                    option value=(value) selected[filter.state == value] { (name) }
                }
            }
            label.check {
                input type="checkbox" name="subagents" value="1"
                    checked[filter.subagents.is_some()];
                " Subagents"
            }
            button type="submit" { "Filter" }
            a href="/console/compare" { "Compare two" }
        }
    }
}

fn lists(
    filter: &Filter,
    open: &[Row],
    rows: &[SessionSummary],
    next: Option<String>,
    reads: &HashMap<ConversationId, Read>,
    now: Timestamp,
) -> Markup {
    let none = Read::default();
    let read = |id: &ConversationId| reads.get(id).unwrap_or(&none);
    html! {
        div #list data-refresh=(format!("{}&part=1", filter.link(&filter.after))) {
            @if !filter.is_failed() {
                section {
                    h2 { "Open rounds " span.count { (open.len()) } }
                    @if open.is_empty() { p.dim { "No round is open." } }
                    @else {
                        div.wide { table.rows {
                            thead { tr {
                                th { "Conversation" } th { "State" } th { "Waits for" }
                                th.num { "Since" } th.num { "Tokens" }
                            } }
                            tbody {
                                @for row in open {
                                    (open_row(row, &read(&row.summary.conversation).title, now))
                                }
                            }
                        } }
                    }
                }
            }
            @if filter.state.is_empty() || filter.is_failed() {
                section {
                    h2 { "By id" }
                    @if rows.is_empty() && next.is_some() { p.dim { "None so far." } }
                    @else if rows.is_empty() { p.dim { "None here." } }
                    @else {
                        div.wide { table.rows {
                            thead { tr {
                                th { "Conversation" } th { "Round" } th.num { "Entries" }
                                th.num { "Last entry" }
                            } }
                            tbody {
                                @for row in rows {
                                    (stored_row(row, read(&row.conversation), now))
                                }
                            }
                        } }
                    }
                    nav.pages aria-label="Pages of the list" {
                        @if !filter.after.is_empty() { a href=(filter.link("")) { "First page" } }
                        @if let Some(next) = next {
                            a rel="next" href=(filter.link(&next)) { "Next page" }
                        }
                    }
                }
            }
        }
    }
}

fn name(id: &ConversationId, title: &str) -> Markup {
    html! {
        td.name {
            a href={ "/console/c/" (id) } {
                @if title.is_empty() { (id) } @else { (title) }
            }
            @if !title.is_empty() { " " span.dim.small.id { (id) } }
        }
    }
}

fn open_row(row: &Row, title: &str, now: Timestamp) -> Markup {
    let status = row.status.as_ref();
    html! {
        tr {
            (name(&row.summary.conversation, title))
            @if let Some(status) = status {
                td { (state_badge(status.state)) }
                td { (waits(&status.waits_for, now)) }
                td.num { (ago(Timestamp(now.0.saturating_sub(status.since_ms)), now)) }
                td.num { (number(status.spent.tokens)) }
            } @else {
                td { (badge("bad", "unreadable")) } td {} td {} td {}
            }
        }
    }
}

fn stored_row(row: &SessionSummary, read: &Read, now: Timestamp) -> Markup {
    html! {
        tr {
            (name(&row.conversation, &read.title))
            td {
                @if row.failed.is_some() { (badge("bad", "damaged")) }
                @else if let Some(code) = &read.failure {
                    (badge("bad", "failed")) " " span.dim.small { (code) }
                }
                @else {
                    @match row.open {
                        Open::None => span.dim { "none" },
                        Open::Running => (badge("run", "open")),
                        Open::Parked => (badge("wait", "waits")),
                    }
                }
            }
            td.num { (number(row.head.seq.0)) }
            td.num { (ago(row.updated_at, now)) " ago" }
        }
    }
}

/// The state of a conversation as a mark.
pub(super) fn state_badge(state: ConversationState) -> Markup {
    match state {
        ConversationState::Asleep => badge("", "asleep"),
        ConversationState::Idle => badge("", "idle"),
        ConversationState::Running => badge("run", "running"),
        ConversationState::Parked => badge("wait", "waits for you"),
        ConversationState::Failed => badge("bad", "failed"),
    }
}

/// What a conversation waits for, in words.
pub(super) fn waits(waits: &WaitsFor, now: Timestamp) -> Markup {
    html! {
        @match waits {
            WaitsFor::Nothing => span.dim { "nothing" },
            WaitsFor::Person { tool_call_ids, expires_at } => {
                @let calls = tool_call_ids.len();
                "a decision about " (calls) @if calls == 1 { " call" } @else { " calls" }
                @if let Some(at) = expires_at { ", " (until(*at, now)) " left" }
            }
            WaitsFor::TenantTurn { position } => {
                "a place among the tenant's rounds"
                @if *position > 0 { " (number " (position) " in line)" }
            }
            WaitsFor::Provider { position, reason } => {
                (reason.words())
                @if *position > 0 { " (number " (position) " in line)" }
            }
            WaitsFor::Retry { attempt, delay_ms, reason } => {
                "attempt " (attempt) " in " (duration(*delay_ms)) ", after " (reason)
            }
            WaitsFor::Model => "the model",
            WaitsFor::Tools { names } => {
                @if names.is_empty() { "tools" } @else { code { (names.join(", ")) } }
            }
            WaitsFor::Store => "the store",
            WaitsFor::Compaction => "a compaction",
            _ => "something newer than this page",
        }
    }
}
