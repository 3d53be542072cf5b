//! Rounds of a conversation: reading them, taking them back, and the figures of all of them.

use axum::{Extension, Json, extract::State, response::Response};
use callboard_actors::journal::MultiRoundConversation;

use super::{Path, Query, messages::limit};
use crate::http::{
    answer_body::whole_answer,
    answer_room::ConnectionRoom,
    api::{Report, Rewind, Rewound, Rounds, RoundsPage},
    auth::Caller,
    body,
    error::Problem,
    shared::App,
};

/// Rounds on a page if the client sets no limit.
const PAGE: usize = 100;

/// Bytes that a page of rounds may hold while its client reads it.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Reads the rounds.
///
/// Oldest first, in pages: prompt, thoughts, tool calls with their figures, answer, tokens and
/// status of each. Does not activate the conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{id}/rounds", tag = "conversations",
    params(("id" = String, Path, description = "The conversation"), RoundsPage),
    responses((status = 200, description = "A page of the rounds", body = Rounds)),
)]
pub(in crate::http) async fn list(
    State(app): State<App>,
    Caller(tenant): Caller,
    Extension(connection): Extension<ConnectionRoom>,
    Path(id): Path<String>,
    Query(page): Query<RoundsPage>,
) -> Result<Response, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    let limit = limit(page.limit, PAGE)?;
    // Held from before the journal is read until the answer is sent.
    let room = app
        .answers
        .take(&tenant, &connection, PAGE_BYTES_MAX)
        .await?;
    let page = move |all| {
        let page = page_of(all, page.after, limit);
        // Serializing plain types to memory cannot fail.
        (serde_json::to_vec(&page).unwrap_or_default(), room)
    };
    let (page, room) = conversation.multi_round(page).await?;
    let pause_max = app.config.bounds.write_pause_max;
    whole_answer("application/json", page, room, pause_max).await
}

/// The page of the rounds behind `after`.
fn page_of(mut all: MultiRoundConversation, after: Option<usize>, limit: usize) -> Rounds {
    let should_compress = all.should_compress_context();
    let total = all.rounds.len();
    let start = after.map_or(0, |after| after.saturating_add(1));
    let mut bytes = 0;
    all.rounds = all
        .rounds
        .into_iter()
        .skip(start)
        .take(limit)
        .take_while(|round| {
            let is_first = bytes == 0;
            bytes += round
                .tool_observations
                .iter()
                .map(String::len)
                .sum::<usize>()
                + round.user_message.len()
                + round.final_answer.as_ref().map_or(0, String::len)
                + 1;
            is_first || bytes <= PAGE_BYTES_MAX
        })
        .collect();
    let next = (start + all.rounds.len())
        .checked_sub(1)
        .filter(|last| !all.rounds.is_empty() && last + 1 < total);
    Rounds {
        conversation: all,
        should_compress,
        total,
        next,
    }
}

/// Takes back a round and all later ones.
///
/// Their messages leave the history; the journal keeps them, and what they spent stays spent. Only
/// while no round is open. `fork` at a round that was taken back restores it in a copy.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/rewind", tag = "control", request_body = Rewind,
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 200, description = "What is left", body = Rewound)),
)]
pub(in crate::http) async fn rewind(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    body::Json(rewind): body::Json<Rewind>,
) -> Result<Json<Rewound>, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    app.host.tenant(&tenant).admit_change()?;
    conversation.rewind(rewind.to).await?;
    let left = |all: MultiRoundConversation| Rewound {
        messages: all.messages.len(),
        rounds: all.rounds.len(),
    };
    Ok(Json(conversation.multi_round(left).await?))
}

/// Reports tokens, tool calls, skills and compactions of a conversation.
///
/// As numbers and as a text for people. Does not activate the conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{id}/report", tag = "conversations",
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 200, description = "The figures", body = Report)),
)]
pub(in crate::http) async fn report(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Report>, Problem> {
    let (scope, conversation) = app.known(&tenant, &id).await?;
    let state = conversation.state().await?;
    let text = state.report(&scope.conversation);
    let tools = state.tool_stats();
    let tools = tools
        .into_iter()
        .map(|(name, stats)| (name.to_owned(), stats));
    Ok(Json(Report {
        conversation_id: scope.conversation,
        total_duration_ms: state.metrics.total_duration_ms(),
        total_tokens: state.metrics.total_tokens(),
        tools: tools.collect(),
        tool_sums: serde_json::to_value(&state.tools).unwrap_or_default(),
        skills: state.skills.used.clone(),
        metrics: state.metrics.clone(),
        text,
    }))
}
