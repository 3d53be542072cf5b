//! Fan-outs: many tasks at once, each in a subagent.

use std::time::Duration;

use axum::{Extension, Json, extract::State, http::StatusCode, response::Response};
use callboard_actors::{
    host::{FanOut, SendError, stored_fan_outs},
    ids::{ConversationId, TenantId},
};

use super::{Path, Query, messages::limit};
use crate::http::{
    answer_body::json_answer,
    answer_room::{AnswerRoom, ConnectionRoom},
    api::{
        DEADLINE_MS_MAX, FanOutPage, FanOutRequest, FanOutShown, FanOutStarted, FanOuts,
        StoredFanOutShown, StoredFanOutsPage, TaskShown,
    },
    auth::Caller,
    body::Messages,
    error::Problem,
    fan_outs::Kept,
    shared::App,
};

/// Most tasks of one request.
const TASKS_MAX: usize = 10_000;

/// Results on a page if the client sets no limit.
const PAGE: usize = 100;

/// Bytes of the texts on a page; a larger result is alone on its page.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Stored tasks on a page; a fan-out with more is alone on its page.
const STORED_TASKS: usize = 2000;

/// Longest wait for a result.
const WAIT_MS_MAX: u64 = 60_000;

/// Starts a fan-out.
///
/// One subagent for each task, many at once. The same name and tasks attach to an earlier fan-out,
/// also after a restart: what has ended answers from its journal, and with `retry_failed` what
/// failed is run again.
#[utoipa::path(
    post, path = "/v1/fanouts", tag = "fan-outs", request_body = FanOutRequest,
    responses((status = 202, description = "It runs", body = FanOutStarted)),
)]
pub(in crate::http) async fn start(
    State(app): State<App>,
    Caller(tenant): Caller,
    Messages(request, _room): Messages<FanOutRequest>,
) -> Result<(StatusCode, Json<FanOutStarted>), Problem> {
    let count = request.tasks.len();
    if !(1..=TASKS_MAX).contains(&count) {
        let detail = format!("must have 1 to {TASKS_MAX} tasks");
        return Err(Problem::invalid("/tasks", detail));
    }
    let task_bytes = request.tasks.iter().map(String::len).sum();
    let mut fan_out = FanOut::over(request.tasks);
    if let Some(name) = &request.name {
        fan_out = fan_out.name(name);
    }
    if let Some(model) = &request.model {
        if !app.host.tenant(&tenant).may_choose(model)? {
            let detail = "is not a model that this tenant may choose; leave it out for its own";
            return Err(Problem::invalid("/model", detail));
        }
        fan_out = fan_out.model(model);
    }
    if let Some(parallel) = request.parallel {
        fan_out = fan_out.parallel(parallel);
    }
    if let Some(ms) = request.deadline_ms {
        if !(1..=DEADLINE_MS_MAX).contains(&ms) {
            let detail = format!("must be 1 to {DEADLINE_MS_MAX}");
            return Err(Problem::invalid("/deadline_ms", detail));
        }
        fan_out = fan_out.deadline(Duration::from_millis(ms));
    }
    if request.retry_failed {
        fan_out = fan_out.retry_failed();
    }
    if let Some(name) = request.name
        && app
            .fan_outs
            .get(&tenant, &name)
            .is_ok_and(|kept| !kept.is_over())
    {
        return Err(SendError::FanOutRuns { name }.into());
    }
    let place = app.fan_outs.reserve(&tenant, count, task_bytes)?;
    let handle = app.host.tenant(&tenant);
    handle.admit_change()?;
    let run = handle.fan_out(fan_out).await?;
    let kept = place.keep(run);
    let started = FanOutStarted {
        name: kept.name.clone(),
        tasks: count,
        results: format!("/v1/fanouts/{}", kept.name),
    };
    Ok((StatusCode::ACCEPTED, Json(started)))
}

/// Lists the fan-outs that this host runs or has run since its start.
///
/// With `stored`, also a page of those whose conversations are stored, with their cost. It reads these
/// conversations.
#[utoipa::path(
    get, path = "/v1/fanouts", tag = "fan-outs", params(StoredFanOutsPage),
    responses((status = 200, description = "The newest 32, oldest first", body = FanOuts)),
)]
pub(in crate::http) async fn list(
    State(app): State<App>,
    Caller(tenant): Caller,
    Query(page): Query<StoredFanOutsPage>,
) -> Result<Json<FanOuts>, Problem> {
    let fan_outs = kept(&app, &tenant);
    if !page.stored {
        return Ok(Json(FanOuts {
            fan_outs,
            stored: None,
            next: None,
        }));
    }
    let after = page
        .after
        .map(|id| ConversationId::new(id).map_err(|error| Problem::bad_parameter("after", error)))
        .transpose()?;
    let sessions = &app.host.ports().sessions;
    let (stored, next) = stored_fan_outs(&**sessions, &tenant, after, STORED_TASKS).await?;
    Ok(Json(FanOuts {
        fan_outs,
        stored: Some(stored.into_iter().map(StoredFanOutShown::from).collect()),
        next: next.map(|id| id.to_string()),
    }))
}

/// Reads the results of a fan-out.
///
/// In the order of the tasks, in pages, without tasks that have not ended. With `wait_ms`, waits for
/// the next result first: call it with the `ended` of the last answer until `is_over`.
#[utoipa::path(
    get, path = "/v1/fanouts/{name}", tag = "fan-outs",
    params(("name" = String, Path, description = "Name of the fan-out"), FanOutPage),
    responses((status = 200, description = "Counts, and a page of results", body = FanOutShown)),
)]
pub(in crate::http) async fn get(
    State(app): State<App>,
    Caller(tenant): Caller,
    Extension(connection): Extension<ConnectionRoom>,
    Path(name): Path<String>,
    Query(page): Query<FanOutPage>,
) -> Result<Response, Problem> {
    let (shown, room) = read(&app, &tenant, &connection, &name, page).await?;
    json_answer(&app, &tenant, shown, room).await
}

/// Reads a page of the results of a fan-out, with the room that it takes until it is sent.
///
/// # Errors
/// 404 for an unknown fan-out; 429 without room.
pub(in crate::http) async fn read(
    app: &App,
    tenant: &TenantId,
    connection: &ConnectionRoom,
    name: &str,
    page: FanOutPage,
) -> Result<(FanOutShown, AnswerRoom), Problem> {
    let kept = app.fan_outs.get(tenant, name)?;
    let limit = limit(page.limit, PAGE)?;
    if let Some(ms) = page.wait_ms.filter(|ms| *ms > 0) {
        let seen = page.ended.unwrap_or_default();
        let mut changes = kept.watch();
        let within = Duration::from_millis(ms.min(WAIT_MS_MAX));
        if !kept.is_over() {
            tokio::select! {
                _ = tokio::time::timeout(within, changes.wait_for(|count| *count > seen)) => {}
                () = app.draining.cancelled() => {}
            }
        }
    }
    let room = app.answers.take(tenant, connection, PAGE_BYTES_MAX).await?;
    Ok((shown(&kept, Some((page.after, limit))), room))
}

/// Cancels a fan-out.
///
/// Running tasks are interrupted, waiting ones never begin. Starting it again goes on with what is
/// left.
#[utoipa::path(
    post, path = "/v1/fanouts/{name}/cancel", tag = "fan-outs",
    params(("name" = String, Path, description = "Name of the fan-out")),
    responses((status = 202, description = "It ends")),
)]
pub(in crate::http) async fn cancel(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    app.fan_outs.get(&tenant, &name)?.cancel.cancel();
    Ok(StatusCode::ACCEPTED)
}

/// Erases the conversations of a fan-out that has ended.
#[utoipa::path(
    delete, path = "/v1/fanouts/{name}", tag = "fan-outs",
    params(("name" = String, Path, description = "Name of the fan-out")),
    responses((status = 204, description = "It is erased")),
)]
pub(in crate::http) async fn delete(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    let is_kept = app.fan_outs.get(&tenant, &name).is_ok();
    let erased = app.host.tenant(&tenant).delete_fan_out(&name).await?;
    app.fan_outs.forget(&tenant, &name);
    match erased {
        0 if !is_kept => Err(Problem::not_found("fan-out")),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// The fan-outs that this host runs or has run, oldest first, without results.
pub(in crate::http) fn kept(app: &App, tenant: &TenantId) -> Vec<FanOutShown> {
    let kept = app.fan_outs.of(tenant);
    kept.iter().map(|kept| shown(kept, None)).collect()
}

/// What a client reads of a fan-out; with `page`, also its results after an index.
fn shown(kept: &Kept, page: Option<(Option<usize>, usize)>) -> FanOutShown {
    let results = kept.results.lock();
    let ended = || results.ends.iter().flatten();
    let done = ended().filter(|end| end.ok).count();
    let mut next = None;
    let tasks = page.map(|(after, limit)| {
        let start = after.map_or(0, |after| after.saturating_add(1));
        let mut bytes = 0;
        let mut tasks = Vec::new();
        for end in ended().filter(|end| end.index >= start) {
            let length = end.text.len();
            if tasks.len() == limit || (bytes > 0 && bytes + length > PAGE_BYTES_MAX) {
                next = tasks.last().map(|task: &TaskShown| task.index);
                break;
            }
            bytes += length + 1;
            tasks.push(TaskShown::clone(end));
        }
        tasks
    });
    FanOutShown {
        name: kept.name.clone(),
        tasks: results.ends.len(),
        ended: results.count,
        done,
        failed: results.count - done,
        is_over: results.count == results.ends.len(),
        results: tasks,
        next,
    }
}
