//! `callboard sessions reset` and `delete`. Large results of the conversation go too (REQUIREMENTS A-11).

use super::{Found, OneArgs, quiet_host};
use crate::{
    app::{TENANT, release_artifacts},
    cli::{
        failure::{Done, Failure},
        run::SHUTDOWN,
        session::{not_found, unreadable},
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
    let found = Found::open(config, args).await?;
    let _lock = found.sessions.lock(&found.scope)?;
    let backend = found.sessions.backend();
    if !backend.delete(&found.scope).await? {
        return Err(not_found(&found.sessions, &found.id).await);
    }
    backend.close(SHUTDOWN).await?;
    release(config, &found).await;
    err_line(&format!("session {} is erased", found.id));
    Ok(Done::Well)
}

/// What is said to the user is done already: what cannot be given up now goes by its age.
async fn release(config: &Config, found: &Found) {
    if let Err(error) = release_artifacts(config, &found.scope).await {
        err_line(&format!("its large results are still kept, for a day at most: {error}"));
    }
}
