//! `callboard sessions reset` and `delete`. Both also delete the conversation's artifacts.

use callboard_actors::{
    ids::{FAN_OUT_PREFIX, Scope},
    ports::{ListQuery, SessionBackend, StoreError},
};

use super::{Found, ServedArgs, quiet_host};
use crate::{
    app::{Opening, release_artifacts},
    cli::{
        failure::{Done, Failure},
        run::SHUTDOWN,
        session::{not_found_in, unreadable},
        terminal::err_line,
    },
    config::Config,
};

/// Empties a conversation.
pub(super) async fn reset(config: &Config, args: &ServedArgs) -> Result<Done, Failure> {
    let found = Found::open(config, args).await?;
    let _lock = found.sessions.lock(&found.scope)?;
    let app = quiet_host(config, &found.sessions).await?;
    let handle = app
        .host
        .tenant(&found.scope.tenant)
        .conversation(found.id.clone());
    let state = handle
        .state()
        .await
        .map_err(|error| unreadable(&found.id, error))?;
    if !state.inbox.is_empty() {
        // Resetting would activate it, and the activation would send the prompt to the offline
        // model.
        return Err(Failure::work(format!("session `{}` has a prompt that is not answered yet", found.id))
            .hint("`callboard run --session … --resume` answers it, `callboard sessions delete` erases the session"));
    }
    let done = handle.reset().await;
    if done.is_ok() {
        release(config, &found).await;
    }
    app.host.shutdown(SHUTDOWN).await;
    done?;
    err_line(&format!("session {} is now empty", found.id));
    Ok(Done::Well)
}

/// Erases a conversation and its subagents.
pub(super) async fn delete(config: &Config, args: &ServedArgs) -> Result<Done, Failure> {
    let found = match args.one.id.as_str().starts_with(FAN_OUT_PREFIX) {
        // A fan-out's name has no journal; only its subagents have.
        true => Found {
            sessions: args.one.store.open(config, Opening::Existing).await?,
            id: args.one.id.clone(),
            scope: args.of.scope(&args.one.id),
        },
        false => Found::open(config, args).await?,
    };
    let _lock = found.sessions.lock(&found.scope)?;
    let backend = found.sessions.backend();
    // Subagents first: if deleting one fails, the parent still exists, and a retry finds the
    // others.
    let children = children(&*backend, &found.scope).await?;
    for child in &children {
        backend.delete(child).await?;
    }
    if !backend.delete(&found.scope).await? && children.is_empty() {
        return Err(not_found_in(&found.sessions, &found.scope).await);
    }
    release(config, &found).await;
    backend.close(SHUTDOWN).await?;
    err_line(&format!("session {} is erased", found.id));
    Ok(Done::Well)
}

/// The subagents that a conversation started.
async fn children(backend: &dyn SessionBackend, parent: &Scope) -> Result<Vec<Scope>, StoreError> {
    let prefix = parent.conversation.children();
    let mut children = Vec::<Scope>::new();
    loop {
        let after = children
            .last()
            .map_or_else(|| prefix.clone(), |child| child.conversation.clone());
        let page = backend
            .list(
                &parent.tenant,
                ListQuery {
                    after: Some(after),
                    subagents: true,
                    ..ListQuery::default()
                },
            )
            .await?;
        let before = children.len();
        let ours = page
            .into_iter()
            .map(|row| row.conversation)
            .take_while(|id| id.as_str().starts_with(prefix.as_str()));
        children.extend(ours.map(|id| Scope::new(parent.tenant.clone(), id)));
        if children.len() == before {
            return Ok(children);
        }
    }
}

/// Deletes the artifacts. An error is only reported: the command itself succeeded, and artifacts
/// expire.
async fn release(config: &Config, found: &Found) {
    if let Err(error) = release_artifacts(config, &found.sessions, &found.scope).await {
        err_line(&format!(
            "its artifacts could not be deleted; they expire within a day: {error}"
        ));
    }
}
