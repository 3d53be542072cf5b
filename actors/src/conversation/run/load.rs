//! Loads a conversation from its store: the snapshot if it is usable, the entries after it, and
//! their fold.

use crate::{
    conversation::message::LoadFailure,
    ids::{Scope, Seq},
    journal::{Durable, FoldError, Loaded, fold, restore},
    ports::{ListQuery, SessionBackend},
    reads::{ReadPermit, bytes_of, decoded},
    tenant::Family,
};

/// Subagents per read after the first one.
const CHILDREN_PAGE: usize = 128;

/// Entries per read when the whole journal is read.
const PAGE: usize = 1000;

/// Loads a conversation and folds its journal.
pub(crate) async fn load(
    sessions: &dyn SessionBackend,
    scope: &Scope,
) -> Result<Durable, LoadFailure> {
    load_within(sessions, scope, &None).await
}

/// As [`load`], as one of the reads of a tenant.
pub(crate) async fn load_within(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
) -> Result<Durable, LoadFailure> {
    let loaded = sessions.load(scope).await.map_err(LoadFailure::from)?;
    folded(sessions, scope, loaded, permit).await
}

/// Folds what the store returned; reads the whole journal if the snapshot is not usable. Fails if
/// the fold does not end at the head that the store reports.
async fn folded(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    loaded: Loaded,
    permit: &ReadPermit,
) -> Result<Durable, LoadFailure> {
    let head = loaded.head;
    let durable = match fold_loaded(loaded, permit).await? {
        Some(result) => result?,
        None => {
            tracing::warn!(conversation = %scope.conversation, "a snapshot was of no use; reading the whole journal");
            until(sessions, scope, permit, Seq(u64::MAX)).await?
        }
    };
    if durable.head != head.seq || durable.epoch != head.epoch {
        let seq = head.seq;
        let epoch = head.epoch;
        return Err(LoadFailure::Unreadable(format!(
            "the journal ends at {} of {}, its head says {seq} of {epoch}",
            durable.head, durable.epoch
        )));
    }
    Ok(durable)
}

/// Folds what a load returned. `None` if its snapshot is not usable.
async fn fold_loaded(
    loaded: Loaded,
    permit: &ReadPermit,
) -> Result<Option<Result<Durable, FoldError>>, LoadFailure> {
    let snapshot = loaded.snapshot.as_ref().map_or(0, |(_, bytes)| bytes.len());
    let bytes = snapshot + bytes_of(&loaded.entries);
    Ok(decoded(bytes, permit, move || restore(&loaded)).await?)
}

/// Like [`folded`], for a conversation with a shared family budget: also enters what the
/// conversation and its sleeping subagents have spent.
pub(in crate::conversation) async fn folded_with(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    loaded: Loaded,
    family: Option<&Family>,
) -> Result<Durable, LoadFailure> {
    let durable = folded(sessions, scope, loaded, &None).await?;
    let Some(family) = family else {
        return Ok(durable);
    };
    family.enter(&scope.conversation, durable.spent.amount);
    if scope.conversation.is_subagent() || durable.head == Seq(0) {
        return Ok(durable);
    }
    spent_by(sessions, scope, family).await?;
    Ok(durable)
}

/// Enters into `family` what the sleeping subagents of `parent` have spent.
pub(crate) async fn spent_by(
    sessions: &dyn SessionBackend,
    parent: &Scope,
    family: &Family,
) -> Result<(), LoadFailure> {
    let prefix = parent.conversation.children();
    let mut after = prefix.clone();
    // Most conversations have no children, and the first row shows that.
    let mut count = 1;
    loop {
        let query = ListQuery {
            after: Some(after),
            subagents: true,
            count,
            ..ListQuery::default()
        };
        let page = sessions
            .list(&parent.tenant, query)
            .await
            .map_err(LoadFailure::from)?;
        let Some(last) = page.last().map(|row| row.conversation.clone()) else {
            return Ok(());
        };
        // The ids of subagents share a prefix and pages are in order of ids, so the first id
        // without the prefix ends the search.
        let children = page
            .into_iter()
            .map(|row| row.conversation)
            .take_while(|id| id.as_str().starts_with(prefix.as_str()));
        for child in children {
            if !family.knows(&child) {
                let scope = Scope::new(parent.tenant.clone(), child.clone());
                let spent = load(sessions, &scope).await?.spent.amount;
                family.enter(&child, spent);
            }
        }
        if !last.as_str().starts_with(prefix.as_str()) {
            return Ok(());
        }
        after = last;
        count = CHILDREN_PAGE;
    }
}

/// The state as it stood at an entry, or at the end of the journal if that comes before.
pub(crate) async fn until(
    sessions: &dyn SessionBackend,
    scope: &Scope,
    permit: &ReadPermit,
    upto: Seq,
) -> Result<Durable, LoadFailure> {
    let mut durable = Durable::default();
    loop {
        let left = upto.0.saturating_sub(durable.head.0);
        let count = usize::try_from(left).unwrap_or(PAGE).min(PAGE);
        if count == 0 {
            return Ok(durable);
        }
        let page = sessions
            .entries(scope, durable.head, count)
            .await
            .map_err(LoadFailure::from)?;
        if page.is_empty() {
            return Ok(durable);
        }
        let before = durable.head;
        let folding = decoded(bytes_of(&page), permit, move || fold(durable, &page));
        durable = folding.await??;
        if durable.head == before {
            return Err(LoadFailure::Unreadable(format!(
                "the journal does not go on after {}",
                Seq(before.0)
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;

    use super::*;
    use crate::{journal::StoredEntry, reads::DECODED_IN_PLACE};

    fn loaded(bytes: usize) -> Loaded {
        let entry = StoredEntry {
            seq: Seq(1),
            bytes: Bytes::from(vec![b'x'; bytes]),
        };
        Loaded {
            entries: vec![entry],
            ..Loaded::default()
        }
    }

    #[test]
    fn a_large_journal_is_folded_off_the_threads_of_the_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        // The only thread for such work is taken, so that it cannot be done at once.
        let (go, taken) = std::sync::mpsc::channel::<()>();
        runtime.spawn_blocking(move || taken.recv());
        runtime.block_on(async {
            let small = fold_loaded(loaded(1000), &None).now_or_never();
            assert!(small.is_some(), "the runtime folds a small one at once");

            let mut large = Box::pin(fold_loaded(loaded(DECODED_IN_PLACE + 1), &None));
            assert!((&mut large).now_or_never().is_none());
            drop(go);
            assert!(matches!(large.await, Ok(Some(Err(_)))), "no journal at all");
        });
    }
}
