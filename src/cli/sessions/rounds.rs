//! `callboard sessions fork` and `rewind`: copies a conversation, or undoes its last rounds.

use callboard_actors::ids::ConversationId;
use clap::Args;
use serde::Serialize;

use super::{Found, ServedArgs, quiet_host};
use crate::{
    app::App,
    cli::{
        failure::{Done, Failure},
        rounds::pick,
        run::SHUTDOWN,
        session::{fresh_id, unreadable},
        terminal::out_json,
    },
    config::Config,
};

/// Arguments of `sessions fork`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ForkArgs {
    #[command(flatten)]
    served: ServedArgs,
    /// Copy up to the end of this round: its number or id [default: the last finished one]
    #[arg(long, value_name = "ROUND")]
    at: Option<String>,
    /// Store the copy under this id [default: a new one]
    #[arg(long, value_name = "NEW")]
    session: Option<ConversationId>,
}

/// Arguments of `sessions rewind`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RewindArgs {
    #[command(flatten)]
    served: ServedArgs,
    /// The first round to undo: its number or id
    #[arg(long, value_name = "ROUND")]
    to: String,
}

/// What the conversation holds afterwards.
#[derive(Debug, Serialize)]
struct Left {
    conversation_id: ConversationId,
    messages: usize,
    rounds: usize,
}

/// Copies a conversation. The source may be in use meanwhile, in this process or another.
pub(super) async fn fork(config: &Config, args: &ForkArgs) -> Result<Done, Failure> {
    let found = Found::open(config, &args.served).await?;
    let id = match args.session.clone() {
        Some(id) => id,
        None => fresh_id()?,
    };
    let _lock = found.sessions.lock(&args.served.of.scope(&id))?;
    let app = quiet_host(config, &found.sessions).await?;
    let done = fork_in(&app, &found, args.at.as_deref(), &id).await;
    app.host.shutdown(SHUTDOWN).await;
    print(&done?)
}

async fn fork_in(
    app: &App,
    found: &Found,
    at: Option<&str>,
    id: &ConversationId,
) -> Result<Left, Failure> {
    let source = app
        .host
        .tenant(&found.scope.tenant)
        .conversation(found.id.clone());
    let at = match at {
        Some(text) => Some(pick(
            &source
                .rounds()
                .await
                .map_err(|error| unreadable(&found.id, error))?,
            text,
        )?),
        None => None,
    };
    let fork = source
        .fork(id.clone(), at)
        .await
        .map_err(|error| match error.code() {
            "conversation_exists" => Failure::work(format!("session `{id}` already exists"))
                .hint("choose another id with --session"),
            _ => unreadable(&found.id, error),
        })?;
    left(id, &fork).await
}

/// Undoes a round and all later ones.
pub(super) async fn rewind(config: &Config, args: &RewindArgs) -> Result<Done, Failure> {
    let found = Found::open(config, &args.served).await?;
    let _lock = found.sessions.lock(&found.scope)?;
    let app = quiet_host(config, &found.sessions).await?;
    let done = rewind_in(&app, &found, &args.to).await;
    app.host.shutdown(SHUTDOWN).await;
    print(&done?)
}

async fn rewind_in(app: &App, found: &Found, to: &str) -> Result<Left, Failure> {
    let handle = app
        .host
        .tenant(&found.scope.tenant)
        .conversation(found.id.clone());
    let state = handle
        .state()
        .await
        .map_err(|error| unreadable(&found.id, error))?;
    if !state.inbox.is_empty() {
        // Rewinding would activate it, and the activation would send the prompt to the offline
        // model.
        return Err(Failure::work(format!(
            "session `{}` has a prompt that is not answered yet",
            found.id
        ))
        .hint("`callboard run --session … --resume` answers it"));
    }
    let to = pick(&handle.rounds().await?, to)?;
    handle
        .rewind(to)
        .await
        .map_err(|error| match error.code() {
            "not_found" => Failure::work(
                "that round is no longer in the history: it was compacted",
            )
            .hint(format!(
                "`callboard sessions fork {} --at ROUND` copies the session as it was then",
                found.id
            )),
            _ => error.into(),
        })?;
    left(&found.id, &handle).await
}

async fn left(
    id: &ConversationId,
    handle: &callboard_actors::host::ConversationHandle,
) -> Result<Left, Failure> {
    let messages = handle.messages().await?.len();
    let rounds = handle.rounds().await?.len();
    Ok(Left {
        conversation_id: id.clone(),
        messages,
        rounds,
    })
}

fn print(left: &Left) -> Result<Done, Failure> {
    out_json(&serde_json::to_string(left).unwrap_or_default());
    Ok(Done::Well)
}
