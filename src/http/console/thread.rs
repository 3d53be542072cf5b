//! One conversation as a thread to read: prompts, answers, tool calls, approvals in place, and a
//! box to write in. Long journals are read by page, newest first.

use axum::{extract::State, response::Response};
use callboard_actors::{
    host::{ConversationHandle, ConversationState, ConversationStatus},
    ids::{ConversationId, Seq},
    journal::{Entry, EntryBody},
    time::Timestamp,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    html::{ago, number},
    item::{Shown, item},
    items::{Item, items},
    list::{state_badge, waits},
    page::{Failure, Page, Section, csrf},
    session::TenantSession,
};
use crate::http::sessions::Session;
use crate::{
    http::{
        answer_body::{built, whole_answer},
        answer_room::AnswerRoom,
        api::ConversationState as Head,
        auth::Caller,
        error::Problem,
        routes::{Path, Query, conversations},
        shared::App,
    },
    visible::visible,
};

/// Entries that a page is made of.
const ENTRIES: u64 = 200;

/// Bytes of HTML of the items of a page; older items go to the page before.
const BYTES_MAX: usize = 220 * 1024;

/// Bytes that a page of entries may hold while it is rendered.
const ROOM_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of a prompt that is put into the box to write in.
const DRAFT_MAX: usize = 64 * 1024;

/// Which part of a conversation to show.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Part {
    /// The newest entry of the page; that of the journal if absent.
    to: Option<u64>,
    /// Only what begins at this entry or later, for a page that is open.
    from: Option<u64>,
    /// A prompt whose text begins the box to write in.
    draft: Option<u64>,
    /// A compaction was asked for and removed nothing.
    kept: Option<String>,
}

/// What every page of a conversation shows at its top.
pub(super) struct Subject {
    pub(super) id: ConversationId,
    pub(super) conversation: ConversationHandle,
    pub(super) head: Head,
    pub(super) title: Option<String>,
    pub(super) now: Timestamp,
}

/// Entries that a page is made of.
pub(super) struct Entries {
    pub(super) entries: Vec<Entry>,
    /// The entry before them.
    pub(super) after: u64,
    /// Counts them, and then the page until it is read.
    pub(super) room: AnswerRoom,
}

impl Subject {
    /// Finds a conversation of the session's tenant.
    ///
    /// # Errors
    /// 404 for an unknown one, and for another tenant's.
    pub(super) async fn find(
        app: &App,
        viewer: &TenantSession,
        id: String,
    ) -> Result<Self, Failure> {
        let of = || (State(app.clone()), Caller(viewer.tenant.clone()));
        let (scope, conversation) = app.known(&viewer.tenant, &id).await?;
        let (state, caller) = of();
        let axum::Json(head) = conversations::get(state, caller, Path(id)).await?;
        // A damaged conversation has no title.
        let title = conversation.title().await.ok().flatten();
        Ok(Self {
            title: title.map(|title| visible(&title)),
            id: scope.conversation,
            conversation,
            head,
            now: app.host.ports().clock.now(),
        })
    }

    fn status(&self) -> &ConversationStatus {
        &self.head.status
    }

    /// Reads the entries after `after` up to `to`, within the room of the session's connection. Of many
    /// bytes, fewer entries are read: those before `to` that one read of the store has room for.
    pub(super) async fn entries(
        &self,
        app: &App,
        viewer: &TenantSession,
        after: u64,
        to: u64,
    ) -> Result<Entries, Failure> {
        let room = app
            .answers
            .take(&viewer.tenant, &viewer.connection, ROOM_BYTES)
            .await?;
        let mut after = after.min(to);
        loop {
            let count = to - after;
            let wanted = usize::try_from(count).unwrap_or(usize::MAX);
            let entries = self.conversation.entries(Seq(after), wanted).await?;
            let is_whole = entries.last().is_none_or(|last| last.seq.0 >= to);
            if is_whole || count <= 1 {
                return Ok(Entries {
                    entries,
                    after,
                    room,
                });
            }
            after = to - count / 2;
        }
    }

    /// The head of the page, with links to the others.
    pub(super) fn top(&self, here: &str) -> Markup {
        let id = &self.id;
        let links = [
            ("", "Thread"),
            ("/timeline", "Timeline"),
            ("/figures", "Figures"),
            ("/subagents", "Subagents"),
        ];
        html! {
            div.crumbs { a href="/console" { "Conversations" } " / " span.id { (id) } }
            h1 { (self.title.as_deref().unwrap_or(id.as_str())) }
            nav.tabs aria-label="Pages of the conversation" {
                @for (path, name) in links {
                    a href={ "/console/c/" (id) (path) }
                        aria-current=[(path == here).then_some("page")] { (name) }
                }
            }
        }
    }
}

/// Shows the thread, or with `from` only its end.
pub(super) async fn thread(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<String>, Problem>,
    part: Result<Query<Part>, Problem>,
) -> Result<Response, Failure> {
    let (Path(id), Query(part)) = (path?, part?);
    let subject = Subject::find(&app, &viewer, id).await?;
    let head = subject.head.entries.0;
    let to = part.to.unwrap_or(head).min(head);
    let oldest = to.saturating_sub(ENTRIES);
    let after = match part.from {
        Some(from) => oldest.max(from.saturating_sub(1)),
        None => oldest,
    };
    let read = subject.entries(&app, &viewer, after, to).await?;
    let Entries {
        entries,
        after,
        room,
    } = read;
    let (id, session) = (subject.id.clone(), viewer.session.clone());
    let (now, round) = (subject.now, subject.status().round_id);
    let waiting = waiting(subject.status()).to_vec();
    let render = move || {
        let shown = Shown {
            id: &id,
            session: &session,
            now,
            round,
            waiting: &waiting,
        };
        rendered(&shown, &items(&entries), after)
    };
    // A short text may take long to render, so this is never done on a worker thread.
    let ((items, first), room) = built(&app, &viewer.tenant, usize::MAX, room, render).await?;
    let pause_max = app.config.bounds.write_pause_max;
    if part.from.is_some() {
        let is_whole = part.from.is_some_and(|from| from > after);
        let piece = html! {
            (status(&subject))
            div #items data-whole[is_whole] { @for item in &items { (item) } }
        };
        let text = piece.into_string();
        return Ok(whole_answer("text/html; charset=utf-8", text, room, pause_max).await?);
    }
    let draft = match part.draft {
        Some(seq) => prompt_text(&subject.conversation, Seq(seq)).await?,
        None => Some(String::new()),
    };
    let content = html! {
        (subject.top(""))
        (status(&subject))
        @if first > 0 {
            nav.pages aria-label="Earlier entries" {
                a rel="prev" href={ "?to=" (first) } { "Earlier entries" }
                span.dim.small { (number(first)) " before" }
            }
        }
        div #items { @for item in &items { (item) } }
        @if to < head {
            nav.pages aria-label="Later entries" {
                a rel="next" href={ "?to=" (to.saturating_add(ENTRIES)) } { "Later entries" }
                a href="?" { "The newest" }
            }
        } @else if !subject.id.is_reserved() {
            article.item.answer #live hidden aria-live="polite" {
                header { strong { "Model" } span.dim.small { "writes" } }
                pre.live {}
            }
            @if part.kept.is_some() {
                p.flash role="status" { "There was nothing to compact: the context is as it was." }
            }
            (composer(&subject, &viewer.session, draft.as_deref()))
        }
    };
    let title = subject
        .title
        .clone()
        .unwrap_or_else(|| subject.id.to_string());
    let page = Page::new(&viewer.session, Section::Conversations, title, content);
    page.counted(room, pause_max).await
}

/// Renders items from the newest back, as far as a page goes. Returns them with the seq that the
/// page before ends at.
fn rendered(shown: &Shown<'_>, items: &[Item], after: u64) -> (Vec<Markup>, u64) {
    let mut bytes = 0;
    let mut all = Vec::new();
    let mut first = after;
    for one in items.iter().rev() {
        let markup = item(shown, one);
        bytes += markup.0.len();
        if bytes > BYTES_MAX && !all.is_empty() {
            break;
        }
        first = one.seq.0.saturating_sub(1);
        all.push(markup);
    }
    if all.len() == items.len() {
        first = after; // Entries without an item belong to the page as well.
    }
    all.reverse();
    (all, first)
}

/// The tool calls that wait for a person.
fn waiting(status: &ConversationStatus) -> &[String] {
    match &status.waits_for {
        callboard_actors::host::WaitsFor::Person { tool_call_ids, .. } => tool_call_ids,
        _ => &[],
    }
}

/// The text of a prompt, to be edited; `None` if it is too long for that.
async fn prompt_text(
    conversation: &ConversationHandle,
    seq: Seq,
) -> Result<Option<String>, Failure> {
    let before = Seq(seq.0.saturating_sub(1));
    let entries = conversation.entries(before, 1).await?;
    Ok(match entries.first().map(|entry| &entry.body) {
        Some(EntryBody::PromptAccepted {
            message: Some(message),
            ..
        }) => (message.wire().len() <= DRAFT_MAX).then(|| message.text()),
        _ => Some(String::new()),
    })
}

/// The line about the state, which refreshes.
fn status(subject: &Subject) -> Markup {
    let status = subject.status();
    let since = Timestamp(subject.now.0.saturating_sub(status.since_ms));
    let is_open = status.round_id.is_some();
    html! {
        div.status #status data-open=(is_open) data-head=(subject.head.entries.0) {
            (state_badge(status.state))
            @if is_open {
                span { "waits for " (waits(&status.waits_for, subject.now)) }
                span.dim { "since " (ago(since, subject.now)) }
            }
            @if status.prompts_waiting > 0 {
                span {
                    (status.prompts_waiting)
                    @if status.prompts_waiting == 1 { " waiting prompt" } @else { " waiting prompts" }
                }
            }
            @if let Some(failure) = &status.failure { span.bad { (failure) } }
            span.grow {}
            span.dim {
                (number(status.context.tokens)) " of " (number(status.context.window)) " tokens "
                @let full = status.context.fraction.min(1.0);
                meter max="1" high="0.8" value=(format!("{full:.3}")) {}
            }
            @if is_open && status.state != ConversationState::Failed {
                button.danger type="submit" form="interrupt" { "Interrupt" }
            }
        }
    }
}

/// The box to write in, and what else can be done here.
fn composer(subject: &Subject, session: &Session, draft: Option<&str>) -> Markup {
    let id = &subject.id;
    let path = |rest: &str| format!("/console/c/{id}/{rest}");
    html! {
        form #interrupt method="post" action=(path("interrupt")) { (csrf(session)) }
        form.composer method="post" action=(path("send")) {
            (csrf(session))
            @if draft.is_none() {
                p.flash { "The prompt is too long to be edited here; its text is in its entry." }
            }
            label.hidden for="prompt" { "Prompt" }
            textarea #prompt name="content" rows="3" required data-send data-slash
                placeholder="Write a prompt; Ctrl+Enter sends it" { (draft.unwrap_or_default()) }
            div.row {
                label.hidden for="busy" { "While a round is open" }
                select #busy name="busy" {
                    option value="queue" { "Ask, after the open round" }
                    option value="steer" { "Steer the open round" }
                    option value="interrupt" { "Interrupt, then ask" }
                    option value="inject" { "Add to the next model call" }
                }
                span.grow {}
                button.main type="submit" { "Send" }
            }
        }
        details.more {
            summary { "Copy, compact, empty, delete" }
            div.row {
                form.row method="post" action=(path("fork")) {
                    (csrf(session))
                    label.hidden for="copy" { "Id of the copy" }
                    input #copy name="copy" placeholder="id of the copy" maxlength="128";
                    button type="submit" { "Copy the conversation" }
                }
                form method="post" action=(path("compact")) {
                    (csrf(session)) button type="submit" { "Compact the context" }
                }
                form method="post" action=(path("reset"))
                    data-confirm="Empty this conversation? Its entries are erased." {
                    (csrf(session)) button.danger type="submit" { "Empty" }
                }
                form method="post" action=(path("delete"))
                    data-confirm="Delete this conversation? Everything of it is erased." {
                    (csrf(session)) button.danger type="submit" { "Delete" }
                }
            }
        }
        details.more {
            summary { "As curl" }
            div.copy {
                pre.code #curl {
                    "curl -s \"$CALLBOARD/v1/conversations/" (id) "/messages\" \\\n"
                    "  -H \"authorization: Bearer $KEY\" -H 'content-type: application/json' \\\n"
                    "  -d '{\"content\":\"Why is checkout slow?\"}'\n"
                    "curl -s \"$CALLBOARD/v1/conversations/" (id) "/messages?whole=true\" \\\n"
                    "  -H \"authorization: Bearer $KEY\"\n"
                    "curl -sN \"$CALLBOARD/v1/conversations/" (id) "/events?after=0.0.0\" \\\n"
                    "  -H \"authorization: Bearer $KEY\"\n"
                }
                button type="button" data-copy="curl" hidden { "Copy" }
            }
        }
    }
}

/// Shows one entry of the journal as it is stored.
pub(super) async fn entry(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<(String, u64)>, Problem>,
) -> Result<Response, Failure> {
    let Path((id, seq)) = path?;
    let (_, conversation) = app.known(&viewer.tenant, &id).await?;
    let room = app
        .answers
        .take(&viewer.tenant, &viewer.connection, ROOM_BYTES)
        .await?;
    let before = Seq(seq.saturating_sub(1));
    let entries = conversation.entries(before, 1).await?;
    let found = entries.first().filter(|entry| entry.seq.0 == seq);
    let entry = found.ok_or_else(|| Problem::not_found("entry"))?;
    let body = serde_json::json!({
        "seq": entry.seq,
        "epoch": entry.epoch,
        "at": entry.at.to_string(),
        "entry": entry.body,
    });
    let text = serde_json::to_string_pretty(&body).unwrap_or_default();
    let pause_max = app.config.bounds.write_pause_max;
    Ok(whole_answer("text/plain; charset=utf-8", text, room, pause_max).await?)
}
