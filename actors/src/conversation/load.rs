//! Reads a conversation from its store: the snapshot if it is of use, the entries after it, the fold.

use super::message::LoadFailure;
use crate::{
    ids::{Scope, Seq},
    journal::{Durable, fold, restore},
    ports::SessionBackend,
};

/// Entries read at once when a snapshot is of no use.
const PAGE: usize = 1000;

/// Loads and folds.
pub(crate) async fn load(sessions: &dyn SessionBackend, scope: &Scope) -> Result<Durable, LoadFailure> {
    let loaded = sessions.load(scope).await.map_err(LoadFailure::Store)?;
    let durable = match restore(&loaded) {
        Some(result) => result.map_err(LoadFailure::Unreadable)?,
        None => {
            tracing::warn!(conversation = %scope.conversation, "a snapshot was of no use; reading the whole journal");
            whole(sessions, scope).await?
        }
    };
    if durable.head != loaded.head.seq || durable.epoch != loaded.head.epoch {
        let (seq, epoch) = (loaded.head.seq, loaded.head.epoch);
        return Err(LoadFailure::Unreadable(format!(
            "the journal ends at {} of {}, its head says {seq} of {epoch}",
            durable.head, durable.epoch
        )));
    }
    Ok(durable)
}

async fn whole(sessions: &dyn SessionBackend, scope: &Scope) -> Result<Durable, LoadFailure> {
    let mut durable = Durable::default();
    loop {
        let page = sessions.entries(scope, durable.head, PAGE).await.map_err(LoadFailure::Store)?;
        if page.is_empty() {
            return Ok(durable);
        }
        let before = durable.head;
        durable = fold(durable, &page).map_err(LoadFailure::Unreadable)?;
        if durable.head == before {
            return Err(LoadFailure::Unreadable(format!("the journal does not go on after {}", Seq(before.0))));
        }
    }
}
