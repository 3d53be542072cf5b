//! Conversations of a running host, read over HTTP in pages.

use std::collections::{BTreeMap, BTreeSet};

use callboard_actors::{
    chat::{ContentBlock, Message},
    conversation::WaitsFor,
    host::{ConversationState, ConversationStatus},
    ids::{ConversationId, Epoch, Seq},
    journal::{ConversationMetrics, ConversationRound, UsageTotals},
    stream::Open,
    time::Timestamp,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::shown::{Asked, Shown};
use crate::cli::{failure::Failure, remote::Remote};

/// How often a conversation that changes meanwhile is read again.
const ATTEMPTS: usize = 5;

/// Items of a page.
const PAGE: usize = 1000;

/// A line of the list.
#[derive(Deserialize)]
pub(super) struct ServedRow {
    pub(super) conversation_id: ConversationId,
    pub(super) open: Open,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    pub(super) entries: Seq,
    pub(super) epoch: Epoch,
    #[serde(default)]
    pub(super) title: Option<String>,
    #[serde(default)]
    pub(super) failed: Option<String>,
}

#[derive(Deserialize)]
struct Listing {
    conversations: Vec<ServedRow>,
    #[serde(default)]
    next: Option<String>,
}

/// Lists all conversations of the tenant.
pub(super) async fn rows(
    remote: &Remote,
    titles: bool,
    subagents: bool,
) -> Result<Vec<ServedRow>, Failure> {
    let mut rows = Vec::new();
    let mut after = String::new();
    loop {
        let query = format!("limit={PAGE}&titles={titles}&subagents={subagents}{after}");
        let page: Listing = remote.get("/v1/conversations", &query).await?;
        rows.extend(page.conversations);
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => return Ok(rows),
        }
    }
}

/// The state of a conversation, and its place in the journal.
#[derive(Deserialize)]
struct Standing {
    entries: Seq,
    epoch: Epoch,
    #[serde(flatten)]
    status: ConversationStatus,
}

#[derive(Deserialize)]
struct MessagesPage {
    messages: Vec<Placed>,
    #[serde(default)]
    next: Option<u64>,
}

#[derive(Deserialize)]
struct Placed {
    message: Message,
}

#[derive(Deserialize)]
struct RoundsPage {
    rounds: Vec<ConversationRound>,
    #[serde(default)]
    next: Option<u64>,
}

/// The figures of a conversation.
#[derive(Deserialize)]
pub(in crate::cli) struct ServedReport {
    pub(in crate::cli) total_duration_ms: u64,
    pub(in crate::cli) total_tokens: u64,
    pub(in crate::cli) metrics: ConversationMetrics,
    /// Averages by tool.
    pub(in crate::cli) tools: BTreeMap<String, Value>,
    tool_sums: Value,
    pub(in crate::cli) skills: BTreeSet<String>,
    /// The report for people.
    pub(in crate::cli) text: String,
}

/// Reads the figures of a conversation.
pub(in crate::cli) async fn report(
    remote: &Remote,
    id: &ConversationId,
) -> Result<ServedReport, Failure> {
    remote.get_of("/v1/conversations/{id}/report", id, "").await
}

/// Reads a conversation. Its pages are read again if it changed meanwhile, so that all parts show
/// one state.
///
/// # Errors
/// Those of the server, a conversation that cannot be read, or one that never rests.
pub(super) async fn read(remote: &Remote, id: &ConversationId) -> Result<Shown, Failure> {
    let mut before = standing(remote, id).await?;
    for _ in 0..ATTEMPTS {
        let messages = messages(remote, id).await?;
        let rounds = rounds(remote, id).await?;
        let report = report(remote, id).await?;
        let after = standing(remote, id).await?;
        if (before.entries, before.epoch) == (after.entries, after.epoch) {
            return Ok(shown(after, messages, rounds, report));
        }
        before = after;
    }
    Err(
        Failure::work(format!("session `{id}` changed while it was read"))
            .hint("try again when its round has ended"),
    )
}

async fn standing(remote: &Remote, id: &ConversationId) -> Result<Standing, Failure> {
    let standing: Standing = remote.get_of("/v1/conversations/{id}", id, "").await?;
    match &standing.status.failure {
        Some(reason) => Err(
            Failure::work(format!("session `{id}` cannot be read: {reason}"))
                .hint("on the server's machine, `callboard sessions repair` repairs it"),
        ),
        None => Ok(standing),
    }
}

const MESSAGES: &str = "/v1/conversations/{id}/messages";
const ROUNDS: &str = "/v1/conversations/{id}/rounds";

/// Reads all pages of a resource. `take` gets each page and returns the place of the next one.
async fn pages<P: DeserializeOwned>(
    remote: &Remote,
    route: &'static str,
    id: &ConversationId,
    mut take: impl FnMut(P) -> Option<u64>,
    form: &str,
) -> Result<(), Failure> {
    let mut after = None;
    loop {
        let place = after.map_or_else(String::new, |after| format!("&after={after}"));
        let query = format!("limit={PAGE}{form}{place}");
        let next = take(remote.get_of(route, id, &query).await?);
        if next.is_some() && next <= after {
            return Err(Failure::work(format!(
                "the server repeats a page of session `{id}`"
            )));
        }
        if next.is_none() {
            return Ok(());
        }
        after = next;
    }
}

/// Reads the messages of the context.
pub(in crate::cli) async fn messages(
    remote: &Remote,
    id: &ConversationId,
) -> Result<Vec<Message>, Failure> {
    let mut messages = Vec::new();
    let take = |page: MessagesPage| {
        messages.extend(page.messages.into_iter().map(|placed| placed.message));
        page.next
    };
    pages(remote, MESSAGES, id, take, "").await?;
    Ok(messages)
}

/// Reads all messages in their debug form, also those that a compaction dropped.
pub(super) async fn debug(remote: &Remote, id: &ConversationId) -> Result<Vec<Value>, Failure> {
    let mut messages = Vec::new();
    let take = |mut page: Value| {
        if let Some(Value::Array(placed)) = page.get_mut("messages").map(Value::take) {
            let taken = placed
                .into_iter()
                .map(|mut one| one.get_mut("message").map(Value::take).unwrap_or_default());
            messages.extend(taken);
        }
        next_of(&page)
    };
    pages(remote, MESSAGES, id, take, "&form=debug").await?;
    Ok(messages)
}

async fn rounds(remote: &Remote, id: &ConversationId) -> Result<Vec<ConversationRound>, Failure> {
    let mut rounds = Vec::new();
    let take = |page: RoundsPage| {
        rounds.extend(page.rounds);
        page.next
    };
    pages(remote, ROUNDS, id, take, "").await?;
    Ok(rounds)
}

/// Reads the rounds with active skills and how full the window is, all pages as one.
pub(super) async fn multi_round(remote: &Remote, id: &ConversationId) -> Result<Value, Failure> {
    let mut whole: Option<Value> = None;
    let take = |mut page: Value| {
        let next = next_of(&page);
        match &mut whole {
            None => {
                if let Some(fields) = page.as_object_mut() {
                    for field in ["next", "total", "should_compress"] {
                        fields.remove(field);
                    }
                }
                whole = Some(page);
            }
            Some(whole) => {
                let more = page.get_mut("rounds").map(Value::take);
                let all = whole.get_mut("rounds").and_then(Value::as_array_mut);
                if let (Some(all), Some(Value::Array(more))) = (all, more) {
                    all.extend(more);
                }
            }
        }
        next
    };
    pages(remote, ROUNDS, id, take, "").await?;
    Ok(whole.unwrap_or_default())
}

fn next_of(page: &Value) -> Option<u64> {
    page.get("next").and_then(Value::as_u64)
}

fn shown(
    standing: Standing,
    messages: Vec<Message>,
    rounds: Vec<ConversationRound>,
    report: ServedReport,
) -> Shown {
    let Standing {
        entries,
        epoch,
        status,
    } = standing;
    let open = match status.state {
        ConversationState::Parked => Open::Parked,
        ConversationState::Running => Open::Running,
        _ if status.round_id.is_some() => Open::Running,
        _ => Open::None,
    };
    let waiting: &[String] = match &status.waits_for {
        WaitsFor::Person { tool_call_ids, .. } => tool_call_ids,
        _ => &[],
    };
    let asked = messages
        .iter()
        .flat_map(Message::blocks)
        .filter_map(|block| match block {
            ContentBlock::ToolUse(call) if waiting.contains(&call.id) => Some(Asked {
                name: call.name.to_string(),
                input: call.input.as_str().to_owned(),
            }),
            _ => None,
        })
        .collect();
    Shown {
        id: status.conversation_id,
        open,
        entries,
        epoch,
        usage: UsageTotals::from_conversation(&report.metrics),
        waiting_prompts: status.prompts_waiting,
        messages,
        rounds,
        asked,
        metrics: report.metrics,
        tools: report.tool_sums,
        is_served: true,
    }
}
