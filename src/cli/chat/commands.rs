//! What the commands of a chat do that need nothing but the conversation.

use std::path::Path;

use callboard_actors::{chat::Role, ids::ConversationId, policy::usd};

use crate::cli::{
    failure::Failure,
    markdown::{Markdown, Style},
    metrics::report,
    rounds,
    session::{Session, fresh_id},
    terminal::{Paint, counted, err_line, err_shown, out, out_line, sanitize, size},
};

/// Characters shown of the last prompt when a chat goes on.
const SHOWN_CHARS: usize = 300;

/// Rows shown of the last answer.
const SHOWN_ROWS: usize = 8;

pub(super) async fn compact(session: &Session) -> Result<(), Failure> {
    match session.handle.compact().await? {
        Some(note) => out_line(&format!(
            "{} tokens became {} ({})",
            note.before_tokens, note.after_tokens, note.mode
        )),
        None => out_line("there is nothing to compact"),
    }
    Ok(())
}

pub(super) fn show_tools(session: &Session) {
    for spec in session.app.setup().tools.specs() {
        out_line(&format!(
            "{:<12} {}",
            spec.name(),
            callboard_actors::conversation::first_sentence(&spec.definition.description)
        ));
    }
}

pub(super) async fn show_history(session: &Session) -> Result<(), Failure> {
    let rounds = session.handle.rounds().await?;
    out(&rounds::describe(
        &rounds,
        &session.handle.messages().await?,
    ));
    Ok(())
}

/// Copies the conversation, as it is or as it was after a round. The current conversation continues
/// here.
pub(super) async fn fork(session: &Session, words: &[&str]) -> Result<(), Failure> {
    let (name, at) = match words {
        [] => (None, None),
        [name] => (Some(*name), None),
        [name, at] => (
            Some(*name),
            Some(rounds::pick(&session.handle.rounds().await?, at)?),
        ),
        _ => return Err(Failure::usage("too many arguments").hint("/fork [NAME] [ROUND]")),
    };
    let id = match name {
        Some(name) => ConversationId::new(name)?,
        None => fresh_id()?,
    };
    session.handle.fork(id.clone(), at).await?;
    out_line(&format!(
        "copied as {id}; continue it with `callboard chat --session {id}`"
    ));
    Ok(())
}

/// Undoes a round and all later ones.
pub(super) async fn rewind(session: &Session, words: &[&str]) -> Result<(), Failure> {
    let [to] = words else {
        return Err(
            Failure::usage("which round?").hint("/rewind ROUND; /history shows their numbers")
        );
    };
    let to = rounds::pick(&session.handle.rounds().await?, to)?;
    session.handle.rewind(to).await?;
    out_line(&format!(
        "{} left",
        counted(session.handle.messages().await?.len(), "message")
    ));
    Ok(())
}

pub(super) async fn show_metrics(session: &Session) -> Result<(), Failure> {
    report(&session.handle.state().await?, &session.id);
    Ok(())
}

pub(super) async fn show_tokens(session: &Session) -> Result<(), Failure> {
    let state = session.handle.state().await?;
    let spent = state.spent.amount;
    let pricing = session.app.setup().pricing.clone();
    let tokens = pricing
        .budget
        .tokens
        .map(|limit| format!(" of {limit}"))
        .unwrap_or_default();
    out_line(&format!("tokens {}{tokens}", spent.tokens));
    if pricing.price.is_some() {
        let limit = pricing
            .budget
            .micro_usd
            .map(|limit| format!(" of {}", usd(limit)))
            .unwrap_or_default();
        out_line(&format!("cost {}{limit}", usd(spent.micro_usd)));
    }
    Ok(())
}

/// Says how this conversation goes on later; nothing if nothing was said in it.
pub(super) async fn show_how_to_resume(session: &Session, db: Option<&Path>) {
    let state = session.handle.state().await;
    if state.is_ok_and(|state| !state.history.messages().is_empty()) {
        let db = db.map(|db| format!(" --db {}", sanitize(&db.display().to_string())));
        err_line(&Paint::stderr().dim(&format!(
            "resume with: callboard chat --session {}{}",
            session.id,
            db.unwrap_or_default()
        )));
    }
}

/// Shows the last prompt and its answer, so that a person sees where the conversation was left.
pub(super) fn show_last_exchange(session: &Session) {
    let messages = session.state.history.messages();
    let Some(prompt) = messages
        .iter()
        .rev()
        .find(|message| message.role() == Role::User && message.tool_result_ids().is_empty())
    else {
        return;
    };
    let paint = Paint::stderr();
    let shown = |text: &str| {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        sanitize(&line.chars().take(SHOWN_CHARS).collect::<String>())
    };
    err_line(&paint.dim(&format!("you: {}", shown(&prompt.text()))));
    let Some(answer) = session.last_answer() else {
        return;
    };
    let mut markdown = Markdown::new(size().0);
    let mut rows = markdown.push(&sanitize(&answer));
    rows.extend(markdown.finish());
    let left_out = rows.len().saturating_sub(SHOWN_ROWS);
    if left_out > 0 {
        err_line(&paint.dim("… /history shows all"));
    }
    for row in rows.iter_mut().skip(left_out) {
        for span in row.iter_mut() {
            span.style = span.style.with(Style::DIM);
        }
        err_shown(&(paint.spans(row) + "\n"));
    }
}
