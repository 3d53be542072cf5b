//! Stored responses: reading one, also as a stream that continues, cancelling and deleting it.
//!
//! Nothing is kept for a response beside its conversation. Its id names the conversation, the round
//! and the entry behind which it begins, and the rest is read from the journal.

use axum::{Extension, Json, extract::State, http::StatusCode, response::Response};
use callboard_actors::{
    host::ConversationHandle,
    ids::{Scope, Seq, TenantId},
};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use super::{
    STORED, failed_as,
    journal::{self, Brought},
    stream::Events,
    whole,
    wire::{ItemList, ResponseShown},
};
use crate::http::{
    answer_body::{built, json_answer, whole_answer},
    answer_room::ConnectionRoom,
    api::EventFrame,
    auth::{Caller, CallerKey},
    body::{WORKED_IN_PLACE_MAX, worked},
    compat::{Call, Ended, Place, respond},
    error::Problem,
    routes::{Path, Query, events::has_round},
    shared::App,
};

/// Items on a page if the client sets no limit.
const PAGE: usize = 20;

/// Largest page, in items.
const PAGE_MAX: usize = 100;

/// Room that is reserved before a response or its items are read, so that few are read at a time; a
/// larger answer waits for more.
const READ_BYTES: usize = 4 * 1024 * 1024;

/// How a stored response is read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ReadQuery {
    /// Whether to answer with the events of the response; `false` if absent.
    #[serde(default)]
    stream: bool,
    /// The `sequence_number` of the last event that the client has. The stream continues behind it.
    starting_after: Option<u64>,
}

/// Which items are listed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct ItemsQuery {
    /// The id of the item behind which the page begins.
    after: Option<String>,
    /// Items on the page, 1 to 100; 20 if absent.
    limit: Option<usize>,
    /// `asc`, or `desc` for the last item first; `desc` if absent.
    order: Option<String>,
}

/// The id of a stored response.
pub(super) fn id(digits: &str, place: Place) -> String {
    format!("resp_{digits}_{}_{}", place.round, place.begins_at.0)
}

/// The conversation of a stored response, and its place there. Each place has one id: another
/// spelling of its numbers is no id.
pub(super) fn parsed(whole: &str) -> Option<(String, Place)> {
    let mut parts = whole.strip_prefix("resp_")?.split('_');
    let (digits, round, begins_at) = (parts.next()?, parts.next()?, parts.next()?);
    let place = Place {
        round: round.parse().ok()?,
        begins_at: Seq(begins_at.parse().ok()?),
    };
    (id(digits, place) == whole).then(|| (format!("{STORED}{digits}"), place))
}

/// The conversation of a stored response.
pub(in crate::http) fn conversation_of(id: &str) -> Option<String> {
    parsed(id).map(|(conversation, _)| conversation)
}

/// A response that is stored.
struct Stored {
    id: String,
    model: String,
    scope: Scope,
    conversation: ConversationHandle,
    place: Place,
}

impl Stored {
    /// # Errors
    /// 404, with the same text for an unknown response and for another tenant's.
    async fn find(app: &App, tenant: &TenantId, id: String) -> Result<Self, Problem> {
        let missing = || Problem::not_found("response");
        let (name, place) = parsed(&id).ok_or_else(missing)?;
        let known = app.known(tenant, &name).await;
        let (scope, conversation) = known.map_err(|problem| match problem.status {
            404 | 422 => missing(),
            _ => problem,
        })?;
        if !has_round(app, &scope, &conversation, place.round).await? {
            return Err(missing());
        }
        Ok(Self {
            id,
            model: app.host.setup_of(tenant).model.to_string(),
            scope,
            conversation,
            place,
        })
    }

    async fn brought(&self) -> Result<Brought, Problem> {
        let found = journal::brought(&self.conversation, self.place).await?;
        found.ok_or_else(|| Problem::not_found("response"))
    }

    /// The response before its end, as far as its request is stored.
    async fn begun(&self, app: &App) -> Result<ResponseShown, Problem> {
        let brought = self.brought().await?;
        let place = (&app.views, Some(self.scope.tenant.clone()));
        let is_large = brought.bytes() > WORKED_IN_PLACE_MAX;
        let (id, model) = (self.id.clone(), self.model.clone());
        worked(place, is_large, move || brought.response(id, model)).await
    }

    /// How it ended, if it is over.
    async fn end(
        &self,
        app: &App,
        response: &mut ResponseShown,
    ) -> Result<Option<Result<Ended, Problem>>, Problem> {
        let end = self.call(app)?.end_now().await;
        if let Some(Ok(ended)) = &end {
            let before = Seq(ended.seq.0.saturating_sub(1));
            let entries = self.conversation.entries(before, 1).await?;
            response.ended_at = entries.first().map(|entry| entry.at.0 / 1000);
        }
        Ok(end)
    }

    /// The response as it is now, and its bytes.
    async fn now(&self, app: &App) -> Result<(ResponseShown, usize), Problem> {
        let mut response = self.begun(app).await?;
        let end = self.end(app, &mut response).await?;
        let ended = end.as_ref().and_then(|end| end.as_ref().ok());
        let bytes = response.bytes() + ended.map_or(0, Ended::bytes);
        Ok((at(response, end), bytes))
    }

    /// Answers with the response as it is now.
    async fn answer(&self, app: &App, connection: &ConnectionRoom) -> Result<Response, Problem> {
        let tenant = &self.scope.tenant;
        // Reserved before the response is read, and held until it is sent.
        let mut room = app.answers.take(tenant, connection, READ_BYTES).await?;
        let (mut response, bytes) = self.now(app).await?;
        if bytes > READ_BYTES {
            // A request that waits for more room holds no answer meanwhile.
            drop(response);
            room.resize(bytes).await?;
            (response, _) = self.now(app).await?;
        }
        json_answer(app, tenant, response, room).await
    }

    /// Interrupts it if it is in progress, and waits for its end.
    async fn stop(&self, app: &App, connection: &ConnectionRoom) -> Result<(), Problem> {
        let mut call = self.call(app)?;
        let answers = &app.answers;
        let room = answers.take(&self.scope.tenant, connection, READ_BYTES);
        let room = room.await?;
        let is_over = call.end_now().await.is_some();
        drop(room);
        if !is_over {
            let state = self.conversation.state().await?;
            match state.round {
                Some(open) if open.id == self.place.round => self.conversation.interrupt().await?,
                // It ended in between.
                None => {}
                Some(_) => {
                    let detail =
                        "another response of this conversation is running; cancel that one first";
                    return Err(Problem::new(
                        StatusCode::CONFLICT,
                        "conversation_busy",
                        detail,
                    ));
                }
            }
            if let Err(problem) = call.end(app).await
                && problem.code == Problem::draining().code
            {
                return Err(problem);
            }
        }
        Ok(())
    }

    fn call(&self, app: &App) -> Result<Call, Problem> {
        Call::again(app, &self.scope, self.place, None)
    }
}

/// The response with what became of it; without an end, it is in progress.
fn at(mut response: ResponseShown, end: Option<Result<Ended, Problem>>) -> ResponseShown {
    match end {
        None => response,
        Some(Ok(ended)) => whole(response, &ended),
        Some(Err(problem)) => {
            failed_as(&mut response, problem);
            response
        }
    }
}

/// Reads a stored response.
///
/// With `stream=true` its events, from the beginning or behind `starting_after`: those that are over,
/// and those to come. A client that disconnects cancels nothing. What the request brought is read
/// from the journal, which has neither `metadata` nor `previous_response_id`.
#[utoipa::path(
    get, path = "/openai/v1/responses/{response_id}", tag = "openai",
    params(("response_id" = String, Path, description = "The id of a stored response"), ReadQuery),
    responses((status = 200, description = "The response; with `stream`, its events", content((ResponseShown = "application/json"), (EventFrame = "text/event-stream")))),
)]
pub(in crate::http) async fn get(
    State(app): State<App>,
    Caller(tenant): Caller,
    key: CallerKey,
    Extension(connection): Extension<ConnectionRoom>,
    Path(id): Path<String>,
    Query(query): Query<ReadQuery>,
) -> Result<Response, Problem> {
    let stored = Stored::find(&app, &tenant, id).await?;
    if query.stream {
        let watching = app.watch(&tenant)?;
        let mut response = stored.begun(&app).await?;
        stored.end(&app, &mut response).await?;
        let call = Call::again(&app, &stored.scope, stored.place, Some(watching))?;
        let events = Events::new(response).after(query.starting_after);
        return Ok(respond(&app, call, key, events));
    }
    stored.answer(&app, &connection).await
}

/// Cancels a response that is in progress.
///
/// Answers with the response when it has ended: its status is then `cancelled`. One that had ended
/// is answered as it is. 409 while another response of the same conversation is before it.
#[utoipa::path(
    post, path = "/openai/v1/responses/{response_id}/cancel", tag = "openai",
    params(("response_id" = String, Path, description = "The id of a stored response")),
    responses((status = 200, description = "The response", body = ResponseShown)),
)]
pub(in crate::http) async fn cancel(
    State(app): State<App>,
    Caller(tenant): Caller,
    Extension(connection): Extension<ConnectionRoom>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let stored = Stored::find(&app, &tenant, id).await?;
    stored.stop(&app, &connection).await?;
    stored.answer(&app, &connection).await
}

/// Lists what the request of a response brought: its messages, or the outputs of the client's tools.
#[utoipa::path(
    get, path = "/openai/v1/responses/{response_id}/input_items", tag = "openai",
    params(("response_id" = String, Path, description = "The id of a stored response"), ItemsQuery),
    responses((status = 200, description = "A page of the items", body = ItemList)),
)]
pub(in crate::http) async fn input_items(
    State(app): State<App>,
    Caller(tenant): Caller,
    Extension(connection): Extension<ConnectionRoom>,
    Path(id): Path<String>,
    Query(query): Query<ItemsQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        let detail = format!("must be 1 to {PAGE_MAX}");
        return Err(Problem::bad_parameter("limit", detail));
    }
    let is_ascending = match query.order.as_deref() {
        Some("asc") => true,
        None | Some("desc") => false,
        Some(_) => return Err(Problem::bad_parameter("order", "must be `asc` or `desc`")),
    };
    let stored = Stored::find(&app, &tenant, id).await?;
    // Reserved before the items are read, so that waiting requests hold nothing.
    let mut room = app.answers.take(&tenant, &connection, READ_BYTES).await?;
    let mut brought = stored.brought().await?;
    let (bytes, round) = (brought.bytes(), stored.place.round);
    if bytes > READ_BYTES {
        drop(brought);
        room.resize(bytes).await?;
        brought = stored.brought().await?;
    }
    let page = move || {
        let page = page_of(brought.into_items(round), is_ascending, query.after, limit);
        // Serializing plain types to memory cannot fail.
        page.map(|page| serde_json::to_vec(&page).unwrap_or_default())
    };
    let (page, room) = built(&app, &tenant, bytes, room, page).await?;
    let pause_max = app.config.bounds.write_pause_max;
    whole_answer("application/json", page?, room, pause_max).await
}

/// The page of the items behind `after`.
fn page_of(
    mut items: Vec<Value>,
    is_ascending: bool,
    after: Option<String>,
    limit: usize,
) -> Result<ItemList, Problem> {
    if !is_ascending {
        items.reverse();
    }
    if let Some(after) = after {
        let is_it = |item: &Value| item["id"] == *after;
        let at = items.iter().position(is_it);
        let at = at.ok_or_else(|| Problem::bad_parameter("after", "there is no such item"))?;
        items.drain(..=at);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Value>| item.and_then(|item| item["id"].as_str()).map(str::to_owned);
    Ok(ItemList {
        object: "list",
        first_id: id_of(items.first()),
        last_id: id_of(items.last()),
        has_more,
        data: items,
    })
}

/// Deletes a stored response, with all responses of its conversation.
#[utoipa::path(
    delete, path = "/openai/v1/responses/{response_id}", tag = "openai",
    params(("response_id" = String, Path, description = "The id of a stored response")),
    responses((status = 200, description = "It is deleted")),
)]
pub(in crate::http) async fn delete(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let stored = Stored::find(&app, &tenant, id).await?;
    stored.conversation.delete().await?;
    Ok(Json(
        json!({ "id": stored.id, "object": "response", "deleted": true }),
    ))
}
