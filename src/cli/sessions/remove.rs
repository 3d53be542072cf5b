//! `callboard sessions reset` and `delete`. Large results of the conversation go too (REQUIREMENTS A-11).

use callboard_actors::{
    ids::{FAN_OUT_PREFIX, Scope},
    ports::{ListQuery, SessionBackend, StoreError},
};

use super::{Found, OneArgs, quiet_host};
use crate::{
    app::{Opening, TENANT, release_artifacts},
    cli::{
        failure::{Done, Failure},
        run::SHUTDOWN,
        session::{not_found, scope, unreadable},
        terminal::err_line,
    },
    config::Config,
};

/// Empties a conversation.
pub(super) async fn reset(config: &Config, args: &OneArgs) -> Result<Done, Failure> {
    let found = Found::open(config, args).await?;
    let _lock = found.sessions.lock(&found.scope)?;
    let app = quiet_host(config, &found.sessions).await?;
    let handle = app.host.tenant(TENANT).conversation(found.id.clone());
    let state = handle.state().await.map_err(|error| unreadable(&found.id, error))?;
    if !state.inbox.is_empty() {
        // Waking it would ask a model, and not the one that the prompt was for.
        return Err(Failure::work(format!("session `{}` has a prompt that waits for its answer", found.id))
            .hint("`callboard run --session … --resume` answers it, `callboard sessions delete` erases all"));
    }
    let done = handle.reset().await;
    app.host.shutdown(SHUTDOWN).await;
    done?;
    release(config, &found).await;
    err_line(&format!("session {} is empty", found.id));
    Ok(Done::Well)
}

/// Erases a conversation.
pub(super) async fn delete(config: &Config, args: &OneArgs) -> Result<Done, Failure> {
    let found = match args.id.as_str().starts_with(FAN_OUT_PREFIX) {
        // Its name has no journal; its subagents have.
        true => Found { sessions: args.store.open(config, Opening::Existing).await?, id: args.id.clone(), scope: scope(&args.id)? },
        false => Found::open(config, args).await?,
    };
    let _lock = found.sessions.lock(&found.scope)?;
    let backend = found.sessions.backend();
    // Before its own journal: a deletion that fails here is asked for again, and finds them.
    let children = children(&*backend, &found.scope).await?;
    for child in &children {
        backend.delete(child).await?;
    }
    if !backend.delete(&found.scope).await? && children.is_empty() {
        return Err(not_found(&found.sessions, &found.id).await);
    }
    backend.close(SHUTDOWN).await?;
    release(config, &found).await;
    err_line(&format!("session {} is erased", found.id));
    Ok(Done::Well)
}

/// The subagents that a conversation began.
async fn children(backend: &dyn SessionBackend, parent: &Scope) -> Result<Vec<Scope>, StoreError> {
    let (prefix, mut children) = (parent.conversation.children(), Vec::<Scope>::new());
    loop {
        let after = children.last().map_or_else(|| prefix.clone(), |child| child.conversation.clone());
        let page = backend.list(&parent.tenant, ListQuery { after: Some(after), subagents: true, ..ListQuery::default() }).await?;
        let before = children.len();
        let ours = page.into_iter().map(|row| row.conversation).take_while(|id| id.as_str().starts_with(prefix.as_str()));
        children.extend(ours.map(|id| Scope::new(parent.tenant.clone(), id)));
        if children.len() == before {
            return Ok(children);
        }
    }
}

/// What is said to the user is done already: what cannot be given up now goes by its age.
async fn release(config: &Config, found: &Found) {
    if let Err(error) = release_artifacts(config, &found.scope).await {
        err_line(&format!("its large results are still kept, for a day at most: {error}"));
    }
}
