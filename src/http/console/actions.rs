//! What the forms of a conversation do. Each calls the handler of the API's route, so both have the
//! same checks, quotas and answers.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use callboard_actors::{ids::RoundId, ports::Entropy as _};

use super::{answer::see_other, form::Form, page::Failure, session::caller_key};
use crate::{
    clock::SystemEntropy,
    http::{
        api::{Approval, CompactQuery, Content, Fork, Inject, MessageRequest, Rewind, WhenBusy},
        auth::Caller,
        body,
        error::Problem,
        routes::{Path, Query, control, conversations, messages, rounds},
        shared::App,
    },
};

type Id = Result<Path<String>, Problem>;

/// The page of a conversation, after a form.
fn back(id: &str) -> Response {
    see_other(&format!("/console/c/{id}#end"))
}

/// An id for a conversation without a name.
fn made_id(prefix: &str) -> String {
    let bytes = SystemEntropy.bytes();
    let start = bytes.iter().take(5);
    start.fold(format!("{prefix}-"), |id, byte| format!("{id}{byte:02x}"))
}

/// Sends a prompt to a conversation.
async fn sent(app: &App, form: &Form, id: &str, on_busy: WhenBusy) -> Result<(), Failure> {
    let Some(key) = caller_key(&form.session, app) else {
        return Err(Problem::not_found("page").into());
    };
    // The answer to the form does not wait for that of the model.
    let headers = HeaderMap::from_iter([(
        axum::http::HeaderName::from_static("prefer"),
        HeaderValue::from_static("respond-async"),
    )]);
    let request = MessageRequest {
        content: Content::Text(form.fields.get("content").into_owned()),
        on_busy,
        stream: false,
        deadline_ms: None,
        wait_ms: None,
        max_tokens: None,
        effort: None,
        thinking: None,
        temperature: None,
        stop: None,
        tools: Vec::new(),
        tool_choice: None,
    };
    let tenant = form.tenant()?;
    let room = app.body_room(&tenant);
    let id = Path(id.to_owned());
    messages::send(
        State(app.clone()),
        Caller(tenant),
        key.into(),
        None,
        id,
        headers,
        body::Messages(request, room),
    )
    .await?;
    Ok(())
}

/// Begins a conversation.
pub(super) async fn new(State(app): State<App>, form: Form) -> Result<Response, Failure> {
    let id = form.fields.filled("id").unwrap_or_else(|| made_id("chat"));
    sent(&app, &form, &id, WhenBusy::Queue).await?;
    Ok(back(&id))
}

/// Sends what was written into the box.
pub(super) async fn send(
    State(app): State<App>,
    path: Id,
    form: Form,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let busy = form.fields.get("busy");
    let on_busy = match &*busy {
        "steer" => WhenBusy::Steer,
        "interrupt" => WhenBusy::Interrupt,
        "inject" => {
            let tenant = form.tenant()?;
            let text = form.fields.get("content").into_owned();
            let inject = body::Messages(Inject { id: None, text }, app.body_room(&tenant));
            control::inject(State(app), Caller(tenant), Path(id.clone()), inject).await?;
            return Ok(back(&id));
        }
        _ => WhenBusy::Queue,
    };
    // A form of a page goes to a conversation that is there.
    app.known(&form.tenant()?, &id).await?;
    sent(&app, &form, &id, on_busy).await?;
    Ok(back(&id))
}

/// Ends the open round.
pub(super) async fn interrupt(
    State(app): State<App>,
    path: Id,
    form: Form,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let caller = Caller(form.tenant()?);
    control::interrupt(State(app), caller, Path(id.clone())).await?;
    Ok(back(&id))
}

/// Answers an approval.
pub(super) async fn approve(
    State(app): State<App>,
    path: Id,
    form: Form,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let answer = match &*form.fields.get("allow") {
        "once" => (true, false),
        "always" => (true, true),
        "no" => (false, false),
        _ => return Err(Problem::invalid("/allow", "must be `once`, `always` or `no`").into()),
    };
    let (allow, always) = answer;
    let caller = Caller(form.tenant()?);
    let call = form.fields.get("call").into_owned();
    let answer = body::Json(Approval {
        allow,
        always,
        input: None,
        reason: None,
        round_id: round(&form)?,
    });
    control::approve(State(app), caller, Path((id.clone(), call)), answer).await?;
    Ok(back(&id))
}

fn round(form: &Form) -> Result<Option<RoundId>, Problem> {
    let round = form.fields.filled("round");
    round
        .map(|round| {
            let wrong = |_| Problem::invalid("/round", "must be the id of a round");
            round.parse().map_err(wrong)
        })
        .transpose()
}

/// Takes rounds back, and offers the text of the first of them to write again.
pub(super) async fn rewind(
    State(app): State<App>,
    path: Id,
    form: Form,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let to = round(&form)?.ok_or_else(|| Problem::invalid("/round", "is missing"))?;
    let caller = Caller(form.tenant()?);
    let rewind = body::Json(Rewind { to });
    let _ = rounds::rewind(State(app), caller, Path(id.clone()), rewind).await?;
    let seq: u64 = form.fields.get("seq").parse().unwrap_or_default();
    Ok(see_other(&format!("/console/c/{id}?draft={seq}#end")))
}

/// Copies the conversation, up to a round or to its end.
pub(super) async fn fork(
    State(app): State<App>,
    path: Id,
    form: Form,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let caller = Caller(form.tenant()?);
    let copy = form
        .fields
        .filled("copy")
        .unwrap_or_else(|| made_id("copy"));
    let fork = body::Json(Fork {
        conversation_id: copy.clone(),
        at: round(&form)?,
    });
    control::fork(State(app), caller, Path(id), fork).await?;
    Ok(back(&copy))
}

/// Compacts the context.
pub(super) async fn compact(
    State(app): State<App>,
    path: Id,
    form: Form,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let caller = Caller(form.tenant()?);
    let query = Query(CompactQuery::default());
    let Json(done) = control::compact(State(app), caller, Path(id.clone()), query).await?;
    Ok(match done.compacted {
        true => back(&id),
        false => see_other(&format!("/console/c/{id}?kept=1#end")),
    })
}

/// Empties the conversation.
pub(super) async fn reset(
    State(app): State<App>,
    path: Id,
    form: Form,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let caller = Caller(form.tenant()?);
    conversations::reset(State(app), caller, Path(id.clone())).await?;
    Ok(back(&id))
}

/// Deletes the conversation.
pub(super) async fn delete(
    State(app): State<App>,
    path: Id,
    form: Form,
) -> Result<Response, Failure> {
    let Path(id) = path?;
    let caller = Caller(form.tenant()?);
    conversations::delete(State(app), caller, Path(id)).await?;
    Ok(see_other("/console"))
}
